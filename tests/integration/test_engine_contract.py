"""One contract for every engine: what the language model does, the synthetic engine does, and TensorRT-LLM does.

The tensors and the rules are those of NVIDIA's llmapi model; see infra/triton/README.md.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any
from uuid import uuid4

import grpc
import httpx
import pytest
from tritonclient.grpc import InferInput
from tritonclient.grpc import aio as triton
from tritonclient.utils import InferenceServerException

from inference_workers.engine.client import EngineChunk, EngineClient
from inference_workers.engine.contract import Generation, generation_request, read_response, stop_request
from inference_workers.engine.errors import EngineError, EngineRefused, EngineSilent, EngineUnavailable

pytestmark = pytest.mark.stack

MODELS = {"smol": "chat", "synthetic": "synthetic"}
LONG = "Tell me a very long story about a ship."


def prompt(message: str, said: str = "") -> str:
    return f"<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n{said}"


def ask(message: str, max_tokens: int, said: str = "", **sampling: Any) -> Generation:
    return Generation(f"run-{uuid4()}", prompt(message, said), max_tokens, **sampling)


async def answer(client: EngineClient, generation: Generation) -> list[EngineChunk]:
    async with aclosing(client.generate(generation)) as chunks:
        return [chunk async for chunk in chunks]


def text_of(chunks: list[EngineChunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


@pytest.fixture(params=MODELS)
async def client(request: pytest.FixtureRequest, engines: dict[str, str]) -> AsyncIterator[EngineClient]:
    """The client of each engine in turn."""
    async with EngineClient(engines[request.param], MODELS[request.param], silence_s=30) as client:
        yield client


@pytest.fixture
async def synthetic(engines: dict[str, str]) -> AsyncIterator[EngineClient]:
    async with EngineClient(engines["synthetic"], "synthetic", silence_s=1) as client:
        yield client


@pytest.fixture
def active(client: EngineClient, services: Any) -> Callable[[], Awaitable[int]]:
    """The slots that are taken in the engine, as its metrics show them."""
    pool = next(pool for pool, model in MODELS.items() if model == client.model)
    port = services.stack.settings.engines[pool].metrics_port

    async def read() -> int:
        async with httpx.AsyncClient() as http:
            metrics = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
        name = f'engine_active_requests{{model="{client.model}"}} '
        return int(float(next(line for line in metrics.splitlines() if line.startswith(name)).removeprefix(name)))

    return read


async def until(active: Callable[[], Awaitable[int]], count: int, within_s: float = 3.0) -> None:
    async with asyncio.timeout(within_s):
        while await active() != count:
            await asyncio.sleep(0.02)


async def responses(client: EngineClient, generation: Generation) -> list[Any]:
    """The responses as they come on the wire."""
    async with triton.InferenceServerClient(client.url) as raw:
        call = raw._client_stub.ModelStreamInfer(metadata=(("triton_grpc_error", "true"),))
        await call.write(generation_request(client.model, generation))
        await call.done_writing()
        return [read_response(message) async for message in call]


async def test_the_text_is_cumulative_and_the_reason_comes_with_the_last_of_it(client: EngineClient) -> None:
    seen = await responses(client, ask("Count to ten.", 12))
    texts = [response.text for response in seen if response.text is not None]
    assert len(texts) > 3
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert [response.finish_reason for response in seen[:-1]] == [None] * (len(seen) - 1)
    assert seen[-1].finish_reason == "length"
    assert seen[-1].final
    assert seen[-1].text is not None


async def test_the_client_gives_each_letter_once(client: EngineClient) -> None:
    generation = ask("Count to ten.", 12)
    whole = (await responses(client, generation))[-1].text
    chunks = await answer(client, ask("Count to ten.", 12))
    assert text_of(chunks).encode() == whole
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)


async def test_an_answer_has_exactly_max_tokens(client: EngineClient) -> None:
    """The text of n + 1 tokens is longer than that of n, and begins with it."""
    texts = [text_of(await answer(client, ask("Count to ten.", n))) for n in (1, 2, 3, 4)]
    assert all(later.startswith(earlier) and later != earlier for earlier, later in itertools.pairwise(texts))
    assert len(await responses(client, ask("Count to ten.", 4))) <= 4


async def test_the_last_chunk_tells_when_things_happened(client: EngineClient) -> None:
    timings = (await answer(client, ask("Hi", 3)))[-1].timings
    assert timings is not None
    assert 0 < timings.arrival_ns <= timings.first_scheduled_ns <= timings.first_token_ns <= timings.last_token_ns


async def test_a_greedy_answer_repeats(client: EngineClient) -> None:
    first, second = [text_of(await answer(client, ask("Name three fruits.", 16))) for _ in range(2)]
    assert first == second != ""


async def test_a_sampled_answer_repeats_with_its_seed(client: EngineClient) -> None:
    first, second = [
        text_of(await answer(client, ask(LONG, 16, temperature=0.9, top_p=0.95, seed=7))) for _ in range(2)
    ]
    assert first == second != ""


async def test_an_open_answer_is_continued(client: EngineClient) -> None:
    whole = text_of(await answer(client, ask("Count to ten.", 16)))
    said = text_of(await answer(client, ask("Count to ten.", 8)))
    rest = text_of(await answer(client, ask("Count to ten.", 8, said=said)))
    assert said + rest == whole


async def test_a_stop_request_ends_the_stream_and_frees_its_slot(
    client: EngineClient, active: Callable[[], Awaitable[int]]
) -> None:
    await until(active, 0)
    generation = ask(LONG, 400, temperature=0.9, seed=1)
    async with aclosing(client.generate(generation)) as chunks:
        await anext(chunks)
        await until(active, 1)
        started = asyncio.get_running_loop().time()
        await client.stop(generation.request_id)
        last = [chunk async for chunk in chunks][-1]
        assert last.finish_reason == "cancelled"
        assert asyncio.get_running_loop().time() - started < 1
    await until(active, 0)


async def test_leaving_a_stream_frees_its_slot(client: EngineClient, active: Callable[[], Awaitable[int]]) -> None:
    await until(active, 0)
    async with aclosing(client.generate(ask(LONG, 400, temperature=0.9, seed=1))) as chunks:
        await anext(chunks)
        await until(active, 1)
    await until(active, 0)


async def test_a_cancelled_task_frees_its_slot(client: EngineClient, active: Callable[[], Awaitable[int]]) -> None:
    await until(active, 0)
    task = asyncio.create_task(answer(client, ask(LONG, 400, temperature=0.9, seed=1)))
    await until(active, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(active, 0)


async def test_a_stop_is_always_answered_cancelled_also_when_nothing_runs(client: EngineClient) -> None:
    async with triton.InferenceServerClient(client.url) as raw:
        call = raw._client_stub.ModelStreamInfer(metadata=(("triton_grpc_error", "true"),))
        await call.write(stop_request(client.model, "nobody"))
        await call.done_writing()
        with pytest.raises(grpc.aio.AioRpcError, match="cancelled by client") as error:
            [message async for message in call]
        assert error.value.code() is grpc.StatusCode.CANCELLED
    await client.stop("nobody")


async def test_a_stop_without_an_id_is_an_error(client: EngineClient) -> None:
    with pytest.raises(EngineError, match="id"):
        await client.stop("")


async def test_an_error_comes_before_any_tensor(client: EngineClient) -> None:
    """On a stream without the header an error is a text beside a response, which may hold the text N/A."""
    request = generation_request(client.model, ask("Hi", 1))
    max_tokens = [tensor.name for tensor in request.inputs].index("sampling_param_max_tokens")
    request.raw_input_contents[max_tokens] = (0).to_bytes(4, "little")
    async with triton.InferenceServerClient(client.url) as raw:
        call = raw._client_stub.ModelStreamInfer()
        await call.write(request)
        await call.done_writing()
        messages = [message async for message in call]
    assert "sampling_param_max_tokens must be 1 or more" in messages[0].error_message


async def test_a_prompt_over_the_context_is_refused(client: EngineClient) -> None:
    with pytest.raises(EngineRefused, match="more than the context"):
        await answer(client, ask(" cat" * 33_000, 5))


async def test_an_engine_goes_on_after_it_refused(client: EngineClient) -> None:
    with pytest.raises(EngineRefused):
        await answer(client, ask("Hi", 1_000_000))
    assert 0 < await client.probe(timeout_s=10) < 10


async def test_an_address_where_nobody_listens_is_unavailable(free_port: int) -> None:
    async with EngineClient(f"127.0.0.1:{free_port}", "chat") as client:
        with pytest.raises(EngineUnavailable):
            await client.probe()


class TestOneAnswerARequest:
    """`tensorrt_llm`: the engine of `chat` for callers that don't stream, as NVIDIA's tools call it."""

    @staticmethod
    def inputs(message: str, max_tokens: int, **more: bool) -> list[InferInput]:
        generation = generation_request("tensorrt_llm", ask(message, max_tokens))
        request = []
        for tensor, raw in zip(generation.inputs, generation.raw_input_contents, strict=True):
            if tensor.name not in {"streaming", "sampling_param_return_perf_metrics"}:
                request.append(InferInput(tensor.name, list(tensor.shape), tensor.datatype))
                request[-1]._raw_content = raw
        for name, value in more.items():
            request.append(InferInput(name, [1], "BOOL"))
            request[-1]._raw_content = bytes([value])
        return request

    async def test_it_gives_the_text_that_the_stream_gives(self, engines: dict[str, str]) -> None:
        async with EngineClient(engines["smol"], "chat") as client, triton.InferenceServerClient(client.url) as raw:
            streamed = text_of(await answer(client, ask("Count to ten.", 20)))
            whole = await raw.infer("tensorrt_llm", self.inputs("Count to ten.", 20))
        assert whole.as_numpy("text_output")[0].decode() == streamed
        assert whole.as_numpy("finish_reason")[0] == b"length"

    async def test_it_does_not_stream(self, engines: dict[str, str]) -> None:
        async with triton.InferenceServerClient(engines["smol"]) as raw:
            with pytest.raises(InferenceServerException, match="streaming needs a decoupled model"):
                await raw.infer("tensorrt_llm", self.inputs("Hi", 2, streaming=True))

    async def test_a_stopped_call_is_answered_cancelled(self, engines: dict[str, str]) -> None:
        async with triton.InferenceServerClient(engines["smol"]) as raw:
            call = asyncio.create_task(raw.infer("tensorrt_llm", self.inputs(LONG, 2_000), request_id="unary"))
            await asyncio.sleep(0.5)
            with pytest.raises(InferenceServerException, match="cancelled by client"):
                await raw.infer("tensorrt_llm", self.inputs("", 1, stop=True), request_id="unary")
            with pytest.raises(InferenceServerException, match="cancelled by client") as error:
                await call
        assert error.value.status() == "StatusCode.CANCELLED"


class TestWhatAnEngineMayDo:
    """Faults that only the synthetic engine can be made to have."""

    @staticmethod
    def scripted(**script: Any) -> Generation:
        return ask("::script " + json.dumps(script), 20)

    async def test_half_characters_arrive_whole(self, synthetic: EngineClient) -> None:
        pieces = ["f09f", "918b", "e4bd", "a0", "f09f91a9e2808d", "f09f91a9", "e2808d", "f09f91a7", "e2"]
        chunks = await answer(synthetic, self.scripted(pieces_hex=pieces))
        assert text_of(chunks) == bytes.fromhex("".join(pieces)).decode(errors="replace")
        assert all("\ufffd" not in chunk.text for chunk in chunks[:-1])

    async def test_silence_is_an_error_within_its_limit(self, synthetic: EngineClient) -> None:
        started = asyncio.get_running_loop().time()
        with pytest.raises(EngineSilent, match="nothing from synthetic for 1 s"):
            await answer(synthetic, self.scripted(silent_after=3))
        assert 1 <= asyncio.get_running_loop().time() - started < 3

    async def test_a_slow_answer_is_not_silent(self, synthetic: EngineClient) -> None:
        chunks = await answer(synthetic, self.scripted(words=4, period_ms=400))
        assert text_of(chunks) == "w001 w002 w003 w004"

    async def test_an_end_without_a_reason_is_an_error(self, synthetic: EngineClient) -> None:
        with pytest.raises(EngineError, match="without a finish_reason"):
            await answer(synthetic, self.scripted(die_after=2))

    async def test_an_error_after_some_tokens_may_be_tried_again(self, synthetic: EngineClient) -> None:
        with pytest.raises(EngineError, match="as the script says") as error:
            await answer(synthetic, self.scripted(error_after=2))
        assert error.value.retryable

    async def test_a_silent_stream_frees_its_slot_when_its_caller_gives_up(self, synthetic: EngineClient) -> None:
        with pytest.raises(EngineSilent):
            await answer(synthetic, self.scripted(silent_after=0))
        assert text_of(await answer(synthetic, ask("Hi", 2))) == "w001 w002"

    async def test_answers_at_once_do_not_mix(self, synthetic: EngineClient) -> None:
        words = [f"word{n}x" for n in range(32)]
        answers = await asyncio.gather(*(answer(synthetic, self.scripted(word=word, words=10)) for word in words))
        assert [text_of(chunks) for chunks in answers] == [
            " ".join(f"{word}{n:03d}" for n in range(1, 11)) for word in words
        ]

    async def test_every_stream_has_its_own_phase(self, synthetic: EngineClient) -> None:
        """A token of each of four streams, 5 ms apart, in a period of 20 ms: nobody waits for a common tick."""
        loop = asyncio.get_running_loop()

        async def first_token(delay_s: float) -> float:
            await asyncio.sleep(delay_s)
            asked = loop.time()
            async with aclosing(synthetic.generate(ask("Hi", 2))) as chunks:
                await anext(chunks)
                return loop.time() - asked

        waits = await asyncio.gather(*(first_token(n * 0.005) for n in range(8)))
        assert min(waits) > 0.04
        assert sorted(waits)[4] < 0.15
