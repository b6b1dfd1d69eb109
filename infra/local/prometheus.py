"""Prometheus and promtool, for the tests of rules and of the running system: the machine's own, or Debian's package.

The package is fetched and unpacked beside the other programs that come from elsewhere; nothing is installed.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from infra.local.checks import check_tool
from infra.local.problems import StackError
from infra.local.provision import making, stamp_of, step
from infra.local.settings import LocalSettings

PACKAGE = "prometheus"
ADVICE = "install Prometheus (both its programs, `prometheus` and `promtool`), or be where Debian's packages are"


@dataclass(frozen=True)
class Prometheus:
    """Where its programs are."""

    server: Path
    promtool: Path


async def ensure_prometheus(settings: LocalSettings) -> Prometheus:
    """The programs, fetched if they are not there. Raises StackError where they can't be had."""
    if (server := shutil.which("prometheus")) and (promtool := shutil.which("promtool")):
        return Prometheus(Path(server), Path(promtool))
    folder = settings.cache / PACKAGE
    async with making(settings, folder, stamp_of([], PACKAGE)) as wanted:
        if wanted:
            for tool in ("apt-get", "dpkg-deb"):
                check_tool(tool, ADVICE)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            package = await _download(settings, folder)
            await step(settings, PACKAGE, ["dpkg-deb", "-x", str(package), str(folder)])
            package.unlink()
    return Prometheus(folder / "usr" / "bin" / "prometheus", folder / "usr" / "bin" / "promtool")


async def _download(settings: LocalSettings, folder: Path) -> Path:
    """The package. The machine's lists of packages may be missing or old: then they are fetched first."""
    # apt-get saves where it is started, under a name with the version.
    script = f"cd '{folder}' && apt-get -qq download {PACKAGE} && mv {PACKAGE}_*.deb {PACKAGE}.deb"
    download = ["sh", "-c", script]
    try:
        await step(settings, PACKAGE, download)
    except StackError:
        await step(settings, PACKAGE, ["apt-get", "-qq", "update"])
        await step(settings, PACKAGE, download)
    return folder / f"{PACKAGE}.deb"
