"""One schedule: brokers, processes, users, moderation and every trouble they may have, in an order that is chosen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from parley.session import Session
from parley.settings import ProtocolSettings
from parley.transcript import Transcript
from schemas.base import Dispatch
from schemas.prompts import PromptAccepted
from schemas.turns import SessionDeleted, TurnStarted

from . import events
from .choices import Choices
from .coordinator import Commit, Coordinator
from .events import CONTROL, LANE, POOLS, PROMPTS, TURNS, VERDICTS
from .log import Logs, Record
from .member import Member
from .orchestrator import Orchestrator
from .readers import Reader
from .rules import loose
from .worker import Worker

PROTOCOL = ProtocolSettings(waiting_turns=2)
MAX_AGE_MS = int(1000 * PROTOCOL.max_turn_age_s)
READABLE_MS = MAX_AGE_MS + int(1000 * PROTOCOL.resume_window_s)
JUMP_MS = MAX_AGE_MS * 5 // 9
"""A jump of the clock: two make a turn too old, one does not."""
SLOTS = (0, 1)
"""Static members of each group."""
ROUNDS = 240
"""In which everything must come to rest once the troubles are over."""

_TROUBLES = (
    *("stall",) * 3,
    *("wake",) * 3,
    *("rebalance",) * 2,
    *("fail",) * 2,
    *("stick",) * 2,
    *("evict", "timeout", "die", "restart", "unacknowledged", "lose", "repeat", "cancel", "reader"),
)


class World:
    """A cluster and its users. Breaking rules is for tests of the checker itself."""

    def __init__(self, choices: Choices, without: frozenset[str] = frozenset(), *, sessions: int = 0) -> None:
        self.choices = choices
        self.without = without
        self.protocol = PROTOCOL
        self.window = 4
        self.healing = False
        self.by_age = False
        """Nothing moved any more until the clock had made the open turns too old."""
        self.logs = Logs()
        self.started = self.logs.now
        self.commits: list[Commit] = []
        self.lane_begins = 0
        """What the route held below this offset is gone."""
        self.too_large: set[str] = set()
        """Responses whose requests no broker takes."""
        self.engines: dict[str, int] = {}
        """Runs of engines by response."""
        self.transcript, self._session = loose(without)
        self._fresh = 0
        sessions = sessions or 1 + choices.below(3)
        self.partitions = range(2 if choices.chance(0.2) else 1)
        self.prompts_of = dict.fromkeys(range(sessions), 0)
        self.deleted: set[int] = set()
        self.readers: list[Reader] = []
        self.coordinators = [Coordinator(choices, topic, self.partitions) for topic in (PROMPTS, *POOLS)]
        self.processes: list[Member] = []
        self.missed = True
        """A process has died, or none was started yet."""

    # -- what roles ask for -------------------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        return self.logs.now

    def fresh(self) -> int:
        self._fresh += 1
        return self._fresh

    def session(self, session: UUID) -> Session:
        return self._session(session)

    def too_old(self, record: Record) -> bool:
        """Such a record is never run."""
        return self.now - record.timestamp > MAX_AGE_MS

    def readable(self, record: Record) -> bool:
        """Somebody may still read the route of such a prompt."""
        return self.now - record.timestamp <= READABLE_MS

    def overdue(self, decision: TurnStarted) -> bool:
        return self.now > decision.deadline + MAX_AGE_MS

    def late(self, deadline: int) -> bool:
        """A deadline has passed, or passes now: between two moves any time may go by."""
        return self.now > deadline or (not self.healing and self.choices.chance(0.01))

    def ended_under(self, dispatch: Dispatch, transcript: Transcript) -> Dispatch:
        """The dispatch of a TurnEnded."""
        epoch = transcript.epoch
        return epoch[:2] if "own-dispatch" in self.without and epoch else dispatch

    @contextmanager
    def engine(self, response: str) -> Iterator[None]:
        """An engine works for the turn."""
        self.engines[response] = self.engines.get(response, 0) + 1
        try:
            yield
        finally:
            self.engines[response] -= 1

    # -- what users and moderation do ---------------------------------------------------------------------------------

    def partition_of(self, session: int) -> int:
        return session % len(self.partitions)

    def accept(self, session: int | None = None, *, parent: str | None = None, key: str | None = None) -> Record | None:
        """An edge acknowledges a prompt."""
        choices = self.choices
        if session is None:
            session = choices.below(len(self.prompts_of))
            if sum(self.prompts_of.values()) >= 5 or self.prompts_of[session] >= 3:
                return None
            if self.prompts_of[session] and choices.chance(0.15):
                parent = events.response_id(session, 1 + choices.below(self.prompts_of[session]))
            key = "k" if choices.chance(0.25) else None
        self.prompts_of[session] += 1
        prompt = events.prompt(
            session,
            self.prompts_of[session],
            start=len(self.logs.log(LANE)),
            parent=parent,
            key=key,
            body="b" if key else None,
            now=self.now,
        )
        self.readers.append(Reader(self, prompt, announces=key is None))
        return self.logs.append((PROMPTS, self.partition_of(session)), Record(prompt, prompt.response))

    def prompts(self) -> list[Record]:
        return [record for p in self.partitions for record in self.logs.log((PROMPTS, p))]

    def _session_of(self, prompt: PromptAccepted) -> int:
        return prompt.user.int - 1

    def moderate(self, prompt: PromptAccepted, decision: str | None = None) -> None:
        """Moderation decides; now and then again, and otherwise, for its group may read a prompt twice."""
        session = self._session_of(prompt)
        decision = decision or ("block" if self.choices.chance(0.12) else "allow")
        event, value = events.verdict(prompt.response, session, decision)
        self.logs.append((VERDICTS, self.partition_of(session)), Record(event, prompt.response, value=value))

    def cancel(self, prompt: PromptAccepted) -> None:
        session = self._session_of(prompt)
        event, value = events.cancel(prompt.response, session)
        self.logs.append((CONTROL, self.partition_of(session)), Record(event, prompt.response, value=value))

    def delete(self, session: int) -> None:
        """The user deletes a session that the log knows."""
        log = self.logs.log((TURNS, self.partition_of(session)))
        if session in self.deleted or all(record.event.session != events.session_id(session) for record in log):
            return
        self.deleted.add(session)
        event = SessionDeleted(session=events.session_id(session), user=events.user_id(session), at=self.now)
        self.logs.append((TURNS, self.partition_of(session)), Record(event))

    # -- processes ----------------------------------------------------------------------------------------------------

    def launch(self, coordinator: Coordinator, slot: int) -> Member:
        role = Orchestrator if coordinator.topic == PROMPTS else Worker
        process = role(self, coordinator, slot)
        self.processes.append(process)
        return process

    def supervise(self) -> None:
        """Starts a process for each slot whose last one has died."""
        if self.missed:
            self.missed = False
            self.processes = [process for process in self.processes if not process.dead]
            for coordinator in self.coordinators:
                for slot in SLOTS:
                    if not any(p.coordinator is coordinator and p.slot == slot for p in self.processes):
                        self.launch(coordinator, slot)

    def round(self) -> None:
        """Everybody moves, everything arrives, unless it is stalled or stuck."""
        for process in list(self.processes):
            if not process.stalled:
                for key in list(process.tasks):
                    process.advance(key)
        while self.commits:
            self.commits.pop(0).process()
        for queue in list(self.logs.queues):
            if not queue.stuck:
                queue.land()
        for coordinator in self.coordinators:
            coordinator.complete()
        self.supervise()

    # -- a schedule ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Troubles, then none, until everything is at rest or ought to be."""
        choices = self.choices
        self.supervise()
        for _ in range(9):
            self.round()
        self.accept()
        trouble = choices.pick((0.03, 0.08, 0.15))
        jumps = choices.pick((0.0, 0.002, 0.01))
        for _ in range(choices.pick((100, 250, 600))):
            if choices.spent:
                break
            self._move(trouble, jumps)
        self.heal()

    def _move(self, trouble: float, jumps: float) -> None:
        choices = self.choices
        if choices.chance(trouble):
            self._trouble(choices.pick(_TROUBLES))
        elif choices.chance(jumps):
            self.logs.now += JUMP_MS
        else:
            what = choices.below(100)
            if what < 70:
                process = choices.pick(self.processes)
                if not process.stalled:
                    process.step()
            elif what < 84:
                if self.logs.queues:
                    queue = choices.pick(self.logs.queues)
                    if not queue.stuck:
                        queue.land()
            elif what < 92:
                if self.commits and not ("fast-commits" in self.without and choices.chance(0.85)):
                    self.commits.pop(choices.below(len(self.commits))).process()
            elif what < 95:
                choices.pick(self.coordinators).complete()
            elif what < 97:
                prompts = self.prompts()
                if prompts:
                    self.moderate(choices.pick(prompts).event)
            elif what < 98:
                choices.pick(self.readers).step()
            else:
                self.accept()
        self.supervise()

    def _trouble(self, what: str) -> None:
        choices, queues = self.choices, self.logs.queues
        coordinator, process = choices.pick(self.coordinators), choices.pick(self.processes)
        if what in ("stall", "wake"):
            process.stalled = what == "stall"
        elif what == "evict":
            coordinator.evict(choices.pick(SLOTS))
        elif what == "rebalance":
            coordinator.prepare()
        elif what == "timeout":
            coordinator.complete(timeout=True)
        elif what == "die":
            process.die()
        elif what == "restart":  # the old process lives on until it hears of it
            self.launch(coordinator, choices.pick(SLOTS))
        elif what == "reader":
            choices.pick(self.readers).reconnect()
        elif what == "cancel":
            self._impatience()
        elif what == "repeat":
            log = self.logs.log((coordinator.topic, choices.pick(self.partitions)))
            if log and coordinator.topic != PROMPTS:
                old = choices.pick(log)
                self.logs.append(old.where, Record(old.event, old.response))
        elif what == "lose" and self.commits:
            commit = choices.pick(self.commits)
            if not commit.lost:
                commit.lose()
            if choices.chance(0.5):
                self.commits.remove(commit)
        elif queues and what in ("fail", "unacknowledged", "stick"):
            queue = choices.pick(queues)
            if what == "stick":
                queue.stuck = not queue.stuck
            elif what == "fail":
                queue.fail(choices.below(2))
            else:
                queue.land(acknowledge=False)

    def _impatience(self) -> None:
        """A user cancels, or deletes a conversation."""
        choices, prompts = self.choices, self.prompts()
        if prompts and choices.chance(0.4):
            self.cancel(choices.pick(prompts).event)
        elif choices.chance(0.1):
            self.delete(choices.below(len(self.prompts_of)))

    def heal(self) -> None:
        """All troubles end. First without a jump of the clock; what is open after that must be ended by age."""
        self.healing = True
        for process in self.processes:
            process.stalled = False
        for queue in self.logs.queues:
            queue.stuck = False
        while sum(self.prompts_of.values()) < 2:
            self.accept(0)
        for prompt in self.prompts():
            self.moderate(prompt.event)
        for n in range(ROUNDS):
            self.round()
            if self.at_rest():
                return
            if n == ROUNDS // 2:
                self.by_age = True
                self.logs.now += 3 * JUMP_MS

    def at_rest(self) -> bool:
        """Nothing is on its way, nobody has anything to do, and everything is committed."""
        if self.commits or self.logs.queues or not all(process.at_rest() for process in self.processes):
            return False
        return all(
            coordinator.committed[partition][0] == len(self.logs.log((coordinator.topic, partition)))
            for coordinator in self.coordinators
            for partition in self.partitions
        )
