"""What the exporter makes of a look: nothing that is not known, and nothing at all when the brokers are away."""

from __future__ import annotations

import asyncio
import time

import pytest
from aiokafka import TopicPartition
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, generate_latest

from consumers.lag.cli import lag
from consumers.lag.counting import Look, count
from consumers.lag.exporter import Exporter, Seen, look_on
from consumers.lag.show import exit_code
from consumers.lag.states import Ages, State, Verdict
from consumers.lag.survey import GroupLag, PartitionLag, Report, Survey
from parley.health import Health
from parley.ownership import Claim
from parley.settings import KafkaSettings, Settings

CLAIM = Claim("worker-0:abc", takeover=3, ended=frozenset({6}), position=8)
HELD = Look(0, 10, 5, CLAIM, held=True)
FRESH = Look(0, 4, None)


def partition(number: int, look: Look, ages: Ages, state: State) -> PartitionLag:
    return PartitionLag(TopicPartition("t", number), look, count(look), ages, Verdict(state), ())


@pytest.fixture
def exporter() -> Exporter:
    return Exporter(interval_s=5)


@pytest.fixture
def registry(exporter: Exporter) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(exporter)
    return registry


def seen() -> Seen:
    partitions = (
        partition(0, HELD, Ages(running_s=30, waiting_s=2.5, commit_s=0.4), State.OK),
        partition(1, FRESH, Ages(waiting_s=9), State.NO_COMMIT),
    )
    group = GroupLag("worker", "PreparingRebalance", 1, partitions, ("gone",), ())
    return Seen(Report(1_700_000_000_500, (group,), ()), {TopicPartition("chat.dlq", 2): (3, 9)}, 0.25)


def test_a_partition_is_told_as_parley_lag_shows_it(exporter: Exporter, registry: CollectorRegistry) -> None:
    exporter.seen = seen()
    place = {"group": "worker", "topic": "t", "partition": "0"}
    value = registry.get_sample_value
    assert value("parley_lag_up") == 1
    assert value("parley_lag_looked_timestamp_seconds") == 1_700_000_000.5
    assert value("parley_lag_records", place | {"stage": "running"}) == 2  # 5 and 7: 6 has ended
    assert value("parley_lag_records", place | {"stage": "waiting"}) == 2
    assert value("parley_lag_oldest_seconds", place | {"stage": "waiting"}) == 2.5
    assert value("parley_lag_seconds", place) == 30
    assert value("parley_lag_commit_age_seconds", place) == 0.4
    assert value("parley_lag_held", place) == 1
    assert value("parley_lag_takeovers_total", place) == 3
    assert value("parley_lag_state", place) == 0
    assert value("parley_lag_rebalancing", {"group": "worker"}) == 1
    assert value("parley_lag_missing_topics", {"group": "worker"}) == 1


def test_a_topic_that_is_gone_is_no_ok_for_scripts() -> None:
    """It has no partition that could say so."""
    assert exit_code(Report(0, (GroupLag("moderation", "Stable", 1, (), ("chat.prompts",), ()),), ())) == 5
    assert exit_code(Report(0, (GroupLag("moderation", "Stable", 1, (), (), ("left",)),), ())) == 0


def test_what_is_not_known_is_left_out(exporter: Exporter, registry: CollectorRegistry) -> None:
    """Field case F67: no commit is not a lag of 0, nor of the whole log."""
    exporter.seen = seen()
    place = {"group": "worker", "topic": "t", "partition": "1"}
    assert registry.get_sample_value("parley_lag_state", place) == State.NO_COMMIT
    assert registry.get_sample_value("parley_lag_end_offset", place) == 4
    for name in ("seconds", "committed_offset", "commit_age_seconds", "takeovers_total"):
        assert registry.get_sample_value(f"parley_lag_{name}", place) is None, name
    assert registry.get_sample_value("parley_lag_records", place | {"stage": "waiting"}) is None


def test_dead_letters_are_counted_by_the_end_of_their_log(exporter: Exporter, registry: CollectorRegistry) -> None:
    exporter.seen = seen()
    assert registry.get_sample_value("parley_dlq_records_total", {"partition": "2"}) == 9
    assert registry.get_sample_value("parley_dlq_kept_records", {"partition": "2"}) == 6


def test_without_brokers_there_is_no_old_figure(exporter: Exporter, registry: CollectorRegistry) -> None:
    exporter.seen = seen()
    exporter.seen = None
    samples = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    assert samples == ["parley_lag_up 0.0"]


def test_a_look_that_does_not_end_is_told_beside_the_figures_before_it(
    exporter: Exporter, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three intervals, and as long as the last look took: one that always takes long is not away."""
    exporter.seen = seen()
    began = time.monotonic()
    for later, up in ((15, 1), (15.5, 0)):
        monkeypatch.setattr("time.monotonic", lambda later=later: began + later)
        assert registry.get_sample_value("parley_lag_up") == up, later
    assert registry.get_sample_value("parley_lag_members", {"group": "worker"}) == 1
    monkeypatch.undo()
    exporter.seen = seen()
    assert registry.get_sample_value("parley_lag_up") == 1


async def test_brokers_that_do_not_answer_are_said_and_asked_again(exporter: Exporter, free_port: int) -> None:
    settings = Settings(kafka=KafkaSettings(bootstrap=f"127.0.0.1:{free_port}"))
    exporter.seen, health, stop = seen(), Health(), asyncio.Event()
    looking = asyncio.create_task(look_on(settings, Survey([], 60), exporter, health, stop, 0.01))
    async with asyncio.timeout(30):
        while exporter.seen is not None:
            await asyncio.sleep(0.01)
    assert str(free_port) in health.readiness()
    assert health.beat_age is not None
    assert not looking.done(), "it goes on asking"
    stop.set()
    await looking


@pytest.mark.parametrize("address", ["port", "0", "70000", "127.0.0.1:", "127.0.0.1:x"])
def test_an_address_that_is_none_is_refused_before_anything_is_asked(address: str) -> None:
    result = CliRunner().invoke(lag, ["--serve", address])
    assert result.exit_code == 2
    assert "is no [HOST:]PORT" in result.output
