"""What is finished, running and waiting in a partition, as far as it can be known from outside."""

from __future__ import annotations

import pytest
from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from consumers.lag.counting import Look, count
from parley.log.groups import GroupState, Member, members_of
from parley.ownership import Claim, Progress

HERE = TopicPartition("t", 0)


def claim(*ended: int, position: int | None = None) -> Claim:
    return Claim("worker-0:abc", 3, frozenset(ended), position)


def test_everything_below_the_commit_is_done() -> None:
    counts = count(Look(0, 10, 10, claim(position=10), held=True))
    assert (counts.running, counts.waiting, counts.lost) == (0, 0, 0)


def test_a_record_that_was_taken_runs_and_one_that_was_not_waits() -> None:
    counts = count(Look(0, 20, 10, claim(11, 12, position=15), held=True))
    assert (counts.running, counts.waiting, counts.unfinished) == (3, 5, 8)
    assert counts.running_span == (10, 15)
    assert counts.waiting_span == (15, 20)


def test_without_a_position_what_lies_below_an_end_was_taken() -> None:
    """Records are taken in order. Above the last end nothing is known, so it waits."""
    counts = count(Look(0, 20, 10, claim(13), held=True))
    assert (counts.running, counts.waiting) == (3, 6)


def test_nothing_runs_under_a_holder_that_is_gone() -> None:
    counts = count(Look(0, 20, 10, claim(11, 12, position=15), held=False))
    assert (counts.running, counts.waiting) == (0, 8)
    assert counts.waiting_span == (10, 20)


def test_ends_of_an_earlier_holder_above_the_position_do_not_wait() -> None:
    counts = count(Look(0, 20, 10, claim(11, 15, position=10), held=True))
    assert (counts.running, counts.waiting) == (0, 8)


def test_a_group_that_leaves_no_claim_has_done_what_it_committed() -> None:
    counts = count(Look(0, 20, 15))
    assert (counts.running, counts.waiting) == (0, 5)


def test_what_retention_took_is_not_backlog_but_lost() -> None:
    """Field case F68: records deleted by retention are counted as backlog; commits below log start hide lost data."""
    never = count(Look(900, 1_000, None))
    assert (never.unfinished, never.lost) == (100, 0)
    behind = count(Look(900, 1_000, 500))
    assert (behind.unfinished, behind.lost) == (100, 400)
    ended = count(Look(900, 1_000, 500, claim(*range(600, 700), 950)))
    assert (ended.unfinished, ended.lost) == (99, 300), "what had ended is not lost"


def test_an_empty_log_that_lost_everything_has_no_lag() -> None:
    counts = count(Look(1_000, 1_000, 500))
    assert (counts.unfinished, counts.lost) == (0, 500)


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 120), st.sets(st.integers(0, 120)), st.integers(0, 120))
def test_no_figure_is_ever_negative(begin: int, length: int, committed: int, ended: set[int], position: int) -> None:
    """Field case F69: negative lag because the end was read before the commit, or the log was made anew."""
    for held in (True, False):
        counts = count(Look(begin, begin + length, committed, claim(*ended, position=position), held))
        assert min(counts.running, counts.waiting, counts.lost) >= 0
        assert counts.unfinished <= length


def test_holes_before_the_first_record_are_no_records() -> None:
    """Transaction markers and compacted records have offsets and are no work."""
    counts = count(Look(0, 20, 10, claim(11, position=15), held=True))
    assert counts.settle(running=13, waiting=17).unfinished == 2 + 3
    assert counts.settle(running=None, waiting=None).unfinished == 0
    assert counts.settle(*(span[0] for span in (counts.running_span, counts.waiting_span))) == counts


@given(st.lists(st.booleans(), max_size=60), st.integers(0, 20))
def test_it_tells_what_the_holder_knows(ends: list[bool], untaken: int) -> None:
    """A holder's own progress, seen through its commit, gives its own numbers."""
    progress = Progress(100)
    for number in range(len(ends)):
        progress.take(100 + number)
    for number, over in enumerate(ends):
        if over:
            progress.end(100 + number)
    committed, claimed = progress.claim("me", 1)
    decoded = Claim.decode(claimed.encode(committed), committed)
    counts = count(Look(0, 100 + len(ends) + untaken, committed, decoded, held=True))
    assert (counts.running, counts.waiting) == (progress.open, untaken)


@pytest.mark.parametrize(
    ("state", "assigned", "held"),
    [
        ("Stable", {HERE}, True),
        ("Stable", set(), False),
        ("PreparingRebalance", set(), True),
        ("CompletingRebalance", set(), True),
    ],
)
def test_a_rebalance_makes_no_running_turn_wait(state: str, assigned: set[TopicPartition], held: bool) -> None:
    """The coordinator tells no assignments then; a long answer must not look like an old record that waits."""
    member = Member("worker-0", "host", frozenset(), frozenset(assigned))
    group = GroupState("g", state, (member,), {})
    assert group.holds("worker-0:abc", HERE) is held
    assert not group.holds("worker-1:abc", HERE), "it has left, or was thrown out"


def test_members_of_a_group_that_reads_no_topics_are_named_and_not_read() -> None:
    """Kafka Connect keeps its own words where consumers keep topics and partitions."""
    tail = "-00000000-0000-0000-0000-000000000000"
    told = [(f"connect-1{tail}", "client", "/10.0.0.1", b"\x00\x01http://10.0.0.1", b"\xff")]
    assert members_of("connect", told) == (Member("connect-1", "10.0.0.1", frozenset(), frozenset()),)
