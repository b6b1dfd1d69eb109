"""Which records of a turn stand (protocol.md, section 2)."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley import ids
from parley.endings import lost
from parley.session import Session
from parley.stores.stored import Standing, standing
from schemas.base import Dispatch, Epoch, Item, Route, Text, epoch_of
from schemas.turns import TurnEnded, TurnStarted

USER = UUID(int=1)
SESSION = ids.new_session(now_ms=1)
RESPONSE = ids.new_response_id(ids.Keys((b"k",)), USER, SESSION, 0, 0, 1)


def started(dispatch: Dispatch) -> TurnStarted:
    return TurnStarted(
        response=RESPONSE,
        session=SESSION,
        user=USER,
        tier="free",
        turn=1,
        parent=None,
        items=(Item(id=ids.message_id(RESPONSE, 0), role="user", parts=(Text(text="hello"),)),),
        pool=f"pool {dispatch}",
        model="m",
        dispatch=dispatch,
        route=Route(topic="chat.tokens", partition=0, start=0),
        accepted_at=1,
        deadline=2,
        moderation_deadline=2,
    )


def ended(dispatch: Dispatch, epoch: Epoch) -> TurnEnded:
    return TurnEnded(
        response=RESPONSE,
        session=SESSION,
        user=USER,
        tier="free",
        turn=1,
        parent=None,
        dispatch=dispatch,
        epoch=epoch,
        status="completed",
        output=(Item(id=ids.message_id(RESPONSE, 1), role="assistant", parts=(Text(text=f"{epoch}"),)),),
        model="m",
        code="test",
        accepted_at=1,
        ended_at=2,
    )


def test_the_newest_decision_stands_while_the_turn_runs() -> None:
    fold = standing([started((1, 1)), started((2, 1)), started((1, 2))])
    assert fold.started == started((2, 1))
    assert fold.ended is None


def test_an_end_under_an_overruled_decision_is_void() -> None:
    fold = standing([started((1, 1)), started((2, 1)), ended((1, 1), (1, 1, 1, 1))])
    assert fold.ended is None


@pytest.mark.parametrize("takeover", [1, 9])
def test_the_end_of_a_turn_whose_log_was_lost_stands_wherever_the_new_log_has_it(takeover: int) -> None:
    """Offsets and takeovers begin anew: the store may have the turn's beginning behind its end, and above it."""
    start = started((7, 3))
    end = lost(standing([start]).turn((), ()), takeover, at=2)
    for order in ([start, end], [end, start]):
        turn = standing(order).turn((), ())
        assert (turn.status, turn.pool) == ("failed", start.pool)


def test_an_ended_turn_stays_ended() -> None:
    end = ended((1, 1), (1, 1, 1, 1))
    fold = standing([started((1, 1)), end, started((2, 1))])
    assert fold.started == started((1, 1))
    assert fold.ended == end


def test_an_end_repeated_under_a_later_decision_counts_though_its_epoch_is_older() -> None:
    end = ended((2, 1), (1, 1, 1, 1))
    assert standing([started((1, 1)), started((2, 1)), end]).ended == end


def test_of_two_valid_ends_the_one_of_the_greater_epoch_is_kept_in_either_order() -> None:
    older, newer = ended((1, 1), (1, 1, 1, 1)), ended((1, 1), (1, 1, 2, 1))
    assert standing([older, newer]).ended == newer
    assert standing([newer, older]).ended == newer


def test_what_the_user_sent_is_known_even_when_its_record_comes_after_the_end() -> None:
    fold = Standing()
    assert fold.apply(ended((1, 1), (1, 1, 1, 1)))
    assert not fold.apply(started((1, 1)))
    assert fold.started is not None
    assert fold.started.items[0].text == "hello"


DISPATCHES = st.tuples(st.integers(1, 3), st.integers(1, 2))
EVENTS = st.one_of(
    DISPATCHES.map(started),
    st.builds(
        lambda dispatch, takeover, run: ended(dispatch, epoch_of(dispatch, takeover, run)),
        DISPATCHES,
        st.integers(1, 3),
        st.integers(1, 2),
    ),
)


@given(st.lists(EVENTS, min_size=1, max_size=8))
def test_the_store_and_the_orchestrator_believe_the_same(events: list[TurnStarted | TurnEnded]) -> None:
    session = Session(SESSION)
    first = started((1, 1))  # the log of a turn begins with its first decision
    for event in [first, *events]:
        session.apply(event)
    fold = standing([first, *events])
    turn = session.turns[RESPONSE]
    assert fold.started == turn.started
    assert (fold.ended and fold.ended.epoch) == turn.epoch
    assert (fold.ended.output if fold.ended else ()) == turn.output
