"""A replay from its slice to its report: begun, gone on with after a kill, cleared away when it is done."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TypeAlias
from uuid import UUID

from parley import __version__
from parley.archive.read import Archive
from parley.clock import now_ms
from parley.errors import ParleyError
from parley.log.spans import Source, open_spans
from parley.settings import Settings
from parley.timeline.audit import operator, record_reading
from producers.replay.manifest import Input, Manifest, Output
from producers.replay.page import page
from producers.replay.prompts import Prompts, read_prompts
from producers.replay.report import Report
from producers.replay.shadow import Shadow
from producers.replay.slices import Slice
from producers.replay.stage import Stage, clean

StageRun: TypeAlias = Callable[[Stage, Source, Manifest, Prompts], Awaitable[Report]]
STAGES = {
    "moderation": "producers.replay.moderating",
    "orchestrator": "producers.replay.replanning",
    "worker": "producers.replay.answering",
}
"""Modules whose `replay` runs a stage: imported when it is, since each loads a whole role."""
REPORT, PAGE = "report.json", "report.html"


def new_id() -> str:
    """A replay's name: when it began, and something that another one of that second lacks."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def drafted(
    stage: str,
    slice_: Slice,
    inputs: dict[str, Path],
    *,
    options: dict[str, str],
    archive: Path | None,
    replay: str | None,
    rate: float,
    content: bool,
) -> Manifest:
    """What is about to be run; nothing is written.

    Raises:
        ParleyError: invalid_request: a file can't be read, or the name is none.
    """
    return Manifest.model_validate(
        {
            "id": Shadow(replay or new_id()).id,
            "stage": stage,
            "operator": operator(),
            "code": __version__,
            "began_at": now_ms(),
            "slice": slice_,
            "rate": rate,
            "inputs": {name: Input.of(path) for name, path in inputs.items()},
            "options": options,
            "archive": str(archive.resolve()) if archive else None,
            "content": content,
        }
    )


async def audited(settings: Settings, command: str, slice_: Slice) -> None:
    """Put into the log that the operator is shown what people wrote in a slice.

    Raises:
        ParleyError: log_unavailable: nothing may be shown.
    """
    session = UUID(slice_.session) if slice_.session else None
    spans = ", ".join(f"{partition}:{low}-{high}" for partition, (low, high) in slice_.spans.items())
    what = f"{slice_.topic} {spans}"[:500]
    await record_reading(settings, command, what, session=session, response=slice_.response)


async def run(
    settings: Settings, manifest: Manifest, folder: Path, *, keep: bool, tell: Callable[[str], None]
) -> Report:
    """Run a replay, or go on with it, and write its files. Its topics and groups go when it is done, unless kept.

    Raises:
        ParleyError: log_unavailable; invalid_request: an input has changed, or the version that began it is another;
            internal: the role stands still.
        ValueError: an input is not what it should be.
    """
    if manifest.code != __version__:
        why = f"was begun by Parley {manifest.code}, and this is {__version__}: go on with that, or run another"
        raise ParleyError("invalid_request", f"replay {manifest.id} {why}")
    if manifest.content:
        await audited(settings, "parley replay run", manifest.slice)
    manifest.save(folder)
    archive = Path(manifest.archive) if manifest.archive else None
    async with open_spans(settings.kafka, "parley-replay") as spans:
        past: Source = Archive(archive) if archive else spans
        prompts = await read_prompts(past, manifest.slice)
        manifest = manifest.model_copy(update={"counts": {"taken": len(prompts.taken), **prompts.passed_over}})
        tell(f"{len(prompts.taken):,} prompts, {sum(prompts.passed_over.values()):,} records passed over")
        stage = Stage(settings, spans, Shadow(manifest.id), manifest.fingerprint, tell)
        replay: StageRun = import_module(STAGES[manifest.stage]).replay
        report = await replay(stage, past, manifest, prompts)
    written = write(report, folder)
    if not keep:
        await clean(settings.kafka, Shadow(manifest.id))
    return written


def write(report: Report, folder: Path) -> Report:
    """Write a report's files, then the manifest that vouches for them; gives the report with that manifest."""
    manifest = report.manifest.model_copy(update={"ended_at": now_ms()})
    report = report.model_copy(update={"manifest": manifest})
    (folder / REPORT).write_text(report.model_dump_json(indent=1) + "\n")
    (folder / PAGE).write_text(page(report))
    manifest.model_copy(update={"outputs": tuple(Output.of(folder / name) for name in (REPORT, PAGE))}).save(folder)
    return report


def written_report(folder: Path) -> Report:
    """The report of a replay that is done.

    Raises:
        ParleyError: not_found; invalid_request: the replay is not done, or the file is not as it was written.
    """
    manifest = Manifest.load(folder)
    if manifest.ended_at is None:
        raise ParleyError("invalid_request", f"replay {manifest.id} is not done: `parley replay resume {folder}`")
    for output in manifest.outputs:
        if not (folder / output.name).exists() or Output.of(folder / output.name) != output:
            raise ParleyError("invalid_request", f"{folder / output.name} is not as it was written")
    return Report.model_validate_json((folder / REPORT).read_text())
