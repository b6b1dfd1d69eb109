"""The user of a stack on one's own machine."""

from __future__ import annotations

import os
from pathlib import Path

from parley.errors import ParleyError
from parley.settings import Settings
from parley.stores.accounts import Accounts
from parley.stores.postgres import open_pool

DEMO_EMAIL = "demo@localhost"


async def ensure_demo(settings: Settings, key_file: Path) -> str:
    """A working API key of demo@localhost (tier paid), the same every time as long as `key_file` is kept.

    The file holds the secret for its owner alone. Where it is missing, or its key does not work (another database, a
    revoked key), a new key takes its place.

    Raises:
        ParleyError: store_unavailable.
        OSError: the file can't be read or written.
    """
    async with open_pool(settings.postgres) as pool:
        accounts = Accounts(pool)
        kept = _read(key_file)
        if kept is not None and await accounts.authenticate(kept) is not None:
            return kept
        user = await accounts.find_user(DEMO_EMAIL)
        if user is None:
            try:
                user = await accounts.create_user(DEMO_EMAIL, "paid")
            except ParleyError:
                user = await accounts.find_user(DEMO_EMAIL)  # another process was faster
                if user is None:
                    raise
        _, secret = await accounts.create_key(user.user_id, "local stack")
    _write_private(key_file, secret + "\n")
    return secret


def _read(path: Path) -> str | None:
    return path.read_text().strip() if path.exists() else None


def _write_private(path: Path, text: str) -> None:
    """All of it or nothing, and never readable by others, not even for a moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    new.replace(path)
