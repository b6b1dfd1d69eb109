"""`python -m infra.local up|services|prepare`: the stack without Parley's command line."""

from __future__ import annotations

import asyncio
import sys

import click

from infra.local import provision
from infra.local.checks import check_java
from infra.local.problems import StackError
from infra.local.prometheus import ensure_prometheus
from infra.local.settings import LocalSettings
from infra.local.up import services_only, up


@click.group(help=__doc__)
def main() -> None: ...


@main.command("up")
def up_command() -> None:
    """Run the whole system until Ctrl-C."""
    sys.exit(asyncio.run(up(LocalSettings())))


@main.command("services")
def services_command() -> None:
    """Run the services alone until Ctrl-C, for working on a role."""
    settings = LocalSettings()
    sys.exit(asyncio.run(up(settings, services_only(settings))))


@main.command("prepare")
@click.option("--tests", is_flag=True, help="Also what only tests need; without it they are skipped.")
def prepare_command(tests: bool) -> None:
    """Fetch and make everything that `up` needs, and start nothing."""
    try:
        asyncio.run(prepare(LocalSettings()))
    except StackError as error:
        sys.exit(f"parley: {error}")
    if tests:
        try:
            asyncio.run(ensure_prometheus(LocalSettings()))
        except StackError as error:
            click.echo(f"parley: tests of alerts are skipped: {error}", err=True)


async def prepare(settings: LocalSettings) -> None:
    check_java()
    for name in ("kafka", "cassandra"):
        provision.check_maven(settings, name)
        await provision.ensure_jars(settings, name)
    await provision.ensure_triton_venv(settings)
    await provision.ensure_tokenizers(settings)


if __name__ == "__main__":
    main()
