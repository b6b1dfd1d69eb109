"""Thousands of schedules of the protocol, and no promise breaks in any."""

from __future__ import annotations

import os

from .explore import explore

PROCESSES = min(4, os.cpu_count() or 1)
SCHEDULES = 20_000


def test_no_schedule_breaks_a_promise() -> None:
    """Several sessions and turns, dispatch, a coordinator that fences as the real one does, zombies, late readers."""
    found = explore(SCHEDULES, processes=PROCESSES)
    assert found.schedules == SCHEDULES
    assert not found.counts, f"`python -m protocol show SEED` in tests/unit shows a schedule: {found.first}"


def test_a_seed_is_a_schedule() -> None:
    """The same seed gives the same log, or nothing that is found could be looked at."""
    from .choices import Seeded
    from .explore import timeline
    from .world import World

    def log() -> list[str]:
        world = World(Seeded(7))
        world.run()
        return timeline(world)

    assert log() == log()
