"""From where on a successor must fold the state log, so that it finds every turn without an end."""

from __future__ import annotations

from core_events import SESSION, ended, response, started
from hypothesis import given
from hypothesis import strategies as st

from consumers.orchestrator.open_turns import OpenTurns
from parley.session import Session
from schemas.turns import TurnEnded, TurnStarted


def folded(*events: TurnStarted | TurnEnded) -> OpenTurns:
    session, turns = Session(SESSION), OpenTurns()
    for offset, event in enumerate(events):
        turns.fold(event, session.apply(event), offset)
    return turns


def test_with_no_turn_open_nothing_that_was_folded_is_needed() -> None:
    assert folded().floor == 0
    assert folded(started(1), ended(1)).floor == 2


def test_an_open_turn_holds_the_floor_at_its_first_decision() -> None:
    """Whether it may have run is known from all of its decisions; which one stands, from the last."""
    turns = folded(started(1), ended(1), started(2), started(2, dispatch=(2, 1), pool=None, why="failed"), started(3))
    assert turns.floor == 2
    assert turns.place(response(2)) == 3
    assert turns.place(response(1)) is None


def test_void_events_move_nothing() -> None:
    late = started(1, dispatch=(0, 9))
    assert folded(started(1), late).place(response(1)) == 0
    assert folded(started(1), ended(1), started(1, dispatch=(9, 9))).floor == 3
    assert folded(started(1), ended(1, dispatch=(0, 9))).floor == 0


def test_an_end_that_only_the_store_had_closes_the_turn() -> None:
    turns = folded(started(7))
    turns.close(response(7))
    assert turns.floor == 1


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=30))
def test_the_floor_never_goes_back_and_never_passes_an_open_turn(steps: list[tuple[int, bool]]) -> None:
    session, turns, floors = Session(SESSION), OpenTurns(), [0]
    first: dict[int, int] = {}
    for offset, (number, ends) in enumerate(steps):
        event = ended(number) if ends else started(number)
        turns.fold(event, session.apply(event), offset)
        if not ends:
            first.setdefault(number, offset)
        floors.append(turns.floor)
        unfinished = [turn.number for turn in session.open_turns()]
        assert all(turns.floor <= first[number] for number in unfinished)
    assert floors == sorted(floors)
