"""Every metric that the roles tell, found in the code that defines them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY

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
    exporter = import_module("consumers.lag.exporter").Exporter()
    told = [metric for collector in (*REGISTRY._collector_to_names, exporter) for metric in _of(collector)]
    for metric in told:
        name = _name(metric)
        if name.startswith(OWN):
            yield Family(
                f"{name}_total" if metric._type == "counter" else name,
                str(metric._type),
                tuple(metric._labelnames),
                str(metric._documentation),
                tuple(getattr(metric, "_upper_bounds", ())),
            )


def _modules() -> Iterator[str]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "prometheus_client" in path.read_text():
                yield ".".join(path.relative_to(ROOT).with_suffix("").parts)


def _of(collector: Any) -> Iterator[Any]:
    """A metric of the client library is its own family; other collectors give theirs when asked."""
    if hasattr(collector, "_labelnames"):
        yield collector
        return
    for family in collector.collect():
        family._type, family._documentation = family.type, family.documentation
        if hasattr(family, "_labelnames"):
            yield family


def _name(metric: Any) -> str:
    return str(getattr(metric, "_name", None) or metric.name)
