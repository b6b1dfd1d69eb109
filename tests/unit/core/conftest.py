"""Generated tests have no deadline for one example: a busy machine is not a bug."""

from __future__ import annotations

import pytest
from hypothesis import settings

from parley.safety.classifier import Classifier
from parley.safety.policy import Policy
from parley.settings import ROOT, ModerationSettings
from parley.tokenizers import Encoded, Tokenizer

settings.register_profile("core", deadline=None)
settings.load_profile("core")


@pytest.fixture(scope="session")
def smollm2() -> Tokenizer:
    """The tokenizer of the pool `smol`; `make setup` exports it from the model."""
    path = ROOT / ".cache" / "tokenizers" / "smollm2.json"
    if not path.exists():
        pytest.skip(f"{path} is missing: `make setup` exports it from the model")
    return Encoded(path)


@pytest.fixture(scope="session")
def classifier() -> Classifier:
    return Classifier.load(ModerationSettings().model)


@pytest.fixture(scope="session")
def policy() -> Policy:
    return Policy.load(ModerationSettings().policy)
