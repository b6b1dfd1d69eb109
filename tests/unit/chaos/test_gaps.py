"""Which pause of a stream a fault answers for."""

from __future__ import annotations

from tests.chaos.gaps import Gaps, Struck, gaps


def test_the_longest_pause_after_a_fault_is_the_faults() -> None:
    heard = [0.0, 1.0, 1.1, 4.0, 4.1, 4.2]
    assert gaps([Struck("kill", 1.05)], [heard]) == {"kill": Gaps(1, (2.9,))}


def test_a_pause_that_began_before_the_fault_counts_when_it_goes_on_behind_it() -> None:
    assert gaps([Struck("kill", 2.0)], [[0.0, 1.0, 6.0, 6.5]]) == {"kill": Gaps(1, (5.0,))}


def test_a_pause_after_the_next_fault_is_the_next_ones() -> None:
    found = gaps([Struck("kill", 0.5), Struck("cut", 3.0)], [[0.0, 1.0, 2.0, 3.1, 9.1, 9.2]])
    assert found["kill"].pauses == (1.1,)
    assert [round(pause, 3) for pause in found["cut"].pauses] == [6.0]


def test_streams_that_did_not_run_then_say_nothing() -> None:
    assert gaps([Struck("kill", 5.0)], [[0.0, 1.0], [6.0, 7.0]]) == {"kill": Gaps(1, ())}
