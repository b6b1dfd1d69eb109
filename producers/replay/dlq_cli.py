"""`parley dlq`: what could not be processed, why, and back again."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from uuid import UUID

import click
from rich.console import Console
from rich.table import Table

from parley.cli_errors import in_one_line
from parley.clock import now_ms
from parley.log.spans import open_spans
from parley.settings import Settings
from parley.timeline.audit import record_reading
from parley.timeline.cli import WIDE, Moment
from parley.timeline.redact import redacted
from parley.timeline.show import printable
from producers.replay.letters import Letter, Redrive, Refusal
from producers.replay.redrive import Wanted, at_most, newest_letters, plan, read_letters, send
from schemas.base import Millis
from schemas.wire import EVENTS, BadRecord, decoder, header

T_ = TypeVar("T_")

SHOWN_HEADERS = frozenset(
    {"type", "response", "session", "route", "deadline", "dispatch", "started", "x-redrive-of", "x-redrive-by"}
)
"""Original headers whose values are ours; of others only the length is shown."""

as_json = click.option("--json", "json_wanted", is_flag=True, help="One JSON object.")


@click.group()
def dlq() -> None:
    """Dead letters: records that could not be processed, with their original bytes."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


@dlq.command("list")
@click.option("--group", "groups", multiple=True, metavar="NAME", help="Given up by this group. Repeatable.")
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="From this topic. Repeatable.")
@click.option("--since", type=Moment(), help="Age (2h) or time; default: all that chat.dlq keeps.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Letters shown, the newest.")
@as_json
def list_command(
    groups: tuple[str, ...], topics: tuple[str, ...], since: Millis | None, limit: int, json_wanted: bool
) -> None:
    """Letters, oldest first: where each came from, who gave it up, why, how old it is."""
    wanted = Wanted(groups=frozenset(groups), topics=frozenset(topics), since=since)
    shown, count = _run(lambda settings: _newest(settings, wanted, limit))
    if json_wanted:
        click.echo(json.dumps({"letters": count, "shown": [_letter_json(one) for one in shown]}, indent=2))
        return
    if not shown:
        click.echo("no dead letters")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("letter", "from", "group", "age", "bytes", "reason"):
        table.add_column(name, overflow="fold", justify="right" if name in ("age", "bytes") else "left")
    for one in shown:
        reason = printable(f"{one.error}: {one.reason}")
        table.add_row(one.name, one.source, one.group, _age(one.at), str(one.size), reason)
    console = Console()
    (console if console.is_terminal else Console(width=WIDE)).print(table, markup=False)
    if len(shown) < count:
        click.echo(f"the newest {len(shown)} of {count}: --limit shows more")


@dlq.command()
@click.argument("letter")
@click.option("--show-content", is_flag=True, help="Show the original bytes; that you did is recorded in chat.audit.")
@as_json
def show(letter: str, show_content: bool, json_wanted: bool) -> None:
    """One LETTER (PARTITION@OFFSET): all that is known of it, without what people wrote."""

    async def work(settings: Settings) -> Letter:
        [found] = await _letters(settings, Wanted(names=frozenset([letter])))
        if show_content:
            session = None
            with contextlib.suppress(ValueError):
                session = UUID((found.key or b"").decode("ascii"))
            await record_reading(settings, "parley dlq show", f"chat.dlq-{letter}", session=session)
        return found

    found = _run(work)
    told = _letter_json(found) | {
        "headers": _headers_json(found),
        "key": (found.key or b"").decode("ascii", "backslashreplace"),
        "sha256": hashlib.sha256(found.value or b"").hexdigest(),
        "now": _reading(found),
    }
    if show_content:
        told["value"] = (found.value or b"").decode("utf-8", "backslashreplace")
    if json_wanted:
        click.echo(json.dumps(told, indent=2, ensure_ascii=False))
        return
    for name, value in told.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        click.echo(f"{name:<11} {printable(text)}")


@dlq.command()
@click.argument("letters", nargs=-1)
@click.option("--group", "groups", multiple=True, metavar="NAME", help="All that this group gave up. Repeatable.")
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="All from this topic. Repeatable.")
@click.option("--since", type=Moment(), help="Only letters since this age (2h) or time.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Letters sent at most, the oldest."
)
@click.option("--as-new-turn", is_flag=True, help="Prompts go back as new turns of their sessions, accepted now.")
@click.option("--yes", is_flag=True, help="Send. Without it nothing is sent, only shown.")
@as_json
def redrive(
    letters: tuple[str, ...],
    groups: tuple[str, ...],
    topics: tuple[str, ...],
    since: Millis | None,
    limit: int,
    as_new_turn: bool,
    yes: bool,
    json_wanted: bool,
) -> None:
    """Send LETTERS (PARTITION@OFFSET), or those that options choose, back where they came from.

    Only events of views, and prompts as new turns; never to another topic; each once. Exit code 1: one was refused.
    """
    if not (letters or groups or topics):
        raise click.UsageError("say which: letters, --group or --topic")
    wanted = Wanted(frozenset(letters), frozenset(groups), frozenset(topics), since)
    results = _run(lambda settings: _redrive(settings, wanted, limit, as_new_turn, yes))
    if json_wanted:
        click.echo(json.dumps([_result_json(decision, offset) for decision, offset in results], indent=2))
    else:
        for decision, offset in results:
            click.echo(printable(_result_text(decision, offset)))
        if not yes and any(isinstance(decision, Redrive) for decision, _ in results):
            click.echo("nothing was sent: --yes sends")
    if any(isinstance(decision, Refusal) and not decision.done for decision, _ in results):
        raise SystemExit(1)


async def _letters(settings: Settings, wanted: Wanted) -> list[Letter]:
    async with open_spans(settings.kafka, "parley-dlq") as spans:
        return await read_letters(spans, wanted)


async def _newest(settings: Settings, wanted: Wanted, limit: int) -> tuple[list[Letter], int]:
    async with open_spans(settings.kafka, "parley-dlq") as spans:
        return await newest_letters(spans, wanted, limit)


async def _redrive(
    settings: Settings, wanted: Wanted, limit: int, as_new_turn: bool, yes: bool
) -> list[tuple[Redrive | Refusal, int | None]]:
    async with open_spans(settings.kafka, "parley-dlq") as spans:
        letters = await read_letters(spans, wanted)
        decisions = at_most(limit, await plan(settings, spans, letters, as_new_turn=as_new_turn))
    sent: dict[str, int] = {}
    if yes:
        async for redrive, offset in send(settings, [one for one in decisions if isinstance(one, Redrive)]):
            sent[redrive.letter.name] = offset
    return [(decision, sent.get(decision.letter.name)) for decision in decisions]


def _result_text(decision: Redrive | Refusal, offset: int | None) -> str:
    letter = decision.letter
    if isinstance(decision, Refusal):
        return f"{letter.name}  {'nothing to do' if decision.done else 'refused'}: {decision.why}"
    where = f"{letter.topic}-{letter.source_partition}"
    if offset is None:
        return f"{letter.name}  would go to {where}: {decision.what}"
    return f"{letter.name}  sent to {where}, offset {offset}: {decision.what}"


def _result_json(decision: Redrive | Refusal, offset: int | None) -> dict[str, Any]:
    about = {"letter": decision.letter.name, "source": decision.letter.source}
    if isinstance(decision, Refusal):
        return about | {"outcome": "done" if decision.done else "refused", "why": decision.why}
    return about | {"outcome": "planned" if offset is None else "sent", "what": decision.what, "offset": offset}


def _letter_json(letter: Letter) -> dict[str, Any]:
    return {
        "letter": letter.name,
        "source": letter.source,
        "group": letter.group,
        "error": letter.error,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "age_s": round((now_ms() - letter.at) / 1000, 1),
        "appended": letter.source_at,
        "bytes": letter.size,
    }


def _headers_json(letter: Letter) -> dict[str, str]:
    return {
        name: (header([(name, value)], name) or "") if name in SHOWN_HEADERS else f"[{len(value)} bytes]"
        for name, value in letter.headers
    }


def _reading(letter: Letter) -> str:
    """What this version makes of the bytes: it may read what another could not."""
    kind = header(letter.headers, "type")
    if kind not in EVENTS:
        return "its headers name no event" if kind is None else f"there is no event {kind[:40]!r}"
    try:
        event = decoder(EVENTS[kind])(letter.value)
    except BadRecord as error:
        return f"still unreadable as {kind}: {error}"
    return f"readable as {kind}: {json.dumps(redacted(event))}"


def _age(at: Millis) -> str:
    seconds = max(0, now_ms() - at) // 1000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _run(work: Callable[[Settings], Coroutine[Any, Any, T_]]) -> T_:
    try:
        with in_one_line():
            return asyncio.run(work(Settings()))
    except ValueError as error:
        raise click.ClickException(str(error)) from None
