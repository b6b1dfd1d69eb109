"""`parley doctor`: is everything there, and if not, what to do?"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence

import click
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from infra.doctor import engines, here, log, stores, views
from infra.doctor.findings import Check, Finding, Level, as_json, exit_code, fail
from parley.errors import ParleyError
from parley.settings import Settings
from parley.timeline.show import printable

CHECKS: dict[str, Check] = {
    "versions": here.versions,
    "id keys": here.id_keys,
    "schemas": here.schemas,
    "tokenizers": here.tokenizers,
    "moderation": here.moderation,
    "disk": here.disk,
    "kafka": log.brokers,
    "topics": log.topics,
    "records": log.records,
    "dead letters": log.dead_letters,
    "groups": log.groups,
    "clocks": log.clocks,
    "postgresql": stores.postgres,
    "message store": stores.messages,
    "views": views.views,
    "engines": engines.engines,
}
LIMIT_S = 30.0
"""Of one check: what hangs is a finding, too."""
COLOURS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}
WIDE = 200
"""Columns where there is no terminal: whole lines can be searched."""
UNREACHABLE = {
    "log_unavailable": "start Kafka, or set PARLEY_KAFKA__BOOTSTRAP",
    "store_unavailable": "start the store, or mend its PARLEY_* settings (`parley settings`)",
}


@click.command()
@click.option("--json", "json_wanted", is_flag=True, help="A list of JSON objects.")
@click.option("--only", multiple=True, type=click.Choice(sorted(CHECKS)), help="Only this check. Repeatable.")
@click.option("--quiet", is_flag=True, help="Only what is not well.")
def doctor(json_wanted: bool, only: tuple[str, ...], quiet: bool) -> None:
    """Check everything that the roles need, with the settings that they have; says what to do.

    Changes nothing. Exit code: 0 all is well, 3 something to look at, 5 something to mend.
    """
    for noisy in ("aiokafka", "cassandra"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    try:
        settings = Settings()
        _ = settings.topics
    except (ValidationError, OSError, ValueError) as error:
        raise click.ClickException(f"settings: {error}") from None
    findings = asyncio.run(examine(settings, only or tuple(CHECKS)))
    if json_wanted:
        click.echo(json.dumps(as_json(findings), indent=2, ensure_ascii=False))
    else:
        terminal = Console()
        shown = [finding for finding in findings if finding.level or not quiet]
        (terminal if terminal.is_terminal else Console(width=WIDE)).print(table(shown))
    raise SystemExit(exit_code(findings))


async def examine(settings: Settings, names: Sequence[str]) -> list[Finding]:
    """The findings of these checks, in their order. Checks wait for different services, so they run at once."""
    found = await asyncio.gather(*(_run(name, settings) for name in names))
    return [finding for findings in found for finding in findings]


async def _run(name: str, settings: Settings) -> list[Finding]:
    try:
        async with asyncio.timeout(LIMIT_S):
            return await CHECKS[name](settings)
    except ParleyError as error:
        return [fail(name, error.message, UNREACHABLE.get(error.kind.code, "see docs/errors.md"))]
    except TimeoutError:
        return [fail(name, f"no answer within {LIMIT_S:g} s", "look at the service and at the network to it")]
    except Exception as error:  # what nobody foresaw (no right to read a table): the other checks have their say
        return [fail(name, f"could not look: {type(error).__name__}: {error}", "look at the service and its settings")]


def table(findings: Sequence[Finding]) -> Table:
    """For people: one line a finding."""
    made = Table(box=None, pad_edge=False, show_header=False)
    made.add_column(no_wrap=True)
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for finding in findings:
        told = Text(printable(finding.found))
        if finding.todo:
            told.append(f"  → {finding.todo}", "bold")
        made.add_row(Text(finding.level.name.lower(), COLOURS[finding.level]), finding.check, told)
    return made
