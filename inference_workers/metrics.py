"""What a worker counts.

Turns are told under the names that dashboards know, from the times that they carry. `gen_ai_*` are OpenTelemetry's
(semantic conventions, generative AI metrics) and tell what users get: from acceptance on, with log, gate and guard.
`vllm:*` are vLLM's and tell what its server would: from the request's arrival at the worker, the queue for a slot
included, to what the engine says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

from prometheus_client import Counter, Gauge, Histogram

from inference_workers.admission import Admission
from parley.stages import FIRST_TEXT_BUCKETS, GAP_BUCKETS, seconds
from schemas.base import TIERS, Tier
from schemas.turns import TurnEnded

ENGINE_ALIVE = Gauge("parley_engine_alive", "1: the engine answered when it was last asked for a token", ["engine"])
ENGINE_PROBE_SECONDS = Gauge("parley_engine_probe_seconds", "Time of the last answered probe for a token", ["engine"])
ENGINE_DEATHS = Counter("parley_engine_deaths", "Times that an engine was found not to answer", ["engine"])
ENGINE_FAILURES = Counter("parley_engine_failures", "Runs that ended with an error of the engine", ["engine", "code"])
STALLED = Gauge(
    "parley_stalled_offset", "Offset of a record whose handler does not get on; absent: none", ["topic", "partition"]
)
STALLS = Counter("parley_stalls", "Handlers that did not get on and were begun anew", ["topic"])

SLOTS = Gauge("parley_engine_slots", "Runs that the engine may hold at once for this worker", ["pool"])
DRAINED = Gauge("parley_engine_drained", "1: an operator drains the worker's engine, it gets no new runs", ["pool"])

_MODEL = ("model_name", "pool", "tier")
RUNNING = Gauge("vllm:num_requests_running", "Turns that have a slot of the engine", ["model_name", "pool"])
WAITING = Gauge("vllm:num_requests_waiting", "Turns that wait for a slot of the engine", _MODEL)
ENGINE_TTFT = Histogram(
    "vllm:time_to_first_token_seconds",
    "From a request's arrival at the worker to the engine's first token",
    _MODEL,
    buckets=FIRST_TEXT_BUCKETS,
)
ENGINE_GAP = Histogram(
    "vllm:inter_token_latency_seconds", "Between two chunks of the engine's", _MODEL, buckets=GAP_BUCKETS
)
ENGINE_E2E = Histogram(
    "vllm:e2e_request_latency_seconds",
    "From a request's arrival at the worker to the turn's end",
    _MODEL,
    buckets=(0.3, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120),
)
PROMPT_TOKENS = Counter("vllm:prompt_tokens", "Tokens of prompts", _MODEL)
GENERATION_TOKENS = Counter("vllm:generation_tokens", "Tokens that the engine made", _MODEL)
SUCCESS = Counter("vllm:request_success", "Turns that ended with an answer", (*_MODEL, "finished_reason"))

_GEN_AI = ("gen_ai_operation_name", "gen_ai_request_model", "pool", "tier")
TTFT = Histogram(
    "gen_ai_server_time_to_first_token_seconds",
    "From acceptance to the first text in the log",
    _GEN_AI,
    buckets=FIRST_TEXT_BUCKETS,
)
PER_TOKEN = Histogram(
    "gen_ai_server_time_per_output_token_seconds",
    "A turn's time from its first text to its last, divided by the tokens after the first",
    _GEN_AI,
    buckets=GAP_BUCKETS,
)
DURATION = Histogram(
    "gen_ai_server_request_duration_seconds",
    "From acceptance to the turn's end",
    (*_GEN_AI, "error_type"),
    buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300),
)
TOKENS = Histogram(
    "gen_ai_client_token_usage",
    "Tokens of a turn: input, output",
    (*_GEN_AI, "gen_ai_token_type"),
    buckets=(1, 4, 16, 64, 256, 1024, 4096, 16384),
)


@dataclass(frozen=True, slots=True)
class Kind:
    """The histograms of one pool and tier, bound once: what is done for each token must cost next to nothing."""

    gap: Histogram
    engine: tuple[str, str, str]
    public: tuple[str, str, str, str]


@cache
def kind(model: str, pool: str, tier: Tier) -> Kind:
    """Of a pool and tier."""
    engine = (model, pool, tier)
    return Kind(ENGINE_GAP.labels(*engine), engine, ("chat", model, pool, tier))


def watch_engine(model: str, pool: str, admission: Admission, drained: Callable[[], bool]) -> None:
    """Tell of a worker's engine and its slots, read at each scrape."""
    DRAINED.labels(pool).set_function(drained)
    SLOTS.labels(pool).set_function(lambda: admission.slots)
    RUNNING.labels(model, pool).set_function(lambda: admission.running)
    for tier in TIERS:
        WAITING.labels(model, pool, tier).set_function(partial(_queued, admission, tier))


def _queued(admission: Admission, tier: Tier) -> int:
    return admission.queued()[tier]


def observe(ended: TurnEnded, pool: str, said: int | None) -> None:
    """Tell of a turn of this worker's whose end is in the log. `said`: when its last text was written, in ms.

    The times of a turn that was continued are its last run's: they tell nothing of its first text.
    """
    whole = not ended.continued_at
    times, usage = ended.timings, ended.usage
    of = kind(ended.model, pool, ended.tier)
    error = ended.failure.code if ended.failure is not None else ""
    DURATION.labels(*of.public, error).observe(seconds(ended.accepted_at, ended.ended_at))
    if times.taken is not None:
        ENGINE_E2E.labels(*of.engine).observe(seconds(times.taken, ended.ended_at))
        if whole and times.first_token is not None:
            ENGINE_TTFT.labels(*of.engine).observe(seconds(times.taken, times.first_token))
    if whole and times.released is not None:
        TTFT.labels(*of.public).observe(seconds(ended.accepted_at, times.released))
        if said is not None and usage.output_tokens > 1:
            PER_TOKEN.labels(*of.public).observe(seconds(times.released, said) / (usage.output_tokens - 1))
    TOKENS.labels(*of.public, "input").observe(usage.input_tokens)
    TOKENS.labels(*of.public, "output").observe(usage.output_tokens)
    PROMPT_TOKENS.labels(*of.engine).inc(usage.input_tokens)
    GENERATION_TOKENS.labels(*of.engine).inc(usage.generated_tokens)
    if ended.status in ("completed", "incomplete"):
        SUCCESS.labels(*of.engine, "length" if ended.reason == "max_output_tokens" else "stop").inc()
