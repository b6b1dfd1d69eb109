"""Prometheus's own tool over the rules: they can be read, and each alert comes and goes when it should."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest
import yaml

from infra.local.problems import StackError
from infra.local.prometheus import ensure_prometheus
from infra.local.settings import LocalSettings

ROOT = Path(__file__).resolve().parents[3]
PROMETHEUS = ROOT / "infra" / "prometheus"
RULES = sorted((PROMETHEUS / "rules").glob("*.yml"))
CASES = sorted(Path(__file__).parent.glob("alerts*.yml"))


@pytest.fixture(scope="module")
def promtool() -> Path:
    try:
        return asyncio.run(ensure_prometheus(LocalSettings())).promtool
    except StackError as error:
        pytest.skip(f"there is no promtool here: {error}")


def run(promtool: Path, *arguments: str | Path) -> str:
    done = subprocess.run([promtool, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_rules_and_the_configuration_can_be_read(promtool: Path) -> None:
    assert "SUCCESS" in run(promtool, "check", "rules", "--lint-fatal", *RULES)
    assert f"{len(RULES)} rule files found" in run(promtool, "check", "config", PROMETHEUS / "prometheus.yml")


@pytest.mark.parametrize("cases", CASES, ids=lambda path: path.stem)
def test_alerts_come_and_go(promtool: Path, cases: Path) -> None:
    assert "SUCCESS" in run(promtool, "test", "rules", cases)


def test_every_alert_comes_in_some_case() -> None:
    defined = {
        rule["alert"]
        for path in RULES
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    come = {
        case["alertname"]
        for path in CASES
        for test in yaml.safe_load(path.read_text())["tests"]
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    assert come == defined
