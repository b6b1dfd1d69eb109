"""Which migrations are applied, and what contradicts itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from parley.stores.migrate import MIGRATIONS, Migration, MigrationError, load, pending, statements


@pytest.mark.parametrize("store", ["postgres", "messages"])
def test_the_migrations_of_the_project_are_numbered_without_gaps(store: str) -> None:
    assert [migration.number for migration in load(MIGRATIONS / store)]


def test_a_missing_number_is_refused(tmp_path: Path) -> None:
    (tmp_path / "0001_first.sql").write_text("SELECT 1")
    (tmp_path / "0003_third.sql").write_text("SELECT 3")
    with pytest.raises(MigrationError, match=r"\[1, 3\]"):
        load(tmp_path)


def test_a_file_of_another_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "first.sql").write_text("SELECT 1")
    with pytest.raises(MigrationError, match=r"first\.sql"):
        load(tmp_path)


def test_only_what_was_not_applied_is_pending() -> None:
    one, two = Migration(1, "one", "SELECT 1"), Migration(2, "two", "SELECT 2")
    assert pending([one, two], {}) == [one, two]
    assert pending([one, two], {1: one.checksum}) == [two]


def test_older_code_leaves_a_newer_store_alone() -> None:
    one = Migration(1, "one", "SELECT 1")
    assert pending([one], {1: one.checksum, 2: "of newer code"}) == []


def test_a_migration_that_was_changed_after_it_was_applied_is_refused() -> None:
    with pytest.raises(MigrationError, match="write a new migration"):
        pending([Migration(1, "one", "SELECT 2")], {1: Migration(1, "one", "SELECT 1").checksum})


def test_a_cql_file_is_split_at_semicolons_that_end_lines() -> None:
    text = "-- a; comment\nCREATE TABLE a (\n  b int -- no comment of a line\n);\n\nINSERT INTO a VALUES (';');\n"
    assert statements(text) == ["CREATE TABLE a (\n  b int -- no comment of a line\n)", "INSERT INTO a VALUES (';')"]
