"""The README says what is."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from infra.local.settings import LocalSettings
from parley.settings import ROOT, Settings
from parley.settings_table import markdown, rows

README = (ROOT / "README.md").read_text()
TABLES: list[tuple[type[BaseModel], str]] = [(Settings, "PARLEY_"), (LocalSettings, "PARLEY_LOCAL_")]


@pytest.mark.parametrize(("model", "prefix"), TABLES)
def test_the_readme_holds_the_tables_of_settings(model: type[BaseModel], prefix: str) -> None:
    """When it fails: put the output of `parley settings --markdown` into the README."""
    assert markdown(model, prefix) in README


@pytest.mark.parametrize(("model", "prefix"), TABLES)
def test_every_setting_says_what_it_means(model: type[BaseModel], prefix: str) -> None:
    assert [row.variable for row in rows(model, prefix) if not row.meaning] == []


def test_the_readme_is_complete() -> None:
    assert "@@" not in README
