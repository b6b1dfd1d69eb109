"""Burrow's states, with seconds: each rule, and what must not be mistaken for it."""

from __future__ import annotations

from collections.abc import Sequence

from consumers.lag.counting import Look, count
from consumers.lag.groups import Patience, expected
from consumers.lag.states import Ages, Commit, State, judge, rewound, worst
from parley.settings import ProtocolSettings
from parley.topics import load_topics

PATIENCE = Patience(start_s=10, finish_s=60)
LATE = Ages(waiting_s=30, commit_s=1)
BEHIND = Look(0, 100, 50)


def commits(*offsets: int, every_s: int = 1, ends: Sequence[int] = ()) -> list[Commit]:
    """Commits one after the other."""
    at = range(1_000_000, 1_000_000 + 1000 * every_s * len(offsets), 1000 * every_s)
    return [
        Commit(*one, *end) for *one, end in zip(at, offsets, [[e] for e in ends] or [[]] * len(offsets), strict=True)
    ]


def state(
    ages: Ages,
    made: list[Commit] | None,
    look: Look = BEHIND,
    members: int = 1,
    patience: Patience = PATIENCE,
) -> State:
    return judge(look, count(look), ages, patience, made, members).state


def test_no_commit_is_a_state_of_its_own() -> None:
    """Field case F67: no committed offset is shown as whole-log lag, as -1, or as 0."""
    verdict = judge(Look(0, 100, None), count(Look(0, 100, None)), Ages(waiting_s=0.1), PATIENCE, [], 1)
    assert (verdict.state, verdict.reason) == (State.NO_COMMIT, "never committed; 100 records can be read")
    assert state(Ages(), [], Look(0, 0, None)) is State.OK, "nothing to commit"
    assert state(Ages(), [], Look(7, 7, None)) is State.OK, "nothing left to commit"


def test_offsets_without_a_record_are_nothing_to_commit() -> None:
    """Transaction markers, or what compaction has left of a partition, under a group that was never there."""
    look = Look(0, 4, None)
    assert judge(look, count(look).settle(None, None), Ages(), PATIENCE, [], 1).state is State.OK
    some = judge(look, count(look).settle(None, 1), Ages(waiting_s=0.1), PATIENCE, [], 1)
    assert (some.state, some.reason) == (State.NO_COMMIT, "never committed; 3 records can be read")


def test_an_idle_topic_is_ok_however_old_its_last_commit() -> None:
    """Field case F71 (a): one message a day, caught up, no commit for an hour."""
    assert state(Ages(), [], Look(0, 50, 50)) is State.OK


def test_a_record_may_wait_and_run_for_as_long_as_the_group_may_take() -> None:
    assert state(Ages(waiting_s=9), []) is State.OK
    assert state(Ages(running_s=59), []) is State.OK, "a long answer is not lag"
    assert state(Ages(running_s=61), []) is State.STOP
    assert state(Ages(waiting_s=11), []) is State.STOP


def test_no_commits_while_records_are_late_is_a_stop() -> None:
    """Field case F71 (b): a consumer hangs while producers go on."""
    assert state(Ages(waiting_s=30, commit_s=25), commits(40, 50)) is State.STOP
    down = judge(Look(0, 100, 50), count(Look(0, 100, 50)), Ages(waiting_s=30), PATIENCE, [], members=0)
    assert (down.state, down.reason) == (State.STOP, "a record has waited for 30 s; the group has no members")


def test_commits_that_stay_at_one_offset_are_a_stall() -> None:
    assert state(LATE, commits(50, 50, 50)) is State.STALL
    assert state(LATE, commits(*range(20, 51), *[50] * 12)) is State.STALL, "it moved before, and stands now"
    assert state(Ages(running_s=300, commit_s=1), commits(50, 50, 50)) is State.STALL, "one record keeps the prefix"


def test_a_lag_that_grows_warns_and_one_that_shrinks_is_ok() -> None:
    assert state(LATE, commits(40, 45, 50, ends=[50, 60, 100])) is State.WARN
    assert state(LATE, commits(40, 60, 80, ends=[100, 100, 100])) is State.OK
    assert state(LATE, commits(50)) is State.WARN, "one commit shows no movement"


def test_commits_that_go_back_are_a_rewind_until_they_are_back() -> None:
    assert state(LATE, commits(50, 60, 20, 30)) is State.REWIND
    assert not rewound(commits(50, 60, 20, 60))
    assert not rewound(commits(50, 50, 60))
    assert not rewound([])


def test_a_commit_past_the_end_is_a_rewind_of_the_log() -> None:
    """Field case F72: the topic was deleted and made anew under the group."""
    look = Look(0, 10, 500)
    verdict = judge(look, count(look), Ages(), PATIENCE, [], 1)
    assert verdict.state is State.REWIND
    assert "the log ends at 10" in verdict.reason


def test_where_commits_cannot_be_read_a_late_record_still_warns() -> None:
    assert state(LATE, None) is State.WARN
    assert state(Ages(waiting_s=1), None) is State.OK


def test_one_bad_partition_is_the_groups_state() -> None:
    """Field case F71 (c): 1 of 8 partitions stuck, hidden in the sum."""
    assert worst([State.OK] * 7 + [State.STALL]) is State.STALL
    assert worst([]) is State.OK
    assert max(State) is State.STOP


def test_each_group_may_take_what_the_protocol_gives_it() -> None:
    protocol = ProtocolSettings()
    groups = {group.name: group for group in expected(load_topics(), protocol)}
    assert groups["worker-smol"].patience.finish_s > protocol.start_deadline_s + protocol.answer_limit_s
    assert groups["orchestrator"].patience.finish_s > 9 * protocol.answer_limit_s
    assert groups["worker-smol"].topics == ("chat.inference.smol.paid", "chat.inference.smol.free")
