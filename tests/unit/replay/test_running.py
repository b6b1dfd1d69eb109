"""A replay's folder: whose it is while it runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from parley import __version__
from parley.alone import alone
from producers.replay.cli import replay
from tests.unit.replay.replay_parts import manifest


def resume(folder: Path) -> tuple[int, str]:
    result = CliRunner().invoke(replay, ["resume", str(folder)])
    return result.exit_code, result.output


def test_a_replay_is_gone_on_with_by_one_process_at_a_time(tmp_path: Path) -> None:
    """Two would put each prompt into its topics twice, and write over each other's report."""
    manifest().save(tmp_path)
    with alone(tmp_path):
        code, said = resume(tmp_path)
    assert code == 1
    assert f"another process ({os.getpid()}) is writing to {tmp_path}" in said


def test_a_replay_that_another_version_began_is_not_gone_on_with(tmp_path: Path) -> None:
    """One report would hold what two versions made of it."""
    manifest(code="0.0.9").save(tmp_path)
    code, said = resume(tmp_path)
    assert code == 1
    assert f"was begun by Parley 0.0.9, and this is {__version__}" in said


def test_what_two_versions_make_does_not_pass_for_the_same() -> None:
    assert manifest(code="0.0.9").fingerprint != manifest(code="0.1.0").fingerprint
    assert manifest(code="0.1.0").fingerprint == manifest(code="0.1.0", rate=5.0).fingerprint


def test_a_folder_that_holds_no_replay_is_left_as_it_is(tmp_path: Path) -> None:
    code, said = resume(tmp_path / "nowhere")
    assert code == 1
    assert "it is no folder of a replay" in said
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("left", [b"", b"4711\n"])
def test_a_lock_is_its_process_s_and_not_its_file_s(tmp_path: Path, left: bytes) -> None:
    """What a killed process leaves keeps nobody out."""
    (tmp_path / ".lock").write_bytes(left)
    with alone(tmp_path):
        assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"
