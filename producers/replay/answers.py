"""Answers as they were against answers as they would be: texts, tokens, times to the first token. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from statistics import median

from producers.replay.manifest import Manifest
from producers.replay.prompts import Prompt
from producers.replay.report import SAME, Chart, Figure, Report, Row, count_changes, spread, tally
from schemas.turns import TurnEnded

TEXT, END = "other text", "other end"
NO_REQUEST = "never ran"
"""The log holds no request of it: it ended before it got to a pool, or retention has taken that."""
NO_END = "no end before"


@dataclass(frozen=True, slots=True)
class Answered:
    """How a turn ended."""

    status: str
    text: str
    pool: str | None
    revision: str | None
    tokens: int
    ttft_ms: int | None
    """From the engine's start to its first token; None: there was none."""
    reason: str | None = None

    @classmethod
    def by(cls, ended: TurnEnded) -> Answered:
        """As a turn's end says."""
        begun, first = ended.timings.engine_started, ended.timings.first_token
        return cls(
            ended.status,
            "".join(item.text for item in ended.output),
            ended.pool,
            ended.model_revision,
            ended.usage.output_tokens,
            None if begun is None or first is None else max(0, first - begun),
            ended.failure.code if ended.failure else ended.reason,
        )

    def figures(self) -> dict[str, Figure]:
        """As a report shows it, without the text."""
        return {
            "status": self.status,
            "reason": self.reason,
            "pool": self.pool,
            "model": self.revision,
            "tokens": self.tokens,
            "characters": len(self.text),
            "ttft ms": self.ttft_ms,
        }


def change(before: Answered | None, after: Answered | None) -> str:
    """What a replay makes of a turn."""
    if after is None:
        return NO_REQUEST
    if before is None:
        return NO_END
    if (before.status, before.reason) != (after.status, after.reason):
        return END
    return SAME if before.text == after.text else TEXT


def likeness(before: str, after: str) -> float:
    """How much of two texts' words is the same, from 0 to 1."""
    return round(SequenceMatcher(None, before.split(), after.split(), autojunk=False).ratio(), 3)


def diff(before: str, after: str) -> str:
    """The words of both texts: [-those that are gone-] and {+those that are new+}."""
    old, new = before.split(), after.split()
    told: list[str] = []
    for kind, low, high, first, last in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            told += old[low:high]
            continue
        if high > low:
            told.append(f"[-{' '.join(old[low:high])}-]")
        if last > first:
            told.append(f"{{+{' '.join(new[first:last])}+}}")
    return " ".join(told)


def compare(
    manifest: Manifest, prompts: Iterable[Prompt], before: Mapping[str, Answered], after: Mapping[str, Answered]
) -> Report:
    """The report of a replay of answers."""
    rows = tuple(_row(prompt, before.get(r := prompt.event.response), after.get(r), manifest) for prompt in prompts)
    both = [
        (before[row.response], after[row.response]) for row in rows if {row.response} <= before.keys() & after.keys()
    ]
    old, new = [each for each, _ in both], [each for _, each in both]
    totals = count_changes(rows) | {
        "tokens before": sum(each.tokens for each in old),
        "tokens now": sum(each.tokens for each in new),
        "ms to the first token before (median)": _median(old),
        "ms to the first token now (median)": _median(new),
    }
    versions = {
        "pool": (_names(each.pool for each in old), _names(each.pool for each in new)),
        "model": (_names(each.revision for each in old), _names(each.revision for each in new)),
    }
    return Report(manifest=manifest, versions=versions, totals=totals, charts=_charts(old, new), rows=rows)


def _row(prompt: Prompt, before: Answered | None, after: Answered | None, manifest: Manifest) -> Row:
    event = prompt.event
    texts = {"prompt": "\n".join(event.input_texts())} if manifest.content else {}
    figures = after.figures() if after else {}
    if before is not None and after is not None:
        figures["likeness"] = likeness(before.text, after.text)
        if manifest.content and before.text != after.text:
            texts["answer"] = diff(before.text, after.text)
    return Row(
        response=event.response,
        session=str(event.session),
        source=prompt.source,
        at=int(prompt.record.timestamp),
        change=change(before, after),
        before=before.figures() if before else {},
        after=figures,
        texts=texts,
    )


def _charts(old: list[Answered], new: list[Answered]) -> tuple[Chart, ...]:
    charts = (
        tally("turns by end", (each.status for each in old), (each.status for each in new)),
        spread("turns by tokens of the answer", [each.tokens for each in old], [each.tokens for each in new]),
        spread("turns by ms to the engine's first token", _times(old), _times(new)),
    )
    return tuple(chart for chart in charts if chart is not None)


def _times(answers: Iterable[Answered]) -> list[float]:
    return [float(each.ttft_ms) for each in answers if each.ttft_ms is not None]


def _median(answers: Iterable[Answered]) -> int:
    times = _times(answers)
    return round(median(times)) if times else 0


def _names(names: Iterable[str | None]) -> str:
    return ", ".join(sorted({name for name in names if name is not None})) or "not known"
