"""A worker in shadow: the requests of a slice's turns once more through the production worker, on another pool.

Engines are the one thing that a shadow shares with live workers, so it takes few of their slots.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

from inference_workers.admission import Admission
from inference_workers.main import engines_of
from inference_workers.tools import Tools
from inference_workers.worker import Worker
from parley.clock import now_ms
from parley.errors import ParleyError
from parley.health import Health
from parley.log.group import Group
from parley.log.ranges import Record
from parley.log.spans import Source
from parley.safety.classifier import Classifier
from parley.safety.policy import Policy
from parley.settings import Settings
from parley.timeline.read import life_ms
from parley.tokenizers import load_tokenizer
from parley.topics import CONTROL, DLQ, TOKENS, TURNS, VERDICTS, Pool
from producers.replay.answers import Answered, compare
from producers.replay.manifest import Manifest
from producers.replay.moderating import equipped
from producers.replay.ports import ShadowFollower, ShadowProducer, ShadowRanges
from producers.replay.prompts import Prompt, Prompts, read_after
from producers.replay.report import Report
from producers.replay.shadow import Shadow, ShadowRole
from producers.replay.stage import KEPT_MS, Fed, Stage, patient
from schemas.base import TIERS, Route
from schemas.prompts import InferenceRequest, Verdict
from schemas.turns import TurnEnded
from schemas.wire import BadRecord, decode_turns_event, decoder, encode, headers

SLOTS = 4
"""Runs at once on an engine that live turns need."""
MOST = 1_000
"""Turns: they share few lanes, and a turn reads its lane from the beginning to see what it has said before."""
PATIENCE_MS = KEPT_MS
"""Deadlines of a replay: nobody waits for its answers, and it may go on for as long as its topics hold it."""
_request = decoder(InferenceRequest)
_verdict = decoder(Verdict)


async def replay(stage: Stage, past: Source, manifest: Manifest, prompts: Prompts) -> Report:
    """The stage: answer the turns anew, and compare.

    Raises:
        ParleyError: log_unavailable; invalid_request: there is no such pool, or it has no engine; internal.
        ValueError: policy and model don't fit each other, or are none.
    """
    settings = patient(stage.settings)
    requests = await live_requests(settings, past, prompts.taken)
    stage.tell(f"{len(requests):,} of {len(prompts.taken):,} turns have a request in the log")
    if len(requests) > MOST:
        raise ParleyError("invalid_request", f"a worker in shadow answers {MOST:,} turns at most: narrow the slice")
    pool = pool_of(settings, manifest, requests)
    guard = equipped(manifest.inputs["policy"].check(), manifest.inputs["model"].check())
    topics = [settings.topics.inference_topic(pool.name, tier) for tier in TIERS]
    await stage.make([*topics, TOKENS, TURNS, VERDICTS, CONTROL, DLQ])
    records = [_fed(settings, prompts.taken[response], request, pool) for response, request in requests.items()]
    left = await stage.left(records, topics)
    async with _working(settings, stage.shadow, pool, guard) as (producer, group):
        await stage.play(group, producer, left, topics, manifest.rate)
    after: dict[str, TurnEnded] = {}
    await stage.read(TURNS, lambda record: take_end(record, after))
    before: dict[str, TurnEnded] = {}
    await read_after(past, TURNS, prompts.taken, life_ms(settings.protocol), lambda record: take_end(record, before))
    return compare(manifest, prompts.in_time(), answered(before), answered(after))


def pool_of(settings: Settings, manifest: Manifest, requests: Mapping[str, InferenceRequest]) -> Pool:
    """The pool that answers: the one that is asked for, else the one that all turns had.

    Raises:
        ParleyError: invalid_request: there is none such, or no engine of it is known.
    """
    name = manifest.options.get("pool")
    pools = sorted({name} if name else {request.pool for request in requests.values()})
    if len(pools) != 1:
        raise ParleyError("invalid_request", f"say which --pool: turns went to {', '.join(pools) or 'none'}")
    pool = settings.topics.pools.get(pools[0])
    if pool is None:
        raise ParleyError("invalid_request", f"there is no pool {pools[0]}: {', '.join(settings.topics.pools)}")
    try:
        settings.engine_addresses(pool.name, 0)
    except ValueError as error:
        raise ParleyError("invalid_request", str(error)) from None
    return pool.model_copy(update={"slots": min(pool.slots, SLOTS)})


async def live_requests(settings: Settings, past: Source, prompts: Mapping[str, Prompt]) -> dict[str, InferenceRequest]:
    """The last request of each turn, with the verdict on its prompt as far as the log knows it.

    Raises:
        ParleyError: log_unavailable.
    """
    requests: dict[str, InferenceRequest] = {}
    verdicts: dict[str, Verdict] = {}

    def take_request(record: Record) -> None:
        with suppress(BadRecord):
            request = _request(record.value)
            known = requests.get(request.response)
            if known is None or known.dispatch < request.dispatch:
                requests[request.response] = request

    def take_verdict(record: Record) -> None:
        with suppress(BadRecord):
            verdict = _verdict(record.value)
            if verdict.stage == "input":
                verdicts.setdefault(verdict.response, verdict)

    prefix = settings.topics.inference_prefix
    names = await past.existing([name for name in settings.topics.topics if name.startswith(prefix)])
    for topic in names:
        await read_after(past, topic, prompts, life_ms(settings.protocol), take_request)
    await read_after(past, VERDICTS, prompts, life_ms(settings.protocol), take_verdict)
    return {
        response: request.model_copy(update={"verdict": request.verdict or verdicts.get(response)})
        for response, request in requests.items()
    }


def _fed(settings: Settings, prompt: Prompt, request: InferenceRequest, pool: Pool) -> Fed:
    """The request as the shadow's worker gets it: on its pool, on a lane of its own topic, with time."""
    lane = request.session.int % settings.topics.lanes
    again = request.model_copy(
        update={
            "pool": pool.name,
            "model": pool.model,
            "route": Route(topic=TOKENS, partition=lane, start=0),
            "deadline": now_ms() + PATIENCE_MS,
            "moderation_deadline": now_ms() + PATIENCE_MS,
            "verdict": request.verdict or _allowed(request),
        }
    )
    about = headers(
        again.type,
        response=again.response,
        session=again.session.hex,
        route=again.route,
        deadline=again.deadline,
        dispatch=again.dispatch,
    )
    topic = settings.topics.inference_topic(pool.name, again.tier)
    return Fed(topic, prompt.record.partition, prompt.record.key, encode(again), about, prompt.source)


def _allowed(request: InferenceRequest) -> Verdict:
    """Of a turn that ran, and whose verdict retention has taken: it was allowed."""
    about = {"response": request.response, "session": request.session, "stage": "input", "decision": "allow"}
    return Verdict.model_validate(about | {"policy": "not known", "model": "not known", "at": now_ms()})


def take_end(record: Record, found: dict[str, TurnEnded]) -> None:
    """Keep the end that stands: of the greatest epoch, so not what a zombie has said later."""
    with suppress(BadRecord):
        event = decode_turns_event(record.value)
        if isinstance(event, TurnEnded):
            known = found.get(event.response)
            if known is None or known.epoch < event.epoch:
                found[event.response] = event


def answered(ends: Mapping[str, TurnEnded]) -> dict[str, Answered]:
    """What each response's end says of its answer."""
    return {response: Answered.by(ended) for response, ended in ends.items()}


@asynccontextmanager
async def _working(
    settings: Settings, shadow: Shadow, pool: Pool, guard: tuple[Policy, Classifier]
) -> AsyncIterator[tuple[ShadowProducer, Group]]:
    """The production worker with its ports swapped, as a member of the replay's own group, to be run."""
    kafka = settings.kafka
    policy, classifier = guard
    producer = ShadowProducer(kafka, shadow)
    tools = Tools(
        settings,
        pool,
        producer,
        ShadowProducer(kafka, shadow, linger_ms=kafka.token_linger_ms),
        ShadowRanges(kafka, shadow),
        engines_of(settings, pool, 0),
        Admission(pool.slots),
        classifier,
        policy,
        load_tokenizer(pool.tokenizer, settings.tokenizers_dir),
    )
    follower, health = ShadowFollower(kafka, shadow), Health()
    worker = Worker(tools, follower, health)
    topics = [shadow.name(settings.topics.inference_topic(pool.name, tier)) for tier in TIERS]
    group = Group(settings, shadow.name(f"worker-{pool.name}"), topics, ShadowRole(worker, shadow), health)
    follower.on_failure = group.fail
    await asyncio.gather(tools.producer.start(), tools.tokens.start(), follower.start())
    beside = [asyncio.create_task(worker.watch()), asyncio.create_task(tools.engines.watch())]
    try:
        yield producer, group
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await tools.engines.close()
        await asyncio.gather(tools.tokens.stop(), tools.producer.stop(), follower.stop(), tools.ranges.stop())
