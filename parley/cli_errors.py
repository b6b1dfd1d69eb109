"""How commands for operators end when they fail: one line, without a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click
import yaml
from pydantic import ValidationError

from parley.errors import ParleyError


@contextmanager
def in_one_line() -> Iterator[None]:
    """Wrong settings, files that can't be used, and errors of the taxonomy, as click's own: exit code 1, a sentence."""
    try:
        yield
    except (ValidationError, yaml.YAMLError) as error:
        raise click.ClickException(f"settings: {error}") from None
    except ParleyError as error:
        raise click.ClickException(error.message) from None
    except BrokenPipeError:
        raise  # `parley log … | head`: click ends quietly
    except OSError as error:
        about = f"{error.filename}: " if error.filename else ""
        raise click.ClickException(f"{about}{error.strerror or error or type(error).__name__}") from None
