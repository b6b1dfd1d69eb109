"""Input moderation: a verdict on every prompt, beside the orchestrator. Holds no state."""

from __future__ import annotations

import asyncio
import logging

from parley.clock import now_ms
from parley.log.group import Group, Held
from parley.log.partitions import session_key
from parley.log.producer import Producer
from parley.log.ranges import Record
from parley.process import HEALTH, until_stopped
from parley.retrying import until_done
from parley.safety import tally
from parley.safety.classifier import Classifier
from parley.safety.policy import Policy
from parley.settings import Settings
from parley.topics import PROMPTS, VERDICTS
from schemas.prompts import PromptAccepted, Verdict
from schemas.wire import REPLAY_HEADER, BadRecord, decoder, encode, header, headers

log = logging.getLogger(__name__)

GROUP = "moderation"
_prompt = decoder(PromptAccepted)
INLINE_CHARACTERS = 2_000
"""Longer text is scored off the event loop: it takes more than a millisecond."""
AT_ONCE = 16
"""Prompts that are scored before the loop comes round. A backlog of thousands would be scored for seconds on end,
without a heartbeat: the group would think the member dead, again and again."""


class Moderation:
    """Scores prompts as they come; a record ends when its verdict is in the log."""

    def __init__(self, settings: Settings, producer: Producer, classifier: Classifier, policy: Policy) -> None:
        self._settings = settings
        self._producer = producer
        self._classifier = classifier
        self._policy = policy
        self._few = asyncio.Semaphore(AT_ONCE)

    async def take(self, taken: list[Held]) -> None:
        """Nothing to get ready."""

    def drop(self, held: Held) -> None:
        """Nothing to forget."""

    def record(self, held: Held, record: Record) -> None:
        """A prompt."""
        age_s = (now_ms() - record.timestamp) / 1000
        if header(record.headers, REPLAY_HEADER) is not None or age_s > self._settings.protocol.max_turn_age_s:
            held.end(record.offset)  # nobody waits for its verdict
            return
        held.spawn(self._judge(held, record.offset, _prompt(record.value)), f"verdict-{record.offset}")

    async def give_up(self, held: Held, record: Record, error: BadRecord) -> None:
        """The orchestrator, whose the prompt is, ends its turn and gives it to the dead-letter queue."""
        log.warning("no prompt at offset %d: %s", record.offset, error)
        held.end(record.offset)

    async def _judge(self, held: Held, offset: int, prompt: PromptAccepted) -> None:
        verdict = await self._verdict(prompt)
        await until_done(lambda: self._write(held, verdict))
        tally.count(verdict)
        held.end(offset)

    async def _verdict(self, prompt: PromptAccepted) -> Verdict:
        texts = prompt.input_texts()
        if sum(map(len, texts)) <= INLINE_CHARACTERS:
            async with self._few:
                scores = self._classifier.score_parts(texts)
                await asyncio.sleep(0)
        else:
            scores = await asyncio.to_thread(self._classifier.score_parts, texts)
        decision = self._policy.decide("input", scores)
        return Verdict(
            response=prompt.response,
            session=prompt.session,
            stage="input",
            decision=decision.action,
            categories=decision.categories,
            scores={name: round(float(score), 4) for name, score in decision.scores.items()},
            policy=self._policy.version,
            model=self._classifier.version,
            at=now_ms(),
        )

    async def _write(self, held: Held, verdict: Verdict) -> None:
        about = headers(verdict.type, response=verdict.response, session=verdict.session.hex)
        key = session_key(verdict.session.hex)
        await self._producer.send(VERDICTS, encode(verdict), key=key, partition=held.partition, headers=about)


async def run(settings: Settings) -> None:
    """Serve until told to stop."""
    classifier = Classifier.load(settings.moderation.model)
    policy = Policy.load(settings.moderation.policy)
    tally.expect("input", policy.version)
    producer = Producer(settings.kafka, settings.instance or GROUP)
    await producer.start()
    role = Moderation(settings, producer, classifier, policy)
    group = Group(settings, GROUP, [PROMPTS], role, HEALTH, patience_s=settings.protocol.longest_verdict_s)
    try:
        await until_stopped(group.run(), group.stop)
    finally:
        await producer.stop()
