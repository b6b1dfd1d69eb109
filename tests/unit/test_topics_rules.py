"""Each rule of the protocol's section 4 holds for the file as it is, and breaks when its numbers do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from parley.log.topic_rules import broken, broker_rules, file_rules, span
from parley.settings import KafkaSettings, ProtocolSettings
from parley.topics import CONTROL, PROMPTS, TOKENS, TURNS, VERDICTS, Topics, load_topics

PROTOCOL = ProtocolSettings()


def with_topic(name: str, **fields: object) -> Callable[[Topics], Topics]:
    def change(topics: Topics) -> Topics:
        return topics.model_copy(
            update={"topics": {**topics.topics, name: topics.topics[name].model_copy(update=fields)}}
        )

    return change


def with_fields(**fields: object) -> Callable[[Topics], Topics]:
    return lambda topics: topics.model_copy(update=fields)


def with_session_topics(**fields: object) -> Callable[[Topics], Topics]:
    return lambda topics: topics.model_copy(update={"session_topics": topics.session_topics.model_copy(update=fields)})


def test_the_file_as_it_is_holds() -> None:
    rules = file_rules(load_topics(), PROTOCOL)
    assert broken(rules) == []
    assert len(rules) >= 15


BREAKS = {
    "lanes": (with_topic(TOKENS, retention_ms=5_429_000), "retention of chat.tokens"),
    "session topics": (with_session_topics(retention_ms=5_429_000), "retention of session topics"),
    "verdicts": (with_topic(VERDICTS, retention_ms=1_834_000), "retention of chat.verdicts"),
    "control": (with_topic(CONTROL, retention_ms=1_834_000), "retention of chat.control"),
    "prompts": (with_topic(PROMPTS, retention_ms=260_999_000), "retention of chat.prompts"),
    "inference": (
        with_topic("chat.inference.smol.free", retention_ms=260_999_000),
        "retention of chat.inference.smol.free",
    ),
    "turns": (with_topic(TURNS, retention_ms=259_200_000), "retention of chat.turns"),
    "partitions": (with_topic(VERDICTS, partitions=8), "session-keyed"),
    "changelog": (with_topic("parley-usage-hours-changelog", partitions=8), "session-keyed"),
    "in sync": (with_fields(replication=1, min_insync_replicas=2), "min.insync.replicas ≤ replication"),
    "one in sync of three": (with_fields(replication=3, min_insync_replicas=1), "replication ≥ 3"),
}


@pytest.mark.parametrize(("change", "rule"), BREAKS.values(), ids=BREAKS)
def test_one_number_too_small_breaks_one_rule(change: Callable[[Topics], Topics], rule: str) -> None:
    found = broken(file_rules(change(load_topics()), PROTOCOL))
    assert len(found) == 1
    assert rule in found[0].text


@pytest.mark.parametrize("exact", [(TOKENS, 5_430_000), (VERDICTS, 1_835_000), (PROMPTS, 261_000_000)])
def test_exactly_enough_is_enough(exact: tuple[str, int]) -> None:
    assert broken(file_rules(with_topic(exact[0], retention_ms=exact[1])(load_topics()), PROTOCOL)) == []


def test_turns_that_wait_fit_into_the_age_of_a_turn() -> None:
    found = broken(file_rules(load_topics(), ProtocolSettings(max_turn_age_s=1_169)))
    assert [rule.text for rule in found] == ["max_turn_age ≥ 9 × (start deadline + longest answer)"]
    assert found[0].numbers == "19m29s ≥ 9 × (10s + 2m)"
    assert broken(file_rules(load_topics(), ProtocolSettings(max_turn_age_s=1_170))) == []


def test_brokers_keep_offsets_as_long_as_turns_and_take_the_largest_record() -> None:
    good = {
        "offsets.retention.minutes": "10080",
        "message.max.bytes": "4194304",
        "auto.create.topics.enable": "false",
    }
    assert broken(broker_rules(load_topics(), KafkaSettings(), "1", good)) == []
    for name, value in (
        ("offsets.retention.minutes", "10079"),
        ("message.max.bytes", "1048588"),
        ("auto.create.topics.enable", "true"),
    ):
        assert len(broken(broker_rules(load_topics(), KafkaSettings(), "1", {**good, name: value}))) == 1


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (30, "30s"), (0.05, "0.05s"), (5_430, "1h30m30s"), (604_800, "7d")]
)
def test_spans_read_like_the_file(seconds: float, text: str) -> None:
    assert span(seconds) == text
