"""An archive as a source: what is asked of the log can be asked of it."""

from __future__ import annotations

import gzip
import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from aiokafka import TopicPartition

from parley.archive.lines import record_of
from parley.archive.manifest import NAME, Manifest, Part, load, unlisted
from parley.errors import ParleyError
from parley.log.ranges import Record
from parley.log.spans import Span

CHUNK = 1 << 20


class Archive:
    """A folder that `parley log archive` has written.

    Raises:
        ParleyError: invalid_request: it is none.
    """

    missing = "is not in the archive"

    def __init__(self, folder: Path) -> None:
        found = (load(place) for place in sorted(folder.iterdir()) if place.is_dir()) if folder.is_dir() else ()
        self._folder = folder
        self.topics: dict[str, Manifest] = {manifest.topic: manifest for manifest in found if manifest is not None}
        if not self.topics:
            raise ParleyError("invalid_request", f"{folder} is no archive: `parley log archive {folder}` writes one")

    async def existing(self, topics: Iterable[str]) -> dict[str, int]:
        """Those that are archived."""
        return {topic: self.topics[topic].partitions for topic in topics if topic in self.topics}

    async def bounds(self, wheres: Iterable[TopicPartition]) -> dict[TopicPartition, Span]:
        """From the first archived offset to the one that the next run begins with."""
        found = {}
        for where in wheres:
            manifest = self.topics[where.topic]
            found[where] = (manifest.begin(where.partition), manifest.ends.get(where.partition, 0))
        return found

    async def at_time(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """By the slices' times, then by the records of the first one that reaches so far."""
        return {where: self._at_time(where, ms) for where, ms in times.items()}

    def _at_time(self, where: TopicPartition, ms: int) -> int | None:
        for part, held in self.topics[where.topic].parts_of(where):
            if held.first_ms is not None and held.first_ms >= ms:
                return held.start
            if held.last_ms is not None and held.last_ms >= ms:
                later = (
                    r.offset
                    for r in self._records(where.topic, part)
                    if r.partition == where.partition and r.timestamp >= ms
                )
                return int(next(later))
        return None

    async def read(self, spans: Mapping[TopicPartition, Span], handle: Callable[[Record], bool | None]) -> None:
        """Part after part, as they were written.

        Raises:
            ParleyError: store_inconsistent: a part's bytes are not those that were written.
        """
        waiting = {where: span for where, span in spans.items() if span[0] < span[1]}
        for topic in sorted({where.topic for where in waiting}):
            for part in self.topics[topic].parts:
                if any(_reaches(part, where, span) for where, span in waiting.items() if where.topic == topic):
                    self._hand_over(topic, part, waiting, handle)

    def _hand_over(
        self, topic: str, part: Part, waiting: dict[TopicPartition, Span], handle: Callable[[Record], bool | None]
    ) -> None:
        for record in self._records(topic, part):
            where = TopicPartition(topic, record.partition)
            span = waiting.get(where)
            if span is None or record.offset < span[0]:
                continue
            if record.offset >= span[1] or handle(record):
                del waiting[where]

    def damaged(self) -> list[str]:
        """Parts whose bytes are not those that were written, as topic, file and place; files without a manifest."""
        parts = [
            f"{topic}/{part.file} at byte {part.at}"
            for topic, manifest in self.topics.items()
            for part in manifest.parts
            if self._digest(topic, part) != part.sha256
        ]
        places = sorted(place for place in self._folder.iterdir() if place.is_dir())
        return parts + [f"{p.name}/{file}, its {NAME} is gone" for p in places for file in unlisted(p)]

    def _digest(self, topic: str, part: Part) -> str:
        digest, left = hashlib.sha256(), part.bytes
        try:
            with (self._folder / topic / part.file).open("rb") as file:
                file.seek(part.at)
                while left and (chunk := file.read(min(CHUNK, left))):
                    digest.update(chunk)
                    left -= len(chunk)
        except FileNotFoundError:
            return ""
        return digest.hexdigest()

    def _records(self, topic: str, part: Part) -> Iterator[Record]:
        if self._digest(topic, part) != part.sha256:
            raise ParleyError(
                "store_inconsistent", f"{self._folder / topic / part.file} is not what was written: restore it"
            )
        with (self._folder / topic / part.file).open("rb") as file:
            file.seek(part.at)
            with gzip.open(io.BufferedReader(_Limited(file, part.bytes))) as lines:
                for line in lines:
                    yield record_of(topic, line)


def _reaches(part: Part, where: TopicPartition, span: Span) -> bool:
    held = part.partitions.get(where.partition)
    return held is not None and held.records > 0 and held.start < span[1] and held.end > span[0]


class _Limited(io.RawIOBase):
    """The next bytes of a file, so that the members behind them are not read."""

    def __init__(self, file: io.BufferedReader, size: int) -> None:
        self._file = file
        self._left = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._file.read(min(len(buffer), self._left))
        self._left -= len(data)
        buffer[: len(data)] = data
        return len(data)
