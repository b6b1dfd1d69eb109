"""The checker of the chaos suite sees each fault that it is there for, and none where there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.chaos.checker import check
from tests.chaos.evidence import DELTA, Asked, Counted, End, Event, Evidence, Kept, Reading

WORDS = 5
PROMPT, SESSION, RESPONSE = "prompt 1", "session 1", "resp_1"
PIECES = ["w001", " w002", " w003", " w004", " w005"]


def stream(pieces: list[str], terminal: str = "response.completed", status: str = "completed") -> tuple[Event, ...]:
    types = ["response.created", "response.in_progress", *[DELTA] * len(pieces), terminal]
    texts = ["", "", *pieces, status]
    return tuple(Event(number, *both) for number, both in enumerate(zip(types, texts, strict=True)))


def sound() -> Evidence:
    """One turn of which everybody says the same."""
    events = stream(PIECES)
    return Evidence(
        asked=(Asked(PROMPT, SESSION, WORDS, (RESPONSE,)),),
        readings=(
            Reading(RESPONSE, "asker", events, done=True),
            Reading(RESPONSE, "who left", events[:4], done=False),
        ),
        late={RESPONSE: Reading(RESPONSE, "late", events, done=True)},
        kept={RESPONSE: Kept(RESPONSE, SESSION, 1, PROMPT, "completed", "".join(PIECES), (4, 5, 5, 5, 5))},
        ends=(End(RESPONSE, "completed", "".join(PIECES), WORDS),),
        started={RESPONSE: PROMPT},
        counted=Counted(1, WORDS),
    )


def heard(events: tuple[Event, ...], *, done: bool = True) -> Evidence:
    """The asker heard this; everything else is sound."""
    return replace(sound(), readings=(Reading(RESPONSE, "asker", events, done),))


def everywhere(pieces: list[str], terminal: str = "response.completed", status: str = "completed") -> Evidence:
    """Everybody agrees on this stream."""
    events, text = stream(pieces, terminal, status), "".join(pieces)
    return replace(
        sound(),
        readings=(Reading(RESPONSE, "asker", events, done=True),),
        late={RESPONSE: Reading(RESPONSE, "late", events, done=True)},
        kept={RESPONSE: Kept(RESPONSE, SESSION, 1, PROMPT, status, text, tuple(map(len, pieces)))},
        ends=(End(RESPONSE, status, text, WORDS),),
    )


def numbered(events: tuple[Event, ...]) -> tuple[Event, ...]:
    return tuple(event._replace(number=number) for number, event in enumerate(events))


EVENTS = stream(PIECES)
CASES: dict[str, tuple[Callable[[], Evidence], str]] = {
    "a client misses an event": (lambda: heard(EVENTS[:3] + EVENTS[4:]), "lost"),
    "a client gets an event twice": (lambda: heard((*EVENTS[:4], EVENTS[3], *EVENTS[4:])), "doubled"),
    "a client gets an old event": (lambda: heard((*EVENTS[:5], EVENTS[2], *EVENTS[5:])), "order"),
    "a client gets two terminals": (
        lambda: heard((*EVENTS, Event(len(EVENTS), "response.failed", "failed"))),
        "ends",
    ),
    "a client gets text after the terminal": (lambda: heard((*EVENTS, Event(len(EVENTS), DELTA, " w006"))), "ends"),
    "a client waited to the end, and there was none": (lambda: heard(EVENTS[:-1]), "ends"),
    "a client was told another text": (
        lambda: heard((*EVENTS[:4], EVENTS[4]._replace(text=" w999"), *EVENTS[5:])),
        "differs",
    ),
    "a client was told more than there is": (
        lambda: replace(heard(EVENTS), late={RESPONSE: Reading(RESPONSE, "late", stream(PIECES[:4]), done=True)}),
        "differs",
    ),
    "a word is missing for everybody": (lambda: everywhere([*PIECES[:2], *PIECES[3:]]), "lost"),
    "the first word is missing for everybody": (lambda: everywhere(["w002", *PIECES[2:]]), "lost"),
    "the last word is missing for everybody": (lambda: everywhere(PIECES[:4]), "lost"),
    "a word is doubled for everybody": (lambda: everywhere([*PIECES[:3], PIECES[2], *PIECES[3:]]), "doubled"),
    "words have changed places for everybody": (
        lambda: everywhere([PIECES[0], PIECES[2], PIECES[1], *PIECES[3:]]),
        "order",
    ),
    "a word that the engine never said": (lambda: everywhere([*PIECES[:3], " what", *PIECES[4:]]), "differs"),
    "an accepted turn has no stream": (lambda: replace(sound(), late={}), "lost"),
    "an accepted turn never ends": (
        lambda: replace(sound(), late={RESPONSE: Reading(RESPONSE, "late", EVENTS[:-1], done=False)}),
        "lost",
    ),
    "a turn was cancelled by nobody": (lambda: everywhere(PIECES[:3], "response.incomplete", "cancelled"), "ends"),
    "history lacks the turn": (lambda: replace(sound(), kept={}), "history"),
    "history lacks the end": (
        lambda: replace(sound(), kept={RESPONSE: replace(sound().kept[RESPONSE], status=None)}),
        "history",
    ),
    "history has another text": (
        lambda: replace(sound(), kept={RESPONSE: replace(sound().kept[RESPONSE], text="w001")}),
        "history",
    ),
    "history has other pieces": (
        lambda: replace(sound(), kept={RESPONSE: replace(sound().kept[RESPONSE], lengths=(9, 5, 5, 5))}),
        "history",
    ),
    "history has another end": (
        lambda: replace(sound(), kept={RESPONSE: replace(sound().kept[RESPONSE], status="failed")}),
        "history",
    ),
    "the state log has no end": (lambda: replace(sound(), ends=(), counted=Counted(0, 0)), "lost"),
    "the state log has two ends": (
        lambda: replace(sound(), ends=(*sound().ends, End(RESPONSE, "failed", "w001", 1)), counted=Counted(1, 1)),
        "ends",
    ),
    "the state log has another text": (
        lambda: replace(sound(), ends=(End(RESPONSE, "completed", "w001", WORDS),)),
        "differs",
    ),
    "the state log does not know an accepted prompt": (lambda: replace(sound(), started={}), "lost"),
    "one prompt became two turns": (
        lambda: replace(
            sound(),
            started={RESPONSE: PROMPT, "resp_2": PROMPT},
            ends=(*sound().ends, replace(sound().ends[0], response="resp_2")),
            late=sound().late | {"resp_2": Reading("resp_2", "late", EVENTS, done=True)},
            kept=sound().kept | {"resp_2": replace(sound().kept[RESPONSE], response="resp_2", number=2)},
            counted=Counted(2, 2 * WORDS),
        ),
        "doubled",
    ),
    "a turn of which nobody heard never ends": (
        lambda: replace(
            sound(),
            asked=(*sound().asked, Asked("prompt 2", SESSION, WORDS, ())),
            started={RESPONSE: PROMPT, "resp_2": "prompt 2"},
        ),
        "lost",
    ),
    "two turns of a session have changed places": (
        lambda: _two_turns(1, 0),
        "order",
    ),
    "two turns of a session have one number": (lambda: _two_turns(1, 1), "doubled"),
    "a turn is counted twice": (lambda: replace(sound(), counted=Counted(2, WORDS)), "usage"),
    "a token is not counted": (lambda: replace(sound(), counted=Counted(1, WORDS - 1)), "usage"),
}


def _two_turns(first: int, second: int) -> Evidence:
    one = sound()
    return replace(
        one,
        asked=(*one.asked, Asked("prompt 2", SESSION, WORDS, ("resp_2",))),
        late=one.late | {"resp_2": Reading("resp_2", "late", EVENTS, done=True)},
        kept={
            RESPONSE: replace(one.kept[RESPONSE], number=first),
            "resp_2": replace(one.kept[RESPONSE], response="resp_2", prompt="prompt 2", number=second),
        },
        ends=(*one.ends, replace(one.ends[0], response="resp_2")),
        started={RESPONSE: PROMPT, "resp_2": "prompt 2"},
        counted=Counted(2, 2 * WORDS),
    )


@pytest.mark.parametrize("case", CASES)
def test_each_fault_is_seen(case: str) -> None:
    make, kind = CASES[case]
    assert kind in {wrong.kind for wrong in check(make())}


@pytest.mark.parametrize(
    "evidence",
    [
        sound(),
        _two_turns(1, 2),
        replace(
            everywhere(PIECES[:3], "response.failed", "failed"), ends=(End(RESPONSE, "failed", "w001 w002 w003", 5),)
        ),
        replace(
            everywhere(PIECES[:3], "response.incomplete", "cancelled"),
            asked=(Asked(PROMPT, SESSION, WORDS, (RESPONSE,), cancelled=True),),
        ),
        # The same end twice is one: a successor repeats it.
        replace(sound(), ends=sound().ends * 2),
        # Never accepted, as far as anybody knows, and not in the log.
        replace(sound(), asked=(*sound().asked, Asked("prompt 2", SESSION, WORDS, ()))),
        # It failed in a way that a retry may mend, and its key was used again.
        replace(
            sound(),
            started={RESPONSE: PROMPT, "resp_0": PROMPT},
            ends=(End("resp_0", "failed", "", 0, retryable=True), *sound().ends),
            late=sound().late
            | {"resp_0": Reading("resp_0", "late", stream([], "response.failed", "failed"), done=True)},
            kept=sound().kept | {"resp_0": Kept("resp_0", SESSION, 0, PROMPT, "failed", "", ())},
            counted=Counted(2, WORDS),
        ),
    ],
)
def test_what_is_right_is_let_pass(evidence: Evidence) -> None:
    assert [str(wrong) for wrong in check(evidence)] == []
