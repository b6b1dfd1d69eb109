"""What an archive holds of a topic: its parts, in the order in which they were written.

    DIR/TOPIC/manifest.json         the truth: what it does not name is not in the archive
    DIR/TOPIC/2026-11-30.jsonl.gz   a file a day (UTC, by append time): one gzip member a part, one after the other

A part is what one run archived of one day. Its offsets begin where the part before it ended, so no record is in the
archive twice. Bytes behind the last part of a file are what a run left that did not come to its end. The manifest is
there before the first file: files without one have lost it.
"""

from __future__ import annotations

import os
from pathlib import Path

from aiokafka import TopicPartition
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from parley.errors import ParleyError
from schemas.base import Millis

NAME = "manifest.json"
_DAYS = "*.jsonl.gz"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Slice(_Frozen):
    """What a part holds of a partition."""

    start: int = Field(ge=0)
    end: int
    """The offset after the last. Offsets between that have no record had none in the log."""
    records: int
    first_ms: Millis | None = None
    last_ms: Millis | None = None
    """Append times; None without records."""


class Part(_Frozen):
    """One gzip member of a day's file."""

    day: str
    at: int = Field(ge=0)
    """Where it begins in the file, in bytes."""
    bytes: int = Field(gt=0)
    sha256: str
    """Of these bytes."""
    records: int
    partitions: dict[int, Slice]

    @property
    def file(self) -> str:
        """The day's."""
        return f"{self.day}.jsonl.gz"


class Gap(_Frozen):
    """Offsets that the log no longer held when they were to be archived."""

    partition: int
    start: int
    end: int


class Manifest(_Frozen):
    """One topic's."""

    version: int = 1
    topic: str
    partitions: int
    parts: tuple[Part, ...] = ()
    gaps: tuple[Gap, ...] = ()
    ends: dict[int, int] = {}
    """Of each partition: the offset that the next run begins with."""

    def begin(self, partition: int) -> int:
        """The oldest offset that is here."""
        starts = (part.partitions[partition].start for part in self.parts if partition in part.partitions)
        return min(starts, default=self.ends.get(partition, 0))

    def length(self, file: str) -> int:
        """How many bytes of a day's file count."""
        return max((part.at + part.bytes for part in self.parts if part.file == file), default=0)

    def parts_of(self, where: TopicPartition) -> list[tuple[Part, Slice]]:
        """The parts that hold something of a partition, in order."""
        return [(p, p.partitions[where.partition]) for p in self.parts if where.partition in p.partitions]

    def save(self, folder: Path) -> None:
        """Replace the one that is there, all at once."""
        fresh = folder / f"{NAME}.new"
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(self.model_dump_json(indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(folder / NAME)


def load(folder: Path) -> Manifest | None:
    """A topic's manifest; None: nothing of it has been archived.

    Raises:
        ParleyError: invalid_request: the file is none, or of a newer version.
    """
    try:
        manifest = Manifest.model_validate_json((folder / NAME).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise ParleyError("invalid_request", f"{folder / NAME} is no manifest: {error.errors()[0]['msg']}") from None
    if manifest.version != 1:
        raise ParleyError("invalid_request", f"{folder / NAME} is of version {manifest.version}: this reads version 1")
    return manifest


def unlisted(folder: Path) -> tuple[str, ...]:
    """A topic's files that have lost their manifest: nobody can tell what of them counts."""
    return () if (folder / NAME).exists() else tuple(sorted(path.name for path in folder.glob(_DAYS)))
