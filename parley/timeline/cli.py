"""`parley log`: what happened to a conversation or a response, over all topics; and what a topic holds."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Console

from parley.archive.cli import archive as archive_command
from parley.archive.source import open_source
from parley.cli_errors import in_one_line
from parley.clock import now_ms
from parley.errors import ParleyError
from parley.settings import Settings
from parley.timeline.audit import record_reading
from parley.timeline.fold import Entry
from parley.timeline.pick import Where
from parley.timeline.read import DEFAULT_LIMIT, Timeline, Window, follow_timeline, read_timeline
from parley.timeline.show import Line, Show, as_json, lines, summary
from parley.timeline.target import PREFIXES, Target, parse_target
from parley.timeline.topic import Extent
from parley.timeline.topic_cli import Offsets, TopicRequest, log_topic, pick_of
from parley.topics import parse_duration
from schemas.base import Millis

WIDE = 200
"""Columns where there is no terminal: whole lines can be searched."""


class Moment(click.ParamType):
    """A time: an age (90s, 15m, 2h, 3d), or an ISO 8601 time, in UTC unless it says otherwise."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Millis:
        """Milliseconds since the Unix epoch."""
        text = str(value)
        if re.fullmatch(r"\d+(ms|s|m|h|d)", text):
            age = parse_duration(text)
            assert isinstance(age, int)
            return now_ms() - age
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self.fail(f"{text!r} is neither an age (15m, 2h, 3d) nor a time (2026-11-30T13:00)", param, ctx)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


class _Log(click.Group):
    """`parley log WHAT …` is `parley log show WHAT …`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Log, context_settings={"help_option_names": ["-h", "--help"]})
def log() -> None:
    """What the log holds of a conversation, a response or a topic; `parley log WHAT` is short for `show`."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


@log.command()
@click.argument("what", metavar="SESSION|RESPONSE|TOPIC")
@click.option("--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option("--show-content", is_flag=True, help="Show what was written; that you did is recorded in chat.audit.")
@click.option("--json", "json_wanted", is_flag=True, help="One JSON object a line.")
@click.option("--since", type=Moment(), help="Age (2h) or time; default: the id's own time, for a topic 15m.")
@click.option("--until", type=Moment(), help="Age or time; default: now.")
@click.option("--limit", type=click.IntRange(min=1), default=DEFAULT_LIMIT, show_default=True, help="Records to read.")
@click.option("--from-archive", "archive", type=click.Path(path_type=Path), help="Read this folder instead of Kafka.")
@click.option("--partition", type=click.IntRange(min=0), help="Of a topic: only this one.")
@click.option("--offsets", type=Offsets(), help="Of a topic: 120, 100..200, 100.. or ..200, both included.")
@click.option("--session", help="Of a topic: only this conversation's.")
@click.option("--response", help="Of a topic: only this response's.")
@click.option("--user", help="Of a topic: only events that name this user id.")
@click.option("--type", "types", multiple=True, metavar="NAME", help="Of a topic: only this type. Repeatable.")
@click.option("--where", metavar="JQ", help="Of a topic: only entries, as --json shows them, for which this holds.")
@click.option("--raw", is_flag=True, help="Of a topic: values as they are, a line each; needs --show-content.")
def show(
    what: str,
    follow: bool,
    show_content: bool,
    json_wanted: bool,
    since: Millis | None,
    until: Millis | None,
    limit: int,
    archive: Path | None,
    partition: int | None,
    offsets: tuple[int | None, int | None] | None,
    session: str | None,
    response: str | None,
    user: str | None,
    types: tuple[str, ...],
    where: str | None,
    raw: bool,
) -> None:
    """Everything that the log says of a conversation or a response, in one order, or the records of a topic.

    SESSION is a conv_… id or a UUID, RESPONSE a resp_… or msg_… id, TOPIC a topic's name. Void records of a
    conversation are shown with the reason. Contents are left out unless asked for.
    """
    if archive is not None and follow:
        raise click.UsageError("an archive has no future: leave out --follow or --from-archive")
    if raw and json_wanted:
        raise click.UsageError("--raw or --json, not both")
    of_topic = [partition, offsets, session, response, user, types, where, raw]
    try:
        with in_one_line():
            target = _target(what)
            if target is None:
                if raw and not show_content:
                    raise click.UsageError("--raw shows what was written: say --show-content, too, which is recorded")
                first, last = offsets or (None, None)
                request = TopicRequest(
                    what,
                    Extent(partition, first, last, since, until, limit),
                    pick_of(session, response, user, types),
                    Where(where) if where else None,
                    follow,
                    show_content,
                    json_wanted,
                    raw,
                    archive,
                )
                asyncio.run(log_topic(Settings(), request, _console()))
            elif any(given not in (None, (), False) for given in of_topic):
                raise click.UsageError("these options choose records of a TOPIC; a conversation is shown as a whole")
            else:
                printing = _Printing(json_wanted, show_content)
                asyncio.run(_log(Settings(), target, Window(since, until, limit), archive, follow, printing))
    except KeyboardInterrupt:
        return


log.add_command(archive_command)


def _target(what: str) -> Target | None:
    """The conversation or response that is named; None: what is no id is a topic's name.

    Raises:
        ParleyError: invalid_request: it is meant as an id, and is none.
    """
    if "." in what:
        return None
    try:
        return parse_target(what)
    except ParleyError:
        if what.startswith(PREFIXES):
            raise
        return None


async def _log(
    settings: Settings, target: Target, window: Window, archive: Path | None, follow: bool, printing: _Printing
) -> None:
    if printing.content:
        await record_reading(settings, "parley log", target.text, session=target.session, response=target.response)
    async with open_source(settings.kafka, "parley-log", archive) as source:
        timeline = await read_timeline(settings, source, target, window)
    printing.timeline(timeline)
    if follow:
        async with aclosing(follow_timeline(settings, target, timeline)) as coming:
            async for entry in coming:
                printing.entry(entry)
    elif not timeline.entries:
        raise ParleyError(
            "not_found", f"the log holds nothing of {target.text}: it may be older than what topics keep, or mistyped"
        )


def _console() -> Console:
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=WIDE)


class _Printing:
    """Where entries go."""

    def __init__(self, json_wanted: bool, content: bool) -> None:
        self.content = content
        self._json = json_wanted
        self._console = _console()
        self._show: Show | None = None

    def timeline(self, timeline: Timeline) -> None:
        """All that was read, then what it came to."""
        self._show = Show(timeline.folding, content=self.content)
        if self._json:
            for entry in timeline.entries:
                self.entry(entry)
        else:
            for line in lines(timeline.entries):
                self._print(line)
            for told in summary(timeline.folding):
                self._console.print(told, markup=False, highlight=False)
        for note in timeline.notes:
            click.echo(note, err=True)

    def entry(self, entry: Entry) -> None:
        """One more."""
        if self._json:
            click.echo(json.dumps(as_json(entry, content=self.content), ensure_ascii=False))
        else:
            for line in lines([entry]):
                self._print(line)

    def _print(self, line: Line) -> None:
        assert self._show is not None
        self._console.print(self._show.line(line), soft_wrap=True)
