"""What every role's process does the same: logging, signals, metrics."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from parley.health import Health, serve_health
from parley.log.answers import mend_answers
from parley.log.reconnects import mend_reconnects
from parley.log.transports import mend_transports
from parley.quiet import Seldom
from parley.settings import Settings

log = logging.getLogger(__name__)

HEALTH = Health()
"""Of this process: what its role says of itself."""

CLIENTS = ("aiokafka", "kafka", "cassandra", "psycopg", "faust", "mode")
"""Libraries that repeat themselves several times a second while a server is away."""

EXIT_RESTART = 75
"""EX_TEMPFAIL: the process can't go on, another one in its place can."""


def set_up(settings: Settings, role: str, *, spare: bool = False) -> None:
    """Logging to standard error and, where a port is set, health and metrics; a spare's port is still another's.

    Clients of Kafka are made to fit uvloop, and to hear what coordinators say.
    """
    mend_transports()
    mend_answers()
    mend_reconnects()
    logging.basicConfig(
        level=settings.log_level, stream=sys.stderr, format=f"%(asctime)s %(levelname).1s {role} %(name)s: %(message)s"
    )
    for noisy in CLIENTS:
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLevelName(settings.log_level)))
    if settings.log_level != "DEBUG":
        for handler in logging.getLogger().handlers:
            handler.addFilter(Seldom(CLIENTS))
    if spare:
        _call_itself("parley-spare")
    else:
        _serve_health(settings)


async def promoted(settings: Settings) -> Settings:
    """Wait, as a spare, for the instance id of a process that has ended: one line on standard input.

    Without a line, standard input ends with whoever started the spare, and so does the spare.
    """
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    instance = (await reader.readline()).decode().strip()
    if not instance:
        sys.exit(0)
    _call_itself("parley")
    log.info("a spare becomes %s", instance)
    settings = settings.model_copy(update={"instance": instance})
    _serve_health(settings)
    return settings


def _serve_health(settings: Settings) -> None:
    if settings.metrics_port is not None:
        serve_health(HEALTH, settings.metrics_host, settings.metrics_port)


def _call_itself(name: str) -> None:
    """The name in `ps` and `top`, by which a spare is told from the one that works."""
    with contextlib.suppress(OSError):  # not Linux
        Path("/proc/self/comm").write_text(name)


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


def collect_seldom() -> None:
    """Spare what has been imported from garbage collection, and collect cycles less often.

    With Python's own thresholds a third of a worker's samples at 256 streams were in collections: every few hundred new
    containers, over all objects of the process. Almost all of what a token leaves behind is freed by its counts.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def run_role(
    settings: Settings, role: str, work: Callable[[Settings], Coroutine[Any, Any, None]], *, spare: bool = False
) -> int:
    """Run a role on uvloop; gives the exit code."""
    import uvloop

    set_up(settings, role, spare=spare)
    collect_seldom()
    try:
        uvloop.run(work(settings))
    except KeyboardInterrupt:
        return 130
    except Exception:
        log.exception("%s can't go on; a restart takes over what it held", role)
        sys.stderr.flush()
        os._exit(EXIT_RESTART)  # not to wait for clients that may hang
    return 0
