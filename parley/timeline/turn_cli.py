"""`parley turn`: where the time of one turn went."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import click
from rich.console import Console

from parley.archive.source import open_source
from parley.cli_errors import in_one_line
from parley.errors import ParleyError
from parley.settings import Settings
from parley.timeline.cli import WIDE
from parley.timeline.read import DEFAULT_LIMIT, Window, read_timeline
from parley.timeline.target import Target, parse_target
from parley.timeline.waterfall import Waterfall, waterfall
from parley.timeline.waterfall_show import as_json, drawn


@click.command()
@click.argument("what", metavar="RESPONSE")
@click.option("--json", "json_wanted", is_flag=True, help="One JSON object: times in ms from acceptance on.")
@click.option("--limit", type=click.IntRange(min=1), default=DEFAULT_LIMIT, show_default=True, help="Records to read.")
@click.option("--from-archive", "archive", type=click.Path(path_type=Path), help="Read this folder instead of Kafka.")
def turn(what: str, json_wanted: bool, limit: int, archive: Path | None) -> None:
    """The stages of one turn, drawn to scale from the log alone.

    RESPONSE is a resp_… or msg_… id. Contents are not shown. docs/operations.md says what each stage is.
    """
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    with in_one_line():
        target = parse_target(what)
        fall, notes = asyncio.run(_read(Settings(), target, limit, archive))
    if json_wanted:
        click.echo(json.dumps(as_json(fall), indent=2))
    else:
        terminal = Console()
        (terminal if terminal.is_terminal else Console(width=WIDE)).print(drawn(fall))
    for note in notes:
        click.echo(note, err=True)


async def _read(settings: Settings, target: Target, limit: int, archive: Path | None) -> tuple[Waterfall, list[str]]:
    if target.response is None:
        raise ParleyError(
            "invalid_request", f"{target.text} is a conversation: `parley log {target.text}` names its responses"
        )
    async with open_source(settings.kafka, "parley-turn", archive) as source:
        timeline = await read_timeline(settings, source, target, Window(limit=limit))
    fall = waterfall(target.response, timeline.entries)
    if fall is None:
        raise ParleyError("not_found", f"the log holds nothing of {target.text}: it may be older than what topics keep")
    return fall, timeline.notes
