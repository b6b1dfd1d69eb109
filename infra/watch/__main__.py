"""`python -m infra.watch metrics|boards|up`: what is generated from the code, and Prometheus over a running system."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import click

from infra.local.problems import StackError
from infra.local.prometheus import ensure_prometheus
from infra.local.settings import LocalSettings
from infra.watch.beside import watched
from infra.watch.boards import BOARDS
from infra.watch.metrics import ROOT, markdown

DASHBOARDS = ROOT / "infra" / "grafana" / "dashboards"


@click.group(help=__doc__)
def main() -> None: ...


@main.command()
def metrics() -> None:
    """Print the table of docs/metrics.md."""
    click.echo(markdown())


@main.command()
@click.option("--into", type=click.Path(path_type=Path, file_okay=False), default=DASHBOARDS, show_default=True)
def boards(into: Path) -> None:
    """Write the dashboards."""
    for board in BOARDS:
        (into / f"{board.uid}.json").write_text(json.dumps(board.as_json(), indent=1) + "\n")


@main.command()
@click.option("--port", default=9090, show_default=True, help="Of Prometheus.")
@click.option("--lag-port", default=9108, show_default=True, help="Of `parley lag --serve`.")
def up(port: int, lag_port: int) -> None:
    """Watch the system that `parley up` runs here, until Ctrl-C: Prometheus with the rules, and the exporter of lag."""
    try:
        asyncio.run(_up(LocalSettings(), port, lag_port))
    except StackError as error:
        sys.exit(f"parley: {error}")
    except KeyboardInterrupt:
        return


async def _up(settings: LocalSettings, port: int, lag_port: int) -> None:
    programs = await ensure_prometheus(settings)
    folder = settings.data / "prometheus"
    async with watched(settings, programs, folder, port=port, lag_port=lag_port) as address:
        click.echo(f"alerts: {address}/alerts  queries: {address}/graph  lag: http://127.0.0.1:{lag_port}/metrics")
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()
