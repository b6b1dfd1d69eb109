"""The tensors of TensorRT-LLM's llmapi model: requests built, responses read. Pure.

Source: NVIDIA/TensorRT-LLM, triton_backend/all_models/llmapi/tensorrt_llm. An output is read by the datatype it
comes with: NVIDIA's model sends its metrics as strings whatever its configuration says.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelStreamInferResponse

INPUTS: Final[dict[str, tuple[str, int]]] = {
    "text_input": ("BYTES", -1),
    "streaming": ("BOOL", 1),
    "sampling_param_max_tokens": ("INT32", 1),
    "sampling_param_top_k": ("INT32", 1),
    "sampling_param_temperature": ("FP32", 1),
    "sampling_param_top_p": ("FP32", 1),
    "sampling_param_frequency_penalty": ("FP32", 1),
    "sampling_param_presence_penalty": ("FP32", 1),
    "sampling_param_stop": ("BYTES", -1),
    "sampling_param_seed": ("UINT64", 1),
    "sampling_param_exclude_input_from_output": ("BOOL", 1),
    "sampling_param_return_perf_metrics": ("BOOL", 1),
    "return_finish_reason": ("BOOL", 1),
    "stop": ("BOOL", 1),
}
"""The inputs that Parley sends: datatype and the one dimension, -1 = any number of elements."""

_FORMATS: Final = {
    "BOOL": "?",
    "INT32": "<i",
    "INT64": "<q",
    "UINT64": "<Q",
    "FP32": "<f",
    "FP64": "<d",
}
_UNFINISHED: Final = "None"
_TIMES: Final = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")

Element = str | bool | int | float
"""One element of an input."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What an engine is asked for.

    ``prompt`` is text after the chat template. ``request_id`` is unique for each run of a turn: the engine's stop
    works by it. ``temperature`` 0 is greedy, whatever the other sampling parameters are. ``stop`` strings only let
    the engine end early; whoever reads must cut them itself (`stops`).

    :raises ValueError: a value that no engine takes.
    """

    request_id: str
    prompt: str
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    stop: tuple[str, ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        if not self.request_id:
            raise ValueError("request_id is empty: a run without one can't be stopped")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be 1 or more, not {self.max_tokens}")
        if self.temperature < 0:
            raise ValueError(f"temperature must be 0 or more, not {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, not {self.top_p}")
        if self.seed is not None and not 0 <= self.seed < 1 << 64:
            raise ValueError("seed must fit 64 bits without a sign")


@dataclass(frozen=True, slots=True)
class EngineTimings:
    """When things happened in the engine, in ns of its own clock: only differences mean anything."""

    arrival_ns: int
    first_scheduled_ns: int
    first_token_ns: int
    last_token_ns: int


@dataclass(frozen=True, slots=True)
class EngineResponse:
    """One response of a stream. ``text`` is UTF-8, None where the response holds none; ``final``: none follows."""

    text: bytes | None
    finish_reason: str | None
    final: bool
    timings: EngineTimings | None


def generation_request(model: str, generation: Generation) -> ModelInferRequest:
    """The streaming request for an answer."""
    values: dict[str, Sequence[Element]] = {
        "text_input": [generation.prompt],
        "streaming": [True],
        "sampling_param_max_tokens": [generation.max_tokens],
        "sampling_param_exclude_input_from_output": [True],
        "sampling_param_return_perf_metrics": [True],
        "return_finish_reason": [True],
    }
    if generation.temperature == 0:
        # Versions differ on temperature 0 and on temperature alone; top_k 1 is greedy in all.
        values["sampling_param_top_k"] = [1]
    else:
        values["sampling_param_temperature"] = [generation.temperature]
        values["sampling_param_top_p"] = [generation.top_p]
        if generation.top_k is not None:
            values["sampling_param_top_k"] = [generation.top_k]
    if generation.frequency_penalty:
        values["sampling_param_frequency_penalty"] = [generation.frequency_penalty]
    if generation.presence_penalty:
        values["sampling_param_presence_penalty"] = [generation.presence_penalty]
    if generation.stop:
        values["sampling_param_stop"] = generation.stop
    if generation.seed is not None:
        values["sampling_param_seed"] = [generation.seed]
    return _request(model, generation.request_id, values)


def stop_request(model: str, request_id: str) -> ModelInferRequest:
    """The request that stops a run at once. It needs a text, any; its answer is always the error CANCELLED."""
    return _request(model, request_id, {"text_input": [""], "stop": [True]})


def read_response(message: ModelStreamInferResponse) -> EngineResponse:
    """A response's text and, on the last, what the engine tells about the end.

    To be called only on a message without an error: one with an error may carry a text, "N/A".

    :raises ValueError: the response lacks the raw contents of an output.
    """
    response = message.infer_response
    final = response.parameters["triton_final_response"].bool_param
    text: bytes | None = None
    finish_reason: str | None = None
    times: dict[str, int] = {}
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        name = output.name
        if name == "text_output":
            # One element: its length in four bytes, then the text.
            text = raw[4:] if raw else None
        elif name == "finish_reason":
            reason = raw[4:].decode()
            finish_reason = None if reason in (_UNFINISHED, "") else reason
        elif name in _TIMES and raw:
            times[name] = int(decode(output.datatype, raw)[0])
    timings = EngineTimings(*(times[name] for name in _TIMES)) if len(times) == len(_TIMES) else None
    return EngineResponse(text, finish_reason, final, timings)


def encode(datatype: str, values: Iterable[Element]) -> bytes:
    """Elements as Triton's raw contents: little-endian, each string after its length in four bytes."""
    if datatype == "BYTES":
        strings = [str(value).encode() for value in values]
        return b"".join(struct.pack("<I", len(string)) + string for string in strings)
    return b"".join(struct.pack(_FORMATS[datatype], value) for value in values)


def decode(datatype: str, raw: bytes) -> list[bytes] | list[bool | int | float]:
    """Triton's raw contents as elements; strings as bytes."""
    if datatype != "BYTES":
        return [value for (value,) in struct.iter_unpack(_FORMATS[datatype], raw)]
    strings, at = [], 0
    while at < len(raw):
        (length,) = struct.unpack_from("<I", raw, at)
        strings.append(raw[at + 4 : at + 4 + length])
        at += 4 + length
    return strings


def _request(model: str, request_id: str, values: dict[str, Sequence[Element]]) -> ModelInferRequest:
    request = ModelInferRequest(model_name=model, id=request_id)
    for name, elements in values.items():
        datatype, _ = INPUTS[name]
        request.inputs.add(name=name, datatype=datatype, shape=[len(elements)])
        request.raw_input_contents.append(encode(datatype, elements))
    # Without it the end of a stream whose last response has no tensors is not told.
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    return request
