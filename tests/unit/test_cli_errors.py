"""How commands for operators end when they fail: a sentence and exit code 1, never a traceback."""

from __future__ import annotations

import errno
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from parley.cli import main
from parley.cli_errors import in_one_line


@pytest.mark.parametrize(
    "command", [("lag", "--once"), ("log", "chat.turns"), ("pool", "status"), ("dlq", "list"), ("usage",)]
)
@pytest.mark.parametrize(("content", "said"), [(None, "No such file"), ("topics: [", "settings: ")])
def test_a_topics_file_that_cannot_be_used_is_a_sentence(
    tmp_path: Path, command: tuple[str, ...], content: str | None, said: str
) -> None:
    file = tmp_path / "topics.yaml"
    if content is not None:
        file.write_text(content)
    # No broker is there either: whichever is met first, it is said in one line.
    env = {"PARLEY_CLUSTER__TOPICS_FILE": str(file), "PARLEY_KAFKA__BOOTSTRAP": "127.0.0.1:1"}
    result = CliRunner().invoke(main, command, env=env)
    assert (result.exit_code, type(result.exception)) == (1, SystemExit), result.exception
    assert result.output.startswith("Error: ")
    assert said in result.output or "no Kafka broker answers" in result.output


def test_a_full_disk_is_a_sentence_with_the_files_name() -> None:
    with pytest.raises(click.ClickException) as failed, in_one_line():
        raise OSError(errno.ENOSPC, "No space left on device", "/archive/chat.turns")
    assert failed.value.message == "/archive/chat.turns: No space left on device"


def test_who_has_read_enough_is_told_nothing() -> None:
    with pytest.raises(BrokenPipeError), in_one_line():
        raise BrokenPipeError
