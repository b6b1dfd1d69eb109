"""When a drain is done: known, and not only because nobody says otherwise."""

from __future__ import annotations

from typing import Any

from aiokafka import TopicPartition

from parley.log.groups import GroupState, Member
from parley.ownership import Claim
from parley.remaining import Remaining, of_engine, of_pool
from schemas.operations import PoolStatus

WHERE = TopicPartition("chat.inference.smol.paid", 0)
OTHER = TopicPartition("chat.inference.smol.free", 0)
OWN, GUEST = "a:1", "b:1"


def group(*names: str, committed: dict[TopicPartition, tuple[int, str]] | None = None) -> GroupState:
    members = tuple(Member(name, "127.0.0.1", frozenset(), frozenset()) for name in names)
    return GroupState("worker-smol", "Stable" if names else "Empty", members, committed or {})


def report(worker: str, **fields: Any) -> PoolStatus:
    about = {"pool": "smol", "slots": 2, "running": 2, "queued": {}, "oldest_queued_ms": {}, "at": 1}
    return PoolStatus.model_validate(about | {"worker": worker} | fields)


class TestAPool:
    def test_is_done_when_every_request_in_kafka_is(self) -> None:
        done = group("worker-0", committed={WHERE: (7, "")})
        assert of_pool("smol", done, {WHERE: (2, 7), OTHER: (0, 0)}).nothing

    def test_a_request_that_no_worker_has_taken_counts(self) -> None:
        """No worker's report tells of it."""
        assert of_pool("smol", group("worker-0", committed={WHERE: (7, "")}), {WHERE: (2, 9)}) == Remaining(2)
        assert of_pool("smol", group("worker-0"), {WHERE: (2, 9)}) == Remaining(7), "nor one before the first commit"

    def test_turns_that_ended_out_of_order_do_not(self) -> None:
        claim = Claim("worker-0:abc", 3, frozenset({8, 9})).encode(7)
        assert of_pool("smol", group("worker-0", committed={WHERE: (7, claim)}), {WHERE: (2, 12)}) == Remaining(3)

    def test_what_retention_took_does_not_either(self) -> None:
        assert of_pool("smol", group("worker-0", committed={WHERE: (1, "")}), {WHERE: (5, 6)}) == Remaining(1)

    def test_without_a_worker_nobody_finishes_what_is_there(self) -> None:
        left = of_pool("smol", group(committed={WHERE: (7, "")}), {WHERE: (2, 9)})
        assert left == Remaining(2, ("smol has no worker that could finish them",))
        assert of_pool("smol", group(committed={WHERE: (7, "")}), {WHERE: (2, 7)}).nothing, "nothing is there"


class TestAnEngine:
    def left(self, members: tuple[str, ...], *reports: PoolStatus, engine: str = OWN) -> Remaining:
        return of_engine("smol", engine, group(*members), reports)

    def test_is_busy_with_what_any_worker_runs_on_it(self) -> None:
        """Its own worker runs new turns elsewhere, and another one's may have come to it before."""
        own = report("worker-0", engine=OWN, runs={OWN: 0, GUEST: 2})
        guest = report("worker-1", engine=GUEST, runs={OWN: 1, GUEST: 1})
        assert self.left(("worker-0:abc", "worker-1:def"), own, guest) == Remaining(1)
        assert self.left(("worker-0", "worker-1"), own, report("worker-1", engine=GUEST, runs={OWN: 0})).nothing

    def test_a_member_that_does_not_report_may_run_something_there(self) -> None:
        left = self.left(("worker-0", "worker-1"), report("worker-0", runs={OWN: 0}))
        assert left == Remaining(0, ("worker-1 is in worker-smol and does not report",))

    def test_without_any_worker_nobody_knows(self) -> None:
        left = self.left(())
        assert not left.nothing
        assert left.unknown == ("no worker of smol is there to tell what runs on a:1",)

    def test_a_worker_of_an_older_version_does_not_tell(self) -> None:
        assert "a version that does not tell" in self.left(("worker-0",), report("worker-0", engine=OWN)).unknown[0]

    def test_an_engine_that_no_worker_has_is_not_found_idle(self) -> None:
        left = self.left(("worker-0",), report("worker-0", runs={OWN: 0}), engine="a:2")
        assert left.unknown == ("no worker of smol has an engine a:2",)
