"""What a process says of itself: its own state first, then whatever else goes wrong, each for as long as it does."""

from __future__ import annotations

from parley.health import Health


def test_troubles_come_and_go_one_by_one() -> None:
    health = Health()
    assert health.readiness() == "starting"
    health.ready()
    assert health.readiness() == ""
    health.trouble("engines", "no engine answers")
    health.trouble("stalls", "chat.x-3 offset 7 does not get on")
    assert health.readiness() == "no engine answers; chat.x-3 offset 7 does not get on"
    health.trouble("engines", "")
    assert health.readiness() == "chat.x-3 offset 7 does not get on"
    health.trouble("stalls", "")
    health.trouble("stalls", "")
    assert health.readiness() == ""


def test_troubles_are_no_reason_to_be_restarted() -> None:
    health = Health()
    health.trouble("engines", "no engine answers")
    assert health.live() == ""
