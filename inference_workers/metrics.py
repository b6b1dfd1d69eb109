"""What a worker counts."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

ENGINE_ALIVE = Gauge("parley_engine_alive", "1: the engine answered when it was last asked for a token", ["engine"])
ENGINE_PROBE_SECONDS = Gauge("parley_engine_probe_seconds", "Time of the last answered probe for a token", ["engine"])
ENGINE_DEATHS = Counter("parley_engine_deaths", "Times that an engine was found not to answer", ["engine"])
ENGINE_FAILURES = Counter("parley_engine_failures", "Runs that ended with an error of the engine", ["engine", "code"])
STALLED = Gauge(
    "parley_stalled_offset", "Offset of a record whose handler does not get on; absent: none", ["topic", "partition"]
)
STALLS = Counter("parley_stalls", "Handlers that did not get on and were begun anew", ["topic"])
