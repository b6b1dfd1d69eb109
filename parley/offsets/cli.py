"""`parley group`: where a consumer group goes on."""

from __future__ import annotations

import asyncio
import logging

import click
from rich.console import Console

from parley.cli_errors import in_one_line
from parley.log.groups import GroupState
from parley.offsets.consequences import in_use, require_sound, words
from parley.offsets.moving import look, move
from parley.offsets.plan import At, Plan, Target
from parley.offsets.show import done, table, title
from parley.settings import Settings
from parley.timeline.cli import WIDE, Moment


class Where(click.ParamType):
    """earliest, latest, an offset, or a time: an age (15m, 2h), or ISO 8601, in UTC unless it says otherwise."""

    name = "place"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Target:
        """The target."""
        text = str(value)
        if text == "earliest":
            return "earliest"
        if text == "latest":
            return "latest"
        if text.isdecimal():
            return int(text)
        try:
            return At(Moment().convert(text, param, ctx))
        except click.BadParameter:
            self.fail(f"{text!r} is neither earliest, latest, an offset, an age (15m, 2h) nor a time", param, ctx)


@click.group()
def group() -> None:
    """Consumer groups: where they go on. `parley lag` tells where they are."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


@group.command()
@click.argument("name", metavar="GROUP")
@click.option("--topic", help="Only this topic; default: all that the group has offsets in.")
@click.option("--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only this one. Repeatable.")
@click.option("--to", "target", type=Where(), required=True, metavar="earliest|latest|OFFSET|TIME", help="Go on there.")
@click.option("--yes", is_flag=True, help="Do it. Without it nothing is moved, only shown.")
def reset(name: str, topic: str | None, partitions: tuple[int, ...], target: Target, yes: bool) -> None:
    """Move the committed offsets of GROUP, which must have no members, and read them back.

    TIME is an age (15m, 2h, 3d) or a time (2026-11-30T13:00): the first record that was appended then or later, by the
    brokers' index; after the last record it is the end. That it is done is recorded in chat.audit first.
    """
    with in_one_line():
        settings = Settings()
        state, planned = asyncio.run(look(settings.kafka, name, topic, partitions, target))
        _show(settings, state, planned)
        require_sound(planned)
        if not planned.needed:
            click.echo("nothing is to be moved")
        elif yes:
            _move(settings, planned)
        else:
            reason = in_use(state)
            click.echo("nothing was moved: " + (f"--yes would be refused, {reason}" if reason else "--yes moves"))


def _show(settings: Settings, state: GroupState, planned: Plan) -> None:
    click.echo(title(state, planned))
    console = Console()
    (console if console.is_terminal else Console(width=WIDE)).print(table(planned), markup=False)
    for line in words(planned, settings.protocol):
        click.echo(line)


def _move(settings: Settings, planned: Plan) -> None:
    commits, found = asyncio.run(move(settings, planned))
    lines, wrong = done(planned, commits, found)
    for line in lines:
        click.echo(line)
    if wrong:
        raise click.ClickException(f"{wrong} of {len(lines)} partitions are not where they should be: look again")
    click.echo(f"{len(lines)} moved, and read back")
