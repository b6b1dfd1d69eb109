"""`parley log archive`: what brokers will forget, into files."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path

import click

from parley.alone import alone
from parley.archive.manifest import NAME
from parley.archive.read import Archive
from parley.archive.write import Archived, archive_topics
from parley.cli_errors import in_one_line
from parley.errors import ParleyError
from parley.log.admin import connect
from parley.log.spans import open_spans
from parley.settings import Settings
from parley.timeline.audit import record_reading
from parley.topics import Topics


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--topic", "names", multiple=True, metavar="NAME", help="Only this topic. Repeatable.")
@click.option("--check", is_flag=True, help="Write nothing; prove that what is there is what was written.")
@click.option("--json", "json_wanted", is_flag=True, help="One JSON object a topic.")
def archive(folder: Path, names: tuple[str, ...], check: bool, json_wanted: bool) -> None:
    """Append to FOLDER what topics have got since the last run: a file a day and topic, nothing twice.

    Compacted topics are left out unless named. The files hold what people wrote: only their owner can read them, and
    that you made them is recorded in chat.audit. Run it more often than the shortest retention (2 h, tokens).
    """
    with in_one_line():
        if check:
            _check(folder)
            return
        results = asyncio.run(_archive(Settings(), folder, names))
    for result in results:
        if json_wanted:
            click.echo(json.dumps(asdict(result) | {"gaps": [gap.model_dump() for gap in result.gaps]}))
        elif result.records:
            click.echo(f"{result.topic}: {result.records} records, {result.bytes} bytes")
        for gap in result.gaps:
            lost = (
                f"{gap.end - gap.start} offsets of {result.topic}-{gap.partition} were gone before they were archived"
            )
            click.echo(f"{lost}: run it more often", err=True)
    if not json_wanted:
        click.echo(f"{sum(result.records for result in results)} records of {len(results)} topics")
    for topic in (remade := [result.topic for result in results if result.remade]):
        click.echo(f"{topic} was made anew since: not archived. Move {folder / topic} away to begin again", err=True)
    for result in (orphaned := [result for result in results if result.unlisted]):
        place = folder / result.topic
        what = f"{place} has {', '.join(result.unlisted)} and no {NAME}, which says what of them counts"
        click.echo(f"{result.topic}: not archived: {what}. Restore it, or move {place} away to begin again", err=True)
    if remade or orphaned:
        raise SystemExit(1)


def _check(folder: Path) -> None:
    found = Archive(folder)
    damaged = found.damaged()
    for name in damaged:
        click.echo(f"damaged: {name}", err=True)
    parts = sum(len(manifest.parts) for manifest in found.topics.values())
    click.echo(f"{parts} parts of {len(found.topics)} topics, {len(damaged)} damaged")
    if damaged:
        raise SystemExit(1)


async def _archive(settings: Settings, folder: Path, names: tuple[str, ...]) -> list[Archived]:
    with alone(folder):
        await record_reading(settings, "parley log archive", f"{', '.join(names) or 'all topics'} to {folder}")
        async with connect(settings.kafka) as admin:
            live = await admin.names()
        if absent := [name for name in names if name not in live]:
            raise ParleyError("not_found", f"there is no topic {', '.join(absent)}")
        async with open_spans(settings.kafka, "parley-archive") as spans:
            counts = await spans.existing(names or _kept(settings.topics, live))
            return await archive_topics(spans, folder, counts)


def _kept(topics: Topics, live: list[str]) -> list[str]:
    """What has a retention: topics.yaml's, and sessions' own. A compacted topic keeps its newest by itself."""
    ours = {name for name, topic in topics.topics.items() if topic.cleanup == "delete"}
    return [name for name in live if name in ours or name.startswith(topics.session_topics.prefix)]
