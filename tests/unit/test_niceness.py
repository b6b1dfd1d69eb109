"""What only keeps and counts leaves the processor to the others, also where the kernel shares it by session."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import psutil
import pytest

from infra.local.process import Command, Process

GROUP = Path("/proc/self/autogroup")


@pytest.mark.parametrize("nice", [0, 7])
async def test_a_process_is_as_nice_as_it_was_told_to_be_and_so_is_its_session(nice: int) -> None:
    """Every role has a session of its own: where these share the processor, a process's own niceness does nothing."""
    ready = "print('runs', flush=True); import time; time.sleep(60)"
    process = await Process.start(Command([sys.executable, "-c", ready], os.environ, nice=nice))
    try:
        assert process.stdout is not None
        async with asyncio.timeout(20):
            assert await process.stdout.readline() == b"runs\n"
        assert psutil.Process(process.pid).nice() == nice + psutil.Process().nice()
        if GROUP.exists():  # not every kernel has such groups
            told = Path(f"/proc/{process.pid}/autogroup").read_text().split()
            assert told[1:] == ["nice", str(nice)]
    finally:
        await process.stop(1)
