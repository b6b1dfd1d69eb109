"""The README says what is."""

from __future__ import annotations

from parley.settings import ROOT
from parley.settings_table import markdown, rows


def test_the_readme_holds_the_table_of_settings() -> None:
    """When it fails: put the output of `parley settings --markdown` into the README."""
    assert markdown() in (ROOT / "README.md").read_text()


def test_every_setting_says_what_it_means() -> None:
    assert [row.variable for row in rows() if not row.meaning] == []
