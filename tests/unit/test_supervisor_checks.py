"""What is refused before anything starts, each in one sentence that says what to do."""

from __future__ import annotations

import os
import socket
import stat
import sys
from pathlib import Path

import pytest

from infra.local import checks
from infra.local.checks import PortUse
from infra.local.problems import StackError
from infra.local.settings import LOOPBACK
from infra.local.stack import load_secrets


def test_a_taken_port_is_named_with_who_has_it_and_the_setting_that_moves_it(free_port: int) -> None:
    with socket.create_server((LOOPBACK, free_port)), pytest.raises(StackError) as caught:
        checks.check_ports([PortUse(free_port, "Kafka", "PARLEY_LOCAL_KAFKA__PORT")])
    message = str(caught.value)
    assert message.startswith(f"Port {free_port} (Kafka) is taken by ")
    assert f"(process {os.getpid()})" in message
    assert "set PARLEY_LOCAL_KAFKA__PORT" in message


def test_a_port_taken_on_all_addresses_is_taken_here_too(free_port: int) -> None:
    with socket.create_server(("0.0.0.0", free_port)):
        assert not checks.is_free(free_port)
    assert checks.is_free(free_port)


def test_a_full_disk_is_named_with_what_is_left_and_what_is_needed(tmp_path: Path) -> None:
    checks.check_space(tmp_path, minimum=1)
    with pytest.raises(StackError, match=r"GiB are free in .* and Parley needs 1048576\.0: free some, or set PARLEY_"):
        checks.check_space(tmp_path, minimum=1 << 50)


def test_a_data_folder_belongs_to_one_process_which_is_named(tmp_path: Path) -> None:
    held = rf"already runs on {tmp_path} \(process {os.getpid()}\)"
    with checks.lock(tmp_path), pytest.raises(StackError, match=held), checks.lock(tmp_path):
        pytest.fail("two held one folder")
    with checks.lock(tmp_path):
        pass


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("Error: could not find libjava.so", None),
    ],
)
def test_the_version_of_java_is_read_from_its_answer(answer: str, version: int | None) -> None:
    assert checks.java_version(answer) == version


def test_a_missing_program_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StackError, match=r"`java` is missing: install a Java runtime, version 17 or newer\."):
        checks.check_java()


def test_an_old_java_is_refused_with_its_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text(f"#!{sys.executable}\nimport sys\nsys.stderr.write('openjdk version \"11.0.2\" 2019-01-15')\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StackError, match=r"is version 11: Kafka and Cassandra need 17 or newer"):
        checks.check_java()


def test_secrets_are_made_once_and_are_their_owners_alone(tmp_path: Path) -> None:
    made = load_secrets(tmp_path)
    assert load_secrets(tmp_path) == made
    assert stat.S_IMODE((tmp_path / "secrets.json").stat().st_mode) == 0o600
    assert load_secrets(tmp_path.parent) != made
