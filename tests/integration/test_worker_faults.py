"""What a worker makes of engines that fail, fall silent or die, users who change their mind, and its own stalls."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import random
import signal
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from infra.local.aside import settings_aside
from infra.local.find import model_pid
from infra.local.stack import LocalStack
from parley.log.producer import Producer
from parley.log.ranges import RangeReader, Record
from parley.settings import WorkerSettings
from parley.topics_cli import apply_topics
from parley.transcript import Transcript
from tests.integration.stores_parts import all_settings
from tests.integration.worker_parts import POOL, Gauges, Lab, policy_file, script, words

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
async def lab(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    settings = all_settings(kafka_bootstrap)
    policy = policy_file(tmp_path_factory.mktemp("policy"), hold_back=0)
    settings = settings.model_copy(update={"moderation": settings.moderation.model_copy(update={"policy": policy})})
    await apply_topics(settings)
    producer = Producer(settings.kafka, "lab")
    await producer.start()
    ranges = RangeReader(settings.kafka, "lab")
    yield Lab(settings, producer, ranges)
    await ranges.stop()
    await producer.stop()


@pytest.fixture
async def gauges(synthetic_engine: str, services: Any) -> AsyncIterator[Gauges]:
    async with httpx.AsyncClient(timeout=10) as http:
        yield Gauges(services.stack.settings.engines[POOL].metrics_port, http)


def said(count: int) -> Any:
    """At least so many words are on the route."""
    return lambda transcript: len(transcript.text.split()) >= count


async def until_active(gauges: Gauges, count: int, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while await gauges.active() != count:
            await asyncio.sleep(0.01)


def tasks_of_workers() -> int:
    """Tasks that run the worker's own code: readers and connections are kept for the next turn, so they don't count."""
    coroutines = (task.get_coro() for task in asyncio.all_tasks())
    return sum("inference_workers" in coro.cr_code.co_filename for coro in coroutines if inspect.iscoroutine(coro))


class TestAnEngineThatFails:
    async def test_a_stream_that_ends_without_a_reason_goes_on_in_another_run(
        self, lab: Lab, synthetic_engine: str
    ) -> None:
        """Field case F21: an end without a finish_reason is not an end."""
        async with lab.worker(None, synthetic_engine):
            request = await lab.ask(script(words=12, die_after=5))
            transcript = await lab.fold(request)
        assert (transcript.text, transcript.terminal and transcript.terminal.kind) == (words(12), "completed")
        assert transcript.joins == [len(words(5))]

    async def test_one_that_always_breaks_off_ends_failed_with_the_text_so_far(
        self, lab: Lab, synthetic_engine: str, tmp_path: Any
    ) -> None:
        """Field case F21: one terminal, failed and retryable; the text is kept, what the engine said is not told.

        With a hold-back each run comes to the same place again: the words held back are lost with it.
        """
        policy = policy_file(tmp_path, hold_back=2)
        moderation = lab.settings.moderation.model_copy(update={"policy": policy})
        async with lab.worker(None, synthetic_engine, moderation=moderation):
            request = await lab.ask(script(words=12, error_after=5))
            transcript = await lab.fold(request)
            ended = await lab.ended(request)
        terminal = transcript.terminal
        assert terminal is not None
        assert terminal.failure is not None
        assert (terminal.kind, terminal.failure.code, terminal.failure.retryable) == ("failed", "engine_error", True)
        assert "script" not in terminal.failure.message
        assert transcript.text == words(2)
        assert ended.status == "failed"
        assert [part.text for item in ended.output for part in item.parts if part.type == "text"] == [words(2)]

    async def test_the_token_limit_is_an_incomplete_answer_of_one_call(
        self, lab: Lab, synthetic_engine: str, gauges: Gauges
    ) -> None:
        """Field case F22: reason max_output_tokens, the tokens counted, and exactly one request to the engine."""
        patient = WorkerSettings(probe_interval_s=60)
        async with lab.worker(None, synthetic_engine, worker=patient):
            before = await gauges.calls()
            request = await lab.ask(script(words=50), max_tokens=16)
            transcript = await lab.fold(request)
            await lab.ended(request)
            assert await gauges.calls() == before + 1
        terminal = transcript.terminal
        assert terminal is not None
        assert (terminal.kind, terminal.reason) == ("incomplete", "max_output_tokens")
        assert terminal.usage.output_tokens == 16
        assert transcript.text == words(16)

    async def test_a_stream_that_falls_silent_goes_on_in_another_run(self, lab: Lab, synthetic_engine: str) -> None:
        impatient = WorkerSettings(silence_limit_s=1)
        async with lab.worker(None, synthetic_engine, worker=impatient):
            request = await lab.ask(script(words=12, silent_after=5))
            transcript = await lab.fold(request)
        assert transcript.text == words(12)


class TestCancels:
    async def test_a_hundred_cancels_at_any_moment_leave_ten_others_untouched(
        self, lab: Lab, synthetic_engine: str, gauges: Gauges
    ) -> None:
        """Field case F26: each slot is free within a second, nothing leaks, the streams beside are whole."""
        dice = random.Random(4)
        patient = WorkerSettings(probe_interval_s=60)
        async with lab.worker(None, synthetic_engine, worker=patient):
            await until_active(gauges, 0, 3)
            long = script(words=400, period_ms=50)
            others = [await lab.ask(long, max_tokens=400, partition=n) for n in range(10)]
            await until_active(gauges, 10, 10)
            tasks = tasks_of_workers()

            async def change_mind(number: int) -> Transcript:
                request = await lab.ask(script(words=2_000, period_ms=10), max_tokens=2_000, partition=number % 16)
                await asyncio.sleep(dice.uniform(0, 0.3))
                await lab.cancel(request)
                return await lab.fold(request, within_s=30)

            waits = []
            for first in range(0, 100, 10):
                cancelled = await asyncio.gather(*(change_mind(first + n) for n in range(10)))
                since = asyncio.get_running_loop().time()
                await until_active(gauges, 10, 10)
                waits.append(asyncio.get_running_loop().time() - since)
                for transcript in cancelled:
                    assert transcript.terminal is not None
                    assert transcript.terminal.kind == "cancelled"
                    assert words(2_000).startswith(transcript.text)
            assert sorted(waits)[len(waits) // 2] < 1  # not each: other things run on this machine, too
            async with asyncio.timeout(10):
                while tasks_of_workers() > tasks:
                    await asyncio.sleep(0.05)
            whole = await asyncio.gather(*(lab.fold(request) for request in others))
            assert all(transcript.text == words(400) for transcript in whole)
            assert all(transcript.joins == [] for transcript in whole)

    async def test_a_cancel_before_there_is_a_slot_ends_the_turn_without_an_engine(
        self, lab: Lab, synthetic_engine: str
    ) -> None:
        async with lab.worker(None, synthetic_engine) as worker:
            worker.tools.admission.resize(0)
            request = await lab.ask("hello")
            await asyncio.sleep(0.2)
            await lab.cancel(request)
            transcript = await lab.fold(request, within_s=5)
        assert transcript.terminal is not None
        assert (transcript.terminal.kind, transcript.text) == ("cancelled", "")


class TestAnEngineThatIsDrained:
    async def test_its_worker_begins_nothing_on_it_and_what_runs_there_runs_on(
        self, lab: Lab, synthetic_engine: str
    ) -> None:
        """One engine under two names: a worker knows engines by their addresses."""
        own, other = synthetic_engine, synthetic_engine.replace("127.0.0.1", "localhost")
        assert own != other
        async with lab.worker(None, own, other) as worker:
            running = await lab.ask(script(words=60, period_ms=50))
            await lab.fold(running, said(5))
            try:
                await lab.operate("drain", f"{POOL}/{own}")
                async with asyncio.timeout(10):
                    while not worker.tools.engines.own.drained:
                        await asyncio.sleep(0.02)
                later = await lab.ask("hello", max_tokens=5)
                await lab.fold(later)
                assert (await lab.ended(later)).engine == other
                whole = await lab.fold(running)
                assert (whole.text, whole.joins) == (words(60), []), "what ran when it was drained is not touched"
                assert (await lab.ended(running)).engine == own
                told = json.loads(await lab.operate("status", "--json"))
                [status] = [one for one in told["workers"] if one["engine"] == own]
                assert (status["drained"], status["slots"]) == (True, 128), "a guest of the other engine takes half"
                busy = await lab.ask(script(words=200, period_ms=50))
                await lab.fold(busy, said(5))
                told = await lab.operate("drain", f"{POOL}/{own}", "--wait", "20")
                assert "nothing runs there any more" in told, "what its worker runs elsewhere does not count"
                try:
                    assert "nothing runs there any more" in await lab.operate("drain", POOL, "--wait", "30")
                    assert (await lab.fold(busy, within_s=1)).terminal is not None, "for a pool, every request counts"
                finally:
                    await lab.operate("resume", POOL)
            finally:
                await lab.operate("resume", f"{POOL}/{own}")
            async with asyncio.timeout(10):
                while worker.tools.engines.own.drained:
                    await asyncio.sleep(0.02)
            again = await lab.ask("hello", max_tokens=5)
            await lab.fold(again)
            assert (await lab.ended(again)).engine == own


class TestAnEngineThatDies:
    @pytest.fixture
    async def two(self, tmp_path: Any) -> AsyncIterator[LocalStack]:
        """Two engines of the test's own, to be killed."""
        async with LocalStack(settings_aside(tmp_path, twins=(POOL,))) as stack:
            await stack.start_services(*(stack.engines[name].name for name in (POOL, f"{POOL}-1")))
            yield stack

    async def test_a_dead_model_process_is_noticed_and_its_turns_go_on_elsewhere(
        self, lab: Lab, two: LocalStack
    ) -> None:
        """Triton stays ready over it, and the streams say nothing more: only a probe tells."""
        first, second = two.engines[POOL], two.engines[f"{POOL}-1"]
        async with lab.worker(None, first.endpoint, second.endpoint) as worker:
            request = await lab.ask(script(words=100, period_ms=50))
            await lab.fold(request, said(20))
            os.kill(model_pid(first.engine.grpc_port), signal.SIGKILL)
            await lab.fold(request, said(60), within_s=20)
            assert not worker.tools.engines.own.alive
            assert worker.health.readiness() == ""
            transcript = await lab.fold(request)
            assert transcript.text == words(100)
            assert len(transcript.joins) == 1
            assert (await lab.ended(request)).engine == second.endpoint
            # Another turn begins on the engine that lives, at once.
            after = await lab.ask("hello", max_tokens=5)
            assert (await lab.fold(after, within_s=20)).text == words(5)

    async def test_without_any_engine_a_turn_waits_and_goes_on_when_one_is_back(
        self, lab: Lab, two: LocalStack
    ) -> None:
        engine = two.engines[POOL]
        async with lab.worker(None, engine.endpoint) as worker:
            request = await lab.ask(script(words=100, period_ms=50))
            await lab.fold(request, said(20))
            engine.kill()
            async with asyncio.timeout(10):
                while not worker.health.readiness():
                    await asyncio.sleep(0.05)
            assert "no engine of the pool synthetic answers" in worker.health.readiness()
            await two.restart(engine.name)
            transcript = await lab.fold(request)
            assert transcript.text == words(100)
            assert worker.health.readiness() == ""

    async def test_when_none_comes_back_the_turn_ends_failed_and_keeps_its_text(
        self, lab: Lab, two: LocalStack
    ) -> None:
        engine = two.engines[POOL]
        async with lab.worker(None, engine.endpoint, worker=WorkerSettings(engine_wait_s=2)):
            request = await lab.ask(script(words=100, period_ms=50))
            shown = (await lab.fold(request, said(20))).text
            engine.kill()
            transcript = await lab.fold(request, within_s=15)
        terminal = transcript.terminal
        assert terminal is not None
        assert terminal.failure is not None
        assert (terminal.kind, terminal.failure.code, terminal.failure.retryable) == (
            "failed",
            "engine_unavailable",
            True,
        )
        assert transcript.text.startswith(shown)


class Hanging(RangeReader):
    """A reader whose reads of one partition never come back, until it is healed."""

    hangs_on = 3
    healed = False

    async def __aenter__(self) -> Hanging:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def read(self, topic: str, partition: int, start: int, end: int) -> list[Record]:
        if partition == self.hangs_on and not self.healed:
            await asyncio.Event().wait()
        return await super().read(topic, partition, start, end)


class TestATurnThatDoesNotGetOn:
    async def test_it_is_named_and_begun_anew_and_the_others_go_on(self, lab: Lab, synthetic_engine: str) -> None:
        """Field case F32: a handler of one partition waits for ever; no restart is needed to get over it."""
        impatient = WorkerSettings(stall_s=1)
        async with (
            Hanging(lab.settings.kafka, "hanging") as hanging,
            lab.worker(None, synthetic_engine, worker=impatient) as worker,
        ):
            worker.tools.ranges = hanging
            stuck = await lab.ask("hello", max_tokens=5, partition=3)
            others = [await lab.ask("hello", max_tokens=5, partition=n) for n in (1, 2, 4)]
            for other in others:
                assert (await lab.fold(other, within_s=20)).text == words(5)
            async with asyncio.timeout(20):
                while "chat.inference.synthetic.free-3 offset" not in worker.health.readiness():
                    await asyncio.sleep(0.05)
            hanging.healed = True
            assert (await lab.fold(stuck, within_s=30)).text == words(5)
            await lab.ended(stuck)
            async with asyncio.timeout(10):
                while worker.health.readiness():
                    await asyncio.sleep(0.05)

    async def test_past_its_deadline_its_user_is_told_so(self, lab: Lab, synthetic_engine: str) -> None:
        """Field case F32: the user gets an error of time, not silence."""
        async with (
            Hanging(lab.settings.kafka, "hanging") as hanging,
            lab.worker(None, synthetic_engine, worker=WorkerSettings(stall_s=1)) as worker,
        ):
            worker.tools.ranges = hanging
            stuck = await lab.ask("hello", max_tokens=5, partition=3, start_s=1)
            await asyncio.sleep(1.5)
            hanging.healed = True
            terminal = (await lab.fold(stuck, within_s=30)).terminal
            assert terminal is not None
            assert terminal.failure is not None
            assert terminal.failure.code == "start_deadline_exceeded"


class TestRebalances:
    async def test_a_long_answer_outlives_the_poll_interval(self, lab: Lab, synthetic_engine: str) -> None:
        """Field case F31: it is one run, the group stays as it is, and short turns of its partition pass it."""
        kafka = lab.settings.kafka.model_copy(update={"max_poll_interval_ms": 3_000})
        async with (
            lab.worker("long-a", synthetic_engine, kafka=kafka) as one,
            lab.worker("long-b", synthetic_engine, kafka=kafka) as two,
        ):
            async with asyncio.timeout(10):
                while one.generation != two.generation or {len(w.group.held) for w in (one, two)} != {16}:
                    await asyncio.sleep(0.05)
            generation = one.generation
            long = await lab.ask(script(words=100, period_ms=100), partition=5)
            asked = asyncio.get_running_loop().time()
            await lab.fold(long, said(10))
            for _ in range(3):
                short = await lab.ask("hello", max_tokens=3, partition=5)
                assert (await lab.fold(short, within_s=20)).text == words(3)
            transcript = await lab.fold(long)
            assert asyncio.get_running_loop().time() - asked > 8
            assert (transcript.text, transcript.joins) == (words(100), [])
            assert (one.generation, two.generation) == (generation, generation)

    async def test_a_worker_that_joins_interrupts_only_what_moves_to_it(self, lab: Lab, synthetic_engine: str) -> None:
        async with lab.worker(None, synthetic_engine):
            asked = [
                await lab.ask(script(words=200, period_ms=50), max_tokens=200, partition=partition)
                for partition in range(16)
            ]
            await lab.fold(asked[-1], said(5))
            async with lab.worker(None, synthetic_engine) as two:
                ends = await asyncio.gather(*(lab.fold(request) for request in asked))
                moved = {w.partition for w in two.group.held if w.topic.endswith(".free")}
        assert 0 < len(moved) < 16
        for partition, transcript in enumerate(ends):
            assert transcript.text == words(200)
            assert partition in moved or transcript.joins == []
        assert any(transcript.joins for transcript in ends)
