"""`make bench`: users on the synthetic engine, alone and through Parley, and what each role costs."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import click
import uvloop
import websockets
from rich.console import Console
from rich.table import Table

from bench.cancel import report as report_cancels
from bench.figures import Figures, Meter, figures, rss_kib
from bench.load import Load, engine_user, parley_user
from bench.replay import report as report_replay
from bench.resume import report as report_resumes
from bench.system import Configuration, Measured, running
from bench.takeover import report as report_takeovers
from bench.telemetry import report as report_telemetry
from infra.local.find import role_pid

console = Console(width=150)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Users on one system."""

    users: int
    think_s: float
    windows: float = 1.0
    """How many times the usual length: answers of many users at once take longer than it."""


PLAN: dict[str, tuple[Configuration, list[Scenario]]] = {
    "lanes, score and release": (
        Configuration("lane", 0),
        [Scenario(24, 0.3), Scenario(64, 0.0), Scenario(256, 0.0, windows=3)],
    ),
    "lanes, hold-back": (Configuration("lane", None), [Scenario(24, 0.3)]),
    "session topics, hold-back": (Configuration("session", None), [Scenario(24, 0.3), Scenario(64, 0.0)]),
}


@click.group(invoke_without_command=True)
@click.pass_context
@click.option("--seconds", default=15.0, show_default=True, help="Length of each measurement.")
@click.option("--tokens", default=100, show_default=True, help="Tokens of an answer; the engine says one each 20 ms.")
@click.option("--warm", default=40.0, show_default=True, help="Seconds of load before anything is measured.")
@click.option("--only", help="Only the systems whose name holds this.")
@click.option("--idle", default=2_000, show_default=True, help="Idle WebSockets whose memory is measured; 0: none.")
def main(ctx: click.Context, seconds: float, tokens: int, warm: float, only: str | None, idle: int) -> None:
    """Measure. Everything is started fresh, on free ports, and ended afterwards."""
    if ctx.invoked_subcommand is None:
        uvloop.run(_main(seconds, tokens, warm, only, idle))


@main.command()
@click.option("--count", default=200, show_default=True, help="Cancels.")
def cancel(count: int) -> None:
    """From the request to cancel to the engine's slot being free."""
    uvloop.run(_on_a_system(lambda system: report_cancels(system, count)))


@main.command()
@click.option("--count", default=100, show_default=True, help="Resumes of each kind.")
def resume(count: int) -> None:
    """From a new socket to the first missing event, on the same edge and on another."""
    uvloop.run(_on_a_system(lambda system: report_resumes(system, count)))


@main.command()
@click.option("--streams", default=(8, 50), multiple=True, show_default=True, help="Streams under way at each kill.")
@click.option("--kills", default=10, show_default=True, help="Kills of the worker for each number of streams.")
def takeover(streams: tuple[int, ...], kills: int) -> None:
    """From a worker's SIGKILL to the next token at each client, with a spare that waits."""
    for count in streams:
        uvloop.run(_on_a_system(lambda system, count=count: report_takeovers(system, count, kills)))  # type: ignore[misc]


@main.command()
@click.option("--count", default=10_000, show_default=True, help="Prompts.")
def replay(count: int) -> None:
    """Prompts of the log through moderation in shadow: the whole of `parley replay run`."""
    console.print(uvloop.run(report_replay(count)))


@main.command()
@click.option("--pairs", default=5, show_default=True, help="Measurements of each of the two systems.")
@click.option("--users", default=64, show_default=True)
@click.option("--seconds", default=10.0, show_default=True, help="Length of each measurement.")
@click.option("--tokens", default=100, show_default=True, help="Tokens of an answer.")
def telemetry(pairs: int, users: int, seconds: float, tokens: int) -> None:
    """CPU a token of two systems, one of which counts and times nothing."""
    with tempfile.TemporaryDirectory(prefix="parley-bench-") as folder:
        console.print(uvloop.run(report_telemetry(Path(folder), pairs, users, seconds, tokens)))


async def _on_a_system(measure: Callable[[Measured], Awaitable[str]]) -> None:
    with tempfile.TemporaryDirectory(prefix="parley-bench-") as folder:
        async with running(Configuration("auto", None), Path(folder)) as system:
            await Load(8, 0.3, 10.0, 50).run(parley_user(system.base_url, system.key), _nothing, _nothing)  # warms up
            console.print(await measure(system))


async def _main(seconds: float, tokens: int, warm: float, only: str | None, idle: int) -> None:
    for name, (configuration, scenarios) in PLAN.items():
        if only and only not in name:
            continue
        with tempfile.TemporaryDirectory(prefix="parley-bench-") as folder:
            async with running(configuration, Path(folder)) as system:
                await Load(24, 0.3, warm, tokens).run(parley_user(system.base_url, system.key), _nothing, _nothing)
                for scenario in scenarios:
                    await _compare(name, system, scenario, seconds, tokens)
                if idle and configuration.route == "lane" and configuration.hold_back == 0:
                    await _idle_sockets(system, idle)


def _nothing() -> None:
    """Nothing is measured while the system warms up."""


async def _compare(name: str, system: Measured, scenario: Scenario, seconds: float, tokens: int) -> None:
    seconds *= scenario.windows
    alone = Load(scenario.users, scenario.think_s, seconds, tokens)
    through = Load(scenario.users, scenario.think_s, seconds, tokens)
    meter, itself = Meter(system.pids()), Meter({"engine": system.pids()["engine"]})
    await alone.run(engine_user(system.engine), itself.start, itself.stop)
    await through.run(parley_user(system.base_url, system.key), meter.start, meter.stop)
    rows = {
        "engine alone": (figures(alone), itself),
        "through Parley": (figures(through), meter),
    }
    if system.hold_back:
        rows[f"engine alone, token {system.hold_back + 1}"] = (figures(alone, system.hold_back), itself)
    _print(f"{name}: {scenario.users} users, {scenario.think_s:g} s of think time", rows)


async def _idle_sockets(system: Measured, count: int) -> None:
    pid = role_pid(system.settings.kafka.port, "edge")
    url = system.base_url.replace("http", "ws", 1) + "/v1/responses"
    headers = {"authorization": f"Bearer {system.key}"}
    before = rss_kib(pid)
    sockets = []
    for _ in range(0, count, 50):
        connecting = (websockets.connect(url, additional_headers=headers, compression=None) for _ in range(50))
        sockets += await asyncio.gather(*connecting)
    await asyncio.sleep(2)
    console.print(f"{len(sockets)} idle WebSockets: {(rss_kib(pid) - before) / len(sockets):.1f} KiB each at the edge")
    await asyncio.gather(*(socket.close() for socket in sockets))


def _print(title: str, rows: dict[str, tuple[Figures, Meter]]) -> None:
    table = Table(title=title, title_justify="left")
    for column in (
        "",
        "turns",
        "failed",
        "TTFT p50",
        "p99",
        "session's first",
        "p99",
        "between p50",
        "p99",
        "tokens/s",
    ):
        table.add_column(column, justify="left" if not column else "right")
    for label, (seen, _) in rows.items():
        times = (seen.ttft_p50, seen.ttft_p99, seen.first_turn_p50, seen.first_turn_p99, seen.between_p50)
        texts = [f"{value:.1f}" for value in (*times, seen.between_p99)]
        table.add_row(label, str(seen.turns), str(seen.failed), *texts, f"{seen.tokens_per_s:.0f}")
    console.print(table)
    seen, meter = rows["through Parley"]
    each = meter.per_token_us(seen.tokens)
    console.print("CPU microseconds a token: " + ", ".join(f"{role} {cost:.0f}" for role, cost in each.items()) + "\n")


if __name__ == "__main__":
    main()
