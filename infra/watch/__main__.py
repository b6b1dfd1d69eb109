"""`python -m infra.watch metrics|boards`: what is generated from the code."""

from __future__ import annotations

import json
from pathlib import Path

import click

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


if __name__ == "__main__":
    main()
