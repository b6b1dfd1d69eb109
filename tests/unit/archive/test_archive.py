"""An archive has every record once, whatever befell the runs that wrote it, and gives it back as it was."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from parley.alone import alone
from parley.archive.lines import line_of, record_of
from parley.archive.manifest import load
from parley.archive.read import Archive
from parley.archive.write import archive_topic, archive_topics
from parley.errors import ParleyError
from parley.log.ranges import Record
from parley.log.spans import Span

TOPIC = "chat.turns"
NOON = 1_764_504_000_000
"""2025-11-30T12:00Z"""
HOUR = 3_600_000


def record(partition: int, offset: int, at: int = NOON, value: bytes | None = b"{}") -> Record:
    key = b"%032x" % partition
    headers = (("type", b"turn.ended"), ("odd", b"\xff\x00"))
    return ConsumerRecord(TOPIC, partition, offset, at, 1, key, value, None, 0, 0, headers)


class Kept:
    """A source of records in memory, of which retention can take the oldest."""

    missing = "does not exist"

    def __init__(self, *records: Record) -> None:
        self.records = list(records)
        self.begins: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self.fails_after: int | None = None

    async def existing(self, topics: Iterable[str]) -> dict[str, int]:
        return dict.fromkeys(topics, 2)

    async def bounds(self, wheres: Iterable[TopicPartition]) -> dict[TopicPartition, Span]:
        found = {}
        for where in wheres:
            offsets = [r.offset for r in self.records if r.partition == where.partition]
            end = self.ends.get(where.partition, max(offsets, default=-1) + 1)
            found[where] = (self.begins.get(where.partition, 0), end)
        return found

    async def at_time(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        raise AssertionError("what is archived is chosen by offsets, never by time")

    async def read(self, spans: Mapping[TopicPartition, Span], handle: Callable[[Record], bool | None]) -> None:
        for number, one in enumerate(self.records):
            if number == self.fails_after:
                raise ParleyError("log_unavailable", "the broker is away")
            span = spans.get(TopicPartition(one.topic, one.partition), (0, 0))
            if max(span[0], self.begins.get(one.partition, 0)) <= one.offset < span[1]:
                handle(one)


def run(source: Kept, folder: Path) -> int:
    """One run of the archiver; gives how many records it took."""
    with alone(folder):
        return asyncio.run(archive_topic(source, folder, TOPIC, 2)).records


def everything(folder: Path, spans: Mapping[int, Span] | None = None) -> list[tuple[int, int]]:
    """(partition, offset) of all records of these spans, by partition."""
    seen: list[tuple[int, int]] = []
    wheres = {TopicPartition(TOPIC, n): span for n, span in (spans or {0: (0, 99), 1: (0, 99)}).items()}
    asyncio.run(Archive(folder).read(wheres, lambda r: seen.append((r.partition, r.offset))))
    return sorted(seen)


@pytest.mark.parametrize("value", [b'{"text": "Wie geht\xe2\x80\x99s?\\n"}', b"\xff\xfe{", b"", None])
def test_a_record_comes_back_byte_for_byte(value: bytes | None) -> None:
    one = record(1, 7, value=value)
    assert record_of(TOPIC, line_of(one)) == one
    assert line_of(one).endswith(b"\n")
    assert line_of(one).count(b"\n") == 1


def test_runs_go_on_where_the_last_one_ended(tmp_path: Path) -> None:
    source = Kept(record(0, 0), record(1, 0), record(0, 1))
    assert run(source, tmp_path) == 3
    assert run(source, tmp_path) == 0
    source.records += [record(0, 2), record(1, 1)]
    assert run(source, tmp_path) == 2
    assert everything(tmp_path) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    manifest = load(tmp_path / TOPIC)
    assert manifest is not None
    assert [part.records for part in manifest.parts] == [3, 2]
    assert [part.file for part in manifest.parts] == ["2025-11-30.jsonl.gz"] * 2


def test_a_topic_without_records_is_in_the_archive_as_such(tmp_path: Path) -> None:
    assert run(Kept(), tmp_path) == 0
    archive = Archive(tmp_path)
    assert asyncio.run(archive.existing([TOPIC, "chat.other"])) == {TOPIC: 2}
    assert asyncio.run(archive.bounds([TopicPartition(TOPIC, 0)])) == {TopicPartition(TOPIC, 0): (0, 0)}
    assert everything(tmp_path) == []


def test_a_day_is_a_file_that_any_gzip_reads(tmp_path: Path) -> None:
    late = NOON + 12 * HOUR
    run(Kept(record(0, 0), record(0, 1, late - 1), record(1, 0, late), record(0, 2, late)), tmp_path)
    days = {path.name: gzip.decompress(path.read_bytes()) for path in (tmp_path / TOPIC).glob("*.gz")}
    assert {name: len(text.splitlines()) for name, text in days.items()} == {
        "2025-11-30.jsonl.gz": 2,
        "2025-12-01.jsonl.gz": 2,
    }
    assert json.loads(days["2025-12-01.jsonl.gz"].splitlines()[0])["value"] == "{}"


def test_a_clock_that_steps_back_at_midnight_does_not_put_a_record_out_of_order(tmp_path: Path) -> None:
    late = NOON + 12 * HOUR
    run(Kept(record(0, 0, late - 5), record(0, 1, late), record(0, 2, late - 1), record(0, 3, late)), tmp_path)
    manifest = load(tmp_path / TOPIC)
    assert manifest is not None
    assert [(p.day, p.partitions[0].start, p.partitions[0].end) for p in manifest.parts] == [
        ("2025-11-30", 0, 1),
        ("2025-12-01", 1, 4),
    ]


def test_a_run_that_fails_counts_for_nothing_and_the_next_one_does_it_again(tmp_path: Path) -> None:
    source = Kept(record(0, 0), record(1, 0))
    run(source, tmp_path)
    source.records += [record(0, 1), record(0, 2)]
    source.fails_after = 3
    with pytest.raises(ParleyError):
        run(source, tmp_path)
    assert everything(tmp_path) == [(0, 0), (1, 0)], "what is behind the last part does not count"
    source.fails_after = None
    assert run(source, tmp_path) == 2
    assert everything(tmp_path) == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert Archive(tmp_path).damaged() == []


class Vanishing(Kept):
    """A source one of whose topics is deleted between being listed and being read."""

    def __init__(self, *records: Record, gone: str, listed: bool) -> None:
        super().__init__(*records)
        self.gone = gone
        self.listed = listed

    async def existing(self, topics: Iterable[str]) -> dict[str, int]:
        return {topic: 2 for topic in topics if self.listed or topic != self.gone}

    async def bounds(self, wheres: Iterable[TopicPartition]) -> dict[TopicPartition, Span]:
        wheres = list(wheres)
        if any(where.topic == self.gone for where in wheres):
            raise ParleyError("log_unavailable", "nobody leads it")
        return await super().bounds(wheres)


def test_a_topic_that_is_deleted_meanwhile_does_not_keep_the_others_from_being_archived(tmp_path: Path) -> None:
    """Session topics come and go while a run works through hundreds of them."""
    counts = {"chat.tokens.s.1": 1, TOPIC: 2}
    source = Vanishing(record(0, 0), gone="chat.tokens.s.1", listed=False)
    with alone(tmp_path):
        assert [one.topic for one in asyncio.run(archive_topics(source, tmp_path, counts))] == [TOPIC]
    assert everything(tmp_path) == [(0, 0)]
    away = Vanishing(gone="chat.tokens.s.1", listed=True)
    with alone(tmp_path), pytest.raises(ParleyError, match="nobody leads it"):
        asyncio.run(archive_topics(away, tmp_path, counts))


def test_a_process_that_dies_before_the_manifest_leaves_no_trace(tmp_path: Path) -> None:
    source = Kept(record(0, 0))
    run(source, tmp_path)
    with (tmp_path / TOPIC / "2025-11-30.jsonl.gz").open("ab") as file:
        file.write(gzip.compress(line_of(record(0, 1)))[:-3])
    source.records.append(record(0, 1))
    assert run(source, tmp_path) == 1
    assert everything(tmp_path) == [(0, 0), (0, 1)]


def test_holes_are_passed_over_and_what_retention_took_is_named(tmp_path: Path) -> None:
    source = Kept(record(0, 0), record(0, 5))
    source.ends = {0: 9}  # markers of transactions up to there
    run(source, tmp_path)
    assert asyncio.run(Archive(tmp_path).bounds([TopicPartition(TOPIC, 0)])) == {TopicPartition(TOPIC, 0): (0, 9)}
    source.records, source.begins, source.ends = [record(0, 20)], {0: 20}, {}
    assert run(source, tmp_path) == 1
    manifest = load(tmp_path / TOPIC)
    assert manifest is not None
    assert [(gap.partition, gap.start, gap.end) for gap in manifest.gaps] == [(0, 9, 20)]


def test_what_retention_took_is_named_also_when_it_has_left_nothing(tmp_path: Path) -> None:
    source = Kept(record(0, 0))
    run(source, tmp_path)
    source.records, source.begins, source.ends = [], {0: 20}, {0: 20}
    with alone(tmp_path):
        archived = asyncio.run(archive_topic(source, tmp_path, TOPIC, 2))
    assert [(gap.partition, gap.start, gap.end) for gap in archived.gaps] == [(0, 1, 20)]
    assert run(source, tmp_path) == 0
    manifest = load(tmp_path / TOPIC)
    assert manifest is not None
    assert len(manifest.gaps) == 1, "it is said once"


def test_a_topic_that_was_made_anew_is_said_and_its_offsets_are_not_there_twice(tmp_path: Path) -> None:
    """A session topic that was cleared away comes back with offsets from 0 on."""
    run(Kept(*(record(0, n) for n in range(5)), record(1, 0)), tmp_path)
    anew = Kept(record(0, 0), record(0, 1), record(1, 0), record(1, 1))
    with alone(tmp_path):
        archived = asyncio.run(archive_topic(anew, tmp_path, TOPIC, 2))
    assert (archived.remade, archived.records) == ((0,), 1)
    anew.records.append(record(0, 2))
    assert run(anew, tmp_path) == 0
    assert everything(tmp_path) == [*((0, n) for n in range(5)), (1, 0), (1, 1)]


def test_spans_and_times_are_found_as_in_the_log(tmp_path: Path) -> None:
    source = Kept(*(record(0, n, NOON + n * 10) for n in range(10)))
    run(source, tmp_path)
    source.records += [record(0, n, NOON + n * 10) for n in range(10, 20)]
    run(source, tmp_path)
    assert everything(tmp_path, {0: (8, 12)}) == [(0, 8), (0, 9), (0, 10), (0, 11)]
    where = TopicPartition(TOPIC, 0)

    def at(ms: int) -> int | None:
        return asyncio.run(Archive(tmp_path).at_time({where: NOON + ms}))[where]

    assert [at(-5), at(35), at(100), at(190), at(191)] == [0, 4, 10, 19, None]


def test_reading_ends_when_enough_was_seen(tmp_path: Path) -> None:
    run(Kept(*(record(0, n) for n in range(5))), tmp_path)
    seen: list[int] = []

    def two(one: Record) -> bool:
        seen.append(one.offset)
        return len(seen) == 2

    asyncio.run(Archive(tmp_path).read({TopicPartition(TOPIC, 0): (0, 5)}, two))
    assert seen == [0, 1]


def test_damage_is_found_and_never_read(tmp_path: Path) -> None:
    run(Kept(record(0, 0)), tmp_path)
    file = tmp_path / TOPIC / "2025-11-30.jsonl.gz"
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    assert Archive(tmp_path).damaged() == [f"{TOPIC}/2025-11-30.jsonl.gz at byte 0"]
    with pytest.raises(ParleyError, match="restore it"):
        everything(tmp_path)
    file.unlink()
    assert len(Archive(tmp_path).damaged()) == 1


def test_files_that_have_lost_their_manifest_are_left_as_they_are_and_named(tmp_path: Path) -> None:
    """They may hold what brokers have forgotten: a run that began again would write over it."""
    source = Kept(record(0, 0))
    run(source, tmp_path)
    place = tmp_path / TOPIC
    written = (place / "2025-11-30.jsonl.gz").read_bytes()
    (place / "manifest.json").unlink()
    source.begins[0], source.records = 1, [record(0, 1)]
    with alone(tmp_path):
        [told] = asyncio.run(archive_topics(source, tmp_path, {TOPIC: 2}))
    assert told.unlisted == ("2025-11-30.jsonl.gz",)
    assert (place / "2025-11-30.jsonl.gz").read_bytes() == written
    assert not (place / "manifest.json").exists()
    with alone(tmp_path):
        asyncio.run(archive_topic(source, tmp_path, "chat.other", 1))
    assert Archive(tmp_path).damaged() == [f"{TOPIC}/2025-11-30.jsonl.gz, its manifest.json is gone"]


def test_the_first_run_of_a_topic_may_be_cut_off(tmp_path: Path) -> None:
    source = Kept(record(0, 0), record(0, 1))
    source.fails_after = 1
    with pytest.raises(ParleyError):
        run(source, tmp_path)
    assert list((tmp_path / TOPIC).glob("*.gz")), "it has left something"
    source.fails_after = None
    assert run(source, tmp_path) == 2
    assert everything(tmp_path) == [(0, 0), (0, 1)]


def test_only_one_writes(tmp_path: Path) -> None:
    with alone(tmp_path), pytest.raises(ParleyError, match=rf"another process \({os.getpid()}\) is writing"):
        run(Kept(record(0, 0)), tmp_path)
    assert run(Kept(record(0, 0)), tmp_path) == 1


def test_others_on_the_machine_cannot_read_what_people_wrote(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    run(Kept(record(0, 0)), folder)
    for path in (folder, *folder.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_folder_that_is_none_says_how_to_make_one(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ParleyError, match="parley log archive"):
            Archive(folder)
    (tmp_path / TOPIC).mkdir()
    (tmp_path / TOPIC / "manifest.json").write_text("{}")
    with pytest.raises(ParleyError, match="no manifest"):
        Archive(tmp_path)
