"""What every role's process does the same: logging, signals, metrics."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from parley.health import Health, serve_health
from parley.settings import Settings

log = logging.getLogger(__name__)

HEALTH = Health()
"""Of this process: what its role says of itself."""

EXIT_RESTART = 75
"""EX_TEMPFAIL: the process can't go on, another one in its place can."""


def set_up(settings: Settings, role: str) -> None:
    """Logging to standard error and, where a port is set, health and metrics on loopback."""
    logging.basicConfig(
        level=settings.log_level, stream=sys.stderr, format=f"%(asctime)s %(levelname).1s {role} %(name)s: %(message)s"
    )
    # Clients repeat these several times a second while a broker is away; the roles say themselves what it means.
    for noisy in ("aiokafka", "kafka", "cassandra", "faust", "mode"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLevelName(settings.log_level)))
    if settings.metrics_port is not None:
        serve_health(HEALTH, settings.metrics_host, settings.metrics_port)


async def until_stopped(work: Coroutine[Any, Any, None], stop: Callable[[], None]) -> None:
    """Run until the work ends by itself or SIGTERM or SIGINT calls `stop`, which makes it end.

    A failure of the work is the failure of the process: it is restarted, and what it held is taken over.
    """
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop)
    try:
        await work
    finally:
        for name in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(RuntimeError):
                loop.remove_signal_handler(name)


def run_role(settings: Settings, role: str, work: Callable[[Settings], Coroutine[Any, Any, None]]) -> int:
    """Run a role on uvloop; gives the exit code."""
    import uvloop

    set_up(settings, role)
    try:
        uvloop.run(work(settings))
    except KeyboardInterrupt:
        return 130
    except Exception:
        log.exception("%s can't go on; a restart takes over what it held", role)
        sys.stderr.flush()
        os._exit(EXIT_RESTART)  # not to wait for clients that may hang
    return 0
