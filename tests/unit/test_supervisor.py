"""How roles are kept running, without any service: small programs stand for roles."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from infra.local import roles as catalogue
from infra.local.aside import settings_aside
from infra.local.console import LONGEST_LINE, Console, Lines
from infra.local.problems import StackError
from infra.local.process import Command, Process, lives
from infra.local.roles import Hook, RoleSpec
from infra.local.settings import ENGINES, LocalSettings
from infra.local.supervisor import Restarts, Supervisor


def program(code: str) -> list[str]:
    return [sys.executable, "-u", "-c", code]


async def nothing_needed(_service: str) -> None: ...


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


class Screen:
    """What a person would see."""

    def __init__(self) -> None:
        self._stream = io.StringIO()
        self.console = Console(self._stream)

    @property
    def lines(self) -> list[str]:
        return self._stream.getvalue().splitlines()

    def shows(self, line: str, times: int = 1) -> Callable[[], bool]:
        return lambda: self.lines.count(line) >= times


@pytest.fixture
def screen() -> Screen:
    return Screen()


@pytest.fixture
async def supervisor(screen: Screen) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor({"PARLEY_KAFKA__BOOTSTRAP": "127.0.0.1:1"}, screen.console)
    yield supervisor
    supervisor.kill()


@contextlib.asynccontextmanager
async def kept(supervisor: Supervisor, *roles: RoleSpec) -> AsyncIterator[None]:
    task = asyncio.create_task(supervisor.keep_all(roles, nothing_needed))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class TestRestarts:
    def test_the_first_wait_is_short_and_each_next_one_doubles_up_to_the_longest(self) -> None:
        restarts = Restarts(first=0.1, longest=0.5, limit=6)
        assert [restarts.after(lived=0) for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]

    def test_gives_up_when_the_limit_of_short_runs_in_a_row_is_reached(self) -> None:
        restarts = Restarts(limit=3)
        assert [restarts.after(lived=0) is None for _ in range(3)] == [False, False, True]

    def test_nothing_is_given_up_for_being_killed(self) -> None:
        restarts = Restarts(limit=3)
        assert all(restarts.after(lived=0, killed=True) is not None for _ in range(10))

    def test_a_stable_run_makes_good_the_failures_before_it(self) -> None:
        restarts = Restarts(first=0.1, stable=10, limit=3)
        assert [restarts.after(lived) for lived in (0, 0, 10, 0, 12)] == [0.1, 0.2, 0.1, 0.2, 0.1]


class TestLines:
    def test_lines_come_whole_however_the_bytes_arrive(self) -> None:
        lines = Lines()
        text = "première\r\nzweite\n".encode()
        assert [line for byte in text for line in lines.feed(bytes([byte]))] == ["première", "zweite"]
        assert lines.end() == []

    def test_what_has_no_end_comes_at_the_end(self) -> None:
        lines = Lines()
        assert lines.feed(b"last words") == []
        assert lines.end() == ["last words"]

    def test_a_line_without_end_does_not_fill_the_memory(self) -> None:
        lines = Lines()
        assert [len(line) for line in lines.feed(b"x" * (2 * LONGEST_LINE + 1))] == [LONGEST_LINE, LONGEST_LINE]

    def test_bytes_that_are_no_text_are_shown_all_the_same(self) -> None:
        assert Lines().feed(b"\xff\n") == ["\N{REPLACEMENT CHARACTER}"]


class TestConsole:
    def test_a_pipe_gets_no_colours_and_a_terminal_does(self) -> None:
        plain, coloured = io.StringIO(), io.StringIO()
        Console(plain, width=6).write("edge", "hello")
        Console(coloured, width=6, colour=True).write("edge", "hello")
        assert plain.getvalue() == "edge   | hello\n"
        assert coloured.getvalue().startswith("\x1b[")
        assert coloured.getvalue().endswith("hello\n")


class TestRoles:
    async def test_every_line_of_a_role_carries_its_name(self, supervisor: Supervisor, screen: Screen) -> None:
        code = "import sys, time; print('out'); print('err', file=sys.stderr); time.sleep(60)"
        async with kept(supervisor, RoleSpec("edge", program(code))):
            await until(lambda: {"edge | out", "edge | err"} <= set(screen.lines))

    async def test_a_role_gets_the_environment_of_the_stack_and_its_own(
        self, supervisor: Supervisor, screen: Screen
    ) -> None:
        code = "import os; print(os.environ['PARLEY_KAFKA__BOOTSTRAP'], os.environ['PARLEY_INSTANCE'])"
        await supervisor.run_hook(Hook("hook", program(code.replace("PARLEY_INSTANCE", "PYTHONUNBUFFERED"))))
        async with kept(supervisor, RoleSpec("edge", program(code), {"PARLEY_INSTANCE": "edge-0"})):
            await until(screen.shows("edge | 127.0.0.1:1 edge-0"))
        assert "hook | 127.0.0.1:1 1" in screen.lines

    async def test_a_role_that_is_killed_runs_again_within_a_second(
        self, supervisor: Supervisor, screen: Screen
    ) -> None:
        role = RoleSpec("worker", program("import time; print('here'); time.sleep(60)"))
        async with kept(supervisor, role):
            await until(screen.shows("worker | here"))
            killed = time.monotonic()
            os.kill(supervisor.running["worker"].pid, signal.SIGKILL)
            await until(screen.shows("worker | here", times=2))
            assert time.monotonic() - killed < 1.0
            assert "parley | worker ended with signal SIGKILL; starting it again in 0.1 s" in screen.lines

    async def test_a_role_that_ends_well_runs_again_too(self, supervisor: Supervisor, screen: Screen) -> None:
        async with kept(supervisor, RoleSpec("usage", program("print('done')"))):
            await until(screen.shows("usage | done", times=2))

    async def test_a_role_that_cannot_run_is_given_up_with_a_sentence_that_names_it(self, screen: Screen) -> None:
        supervisor = Supervisor({}, screen.console, lambda: Restarts(first=0.01, limit=3))
        with pytest.raises(ExceptionGroup) as caught:
            await supervisor.keep_all([RoleSpec("edge", program("raise SystemExit(3)"))], nothing_needed)
        (error,) = caught.value.exceptions
        assert isinstance(error, StackError)
        assert "The role edge ended 3 times in a row, at last with exit code 3" in str(error)

    async def test_a_role_waits_for_the_services_it_needs(self, supervisor: Supervisor, screen: Screen) -> None:
        well = asyncio.Event()
        asked: list[str] = []

        async def ready(service: str) -> None:
            asked.append(service)
            await well.wait()

        role = RoleSpec("history", program("import time; print('here'); time.sleep(60)"), needs=("kafka", "postgres"))
        task = asyncio.create_task(supervisor.keep_all([role], ready))
        await until(lambda: asked == ["kafka"])
        assert supervisor.running == {}
        well.set()
        await until(screen.shows("history | here"))
        assert asked == ["kafka", "postgres"]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def test_ending_lets_every_role_finish_and_say_so(self, supervisor: Supervisor, screen: Screen) -> None:
        code = (
            "import signal, sys, time\n"
            "signal.signal(signal.SIGTERM, lambda *_: (print('drained'), sys.exit(0)))\n"
            "print('here')\n"
            "time.sleep(60)"
        )
        async with kept(supervisor, RoleSpec("a", program(code)), RoleSpec("b", program(code))):
            await until(lambda: {"a | here", "b | here"} <= set(screen.lines))
        assert {"a | drained", "b | drained"} <= set(screen.lines)
        assert supervisor.running == {}

    async def test_a_hook_that_fails_stops_the_start_with_a_sentence(self, supervisor: Supervisor) -> None:
        with pytest.raises(StackError, match=r"failed \(exit code 7\)"):
            await supervisor.run_hook(Hook("migrate", program("raise SystemExit(7)")))


class TestSpares:
    """What waits takes the place of what has ended, with its name."""

    ROLE = "import os, time; print('I am', os.environ['PARLEY_INSTANCE'], flush=True); time.sleep(60)"
    SPARE = "import time; print('waiting', flush=True); print('I am now', input(), flush=True); time.sleep(60)"

    @pytest.fixture
    def role(self, monkeypatch: pytest.MonkeyPatch) -> RoleSpec:
        monkeypatch.setattr("infra.local.program.SPARE_EVERY", 0.05)
        return RoleSpec("worker", program(self.ROLE), {"PARLEY_INSTANCE": "worker-0"}, spare=program(self.SPARE))

    async def test_a_spare_takes_the_name_of_a_role_that_is_killed_and_the_next_spare_waits(
        self, supervisor: Supervisor, screen: Screen, role: RoleSpec
    ) -> None:
        async with kept(supervisor, role):
            await until(screen.shows("worker | I am worker-0"))
            for times in (1, 2):
                await until(screen.shows("worker | waiting", times))
                os.kill(supervisor.running["worker"].pid, signal.SIGKILL)
                await until(screen.shows("worker | I am now worker-0", times))
            assert screen.lines.count("worker | I am worker-0") == 1
            assert "parley | worker ended with signal SIGKILL; its spare takes its place" in screen.lines

    async def test_without_a_spare_that_lives_the_role_is_started_again(
        self, supervisor: Supervisor, screen: Screen
    ) -> None:
        role = RoleSpec("worker", program(self.ROLE), {"PARLEY_INSTANCE": "worker-0"}, spare=program(self.SPARE))
        async with kept(supervisor, role):
            await until(screen.shows("worker | I am worker-0"))
            os.kill(supervisor.running["worker"].pid, signal.SIGKILL)
            await until(screen.shows("worker | I am worker-0", times=2))

    async def test_a_spare_ends_with_the_rest(self, supervisor: Supervisor, screen: Screen, role: RoleSpec) -> None:
        code = "import os; print('pid', os.getpid(), flush=True); input()"
        async with kept(supervisor, dataclasses.replace(role, spare=program(code))):
            await until(lambda: any(line.startswith("worker | pid") for line in screen.lines))
        pid = next(int(line.rsplit(" ", 1)[1]) for line in screen.lines if line.startswith("worker | pid"))
        assert not psutil.pid_exists(pid)


class TestProcess:
    async def test_one_that_ignores_the_request_is_killed_after_its_grace(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); time.sleep(60)"
        process = await Process.start(Command(program(code), os.environ), log)
        await until(lambda: "deaf" in log.read_text())
        assert await process.stop(grace=0.3) == -signal.SIGKILL

    async def test_its_children_end_with_it(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        code = "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid); time.sleep(60)"
        process = await Process.start(Command(program(code), os.environ), log)
        await until(lambda: log.read_text().endswith("\n"))
        child = psutil.Process(int(log.read_text()))
        await process.stop(grace=0.3)
        await until(lambda: not lives(child))

    async def test_it_does_not_outlive_a_starter_that_is_killed(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        starter = (
            "import asyncio, os, sys, pathlib\n"
            "from infra.local.process import Command, Process\n"
            "async def main():\n"
            "    process = await Process.start(Command(['sleep', '60'], os.environ), pathlib.Path(sys.argv[1]))\n"
            "    print(process.pid, flush=True)\n"
            "    await process.wait()\n"
            "asyncio.run(main())"
        )
        parent = await asyncio.create_subprocess_exec(*program(starter), str(log), stdout=asyncio.subprocess.PIPE)
        assert parent.stdout is not None
        child = psutil.Process(int(await parent.stdout.readline()))
        await until(lambda: child.name() == "sleep")
        parent.kill()
        await parent.wait()
        await until(lambda: not lives(child))

    async def test_a_program_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        process = await Process.start(Command(["no-such-program"], os.environ), log)
        assert await process.wait() == 1
        assert "no-such-program: No such file or directory" in log.read_text()

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
    async def test_root_becomes_another_user_who_may_still_pass_its_folders(self, tmp_path: Path) -> None:
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o700)
        (closed / "file").write_text("inside")
        log = tmp_path / "log"
        shell = ["sh", "-c", f"id -u; cat {closed / 'file'}"]
        process = await Process.start(Command(shell, os.environ, user_id=65534), log)
        assert await process.wait() == 0
        assert log.read_text() == "65534\ninside"


class TestCatalogue:
    def test_there_is_a_worker_for_each_engine_and_every_name_is_there_once(self) -> None:
        names = [role.name for role in catalogue.roles(LocalSettings())]
        assert len(set(names)) == len(names)
        assert {"edge", "moderation", "orchestrator", "usage", "history-messages", "history-sessions"} < set(names)
        assert [name for name in names if name.startswith("worker-")] == ["worker-smol", "worker-synthetic"]

    def test_every_engine_of_a_pool_has_a_worker_and_every_worker_a_spare(self, tmp_path: Path) -> None:
        settings = settings_aside(tmp_path, twins=("synthetic",))
        workers = {role.name: role for role in catalogue.roles(settings) if role.name.startswith("worker-")}
        assert list(workers) == ["worker-smol", "worker-synthetic", "worker-synthetic-1"]
        assert workers["worker-synthetic"].argv[3:] == ["worker", "--pool", "synthetic"]
        assert workers["worker-synthetic-1"].argv[3:] == ["worker", "--pool", "synthetic", "--engine", "1"]
        assert all(role.spare == [*role.argv, "--spare"] for role in workers.values())

    def test_a_role_without_a_port_is_refused_with_a_sentence(self) -> None:
        engine = ENGINES["synthetic"].model_copy(update={"pool": "synthetic"})
        with pytest.raises(StackError, match="PARLEY_LOCAL_HEALTH_PORTS has no port for worker-more"):
            catalogue.roles(LocalSettings(engines={"more": engine}))

    def test_every_role_is_a_member_of_its_own_in_its_group(self) -> None:
        instances = [role.env["PARLEY_INSTANCE"] for role in catalogue.roles(LocalSettings())]
        assert len(set(instances)) == len(instances)
