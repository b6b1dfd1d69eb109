"""Health and metrics of a role that has no HTTP of its own: /health/live, /health/ready, /metrics."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CONTENT_TYPE_LATEST, disable_created_metrics, generate_latest

STALL_S = 30.0
"""A loop that has not said for so long that it lives is stuck: alive, heartbeating and stuck is the worst failure."""


# A series more for every counter, which no query of ours asks for.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Health:
    """What a process says of itself. Set from its event loop, read by a thread."""

    def __init__(self) -> None:
        self._beat: float | None = None
        self._not_ready = "starting"
        self._troubles: dict[str, str] = {}

    def beat(self) -> None:
        """The role's own loop has come round once more."""
        self._beat = time.monotonic()

    def ready(self) -> None:
        """The role does its work."""
        self._not_ready = ""

    def unready(self, reason: str) -> None:
        """The role does not do its work at present."""
        self._not_ready = reason

    def trouble(self, what: str, reason: str) -> None:
        """Something goes wrong beside the role's own state; an empty reason: no longer."""
        if reason:
            self._troubles = {**self._troubles, what: reason}
        else:
            self._troubles = {name: text for name, text in self._troubles.items() if name != what}

    @property
    def beat_age(self) -> float | None:
        """Seconds since the loop has last come round; None: it has not begun."""
        return None if self._beat is None else time.monotonic() - self._beat

    def live(self) -> str:
        """Empty, or why the process should be restarted."""
        age = self.beat_age
        return "" if age is None or age < STALL_S else f"the loop has not come round for {age:.0f} s"

    def readiness(self) -> str:
        """Empty, or why there is no work for this process."""
        return self._not_ready or self.live() or "; ".join(self._troubles.values())


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Probes are not worth a line."""


def serve_health(health: Health, host: str, port: int) -> None:
    """Serve in a thread, until the process ends.

    Raises:
        OSError: the port is taken.
    """
    answers: dict[str, Callable[[], str]] = {"/health/live": health.live, "/health/ready": health.readiness}

    def app(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        answer = answers.get(environ["PATH_INFO"])
        if answer is None:
            # Always in the classic format: the client's OpenMetrics changes vLLM's names (a colon) to others.
            start("200 OK", [("content-type", CONTENT_TYPE_LATEST)])
            return [generate_latest()]
        wrong = answer()
        start("503 Service Unavailable" if wrong else "200 OK", [("content-type", "text/plain; charset=utf-8")])
        return [(wrong or "ok").encode()]

    server = make_server(host, port, app, handler_class=_Quiet)
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
