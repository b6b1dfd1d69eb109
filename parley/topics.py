"""topics.yaml as frozen values: topics, pools and the routing table."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from schemas.base import TIERS, Sampling, Tier

PROMPTS = "chat.prompts"
VERDICTS = "chat.verdicts"
TURNS = "chat.turns"
CONTROL = "chat.control"
TOKENS = "chat.tokens"
CAPACITY = "chat.capacity"
POOLS = "chat.pools"
DLQ = "chat.dlq"
AUDIT = "chat.audit"

TOPICS_FILE = Path(__file__).resolve().parent.parent / "topics.yaml"
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration(value: object) -> object:
    """Milliseconds from `30s`, `15m`, `2h`, `7d`; anything else is left to the validation that follows."""
    if isinstance(value, str) and (match := re.fullmatch(r"(\d+)(ms|s|m|h|d)", value)):
        return int(match[1]) * _UNITS[match[2]]
    return value


DurationMs = Annotated[int, BeforeValidator(parse_duration), Field(gt=0)]


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Topic(_Config):
    """One topic, as a cluster should have it."""

    name: str
    key: str
    partitions: int = Field(ge=1)
    cleanup: Literal["delete", "compact"] = "delete"
    retention_ms: DurationMs | None = None
    """None for compacted topics."""
    segment_ms: DurationMs | None = None
    events: tuple[str, ...] = ()
    writers: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()

    def config(self, min_insync_replicas: int) -> dict[str, str]:
        """The topic's settings in Kafka's names. Timestamps are the log's: writers' clocks differ."""
        settings = {
            "cleanup.policy": self.cleanup,
            "message.timestamp.type": "LogAppendTime",
            "min.insync.replicas": str(min_insync_replicas),
            "unclean.leader.election.enable": "false",
        }
        if self.retention_ms is not None:
            settings["retention.ms"] = str(self.retention_ms)
        if self.segment_ms is not None:
            settings["segment.ms"] = str(self.segment_ms)
        return settings


class Pool(_Config):
    """The engines that serve one model, and how to talk to them."""

    name: str
    model: str
    revision: str
    engine_model: str
    output: Literal["cumulative", "pieces"] = "cumulative"
    tokenizer: str
    template: Literal["chatml"]
    context: int = Field(gt=0)
    """Tokens of prompt and answer together."""
    slots: int = Field(gt=0)
    default_max_tokens: int = Field(gt=0)
    max_tokens: int = Field(gt=0)
    sampling: Sampling = Sampling()
    system: str
    """The system message of a conversation that brings none."""

    @property
    def group(self) -> str:
        """The consumer group of its workers."""
        return f"worker-{self.name}"


class Rule(_Config):
    """A row of the routing table: the first whose conditions hold names the pool."""

    model: str
    tier: Tier | None = None
    prompt_tokens_over: int = 0
    pool: str


class SessionTopics(_Config):
    """A topic a session: for opened conversations, up to limits."""

    prefix: str
    retention_ms: DurationMs
    segment_ms: DurationMs
    limit: int
    running_limit: int


class Topics(_Config):
    """The whole of topics.yaml."""

    cell: int = Field(ge=0, lt=4096)
    session_partitions: int = Field(ge=1)
    replication: int = Field(ge=1)
    min_insync_replicas: int = Field(ge=1)
    topics: dict[str, Topic]
    session_topics: SessionTopics
    inference_prefix: str
    pools: dict[str, Pool]
    routing: tuple[Rule, ...]

    @model_validator(mode="after")
    def _consistent(self) -> Topics:
        for rule in self.routing:
            if rule.pool not in self.pools:
                raise ValueError(f"routing names the pool {rule.pool!r}, which is not among pools: {list(self.pools)}")
        return self

    @cached_property
    def models(self) -> tuple[str, ...]:
        """The models that a request may name."""
        return tuple(dict.fromkeys(rule.model for rule in self.routing))

    @property
    def lanes(self) -> int:
        """Partitions of the shared token topic."""
        return self.topics[TOKENS].partitions

    def route_pool(self, model: str, tier: Tier, prompt_tokens: int = 0, without: Collection[str] = ()) -> Pool | None:
        """The pool for a turn, or None when no rule matches. Rules that lead to a pool of `without` are passed over."""
        for rule in self.routing:
            if (
                rule.model == model
                and rule.tier in (None, tier)
                and prompt_tokens >= rule.prompt_tokens_over
                and rule.pool not in without
            ):
                return self.pools[rule.pool]
        return None

    def inference_topic(self, pool: str, tier: str) -> str:
        """Where a pool's requests of a tier are queued."""
        return f"{self.inference_prefix}{pool}.{tier}"

    def session_topic(self, session_hex: str) -> Topic:
        """The token topic of one session."""
        limits = self.session_topics
        return Topic(
            name=limits.prefix + session_hex,
            key="response",
            partitions=1,
            retention_ms=limits.retention_ms,
            segment_ms=limits.segment_ms,
            events=self.topics[TOKENS].events,
        )


def load_topics(path: Path = TOPICS_FILE, **overrides: int | None) -> Topics:
    """The topics file, with the inference topics of every pool and tier spelled out.

    Raises:
        pydantic.ValidationError: the file does not say what it must.
    """
    raw = yaml.safe_load(path.read_text())
    partitions = raw["session_partitions"]
    inference = raw.pop("inference")
    topics = {name: _topic(name, spec, partitions) for name, spec in raw["topics"].items()}
    for pool in raw["pools"]:
        for tier in TIERS:
            name = f"{inference['prefix']}{pool}.{tier}"
            spec = {"key": "session", "retention": inference["retention"], "events": ["inference.request"]}
            topics[name] = _topic(name, spec | {"writers": ["orchestrator"], "readers": ["worker"]}, partitions)
    return Topics.model_validate(
        raw
        | {key: value for key, value in overrides.items() if value is not None}
        | {
            "topics": topics,
            "inference_prefix": inference["prefix"],
            "pools": {name: {"name": name, **spec} for name, spec in raw["pools"].items()},
            "session_topics": _durations(raw["session_topics"]),
        }
    )


def _topic(name: str, spec: dict[str, object], partitions: int) -> dict[str, object]:
    return {"name": name, "partitions": partitions, **_durations(spec)}


def _durations(spec: dict[str, object]) -> dict[str, object]:
    names = {"retention": "retention_ms", "segment": "segment_ms"}
    return {names.get(key, key): value for key, value in spec.items()}
