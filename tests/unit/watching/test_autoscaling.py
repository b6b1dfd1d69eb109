"""infra/kubernetes as far as it can be checked without a cluster. Queries: test_names.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from consumers.lag.groups import expected
from infra.watch.metrics import families
from parley.settings import ProtocolSettings
from parley.topics import load_topics
from tests.unit.watching import promql

FOLDER = Path(__file__).resolve().parents[3] / "infra" / "kubernetes"
TOPICS = load_topics()
SCALED: list[dict[str, Any]] = list(yaml.safe_load_all((FOLDER / "keda.yaml").read_text()))
HPA: dict[str, Any] = yaml.safe_load((FOLDER / "hpa.yaml").read_text())
QUERIES = [
    (scaled["metadata"]["name"], trigger["metadata"]["query"])
    for scaled in SCALED
    for trigger in scaled["spec"]["triggers"]
]


@pytest.mark.parametrize("scaled", SCALED, ids=lambda scaled: scaled["metadata"]["name"])
def test_a_group_has_a_member_at_least_and_none_without_a_partition(scaled: dict[str, Any]) -> None:
    assert (scaled["apiVersion"], scaled["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    spec = scaled["spec"]
    assert 1 <= spec["minReplicaCount"] <= spec["fallback"]["replicas"] <= spec["maxReplicaCount"]
    assert spec["maxReplicaCount"] <= TOPICS.session_partitions
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] > behavior["scaleUp"]["stabilizationWindowSeconds"]
    for trigger in spec["triggers"]:
        assert trigger["type"] == "prometheus"
        assert float(trigger["metadata"]["threshold"]) > float(trigger["metadata"]["activationThreshold"])


@pytest.mark.parametrize("scaled", SCALED, ids=lambda scaled: scaled["metadata"]["name"])
def test_no_figure_is_not_no_lag(scaled: dict[str, Any]) -> None:
    """The exporter tells nothing while no broker answers it: the fallback must hold then, not a lag of 0."""
    for trigger in scaled["spec"]["triggers"]:
        assert trigger["metadata"]["ignoreNullValues"] == "false"
        for name in ("parley_lag_seconds", "parley_lag_oldest_seconds", "parley_lag_records"):
            assert not re.search(rf"{name}{{[^}}]*}}\)? or ", trigger["metadata"]["query"]), "0 in its place"


@pytest.mark.parametrize(("name", "query"), QUERIES)
def test_a_query_asks_for_groups_and_pools_that_there_are(name: str, query: str) -> None:
    groups = {group.name for group in expected(TOPICS, ProtocolSettings())}
    asked = {(label, value) for _, label, value in promql.matchers(query)}
    for label, value in asked:
        known = {"group": groups, "pool": set(TOPICS.pools), "stage": {"running", "waiting"}}[label]
        assert value in known
    assert name.removeprefix("pool-") in {value.removeprefix("worker-") for label, value in asked if label != "stage"}


def test_a_waiting_turn_more_than_an_engine_has_slots_is_an_engine_more() -> None:
    [pool] = [scaled for scaled in SCALED if scaled["metadata"]["name"] == "pool-smol"]
    [waiting] = [t for t in pool["spec"]["triggers"] if t["metricType"] == "AverageValue"]
    assert float(waiting["metadata"]["threshold"]) == TOPICS.pools["smol"].slots


def test_edges_are_scaled_by_a_metric_that_they_tell() -> None:
    assert (HPA["apiVersion"], HPA["kind"]) == ("autoscaling/v2", "HorizontalPodAutoscaler")
    names = {metric["pods"]["metric"]["name"] for metric in HPA["spec"]["metrics"] if metric["type"] == "Pods"}
    assert names <= {family.name for family in families()}
    assert names == {"parley_edge_streams"}
