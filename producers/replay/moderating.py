"""Moderation in shadow: a slice's prompts through the production role, with another policy or another model."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from consumers.moderation.main import GROUP, Moderation
from parley.health import Health
from parley.log.group import Group
from parley.log.ranges import Record
from parley.log.spans import Source
from parley.safety.classifier import Classifier
from parley.safety.policy import Policy
from parley.settings import Settings
from parley.timeline.read import life_ms
from parley.topics import PROMPTS, TURNS, VERDICTS
from producers.replay.manifest import Manifest
from producers.replay.ports import ShadowProducer
from producers.replay.prompts import Prompt, Prompts, read_after
from producers.replay.report import Report
from producers.replay.shadow import ShadowRole
from producers.replay.stage import Fed, Stage, patient
from producers.replay.verdicts import Judged, compare
from schemas.prompts import Verdict
from schemas.turns import TurnEnded
from schemas.wire import BadRecord, decode_turns_event, decoder

_verdict = decoder(Verdict)


def equipped(policy: Path, model: Path) -> tuple[Policy, Classifier]:
    """The policy and the model to judge by.

    Raises:
        ValueError: a file is no such thing, or the two don't fit each other.
    """
    chosen, classifier = Policy.load(policy), Classifier.load(model)
    chosen.limits("input", classifier.categories)
    return chosen, classifier


async def replay(stage: Stage, past: Source, manifest: Manifest, prompts: Prompts) -> Report:
    """The stage: judge the prompts anew, and compare.

    Raises:
        ParleyError: as `judge`.
        ValueError: as `equipped`.
    """
    after = await judge(stage, manifest, prompts)
    before = await judged_before(stage.settings, past, prompts.taken)
    return compare(manifest, prompts.in_time(), before, after)


async def judge(stage: Stage, manifest: Manifest, prompts: Prompts) -> dict[str, Judged]:
    """What the production role decides of these prompts, by response. Goes on where an earlier attempt has stopped.

    Raises:
        ParleyError: log_unavailable; internal: the role stands still.
        ValueError: as `equipped`.
    """
    shadow, settings = stage.shadow, patient(stage.settings)
    policy, classifier = equipped(manifest.inputs["policy"].check(), manifest.inputs["model"].check())
    await stage.make([PROMPTS, VERDICTS])
    left = await stage.left(map(_fed, prompts.taken.values()), [PROMPTS])
    producer = ShadowProducer(settings.kafka, shadow)
    await producer.start()
    role = ShadowRole(Moderation(settings, producer, classifier, policy), shadow)
    group = Group(settings, shadow.name(GROUP), [shadow.name(PROMPTS)], role, Health())
    try:
        await stage.play(group, producer, left, [PROMPTS], manifest.rate)
    finally:
        await producer.stop()
    found: dict[str, Judged] = {}

    def take(record: Record) -> None:
        verdict = _verdict(record.value)
        found.setdefault(verdict.response, Judged.by(verdict))

    await stage.read(VERDICTS, take)
    return found


async def judged_before(settings: Settings, past: Source, prompts: Mapping[str, Prompt]) -> dict[str, Judged]:
    """What was decided of these prompts when they came, as far as the log still tells.

    Raises:
        ParleyError: log_unavailable.
    """
    protocol = settings.protocol
    found: dict[str, Judged] = {}

    def take_verdict(record: Record) -> None:
        with suppress(BadRecord):
            verdict = _verdict(record.value)
            if verdict.stage == "input" and verdict.response in prompts:
                found.setdefault(verdict.response, Judged.by(verdict))

    def take_end(record: Record) -> None:
        with suppress(BadRecord):
            event = decode_turns_event(record.value)
            if isinstance(event, TurnEnded) and event.response in prompts:
                told = Judged.from_end(event)
                if told is not None:
                    found.setdefault(event.response, told)

    soon = int(1000 * (protocol.max_turn_age_s + protocol.moderation_deadline_s + protocol.margin_s))
    await read_after(past, VERDICTS, prompts, soon, take_verdict)
    untold = {response: prompt for response, prompt in prompts.items() if response not in found}
    await read_after(past, TURNS, untold, life_ms(protocol), take_end)
    return found


def _fed(prompt: Prompt) -> Fed:
    record = prompt.record
    return Fed(PROMPTS, record.partition, record.key, record.value or b"", tuple(record.headers), prompt.source)
