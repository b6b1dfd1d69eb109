"""The client of one engine: streams of one answer each, a stop, a probe."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self
from uuid import uuid4

from google.protobuf.message import DecodeError
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelStreamInferResponse

from inference_workers.engine.channel import Call, CallFailed, Channel, Code, Status
from inference_workers.engine.contract import (
    EngineResponse,
    EngineTimings,
    Generation,
    generation_request,
    read_response,
    stop_request,
)
from inference_workers.engine.errors import EngineError, EngineRefused, EngineSilent, EngineUnavailable
from inference_workers.engine.progress import CumulativeProgress, PieceProgress

CANCELLED: Final = "cancelled"
"""The finish_reason of a run that was stopped."""

# A stream is left by a stop request, and the server ends it. gRPC's own cancellation may kill all of Triton when
# it meets the end of an answer (triton-inference-server/server#7368, #8034; seen with 2.51): it is the last way.
LEAVING_S: Final = 5.0
"""How long a server may take to end a stream that nobody reads any more."""
CLOSING_S: Final = 0.5
"""How long the end of the connection waits for the ends of its streams."""

_METHOD: Final = "/inference.GRPCInferenceService/ModelStreamInfer"
# An error on a Triton stream is a bare text; with this header it is a status, and ends the stream.
_METADATA: Final = (("triton_grpc_error", "true"),)
# Not for stop requests, which are always answered by an error: Triton 2.51 cancels what is left of a stream after such
# a status, and that may kill it too (after 20 to 1,000 stops; 2,000 answered by a text did no harm).
_STOPPED: Final = "Request cancelled by client"
_REFUSALS: Final = {Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE, Code.UNIMPLEMENTED}
_ABSENCES: Final = {Code.UNAVAILABLE, Code.NOT_FOUND, Code.DEADLINE_EXCEEDED}


@dataclass(frozen=True, slots=True)
class EngineChunk:
    """New text of an answer; ``finish_reason`` on the last one: stop, length, cancelled or timeout.

    ``tokens`` counts the engine's responses in it: an engine that keeps to the contract says one token in each, but
    may put several into one.
    """

    text: str
    finish_reason: str | None = None
    timings: EngineTimings | None = None
    tokens: int = 1


class EngineClient:
    """One engine, reached over one connection.

    :param url: host:port of Triton's gRPC.
    :param model: the name of a decoupled model of the llmapi contract.
    :param cumulative: whether its responses hold the whole text so far (TensorRT-LLM) or only what is new.
    :param silence_s: seconds without a response after which a stream counts as dead. It must be longer than the
        longest prompt's first token takes.
    """

    def __init__(self, url: str, model: str, *, cumulative: bool = True, silence_s: float = 10.0) -> None:
        self.url = url
        self.model = model
        self._progress = CumulativeProgress if cumulative else PieceProgress
        self._silence_s = silence_s
        self._channel = Channel(url)
        self._stopping: set[asyncio.Task[None]] = set()

    async def generate(self, generation: Generation) -> AsyncGenerator[EngineChunk, None]:
        """The answer as it comes; the last chunk, and only it, has a finish_reason.

        Leaving early stops the run in the engine; where the consumer may leave by anything but cancellation,
        it holds the generator in ``contextlib.aclosing``.

        :raises EngineRefused: the engine won't do this request.
        :raises EngineSilent: nothing came for ``silence_s``.
        :raises EngineUnavailable: the engine can't be reached.
        :raises EngineError: the run failed, or ended without saying how.
        """
        over = False
        progress = self._progress()
        call = await self._call(generation_request(self.model, generation))
        watch = _Watch(call, self._silence_s)
        try:
            while raws := await call.read():
                watch.heard()
                text, tokens = "", 0
                for response in map(_response, raws):
                    reason = response.finish_reason
                    if response.text is not None:
                        text += progress.advance(response.text, reason is not None)
                        tokens += 1
                    if reason is not None:
                        over = True
                        yield EngineChunk(text, reason, response.timings, tokens)
                        return
                if text:
                    yield EngineChunk(text, tokens=tokens)
        except CallFailed as failed:
            if watch.silent:
                raise EngineSilent(f"nothing from {self.model} for {self._silence_s:g} s") from None
            if failed.status.code == Code.CANCELLED:
                yield EngineChunk("", CANCELLED, tokens=0)
                return
            raise _error(failed.status) from failed
        finally:
            watch.end()
            if call.open and not over:
                self._stop_soon(generation.request_id)
            call.abandon(LEAVING_S)
        raise EngineError(f"{self.model} ended an answer without a finish_reason")

    async def stop(self, request_id: str, *, timeout_s: float = 2.0) -> None:
        """Stop a run at once; its stream ends with the text it has and finish_reason ``cancelled``.

        An id under which nothing runs is no error: the engine gives the same answer.

        :raises EngineError: the engine did not take the request.
        """
        try:
            async with asyncio.timeout(timeout_s):
                call = await self._call(stop_request(self.model, request_id), ())
                try:
                    while raws := await call.read():
                        for message in map(ModelStreamInferResponse.FromString, raws):
                            if message.error_message and not message.error_message.endswith(_STOPPED):
                                raise EngineError(message.error_message)
                finally:
                    call.abandon(LEAVING_S)
        except CallFailed as failed:
            raise _error(failed.status) from failed
        except TimeoutError:
            raise EngineSilent(f"{self.model} did not answer a stop in {timeout_s:g} s") from None

    async def probe(self, *, timeout_s: float = 2.0) -> float:
        """Ask for one token and return the seconds that it took.

        Triton's readiness stays true over a dead model process; only this tells.

        :raises EngineSilent: no token came in time.
        :raises EngineError: as `generate`.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        one_token = Generation(request_id=f"probe-{uuid4()}", prompt="Hi", max_tokens=1)
        try:
            async with asyncio.timeout(timeout_s), aclosing(self.generate(one_token)) as chunks:
                async for _ in chunks:
                    pass
        except TimeoutError:
            raise EngineSilent(f"no token from {self.model} in {timeout_s:g} s") from None
        return loop.time() - started

    async def close(self) -> None:
        """End all streams, which frees their slots."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSING_S):
                while self._channel.busy or self._stopping:
                    await asyncio.sleep(0.01)
        self._channel.close()
        for stopping in self._stopping:
            stopping.cancel()

    def _stop_soon(self, request_id: str) -> None:
        async def stop() -> None:
            with contextlib.suppress(EngineError):
                await self.stop(request_id)

        stopping = asyncio.create_task(stop(), name=f"stop-{request_id}")
        self._stopping.add(stopping)
        stopping.add_done_callback(self._stopping.discard)

    async def _call(self, request: ModelInferRequest, metadata: Sequence[tuple[str, str]] = _METADATA) -> Call:
        try:
            return await self._channel.call(_METHOD, metadata, request.SerializeToString())
        except CallFailed as failed:
            raise _error(failed.status) from failed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Watch:
    """Ends the reading of a call that has been silent too long. A timer looks at a clock: no cost for a response."""

    def __init__(self, call: Call, limit_s: float) -> None:
        self._call = call
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._timer = self._loop.call_later(limit_s, self._look)
        self.silent = False

    def heard(self) -> None:
        self._last = self._loop.time()

    def end(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        if self._call.unread:  # it has spoken: who reads it waits for something else
            self.heard()
        rest = self._last + self._limit_s - self._loop.time()
        if rest > 0:
            self._timer = self._loop.call_later(rest, self._look)
        else:
            self.silent = True
            self._call.end(Status(Code.DEADLINE_EXCEEDED, "silent"))


def _response(raw: bytes) -> EngineResponse:
    """A response; its error is looked at first, since one with an error may hold a text too.

    :raises EngineError: that, or nothing that the contract knows: another engine may keep to it.
    """
    try:
        message = ModelStreamInferResponse.FromString(raw)
        if message.error_message:
            raise EngineError(message.error_message)
        return read_response(message)
    except (DecodeError, ValueError, LookupError, struct.error) as error:
        raise EngineError(f"a response that can't be read: {type(error).__name__}") from error


def _error(status: Status) -> EngineError:
    if status.code in _REFUSALS:
        return EngineRefused(status.message)
    if status.code in _ABSENCES:
        return EngineUnavailable(status.message)
    return EngineError(f"gRPC status {status.code}: {status.message}")
