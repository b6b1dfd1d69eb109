"""Archiving: everything of a topic since the last run, a part a day, then the manifest that makes it count."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from gzip import GzipFile
from pathlib import Path
from typing import BinaryIO

from aiokafka import TopicPartition

from parley.archive.lines import line_of
from parley.archive.manifest import Gap, Manifest, Part, Slice, load, unlisted
from parley.errors import ParleyError
from parley.log.ranges import Record
from parley.log.spans import Source


@dataclass(frozen=True, slots=True)
class Archived:
    """What one run did with a topic."""

    topic: str
    records: int
    bytes: int
    """Compressed."""
    gaps: tuple[Gap, ...]
    """What had gone before it could be archived."""
    remade: tuple[int, ...] = ()
    """Partitions whose log ends before the archive does: the topic was made anew, and nothing of them was taken."""
    unlisted: tuple[str, ...] = ()
    """Files without a manifest: they may hold what the log no longer has, so the topic was left alone."""


async def archive_topics(source: Source, folder: Path, counts: Mapping[str, int]) -> list[Archived]:
    """Each of these topics, by their numbers of partitions. The caller is `alone`.

    Raises:
        ParleyError: as `archive_topic`, unless the topic was deleted meanwhile (`parley topics gc`): others go on.
    """
    done = []
    for topic in sorted(counts):
        try:
            done.append(await archive_topic(source, folder, topic, counts[topic]))
        except ParleyError:
            if await source.existing([topic]):
                raise
    return done


async def archive_topic(source: Source, folder: Path, topic: str, partitions: int) -> Archived:
    """Append what has come since the last run, up to now. The caller is `alone`.

    Raises:
        ParleyError: log_unavailable; nothing of this run counts then, and the next one does it again.
    """
    place = folder / topic
    place.mkdir(exist_ok=True, mode=0o700)
    if files := unlisted(place):
        return Archived(topic, 0, 0, (), unlisted=files)
    known = load(place)
    before = known or Manifest(topic=topic, partitions=partitions)
    wheres = [TopicPartition(topic, number) for number in range(partitions)]
    bounds = await source.bounds(wheres)
    gaps = tuple(
        Gap(partition=where.partition, start=before.ends[where.partition], end=begin)
        for where, (begin, _) in bounds.items()
        if begin > before.ends.get(where.partition, begin)
    )
    # Offsets that begin again would be in the archive twice, and mean two records each.
    remade = tuple(w.partition for w, (_, end) in bounds.items() if end < before.ends.get(w.partition, 0))
    spans = {
        where: (max(begin, before.ends.get(where.partition, 0)), end)
        for where, (begin, end) in bounds.items()
        if where.partition not in remade
    }
    if known is not None and not gaps and not any(start < end for start, end in spans.values()):
        return Archived(topic, 0, 0, (), remade)
    if known is None:
        before.save(place)
    days = _Days(place, before, {where.partition: start for where, (start, _) in spans.items()})
    try:
        await source.read(spans, days.take)
        parts = days.close({where.partition: end for where, (_, end) in spans.items()})
    except BaseException:
        days.abandon()
        raise
    ends = {where.partition: end for where, (_, end) in spans.items()}
    after = before.model_copy(
        update={
            "partitions": max(before.partitions, partitions),
            "parts": (*before.parts, *parts),
            "gaps": (*before.gaps, *gaps),
            "ends": before.ends | ends,
        }
    )
    after.save(place)
    return Archived(topic, sum(part.records for part in parts), sum(part.bytes for part in parts), gaps, remade)


class _Days:
    """The days' files of one run."""

    def __init__(self, place: Path, before: Manifest, starts: dict[int, int]) -> None:
        self._place = place
        self._before = before
        self._starts = starts
        self._open: dict[str, _Member] = {}
        self._day: dict[int, str] = {}
        """Of each partition: the day that it has come to. Times may step back, days don't: slices stay in order."""

    def take(self, record: Record) -> None:
        """A record, into its day's file."""
        partition = record.partition
        own = f"{datetime.fromtimestamp(record.timestamp / 1000, UTC):%Y-%m-%d}"
        day = max(own, self._day.get(partition, own))
        if day != self._day.get(partition):
            if (last := self._day.get(partition)) is not None:
                self._open[last].end(partition, record.offset)
                self._starts[partition] = record.offset
            self._day[partition] = day
            if day not in self._open:
                file = f"{day}.jsonl.gz"
                self._open[day] = _Member(self._place / file, day, self._before.length(file))
            self._open[day].begin(partition, self._starts[partition])
        self._open[day].add(record)

    def close(self, ends: dict[int, int]) -> list[Part]:
        """The parts, on disk. Offsets up to `ends` that had no record belong to the last day of their partition."""
        for partition, day in self._day.items():
            self._open[day].end(partition, ends[partition])
        return [self._open[day].close() for day in sorted(self._open)]

    def abandon(self) -> None:
        """Let the files go: what was written does not count."""
        for member in self._open.values():
            member.abandon()


class _Member:
    """A gzip member at the end of a day's file."""

    def __init__(self, path: Path, day: str, at: int) -> None:
        self._day, self._at = day, at
        self._raw = open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")  # noqa: SIM115
        self._raw.truncate(at)  # what a run left that was cut off
        self._raw.seek(at)
        self._hashed = _Hashed(self._raw)
        self._gzip = GzipFile(filename="", mode="wb", fileobj=self._hashed, compresslevel=6, mtime=0)
        self._slices: dict[int, Slice] = {}

    def begin(self, partition: int, start: int) -> None:
        self._slices[partition] = Slice(start=start, end=start, records=0)

    def add(self, record: Record) -> None:
        known = self._slices[record.partition]
        self._slices[record.partition] = Slice.model_construct(
            start=known.start,
            end=record.offset + 1,
            records=known.records + 1,
            first_ms=record.timestamp if known.first_ms is None else known.first_ms,
            last_ms=max(record.timestamp, known.last_ms or 0),
        )
        self._gzip.write(line_of(record))

    def end(self, partition: int, end: int) -> None:
        self._slices[partition] = self._slices[partition].model_copy(update={"end": end})

    def close(self) -> Part:
        self._gzip.close()
        self._raw.flush()
        os.fsync(self._raw.fileno())
        self._raw.close()
        return Part(
            day=self._day,
            at=self._at,
            bytes=self._hashed.count,
            sha256=self._hashed.digest.hexdigest(),
            records=sum(one.records for one in self._slices.values()),
            partitions=self._slices,
        )

    def abandon(self) -> None:
        self._gzip.close()
        self._raw.close()


class _Hashed:
    """A file that is hashed as it is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.count = 0

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.count += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()
