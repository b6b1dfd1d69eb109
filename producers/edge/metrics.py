"""Every metric of the edge: name, kind, meaning."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from parley.stages import FIRST_TEXT_BUCKETS, GAP_BUCKETS

PROMPTS = Counter("parley_edge_prompts", "Prompts asked for, by outcome: accepted or the error's code", ["outcome"])
STREAMS = Gauge("parley_edge_streams", "Open connections, by transport: websocket, sse", ["transport"])
FEEDS = Gauge("parley_edge_feeds", "Responses whose routes this edge reads now")
EVENTS = Counter("parley_edge_events", "Public events written to clients, by transport", ["transport"])
ACCEPTANCE = Histogram(
    "parley_edge_acceptance_seconds",
    "From a parsed request to the log's acknowledgement",
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
FIRST_TEXT = Histogram(
    "parley_first_text_seconds",
    "From a parsed request to its first text at the edge: what a user waits for",
    ["pool", "tier"],
    buckets=FIRST_TEXT_BUCKETS,
)
GAP = Histogram(
    "parley_text_gap_seconds",
    "Between two pieces of a turn's text at the edge; those that come together have none",
    ["pool", "tier"],
    buckets=GAP_BUCKETS,
)
SLOW_READERS = Counter("parley_edge_slow_readers", "Connections closed because they did not read", ["transport"])
UNREADABLE = Counter("parley_edge_unreadable_records", "Records of routes that could not be decoded and were skipped")
