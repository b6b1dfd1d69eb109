"""What dashboards, rules and autoscaling ask for exists: a query of a name that nobody tells answers nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from infra.watch.boards import BOARDS
from infra.watch.metrics import Family, families, markdown
from tests.unit.watching import promql

ROOT = Path(__file__).resolve().parents[3]
RULES = sorted((ROOT / "infra/prometheus/rules").glob("*.yml"))
DASHBOARDS = ROOT / "infra/grafana/dashboards"
TARGET = {"job", "instance"}
"""Labels that Prometheus gives to everything that it scrapes."""
OTHERS = {
    "up": set(),  # Prometheus's own, of each target
    "process_cpu_seconds_total": set(),  # the client library's
    "process_resident_memory_bytes": set(),
    "engine_active_requests": {"model"},  # the engines' (infra/triton/models/llmapi/gauge.py)
}


def rules() -> list[dict[str, str]]:
    return [rule for path in RULES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def queries() -> Iterator[tuple[str, str]]:
    """(where, query) of everything that is asked of Prometheus."""
    for rule in rules():
        yield f"rule {rule.get('alert') or rule['record']}", rule["expr"]
    for path in sorted(DASHBOARDS.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                yield f"{path.name}, {panel['title']}", target["expr"]
    for path in sorted((ROOT / "infra/kubernetes").glob("*.yaml")):
        for number, document in enumerate(yaml.safe_load_all(path.read_text())):
            for trigger in (document or {}).get("spec", {}).get("triggers", ()):
                if trigger["type"] == "prometheus":
                    yield f"{path.name}, {number}", trigger["metadata"]["query"]


OURS: dict[str, Family] = {series: family for family in families() for series in family.series}
RECORDED = {rule["record"] for rule in rules() if "record" in rule}
QUERIES = list(queries())


def labels_of(metric: str) -> set[str]:
    family = OURS.get(metric)
    if family is None:
        return OTHERS[metric] | TARGET
    return {*family.labels, *TARGET, *(("le",) if metric.endswith("_bucket") else ())}


def test_there_are_queries_of_every_kind() -> None:
    kinds = {where.split(" ")[0].split(",")[0] for where, _ in QUERIES}
    assert {"rule", "parley-lag.json", "parley-promises.json", "keda.yaml"} <= kinds


@pytest.mark.parametrize(("where", "query"), QUERIES, ids=[where for where, _ in QUERIES])
def test_every_metric_and_label_of_a_query_exists(where: str, query: str) -> None:
    names = promql.metrics(query)
    assert names, query
    for name in names:
        assert name in OURS or name in OTHERS or name in RECORDED, f"nobody tells {name}"
    for name, label, _ in promql.matchers(query):
        assert name in RECORDED or label in labels_of(name), f"{name} has no label {label}"
    known = {label for name in names - RECORDED for label in labels_of(name)}
    if not names & RECORDED:
        assert promql.grouped_by(query) <= known, query


@pytest.mark.parametrize(("where", "query"), QUERIES, ids=[where for where, _ in QUERIES])
def test_a_bucket_that_is_asked_for_is_one_of_the_histograms(where: str, query: str) -> None:
    for name, label, value in promql.matchers(query):
        if label == "le":
            assert float(value) in OURS[name].buckets, f"{name} has no bucket {value}"


def test_a_misspelt_name_would_be_noticed() -> None:
    query = 'sum by (pool) (rate(parley_frist_text_seconds_bucket{le="0.5"}[5m])) > bool 0.5'
    assert promql.metrics(query) == {"parley_frist_text_seconds_bucket"}
    assert promql.grouped_by(query) == {"pool"}
    assert list(promql.matchers(query)) == [("parley_frist_text_seconds_bucket", "le", "0.5")]


def test_the_dashboards_are_as_the_code_says() -> None:
    written = {path.stem: json.loads(path.read_text()) for path in DASHBOARDS.glob("*.json")}
    assert written == {board.uid: board.as_json() for board in BOARDS}, "python -m infra.watch boards"


def test_panels_do_not_overlap() -> None:
    for board in BOARDS:
        cells: set[tuple[int, int]] = set()
        for panel in board.as_json()["panels"]:
            at = panel["gridPos"]
            own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert not own & cells
            cells |= own


def test_the_page_lists_every_metric_and_no_other() -> None:
    assert markdown() in (ROOT / "docs/metrics.md").read_text(), "python -m infra.watch metrics"


@pytest.mark.parametrize("rule", [rule for rule in rules() if "alert" in rule], ids=lambda rule: rule["alert"])
def test_every_alert_has_a_runbook_that_names_it(rule: dict[str, dict[str, str]]) -> None:
    alert, page = str(rule["alert"]), ROOT / rule["annotations"]["runbook_url"]
    assert alert in page.read_text().splitlines()[0]
    index = (ROOT / "docs/runbooks/README.md").read_text()
    assert f"`{alert}`" in index
    assert f"({page.name})" in index
    assert rule["labels"]["severity"] in ("page", "ticket")


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_every_metric_that_a_page_names_exists(page: Path) -> None:
    known = {*OURS, *(family.name for family in families())}
    assert set(re.findall(r"\b(?:parley_|vllm:)\w+\b(?!\*)", page.read_text())) <= known
