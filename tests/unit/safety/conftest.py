"""The committed model and policy, loaded once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parley.safety.classifier import Classifier
from parley.safety.policy import Policy

MODELS = Path(__file__).parents[3] / "models" / "moderation"


@pytest.fixture(scope="session")
def classifier() -> Classifier:
    return Classifier.load(MODELS / "moderation.bin")


@pytest.fixture(scope="session")
def policy() -> Policy:
    return Policy.load(MODELS / "policy.yaml")


@pytest.fixture(scope="session")
def metrics() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((MODELS / "metrics.json").read_text("utf-8"))
    return loaded
