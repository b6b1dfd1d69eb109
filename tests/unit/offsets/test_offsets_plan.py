"""Where offsets that are moved by hand come to lie, what that does to the records, and what is committed."""

from __future__ import annotations

import pytest
from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from parley.errors import ParleyError
from parley.offsets.plan import At, Commit, Move, Place, Plan, Target, plan
from parley.ownership import Claim, Progress

WHERE = TopicPartition("chat.turns", 3)


def place(committed: int | None = 40, begin: int = 10, end: int = 100, found: int | None = None) -> Place:
    return Place(WHERE, begin, end, None if committed is None else (committed, ""), found)


def claimed_place(committed: int = 40, ended: frozenset[int] = frozenset(), takeover: int = 7, floor: int = 5) -> Place:
    claim = Claim("orchestrator-0:a1", takeover, ended, 60, floor)
    return Place(WHERE, 10, 100, (committed, claim.encode(committed)))


def moved(target: Target, here: Place) -> Move:
    [move] = plan("g", target, [here], claimed=False).moves
    return move


def committed(planned: Plan) -> Commit:
    [commit] = planned.commits("ada@desk:00").values()
    return commit


class TestTargets:
    def test_earliest_is_the_oldest_record_that_is_left(self) -> None:
        assert moved("earliest", place()).target == 10

    def test_latest_is_the_end(self) -> None:
        assert moved("latest", place()).target == 100

    def test_a_time_is_what_the_brokers_index_says(self) -> None:
        assert moved(At(1_000), place(found=55)).target == 55

    def test_a_time_after_the_last_record_is_the_end(self) -> None:
        assert moved(At(1_000), place(found=None)).target == 100

    @pytest.mark.parametrize("offset", [10, 55, 100])
    def test_an_offset_of_the_log_is_taken_its_end_too(self, offset: int) -> None:
        assert moved(offset, place()).target == offset

    @pytest.mark.parametrize("offset", [0, 9, 101])
    def test_an_offset_that_the_log_lacks_is_refused_with_those_that_it_has(self, offset: int) -> None:
        with pytest.raises(ParleyError, match=rf"no offset {offset}: chat.turns-3 has 10 to 100"):
            moved(offset, place())

    def test_one_partition_that_lacks_it_is_enough(self) -> None:
        """Half a move would be worse than none."""
        other = Place(TopicPartition("chat.turns", 4), 0, 20, None)
        with pytest.raises(ParleyError, match=r"chat.turns-4 has 0 to 20; --partition"):
            plan("g", 50, [place(), other], claimed=False)


class TestRecords:
    def test_back_they_are_read_again(self) -> None:
        assert (moved(25, place()).again, moved(25, place()).skipped) == (15, 0)

    def test_forward_they_are_skipped(self) -> None:
        assert (moved("latest", place()).again, moved("latest", place()).skipped) == (0, 60)

    def test_what_retention_took_is_neither(self) -> None:
        assert (moved("earliest", place(committed=2)).again, moved("earliest", place(committed=2)).skipped) == (0, 0)

    def test_a_commit_past_the_end_has_done_all_that_there_is(self) -> None:
        """The topic was made anew."""
        move = moved("earliest", place(committed=5_000))
        assert (move.again, move.skipped, move.needed) == (90, 0, True)

    def test_without_a_commit_none_is_done(self) -> None:
        assert (moved("latest", place(committed=None)).again, moved("latest", place(committed=None)).skipped) == (0, 90)

    def test_those_that_have_ended_above_the_offset_are_done_as_well(self) -> None:
        here = claimed_place(ended=frozenset({42, 50, 51}))
        assert (moved(45, here).again, moved(45, here).skipped) == (2, 4)

    def test_where_it_is_already_nothing_is_to_be_done(self) -> None:
        assert not moved(40, place()).needed
        assert moved(40, claimed_place(ended=frozenset({50}))).needed, "50 is asked for again"

    @given(
        done=st.integers(10, 100),
        ended=st.frozensets(st.integers(10, 99)),
        target=st.integers(10, 100),
    )
    def test_they_are_what_the_next_holder_takes_more_or_less(
        self, done: int, ended: frozenset[int], target: int
    ) -> None:
        """Counted by the code that takes records: with the old claim, and with the one that is committed."""
        here = claimed_place(done, frozenset(offset for offset in ended if offset >= done))
        planned = plan("g", target, [here], claimed=True)
        offset, metadata = planned.commits("ada@desk:00").get(WHERE, (done, here.claim.encode(done)))

        def takes(at: int, claim: Claim) -> set[int]:
            progress = Progress(at, claim.ended)
            return {each for each in range(10, 100) if progress.take(each)}

        before, after = takes(done, here.claim), takes(offset, Claim.decode(metadata, offset))
        assert (len(after - before), len(before - after)) == (planned.again, planned.skipped)


class TestCommits:
    def test_a_view_has_an_offset_and_nothing_beside_it(self) -> None:
        assert committed(plan("history-sessions", "earliest", [place()], claimed=False)) == (10, "")

    def test_a_claim_goes_on_with_the_next_number(self) -> None:
        """Numbers stand in epochs: one that began anew would be void against all that was written before."""
        offset, metadata = committed(plan("orchestrator", 20, [claimed_place(takeover=7)], claimed=True))
        assert (offset, Claim.decode(metadata, offset).takeover) == (20, 8)

    def test_it_is_nobodys_of_those_before(self) -> None:
        """A process that was cut off, and comes back, must find that it has lost the partition."""
        offset, metadata = committed(plan("orchestrator", 20, [claimed_place()], claimed=True))
        assert Claim.decode(metadata, offset).holder == "ada@desk:00"

    def test_what_has_ended_and_the_floor_are_forgotten(self) -> None:
        """They are read again, and the whole log of turns is folded: protocol.md, section 2."""
        offset, metadata = committed(plan("orchestrator", 20, [claimed_place(ended=frozenset({45}))], claimed=True))
        claim = Claim.decode(metadata, offset)
        assert (claim.ended, claim.floor, claim.position) == (frozenset(), 0, 20)

    def test_a_partition_of_such_a_group_without_a_commit_gets_the_first_number(self) -> None:
        offset, metadata = committed(plan("orchestrator", "latest", [place(committed=None)], claimed=True))
        assert (offset, Claim.decode(metadata, offset).takeover) == (100, 1)

    def test_partitions_that_stay_are_left_alone(self) -> None:
        other = Place(TopicPartition("chat.turns", 4), 0, 100, (10, ""))
        assert list(plan("g", 10, [place(), other], claimed=False).commits("ada@desk:00")) == [WHERE]
