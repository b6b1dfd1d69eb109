"""`parley`: one command line, one role a process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any

import click
from pydantic import ValidationError

from parley.settings import Settings

ELSEWHERE = {
    "dlq": "producers.replay.dlq_cli:dlq",
    "doctor": "infra.doctor.cli:doctor",
    "group": "parley.offsets.cli:group",
    "keys": "parley.stores.commands:keys",
    "lag": "consumers.lag.cli:lag",
    "log": "parley.timeline.cli:log",
    "migrate": "parley.stores.commands:migrate",
    "pool": "parley.pools_cli:pool",
    "replay": "producers.replay.cli:replay",
    "schemas": "parley.contract.cli:schemas",
    "topics": "parley.topics_cli:topics",
    "turn": "parley.timeline.turn_cli:turn",
    "usage": "consumers.usage.cli:usage",
    "users": "parley.stores.commands:users",
}
"""Commands that are defined beside what they use, as module:name."""


class Commands(click.Group):
    """Imports what a command needs when it is asked for: a role that starts again should not load the others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *ELSEWHERE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        module, name = ELSEWHERE[cmd_name].split(":")
        command: click.Command = getattr(import_module(module), name)
        return command


def _settings() -> Settings:
    try:
        return Settings()
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise click.ClickException(f"a PARLEY_* variable is wrong: {wrong}") from None


def _serve(role: str, work: Callable[[Settings], Coroutine[Any, Any, None]], *, spare: bool = False) -> None:
    from parley.process import run_role

    sys.exit(run_role(_settings(), role, work, spare=spare))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="parley-chat")
def main() -> None:
    """An LLM chat assistant as an event-driven pipeline over Kafka: the log is the truth."""


@main.command()
def edge() -> None:
    """Serve WebSocket, SSE and REST to users."""
    from producers.edge.main import run

    _serve("edge", run)


@main.command()
def moderation() -> None:
    """Judge prompts: chat.prompts to chat.verdicts."""
    from consumers.moderation.main import run

    _serve("moderation", run)


@main.command()
def orchestrator() -> None:
    """Keep sessions, build contexts, route turns to pools."""
    from consumers.orchestrator.main import run

    _serve("orchestrator", run)


@main.command()
@click.option("--pool", required=True, help="Pool of topics.yaml whose engine this process feeds.")
@click.option("--engine", default=0, show_default=True, help="Place of its engine in PARLEY_ENGINES.")
@click.option("--spare", is_flag=True, help="Get all ready, then wait on standard input for an instance id.")
def worker(pool: str, engine: int, spare: bool) -> None:
    """Run a pool's turns on one engine: its in-flight batch is kept full."""
    from inference_workers.main import run

    _serve(f"worker-{pool}", lambda settings: run(settings, pool, engine, spare=spare), spare=spare)


@main.command()
@click.option(
    "--store", type=click.Choice(["messages", "sessions"]), required=True, help="Each store has a group of its own."
)
def history(store: str) -> None:
    """Write what happened to the message store or to PostgreSQL."""
    from consumers.history.main import run

    _serve(f"history-{store}", lambda settings: run(settings, store))  # type: ignore[arg-type]


@main.command()
@click.option("--since", default=15.0, show_default=True, help="Minutes: turns that ended earlier are left out.")
def traces(since: float) -> None:
    """Send a trace of each turn that ends to a collector (OTEL_EXPORTER_OTLP_ENDPOINT)."""
    try:
        from consumers.traces.main import run
    except ModuleNotFoundError as missing:
        raise click.ClickException(f"{missing.name} is not installed: `pip install parley-chat[otel]`") from None
    _serve("traces", lambda settings: run(settings, int(since * 60_000)))


@main.command()
def up() -> None:
    """Start everything on this machine; Ctrl-C ends it."""
    import asyncio

    from infra.local.settings import LocalSettings
    from infra.local.up import up as run

    sys.exit(asyncio.run(run(LocalSettings())))


@main.command()
@click.option("--url", default="http://127.0.0.1:8080", show_default=True, envvar="PARLEY_URL", help="Of an edge.")
@click.option("--key", envvar="PARLEY_KEY", help="API key; also from PARLEY_KEY.")
@click.option("--model", default="auto", show_default=True, help="Model for new turns.")
def chat(url: str, key: str | None, model: str) -> None:
    """Chat in the terminal."""
    from clients.terminal.main import run

    sys.exit(run(url, key, model))


@main.command()
@click.option("--markdown", is_flag=True, help="As the table of the README.")
def settings(markdown: bool) -> None:
    """Print every setting: variable, default, meaning."""
    from infra.local.settings import LocalSettings
    from parley import settings_table

    for model, prefix in ((Settings, "PARLEY_"), (LocalSettings, "PARLEY_LOCAL_")):
        if markdown:
            click.echo(settings_table.markdown(model, prefix) + "\n")
        else:
            for row in settings_table.rows(model, prefix):
                click.echo(f"{row.variable:<44} {row.default:<28} {row.meaning}")
