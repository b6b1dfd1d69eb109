"""`parley pool`: take a pool, or one of its engines, out of use, and put it back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from aiokafka import TopicPartition

from parley.cli_errors import in_one_line
from parley.clock import now_ms
from parley.drains import WHERE, Drains
from parley.errors import ParleyError
from parley.log.groups import GroupReader
from parley.log.producer import Producer
from parley.log.spans import Source, open_spans
from parley.remaining import Remaining, of_engine, of_pool
from parley.settings import Settings
from parley.timeline.audit import operator
from parley.topics import CAPACITY, POOLS, Pool
from schemas.base import TIERS, Millis
from schemas.operations import PoolDrain, PoolStatus
from schemas.wire import BadRecord, decoder, encode, headers

T_ = TypeVar("T_")
REPORT_MS = 10_000
"""A worker that has said nothing for so long is shown no more."""
LOOK_S = 1.0
FRESH_MS = 3_000
"""How old the report of a worker may be that a drain relies on."""
STILL_BUSY = 3
"""Exit code of `drain --wait`: something runs still, or nobody can tell."""

_status = decoder(PoolStatus)


@dataclass(frozen=True, slots=True)
class State:
    """What is out of use, and what each worker says of itself."""

    drains: list[PoolDrain]
    workers: list[PoolStatus]


@click.group()
def pool() -> None:
    """Take pools and engines out of use without breaking a turn."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


@pool.command()
@click.argument("what", metavar="POOL[/ENGINE]")
@click.option(
    "--wait",
    default=0.0,
    metavar="SECONDS",
    help="Wait until nothing runs there. Exit code 3: it still does, or nobody can tell.",
)
def drain(what: str, wait: float) -> None:
    """Take POOL, or its engine at ENGINE (host:port), out of use: nothing new begins there, what runs is finished.

    A drained pool's new turns are routed by the next rule of topics.yaml that fits; where there is none they are
    refused as overloaded, at once. A drained engine's worker runs its turns on the pool's other engines.
    """
    left = _run(lambda settings: _drain(settings, what, wait))
    if left is None:
        return
    if left.nothing:
        click.echo("nothing runs there any more")
        return
    if left.turns:
        click.echo(f"{left.turns} turns are not done with", err=True)
    for line in left.unknown:
        click.echo(f"not known to be done: {line}" if not left.turns else line, err=True)
    raise SystemExit(STILL_BUSY)


@pool.command()
@click.argument("what", metavar="POOL[/ENGINE]")
def resume(what: str) -> None:
    """Put it back into use."""
    _run(lambda settings: _say(settings, *named(settings, what), drained=False))
    click.echo(f"{what} is in use")


@pool.command()
@click.option("--json", "json_wanted", is_flag=True, help="One JSON object.")
def status(json_wanted: bool) -> None:
    """What is out of use, since when and by whom, and what runs where."""
    state = _run(_look)
    if json_wanted:
        told = {
            "drained": [event.model_dump(mode="json") for event in state.drains],
            "workers": [one.model_dump(mode="json") for one in state.workers],
        }
        click.echo(json.dumps(told, indent=2))
        return
    for event in state.drains:
        age_s = max(0, now_ms() - event.at) // 1000
        click.echo(f"drained  {_place(event.pool, event.engine)} by {event.who}, {age_s} s ago")
    pools = {event.pool for event in state.drains if event.engine is None}
    for one in state.workers:
        word = "drained" if one.drained or one.pool in pools else "in use"
        where = f"{one.pool}: {one.worker}" + (f" at {one.engine}" if one.engine else "")
        waiting = ", ".join(f"{one.queued.get(tier, 0)} {tier} queued" for tier in TIERS)
        click.echo(f"{word:<8} {where}: {one.running} of {one.slots} slots busy, {waiting}")
    if not state.workers:
        click.echo("no worker has reported in the last 10 s")


async def _drain(settings: Settings, what: str, wait_s: float) -> Remaining | None:
    name, engine = named(settings, what)
    for warning in consequences(settings, name, engine, await _look(settings)):
        click.echo(warning, err=True)
    await _say(settings, name, engine, drained=True)
    click.echo(f"{what} is drained: `parley pool resume {what}` puts it back")
    left, deadline = None, asyncio.get_running_loop().time() + wait_s
    while wait_s:
        # Orchestrators and workers have heard of it, and workers said what they run, a second later at most.
        await asyncio.sleep(2 * LOOK_S)
        left = await _remaining(settings, settings.topics.pools[name], engine)
        if left.nothing or asyncio.get_running_loop().time() > deadline:
            break
    return left


async def _remaining(settings: Settings, of: Pool, engine: str | None) -> Remaining:
    async with open_spans(settings.kafka, "parley-pool") as source, GroupReader(settings.kafka) as groups:
        group = await groups.read(of.group)
        if engine is not None:
            return of_engine(of.name, engine, group, await _reports(source, now_ms() - FRESH_MS))
        counts = await source.existing(settings.topics.inference_topic(of.name, tier) for tier in TIERS)
        wheres = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
        return of_pool(of.name, group, await source.bounds(wheres))


def named(settings: Settings, what: str) -> tuple[str, str | None]:
    """(pool, engine) of POOL[/ENGINE].

    Raises:
        ParleyError: not_found; invalid_request: an engine is meant, and none is named.
    """
    name, slash, engine = what.partition("/")
    if slash and not engine:  # smol/$ENGINE, and nobody has set that: not the whole pool
        raise ParleyError("invalid_request", f"{what!r} names no engine: `{name}` is the whole pool")
    if name not in settings.topics.pools:
        raise ParleyError("not_found", f"there is no pool {name}: topics.yaml has {', '.join(settings.topics.pools)}")
    given = settings.engines.get(name, ())
    known = (given,) if isinstance(given, str) else tuple(given)
    if engine and known and engine not in known:
        raise ParleyError("not_found", f"{name} has no engine {engine}: PARLEY_ENGINES names {', '.join(known)}")
    return name, engine or None


def consequences(settings: Settings, name: str, engine: str | None, state: State) -> list[str]:
    """What the operator should know: who is refused, or that nothing changes."""
    topics = settings.topics
    if engine is not None:
        given = settings.engines.get(name, ())
        known = {given} if isinstance(given, str) else set(given)
        if not known and engine not in {worker.engine for worker in state.workers if worker.pool == name}:
            return [f"no worker of {name} has said in the last 10 s that it has an engine {engine}: is it mistyped?"]
        left = known - {engine} - {e.engine for e in state.drains if e.pool == name}
        return [f"no other engine of {name} is in use: this one goes on until one is"] if known and not left else []
    out = {name, *(event.pool for event in state.drains if event.engine is None)}
    lost = [m for m in topics.models if any(topics.route_pool(m, tier, without=out) is None for tier in TIERS)]
    return [f"new turns of these models are refused until it is put back: {', '.join(lost)}"] if lost else []


async def _say(settings: Settings, name: str, engine: str | None, *, drained: bool) -> None:
    event = PoolDrain(pool=name, engine=engine, drained=drained, who=operator(), at=now_ms())
    producer = Producer(settings.kafka, "parley-pool")
    await producer.start()
    try:
        key = _place(name, engine).encode()
        await producer.send(POOLS, encode(event), key=key, partition=0, headers=headers(event.type))
    finally:
        await producer.stop()


async def _look(settings: Settings) -> State:
    drains = Drains()
    async with open_spans(settings.kafka, "parley-pool") as source:
        existing = await source.existing([POOLS, CAPACITY])
        if missing := {POOLS, CAPACITY} - existing.keys():
            raise ParleyError("not_found", f"{', '.join(sorted(missing))} {source.missing}")
        await source.read(await source.bounds([WHERE]), drains.handle)
        return State(drains.all, await _reports(source, now_ms() - REPORT_MS))


async def _reports(source: Source, since: Millis) -> list[PoolStatus]:
    """The last that each worker has said since then."""
    newest = dict[tuple[str, str], PoolStatus]()

    def take(record: Any) -> None:
        with contextlib.suppress(BadRecord):
            one = _status(record.value)
            newest[one.pool, one.worker] = one

    where = TopicPartition(CAPACITY, 0)
    await source.read({where: await _since(source, where, since)}, take)
    return [newest[key] for key in sorted(newest)]


async def _since(source: Source, where: TopicPartition, ms: int) -> tuple[int, int]:
    end = (await source.bounds([where]))[where][1]
    start = (await source.at_time({where: ms}))[where]
    return (end if start is None else start, end)


def _place(name: str, engine: str | None) -> str:
    return f"{name}/{engine}" if engine else name


def _run(work: Callable[[Settings], Coroutine[Any, Any, T_]]) -> T_:
    with in_one_line():
        return asyncio.run(work(Settings()))
