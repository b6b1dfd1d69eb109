"""The rules of the protocol, each of which can be taken away, and the pure machines without some of them."""

from __future__ import annotations

from parley.session import Session
from parley.session import Void as SessionVoid
from parley.transcript import Transcript, Void
from schemas.routes import Delta, Fence, Opened, Terminal
from schemas.turns import TurnEnded, TurnStarted

RULES = {
    "epoch-order": "a fence becomes current only with a greater epoch",
    "takeover-commit": "takeover + 1 is used only once it is committed",
    "proof": "TurnEnded leaves only behind a proof",
    "close-at-revoke": "the committer is closed at revocation",
    "wait-in-flight": "revocation waits for the commit in flight",
    "gate": "records are taken only once the takeover commit has succeeded",
    "keep-if-same": "turns are kept only if the claim has this holder and number",
    "read-back": "after its fence a taker reads the route and goes on from there",
    "dispatch-check": "a lower dispatch than the standing one is void",
    "orchestrator-fence": "the orchestrator ends a turn by taking it",
    "raise-run": "after a failed send the next run has a greater epoch and a writer of its own",
    "expired-off-route": "what was never run gets no terminal on a route",
    "offset-last": "a request is done with only when its TurnEnded is acknowledged",
    "let-go": "a taker whose fence is void lets the turn go",
    "own-dispatch": "a TurnEnded has the dispatch that its writer acts under",
    "start-first": "a request is sent only when its TurnStarted stands in the log",
    "log-end": "the orchestrator's fence comes after a TurnStarted of its own",
    "fold-to-start": "the orchestrator folds the log to its TurnStarted before it acts on it",
    "end-stays": "a TurnStarted after a valid end is void",
    "read-where-joined": "claims are read at the coordinator that the member is joined at",
    "rejoin": "a failed commit makes the member rejoin",
    "greater-replaces": "a request of a greater dispatch replaces the running turn",
    "drop-lost": "turns of a partition that went away are dropped",
    "opened-acked": "a prompt is done with only when its Opened is acknowledged",
    "replay-first": "a new holder folds the state log to its end before it acts",
    "dedupe": "a prompt whose key stands for a turn already is answered with that turn",
    "first-opened": "of a prompt with a key the first Opened decides, whoever wrote it",
    "verdict-gate": "no delta before the verdict on the prompt",
    "fail-closed": "no verdict in time: nothing is said",
    "serial": "turns of a session run one after the other",
    "read-from-start": "a reader folds a route from the turn's start, whenever it comes",
    "writer-check": "a delta or terminal counts only from the current writer",
    "sequence": "a delta or terminal counts only with the next number",
    "one-end": "nothing counts after the end",
}


class LooseTranscript(Transcript):
    """The fold of a route without some of its rules."""

    __slots__ = ()
    without: frozenset[str] = frozenset()

    def _judge(self, event: Opened | Fence | Delta | Terminal) -> Void | None:
        reason = super()._judge(event)
        without = self.without
        if reason is Void.OLD_EPOCH and "epoch-order" in without:
            return None
        if reason is Void.ENDED and "one-end" in without:
            terminal, self.terminal = self.terminal, None
            try:
                reason = self._judge(event)
            finally:
                self.terminal = terminal
        if reason is Void.OTHER_WRITER and "writer-check" in without and self.fence is not None:
            return Void.WRONG_SEQ if event.seq != self.seq else None  # type: ignore[union-attr]
        if reason is Void.WRONG_SEQ and "sequence" in without:
            return None
        return reason


class LooseSession(Session):
    """The fold of the state log without some of its rules."""

    __slots__ = ()
    without: frozenset[str] = frozenset()

    def _started(self, event: TurnStarted) -> SessionVoid | None:
        turn = self.turns.get(event.response)
        if turn is None or turn.started is None:
            return super()._started(event)
        if event.dispatch < turn.started.dispatch and "dispatch-check" in self.without:
            turn.started = None
        if turn.status is not None and "end-stays" in self.without:
            if turn.started is not None and event.dispatch < turn.started.dispatch:
                return SessionVoid.LOWER_DISPATCH
            turn.status = turn.epoch = None
        return super()._started(event)

    def _ended(self, event: TurnEnded) -> SessionVoid | None:
        turn = self.turns.get(event.response)
        if turn is None or "dispatch-check" not in self.without:
            return super()._ended(event)
        started, turn.started = turn.started, None
        try:
            return super()._ended(event)
        finally:
            turn.started = started


def loose(without: frozenset[str]) -> tuple[type[Transcript], type[Session]]:
    """Production's machines; with rules taken away, machines without them."""
    if not without:
        return Transcript, Session
    return (
        type("Transcript", (LooseTranscript,), {"without": without, "__slots__": ()}),
        type("Session", (LooseSession,), {"without": without, "__slots__": ()}),
    )
