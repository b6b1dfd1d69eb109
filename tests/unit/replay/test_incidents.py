"""From incident to test: what is kept of the events, what is not, and what the generated test holds."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from parley.errors import ParleyError
from parley.safety.policy import Policy
from parley.settings import Settings
from parley.timeline.fold import Entry, Folding
from parley.timeline.target import Target
from parley.topics import TOKENS, TURNS, VERDICTS, load_topics
from producers.replay.anonymous import Disguise, shape
from producers.replay.fixtures import incident_of, live_policy, write_fixture
from producers.replay.incidents import Incident
from schemas.prompts import Verdict
from schemas.routes import encode_route_record
from tests.unit.core.core_events import (
    SESSION,
    USER,
    answered,
    delta,
    ended,
    fence,
    opened,
    response,
    said,
    started,
    terminal,
)
from tests.unit.replay.replay_parts import record

TARGET = Target("conv", SESSION)
SECRET = "Ada's hideout is 4711!"
POLICY = Policy.load(Settings().moderation.policy)


def verdict(policy: str = POLICY.version, score: float = 0.99, decision: str = "block") -> Verdict:
    """Of turn 1, on its prompt: by default the live policy's own."""
    about = {"response": response(1), "session": SESSION, "stage": "input", "decision": decision}
    return Verdict.model_validate(
        about | {"categories": ("hate",), "scores": {"hate": score}, "policy": policy, "model": "m", "at": 1}
    )


def entries(*verdicts: Verdict) -> list[Entry]:
    """A turn with a zombie that writes between, and a second, whose number a zombie's decision has taken."""
    folding = Folding(TARGET, load_topics())
    events = [
        (TURNS, started(1, items=(said(SECRET, of=response(1)),))),
        *((TOKENS, event) for event in (opened(user=USER), fence(writer="old"), fence((1, 1, 2, 1), "new"))),
        (TOKENS, delta(0, SECRET[:7], "new")),
        (TOKENS, delta(0, "zombie", "old")),
        (TOKENS, delta(1, SECRET[7:], "new")),
        (TOKENS, terminal(2, "new")),
        *((VERDICTS, each) for each in verdicts),
        (TURNS, ended(1, epoch=(1, 1, 2, 1), output=answered(SECRET), delta_lengths=(7, len(SECRET) - 7))),
        (TURNS, started(2, turn=1)),
        (TURNS, ended(1, epoch=(1, 1, 2, 1), output=answered(SECRET))),
    ]
    found: list[Entry] = []
    for offset, (topic, event) in enumerate(events, start=7):
        if topic == TOKENS:
            found += folding.add(record(encode_route_record((event,)), TOKENS, offset, response(1).encode()))  # type: ignore[arg-type]
        else:
            found += folding.add(record(event, topic, offset))  # type: ignore[arg-type]
    return found


class TestDisguise:
    def test_a_texts_outline_stays(self) -> None:
        assert shape("Is it 7 o'clock, Zoë?\n") == "Xx xx 0 x'xxxxx, Xxx?\n"

    def test_pieces_of_a_text_are_pieces_of_its_outline(self) -> None:
        assert shape(SECRET[:7]) + shape(SECRET[7:]) == shape(SECRET)

    def test_ids_are_others_and_the_same_ones_stay_the_same(self) -> None:
        disguise = Disguise()
        first, second = (disguise.event(event.model_dump(mode="json")) for event in (started(1), ended(1)))
        assert first["response"] == second["response"] != response(1)
        assert first["session"] == second["session"] != str(SESSION)
        assert first["items"][0]["id"].startswith("msg_")

    def test_nothing_of_what_was_said_or_by_whom_is_left(self) -> None:
        kept = incident_of(TARGET, entries(verdict()), None, content=False).model_dump_json()
        for secret in ("Ada's", "hideout", "4711!", str(USER), SESSION.hex, str(SESSION), response(1)):
            assert secret not in kept, secret

    def test_nothing_leads_to_the_traces_of_a_client(self) -> None:
        event = started(1, traceparent=f"00-{'a' * 32}-{'b' * 16}-01")
        assert Disguise(content=True).event(event.model_dump(mode="json"))["traceparent"] is None

    def test_texts_stay_when_they_are_asked_for_but_ids_do_not(self) -> None:
        kept = incident_of(TARGET, entries(), None, content=True).model_dump_json()
        assert "Ada's hideout" in kept
        assert str(USER) not in kept


class TestWhatIsHeld:
    def test_voids_texts_and_ends_are_those_that_every_reader_saw(self) -> None:
        seen = incident_of(TARGET, entries(), None, content=True).seen
        assert seen.state_log == (None, None, "another turn has its number", None)
        [voids] = seen.routes.values()
        assert voids == (None, None, None, None, "not the current writer", None, None)
        assert list(seen.answers.values()) == [(SECRET, "completed")]
        assert [turn[:2] for turn in seen.turns.values()] == [(1, "completed")]

    def test_decisions_are_held_when_the_policy_is_at_hand(self) -> None:
        policy = live_policy(Settings())
        held = incident_of(TARGET, entries(verdict()), policy, content=False)
        assert held.seen.decisions == (("block", ("hate",)),)
        other = incident_of(TARGET, entries(verdict(policy="another")), policy, content=False)
        assert (other.policy, other.seen.decisions) == (None, ())

    def test_a_turn_that_only_its_whole_session_explains_is_refused(self) -> None:
        second = [entry for entry in entries() if entry.response == response(2)]
        with pytest.raises(ParleyError, match="export its --session"):
            incident_of(Target("resp", SESSION, response(2)), second, None, content=False)


class TestTheGeneratedTest:
    def test_it_passes_and_fails_when_what_is_seen_is_another(self, tmp_path: Path) -> None:
        incident = incident_of(TARGET, entries(verdict()), live_policy(Settings()), content=False)
        test = write_fixture(tmp_path, incident, "a conversation")
        assert set(outcomes(test).values()) == {"passed"}

        [fixture] = tmp_path.glob("*.json")
        fixture.write_text(fixture.read_text().replace("not the current writer", "after the end"))
        broken = [name for name, outcome in outcomes(test).items() if outcome == "failed"]
        assert broken == ["test_readers_of_a_route_pass_over_what_they_passed_over"]

    def test_it_is_read_back_as_it_was(self, tmp_path: Path) -> None:
        incident = incident_of(TARGET, entries(), None, content=False)
        write_fixture(tmp_path, incident, "a conversation")
        [fixture] = tmp_path.glob("*.json")
        assert Incident.load(fixture) == incident
        with pytest.raises(ParleyError, match="is there already"):
            write_fixture(tmp_path, incident, "a conversation")


def outcomes(test: Path) -> dict[str, str]:
    """The generated tests by name, run here and now; test_replay.py runs them with pytest."""
    module = runpy.run_path(str(test))
    found = {}
    for name in (name for name in module if name.startswith("test_")):
        try:
            module[name]()
            found[name] = "passed"
        except AssertionError:
            found[name] = "failed"
    return found
