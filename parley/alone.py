"""A folder that one process writes to at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from parley.errors import ParleyError

LOCK = ".lock"


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """The folder is this process's until the end. It is made if it isn't there, its owner's alone.

    The system lets the lock go when its process ends, however it does; the file stays.

    Raises:
        ParleyError: invalid_request: another process has it, or it can't be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ParleyError("invalid_request", f"can't write to {folder}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(lock, 20).decode("ascii", "replace").strip()
            named = f" ({holder})" if holder else ""
            raise ParleyError(
                "invalid_request", f"another process{named} is writing to {folder}: wait for its end, or end it first"
            ) from None
        os.truncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(lock)
