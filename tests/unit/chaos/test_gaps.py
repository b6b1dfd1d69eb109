"""Which pause of a stream a fault answers for."""

from __future__ import annotations

from tests.chaos.gaps import Gaps, Struck, gaps


def test_the_longest_pause_after_a_fault_is_the_faults() -> None:
    heard = [0.0, 1.0, 1.1, 4.0, 4.1, 4.2]
    assert gaps([Struck("kill", 1.05)], [heard]) == {"kill": Gaps(1, (2.9,))}


def test_a_pause_goes_on_behind_the_fault_that_made_it_and_is_no_later_ones() -> None:
    heard = [0.0, 0.1, 0.2, 6.0, 6.1]
    assert gaps([Struck("kill", 0.3), Struck("cut", 3.0)], [heard]) == {
        "kill": Gaps(1, (5.8,)),
        "cut": Gaps(1, ()),
    }


def test_a_pause_that_begins_when_the_next_fault_strikes_is_the_next_ones() -> None:
    found = gaps([Struck("kill", 0.5), Struck("cut", 3.0)], [[0.4, 1.5, 2.0, 2.9, 9.0, 9.2]])
    assert [round(pause, 3) for pause in found["kill"].pauses] == [1.1]
    assert [round(pause, 3) for pause in found["cut"].pauses] == [6.1]


def test_streams_that_did_not_run_then_say_nothing() -> None:
    assert gaps([Struck("kill", 5.0)], [[0.0, 1.0], [6.0, 7.0]]) == {"kill": Gaps(1, ())}
