"""What a worker makes of an engine's responses, and of their absence."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest
from tritonclient.grpc.service_pb2 import ModelInferResponse, ModelStreamInferResponse

from inference_workers.engine.channel import Call
from inference_workers.engine.client import EngineClient
from inference_workers.engine.contract import Generation
from inference_workers.engine.errors import EngineError, EngineSilent


class Said:
    """A call that has brought these bytes."""

    open = False

    def __init__(self, *raws: bytes) -> None:
        self._raws = list(raws)
        self.abandoned = False

    async def read(self) -> list[bytes]:
        raws, self._raws = self._raws, []
        return raws

    def abandon(self, within_s: float) -> None:
        self.abandoned = True


def response(*outputs: tuple[str, str], contents: tuple[bytes, ...]) -> bytes:
    answer = ModelInferResponse()
    for name, datatype in outputs:
        answer.outputs.add(name=name, datatype=datatype, shape=[1])
    answer.raw_output_contents.extend(contents)
    whole: bytes = ModelStreamInferResponse(infer_response=answer).SerializeToString()
    return whole


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff\xff\xff",
        response(("text_output", "BYTES"), contents=()),
        response(("finish_reason", "BYTES"), contents=(b"\x01\0\0\0\xff",)),
        response(("arrival_time_ns", "FP16"), contents=(b"\0\0",)),
        response(("arrival_time_ns", "INT64"), contents=(b"\0\0",)),
        response(("arrival_time_ns", "BYTES"), contents=(b"\x02\0",)),
    ],
    ids=["no message", "no contents", "no text", "a type of its own", "half a number", "half a string"],
)
async def test_what_is_no_response_fails_the_run_as_one_of_the_engine(
    raw: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Said(raw)

    async def calling(*_: Any) -> Said:
        return call

    client = EngineClient("engine:1", "model")
    monkeypatch.setattr(client, "_call", calling)
    async with aclosing(client.generate(Generation("r", "p", 4))) as chunks:
        with pytest.raises(EngineError, match="can't be read"):
            await anext(chunks)
    assert call.abandoned


class TestSilence:
    """An engine is silent when it says nothing, not when nobody listens: the log may be away for long."""

    @pytest.fixture
    def call(self) -> Call:
        return Call(SimpleNamespace(holds=lambda call: False), 1, b"")  # type: ignore[arg-type]

    @pytest.fixture
    def client(self, call: Call, monkeypatch: pytest.MonkeyPatch) -> EngineClient:
        async def calling(*_: Any) -> Call:
            return call

        client = EngineClient("engine:1", "model", cumulative=False, silence_s=0.05)
        monkeypatch.setattr(client, "_call", calling)
        return client

    @staticmethod
    def say(call: Call, text: str) -> None:
        content = len(text).to_bytes(4, "little") + text.encode()
        message = response(("text_output", "BYTES"), contents=(content,))
        call.feed(b"\0" + len(message).to_bytes(4) + message)

    async def test_what_came_while_nobody_read_counts(self, call: Call, client: EngineClient) -> None:
        async with aclosing(client.generate(Generation("r", "p", 4))) as chunks:
            self.say(call, "one ")
            assert (await anext(chunks)).text == "one "
            self.say(call, "two ")
            await asyncio.sleep(0.2)
            assert (await anext(chunks)).text == "two "
            asyncio.get_running_loop().call_later(0.001, self.say, call, "three")
            assert (await anext(chunks)).text == "three"

    async def test_an_engine_that_says_nothing_is_given_up(self, call: Call, client: EngineClient) -> None:
        async with aclosing(client.generate(Generation("r", "p", 4))) as chunks:
            self.say(call, "one ")
            assert (await anext(chunks)).text == "one "
            with pytest.raises(EngineSilent):
                await anext(chunks)
