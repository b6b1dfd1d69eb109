"""Percentiles and CPU time: numbers from what was seen."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.load import Load

TICKS = os.sysconf("SC_CLK_TCK")


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the values do not exceed; NaN of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")


@dataclass(frozen=True, slots=True)
class Figures:
    """One run. Times in ms, of turns that ended in its window; first turns and failures of any time."""

    turns: int
    failed: int
    ttft_p50: float
    ttft_p99: float
    first_turn_p50: float
    first_turn_p99: float
    between_p50: float
    between_p99: float
    tokens_per_s: float
    tokens: int


def figures(load: Load, token: int = 0) -> Figures:
    """What a load has seen. `token`: which arrival counts as the first: the engine's L+1st for a hold-back of L."""
    began, ended = load.window
    ends = [turn for turn in load.turns if turn.ended_within(load.window)]
    whole = [turn for turn in ends if not turn.failed and len(turn.arrivals) > token]
    later = [turn.arrivals[token] * 1e3 for turn in whole]
    first = [turn.arrivals[token] * 1e3 for turn in load.first_turns if not turn.failed and len(turn.arrivals) > token]
    gaps = [(b - a) * 1e3 for turn in whole for a, b in zip(turn.arrivals, turn.arrivals[1:], strict=False)]
    tokens = sum(turn.tokens_within(load.window) for turn in (*load.turns, *load.first_turns) if not turn.failed)
    return Figures(
        turns=len(whole),
        failed=sum(turn.failed for turn in (*load.turns, *load.first_turns)),
        ttft_p50=percentile(later, 0.5),
        ttft_p99=percentile(later, 0.99),
        first_turn_p50=percentile(first, 0.5),
        first_turn_p99=percentile(first, 0.99),
        between_p50=percentile(gaps, 0.5),
        between_p99=percentile(gaps, 0.99),
        tokens_per_s=tokens / (ended - began) if ended > began else 0.0,
        tokens=round(tokens),
    )


def cpu_s(pid: int) -> float:
    """CPU seconds of a process, its threads and its living children; 0 when it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS + sum(cpu_s(int(child)) for child in children)


def rss_kib(pid: int) -> int:
    """Resident memory of a process in KiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") // 1024


class Meter:
    """CPU of named processes, and of this one, between two moments."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._began: dict[str, float] = {}
        self.spent: dict[str, float] = {}

    def start(self) -> None:
        self._began = self._now()

    def stop(self) -> None:
        self.spent = {name: now - self._began[name] for name, now in self._now().items()}

    def _now(self) -> dict[str, float]:
        return {name: cpu_s(pid) for name, pid in self._pids.items()} | {"the load itself": time.process_time()}

    def per_token_us(self, tokens: int) -> dict[str, float]:
        """Microseconds of CPU for each token."""
        return {name: spent / max(tokens, 1) * 1e6 for name, spent in self.spent.items()}
