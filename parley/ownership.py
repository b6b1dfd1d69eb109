"""Holding a partition: the pure part of protocol.md, section 1.

What fences processes is a record in the metadata of the group's committed offset: who holds the partition, the number
of the takeover, and which turns above the committed offset have ended. A member that gets a partition reads the claim;
if it is not its own, somebody else may have had the partition, and it commits a claim with the next number before it
touches anything.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass, field

import orjson

METADATA_LIMIT = 4_096
"""Bytes that Kafka keeps beside a committed offset (offset.metadata.max.bytes)."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What the metadata of a committed offset says."""

    holder: str = ""
    """Instance and nonce of the process; empty: nobody ever held the partition."""
    takeover: int = 0
    ended: frozenset[int] = frozenset()
    """Offsets above the committed one whose turns have ended."""
    position: int | None = field(default=None, compare=False)
    """Offset of the next record to take, for those who watch: nothing is decided by it."""
    floor: int = 0
    """Where a successor must begin, at the latest, to read the log that its role's state is folded from."""

    def encode(self, committed: int) -> str:
        """The metadata to commit beside the offset `committed`.

        Raises:
            ValueError: it would be longer than Kafka keeps; the window of taken records is too large.
        """
        bits = bytearray()
        for offset in self.ended:
            at, bit = divmod(offset - committed, 8)
            if at >= len(bits):
                bits.extend(bytes(at + 1 - len(bits)))
            bits[at] |= 1 << bit
        fields = {"holder": self.holder, "takeover": self.takeover, "ended": b64encode(bits).decode()}
        if self.position is not None:
            fields["position"] = self.position
        if self.floor:
            fields["floor"] = self.floor
        text = orjson.dumps(fields)
        if len(text) > METADATA_LIMIT:
            raise ValueError(f"a claim of {len(text)} bytes: more than {METADATA_LIMIT}")
        return text.decode()

    @classmethod
    def decode(cls, metadata: str, committed: int) -> Claim:
        """The claim beside the offset `committed`; metadata that is no claim was written by nobody of ours."""
        try:
            fields = orjson.loads(metadata)
            bits = b64decode(fields["ended"])
            ended = frozenset(
                committed + 8 * at + bit for at, byte in enumerate(bits) for bit in range(8) if byte >> bit & 1
            )
            position = fields.get("position")
            return cls(
                str(fields["holder"]),
                int(fields["takeover"]),
                ended,
                None if position is None else int(position),
                int(fields.get("floor", 0)),
            )
        except (ValueError, KeyError, TypeError):
            return cls()


class Progress:
    """Which records of a partition a holder has taken, and which of those have ended.

    The committed offset is the end of the contiguous prefix of ended records, never past an open one. Offsets may have
    holes (compaction, markers): only delivered records count.
    """

    __slots__ = ("_ended", "_open", "position", "version")

    def __init__(self, committed: int, ended: frozenset[int] = frozenset()) -> None:
        self.position = committed
        """Offset of the next record to take."""
        self.version = 0
        """Grows with every record that is taken, passed or ended: tells whether there is something new to commit."""
        self._open: dict[int, int] = {}
        """Append times of the records that are taken and not ended."""
        self._ended = set(ended)

    def take(self, offset: int, appended: int = 0) -> bool:
        """A record was delivered, appended at this time (ms).

        False: it was taken before, or its turn had ended under an earlier holder.
        """
        if offset < self.position:
            return False
        self.position = offset + 1
        self.version += 1
        if offset in self._ended:
            return False
        self._open[offset] = appended
        return True

    def end(self, offset: int) -> None:
        """The record needs nothing more."""
        if offset in self._open:
            del self._open[offset]
            self._ended.add(offset)
            self.version += 1

    @property
    def prefix(self) -> int:
        """The offset to commit: every record below it has ended."""
        return next(iter(self._open), self.position)

    @property
    def open(self) -> int:
        """Records taken and not ended."""
        return len(self._open)

    @property
    def oldest(self) -> int | None:
        """When the first of them was appended. Asked for by another thread, hence the copy in one step."""
        appended = list(self._open.values())
        return appended[0] if appended else None

    @property
    def span(self) -> int:
        """Offsets between the prefix and the next record to take."""
        return self.position - self.prefix

    def claim(self, holder: str, takeover: int, floor: int = 0) -> tuple[int, Claim]:
        """What to commit now: the offset, and the claim beside it."""
        prefix = self.prefix
        self._ended = {offset for offset in self._ended if offset >= prefix}
        return prefix, Claim(holder, takeover, frozenset(self._ended), self.position, floor)
