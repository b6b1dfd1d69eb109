"""`parley log TOPIC`: what was asked for on the command line, read and shown."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import click
from rich.console import Console

from parley.archive.source import open_source
from parley.errors import ParleyError
from parley.log.ranges import Record
from parley.settings import Settings
from parley.timeline.audit import record_reading
from parley.timeline.fold import Entry, in_order
from parley.timeline.pick import Pick, Where
from parley.timeline.show import lines
from parley.timeline.target import parse_target
from parley.timeline.topic import Extent, follow_topic, read_topic
from parley.timeline.topic_show import topic_json, topic_line


class Offsets(click.ParamType):
    """`120`, `100..200`, `100..` or `..200`: offsets, both ends included."""

    name = "offsets"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """(first, last); None: open."""
        if isinstance(value, tuple):
            return value
        text = str(value)
        if re.fullmatch(r"\d+", text):
            return int(text), int(text)
        if found := re.fullmatch(r"(\d*)\.\.(\d*)", text):
            first, last = (int(end) if end else None for end in found.groups())
            return first, last
        return self.fail(f"{text!r} is no range of offsets: give 120, 100..200, 100.. or ..200", param, ctx)


@dataclass(frozen=True, slots=True)
class TopicRequest:
    """What of a topic is wanted, and how it is to be shown."""

    topic: str
    extent: Extent
    pick: Pick
    where: Where | None
    follow: bool
    content: bool
    json_wanted: bool
    raw: bool
    archive: Path | None


def pick_of(session: str | None, response: str | None, user: str | None, types: Iterable[str]) -> Pick:
    """The options as values.

    Raises:
        ParleyError: invalid_request: an id is none.
    """
    of_session = parse_target(session).session if session else None
    of_response = parse_target(response).response if response else None
    if response and of_response is None:
        raise ParleyError("invalid_request", f"{response!r} is no response: give a resp_… or msg_… id")
    try:
        of_user = UUID(user) if user else None
    except ValueError:
        raise ParleyError("invalid_request", f"{user!r} is no user id: give a UUID") from None
    return Pick(of_session, of_response, of_user, frozenset(types))


async def log_topic(settings: Settings, wanted: TopicRequest, console: Console) -> None:
    """Read and show, and go on if so wanted.

    Raises:
        ParleyError: as `read_topic`, and `record_reading` where contents are to be shown.
    """
    if wanted.content:
        pick = wanted.pick
        await record_reading(settings, "parley log", wanted.topic, session=pick.session, response=pick.response)
    showing = _Showing(wanted, console)
    async with open_source(settings.kafka, "parley-log", wanted.archive) as source:
        found = await read_topic(settings, source, wanted.topic, wanted.extent, wanted.pick)
    showing.all(found.picked)
    if wanted.follow:
        async with aclosing(follow_topic(settings, found.positions, wanted.pick)) as coming:
            async for record, entry in coming:
                showing.all([(record, entry)])
    click.echo(f"{showing.shown} shown of {found.read} records read", err=True)
    if wanted.where is not None and wanted.where.failed:
        click.echo(f"--where failed on {wanted.where.failed} entries: {wanted.where.failure}", err=True)


class _Showing:
    """Where entries go."""

    def __init__(self, wanted: TopicRequest, console: Console) -> None:
        self._wanted = wanted
        self._console = console
        self.shown = 0

    def all(self, picked: list[tuple[Record, Entry]]) -> None:
        """Those that the filter keeps, in the order in which the log took them."""
        content, where = self._wanted.content, self._wanted.where
        records = {(entry.topic, entry.partition, entry.offset): record for record, entry in picked}
        kept = []
        for entry in in_order(entry for _, entry in picked):
            told = topic_json(records[entry.topic, entry.partition, entry.offset], entry, content=content)
            if where is None or where.keeps(told):
                kept.append(entry)
                if self._wanted.json_wanted:
                    click.echo(json.dumps(told, ensure_ascii=False))
        self.shown += len(kept)
        if self._wanted.raw:
            self._raw(records[place] for place in dict.fromkeys((e.topic, e.partition, e.offset) for e in kept))
        elif not self._wanted.json_wanted:
            for line in lines(kept):
                self._console.print(topic_line(line, content=content), soft_wrap=True)

    @staticmethod
    def _raw(records: Iterable[Record]) -> None:
        """Values as they are, a line each."""
        out = click.get_binary_stream("stdout")
        for record in records:
            out.write((record.value or b"") + b"\n")
        sys.stdout.flush()
        out.flush()
