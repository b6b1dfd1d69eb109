"""What a plan finds, and what it never touches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parley.log.topic_plan import Alteration, LiveTopic, PartitionConflict, plan
from parley.topics import TURNS, Topics, load_topics
from parley.topics_cli import plan_json, plan_text


@pytest.fixture(scope="module")
def topics() -> Topics:
    return load_topics()


@pytest.fixture
def cluster(topics: Topics) -> dict[str, LiveTopic]:
    """A cluster that has everything as it should be."""
    return {
        topic.name: LiveTopic(
            topic.name, topic.partitions, 1, topic.config(topics.min_insync_replicas) | {"segment.bytes": "1"}, {}
        )
        for topic in topics.topics.values()
    }


def test_an_empty_cluster_lacks_everything(topics: Topics) -> None:
    difference = plan(topics, [])
    assert [topic.name for topic in difference.create] == list(topics.topics)
    assert difference.changes
    assert not difference.conflicts


def test_a_cluster_that_is_as_it_should_be_needs_nothing(topics: Topics, cluster: dict[str, LiveTopic]) -> None:
    difference = plan(topics, cluster.values())
    assert not difference.changes
    assert plan_text(difference) == ["nothing to do"]


def test_a_setting_that_differs_is_changed_and_no_other(topics: Topics, cluster: dict[str, LiveTopic]) -> None:
    turns = cluster[TURNS]
    cluster[TURNS] = replace(turns, config={**turns.config, "retention.ms": "1000", "flush.ms": "7"})
    difference = plan(topics, cluster.values())
    wanted = str(topics.topics[TURNS].retention_ms)
    assert difference.alter == (Alteration(TURNS, "retention.ms", "1000", wanted),)
    assert difference.alterations() == {TURNS: {"retention.ms": wanted}}
    assert plan_text(difference) == [f"change {TURNS}: retention.ms 1000 -> {wanted}"]


def test_a_partition_count_is_a_conflict_and_never_a_change(topics: Topics, cluster: dict[str, LiveTopic]) -> None:
    cluster[TURNS] = replace(cluster[TURNS], partitions=8)
    difference = plan(topics, cluster.values())
    assert difference.conflicts == (PartitionConflict(TURNS, 8, 16),)
    assert not difference.changes
    assert plan_text(difference)[0].startswith(f"ERROR {TURNS} has 8 partitions, topics.yaml says 16")
    assert "nothing to do" not in plan_text(difference)


def test_topics_outside_the_file_are_listed_and_internal_ones_are_not(
    topics: Topics, cluster: dict[str, LiveTopic]
) -> None:
    strangers = [
        LiveTopic("somebody.elses", 1, 1, {}, {}),
        LiveTopic("__consumer_offsets", 50, 1, {}, {}, internal=True),
        LiveTopic("__transaction_state", 50, 1, {}, {}),
        LiveTopic(topics.session_topics.prefix + "0" * 32, 1, 1, {}, {}),
    ]
    difference = plan(topics, [*cluster.values(), *strangers])
    assert difference.unknown == ("somebody.elses",)
    assert difference.session_topics == 1
    assert not difference.changes
    assert plan_json(difference)["unknown"] == ["somebody.elses"]


def test_faust_finds_its_changelogs_with_the_partitions_of_their_source(topics: Topics) -> None:
    for table in ("hours", "turns"):
        changelog = topics.topics[f"parley-usage-{table}-changelog"]
        assert changelog.partitions == topics.topics[TURNS].partitions
        assert changelog.cleanup == "compact"
