"""What is out of use, and where its turns go instead."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from aiokafka.structs import ConsumerRecord

from consumers.orchestrator.planning import plan
from inference_workers.engine.client import EngineClient
from inference_workers.engine.pool import Engines
from parley.drains import Drains
from parley.errors import ParleyError
from parley.pools_cli import State, consequences, named
from parley.session import Session
from parley.settings import Settings, WorkerSettings
from parley.topics import POOLS, Rule, Topics, load_topics
from schemas.operations import PoolDrain, PoolStatus
from schemas.prompts import PromptAccepted
from schemas.wire import encode
from tests.unit.core.core_events import ROUTE, SESSION, USER, response, said

TOPICS = load_topics()


def record(pool: str, engine: str | None = None, *, drained: bool = True, value: bytes | None = None) -> Any:
    event = PoolDrain(pool=pool, engine=engine, drained=drained, who="ada@desk", at=1)
    return ConsumerRecord(POOLS, 0, 0, 1, 1, b"", value or encode(event), None, 0, 0, ())


class TestTheFold:
    def test_the_last_word_of_each_counts(self) -> None:
        drains, told = Drains(), []
        drains.on_change = lambda: told.append((drains.pools, drains.engines("smol")))
        for one in (record("smol"), record("smol", "a:1"), record("smol", drained=False), record("smol", "b:1")):
            drains.handle(one)
        assert told == [
            (frozenset({"smol"}), frozenset()),
            (frozenset({"smol"}), frozenset({"a:1"})),
            (frozenset(), frozenset({"a:1"})),
            (frozenset(), frozenset({"a:1", "b:1"})),
        ]
        assert [(event.pool, event.engine) for event in drains.all] == [("smol", "a:1"), ("smol", "b:1")]
        assert drains.engines("synthetic") == frozenset()

    def test_what_cannot_be_read_changes_nothing(self) -> None:
        drains = Drains()
        drains.handle(record("smol"))
        drains.handle(record("", value=b"{"))
        assert drains.pools == {"smol"}


def prompt(model: str) -> PromptAccepted:
    about = {"response": response(1), "session": SESSION, "user": USER, "tier": "free", "accepted_at": 5}
    return PromptAccepted(**about, model=model, items=(said("hi"),), new_session=True, route=ROUTE)


def settings_with(*rules: Rule) -> Settings:
    settings = Settings()
    topics: Topics = TOPICS.model_copy(update={"routing": rules})
    settings.__dict__["topics"] = topics
    return settings


class TestRouting:
    SECOND = settings_with(Rule(model="m", pool="smol"), Rule(model="m", pool="synthetic"))

    def planned(self, settings: Settings, *drained: str) -> str | None:
        return plan(settings, Session(UUID(int=1)), prompt("m"), (1, 1), 1, frozenset(drained)).pool

    def test_a_drained_pools_turns_go_by_the_next_rule_that_fits(self) -> None:
        assert self.planned(self.SECOND, "smol") == "synthetic"

    def test_where_there_is_none_they_are_refused_and_may_be_tried_again(self) -> None:
        alone = settings_with(Rule(model="m", pool="synthetic"))
        assert self.planned(alone) == "synthetic"
        with pytest.raises(ParleyError, match="takes no new turns at present") as refused:
            self.planned(alone, "synthetic")
        assert (refused.value.kind.code, refused.value.kind.retryable) == ("overloaded", True)
        with pytest.raises(ParleyError, match="takes no new turns"):
            self.planned(self.SECOND, "smol", "synthetic")

    def test_a_model_that_nobody_serves_is_still_unknown(self) -> None:
        with pytest.raises(ParleyError, match="no pool serves m"):
            self.planned(settings_with(Rule(model="other", pool="synthetic")), "synthetic")

    def test_a_long_prompts_better_pool_is_passed_over_too(self) -> None:
        rules = (Rule(model="m", prompt_tokens_over=1, pool="smol"), Rule(model="m", pool="synthetic"))
        assert self.planned(settings_with(*rules), "smol") == "synthetic"


class TestWhatTheOperatorIsTold:
    def told(self, what: str, *engines: str, known: tuple[str, ...] = (), drained: tuple[str, ...] = ()) -> list[str]:
        about = {"pool": "smol", "slots": 1, "running": 0, "queued": {}, "oldest_queued_ms": {}, "at": 1}
        workers = [PoolStatus.model_validate(about | {"worker": e, "engine": e}) for e in engines]
        drains = [PoolDrain(pool="smol", engine=e, drained=True, who="ada@desk", at=1) for e in drained]
        settings = Settings(engines={"smol": known} if known else {})
        return consequences(settings, "smol", what, State(drains, workers))

    def test_an_engine_that_nobody_has_may_be_mistyped(self) -> None:
        [warning] = self.told("a:2", "a:1", "b:1")
        assert "no worker of smol has said" in warning
        assert self.told("a:1", "a:1", "b:1") == []

    def test_an_engine_without_a_name_is_not_the_whole_pool(self) -> None:
        """`parley pool drain smol/$ENGINE`, and nobody has set that."""
        assert named(Settings(), "smol") == ("smol", None)
        assert named(Settings(), "smol/a:1") == ("smol", "a:1")
        with pytest.raises(ParleyError, match="names no engine"):
            named(Settings(), "smol/")

    def test_the_last_engine_goes_on(self) -> None:
        assert self.told("a:1", known=("a:1", "b:1")) == []
        assert "goes on until one is" in self.told("a:1", known=("a:1", "b:1"), drained=("b:1",))[0]


async def test_a_drained_engine_is_the_last_that_is_asked() -> None:
    """Engines that nobody has asked yet count as alive: which one would be taken is told without a network."""
    clients = [EngineClient(f"127.0.0.1:{port}", "synthetic") for port in (1, 2, 3)]
    engines = Engines(clients, WorkerSettings())
    told = []
    engines.on_change = lambda: told.append(engines.at_home)
    try:
        assert engines.at_hand() is engines.own
        engines.drain({"127.0.0.1:1"})
        assert (engines.at_hand(), engines.own.alive, told) == (None, True, [False])
        assert (await engines.find()).url == "127.0.0.1:2"
        engines.drain({"127.0.0.1:1", "127.0.0.1:2"})
        assert (await engines.find()).url == "127.0.0.1:3"
        engines.drain({"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"})
        assert (await engines.find()).url == "127.0.0.1:1", "rather than nobody"
        engines.drain(())
        assert (engines.at_hand(), told[-1]) == (engines.own, True)
    finally:
        await engines.close()
