"""What a process says of itself: its own state first, then whatever else goes wrong, each for as long as it does."""

from __future__ import annotations

import httpx

from inference_workers import metrics
from parley.health import Health, serve_health


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


def test_vllms_names_come_as_they_are_whatever_format_is_asked_for(free_port: int) -> None:
    """Prometheus asks for OpenMetrics first, in which the client would write an underscore for the colon."""
    metrics.RUNNING.labels("m", "health-test").set(3)
    serve_health(Health(), "127.0.0.1", free_port)
    accept = {"accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"}
    answer = httpx.get(f"http://127.0.0.1:{free_port}/metrics", headers=accept)
    assert answer.headers["content-type"].startswith("text/plain")
    assert 'vllm:num_requests_running{model_name="m",pool="health-test"} 3.0' in answer.text.splitlines()
