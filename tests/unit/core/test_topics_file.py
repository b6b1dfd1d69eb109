"""topics.yaml: that it loads, says what the code relies on, and refuses what it can't mean."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from parley.topics import DLQ, PROMPTS, TOKENS, TOPICS_FILE, TURNS, Topics, load_topics
from schemas.base import TIERS
from schemas.wire import EVENTS

TOPICS = load_topics()


def changed(tmp_path: Path, **fields: object) -> Topics:
    """The file with some of its fields replaced."""
    raw = yaml.safe_load(TOPICS_FILE.read_text()) | fields
    path = tmp_path / "topics.yaml"
    path.write_text(yaml.safe_dump(raw))
    return load_topics(path)


class TestTheFile:
    def test_session_keyed_topics_have_one_number_of_partitions(self) -> None:
        keyed = [topic for topic in TOPICS.topics.values() if topic.key == "session"]
        assert {topic.partitions for topic in keyed} == {TOPICS.session_partitions}
        assert {PROMPTS, TURNS} <= {topic.name for topic in keyed}

    def test_each_pool_has_a_queue_for_each_tier(self) -> None:
        for pool in TOPICS.pools:
            for tier in TIERS:
                topic = TOPICS.topics[TOPICS.inference_topic(pool, tier)]
                assert topic.events == ("inference.request",)

    def test_what_topics_carry_exists(self) -> None:
        ours = {name for name in TOPICS.topics if not name.endswith("-changelog")} - {DLQ}
        for name in ours:
            assert set(TOPICS.topics[name].events) <= set(EVENTS), name

    def test_timestamps_are_the_logs_and_only_replicas_in_sync_lead(self) -> None:
        for topic in TOPICS.topics.values():
            config = topic.config(2)
            assert config["message.timestamp.type"] == "LogAppendTime"
            assert config["unclean.leader.election.enable"] == "false"
            assert config["min.insync.replicas"] == "2"
            assert ("retention.ms" in config) == (topic.cleanup == "delete")

    def test_a_sessions_own_topic_is_like_a_lane(self) -> None:
        topic = TOPICS.session_topic("ab" * 16)
        assert topic.name == "chat.tokens.s." + "ab" * 16
        assert (topic.partitions, topic.events) == (1, TOPICS.topics[TOKENS].events)

    def test_durations_are_milliseconds(self) -> None:
        assert TOPICS.topics[TURNS].retention_ms == 7 * 86_400_000
        assert TOPICS.session_topics.segment_ms == 15 * 60_000

    def test_pools_fit_their_windows(self) -> None:
        for pool in TOPICS.pools.values():
            assert pool.default_max_tokens <= pool.max_tokens < pool.context


class TestRouting:
    @pytest.mark.parametrize(
        ("model", "pool"),
        [("synthetic", "synthetic"), ("smollm2-135m-instruct", "smol"), ("auto", "smol")],
    )
    def test_the_shipped_table(self, model: str, pool: str) -> None:
        for tier in TIERS:
            found = TOPICS.route_pool(model, tier)
            assert found is not None
            assert found.name == pool

    def test_an_unknown_model_has_no_pool(self) -> None:
        assert TOPICS.route_pool("gpt-9", "paid") is None
        assert "gpt-9" not in TOPICS.models

    def test_every_model_that_may_be_named_is_served(self) -> None:
        for model in TOPICS.models:
            assert all(TOPICS.route_pool(model, tier) for tier in TIERS)

    def test_the_first_rule_whose_conditions_all_hold(self, tmp_path: Path) -> None:
        topics = changed(
            tmp_path,
            routing=[
                {"model": "auto", "tier": "paid", "prompt_tokens_over": 1000, "pool": "synthetic"},
                {"model": "auto", "pool": "smol"},
            ],
        )
        chosen = [
            topics.route_pool("auto", tier, tokens) for tier, tokens in (("paid", 2000), ("paid", 10), ("free", 2000))
        ]
        assert [pool.name for pool in chosen if pool] == ["synthetic", "smol", "smol"]


class TestRefusals:
    def test_a_rule_for_a_pool_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(ValidationError, match="nowhere"):
            changed(tmp_path, routing=[{"model": "auto", "pool": "nowhere"}])

    def test_a_misspelt_field(self, tmp_path: Path) -> None:
        with pytest.raises(ValidationError, match="replicas"):
            changed(tmp_path, replicas=3)

    def test_a_duration_without_a_unit_that_is_known(self, tmp_path: Path) -> None:
        topics = yaml.safe_load(TOPICS_FILE.read_text())["topics"]
        topics[TURNS]["retention"] = "7 days"
        with pytest.raises(ValidationError):
            changed(tmp_path, topics=topics)

    def test_a_cluster_may_override_replication(self) -> None:
        topics = load_topics(replication=3, min_insync_replicas=2)
        assert (topics.replication, topics.min_insync_replicas) == (3, 2)
        assert load_topics(replication=None).replication == TOPICS.replication
