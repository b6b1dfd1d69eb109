"""Users and their API keys."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID, uuid4

import psycopg

from parley.errors import ParleyError
from parley.stores.postgres import Pool, borrowed
from schemas.base import Tier

CACHE_S = 5.0
"""How long a process believes in a key without asking: a revoked key works at most this much longer."""
CACHE_SIZE = 10_000
_SECRET = re.compile(r"pk_[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who may talk to Parley."""

    user_id: UUID
    email: str
    tier: Tier


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is known of a key; its secret is not."""

    key_id: str
    name: str
    created_at: datetime
    revoked_at: datetime | None


def hash_secret(secret: str) -> bytes:
    """What is stored of a secret: plain SHA-256, since its 256 random bits leave nothing to guess."""
    return hashlib.sha256(secret.encode()).digest()


class Accounts:
    """Users and keys in PostgreSQL. Every method may raise ParleyError(store_unavailable)."""

    def __init__(self, pool: Pool, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
        self._clock = clock
        self._known: dict[bytes, tuple[float, User]] = {}

    async def authenticate(self, api_key: str) -> User | None:
        """The user of a key, or None when the key is mistyped, unknown or revoked.

        The database compares hashes, whose timing tells nothing about a secret; the last word is a comparison in
        constant time. Only keys that work are remembered, for CACHE_S.
        """
        if not _SECRET.fullmatch(api_key):
            return None
        digest = hash_secret(api_key)
        until, user = self._known.get(digest, (0.0, None))
        if user is not None and self._clock() < until:
            return user
        async with borrowed(self._pool) as connection:
            found = await connection.execute(
                "SELECT k.hash, u.user_id, u.email, u.subscription_tier FROM api_key k JOIN users u USING (user_id) "
                "WHERE k.hash = %s AND k.revoked_at IS NULL",
                [digest],
            )
            row = await found.fetchone()
        if row is None or not hmac.compare_digest(bytes(row[0]), digest):
            self._known.pop(digest, None)
            return None
        if len(self._known) >= CACHE_SIZE:
            self._known.clear()
        user = User(row[1], row[2], row[3])
        self._known[digest] = (self._clock() + CACHE_S, user)
        return user

    async def create_user(self, email: str, tier: Tier) -> User:
        """A new user.

        Raises:
            ParleyError: invalid_request: no address, or it is taken (upper and lower case are the same).
        """
        if not re.fullmatch(r"[^@\s\x00]+@[^@\s\x00]+", email) or len(email) > 320:
            raise ParleyError("invalid_request", f"{email!r} is not an e-mail address", param="email")
        user = User(uuid4(), email, tier)
        try:
            async with borrowed(self._pool) as connection:
                await connection.execute(
                    "INSERT INTO users (user_id, email, subscription_tier) VALUES (%s, %s, %s)",
                    [user.user_id, email, tier],
                )
        except psycopg.errors.UniqueViolation:
            raise ParleyError("invalid_request", f"there is a user {email} already", param="email") from None
        return user

    async def find_user(self, email: str) -> User | None:
        """The user with this address."""
        async with borrowed(self._pool) as connection:
            found = await connection.execute(
                "SELECT user_id, email, subscription_tier FROM users WHERE lower(email) = lower(%s)", [email]
            )
            row = await found.fetchone()
        return User(*row) if row else None

    async def create_key(self, user_id: UUID, name: str) -> tuple[str, str]:
        """(key id, secret) of a new key. The secret is not kept: this is the only time it is seen.

        Raises:
            ParleyError: not_found: no such user.
        """
        key_id = "key_" + secrets.token_urlsafe(9)
        secret = "pk_" + secrets.token_urlsafe(32)
        try:
            async with borrowed(self._pool) as connection:
                await connection.execute(
                    "INSERT INTO api_key (hash, key_id, user_id, name) VALUES (%s, %s, %s, %s)",
                    [hash_secret(secret), key_id, user_id, name],
                )
        except psycopg.errors.ForeignKeyViolation:
            raise ParleyError("not_found", f"there is no user {user_id}") from None
        return key_id, secret

    async def revoke_key(self, key_id: str) -> bool:
        """Makes a key useless, here at once and elsewhere within CACHE_S. False: there is no such key."""
        async with borrowed(self._pool) as connection:
            done = await connection.execute(
                "UPDATE api_key SET revoked_at = coalesce(revoked_at, now()) WHERE key_id = %s RETURNING hash", [key_id]
            )
            row = await done.fetchone()
        if row is not None:
            self._known.pop(bytes(row[0]), None)
        return row is not None

    async def list_keys(self, user_id: UUID) -> list[ApiKey]:
        """A user's keys, oldest first, revoked ones too."""
        async with borrowed(self._pool) as connection:
            found = await connection.execute(
                "SELECT key_id, name, created_at, revoked_at FROM api_key WHERE user_id = %s ORDER BY created_at",
                [user_id],
            )
            return [ApiKey(*row) for row in await found.fetchall()]
