"""Every setting of every role, from PARLEY_* environment variables: unit, default and reason in one place.

Nested names use two underscores: PARLEY_KAFKA__BOOTSTRAP. `parley settings` prints this table.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from parley.ids import Keys
from parley.topics import TOPICS_FILE, Topics, load_topics

ROOT = Path(__file__).resolve().parent.parent


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class KafkaSettings(_Group):
    """How roles talk to Kafka. Chosen by measurement against aiokafka 0.14; see docs/kafka.md before changing one."""

    bootstrap: str = Field("127.0.0.1:9092", description="host:port, several separated by commas")
    session_timeout_ms: int = Field(
        3_000,
        description="a dead process's partitions move after this; brokers need group.min.session.timeout.ms so low",
    )
    heartbeat_interval_ms: int = Field(
        300, description="an eager rebalance leaves members without partitions for 2.5 s with the usual 3,000"
    )
    rebalance_timeout_ms: int = Field(6_000, description="nothing drains in rebalance callbacks, so it may be short")
    max_poll_interval_ms: int = Field(
        60_000, description="only a loop that hangs reaches it: polls never wait for work"
    )
    request_timeout_ms: int = Field(
        10_000, description="must outlast a broker's failover; aiokafka's 40,000 would hide a dead partition for long"
    )
    fetch_max_wait_ms: int = Field(
        500, description="records come at once; only a change of the assignment waits for a fetch that finds none"
    )
    max_request_size: int = Field(
        2_097_152, description="bytes of a produce request; checked at acceptance and dispatch"
    )
    linger_ms: int = Field(0, description="least time between two requests of a producer to a broker")
    token_linger_ms: int = Field(
        5, description="the same for tokens: those of many turns share a request, and a fetch at the edge"
    )
    retry_backoff_ms: int = Field(50, description="backoff between retries of requests to brokers")


class ProtocolSettings(_Group):
    """Times of the protocol (docs/protocol.md, section 4); `parley topics check` proves that the retentions fit."""

    resume_window_s: float = Field(3_600, description="how long a stream can be resumed from the log")
    max_turn_age_s: float = Field(
        1_800, description="a turn older than this is never started, and is ended if still open"
    )
    moderation_deadline_s: float = Field(5, description="no verdict by then: the turn ends with a retryable error")
    start_deadline_s: float = Field(10, description="no first token by then: the turn ends with a retryable error")
    answer_limit_s: float = Field(120, description="longest answer; then the turn ends failed, with what was shown")
    margin_s: float = Field(30, description="clocks, retention checks and luck")
    longest_store_outage_s: float = Field(259_200, description="the log outlasts the stores being down for this long")
    proof_tick_ms: float = Field(5, description="turns that end together share one commit as proof")
    commit_interval_ms: float = Field(500, description="how often finished offsets are committed")
    window: int = Field(2_000, description="records taken beyond the committed offset of a partition")
    waiting_turns: int = Field(8, description="turns that may wait in one session; beyond: conversation_busy")
    key_life_s: float = Field(86_400, description="an Idempotency-Key stands for its turn for so long")

    @property
    def longest_verdict_s(self) -> float:
        """How long moderation's record may run."""
        return self.moderation_deadline_s + self.margin_s

    @property
    def longest_request_s(self) -> float:
        """How long a worker's record may run."""
        return self.start_deadline_s + self.answer_limit_s + self.margin_s

    @property
    def longest_prompt_s(self) -> float:
        """How long an orchestrator's record may run: until its turn has come, behind a full queue, and ended."""
        return (self.waiting_turns + 1) * (self.start_deadline_s + self.answer_limit_s) + self.margin_s


class MessagesSettings(_Group):
    """The message store: ScyllaDB or Cassandra 5."""

    hosts: tuple[str, ...] = Field(("127.0.0.1",), description="contact points, a JSON list")
    port: int = Field(9042, description="of the native protocol")
    keyspace: str = Field("parley", description="made by `parley migrate`")
    datacenter: str = Field("datacenter1", description="requests stay in it")
    replication: int = Field(1, description="replicas of each message in the data centre; production: 3")
    username: str | None = Field(None, description="None: no login")
    password: SecretStr | None = Field(None, description="of that user")
    in_flight: int = Field(64, description="requests at once from one process")


class PostgresSettings(_Group):
    """Users, keys, sessions and usage."""

    dsn: SecretStr = Field(
        SecretStr("postgresql://postgres@127.0.0.1:5432/postgres"), description="URI; may hold a password"
    )
    pool_size: int = Field(5, description="connections of one process; none is held during a stream")


class EdgeSettings(_Group):
    """The WebSocket and HTTP edge."""

    host: str = Field("127.0.0.1", description="where the edge listens")
    port: int = Field(8080, description="for HTTP and WebSocket")
    origins: tuple[str, ...] = Field(
        (), description="Origins that may open a WebSocket beside the edge's own; `*` allows all"
    )
    max_message_bytes: int = Field(1_048_576, description="of a WebSocket message or an HTTP body")
    messages_per_second: float = Field(20, description="a socket's messages, averaged over ten seconds")
    route: Literal["auto", "session", "lane"] = Field("auto", description="where token events of new turns go")
    keepalive_s: float = Field(15, description="a comment or ping at least this often, so that no proxy gives up")
    dead_peer_s: float = Field(45, description="a socket that answers no ping for so long is half-open: close it")
    socket_lifetime_s: float = Field(3_600, description="then the socket is closed between turns")
    reader_queue: int = Field(2_000, description="events waiting for one slow client before it is sent to resume")
    drain_s: float = Field(10, description="on SIGTERM: how long open responses may go on")


class OrchestratorSettings(_Group):
    """Sessions and their turns."""

    sessions_mb: float = Field(
        128, description="events of idle sessions kept, in MiB (4 times that in memory); others come from the store"
    )


class WorkerSettings(_Group):
    """The batching worker."""

    silence_limit_s: float = Field(10, description="a running stream that says nothing for so long is dead")
    runs_limit: int = Field(3, description="runs of a turn by one holder before it ends failed")
    probe_interval_s: float = Field(1, description="an engine that has said nothing for so long is asked for a token")
    probe_limit_s: float = Field(5, description="no token by then: the engine is dead, and its runs go elsewhere")
    engine_wait_s: float = Field(20, description="how long a begun turn waits for an engine that answers")
    stall_s: float = Field(20, description="a turn that does not get on for so long is begun anew; > silence_limit_s")


class ModerationSettings(_Group):
    """The classifier and its policy."""

    model: Path = Field(ROOT / "models" / "moderation" / "moderation.bin", description="fastText classifier")
    policy: Path = Field(
        ROOT / "models" / "moderation" / "policy.yaml", description="thresholds, actions, hold-back, refusals"
    )


class ClusterSettings(_Group):
    """What differs between clusters: overrides of topics.yaml."""

    topics_file: Path = Field(TOPICS_FILE, description="topics, pools and routing")
    replication: int | None = Field(None, description="copies of every partition; None: as the file says")
    min_insync_replicas: int | None = Field(None, description="copies that an acknowledgement needs; None: as the file")


class Settings(BaseSettings):
    """All of it, resolved once at the start of a process and passed down."""

    model_config = SettingsConfigDict(env_prefix="PARLEY_", env_nested_delimiter="__", frozen=True, extra="forbid")

    instance: str | None = Field(
        None, description="static member name of this process in its group; None: a dynamic one"
    )
    id_keys: tuple[SecretStr, ...] = Field((), description="base64 secrets of the edges for ids, the current one first")
    engines: dict[str, tuple[str, ...] | str] = Field(
        default_factory=dict, description="pool -> gRPC address (or addresses) of its engines"
    )
    tokenizers_dir: Path = Field(ROOT / ".cache" / "tokenizers", description="NAME.json of each pool's tokenizer")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="to standard error")
    metrics_host: str = Field("127.0.0.1", description="where metrics_port listens")
    metrics_port: int | None = Field(None, description="Prometheus metrics and health of a role without an HTTP port")

    kafka: KafkaSettings = KafkaSettings()
    protocol: ProtocolSettings = ProtocolSettings()
    messages: MessagesSettings = MessagesSettings()
    postgres: PostgresSettings = PostgresSettings()
    edge: EdgeSettings = EdgeSettings()
    orchestrator: OrchestratorSettings = OrchestratorSettings()
    worker: WorkerSettings = WorkerSettings()
    moderation: ModerationSettings = ModerationSettings()
    cluster: ClusterSettings = ClusterSettings()

    @cached_property
    def topics(self) -> Topics:
        """topics.yaml with this cluster's overrides."""
        chosen = self.cluster
        return load_topics(
            chosen.topics_file, replication=chosen.replication, min_insync_replicas=chosen.min_insync_replicas
        )

    @cached_property
    def keys(self) -> Keys:
        """The secrets for ids.

        Raises:
            ValueError: none is set.
        """
        from base64 import b64decode

        if not self.id_keys:
            raise ValueError("PARLEY_ID_KEYS is not set: give a JSON list of base64 secrets, the current one first")
        return Keys(tuple(b64decode(key.get_secret_value()) for key in self.id_keys))

    def engine_addresses(self, pool: str, own: int) -> tuple[str, ...]:
        """Where the engines of a pool are, a worker's own first. One worker owns each: nothing else bounds its queue.

        Raises:
            ValueError: the pool has no engine of this number (from 0).
        """
        given = self.engines.get(pool, ())
        addresses = (given,) if isinstance(given, str) else tuple(given)
        if own >= len(addresses):
            raise ValueError(f'PARLEY_ENGINES has no engine {own} of pool {pool!r}: give {{"{pool}": "host:port"}}')
        return addresses[own:] + addresses[:own]
