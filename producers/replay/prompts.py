"""The prompts of a slice, those that a replay passes over, and what the live log says about them elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from aiokafka import TopicPartition

from parley.log.ranges import Record
from parley.log.spans import Source
from producers.replay.events import place
from producers.replay.slices import Slice
from schemas.prompts import PromptAccepted
from schemas.wire import REPLAY_HEADER, BadRecord, decoder, header

_prompt = decoder(PromptAccepted)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt with its live record."""

    event: PromptAccepted
    record: Record

    @property
    def source(self) -> str:
        """Where it lies: chat.prompts-3@120."""
        return place(self.record)


@dataclass(slots=True)
class Prompts:
    """What a slice of chat.prompts holds, by response, in the order in which it was read."""

    taken: dict[str, Prompt] = field(default_factory=dict)
    passed_over: dict[str, int] = field(default_factory=lambda: {"replayed": 0, "repeated": 0, "unreadable": 0})
    """Records written by a replay (to replay those would be a loop), sent twice by an edge, or not to be read."""

    def add(self, record: Record) -> None:
        """One more record of the slice."""
        if header(record.headers, REPLAY_HEADER) is not None:
            self.passed_over["replayed"] += 1
            return
        try:
            event = _prompt(record.value)
        except BadRecord:
            self.passed_over["unreadable"] += 1
            return
        if event.response in self.taken:
            self.passed_over["repeated"] += 1
        else:
            self.taken[event.response] = Prompt(event, record)

    def in_time(self) -> Iterable[Prompt]:
        """As the log took them."""
        return sorted(self.taken.values(), key=lambda prompt: _when(prompt.record))


def _when(record: Record) -> tuple[int, int, int]:
    return int(record.timestamp), record.partition, record.offset


async def read_prompts(past: Source, slice_: Slice) -> Prompts:
    """All of a slice's prompts.

    Raises:
        ParleyError: log_unavailable.
    """
    found = Prompts()

    def take(record: Record) -> None:
        if slice_.takes(record):
            found.add(record)

    await past.read(slice_.parts, take)
    return found


async def read_after(
    past: Source, topic: str, prompts: Mapping[str, Prompt], within_ms: int, take: Callable[[Record], None]
) -> None:
    """A topic's live records about these prompts: from each partition's first prompt to `within_ms` after its last.

    Raises:
        ParleyError: log_unavailable.
    """
    firsts: dict[TopicPartition, int] = {}
    lasts: dict[TopicPartition, int] = {}
    for prompt in prompts.values():
        where, at = TopicPartition(topic, prompt.record.partition), int(prompt.record.timestamp)
        firsts[where] = min(firsts.get(where, at), at)
        lasts[where] = max(lasts.get(where, at), at + within_ms)
    if not await past.existing([topic]):
        return
    bounds = await past.bounds(firsts)
    starts, ends = await past.at_time(firsts), await past.at_time(lasts)
    parts = {
        where: (start, bounds[where][1] if (end := ends[where]) is None else end)
        for where, start in starts.items()
        if start is not None
    }

    def live(record: Record) -> None:
        if header(record.headers, REPLAY_HEADER) is None and header(record.headers, "response") in prompts:
            take(record)

    await past.read(parts, live)
