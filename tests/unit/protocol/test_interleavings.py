"""The interleavings that the protocol must survive, one by one (protocol.md, section 9; docs/protocol.md).

Each ends with `settle`: everything comes to rest and every promise of `invariants` holds. What a model can't express is
said in the test, with the test on real parts that covers it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from parley.session import Void
from parley.transcript import Void as RouteVoid
from schemas.prompts import InferenceRequest
from schemas.routes import Delta, Fence, Opened, Terminal
from schemas.turns import TurnEnded, TurnStarted

from . import events
from .coordinator import Commit
from .events import CONTROL, LANE, PROMPTS, TOKENS, TURNS, VERDICTS
from .invariants import StateLog
from .log import Record
from .script import Script
from .world import MAX_AGE_MS

POOL_A, POOL_B = events.POOLS
AGE_S = MAX_AGE_MS / 1000


def statuses(script: Script) -> list[str | None]:
    """How the session's turns ended, by their numbers."""
    [session] = StateLog(script.world).sessions.values()
    return [turn.status for turn in sorted(session.turns.values(), key=lambda turn: turn.number)]


def test_1_a_zombies_fence_lands_after_its_successors_first_delta() -> None:
    script = Script()
    prompt, zombie = script.prompt(), script.worker
    script.hold_back(zombie, TOKENS)
    script.until(lambda: script.on_its_way(zombie, TOKENS))
    script.freeze(zombie)
    script.replace(zombie)
    script.until(lambda: script.events(prompt, Delta))
    script.arrive(zombie, TOKENS)
    assert [void for record, void in script.route(prompt)[1] if isinstance(record.event, Fence)] == [
        RouteVoid.OLD_EPOCH
    ]
    script.settle()
    assert statuses(script) == ["completed"]


def test_2_a_zombies_terminal_lands_after_its_successors_fence() -> None:
    script = Script()
    prompt, zombie = script.prompt(), script.worker
    script.until(lambda: len(script.events(prompt, Delta)) == events.ANSWER_TOKENS)
    assert not script.events(prompt, Terminal)
    script.hold_back(zombie, TOKENS)
    script.until(lambda: any(isinstance(r.event, Terminal) for r in script.on_its_way(zombie, TOKENS)))
    script.freeze(zombie)
    script.replace(zombie)
    script.until(lambda: len(script.events(prompt, Fence)) == 2)
    script.arrive(zombie, TOKENS)
    script.settle()
    terminals = [void for record, void in script.route(prompt)[1] if isinstance(record.event, Terminal)]
    assert len(terminals) == 1, "one of the two is void"
    assert statuses(script) == ["completed"]


def test_3_a_partition_goes_away_and_comes_back_within_one_members_view() -> None:
    comes_back(Script())


def test_3_turns_that_were_kept_whatever_the_claim_says_would_break_a_promise() -> None:
    with pytest.raises(AssertionError):
        comes_back(Script("keep-if-same"))


def comes_back(script: Script) -> None:
    prompt, worker = script.prompt(), script.worker
    script.until(lambda: script.events(prompt, Delta))
    script.freeze(worker)
    worker.coordinator.prepare()
    script.choices.preferred = 1 - worker.slot
    group = worker.coordinator
    group._joined.add(worker.slot)  # it joined, and slept through the answer
    script.until(lambda: group.owners[0] != worker.slot and len(script.events(prompt, Fence)) == 2)
    script.choices.preferred = worker.slot
    worker.stalled = False
    group.prepare()
    script.until(lambda: script.holder(POOL_A) is worker and worker.open)
    script.settle()
    takeovers = [record.event.epoch[2] for record in script.events(prompt, Fence)]
    assert takeovers == sorted(set(takeovers)), "no two holdings share a number"
    assert statuses(script) == ["completed"]


def test_4_a_static_member_restarts_while_its_old_process_lives() -> None:
    script = Script()
    prompt, old = script.prompt(), script.worker
    script.until(lambda: script.events(prompt, Delta))
    new = script.world.launch(old.coordinator, old.slot)
    script.until(lambda: new.open)
    script.settle()
    assert old.dead, "a static member that has lost its place exits"
    assert not new.dead
    assert statuses(script) == ["completed"]


@pytest.mark.parametrize("written", ["nothing", "Opened", "TurnStarted"])
def test_5_the_orchestrator_dies_on_the_way_from_a_prompt_to_its_request(written: str) -> None:
    script = Script()
    first = script.orchestrator
    for topic in {"nothing": (TOKENS, TURNS), "Opened": (TURNS,), "TurnStarted": (POOL_A, POOL_B)}[written]:
        script.hold_back(first, topic)
    prompt = script.prompt()
    script.rounds(8)
    assert bool(script.events(prompt, Opened)) == (written != "nothing")
    assert bool(script.events(prompt, TurnStarted, TURNS)) == (written == "TurnStarted")
    script.kill(first)
    script.settle()
    assert statuses(script) == ["completed"]
    requests = script.events(prompt, InferenceRequest, POOL_A) + script.events(prompt, InferenceRequest, POOL_B)
    assert len({record.event.dispatch for record in requests}) == 1


def test_5_its_decision_is_on_its_way_while_the_successor_replays() -> None:
    """The successor picks another pool; the late decision is void and nothing goes out under it."""
    script = Script()
    zombie = script.orchestrator
    script.hold_back(zombie, TURNS)
    script.choices.preferred = POOL_B
    prompt = script.prompt()
    script.until(lambda: script.on_its_way(zombie, TURNS))
    script.freeze(zombie)
    script.replace(zombie)
    script.until(lambda: script.events(prompt, TurnStarted, TURNS))
    script.arrive(zombie, TURNS)
    script.settle()
    assert [record.event.pool for record in script.events(prompt, TurnStarted, TURNS)] == [POOL_A, POOL_B]
    assert [void for _, void in script.turns(prompt)[1]] == [Void.LOWER_DISPATCH]
    assert script.events(prompt, InferenceRequest, POOL_B) == []
    assert statuses(script) == ["completed"]


def test_6_a_prompt_waits_for_a_minute_and_the_worker_is_replaced_meanwhile() -> None:
    script = Script()
    first = script.prompt()
    script.until(lambda: script.events(first, Delta))
    worker = script.worker
    script.freeze(worker)
    second = script.prompt()
    script.rounds(5)
    script.later(60)
    script.replace(worker)
    script.settle()
    assert script.events(second, Opened)[0].event.waiting
    assert statuses(script) == ["completed", "completed"]
    assert script.events(first, TurnEnded, TURNS)[0].at < script.events(second, TurnStarted, TURNS)[0].at


def test_7_a_verdict_is_written_while_a_worker_looks_for_where_to_begin() -> None:
    """That reading begins early enough is tests/integration's: side inputs are read from before any open request."""
    script = Script()
    prompt, worker = script.prompt(allowed=False), script.worker
    script.until(lambda: script.events(prompt, Fence))
    script.kill(worker)
    successor = script.worker
    script.until(lambda: ("opening", 1) in successor.tasks)
    for _ in range(10):  # up to where it has asked for the ends, and waits until it has read so far
        if successor.held:
            break
        script.rounds()
    script.world.moderate(prompt, "allow")
    script.settle()
    verdict = script.world.logs.log((VERDICTS, 0))[0]
    assert all(record.at > verdict.at for record in script.events(prompt, Delta))
    assert statuses(script) == ["completed"]


def test_8_a_cancel_before_dispatch_is_the_orchestrators() -> None:
    script = Script()
    script.hold_back(script.orchestrator, TURNS)
    running, waiting = script.prompt(), script.prompt()
    script.rounds(6)
    script.world.cancel(waiting)
    script.settle()
    assert statuses(script) in (["completed", "cancelled"], ["cancelled", "completed"])
    assert script.events(waiting, InferenceRequest, POOL_A) == []
    assert script.route(running)[0].text


def test_9_the_orchestrator_restarts_and_remembers_the_session() -> None:
    """Here from the log. From the store, and without it: tests/integration/orchestrator/test_sessions.py."""
    script = Script()
    first = script.prompt()
    script.until(lambda: script.ended(first))
    script.kill(script.orchestrator)
    second = script.prompt()
    script.settle()
    [request] = script.events(second, InferenceRequest, POOL_A)
    assert script.route(first)[0].text in request.event.prompt


@pytest.mark.parametrize("on_the_wire", [0, 1])
def test_10_a_lane_has_no_leader_for_longer_than_a_send_may_take(on_the_wire: int) -> None:
    """Every send fails, and the one on the wire may land. The producer that never recovers is a fact about the client:
    tests/integration/test_aiokafka_facts.py and tests/integration/log."""
    script = Script()
    prompt, worker = script.prompt(), script.worker
    script.until(lambda: script.events(prompt, Delta))
    script.hold_back(worker, TOKENS)
    script.until(lambda: script.on_its_way(worker, TOKENS))
    queue = worker.queues[LANE]
    queue.fail(on_the_wire)
    script.settle()
    runs = [record.event.epoch[3] for record in script.events(prompt, Fence)]
    assert runs == [1, 2], "the next run goes on from what the log says"
    assert statuses(script) == ["completed"]


def test_11_a_route_is_gone_under_its_writer() -> None:
    """The successor lets the turn go, and the orchestrator ends it by its age: nobody is shown a shorter text.

    How a reader notices: tests/integration/log/test_producer_and_readers.py.
    """
    script = Script()
    prompt = script.prompt()
    script.until(lambda: script.events(prompt, Delta))
    script.kill(script.worker)
    script.world.lane_begins = len(script.world.logs.log(LANE))
    script.until(lambda: len(script.events(prompt, Fence)) == 2)
    script.rounds(10)
    assert not script.ended(prompt)
    script.later(2 * AGE_S)
    script.settle()
    assert statuses(script) == ["failed"]


@pytest.mark.parametrize("skew_ms", [-5_000, 5_000])
def test_12_the_clocks_of_edges_differ(skew_ms: int) -> None:
    """The order of turns is their number, ages are the log's: tests/integration/test_aiokafka_facts.py."""
    script = Script()
    first = script.prompt()
    script.world.logs.now += skew_ms  # another edge accepts the second
    second = script.prompt()
    script.world.logs.now -= skew_ms
    script.settle()
    turns = [script.turn(first), script.turn(second)]
    assert [turn.number for turn in turns if turn] == [1, 2]
    assert statuses(script) == ["completed", "completed"]


def test_13_offsets_are_reset_to_the_past() -> None:
    """What ended stays as it is; what is too old and has no end expires; nothing old is run."""
    script = Script()
    done = script.prompt()
    script.until(lambda: script.ended(done) and script.world.at_rest())
    requests = len(script.world.logs.log((POOL_A, 0)))
    group = script.coordinator(PROMPTS)
    _, metadata = group.committed[0]
    group.committed[0] = (0, metadata)
    script.kill(script.orchestrator)
    forgotten = script.prompt()
    script.later(7 * 86_400)
    script.settle()
    assert statuses(script) == ["completed", "expired"]
    assert len(script.world.logs.log((POOL_A, 0))) == requests
    assert not script.events(forgotten, Terminal)


def test_14_an_answer_goes_on_in_the_middle() -> None:
    """Stop strings, harmful phrases and characters across the join: tests/unit/core/test_answer.py."""
    script = Script()
    prompt, worker = script.prompt(), script.worker
    script.until(lambda: len(script.events(prompt, Delta)) == 2)
    script.kill(worker)
    script.settle()
    transcript, _ = script.route(prompt)
    assert [text.split(".")[0] for text in transcript.deltas] == ["0", "1", "2"]
    assert transcript.joins == [len("".join(transcript.deltas[:2]))]


def test_15_an_end_is_written_twice_and_counted_once() -> None:
    """Also read twice: `invariants` counts every log with its second half again, by the usage role's own tally."""
    script = Script()
    prompt, worker = script.prompt(), script.worker
    script.hold_back(worker, TURNS)
    script.until(lambda: script.on_its_way(worker, TURNS))
    script.arrive(worker, TURNS, acknowledge=False)
    script.settle()
    assert len(script.events(prompt, TurnEnded, TURNS)) == 2
    assert statuses(script) == ["completed"]


def test_16_a_retry_with_the_same_key_an_hour_later() -> None:
    script = Script()
    first = script.prompt(key="k")
    script.until(lambda: script.ended(first))
    script.later(3_600)
    script.kill(script.orchestrator)
    again = script.prompt(key="k")
    script.settle()
    [opened] = script.events(again, Opened)
    assert opened.event.duplicate_of == first.response
    assert script.turn(again) is None


def test_17_no_broker_takes_the_request() -> None:
    """Its TurnStarted stands already. That a producer says so: tests/integration/log/test_producer_and_readers.py."""
    script = Script()
    too_large = script.prompt()
    script.world.too_large.add(too_large.response)
    waiting = script.prompt()
    script.settle()
    assert statuses(script) == ["failed", "completed"]
    assert script.events(too_large, Terminal)
    assert script.route(waiting)[0].text


def test_18_no_commit_crosses_a_rebalance() -> None:
    """A client that retries sends an old commit under its new generation. So nobody joins with a commit in flight."""
    script = Script()
    prompt, worker = script.prompt(), script.worker
    script.until(lambda: script.events(prompt, Terminal))
    for _ in range(20):
        if worker.in_flight:
            break
        script.alone(worker)
    [commit] = worker.in_flight
    script.world.commits.remove(commit)
    worker.coordinator.prepare()
    script.alone(worker, 20)
    assert worker.slot not in worker.coordinator._joined
    commit.process()
    script.settle()
    assert statuses(script) == ["completed"]


def test_19_the_workers_end_lands_just_before_the_orchestrators_fence() -> None:
    script = Script()
    prompt, worker = script.prompt(), script.worker
    script.until(lambda: len(script.events(prompt, Delta)) == events.ANSWER_TOKENS)
    script.hold_back(worker, TOKENS)
    script.until(lambda: script.on_its_way(worker, TOKENS))
    script.freeze(worker)
    script.later(2 * AGE_S)
    orchestrator = script.orchestrator
    script.hold_back(orchestrator, TOKENS)
    script.until(lambda: script.on_its_way(orchestrator, TOKENS))
    script.arrive(worker, TOKENS)
    script.arrive(orchestrator, TOKENS)
    script.settle()
    assert statuses(script) == ["completed"], "the orchestrator repeats what it finds"
    assert len(script.events(prompt, Terminal)) == 1


def test_20_a_request_of_a_stopped_orchestrator_comes_after_the_turns_end() -> None:
    script = Script()
    prompt = script.prompt()
    script.until(lambda: script.ended(prompt) and script.world.at_rest())
    script.kill(script.worker)
    [old] = script.events(prompt, InferenceRequest, POOL_A)
    script.world.logs.append(old.where, Record(old.event, old.response))
    script.settle()
    assert len(script.events(prompt, Delta)) == events.ANSWER_TOKENS
    assert statuses(script) == ["completed"]


@pytest.mark.parametrize("after_the_end", [False, True])
def test_21_a_decision_that_counted_as_failed_lands_late(after_the_end: bool) -> None:
    script = Script()
    orchestrator = script.orchestrator
    script.hold_back(orchestrator, TURNS)
    prompt = script.prompt()
    script.until(lambda: script.on_its_way(orchestrator, TURNS))
    late = orchestrator.queues[TURNS, 0]
    late.fail(1)
    orchestrator.held_back.clear()
    if after_the_end:
        script.until(lambda: not late.stuck or script.ended(prompt))
    else:
        script.until(lambda: script.events(prompt, TurnStarted, TURNS))
    late.stuck = False
    script.settle()
    assert [void for _, void in script.turns(prompt)[1]] == [Void.ENDED if after_the_end else Void.LOWER_DISPATCH]
    assert statuses(script) == ["completed"]


@pytest.mark.parametrize("reached", ["TurnStarted", "fence", "Terminal", "TurnEnded"])
def test_22_the_orchestrator_dies_while_it_ends_a_turn(reached: str) -> None:
    script = Script()
    first = script.orchestrator
    prompt = script.prompt(allowed=False)
    script.world.cancel(prompt)
    seen: dict[str, Callable[[], object]] = {
        "TurnStarted": lambda: script.events(prompt, TurnStarted, TURNS),
        "fence": lambda: script.events(prompt, Fence),
        "Terminal": lambda: script.events(prompt, Terminal),
        "TurnEnded": lambda: script.events(prompt, TurnEnded, TURNS),
    }
    script.until(seen[reached])
    script.kill(first)
    script.settle()
    assert statuses(script) == ["cancelled"]
    assert len(script.events(prompt, Terminal)) == 1


def test_23_a_workers_terminal_is_acknowledged_and_proved_after_a_greater_fence() -> None:
    script = Script()
    prompt, worker = script.prompt(), script.worker
    script.until(lambda: len(script.events(prompt, Delta)) == events.ANSWER_TOKENS)
    script.hold_back(worker, TOKENS)
    script.until(lambda: script.on_its_way(worker, TOKENS))
    script.later(2 * AGE_S)
    script.until(lambda: len(script.events(prompt, Fence)) == 2)
    script.arrive(worker, TOKENS)
    script.settle()
    assert statuses(script) == ["failed"]
    assert Void.LOWER_DISPATCH in [void for _, void in script.turns(prompt)[1]], "the worker's end is void"
    assert [void for r, void in script.route(prompt)[1] if isinstance(r.event, Terminal)] == [RouteVoid.OTHER_WRITER]


def test_24_a_commit_times_out_and_no_rebalance_comes() -> None:
    script = Script()
    prompt, worker = script.prompt(), script.worker
    script.until(lambda: script.events(prompt, Terminal))
    for _ in range(20):
        if worker.in_flight:
            break
        script.alone(worker)
    [commit] = worker.in_flight
    assert isinstance(commit, Commit)
    script.world.commits.remove(commit)
    commit.lose()
    generation = worker.coordinator.generation
    script.settle()
    assert worker.coordinator.generation > generation, "the member has asked for a rebalance"
    assert statuses(script) == ["completed"]


def test_the_cancel_topic_is_read_by_the_orchestrator_and_the_worker() -> None:
    """Cancelled while it runs: the engine stops, what was shown stays."""
    script = Script()
    prompt = script.prompt()
    script.until(lambda: script.events(prompt, Delta))
    script.world.cancel(prompt)
    script.settle()
    assert script.world.logs.log((CONTROL, 0))
    assert statuses(script) == ["cancelled"]
    assert script.route(prompt)[0].text


def test_a_worker_dies_between_its_proof_and_the_end() -> None:
    dies_before_the_end(Script())


def test_a_request_that_was_done_with_before_its_end_would_wait_for_old_age() -> None:
    with pytest.raises(AssertionError):
        dies_before_the_end(Script("offset-last"))


def dies_before_the_end(script: Script) -> None:
    prompt, worker = script.prompt(), script.worker
    script.hold_back(worker, TURNS)
    script.until(lambda: script.on_its_way(worker, TURNS))
    script.rounds(10)
    script.kill(worker)
    script.settle()
    assert len(script.events(prompt, TurnEnded, TURNS)) == 1
    assert statuses(script) == ["completed"]
