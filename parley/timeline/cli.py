"""`parley log`: what happened to a conversation or a response, over all topics."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from contextlib import aclosing
from datetime import UTC, datetime

import click
from pydantic import ValidationError
from rich.console import Console

from parley.clock import now_ms
from parley.errors import ParleyError
from parley.log.spans import open_spans
from parley.settings import Settings
from parley.timeline.audit import record_reading
from parley.timeline.fold import Entry
from parley.timeline.read import DEFAULT_LIMIT, Timeline, Window, follow_timeline, read_timeline
from parley.timeline.show import Line, Show, as_json, lines, summary
from parley.timeline.target import Target, parse_target
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


@click.command()
@click.argument("what", metavar="SESSION|RESPONSE")
@click.option("--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option("--show-content", is_flag=True, help="Show what was written; that you did is recorded in chat.audit.")
@click.option("--json", "json_wanted", is_flag=True, help="One JSON object a line.")
@click.option("--since", type=Moment(), help="Age (2h) or time; default: the id's own time.")
@click.option("--until", type=Moment(), help="Age or time; default: now.")
@click.option("--limit", type=click.IntRange(min=1), default=DEFAULT_LIMIT, show_default=True, help="Records to read.")
def log(
    what: str,
    follow: bool,
    show_content: bool,
    json_wanted: bool,
    since: Millis | None,
    until: Millis | None,
    limit: int,
) -> None:
    """Everything that the log says of a conversation or a response, in one order.

    SESSION is a conv_… id or a UUID, RESPONSE a resp_… or msg_… id. Void records are shown with the reason. Contents
    are left out unless asked for.
    """
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    try:
        target = parse_target(what)
        printing = _Printing(json_wanted, show_content)
        asyncio.run(_log(Settings(), target, Window(since, until, limit), follow, printing))
    except ValidationError as error:
        raise click.ClickException(f"settings: {error}") from None
    except ParleyError as error:
        raise click.ClickException(error.message) from None
    except KeyboardInterrupt:
        return


async def _log(settings: Settings, target: Target, window: Window, follow: bool, printing: _Printing) -> None:
    if printing.content:
        await record_reading(settings, "parley log", target.text, session=target.session, response=target.response)
    async with open_spans(settings.kafka, "parley-log") as spans:
        timeline = await read_timeline(settings, spans, target, window)
    printing.timeline(timeline)
    if follow:
        async with aclosing(follow_timeline(settings, target, timeline)) as coming:
            async for entry in coming:
                printing.entry(entry)
    elif not timeline.entries:
        raise ParleyError(
            "not_found", f"the log holds nothing of {target.text}: it may be older than what topics keep, or mistyped"
        )


class _Printing:
    """Where entries go."""

    def __init__(self, json_wanted: bool, content: bool) -> None:
        self.content = content
        self._json = json_wanted
        terminal = Console()
        self._console = terminal if terminal.is_terminal else Console(width=WIDE)
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
