"""What the store knows of a turn that has no end."""

from __future__ import annotations

import pytest

from parley.clock import now_ms
from parley.settings import ProtocolSettings
from parley.stores.stored import standing
from producers.edge.kept import may_run
from tests.unit.edge.test_live import ended, response, started

PROTOCOL = ProtocolSettings(max_turn_age_s=100, start_deadline_s=10, answer_limit_s=20, margin_s=5)


@pytest.mark.parametrize(("age_s", "running"), [(0, True), (234, True), (236, False)])
def test_a_turn_that_must_have_ended_long_ago_is_not_in_progress_for_ever(age_s: int, running: bool) -> None:
    """Its log was lost with its end, and nobody has spoken in its session since."""
    start = started(response(1), accepted_at=now_ms() - age_s * 1000)
    assert may_run(standing([start]).turn((), ()), PROTOCOL) == running


def test_a_turn_that_has_ended_does_not_run() -> None:
    start = started(response(1), accepted_at=now_ms())
    turn = standing([start, ended(start)]).turn((), ())
    assert not may_run(turn, PROTOCOL)
