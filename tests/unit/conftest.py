"""Modules of the model repositories are not of a package: Triton runs them from their folders. Loaded as files."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

MODELS = Path(__file__).parents[2] / "infra" / "triton" / "models"


def load(path: str) -> ModuleType:
    name = "parley_models_" + path.replace("/", "_").removesuffix(".py")
    spec = importlib.util.spec_from_file_location(name, MODELS / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def models() -> Path:
    return MODELS


@pytest.fixture(scope="session")
def answer_module() -> ModuleType:
    return load("chat/1/answer.py")


@pytest.fixture(scope="session")
def script_module() -> ModuleType:
    return load("synthetic/1/script.py")
