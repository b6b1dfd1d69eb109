"""The fold of a session's state log: which events are void, which end stands, what a turn remembers."""

from __future__ import annotations

import pytest
from core_events import SESSION, SOMEBODY_ELSE, USER, answered, ended, failed, response, said, started
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.session import Session, Void
from schemas.base import NO_EPOCH, Epoch
from schemas.turns import SessionChanged, SessionDeleted, TurnEnded, TurnStarted
from schemas.wire import TurnsEvent


def folded(*events: TurnsEvent) -> Session:
    session = Session(SESSION)
    for event in events:
        session.apply(event)
    return session


class TestDispatch:
    def test_the_standing_decision_is_the_one_with_the_greatest_dispatch(self) -> None:
        session = folded(started(1, dispatch=(1, 1)), started(1, dispatch=(2, 1), pool=None, why="failed"))
        turn = session.turns[response(1)]
        assert turn.started is not None
        assert turn.started.pool is None
        assert turn.dispatched, "the turn may have run under the decision before"

    @pytest.mark.parametrize("late", [(1, 2), (1, 9)])
    def test_a_lower_decision_that_lands_late_is_void(self, late: tuple[int, int]) -> None:
        session = folded(started(1, dispatch=(2, 1)))
        assert session.apply(started(1, dispatch=late, pool="other")) is Void.LOWER_DISPATCH
        assert session.turns[response(1)].started == started(1, dispatch=(2, 1))

    def test_the_same_decision_again_changes_nothing(self) -> None:
        once, twice = folded(started(1)), folded(started(1), started(1))
        assert once == twice

    def test_a_first_decision_with_anothers_number_is_void(self) -> None:
        """A stopped holder's lands late: its successor has given the number to another prompt (found by the model)."""
        session = folded(started(1, dispatch=(2, 1)))
        assert session.apply(started(2, turn=1, dispatch=(1, 1))) is Void.NUMBER_TAKEN
        assert list(session.turns) == [response(1)]
        assert session.apply(started(2, turn=2, dispatch=(2, 2))) is None

    def test_an_end_under_a_lower_dispatch_is_void_whatever_its_epoch(self) -> None:
        session = folded(started(1, dispatch=(2, 1)))
        assert session.apply(ended(1, dispatch=(1, 1), epoch=(9, 9, 9, 9))) is Void.LOWER_DISPATCH
        assert session.turns[response(1)].status is None

    def test_an_end_is_judged_by_its_own_dispatch_not_by_that_in_its_epoch(self) -> None:
        """A later taker repeats the end of an earlier run."""
        session = folded(started(1, dispatch=(2, 1)))
        assert session.apply(ended(1, dispatch=(2, 1), epoch=(1, 1, 1, 1))) is None
        assert session.turns[response(1)].status == "completed"

    def test_an_ended_turn_stays_ended(self) -> None:
        session = folded(started(1), ended(1))
        assert session.apply(started(1, dispatch=(9, 9))) is Void.ENDED
        assert session.open_turns() == []

    def test_of_several_valid_ends_the_greatest_epoch_is_kept_in_either_order(self) -> None:
        low = ended(1, epoch=(1, 1, 1, 1), status="failed", output=())
        high = ended(1, epoch=(1, 1, 2, 1))
        for order in ((low, high), (high, low)):
            turn = folded(started(1), *order).turns[response(1)]
            assert (turn.status, turn.answer) == ("completed", "answer 1")

    def test_an_end_without_its_beginning_counts(self) -> None:
        """The log's retention may have taken the beginning."""
        turn = folded(ended(1)).turns[response(1)]
        assert (turn.number, turn.status) == (1, "completed")

    def test_an_expired_turn_has_not_run(self) -> None:
        session = folded(
            started(1, pool=None, why="expired", dispatch=(1, 1)),
            ended(1, status="expired", epoch=NO_EPOCH, output=()),
        )
        turn = session.turns[response(1)]
        assert (turn.status, turn.dispatched, turn.in_context) == ("expired", False, False)

    def test_a_turn_that_was_to_be_ended_on_its_route_is_as_if_dispatched(self) -> None:
        """Who decided that may have written the end before it died: the turn can't expire beside its route."""
        cancelled = started(1, pool=None, why="cancelled", dispatch=(1, 1))
        session = folded(cancelled, started(1, pool=None, why="expired", dispatch=(2, 1)))
        assert session.turns[response(1)].dispatched


class TestTheSessionsUser:
    def test_what_another_user_says_is_void(self) -> None:
        session = folded(SessionChanged(session=SESSION, user=USER, at=1, opened=True))
        assert session.apply(SessionDeleted(session=SESSION, user=SOMEBODY_ELSE, at=2)) is Void.OTHER_USER
        assert session.apply(started(1, user=SOMEBODY_ELSE)) is Void.OTHER_USER
        assert not session.deleted
        assert session.turns == {}

    def test_deletion_is_kept(self) -> None:
        session = folded(started(1), SessionDeleted(session=SESSION, user=USER, at=2))
        assert session.deleted

    def test_a_fold_that_begins_in_the_middle_believes_turns_and_openings_whose_the_session_is(self) -> None:
        """What anybody may write, an edge has checked; but the fold must not depend on that."""
        session = folded(SessionDeleted(session=SESSION, user=SOMEBODY_ELSE, at=2))
        assert session.user is None
        session.apply(started(7))
        assert session.user == USER
        assert not session.deleted
        session.apply(SessionDeleted(session=SESSION, user=USER, at=3))
        assert session.deleted


class TestPath:
    def test_turns_are_remembered_oldest_first(self) -> None:
        session = folded(started(1), ended(1), started(2), ended(2), started(3), ended(3))
        assert numbers(session, 3) == [1, 2, 3]

    def test_the_first_prompt_remembers_nothing(self) -> None:
        assert Session(SESSION).path(None) == []

    def test_a_branch_does_not_see_its_sibling(self) -> None:
        branch = started(3, parent=response(1))
        session = folded(started(1), ended(1), started(2), ended(2), branch, ended(3, parent=response(1)))
        assert numbers(session, 3) == [1, 3]
        assert numbers(session, 2) == [1, 2]

    def test_an_unknown_parent_is_no_path(self) -> None:
        assert folded(started(1), ended(1)).path(response(7)) is None

    def test_a_circle_is_no_path(self) -> None:
        session = folded(started(1, parent=response(1)))
        assert session.path(response(1)) is None

    @pytest.mark.parametrize("status", ["completed", "incomplete", "cancelled"])
    def test_what_was_shown_is_remembered(self, status: str) -> None:
        session = folded(started(1), ended(1, status=status))
        assert numbers(session, 1) == [1]

    def test_a_failed_turn_is_remembered_only_with_its_text(self) -> None:
        assert numbers(folded(started(1), ended(1, status="failed")), 1) == [1]
        assert numbers(folded(started(1), ended(1, status="failed", output=())), 1) == []

    @pytest.mark.parametrize("status", ["refused", "failed", "expired"])
    def test_a_skipped_parent_stands_for_its_own_parent(self, status: str) -> None:
        refused = ended(2, status=status, output=answered("", refusal="No."))
        session = folded(started(1), ended(1), started(2), refused, started(3), ended(3))
        assert numbers(session, 3) == [1, 3]

    def test_a_refusal_is_not_what_was_said(self) -> None:
        session = folded(started(1), ended(1, status="incomplete", output=answered("So far", refusal="No more.")))
        assert session.turns[response(1)].answer == "So far"


class TestALongPastThatIsNotAllHeld:
    def test_a_path_ends_where_no_context_reaches(self) -> None:
        session = folded(*(event for n in range(5, 9) for event in (started(n), ended(n))))
        session.beyond = 4
        assert numbers(session, 8) == [5, 6, 7, 8]
        assert session.reaches(response(8), 4)

    def test_it_is_told_when_more_of_it_is_needed(self) -> None:
        session = folded(*(event for n in range(5, 9) for event in (started(n), ended(n))))
        session.beyond = 4
        assert not session.reaches(response(8), 5)
        assert not session.reaches(response(2), 1), "a branch from a turn that is not held"
        session.beyond = 0
        assert session.reaches(response(2), 1), "there is no more to have: the turn is unknown"
        assert session.path(response(2)) is None

    def test_a_turn_that_is_not_remembered_does_not_count(self) -> None:
        session = folded(started(5), ended(5), started(6), ended(6, status="failed", output=()))
        session.beyond = 4
        assert session.reaches(response(6), 1)
        assert not session.reaches(response(6), 2)


class TestIdempotencyKeys:
    def test_a_key_stands_for_its_turn_while_it_runs_and_after(self) -> None:
        session = folded(started(1, key_hash="k", body_hash="b"))
        assert session.keyed("k") is session.turns[response(1)]
        session.apply(ended(1))
        assert session.keyed("k") is session.turns[response(1)]
        assert session.keyed("other") is None

    def test_a_key_whose_turn_failed_retryably_is_free_again(self) -> None:
        session = folded(started(1, key_hash="k"), ended(1, status="failed", failure=failed(retryable=True)))
        assert session.keyed("k") is None

    def test_a_key_whose_turn_failed_for_good_is_not(self) -> None:
        session = folded(started(1, key_hash="k"), ended(1, status="failed", failure=failed(retryable=False)))
        assert session.keyed("k") is session.turns[response(1)]

    def test_a_key_lives_for_a_time(self) -> None:
        session = folded(started(1, key_hash="k", accepted_at=1_000), ended(1))
        assert session.keyed("k", since=1_000) is session.turns[response(1)]
        assert session.keyed("k", since=1_001) is None


class TestNumbers:
    def test_numbers_count_from_one(self) -> None:
        session = Session(SESSION)
        assert (session.last_number, session.newest) == (0, None)
        session.apply(started(1))
        session.apply(started(2))
        assert session.last_number == 2
        assert session.newest is session.turns[response(2)]

    def test_open_turns_come_in_their_order(self) -> None:
        session = folded(started(2), started(1), started(3), ended(2))
        assert [turn.number for turn in session.open_turns()] == [1, 3]


dispatches = st.tuples(st.integers(1, 3), st.integers(1, 2))
run_epochs = st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 2), st.just(1))


@st.composite
def logs(draw: st.DrawFn) -> list[TurnStarted | TurnEnded]:
    """Anything that zombies and successors may leave in the log about one turn."""
    events: list[TurnStarted | TurnEnded] = []
    for _ in range(draw(st.integers(1, 8))):
        dispatch = draw(dispatches)
        if draw(st.booleans()):
            events.append(started(1, dispatch=dispatch, pool=draw(st.sampled_from(["a", "b", None]))))
        else:
            epoch: Epoch = draw(run_epochs)
            events.append(ended(1, dispatch=dispatch, epoch=epoch, output=answered(f"by {epoch}")))
    return events


@settings(max_examples=100)
@given(logs())
def test_an_end_that_stood_once_is_only_ever_replaced_by_one_of_a_greater_epoch(
    log: list[TurnStarted | TurnEnded],
) -> None:
    session, stood = Session(SESSION), None
    for event in log:
        session.apply(event)
        turn = session.turns[response(1)]
        if stood is not None:
            assert turn.status is not None
            assert turn.epoch is not None
            assert turn.epoch >= stood
        stood = turn.epoch


@settings(max_examples=100)
@given(logs())
def test_void_events_might_as_well_not_be_there(log: list[TurnStarted | TurnEnded]) -> None:
    whole = Session(SESSION)
    kept = [event for event in log if whole.apply(event) is None]
    assert folded(*kept) == whole


@settings(max_examples=100)
@given(logs())
def test_the_standing_decision_never_goes_back(log: list[TurnStarted | TurnEnded]) -> None:
    session, highest = Session(SESSION), (0, 0)
    for event in log:
        session.apply(event)
        standing = session.turns[response(1)].started
        if standing is not None:
            assert standing.dispatch >= highest
            highest = standing.dispatch


def numbers(session: Session, last: int) -> list[int]:
    path = session.path(response(last))
    assert path is not None
    return [turn.number for turn in path]


def test_what_the_user_said_comes_from_the_beginning() -> None:
    items = (said("one"), said("two", position=1))
    assert folded(started(1, items=items), ended(1)).turns[response(1)].items == items
