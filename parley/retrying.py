"""Trying again: with pauses that grow, as long as the error says that it may help."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from parley.clock import now_ms
from parley.errors import ParleyError

log = logging.getLogger(__name__)

T = TypeVar("T")
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0


def pause_s(attempt: int) -> float:
    """How long to wait after the n-th failure (from 0), with jitter so that not all come back at once."""
    return float(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(attempt, 10)) * random.uniform(0.5, 1.0))


async def until_done(work: Callable[[], Awaitable[T]]) -> T:
    """The result of `work`, tried until it succeeds or fails in a way that trying again can't mend.

    Raises:
        ParleyError: of a kind that is not retryable.
    """
    attempt = 0
    while True:
        try:
            return await work()
        except ParleyError as error:
            if not error.kind.retryable:
                raise
            log.warning("trying again: %s", error)
            await asyncio.sleep(pause_s(attempt))
            attempt += 1


async def until_done_or_late(work: Callable[[], Awaitable[None]], what: str, late_ms: int) -> None:
    """`until_done`, but one that fails after the time `late_ms` is let go of: nobody waits for it any more.

    Raises:
        ParleyError: of a kind that is not retryable.
    """

    async def tried() -> None:
        try:
            await work()
        except ParleyError as error:
            if not error.kind.retryable or now_ms() < late_ms:
                raise
            log.warning("%s is let go: %s", what, error)

    await until_done(tried)
