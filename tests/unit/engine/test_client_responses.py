"""What an engine says that is no response ends the run, not the worker."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import pytest
from tritonclient.grpc.service_pb2 import ModelInferResponse, ModelStreamInferResponse

from inference_workers.engine.client import EngineClient
from inference_workers.engine.contract import Generation
from inference_workers.engine.errors import EngineError


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
async def test_the_run_fails_as_one_of_the_engine(raw: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    call = Said(raw)

    async def calling(*_: Any) -> Said:
        return call

    client = EngineClient("engine:1", "model")
    monkeypatch.setattr(client, "_call", calling)
    async with aclosing(client.generate(Generation("r", "p", 4))) as chunks:
        with pytest.raises(EngineError, match="can't be read"):
            await anext(chunks)
    assert call.abandoned
