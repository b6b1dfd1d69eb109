"""Rules of the protocol taken away, one at a time: a simulation that does not notice is worth nothing."""

from __future__ import annotations

from collections.abc import Callable

from parley.log.group import Group
from parley.log.held import Held
from parley.transcript import Transcript, Void
from schemas.routes import Delta, Fence, Opened, Terminal


def proof() -> None:
    """A turn's end is believed without a commit after its terminal."""

    async def prove(self: Held, *, urgent: bool = False) -> None:
        """Nothing is proved."""

    Held.prove = prove  # type: ignore[method-assign]


def epochs() -> None:
    """Any fence counts, also an older holder's."""
    judge = Transcript._judge

    def lenient(self: Transcript, event: Opened | Fence | Delta | Terminal) -> Void | None:
        void = judge(self, event)
        return None if void is Void.OLD_EPOCH else void

    Transcript._judge = lenient  # type: ignore[method-assign]


def takeovers() -> None:
    """Who takes a partition over keeps its number."""
    Group._number = lambda self, where, claim: max(1, claim.takeover)  # type: ignore[method-assign]


MUTATIONS: dict[str, Callable[[], None]] = {rule.__name__: rule for rule in (proof, epochs, takeovers)}
