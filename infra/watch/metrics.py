"""Every metric that the roles tell, found in the code that defines them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.metrics import MetricWrapperBase

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("parley", "producers", "consumers", "inference_workers")
OWN = ("parley_", "gen_ai_", "vllm:")
"""Beginnings of the names that are ours; the client library adds its own of the process."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric, by the name that queries use."""

    name: str
    kind: str
    """counter, gauge or histogram."""
    labels: tuple[str, ...]
    meaning: str
    buckets: tuple[float, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """The names under which Prometheus stores it."""
        return tuple(self.name + end for end in ("_bucket", "_sum", "_count")) if self.buckets else (self.name,)


def families() -> list[Family]:
    """All of them, by name."""
    return sorted(_found(), key=lambda family: family.name)


def markdown() -> str:
    """The table of docs/metrics.md."""
    lines = ["| metric | labels | meaning |", "|---|---|---|"]
    for family in families():
        kind = " (histogram)" if family.buckets else ""
        meaning = family.meaning.rstrip(".").replace("|", "\\|")
        lines.append(f"| `{family.name}`{kind} | {', '.join(family.labels)} | {meaning} |")
    return "\n".join(lines)


def _found() -> Iterator[Family]:
    for module in _modules():
        import_module(module)
    # The exporter's are registered when it serves; all others when their module is imported.
    exporter = import_module("consumers.lag.exporter").Exporter(interval_s=1)
    for collector in (*REGISTRY._collector_to_names, exporter):
        if isinstance(collector, MetricWrapperBase):
            buckets = tuple(getattr(collector, "_upper_bounds", ()))
            found = [_family(collector._name, str(collector._type), collector, collector._documentation, buckets)]
        else:
            told = (metric for metric in collector.collect() if hasattr(metric, "_labelnames"))
            found = [_family(metric.name, metric.type, metric, metric.documentation) for metric in told]
        yield from (family for family in found if family.name.startswith(OWN))


def _family(name: str, kind: str, metric: Any, meaning: str, buckets: tuple[float, ...] = ()) -> Family:
    return Family(f"{name}_total" if kind == "counter" else name, kind, tuple(metric._labelnames), meaning, buckets)


def _modules() -> Iterator[str]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "prometheus_client" in path.read_text():
                yield ".".join(path.relative_to(ROOT).with_suffix("").parts)
