"""`parley replay`: a part of the past once more, in shadow, with another policy, routing table or pool."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from parley.alone import alone
from parley.archive.source import open_source
from parley.cli_errors import in_one_line
from parley.errors import ParleyError
from parley.settings import Settings
from parley.timeline.cli import WIDE, Moment
from parley.timeline.read import Window
from parley.timeline.target import Target, parse_target
from parley.topics import PROMPTS
from producers.replay.exporting import export_slice
from producers.replay.fixtures import export_fixture
from producers.replay.manifest import FILE, Manifest
from producers.replay.report import Report
from producers.replay.running import PAGE, STAGES, drafted, run, written_report
from producers.replay.shadow import Shadow
from producers.replay.show import SHOWN, slice_lines, table
from producers.replay.slices import DEFAULT_LIMIT, Slice, Wanted, parse_offsets, resolve
from producers.replay.stage import clean, leftovers

T_ = TypeVar("T_")
F_ = TypeVar("F_", bound=Callable[..., Any])

_ARCHIVE = click.Path(exists=True, file_okay=False, path_type=Path)
_SLICE = (
    click.option("--since", type=Moment(), help="Records from this age (2h) or time on."),
    click.option("--until", type=Moment(), help="Records before this age or time; default: now."),
    click.option("--offsets", multiple=True, metavar="P:START-END", help="Or P@OFFSET, of partition P. Repeatable."),
    click.option("--session", help="Of this conversation: conv_… or a UUID."),
    click.option("--response", help="Of this turn: resp_… or msg_…."),
    click.option("--user", type=click.UUID, help="Of this user."),
    click.option("--from-archive", "archive", type=_ARCHIVE, help="Read the past from this folder, not from Kafka."),
    click.option("--limit", type=click.IntRange(min=1), default=DEFAULT_LIMIT, show_default=True, help="Records."),
)
show_content = click.option(
    "--show-content", is_flag=True, help="With what people wrote; that you asked for it is recorded in chat.audit."
)
sure = click.option("--yes", is_flag=True, help="Do it. Without it only the slice is shown.")
keeping = click.option("--keep", is_flag=True, help="Leave the replay's topics and group when it is done.")
as_json = click.option("--json", "json_wanted", is_flag=True, help="The whole report as JSON.")
every = click.option("--all", "every", is_flag=True, help="All turns that changed, not the first of them.")
folder = click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
existing = click.Path(exists=True, dir_okay=False, path_type=Path)


def slice_options(command: F_) -> F_:
    """The options that bound a slice."""
    for option in reversed(_SLICE):
        command = option(command)
    return command


@click.group()
def replay() -> None:
    """A slice of the log, exported or run once more in shadow: nothing live is touched."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


@replay.command()
@slice_options
@click.option("--topic", default=PROMPTS, show_default=True, help="Topic to take the slice of.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="File; of a fixture, folder.")
@click.option("--as-fixture", is_flag=True, help="All of a --session or --response, disguised, with a test.")
@show_content
@sure
def export(
    topic: str, out: Path, as_fixture: bool, show_content: bool, yes: bool, archive: Path | None, **bounds: Any
) -> None:
    """A slice as JSONL, beside it a manifest with counts, offsets and checksums.

    With --as-fixture: what happened to a conversation or a turn over all topics as a small fixture, ids changed and
    letters replaced, and a pytest that replays it in memory.
    """

    async def work(settings: Settings) -> str | None:
        if as_fixture:
            wanted = _wanted(**bounds)
            test = await _fixture(settings, out, show_content, archive, wanted) if yes else None
            return f"pytest {test}" if test else None
        slice_ = await _resolved(settings, topic, archive, bounds)
        if not yes:
            return None
        manifest = await export_slice(settings, slice_, out, archive=archive, content=show_content)
        return f"{manifest.counts['taken']:,} records in {out}"

    click.echo(_run(work) or "nothing was written: --yes writes")


@replay.command("run")
@slice_options
@click.option("--stage", type=click.Choice(list(STAGES)), required=True, help="Whose production code runs.")
@click.option("--policy", type=existing, help="Moderation policy; default: the live one.")
@click.option("--model", type=existing, help="Moderation model; default: the live one.")
@click.option("--topics", type=existing, help="Routing table and pools of the orchestrator; default: the live ones.")
@click.option("--pool", help="Pool whose engines answer, of the worker; default: the one that the turns had.")
@click.option("--rate", type=click.FloatRange(min=0.1), default=1000.0, show_default=True, help="Records a second.")
@click.option("--id", "name", help="Name of the replay; default: one made of the time.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for its files.")
@keeping
@show_content
@as_json
@every
@sure
def run_command(
    stage: str,
    policy: Path | None,
    model: Path | None,
    topics: Path | None,
    pool: str | None,
    rate: float,
    name: str | None,
    out: Path | None,
    keep: bool,
    show_content: bool,
    json_wanted: bool,
    every: bool,
    yes: bool,
    archive: Path | None,
    **bounds: Any,
) -> None:
    """Run a slice of chat.prompts through a role's own code in shadow, and compare."""

    async def work(settings: Settings) -> tuple[Path, Report] | None:
        slice_ = await _resolved(settings, PROMPTS, archive, bounds)
        if not yes:
            return None
        inputs = _inputs(settings, stage, policy=policy, model=model, topics=topics)
        if pool and stage != "worker":
            raise ParleyError("invalid_request", f"--pool is not for the stage {stage}")
        options = {"pool": pool} if pool else {}
        manifest = drafted(
            stage, slice_, inputs, options=options, archive=archive, replay=name, rate=rate, content=show_content
        )
        place = out or Path(f"replay-{manifest.id}")
        with alone(place):
            if (place / FILE).exists():
                raise ParleyError("invalid_request", f"{place} holds another replay: `parley replay resume`, or --out")
            return place, await _seen_through(settings, manifest, place, keep)

    done = _run(work)
    if done is None:
        click.echo("nothing was run: --yes runs it", err=True)
    else:
        _print(*done, json_wanted=json_wanted, every=every)


@replay.command()
@folder
@keeping
@as_json
@every
def resume(folder: Path, keep: bool, json_wanted: bool, every: bool) -> None:
    """Go on with a replay that was stopped: the same slice, the same files."""

    async def work(settings: Settings) -> Report:
        Manifest.load(folder)  # nothing is made where there is none
        with alone(folder):
            manifest = Manifest.load(folder)
            if manifest.ended_at is not None:
                raise ParleyError("invalid_request", f"replay {manifest.id} is done: `parley replay report {folder}`")
            return await _seen_through(settings, manifest, folder, keep)

    _print(folder, _run(work), json_wanted=json_wanted, every=every)


@replay.command()
@folder
@as_json
@every
def report(folder: Path, json_wanted: bool, every: bool) -> None:
    """Show the report of a replay that is done."""

    async def work(_: Settings) -> Report:
        return written_report(folder)

    _print(folder, _run(work), json_wanted=json_wanted, every=every)


@replay.command("clean")
@click.argument("name", metavar="ID", required=False)
def clean_command(name: str | None) -> None:
    """Delete the topics and groups of the replay ID; without ID: say what replays have left."""
    if name is None:
        found = _run(lambda settings: leftovers(settings.kafka))
        for left, (topics, groups) in sorted(found.items()):
            click.echo(f"{left}  {len(topics)} topics, {len(groups)} groups")
        if not found:
            click.echo("no replay has left anything")
        return
    shadow = _run(lambda _: _shadow(name))
    gone = _run(lambda settings: clean(settings.kafka, shadow))
    for each in gone:
        click.echo(f"deleted {each}")
    if not gone:
        click.echo(f"replay {name} has left nothing")


def _inputs(settings: Settings, stage: str, **given: Path | None) -> dict[str, Path]:
    """The files that a stage reads: those that are given, the live ones for the others."""
    judging = {"policy": settings.moderation.policy, "model": settings.moderation.model}
    planning = {"topics": settings.cluster.topics_file}
    live = {"moderation": judging, "orchestrator": planning, "worker": judging}[stage]
    foreign = [name for name, path in given.items() if path is not None and name not in live]
    if foreign:
        raise ParleyError("invalid_request", f"--{foreign[0]} is not for the stage {stage}")
    return {name: given[name] or path for name, path in live.items()}


async def _fixture(settings: Settings, out: Path, content: bool, archive: Path | None, wanted: Wanted) -> Path:
    if wanted.target is None:
        raise ParleyError("invalid_request", "a fixture is of one conversation or turn: give --session or --response")
    window = Window(wanted.since, wanted.until, wanted.limit)
    return await export_fixture(settings, wanted.target, window, out, archive=archive, content=content)


async def _shadow(name: str) -> Shadow:
    return Shadow(name)


async def _resolved(settings: Settings, topic: str, archive: Path | None, bounds: dict[str, Any]) -> Slice:
    """The slice that options ask for, shown."""
    wanted = _wanted(**bounds)
    async with open_source(settings.kafka, "parley-replay", archive) as source:
        found = await resolve(settings, source, topic, wanted)
    for line in slice_lines(found):
        click.echo(line, err=True)
    return found


def _wanted(
    since: int | None,
    until: int | None,
    offsets: tuple[str, ...],
    session: str | None,
    response: str | None,
    user: Any,
    limit: int,
) -> Wanted:
    if session and response:
        raise ParleyError("invalid_request", "--session or --response, not both")
    target: Target | None = None
    if session or response:
        target = parse_target(session or response or "")
        if (target.response is not None) != (response is not None):
            raise ParleyError("invalid_request", f"{target.text} is a {'turn' if session else 'conversation'}'s id")
    wanted = Wanted(since, until, parse_offsets(offsets), target, user, limit)
    if not wanted.bounded:
        raise ParleyError("invalid_request", "say where to begin: --since, --offsets, --session or --response")
    return wanted


async def _seen_through(settings: Settings, manifest: Manifest, place: Path, keep: bool) -> Report:
    try:
        return await run(settings, manifest, place, keep=keep, tell=lambda line: click.echo(line, err=True))
    except BaseException:
        click.echo(
            f"stopped: `parley replay resume {place}` goes on, `parley replay clean {manifest.id}` clears away",
            err=True,
        )
        raise


def _print(place: Path, report: Report, *, json_wanted: bool, every: bool) -> None:
    if json_wanted:
        click.echo(report.model_dump_json(indent=2))
        return
    terminal = Console()
    shown = len(report.rows) if every else SHOWN
    (terminal if terminal.is_terminal else Console(width=WIDE)).print(table(report, shown), markup=False)
    click.echo(f"page: {place / PAGE}")


def _run(work: Callable[[Settings], Coroutine[Any, Any, T_]]) -> T_:
    try:
        with in_one_line():
            return asyncio.run(work(Settings()))
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
