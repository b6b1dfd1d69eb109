"""The orchestrator's planning over a slice, with another topics.yaml: reads the log of turns, and writes nothing."""

from __future__ import annotations

from pathlib import Path

import yaml
from aiokafka import TopicPartition
from pydantic import ValidationError

from parley.errors import ParleyError
from parley.ids import session_created_ms
from parley.log.partitions import session_key
from parley.log.ranges import Record
from parley.log.spans import Source, Span
from parley.settings import Settings
from parley.timeline.read import DEFAULT_LIMIT, life_ms
from parley.tokenizers import load_tokenizer
from parley.topics import TURNS
from producers.replay.manifest import Input, Manifest
from producers.replay.plans import Replanning, compare
from producers.replay.prompts import Prompt, Prompts
from producers.replay.report import Report
from producers.replay.stage import Stage
from schemas.wire import REPLAY_HEADER, BadRecord, decode_turns_event, header


async def replay(stage: Stage, past: Source, manifest: Manifest, prompts: Prompts) -> Report:
    """The stage: plan the turns anew, and compare.

    Raises:
        ParleyError: log_unavailable; invalid_request: the file or one of its tokenizers can't be used.
    """
    settings, given = stage.settings, manifest.inputs["topics"]
    other = with_topics(settings, given.check())
    replanning = Replanning(other, prompts.taken)
    parts = await _turns(settings, past, list(prompts.taken.values()))
    stage.tell(f"{sum(end - start for start, end in parts.values()):,} records of {TURNS} to fold")
    keys = {session_key(prompt.event.session.hex) for prompt in prompts.taken.values()}

    def take(record: Record) -> None:
        if record.key not in keys or header(record.headers, REPLAY_HEADER) is not None:
            return
        try:
            replanning.fold(decode_turns_event(record.value))
        except BadRecord:
            return  # the orchestrator passes over it, too

    await past.read(parts, take)
    live = Input.of(settings.cluster.topics_file)
    versions = {
        "topics.yaml": (live.sha256[:16], given.sha256[:16]),
        "pools": (", ".join(settings.topics.pools), ", ".join(other.topics.pools)),
    }
    return compare(manifest, prompts.in_time(), replanning, versions)


def with_topics(settings: Settings, path: Path) -> Settings:
    """The same settings with another topics.yaml, whose tokenizers are all there.

    Raises:
        ParleyError: invalid_request.
    """
    same = {name: getattr(settings, name) for name in Settings.model_fields}
    other = Settings(**same | {"cluster": settings.cluster.model_copy(update={"topics_file": path})})
    try:
        for pool in other.topics.pools.values():
            load_tokenizer(pool.tokenizer, other.tokenizers_dir)
    except (ValidationError, yaml.YAMLError, KeyError, OSError) as error:
        raise ParleyError("invalid_request", f"cannot plan with {path}: {error}") from error
    return other


async def _turns(settings: Settings, past: Source, prompts: list[Prompt]) -> dict[TopicPartition, Span]:
    """Of chat.turns: from the birth of each partition's oldest session to the end of its last prompt's life."""
    births: dict[TopicPartition, int] = {}
    lasts: dict[TopicPartition, int] = {}
    for prompt in prompts:
        where = TopicPartition(TURNS, prompt.record.partition)
        born = (session_created_ms(prompt.event.session) or 0) - int(1000 * settings.protocol.margin_s)
        births[where] = min(births.get(where, born), born)
        over = int(prompt.record.timestamp) + life_ms(settings.protocol)
        lasts[where] = max(lasts.get(where, over), over)
    if not await past.existing([TURNS]):
        return {}
    bounds = await past.bounds(births)
    starts, ends = await past.at_time(births), await past.at_time(lasts)
    parts = {
        where: (start, bounds[where][1] if (end := ends[where]) is None else end)
        for where, start in starts.items()
        if start is not None
    }
    size = sum(end - start for start, end in parts.values())
    if size > DEFAULT_LIMIT:
        raise ParleyError("invalid_request", f"{size:,} records of {TURNS} would have to be folded: narrow the slice")
    return parts
