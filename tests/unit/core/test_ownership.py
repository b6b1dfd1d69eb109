"""Holding a partition: what is committed, and what a successor makes of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.ownership import METADATA_LIMIT, Claim, Progress
from parley.settings import ProtocolSettings

WINDOW = ProtocolSettings().window


class TestClaim:
    @given(
        st.text(min_size=1, max_size=80, alphabet=st.characters(codec="ascii", categories=["L", "N", "P"])),
        st.integers(1, 2**31),
        st.integers(0, 2**48),
        st.sets(st.integers(1, WINDOW)),
    )
    def test_it_comes_back_from_the_metadata(self, holder: str, takeover: int, committed: int, above: set[int]) -> None:
        claim = Claim(holder, takeover, frozenset(committed + offset for offset in above))
        assert Claim.decode(claim.encode(committed), committed) == claim

    def test_the_position_travels_for_those_who_watch_and_makes_no_difference(self) -> None:
        claim = Claim("me", 1, frozenset({6}), position=9)
        assert Claim.decode(claim.encode(5), 5).position == 9
        assert Claim.decode(Claim("me", 1).encode(5), 5).position is None
        assert claim == Claim("me", 1, frozenset({6}))

    def test_the_floor_travels_and_is_the_log_s_beginning_where_nobody_has_said_one(self) -> None:
        claim = Claim("me", 1, frozenset(), floor=7)
        assert Claim.decode(claim.encode(5), 5).floor == 7
        assert Claim.decode(Claim("me", 1).encode(5), 5).floor == 0
        assert Claim.decode("", 5).floor == 0

    def test_a_window_of_ended_turns_fits(self) -> None:
        every_other = frozenset(range(1_000_001, 1_000_000 + WINDOW, 2))
        encoded = Claim("worker-smol-production-0123456789:0123456789ab", 10**6, every_other).encode(1_000_000)
        assert len(encoded) < METADATA_LIMIT

    def test_what_does_not_fit_is_refused_here_not_by_the_broker(self) -> None:
        with pytest.raises(ValueError, match="more than 4096"):
            Claim("me", 1, frozenset([40_000])).encode(0)

    @pytest.mark.parametrize("metadata", ["", "some text", "{}", "[]", '{"holder": "me"}', '{"holder":1,"ended":"?"}'])
    def test_metadata_of_others_is_nobodys_claim(self, metadata: str) -> None:
        assert Claim.decode(metadata, 5) == Claim()


class TestProgress:
    def test_the_prefix_stops_at_the_first_open_record(self) -> None:
        progress = Progress(10)
        for offset in (10, 11, 12):
            assert progress.take(offset)
        progress.end(11)
        progress.end(12)
        assert progress.prefix == 10
        assert progress.claim("me", 1) == (10, Claim("me", 1, frozenset({11, 12})))
        progress.end(10)
        assert progress.claim("me", 1) == (13, Claim("me", 1))

    def test_nothing_taken_nothing_moves(self) -> None:
        progress = Progress(10)
        assert (progress.prefix, progress.position, progress.open, progress.span) == (10, 10, 0, 0)

    def test_offsets_may_have_holes(self) -> None:
        progress = Progress(0)
        for offset in (0, 5, 9):
            assert progress.take(offset)
        progress.end(0)
        assert progress.prefix == 5
        progress.end(5)
        progress.end(9)
        assert progress.prefix == 10

    def test_a_record_that_is_delivered_again_is_not_taken_again(self) -> None:
        progress = Progress(0)
        assert progress.take(0)
        assert not progress.take(0)
        progress.end(0)
        assert not progress.take(0)
        assert progress.prefix == 1

    def test_what_a_predecessor_has_ended_is_not_taken(self) -> None:
        progress = Progress(10, frozenset({11, 13}))
        assert [progress.take(offset) for offset in range(10, 15)] == [True, False, True, False, True]
        progress.end(10)
        assert progress.prefix == 12
        assert progress.claim("me", 2) == (12, Claim("me", 2, frozenset({13})))

    def test_a_successor_of_a_successor_still_knows_what_ended_first(self) -> None:
        """Turns that ended under a holder before last are not yet delivered to the last: they must stay known."""
        first = Progress(0)
        for offset in range(5):
            first.take(offset)
        first.end(4)
        second = Progress(*restored(first))
        second.take(0)
        third = Progress(*restored(second))
        assert [third.take(offset) for offset in range(5)] == [True, True, True, True, False]

    def test_passing_what_a_predecessor_has_ended_is_something_to_commit(self) -> None:
        """Or the group would seem to lag for ever behind records that nobody has to do."""
        progress = Progress(0, frozenset({1, 2}))
        progress.take(0)
        progress.end(0)
        before = progress.version
        progress.take(1)
        progress.take(2)
        assert progress.prefix == 3
        assert progress.version > before

    def test_taking_a_record_is_something_to_commit(self) -> None:
        """Or a long answer could not be told from a record that nobody has looked at yet."""
        progress = Progress(0)
        before = progress.version
        progress.take(0)
        assert progress.version > before
        assert progress.claim("me", 1)[1].position == 1

    def test_an_end_is_counted_once(self) -> None:
        progress = Progress(0)
        progress.take(0)
        progress.end(0)
        version = progress.version
        progress.end(0)
        progress.end(77)
        assert progress.version == version

    def test_the_span_tells_how_much_a_claim_must_hold(self) -> None:
        progress = Progress(0)
        for offset in range(100):
            progress.take(offset)
        for offset in range(1, 100):
            progress.end(offset)
        assert (progress.span, progress.open) == (100, 1)


def restored(progress: Progress) -> tuple[int, frozenset[int]]:
    """What the next holder reads."""
    committed, claim = progress.claim("me", 1)
    return committed, Claim.decode(claim.encode(committed), committed).ended


@given(st.data())
def test_through_any_number_of_holders_each_record_ends_and_none_is_passed_open(data: st.DataObject) -> None:
    """Delivery begins again at the committed offset with each holder; turns end in any order, or not under this one."""
    log = sorted(data.draw(st.sets(st.integers(0, 60), min_size=1, max_size=20)))
    done: set[int] = set()
    committed, known = log[0], frozenset[int]()
    for _ in range(data.draw(st.integers(1, 4))):
        progress = Progress(committed, known)
        for offset in [offset for offset in log if offset >= committed]:
            taken = progress.take(offset)
            assert taken != (offset in done), "done twice, or never"
            if taken and data.draw(st.booleans()):
                progress.end(offset)
                done.add(offset)
            assert not progress.take(offset)
            prefix = progress.prefix
            assert all(earlier in done for earlier in log if earlier < prefix)
        committed, known = restored(progress)
        assert {offset for offset in log if offset < committed} | set(known) == done
