"""`parley pool`: take a pool, or one of its engines, out of use, and put it back."""

from __future__ import annotations

import asyncio
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
from parley.log.producer import Producer
from parley.log.spans import Source, open_spans
from parley.settings import Settings
from parley.timeline.audit import operator
from parley.topics import CAPACITY, POOLS
from schemas.base import TIERS
from schemas.operations import PoolDrain, PoolStatus
from schemas.wire import BadRecord, decoder, encode, headers

T_ = TypeVar("T_")
REPORT_MS = 10_000
"""A worker that has said nothing for so long is shown no more."""
LOOK_S = 1.0
STILL_BUSY = 3
"""Exit code of `drain --wait`: something runs still."""

_status = decoder(PoolStatus)


@dataclass(frozen=True, slots=True)
class State:
    """What is out of use, and what each worker says of itself."""

    drains: list[PoolDrain]
    workers: list[PoolStatus]

    def busy(self, pool: str, engine: str | None) -> int:
        """Turns that still run on what is being drained; for a pool those that wait for a slot, too."""
        workers = [one for one in self.workers if one.pool == pool and engine in (None, one.engine)]
        return sum(one.running + (0 if engine else sum(one.queued.values())) for one in workers)


@click.group()
def pool() -> None:
    """Take pools and engines out of use without breaking a turn."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


@pool.command()
@click.argument("what", metavar="POOL[/ENGINE]")
@click.option(
    "--wait", default=0.0, metavar="SECONDS", help="Wait until nothing runs there. Exit code 3: it still does."
)
def drain(what: str, wait: float) -> None:
    """Take POOL, or its engine at ENGINE (host:port), out of use: nothing new begins there, what runs is finished.

    A drained pool's new turns are routed by the next rule of topics.yaml that fits; where there is none they are
    refused as overloaded, at once. A drained engine's worker runs its turns on the pool's other engines.
    """
    busy = _run(lambda settings: _drain(settings, what, wait))
    if wait and busy:
        click.echo(f"{busy} turns run still", err=True)
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


async def _drain(settings: Settings, what: str, wait_s: float) -> int:
    name, engine = named(settings, what)
    for warning in consequences(settings, name, engine, await _look(settings)):
        click.echo(warning, err=True)
    await _say(settings, name, engine, drained=True)
    click.echo(f"{what} is drained: `parley pool resume {what}` puts it back")
    busy, deadline = 0, asyncio.get_running_loop().time() + wait_s
    while wait_s:
        # Workers have heard of it, and said how full they are, a second later at most.
        await asyncio.sleep(2 * LOOK_S)
        busy = (await _look(settings)).busy(name, engine)
        if not busy or asyncio.get_running_loop().time() > deadline:
            break
    return busy


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
    drains, workers = Drains(), dict[tuple[str, str], PoolStatus]()

    def take(record: Any) -> None:
        try:
            one = _status(record.value)
        except BadRecord:
            return
        workers[one.pool, one.worker] = one

    async with open_spans(settings.kafka, "parley-pool") as source:
        reports = TopicPartition(CAPACITY, 0)
        existing = await source.existing([POOLS, CAPACITY])
        if missing := {POOLS, CAPACITY} - existing.keys():
            raise ParleyError("not_found", f"{', '.join(sorted(missing))} {source.missing}")
        await source.read(await source.bounds([WHERE]), drains.handle)
        await source.read({reports: await _since(source, reports, now_ms() - REPORT_MS)}, take)
    return State(drains.all, [workers[key] for key in sorted(workers)])


async def _since(source: Source, where: TopicPartition, ms: int) -> tuple[int, int]:
    end = (await source.bounds([where]))[where][1]
    start = (await source.at_time({where: ms}))[where]
    return (end if start is None else start, end)


def _place(name: str, engine: str | None) -> str:
    return f"{name}/{engine}" if engine else name


def _run(work: Callable[[Settings], Coroutine[Any, Any, T_]]) -> T_:
    with in_one_line():
        return asyncio.run(work(Settings()))
