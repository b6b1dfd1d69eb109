"""How commands for operators end when they fail: one line, without a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click
from pydantic import ValidationError

from parley.errors import ParleyError


@contextmanager
def in_one_line() -> Iterator[None]:
    """Wrong settings, and errors of the taxonomy, as click's own: exit code 1 and a sentence."""
    try:
        yield
    except ValidationError as error:
        raise click.ClickException(f"settings: {error}") from None
    except ParleyError as error:
        raise click.ClickException(error.message) from None
