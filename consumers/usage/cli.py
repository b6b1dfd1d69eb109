"""`parley usage`: what users used, by user and hour; `parley usage serve`: the role that counts."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from uuid import UUID

import click

from consumers.usage.report import Row, read_usage
from parley.cli_errors import in_one_line
from parley.errors import ParleyError
from parley.settings import Settings
from parley.stores.accounts import Accounts
from parley.stores.postgres import open_pool

HEADINGS = ("user", "hour (UTC)", "turns", "input", "output", "generated")


@click.group(invoke_without_command=True)
@click.option("--user", metavar="EMAIL|UUID", help="Only this user. An e-mail address is looked up in PostgreSQL.")
@click.option("--hours", type=click.IntRange(min=1), default=24, show_default=True, help="How far back.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list instead of a table.")
@click.pass_context
def usage(context: click.Context, user: str | None, hours: int, as_json: bool) -> None:
    """Turns and tokens by user and hour, read from the log: the role need not run."""
    if context.invoked_subcommand is not None:
        return
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    oldest = int(time.time()) // 3600 - hours + 1
    with in_one_line():
        rows = asyncio.run(_rows(Settings(), user, oldest))
    click.echo(json.dumps([as_dict(row) for row in rows], indent=2) if as_json else "\n".join(as_table(rows)))


@usage.command()
def serve() -> None:
    """Count turns and tokens: chat.turns to the usage tables."""
    from consumers.usage.main import run
    from parley.process import run_role

    sys.exit(run_role(Settings(), "usage", run))


def as_dict(row: Row) -> dict[str, str | int]:
    """A row for scripts."""
    return {
        "user": str(row.user),
        "hour": row.begins.strftime("%Y-%m-%dT%H:00Z"),
        "turns": row.turns,
        "input_tokens": row.input_tokens,
        "output_tokens": row.output_tokens,
        "generated_tokens": row.generated_tokens,
    }


def as_table(rows: list[Row]) -> list[str]:
    """The rows for people, with a total."""
    if not rows:
        return ["no turns"]
    cells = [[str(value) for value in as_dict(row).values()] for row in rows]
    totals = [sum(column) for column in zip(*([int(cell) for cell in row[2:]] for row in cells), strict=True)]
    lines = [list(HEADINGS), *cells, ["total", "", *map(str, totals)]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    return [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


async def _rows(settings: Settings, user: str | None, oldest: int) -> list[Row]:
    only = None if user is None else await _user_id(settings, user)
    return await read_usage(settings, lambda one, hour: hour >= oldest and only in (None, one))


async def _user_id(settings: Settings, user: str) -> UUID:
    try:
        return UUID(user)
    except ValueError:
        pass
    async with open_pool(settings.postgres) as pool:
        found = await Accounts(pool).find_user(user)
    if found is None:
        raise ParleyError("not_found", f"there is no user {user}: give an e-mail address or a user id")
    return found.user_id
