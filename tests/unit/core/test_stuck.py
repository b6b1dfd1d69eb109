"""A partition that is held and does not get on is found by its member: no timeout of Kafka's sees it."""

from __future__ import annotations

import logging

import pytest
from aiokafka import TopicPartition
from prometheus_client import REGISTRY

from parley.health import Health
from parley.log.held import Held
from parley.log.stuck import Stuck
from parley.ownership import Progress

WHERE = TopicPartition("chat.prompts", 3)
OTHER = TopicPartition("chat.prompts", 4)
PATIENCE_S = 30


class Member:
    """A group that commits nothing."""

    def __init__(self, name: str) -> None:
        self.name = name

    def commit_soon(self, *, urgent: bool = False, proof: bool = False) -> None: ...

    def fail(self, error: BaseException) -> None:
        raise error


class Watched:
    """Two partitions with some records taken, and a clock."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.health = Health()
        self.health.ready()
        self.held = {where: self.holding(where, 7, 8, 9) for where in (WHERE, OTHER)}
        self._stuck = Stuck(name, PATIENCE_S, self.health)

    def holding(self, where: TopicPartition, *taken: int) -> Held:
        held = Held(Member(self.name), where, 1, Progress(7))
        for offset in taken:
            held.progress.take(offset)
        return held

    def looked(self, *times: float) -> str:
        """What readiness says after looks at these times."""
        for now in times:
            self._stuck.look(self.held, now)
        return self.health.readiness()

    @property
    def counted(self) -> float:
        return REGISTRY.get_sample_value("parley_consumer_stuck_records_total", {"group": self.name}) or 0


@pytest.fixture
def watched(request: pytest.FixtureRequest) -> Watched:
    return Watched(request.node.name)


def test_a_record_that_runs_too_long_is_told_and_counted_once_by_its_place(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.held[OTHER].end(7)
    watched.held[OTHER].end(8)
    watched.held[OTHER].end(9)
    assert watched.looked(0, 15, 30) == ""
    assert watched.looked(31, 40, 100) == "chat.prompts-3 offset 7 does not get on"
    assert watched.counted == 1
    [line] = [entry.getMessage() for entry in caplog.records if entry.levelno == logging.ERROR]
    assert "runs for 31 s; `parley log chat.prompts --partition 3 --offsets 7` has it" in line


def test_later_records_that_end_meanwhile_do_not_hide_it(watched: Watched) -> None:
    watched.looked(0)
    watched.held[WHERE].end(8)
    watched.held[WHERE].progress.take(10)
    assert "chat.prompts-3 offset 7" in watched.looked(31)


def test_the_next_one_has_its_own_time(watched: Watched) -> None:
    """A backlog that is worked off in order is old as a whole, and gets on."""
    del watched.held[OTHER]
    assert watched.looked(0, 20) == ""
    watched.held[WHERE].end(7)
    assert watched.looked(21, 50) == ""
    assert watched.looked(52) == "chat.prompts-3 offset 8 does not get on"


def test_it_is_over_when_the_record_ends_or_somebody_else_has_it(watched: Watched) -> None:
    watched.looked(0)
    assert watched.looked(31).count("does not get on") == 2
    watched.held[WHERE].end(7)
    del watched.held[OTHER]
    assert watched.looked(32) == ""
    watched.held[OTHER] = watched.holding(OTHER, 7)
    assert watched.looked(33, 60) == "", "the new holding's time begins anew"


def test_a_partition_that_stands_still_has_said_why(watched: Watched) -> None:
    del watched.held[OTHER]
    watched.held[WHERE].still = True
    assert watched.looked(0, 31) == ""
