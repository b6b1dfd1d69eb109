"""What must hold at the end of a schedule: the promises of the design, from the logs alone."""

from __future__ import annotations

import itertools
from collections import defaultdict

from consumers.usage.tally import Counted, Hour, count
from parley.session import Session, Turn
from parley.stores.stored import Standing
from parley.transcript import Transcript
from producers.edge.projection import Projection
from producers.edge.replayed import replay
from schemas.base import NO_EPOCH
from schemas.prompts import PromptAccepted
from schemas.routes import Delta, Opened, Terminal
from schemas.turns import TurnEnded

from .events import LANE, TURNS, VERDICTS, context_text
from .log import Record
from .world import World

Said = tuple[str, str, tuple[int, ...]]
"""Status, text and the deltas' lengths of an end."""


class Broken(AssertionError):
    """A promise that does not hold."""


def broken(world: World) -> str | None:
    """The promise that does not hold; None: all do."""
    try:
        _check(world)
    except Broken as promise:
        return str(promise)
    return None


def require(holds: object, promise: str) -> None:
    if not holds:
        raise Broken(promise)


def _check(world: World) -> None:
    routes: dict[str, list[Record]] = defaultdict(list)
    for record in world.logs.log(LANE):
        routes[record.response].append(record)
    states = StateLog(world)
    for prompt in world.prompts():
        _check_turn(world, prompt.event, routes[prompt.event.response], states)
    _check_gate(world, routes)
    _check_usage(world, states)
    for session in states.sessions.values():
        _check_serial(world, session, routes, states)
        keyed = sorted((turn for turn in session.turns.values() if turn.key_hash), key=lambda turn: turn.number)
        require(all(turn.retryable for turn in keyed[:-1]), "a key stands for one turn, until that may be tried again")
        numbers = sorted(turn.number for turn in session.turns.values())
        require(numbers == list(range(1, len(numbers) + 1)), "turns of a session are numbered 1, 2, …")
    require(not any(world.engines.values()), "no engine works for a turn that has ended")
    require(world.at_rest(), "everything comes to rest")


class StateLog:
    """The fold of chat.turns, as the orchestrator has it at the end, and everything that was believed on the way."""

    def __init__(self, world: World) -> None:
        self.sessions: dict[object, Session] = {}
        self.believed: dict[str, list[TurnEnded]] = defaultdict(list)
        """Ends that were valid when they came: somebody may have gone by them."""
        self.ended_at: dict[str, int] = {}
        """When the first valid end came, in the order of all appends."""
        self.stored: dict[str, Standing] = defaultdict(Standing)
        self.ends: dict[int, list[Record]] = defaultdict(list)
        """All ends by partition, void ones too."""
        for partition in world.partitions:
            for record in world.logs.log((TURNS, partition)):
                self._add(world, record)

    def _add(self, world: World, record: Record) -> None:
        event = record.event
        session = self.sessions.get(event.session)
        if session is None:
            session = self.sessions[event.session] = world.session(event.session)
        void = session.apply(event)
        if record.response:
            self.stored[record.response].apply(event)
        if isinstance(event, TurnEnded):
            self.ends[record.partition].append(record)
            if void is None:
                self.believed[record.response].append(event)
                self.ended_at.setdefault(record.response, record.at)

    def turn(self, prompt: PromptAccepted) -> Turn | None:
        session = self.sessions.get(prompt.session)
        return session.turns.get(prompt.response) if session else None


def _check_turn(world: World, prompt: PromptAccepted, route: list[Record], states: StateLog) -> None:
    opened = next((record.event for record in route if isinstance(record.event, Opened)), None)
    turn = states.turn(prompt)
    transcript = _fold(world, route)
    if opened is not None and opened.duplicate_of is not None:
        require(turn is None or not _was_readable(world, prompt), "a prompt answered as a duplicate never runs")
        require(transcript.fence is None, "nothing but Opened is on the route of a duplicate")
        return
    if turn is None and opened is None and _late_duplicate(world, prompt):
        require(not route, "nothing expired is on a route")
        return
    require(turn is not None and turn.status is not None, "every accepted turn ends")
    assert turn is not None
    ends = states.believed[prompt.response]
    if turn.status == "expired":
        require(transcript.fence is None, "nothing expired is on a route")
        require(all(end.status == "expired" for end in ends), "an end that was believed lasts")
        return
    if prompt.route.start < world.lane_begins:
        require(turn.status == "failed", "a turn whose route is gone fails")
        return
    require(opened is not None or not _was_readable(world, prompt), "a turn that did not expire is opened")
    if opened is None:
        return
    require(transcript.terminal is not None, "the route has one valid terminal")
    assert transcript.terminal is not None
    said = (transcript.terminal.kind, transcript.text, tuple(map(len, transcript.deltas)))
    require((turn.status, turn.answer) == said[:2], "history's end is the route's")
    for end in ends:
        require(_said(end) == said and end.epoch == transcript.epoch, "an end that was believed lasts")
    if world.prompts_of and world.deleted == set():
        _check_context(states, route, turn, world)
    _check_readers(world, prompt, route, states)


def _was_readable(world: World, prompt: PromptAccepted) -> bool:
    return next(world.readable(record) for record in world.prompts() if record.event is prompt)


def _late_duplicate(world: World, prompt: PromptAccepted) -> bool:
    """Read when it was too old to be answered, and its key stood for another turn: it is let go."""
    others = [p.event for p in world.prompts() if p.event.session == prompt.session and p.event is not prompt]
    return prompt.key_hash is not None and any(other.key_hash == prompt.key_hash for other in others)


def _said(end: TurnEnded) -> Said:
    return (end.status, "".join(item.text for item in end.output), end.delta_lengths)


def _fold(world: World, route: list[Record]) -> Transcript:
    """The route's fold; on the way, that every writer was right about what was there before it."""
    transcript = world.transcript()
    for record in route:
        before = tuple(transcript.deltas)
        if transcript.apply(record.event) is None and isinstance(record.event, Delta | Terminal):
            require(record.before == before, "what counts goes on from what its writer read")
    places = [int(text.split(".")[0]) for text in transcript.deltas]
    require(places == list(range(len(places))), "the text has no gap and no duplicate")
    return transcript


def _check_context(states: StateLog, route: list[Record], turn: Turn, world: World) -> None:
    session = next(session for session in states.sessions.values() if turn.response in session.turns)
    transcript = world.transcript()
    for record in route:
        if transcript.apply(record.event) is None and record.context is not None:
            require(
                record.context == context_text(session, turn.parent), "a turn remembers what the turns before it showed"
            )


def _check_serial(world: World, session: Session, routes: dict[str, list[Record]], states: StateLog) -> None:
    """From a turn's first run to its end no other turn of the session runs."""
    spans = []
    for turn in session.turns.values():
        fold = world.transcript()
        counted = [record for record in routes[turn.response] if fold.apply(record.event) is None]
        fences = [record.at for record in counted if record.context is not None]
        if fences:
            spans.append((fences[0], states.ended_at[turn.response]))
    spans.sort()
    require(all(end < begin for (_, end), (begin, _) in itertools.pairwise(spans)), "turns of a session run one by one")


def _check_readers(world: World, prompt: PromptAccepted, route: list[Record], states: StateLog) -> None:
    whole = Projection(prompt.response)
    whole.transcript = world.transcript()
    for record in route:
        whole.apply(record.event)
    for reader in world.readers:
        if reader.prompt is prompt:
            reader.read_all()
            require(reader.shown == whole.events, "every reader is shown the same events")
    kept = states.stored[prompt.response]
    require(kept.ended is not None, "history has the end")
    assert kept.ended is not None
    stored = kept.turn(items=(), output=kept.ended.output)
    require(
        replay(stored, prompt.session).events == whole.events, "a stored answer replays with the events that were shown"
    )


def _check_gate(world: World, routes: dict[str, list[Record]]) -> None:
    """The first verdict in log order counts."""
    first: dict[str, Record] = {}
    for partition in world.partitions:
        for record in world.logs.log((VERDICTS, partition)):
            first.setdefault(record.response, record)
    for response, route in routes.items():
        for record in route:
            if isinstance(record.event, Delta):
                verdict = first.get(response)
                require(verdict is not None and verdict.at < record.at, "nothing is said before the verdict")
                assert verdict is not None
                require(verdict.event.decision == "allow", "nothing is said to a blocked prompt")


def _check_usage(world: World, states: StateLog) -> None:
    """Each turn is counted once, whatever is read twice."""
    for ends in states.ends.values():
        hour, remembered = Hour(), defaultdict[str, tuple[Counted, ...]](tuple)
        for times in (1, 2):
            for record in ends if times == 1 else ends[len(ends) // 2 :]:
                counted = Counted.of(record.event, record.offset, record.timestamp)
                hour, remembered[record.response] = count(hour, remembered[record.response], counted)
        ended = {record.response for record in ends}
        turns = [
            turn
            for session in states.sessions.values()
            for turn in session.turns.values()
            if turn.status is not None and turn.response in ended
        ]
        require(hour.turns == len(turns), "each turn is counted once")
        tokens = sum(len(turn.answer.split()) for turn in turns if turn.epoch != NO_EPOCH)
        require(hour.output == tokens, "what is counted is what was released")
