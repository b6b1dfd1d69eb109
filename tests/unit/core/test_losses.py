"""When records that can't be used are a bad deployment."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from parley.log.losses import LIMIT, OF, Losses


def after(*lost: bool) -> Losses:
    losses = Losses()
    for one in lost:
        losses.lost() if one else losses.kept()
    return losses


def test_twenty_in_a_row_are_the_last_that_are_given_up() -> None:
    assert not after(*[True] * 19).too_many
    assert after(*[True] * 20).too_many


def test_one_in_five_is_borne_for_ever() -> None:
    losses = Losses()
    for number in range(1_000):
        if number % 5 == 0:
            assert not losses.too_many
            losses.lost()
        else:
            losses.kept()


@given(st.lists(st.booleans(), max_size=300))
def test_never_more_than_a_fifth_of_a_hundred_is_given_up(lost: list[bool]) -> None:
    losses, given_up = Losses(), []
    for one in lost:
        if one and losses.too_many:
            break
        losses.lost() if one else losses.kept()
        given_up.append(one)
        assert sum(given_up[-OF:]) <= LIMIT
