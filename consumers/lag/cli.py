"""`parley lag`: how far each group is behind, and whether it moves."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from consumers.lag.exporter import serve
from consumers.lag.groups import Watched, expected
from consumers.lag.live import watch
from consumers.lag.show import as_json, exit_code, pool_lines, table
from consumers.lag.survey import Report, Survey
from parley.cli_errors import in_one_line
from parley.log.groups import GroupReader
from parley.log.spans import open_spans
from parley.settings import Settings

LOOPBACK = "127.0.0.1"
WIDE = 160
"""Columns of a table that goes into a file: whole lines can be searched."""


class Address(click.ParamType):
    """[HOST:]PORT as (host, port)."""

    name = "address"

    def convert(
        self, value: str | tuple[str, int], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """The pair."""
        if isinstance(value, tuple):
            return value
        host, _, port = value.rpartition(":")
        if not port.isdecimal() or not 0 < int(port) < 65_536:
            self.fail(f"{value!r} is no [HOST:]PORT", param, ctx)
        return host.strip("[]") or LOOPBACK, int(port)


@click.command()
@click.option("--group", "names", multiple=True, metavar="NAME", help="Only this group, ours or not. Repeatable.")
@click.option("--once", is_flag=True, help="One table instead of a live one; so it is without a terminal.")
@click.option("--json", "json_wanted", is_flag=True, help="One JSON object.")
@click.option("--check", is_flag=True, help="Exit code: 0 OK, 3 WARN, 4 NO_COMMIT, 5 worse, or something is lost.")
@click.option("--all", "every", is_flag=True, help="A line for every partition, also for idle ones.")
@click.option("--window", default=120.0, show_default=True, help="Seconds of commits that states are judged by.")
@click.option("--interval", default=2.0, show_default=True, help="Seconds between two looks.")
@click.option(
    "--serve",
    "serving",
    metavar="[HOST:]PORT",
    type=Address(),
    help="Serve the figures to Prometheus at /metrics, on loopback unless told otherwise.",
)
def lag(
    names: tuple[str, ...],
    once: bool,
    json_wanted: bool,
    check: bool,
    every: bool,
    window: float,
    interval: float,
    serving: tuple[str, int] | None,
) -> None:
    """Each group and partition: who holds it, what waits, what runs, how old the oldest is.

    Asked of the brokers, from outside of the groups: a group that is down has its figures, too. A record is late when
    it has waited, or run, for longer than the group may take; docs/operations.md tells the states.
    """
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    console = Console(markup=False)  # names of groups and members are their owners' words
    try:
        with in_one_line():
            settings = Settings()
            survey = Survey(_watched(settings, names), window)
            if serving is not None:
                _serve(settings, survey, *serving, interval)
                return
            if console.is_terminal and not (once or json_wanted or check):
                asyncio.run(_live(settings, survey, console, every, interval))
                return
            report = asyncio.run(_once(settings, survey))
    except KeyboardInterrupt:
        return
    if json_wanted:
        click.echo(json.dumps(as_json(report), indent=2))
    else:
        (console if console.is_terminal else Console(width=WIDE, markup=False)).print(_shown(report, every))
    if check:
        raise SystemExit(exit_code(report))


def _serve(settings: Settings, survey: Survey, host: str, port: int, interval: float) -> None:
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname).1s lag: %(message)s")
    try:
        asyncio.run(serve(settings, survey, host, port, interval))
    except OSError as error:
        raise click.ClickException(f"can't serve on {host}:{port}: {error.strerror}") from None


def _watched(settings: Settings, names: Sequence[str]) -> list[Watched]:
    ours = {group.name: group for group in expected(settings.topics, settings.protocol)}
    return [ours.get(name, Watched(name)) for name in names] if names else list(ours.values())


def _shown(report: Report, every: bool) -> Group:
    return Group(table(report, every), *pool_lines(report))


async def _once(settings: Settings, survey: Survey) -> Report:
    async with aclosing(_reports(settings, survey, 0)) as reports:
        return await anext(reports)


async def _live(settings: Settings, survey: Survey, console: Console, every: bool, interval: float) -> None:
    with Live(console=console, screen=True, auto_refresh=False) as screen:

        def show(report: Report | None, notice: str) -> None:
            parts = [Text(notice, "bold red")] if notice else []
            screen.update(Group(*parts, *([_shown(report, every)] if report else [])), refresh=True)

        await watch(lambda: _reports(settings, survey, interval), show, interval)


async def _reports(settings: Settings, survey: Survey, interval: float) -> AsyncGenerator[Report, None]:
    async with GroupReader(settings.kafka) as reader, open_spans(settings.kafka, "parley-lag") as spans:
        while True:
            yield await survey.look(reader, spans)
            await asyncio.sleep(interval)
