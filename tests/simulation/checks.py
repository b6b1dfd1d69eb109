"""The promises, checked against all that was written."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from aiokafka import TopicPartition
from aiokafka.structs import OffsetAndMetadata

from inference_workers.answer import Answer
from parley.ownership import Claim
from parley.safety.classifier import Classifier
from parley.safety.policy import Policy
from parley.stores.stored import standing
from parley.topics import PROMPTS
from producers.edge.replayed import replay
from schemas.routes import Fence
from tests.simulation.cluster import Cluster
from tests.simulation.engine import answer_to
from tests.simulation.journal import Journal, Turn, short

CLOCKS_MS = 5_000
"""How far clocks may be apart."""


class Commits:
    """No record is let go before all that it asked for is in the log."""

    def __init__(self, cluster: Cluster, journal: Journal, max_turn_age_s: float) -> None:
        self._cluster = cluster
        self._journal = journal
        self._max_age_ms = max_turn_age_s * 1000
        self._seen: dict[tuple[str, TopicPartition], set[int]] = {}
        self._claims: dict[tuple[str, TopicPartition], Claim] = {}
        self._high: dict[tuple[str, TopicPartition], int] = {}
        self._last: dict[tuple[str, TopicPartition], int] = {}
        self.problems: list[str] = []

    def check(self, group: str, where: TopicPartition, committed: OffsetAndMetadata) -> None:
        """A commit that the coordinator accepts."""
        claim = Claim.decode(committed.metadata, committed.offset)
        seen, high = self._seen.setdefault((group, where), set()), self._high.get((group, where), 0)
        before, self._claims[group, where] = self._claims.get((group, where), Claim()), claim
        if claim.takeover < before.takeover or (claim.takeover == before.takeover and claim.holder != before.holder):
            self.problems.append(f"{group}: {where} goes from {before} to {claim}")
        # Not below the highest, but below the last: a holder's older commit may land after a newer one of its own, and
        # its successor begins there.
        last, self._last[group, where] = self._last.get((group, where), 0), committed.offset
        if committed.offset < last and claim.takeover != before.takeover:
            self.problems.append(f"{group} goes back in {where}: from {last} to {committed.offset}")
        self._high[group, where] = max(high, committed.offset)
        for offset in [*range(high, committed.offset), *sorted(claim.ended)]:
            if offset in seen:
                continue
            seen.add(offset)
            response = self._journal.prompts[where][offset]
            if not self._done(group, self._journal.turns[response], where, offset):
                self.problems.append(f"{group} lets {short(response)} go at {where.partition}:{offset}: it is not done")

    def _done(self, group: str, turn: Turn, where: TopicPartition, offset: int) -> bool:
        if turn.ends:
            return True
        age_ms = self._cluster.now_ms() - self._cluster.partitions[where].records[offset].timestamp
        too_old = age_ms + CLOCKS_MS > self._max_age_ms
        if group == "moderation":
            return turn.verdict is not None or too_old
        if where.topic == PROMPTS:
            asked = {request.dispatch for _, request in turn.requests}
            handed_over = any(start.pool is not None and start.dispatch in asked for start in turn.starts)
            placeless = turn.transcript.terminal is not None and not turn.starts
            return turn.opened is not None and (handed_over or turn.dead or placeless)
        dispatch = self._journal.dispatches[where, offset]
        return too_old or any(isinstance(event, Fence) and event.epoch[:2] > dispatch for _, event, _ in turn.events)


def outcomes(journal: Journal, classifier: Classifier, policy: Policy) -> Iterator[str]:
    """What is wrong at the end, when everything has come to rest."""
    for response, turn in journal.turns.items():
        for problem in _turn(turn, classifier, policy):
            yield f"{short(response)}: {problem}"
    for session in journal.sessions.values():
        numbers = sorted(turn.number for turn in session.turns.values())
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"session {session.id}: turn numbers {numbers}"
    yield from _serial(journal)
    yield from _lost_parents(journal)
    yield from _memory(journal)


def _turn(turn: Turn, classifier: Classifier, policy: Policy) -> Iterator[str]:
    if turn.dead:
        if turn.transcript.fence is not None or turn.starts:
            yield "a duplicate has run"
        return
    if turn.expired:
        if turn.requests or turn.transcript.fence is not None:
            yield "expired, though it may have run"
        return
    if turn.opened is None:
        yield "never opened"
    if turn.transcript.terminal is None:
        yield "no terminal"
        return
    if turn.starts and not turn.ends:
        yield f"no end in chat.turns, though {turn.transcript.terminal.kind} on its route"
    if len({(e.status, e.output, e.epoch, e.usage, e.delta_lengths, e.failure) for _, e in turn.ends}) > 1:
        yield "several ends that differ"
    yield from _text(turn, classifier, policy)
    yield from _verdicts(turn)
    if turn.ends and turn.opened is not None:
        ended = turn.ends[-1][1]
        fold = standing([*turn.starts, ended])
        stored = replay(fold.turn((), ended.output), ended.session)
        if stored.events != turn.projection.events:
            yield "a replay from the store shows other events than the route"


def _text(turn: Turn, classifier: Classifier, policy: Policy) -> Iterator[str]:
    """The text is what one undisturbed run would have released."""
    text, terminal = turn.transcript.text, turn.transcript.terminal
    assert terminal is not None
    if not turn.requests:
        if text:
            yield "text without a request"
        return
    request = turn.requests[0][1]
    words = answer_to(request.prompt).split(" ")
    answer = Answer(request, classifier, policy, "")
    whole = " ".join(words[: request.max_tokens])
    step = answer.feed(whole)
    expected = step.text if step.over else step.text + answer.finish().text
    if not expected.startswith(text):
        yield f"text that no run would give: {text!r}, not {expected!r}"
    if terminal.kind in ("completed", "incomplete") and text != expected:
        yield f"{terminal.kind} with {text!r}, not {expected!r}"
    blocked, cut = answer.blocked is not None, len(words) > request.max_tokens and not answer.stopped
    kind = "incomplete" if blocked or cut else "completed"
    if terminal.kind in ("completed", "incomplete") and terminal.kind != kind:
        yield f"{terminal.kind} ({terminal.reason}), not {kind}"


def _verdicts(turn: Turn) -> Iterator[str]:
    terminal = turn.transcript.terminal
    assert terminal is not None
    verdict = turn.verdict
    if turn.deltas_at and (verdict is None or verdict[0] > turn.deltas_at[0]):
        yield "text before a verdict"
    if verdict is not None and verdict[1].decision == "block" and turn.deltas_at:
        yield "text in answer to a blocked prompt"
    if terminal.kind == "refused" and (verdict is None or verdict[1].decision != "block"):
        yield "refused without a verdict that says so"


def _serial(journal: Journal) -> Iterator[str]:
    """A turn says nothing before those before it have ended."""
    for session in journal.sessions.values():
        ran = sorted(
            (t for t in session.turns.values() if journal.turns[t.response].requests), key=lambda turn: turn.number
        )
        for before, after in pairwise(ran):
            ended = journal.turns[before.response].ends
            asked = min(place for place, _ in journal.turns[after.response].requests)
            if not ended or ended[0][0] > asked:
                yield f"{short(after.response)} was asked for before {short(before.response)} had ended"


def _lost_parents(journal: Journal) -> Iterator[str]:
    """Users name only what was accepted: a parent that has its place in the session is found."""
    for response, turn in journal.turns.items():
        terminal, parent = turn.transcript.terminal, journal.turns.get(turn.prompt.parent or "")
        failure = terminal.failure if terminal is not None else None
        if failure is not None and failure.code == "previous_response_not_found" and parent and parent.starts:
            yield f"{short(response)} does not find its parent"


def _memory(journal: Journal) -> Iterator[str]:
    """A prompt holds what was said on the way to it, as it was shown, and nothing else."""
    for session in journal.sessions.values():
        for turn in session.turns.values():
            requests = journal.turns[turn.response].requests
            if len({request.prompt for _, request in requests}) > 1:
                yield f"{short(turn.response)} was asked for with {len(requests)} different prompts"
            for place, request in requests[:1]:
                path = session.path(turn.parent)
                if path is None:
                    yield f"{short(turn.response)} follows a turn that nobody knows"
                    continue
                said = [text for each in path for text in (*(i.text for i in each.items), each.answer) if text]
                said += [item.text for item in turn.items]
                at = 0
                for text in said:
                    found = request.prompt.find(text, at)
                    if found < 0:
                        yield f"{short(turn.response)} forgets {text!r}"
                        break
                    at = found + len(text)
                others = [t for t in session.turns.values() if t not in path and t is not turn]
                for other in others:
                    if any(item.text in request.prompt for item in other.items):
                        ended = journal.turns[other.response].ends
                        when = "before" if ended and ended[0][0] < place else "after"
                        yield f"{short(turn.response)} remembers {short(other.response)}, which ended {when} it"
