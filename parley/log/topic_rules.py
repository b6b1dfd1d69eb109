"""The inequalities between timeouts and retentions that the protocol needs, proved from settings and topics.yaml.

protocol.md, section 4, is the source; every rule says its numbers, so that a broken one tells what to change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from parley.settings import KafkaSettings, ProtocolSettings
from parley.topics import CONTROL, PROMPTS, TOKENS, TURNS, VERDICTS, Topic, Topics

_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60))


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that must hold, and whether it does."""

    text: str
    holds: bool
    numbers: str


def span(seconds: float) -> str:
    """`1h30m30s`: a duration as topics.yaml would write it, in as many units as it needs."""
    rest, parts = seconds, []
    for unit, size in _UNITS:
        if rest >= size:
            parts.append(f"{int(rest // size)}{unit}")
            rest %= size
    if rest or not parts:
        parts.append(f"{rest:g}s")
    return "".join(parts)


def file_rules(topics: Topics, protocol: ProtocolSettings) -> list[Rule]:
    """What topics.yaml and the settings must satisfy together; no cluster is asked."""
    return [*_retentions(topics, protocol), *_ages(protocol), *_session_keyed(topics), *_durability(topics)]


def broker_rules(topics: Topics, kafka: KafkaSettings, broker: str, config: Mapping[str, str]) -> list[Rule]:
    """What a broker's own settings must satisfy."""
    offsets = int(config["offsets.retention.minutes"]) * 60.0
    turns = _retention_s(topics.topics[TURNS])
    largest = int(config["message.max.bytes"])
    creation = config["auto.create.topics.enable"]
    return [
        _at_least(f"broker {broker}: offsets.retention.minutes ≥ retention of {TURNS}", offsets, turns, span(turns)),
        Rule(
            f"broker {broker}: message.max.bytes ≥ PARLEY_KAFKA__MAX_REQUEST_SIZE",
            largest >= kafka.max_request_size,
            f"{largest} ≥ {kafka.max_request_size}",
        ),
        Rule(f"broker {broker}: auto.create.topics.enable is false", creation == "false", creation),
    ]


def _retentions(topics: Topics, protocol: ProtocolSettings) -> Iterator[Rule]:
    age, margin = protocol.max_turn_age_s, protocol.margin_s
    resume = protocol.resume_window_s + age + margin
    words = f"{span(protocol.resume_window_s)} + {span(age)} + {span(margin)}"
    for name, kept in (
        (TOKENS, _retention_s(topics.topics[TOKENS])),
        ("session topics", topics.session_topics.retention_ms / 1000),
    ):
        yield _at_least(f"retention of {name} ≥ resume window + max_turn_age + margin", kept, resume, words)

    side = age + protocol.moderation_deadline_s + margin
    words = f"{span(age)} + {span(protocol.moderation_deadline_s)} + {span(margin)}"
    for name in (VERDICTS, CONTROL):
        kept = _retention_s(topics.topics[name])
        yield _at_least(f"retention of {name} ≥ max_turn_age + moderation deadline + margin", kept, side, words)

    outage = protocol.longest_store_outage_s
    words = f"{span(age)} + {span(outage)}"
    work = [PROMPTS, *(name for name in topics.topics if name.startswith(topics.inference_prefix))]
    for name in work:
        kept = _retention_s(topics.topics[name])
        yield _at_least(f"retention of {name} ≥ max_turn_age + longest store outage", kept, age + outage, words)

    kept = _retention_s(topics.topics[TURNS])
    yield Rule(f"retention of {TURNS} > longest store outage", kept > outage, f"{span(kept)} > {span(outage)}")


def _ages(protocol: ProtocolSettings) -> Iterator[Rule]:
    turns = protocol.waiting_turns + 1
    longest = protocol.start_deadline_s + protocol.answer_limit_s
    yield _at_least(
        f"max_turn_age ≥ {turns} × (start deadline + longest answer)",
        protocol.max_turn_age_s,
        turns * longest,
        f"{turns} × ({span(protocol.start_deadline_s)} + {span(protocol.answer_limit_s)})",
    )


def _session_keyed(topics: Topics) -> Iterator[Rule]:
    counts = {topic.name: topic.partitions for topic in topics.topics.values() if topic.key.startswith("session")}
    odd = {name: count for name, count in counts.items() if count != topics.session_partitions}
    yield Rule(
        f"all {len(counts)} session-keyed topics have {topics.session_partitions} partitions",
        not odd,
        ", ".join(f"{name} has {count}" for name, count in odd.items()) or f"{topics.session_partitions} each",
    )


def _durability(topics: Topics) -> Iterator[Rule]:
    replication, in_sync = topics.replication, topics.min_insync_replicas
    yield Rule("min.insync.replicas ≤ replication", in_sync <= replication, f"{in_sync} ≤ {replication}")
    yield Rule(
        "replication ≥ 3 needs min.insync.replicas ≥ 2",
        replication < 3 or in_sync >= 2,
        f"replication {replication}, min.insync.replicas {in_sync}",
    )
    made = {topic.name: topic.config(in_sync) for topic in topics.topics.values()}
    made["session topics"] = topics.session_topic("0" * 32).config(in_sync)
    for name, wanted in (
        ("message.timestamp.type", "LogAppendTime"),
        ("min.insync.replicas", str(in_sync)),
        ("unclean.leader.election.enable", "false"),
    ):
        odd = [topic for topic, config in made.items() if config.get(name) != wanted]
        yield Rule(f"every topic has {name}={wanted}", not odd, ", ".join(odd) or f"{len(made)} kinds of topics")


def broken(rules: Iterable[Rule]) -> list[Rule]:
    """Those that do not hold."""
    return [rule for rule in rules if not rule.holds]


def _retention_s(topic: Topic) -> float:
    return float("inf") if topic.retention_ms is None else topic.retention_ms / 1000


def _at_least(text: str, have: float, need: float, words: str) -> Rule:
    return Rule(text, have >= need, f"{span(have) if have != float('inf') else 'for ever'} ≥ {words}")
