"""How long users waited for the next token after each fault. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench.figures import percentile

LONGEST_AFTER_S = 20.0
"""A pause that begins later than this after a fault is not the fault's; nor is one that begins after the next fault."""
ALIVE_S = 0.5
"""A stream of ten tokens a second that has said nothing for longer stood still already: an earlier fault's doing."""


@dataclass(frozen=True, slots=True)
class Struck:
    """One fault; times are of one clock, in seconds."""

    kind: str
    at: float


@dataclass(frozen=True, slots=True)
class Gaps:
    """What one kind of fault did."""

    times: int
    """How often it was done."""
    pauses: tuple[float, ...]
    """The longest of every stream that ran, in seconds, each time."""

    def __str__(self) -> str:
        if not self.pauses:
            return f"{self.times:4d} times, no stream ran"
        p50, p99 = percentile(list(self.pauses), 0.5), percentile(list(self.pauses), 0.99)
        return f"{self.times:4d} times, gap p50 {p50:5.2f} s, p99 {p99:5.2f} s, longest {max(self.pauses):5.2f} s"


def gaps(faults: Sequence[Struck], streams: Iterable[Sequence[float]]) -> dict[str, Gaps]:
    """By kind, the longest pause in each stream that got on when such a fault struck.

    A stream is the times at which its reader heard something, from the acceptance on.
    """
    faults = sorted(faults, key=lambda fault: fault.at)
    ends = [min(fault.at + LONGEST_AFTER_S, after.at) for fault, after in pairwise(faults)]
    ends += [fault.at + LONGEST_AFTER_S for fault in faults[-1:]]
    pauses: dict[str, list[float]] = defaultdict(list)
    for heard in streams:
        for fault, end in zip(faults, ends, strict=True):
            first, last = bisect_left(heard, fault.at - ALIVE_S), bisect_left(heard, end - ALIVE_S)
            begun = range(first, min(last, len(heard) - 1))
            spans = [heard[n + 1] - heard[n] for n in begun if heard[n + 1] > fault.at]
            if spans and heard[first] <= fault.at:  # it got on then
                pauses[fault.kind].append(max(spans))
    kinds = sorted({fault.kind for fault in faults})
    return {kind: Gaps(sum(fault.kind == kind for fault in faults), tuple(pauses[kind])) for kind in kinds}
