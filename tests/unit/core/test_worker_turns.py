"""What a worker keeps of its turns, and what its watch does to one that does not get on."""

from __future__ import annotations

import asyncio
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord
from core_events import delta, fence, opened, request

from inference_workers import turn as turns
from inference_workers import unread
from inference_workers import worker as workers
from inference_workers.course import End
from inference_workers.turn import Turn
from inference_workers.worker import Worker, _Partition
from parley.clock import now_ms
from parley.errors import ParleyError
from parley.health import Health
from parley.log.held import Held
from parley.log.producer import TopicUnknown
from parley.log.ranges import RouteGone
from parley.ownership import Progress
from parley.settings import ProtocolSettings, Settings
from parley.side_inputs import SideInputs
from parley.tokenizers import Words
from parley.transcript import Transcript
from schemas.base import Timings
from schemas.prompts import InferenceRequest
from schemas.routes import Fence
from schemas.turns import TurnEnded
from schemas.wire import BadRecord, encode, headers

WHERE = TopicPartition("chat.inference.synthetic.free", 0)


class Member:
    """A group whose commits nobody looks at."""

    name = "group"

    def commit_soon(self, *, urgent: bool = False, proof: bool = False) -> None:
        """Nothing to commit."""

    def fail(self, error: BaseException) -> None:
        raise error


def side_inputs() -> SideInputs:
    return SideInputs(SimpleNamespace(), 0, ProtocolSettings())  # type: ignore[arg-type]


class TestBetweenTwoAttempts:
    async def test_there_is_nothing_to_break_off(self) -> None:
        """The log was away for almost as long as a turn may stand still, and the turn pauses before it tries again."""

        class Away(Turn):
            attempts = 0

            async def _attempt(self, *_: Any) -> None:
                self.attempts += 1
                if self.attempts == 1:
                    raise ParleyError("log_unavailable", "no leader")

        turn = Away(SimpleNamespace(settings=Settings()), SimpleNamespace(), side_inputs(), request())  # type: ignore[arg-type]
        running = asyncio.create_task(turn.run())
        while not turn.attempts:
            await asyncio.sleep(0)
        assert not turn.begin_anew()
        await running
        assert turn.attempts == 2

    async def test_an_attempt_that_stands_still_is_broken_off_once(self) -> None:
        class Stuck(Turn):
            attempts = 0

            async def _attempt(self, *_: Any) -> None:
                self.attempts += 1
                if self.attempts == 1:
                    await asyncio.Event().wait()

        worker = SimpleNamespace(settings=Settings())
        turn = Stuck(worker, SimpleNamespace(), side_inputs(), request())  # type: ignore[arg-type]
        running = asyncio.create_task(turn.run())
        while not turn.attempts:
            await asyncio.sleep(0)
        assert turn.begin_anew()
        await asyncio.sleep(0.01)
        assert not turn.begin_anew()  # it pauses, and begins anew by itself
        await running
        assert turn.attempts == 2


class Topics:
    """What brokers say of a log. None: none answers."""

    def __init__(self, *, there: bool | None) -> None:
        self.there = there

    async def holds(self, *_: Any) -> bool:
        if self.there is None:
            raise ParleyError("log_unavailable", "no broker answers")
        return self.there


class TestWithoutItsTopic:
    @pytest.mark.parametrize(
        ("age_s", "there"), [(0, False), (31, True), (31, None)], ids=["just accepted", "there", "no broker answers"]
    )
    async def test_a_turn_is_tried_again_while_its_topic_may_appear(self, age_s: int, there: bool | None) -> None:
        """A topic that was just made is known a moment later, and without brokers nobody knows any."""

        class Late(Turn):
            attempts = 0

            async def _attempt(self, *_: Any) -> None:
                self.attempts += 1
                if self.attempts == 1:
                    raise TopicUnknown("chat.tokens.s.1-0")

        tools: Any = SimpleNamespace(settings=Settings(), ranges=Topics(there=there))
        asked = request(timings=Timings(accepted=now_ms() - age_s * 1000))
        turn = Late(tools, SimpleNamespace(), side_inputs(), asked)  # type: ignore[arg-type]
        await turn.run()
        assert turn.attempts == 2

    @pytest.mark.parametrize("gone", [TopicUnknown("chat.tokens.s.1-0"), RouteGone("made anew")])
    @pytest.mark.parametrize("said_before", [True, False])
    async def test_one_whose_topic_was_deleted_ends_in_the_state_log_alone(
        self, gone: Exception, said_before: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With what was written there, as far as this holder has seen it; under a proof; and that much is billed."""
        order: list[Any] = []
        route = Transcript()

        async def take(_producer: Any, _ranges: Any, _response: str, _route: Any, mine: Fence) -> Transcript:
            route.apply(mine)
            return route

        class Cut(Turn):
            async def _attempt(self, run: int, *_: Any) -> None:
                if said_before:
                    pen = await self._take(run)
                    pen.transcript.apply(delta(0, "one two", writer=pen.transcript.fence.writer, tokens=2))  # type: ignore[union-attr]
                raise gone

        async def prove() -> None:
            order.append("proof")

        async def log_end(end: TurnEnded, _partition: int) -> None:
            order.append(end)

        monkeypatch.setattr(turns, "take_turn", take)
        tools: Any = SimpleNamespace(
            settings=Settings(),
            ranges=Topics(there=False),
            tokens=SimpleNamespace(generation=lambda *_: 0),
            tokenizer=Words(),
            log_end=log_end,
            engines=SimpleNamespace(own=SimpleNamespace(url="e")),
            pool=SimpleNamespace(name="synthetic", revision="r"),
            policy=SimpleNamespace(version="p"),
        )
        held: Any = SimpleNamespace(takeover=2, partition=0, prove=prove)
        turn = Cut(tools, held, side_inputs(), request(timings=Timings(accepted=now_ms() - 31_000)))
        await asyncio.wait_for(turn.run(), 5)
        assert order[0] == "proof"
        end = order[1]
        assert (end.status, end.failure.code, end.failure.retryable) == ("failed", "log_unavailable", True)
        assert "".join(item.text for item in end.output) == ("one two" if said_before else "")
        assert end.delta_lengths == ((7,) if said_before else ())
        # Who has seen nothing may follow one who has ended the turn under a real epoch: that end is the greater.
        assert end.epoch[2] == (2 if said_before else 0)

    async def test_one_whose_topic_was_made_anew_is_not_answered_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        logs = [Transcript(), Transcript()]
        logs[0].apply(opened())

        async def take(_producer: Any, _ranges: Any, _response: str, _route: Any, mine: Fence) -> Transcript:
            log = logs.pop(0)
            log.apply(mine)
            return log

        monkeypatch.setattr(turns, "take_turn", take)
        tools: Any = SimpleNamespace(settings=Settings(), ranges=None, tokens=SimpleNamespace(generation=lambda *_: 0))
        turn = Turn(tools, SimpleNamespace(takeover=2), side_inputs(), request())  # type: ignore[arg-type]
        await turn._take(1)
        with pytest.raises(RouteGone):
            await turn._take(2)


class TestWhatItHasCost:
    async def test_tokens_of_those_who_held_the_turn_before_are_counted_once(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        route = Transcript()

        async def take(_producer: Any, _ranges: Any, _response: str, _route: Any, mine: Fence) -> Transcript:
            route.apply(mine)
            return route

        monkeypatch.setattr(turns, "take_turn", take)
        route.apply(fence((1, 1, 1, 1)))
        route.apply(delta(0, "one two ", tokens=2))
        lane = SimpleNamespace(generation=lambda *_: 0)
        tools = SimpleNamespace(tokens=lane, ranges=None, tokenizer=Words())
        turn = Turn(tools, SimpleNamespace(takeover=2), side_inputs(), request())  # type: ignore[arg-type]

        await turn._take(1)
        route.apply(delta(1, "three ", writer=route.fence.writer))  # type: ignore[union-attr]
        turn.course.generated = 3  # two of them were held back when the run broke off
        pen = await turn._take(2)
        assert turn._terminal(pen.transcript, End("completed")).usage.generated_tokens == 5


class TestAfterItsEnd:
    async def test_a_turn_s_prompt_is_not_kept_but_a_repeated_request_is_known(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An orchestrator that takes over sends requests again, up to half an hour later."""
        ran: list[weakref.ref[InferenceRequest]] = []

        class Quick:
            def __init__(self, _tools: Any, _held: Any, _side: Any, asked: InferenceRequest) -> None:
                self.request = asked

            async def run(self) -> None:
                ran.append(weakref.ref(self.request))

        monkeypatch.setattr(workers, "Turn", Quick)
        tools: Any = SimpleNamespace(settings=Settings(), engines=SimpleNamespace())
        worker = Worker(tools, SimpleNamespace(), Health())  # type: ignore[arg-type]
        held = Held(Member(), WHERE, 1, Progress(0))
        worker._partitions[WHERE] = _Partition(side_inputs())

        for offset in (0, 1):
            held.progress.take(offset)
            value = encode(request())
            worker.record(held, ConsumerRecord(*WHERE, offset, now_ms(), 1, b"", value, None, 0, 0, ()))
            while held.progress.open:
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        gc.collect()
        assert len(ran) == 1
        assert ran[0]() is None
        assert held.progress.prefix == 2


def unreadable(tools: Any, appended: int) -> tuple[Worker, Held, Any]:
    """A worker, and a request that it holds and can't read."""
    worker = Worker(tools, SimpleNamespace(), Health())  # type: ignore[arg-type]
    held = Held(Member(), WHERE, 1, Progress(0))
    worker._partitions[WHERE] = _Partition(side_inputs())
    held.progress.take(0)
    asked = request()
    about = headers(asked.type, response=asked.response, route=asked.route, dispatch=asked.dispatch)
    record: Any = ConsumerRecord(*WHERE, 0, appended, 1, b"", b"{", None, 0, 0, about)
    return worker, held, record


class TestARequestThatCannotBeRead:
    async def test_its_turn_is_ended_though_the_first_attempt_broke_off_after_its_fence(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An attempt with the same epoch would find its own fence void, and let the turn go as somebody else's."""
        route, said, ended = Transcript(), [], []

        async def take(_producer: Any, _ranges: Any, _response: str, _route: Any, mine: Fence) -> Transcript | None:
            route.apply(mine)
            if len(said) == 0:
                said.append("a fence")
                raise ParleyError("log_unavailable", "its acknowledgement is lost")
            return route if route.holds(mine) else None

        async def send(*_: Any, **__: Any) -> int:
            ended.append(now_ms())
            return 0

        async def letter(*_: Any, **__: Any) -> int:
            return 0

        monkeypatch.setattr(unread, "take_turn", take)
        monkeypatch.setattr(workers, "dead_letter", letter)
        tools: Any = SimpleNamespace(
            settings=Settings(),
            engines=SimpleNamespace(),
            tokens=SimpleNamespace(generation=lambda *_: 0, send=send),
            producer=None,
            ranges=None,
            pool=SimpleNamespace(model="m"),
        )
        worker, held, record = unreadable(tools, appended=now_ms())
        giving_up = held.spawn(worker.give_up(held, record, BadRecord("no JSON")), "give up")
        while not (held.proofs or giving_up.done()):
            await asyncio.sleep(0.01)
        assert held.proofs, "it was let go without an end"
        held.proofs[0].set_result(None)
        await giving_up
        assert route.terminal is not None
        assert len(ended) == 1
        assert held.progress.prefix == 1

    async def test_one_that_is_too_old_and_has_no_route_is_let_go(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Headers of somebody else's that name a topic that never was would hold up all that comes after."""

        async def take(*_: Any) -> None:
            raise TopicUnknown("nowhere-0")

        async def letter(*_: Any, **__: Any) -> int:
            return 0

        monkeypatch.setattr(unread, "take_turn", take)
        monkeypatch.setattr(workers, "dead_letter", letter)
        tools: Any = SimpleNamespace(
            settings=Settings(), engines=SimpleNamespace(), tokens=None, producer=None, ranges=None
        )
        worker, held, record = unreadable(tools, appended=1)
        await asyncio.wait_for(worker.give_up(held, record, BadRecord("no JSON")), 5)
        assert held.progress.prefix == 1

    async def test_a_turn_that_runs_here_is_not_taken_from_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A repetition of its request can't be read: the one that could be is enough."""

        async def letter(*_: Any, **__: Any) -> int:
            return 0

        monkeypatch.setattr(workers, "dead_letter", letter)
        tools: Any = SimpleNamespace(settings=Settings(), engines=SimpleNamespace(), producer=None)  # no way to a route
        worker = Worker(tools, SimpleNamespace(), Health())  # type: ignore[arg-type]
        held = Held(Member(), WHERE, 1, Progress(0))
        asked = request()
        running = asyncio.create_task(asyncio.sleep(0))
        known = workers._Running(None, asked.dispatch, running, [0])
        worker._partitions[WHERE] = _Partition(side_inputs(), {asked.response: known})
        held.progress.take(1)
        about = headers(asked.type, response=asked.response, route=asked.route, dispatch=asked.dispatch)
        record: Any = ConsumerRecord(*WHERE, 1, now_ms(), 1, b"", b"{", None, 0, 0, about)
        await worker.give_up(held, record, BadRecord("no JSON"))
        assert held.progress.prefix == 2
