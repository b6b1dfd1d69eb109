"""The same world with choices that Hypothesis draws: what breaks a promise is shrunk to the little that is needed."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .choices import Listed
from .explore import timeline
from .invariants import broken
from .world import World


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(choices=st.binary(min_size=800, max_size=3_000))
def test_no_choices_break_a_promise(choices: bytes) -> None:
    world = World(Listed(choices))
    world.run()
    promise = broken(world)
    assert promise is None, "\n".join([promise or "", *timeline(world)])
    assert not world.by_age, "\n".join(timeline(world))
