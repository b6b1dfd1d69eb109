"""0 lost, 0 doubled, 0 out of order, one end: all that was seen of every turn, compared. Pure.

The engine answers `w001 w002 …`, so the text itself shows what is missing, what came twice, and what came too early.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from tests.chaos.evidence import DELTA, TERMINALS, Asked, End, Event, Evidence, Kept, Reading

STATUS = {
    "response.completed": ("completed", "refused"),
    "response.incomplete": ("incomplete", "cancelled"),
    "response.failed": ("failed", "expired"),
}
"""How the state log may call what a public terminal says."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """One broken promise."""

    kind: str
    """lost, doubled, order, ends, differs, history, usage."""
    where: str
    """The response, or the prompt."""
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}: {self.what}"


def check(evidence: Evidence) -> list[Wrong]:
    """Every broken promise that the evidence shows; empty when all were kept."""
    wrong: list[Wrong] = []
    wanted = {response: asked for asked in evidence.asked for response in asked.responses}
    by_prompt = {asked.prompt: asked for asked in evidence.asked}
    for response, prompt in evidence.started.items():  # also those of whose acceptance nobody heard
        if prompt in by_prompt:
            wanted.setdefault(response, by_prompt[prompt])
    for reading in (*evidence.readings, *evidence.late.values()):
        wrong += _numbers(reading)
        wrong += _terminals(reading)
    for response, asked in wanted.items():
        late = evidence.late.get(response)
        if late is None or not late.done:
            wrong.append(Wrong("lost", response, "it was accepted, and afterwards its stream has no end"))
        else:
            wrong += _text(late, asked.words)
            wrong += _status(late, asked.cancelled)
    wrong += _agreement(evidence)
    wrong += _history(evidence)
    wrong += _ends(evidence)
    wrong += _prompts(evidence)
    wrong += _usage(evidence)
    return list(dict.fromkeys(wrong))


def _numbers(reading: Reading) -> Iterator[Wrong]:
    """Events are numbered 0, 1, 2, … over all connections of a reader."""
    about = f"{reading.response} ({reading.reader})"
    expected = 0
    for event in reading.events:
        if event.number > expected:
            yield Wrong("lost", about, f"event {event.number} where {expected} was next")
        elif event.number == expected - 1:
            yield Wrong("doubled", about, f"event {event.number} came again")
        elif event.number < expected:
            yield Wrong("order", about, f"event {event.number} after {expected - 1}")
        expected = event.number + 1


def _terminals(reading: Reading) -> Iterator[Wrong]:
    """One terminal event and nothing after it, for whoever stayed; none yet, for who left."""
    about = f"{reading.response} ({reading.reader})"
    ends = [index for index, event in enumerate(reading.events) if event.type in TERMINALS]
    if len(ends) > 1:
        yield Wrong("ends", about, f"{len(ends)} terminal events")
    elif ends and ends[0] != len(reading.events) - 1:
        yield Wrong("ends", about, f"{len(reading.events) - 1 - ends[0]} events after the terminal one")
    elif not ends and reading.done:
        yield Wrong("ends", about, "no terminal event")


def _text(reading: Reading, count: int) -> Iterator[Wrong]:
    """The text is what the engine was asked to make, up to some word; a completed one up to the last."""
    about = f"{reading.response} ({reading.reader})"
    found = reading.text.split(" ") if reading.text else []
    whole = reading.events[-1].text == "completed"
    if not whole and found:
        found = found[:-1]  # an answer that was stopped may end within a word; what comes before is checked
    numbers = []
    for word in found:
        if not (word.startswith("w") and word[1:].isdecimal()):
            yield Wrong("differs", about, f"the engine never said {word!r}")
            return
        numbers.append(int(word[1:]))
    if numbers and numbers[0] != 1:
        yield Wrong("lost", about, f"the text begins with word {numbers[0]}")
    for before, after in pairwise(numbers):
        if after == before:
            yield Wrong("doubled", about, f"word {after} twice")
        elif after < before:
            yield Wrong("order", about, f"word {after} after {before}")
        elif after > before + 1:
            yield Wrong("lost", about, f"word {after} after {before}")
    if whole and len(numbers) != count:
        yield Wrong("lost", about, f"completed with {len(numbers)} words of {count}")


def _status(reading: Reading, cancelled: bool) -> Iterator[Wrong]:
    """Nobody's turn is cancelled who did not ask for it."""
    if reading.events[-1].text == "cancelled" and not cancelled:
        yield Wrong("ends", reading.response, "cancelled, and nobody asked for that")


def _agreement(evidence: Evidence) -> Iterator[Wrong]:
    """What anybody was told is a beginning of what a late reader is told, event by event."""
    for reading in evidence.readings:
        late = evidence.late.get(reading.response)
        if late is None:
            continue
        truth = {event.number: event for event in late.events}
        for event in reading.events:
            if truth.get(event.number) != event:
                yield Wrong(
                    "differs",
                    f"{reading.response} ({reading.reader})",
                    f"was told {_short(event)}, a late reader {_short(truth.get(event.number))}",
                )
                break


def _history(evidence: Evidence) -> Iterator[Wrong]:
    """The message store has every turn that has a stream, with the same text in the same pieces."""
    for response, late in evidence.late.items():
        kept = evidence.kept.get(response)
        if kept is None or kept.status is None:
            yield Wrong("history", response, "it is not stored" if kept is None else "its end is not stored")
            continue
        told = tuple(len(event.text) for event in late.events if event.type == DELTA)
        if kept.text != late.text:
            yield Wrong("history", response, f"{len(kept.text)} characters are stored, {len(late.text)} were told")
        elif kept.lengths != told:
            yield Wrong("history", response, "the stored pieces differ from those that were told")
        if late.events and kept.status not in STATUS.get(late.events[-1].type, ()):
            yield Wrong("history", response, f"stored as {kept.status}, told as {late.events[-1].type}")


def _ends(evidence: Evidence) -> Iterator[Wrong]:
    """Every turn in the state log has an end; all its ends that stand say the same, as its stream does."""
    ends: dict[str, list[End]] = defaultdict(list)
    for end in evidence.ends:
        ends[end.response].append(end)
    for response in {*evidence.started, *evidence.late} - ends.keys():
        yield Wrong("lost", response, "it has no end in the state log")
    for response, found in ends.items():
        if len({(end.status, end.text) for end in found}) > 1:
            yield Wrong("ends", response, f"{len(found)} ends in the state log that differ")
        late = evidence.late.get(response)
        if late is not None and late.done and found[-1].text != late.text:
            yield Wrong("differs", response, "the state log has another text than the stream")


def _prompts(evidence: Evidence) -> Iterator[Wrong]:
    """Every prompt became one turn, and those of a session are in the order in which they were asked."""
    failed = {end.response for end in evidence.ends if end.retryable}
    turns: dict[str, list[str]] = defaultdict(list)
    for response, prompt in evidence.started.items():
        turns[prompt].append(response)
    for asked in evidence.asked:
        stand = [response for response in turns[asked.prompt] if response not in failed]
        if len(stand) > 1:
            yield Wrong("doubled", asked.prompt, f"one prompt became {len(stand)} turns")
        if asked.responses and not turns[asked.prompt]:
            yield Wrong("lost", asked.prompt, "it was accepted, and the state log does not know it")
    yield from _order(evidence.asked, evidence.kept)


def _order(asked: Iterable[Asked], kept: dict[str, Kept]) -> Iterator[Wrong]:
    numbers: dict[str, list[int]] = defaultdict(list)
    for each in asked:
        numbers[each.session] += [kept[response].number for response in each.responses[-1:] if response in kept]
    for session, found in numbers.items():
        if found != sorted(found):
            yield Wrong("order", session, f"its turns have the numbers {found}")
        elif any(count > 1 for count in Counter(found).values()):
            yield Wrong("doubled", session, f"its turns have the numbers {found}")


def _usage(evidence: Evidence) -> Iterator[Wrong]:
    """Each turn is counted once, with the tokens of its end."""
    standing = {end.response: end for end in evidence.ends}
    turns, tokens = len(standing), sum(end.output_tokens for end in standing.values())
    if evidence.counted.turns != turns:
        yield Wrong("usage", "all", f"{evidence.counted.turns} turns are counted, {turns} have ended")
    if evidence.counted.output_tokens != tokens:
        yield Wrong("usage", "all", f"{evidence.counted.output_tokens} tokens are counted, the ends have {tokens}")


def _short(event: Event | None) -> str:
    return "nothing" if event is None else f"event {event.number} {event.type} {event.text!r}"
