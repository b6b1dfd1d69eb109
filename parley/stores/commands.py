"""`parley users`, `parley keys`, `parley migrate`: accounts and tables from the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar
from uuid import UUID

import click

from parley.errors import ParleyError
from parley.settings import Settings
from parley.stores.accounts import Accounts, User
from parley.stores.migrate import MigrationError
from parley.stores.migrate import migrate as migrate_stores
from parley.stores.postgres import open_pool
from schemas.base import TIERS, Tier

T_ = TypeVar("T_")


@click.group()
def users() -> None:
    """Who may use Parley."""


@users.command("create")
@click.argument("email")
@click.option("--tier", type=click.Choice(TIERS), default="free", show_default=True, help="Paid work is taken first.")
def create_user(email: str, tier: Tier) -> None:
    """Create a user; prints the user id."""
    user = _with_accounts(lambda accounts: accounts.create_user(email, tier))
    click.echo(user.user_id)


@click.group()
def keys() -> None:
    """API keys. USER is an e-mail address or a user id."""


@keys.command("create")
@click.argument("user")
@click.option("--name", default="", help="What the key is for.")
def create_key(user: str, name: str) -> None:
    """Create a key; prints its id, then the secret, which can't be shown again."""

    async def work(accounts: Accounts) -> tuple[str, str]:
        return await accounts.create_key(await _user_id(accounts, user), name)

    key_id, secret = _with_accounts(work)
    click.echo(f"{key_id}  {secret}")


@keys.command("list")
@click.argument("user")
def list_keys(user: str) -> None:
    """List a user's keys: id, since when, state, name."""

    async def work(accounts: Accounts) -> list[str]:
        found = await accounts.list_keys(await _user_id(accounts, user))
        return [
            f"{key.key_id}  {key.created_at:%Y-%m-%d %H:%M}  {'revoked' if key.revoked_at else 'active '}  {key.name}"
            for key in found
        ]

    for line in _with_accounts(work):
        click.echo(line.rstrip())


@keys.command("revoke")
@click.argument("key_id")
def revoke_key(key_id: str) -> None:
    """Make a key useless; edges notice within 5 s."""
    if not _with_accounts(lambda accounts: accounts.revoke_key(key_id)):
        raise click.ClickException(f"there is no key {key_id}: `parley keys list USER` shows their ids")
    click.echo(f"{key_id} is revoked")


@click.command()
def migrate() -> None:
    """Make or update the tables of PostgreSQL and of the message store."""
    try:
        asyncio.run(migrate_stores(Settings()))
    except (ParleyError, MigrationError) as error:
        raise click.ClickException(str(error)) from error


async def _user_id(accounts: Accounts, given: str) -> UUID:
    if "@" not in given:
        try:
            return UUID(given)
        except ValueError:
            raise click.BadParameter(f"{given!r} is neither an e-mail address nor a user id") from None
    user: User | None = await accounts.find_user(given)
    if user is None:
        raise click.ClickException(f"there is no user {given}: `parley users create {given}` makes one")
    return user.user_id


def _with_accounts(work: Callable[[Accounts], Awaitable[T_]]) -> T_:
    async def connected() -> T_:
        async with open_pool(Settings().postgres) as pool:
            return await work(Accounts(pool))

    try:
        return asyncio.run(connected())
    except ParleyError as error:
        raise click.ClickException(error.message) from error
