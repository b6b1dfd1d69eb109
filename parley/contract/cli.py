"""`parley schemas`: can this version's events live beside the last release's? And the document of all topics."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from parley.contract import asyncapi, releases
from parley.errors import ParleyError
from parley.topics import load_topics
from schemas import export


@click.group()
def schemas() -> None:
    """Events on the wire: compatibility with the last release, and documents."""


@schemas.command()
@click.option("--against", metavar="VERSION", help="A released version; default: the last one.")
@click.option("--json", "json_wanted", is_flag=True, help="A list of JSON objects.")
def check(against: str | None, json_wanted: bool) -> None:
    """Old records read by this code, and this code's records by the old. Exit code 1: one of them is not."""
    topics = load_topics()
    try:
        version = against or releases.last()
        released = releases.load(version)
        if not released:
            raise ParleyError("not_found", f"{version} was never released: {releases.FOLDER} has those that were")
    except ParleyError as error:
        raise click.ClickException(error.message) from None
    found = releases.compare(version, released, releases.current(), topics)
    stale = [f"schemas/json/{name}" for name in export.differences()]
    if not asyncapi.FILE.exists() or asyncapi.FILE.read_text() != asyncapi.render(topics):
        stale.append("schemas/asyncapi.yaml")
    if json_wanted:
        told = {"against": version, "breaks": [asdict(one) for one in found], "stale": stale}
        click.echo(json.dumps(told, indent=2))
    else:
        for one in found:
            click.echo(f"BROKEN {one.event}: written by {one.writer}, read by {one.reader}: {one.what}")
        for name in stale:
            click.echo(f"STALE  {name}: run `parley schemas export`")
        click.echo(f"{len(released)} events of {version}: {len(found)} breaks")
    if found or stale:
        raise SystemExit(1)


@schemas.command("export")
def export_command() -> None:
    """Write schemas/json and schemas/asyncapi.yaml anew."""
    export.export()
    asyncapi.FILE.write_text(asyncapi.render(load_topics()))
    click.echo(f"{export.FOLDER}\n{asyncapi.FILE}")


@schemas.command("asyncapi")
def asyncapi_command() -> None:
    """Print the AsyncAPI document of all topics."""
    click.echo(asyncapi.render(load_topics()), nl=False)


@schemas.command()
def release() -> None:
    """Keep this code's schemas as those of its version: later versions are checked against them."""
    try:
        version = releases.release()
    except ParleyError as error:
        raise click.ClickException(error.message) from None
    click.echo(f"{releases.FOLDER / version}")
