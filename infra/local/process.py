"""One child process: in a group of its own, tied to this process's life, ended politely and then for certain."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

TETHER = Path(__file__).with_name("tether.py")

# A stopped leader may leave members of its group behind for a moment (Triton's model processes do).
GROUP_POLL = 0.05


@dataclass(frozen=True)
class Command:
    """What to run. `death_signal` is what the kernel sends it when this process dies without having stopped it.

    `nice` above 0 lets others have the processor first. With `told` it has a standard input, for `tell`.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path | None = None
    user_id: int | None = None
    nice: int = 0
    told: bool = False
    stop_signal: signal.Signals = signal.SIGTERM
    death_signal: signal.Signals = signal.SIGTERM


class Process:
    """A running child. Its process id is also the id of its group and of its session."""

    def __init__(self, command: Command, child: asyncio.subprocess.Process) -> None:
        self.command = command
        self._child = child

    @classmethod
    async def start(cls, command: Command, output: Path | None = None) -> Process:
        """Start `command`; stdout and stderr go to the end of the file `output`, or to a pipe (`lines`).

        Call it from a thread that lives as long as the process should: the kernel ties the child to that thread.
        """
        user = -1 if command.user_id is None else command.user_id
        numbers = map(str, (os.getpid(), int(command.death_signal), user, command.nice))
        tether = [sys.executable, "-I", "-S", str(TETHER), *numbers]
        with contextlib.ExitStack() as stack:
            target = asyncio.subprocess.PIPE if output is None else stack.enter_context(output.open("ab")).fileno()
            child = await asyncio.create_subprocess_exec(
                *tether,
                *command.argv,
                env=dict(command.env),
                cwd=command.cwd,
                stdin=asyncio.subprocess.PIPE if command.told else asyncio.subprocess.DEVNULL,
                stdout=target,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(command, child)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; -N when signal N ended it."""
        return self._child.returncode

    @property
    def stdout(self) -> asyncio.StreamReader | None:
        return self._child.stdout

    async def wait(self) -> int:
        return await self._child.wait()

    def tell(self, line: str) -> None:
        """Write a line to its standard input; nothing happens when it has ended."""
        assert self._child.stdin is not None
        self._child.stdin.write(f"{line}\n".encode())

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the leader alone; nothing happens when it has ended."""
        if self._child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._child.send_signal(number)

    def kill(self) -> None:
        """SIGKILL the whole group."""
        kill_group(self.pid)

    async def stop(self, grace: float) -> int:
        """Ask it to end, wait up to `grace` seconds, then kill whatever is left of its group."""
        self.send(self.command.stop_signal)
        try:
            async with asyncio.timeout(grace):
                await self._child.wait()
                while group_lives(self.pid):
                    await asyncio.sleep(GROUP_POLL)
        except TimeoutError:
            pass
        finally:  # Also when the wait is cancelled: nothing may be left.
            self.kill()
        return await self._child.wait()


def group_lives(group: int) -> bool:
    """Whether any process of the group still runs. Ended ones that nobody has waited for yet do not count."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return any(lives(process) for process in psutil.process_iter() if group_of(process) == group)


def group_of(process: psutil.Process) -> int | None:
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(process.pid)
    return None


def lives(process: psutil.Process) -> bool:
    """Whether it runs. An ended process stays in the table until its parent, perhaps a slow init, has asked for it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def describe_exit(code: int) -> str:
    """ "exit code 3" or "signal SIGKILL"."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


async def run(command: Command, output: Path) -> int:
    """Run a program to its end; its output goes to the end of the file `output`. Cancelling ends the program."""
    process = await Process.start(command, output)
    try:
        return await process.wait()
    finally:
        await process.stop(grace=2.0)
