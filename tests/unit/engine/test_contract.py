"""The tensors that a worker sends, against what the models declare; and what it reads, whatever type it comes with."""

import re
import struct
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelStreamInferResponse

from inference_workers.engine.contract import (
    INPUTS,
    EngineTimings,
    Generation,
    decode,
    encode,
    generation_request,
    read_response,
    stop_request,
)

GUIDED = {"guided_decoding_guide_type", "guided_decoding_guide"}


def values(request: ModelInferRequest) -> dict[str, list[Any]]:
    return {
        tensor.name: decode(tensor.datatype, raw)
        for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
    }


def declared(config: Path, kind: str) -> dict[str, tuple[str, int]]:
    block = re.search(rf"^{kind} \[(.*?)^\]", config.read_text(), re.DOTALL | re.MULTILINE)
    assert block is not None
    rows = re.findall(r'name: "(\w+)" data_type: TYPE_(\w+) dims: \[ (-?\d+) \]', block[1])
    return {name: ("BYTES" if datatype == "STRING" else datatype, int(dim)) for name, datatype, dim in rows}


@pytest.mark.parametrize("model", ["chat", "tensorrt_llm", "synthetic"])
def test_every_model_declares_what_a_worker_sends(models: Path, model: str) -> None:
    inputs = declared(models / model / "config.pbtxt", "input")
    assert INPUTS.items() <= inputs.items()


def test_the_models_declare_the_same(models: Path) -> None:
    configs = [models / model / "config.pbtxt" for model in ("chat", "tensorrt_llm", "synthetic")]
    inputs = [declared(config, "input") for config in configs]
    assert [inputs[0].keys() - other.keys() for other in inputs[1:]] == [GUIDED, GUIDED]
    assert inputs[1] == inputs[2]
    outputs = [declared(config, "output") for config in configs]
    assert outputs[0] == outputs[1] == outputs[2]


def test_a_sampled_request_sends_temperature_and_top_p_together() -> None:
    generation = Generation("run-1", "Grüße", 7, temperature=0.5, top_p=0.75, top_k=40, seed=1 << 63, stop=("a", "ß"))
    request = generation_request("chat", generation)
    assert (request.model_name, request.id) == ("chat", "run-1")
    assert values(request) == {
        "text_input": ["Grüße".encode()],
        "streaming": [True],
        "sampling_param_max_tokens": [7],
        "sampling_param_exclude_input_from_output": [True],
        "sampling_param_return_perf_metrics": [True],
        "return_finish_reason": [True],
        "sampling_param_temperature": [0.5],
        "sampling_param_top_p": [0.75],
        "sampling_param_top_k": [40],
        "sampling_param_stop": [b"a", "ß".encode()],
        "sampling_param_seed": [1 << 63],
    }
    assert all(list(tensor.shape) == [2 if tensor.name == "sampling_param_stop" else 1] for tensor in request.inputs)


def test_a_greedy_request_sends_top_k_1_and_nothing_that_samples() -> None:
    sent = values(generation_request("chat", Generation("run-1", "Hi", 7, temperature=0.0, top_k=40, top_p=0.5)))
    assert sent["sampling_param_top_k"] == [1]
    assert not {"sampling_param_temperature", "sampling_param_top_p"} & sent.keys()


def test_a_stop_request_has_the_id_and_a_text() -> None:
    request = stop_request("chat", "run-1")
    assert request.id == "run-1"
    assert values(request) == {"text_input": [b""], "stop": [True]}


@pytest.mark.parametrize(
    "wrong",
    [
        {"request_id": ""},
        {"max_tokens": 0},
        {"temperature": -0.1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"seed": -1},
        {"seed": 1 << 64},
    ],
)
def test_what_no_engine_takes_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Generation(**{"request_id": "r", "prompt": "p", "max_tokens": 1} | wrong)


def response(outputs: dict[str, tuple[str, list[Any]]], final: bool) -> ModelStreamInferResponse:
    message = ModelStreamInferResponse()
    message.infer_response.parameters["triton_final_response"].bool_param = final
    for name, (datatype, elements) in outputs.items():
        message.infer_response.outputs.add(name=name, datatype=datatype, shape=[len(elements)])
        message.infer_response.raw_output_contents.append(encode(datatype, elements))
    return message


@pytest.mark.parametrize("datatype", ["INT64", "BYTES"])
def test_timings_are_read_as_numbers_and_as_the_strings_that_nvidias_model_sends(datatype: str) -> None:
    names = ["arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns"]
    times = [1_000, 2_000, 3_000, (1 << 53) + 1]
    outputs = {name: (datatype, [time]) for name, time in zip(names, times, strict=True)}
    read = read_response(
        response({"text_output": ("BYTES", ["Hi"]), "finish_reason": ("BYTES", ["stop"])} | outputs, True)
    )
    assert read.text == b"Hi"
    assert read.finish_reason == "stop"
    assert read.final
    assert read.timings == EngineTimings(*times)


def test_an_unfinished_answer_has_the_word_none_for_a_reason() -> None:
    read = read_response(response({"text_output": ("BYTES", ["Hi"]), "finish_reason": ("BYTES", ["None"])}, False))
    assert (read.text, read.finish_reason, read.final, read.timings) == (b"Hi", None, False, None)


def test_the_end_may_come_without_tensors() -> None:
    read = read_response(response({}, True))
    assert (read.text, read.finish_reason, read.final) == (None, None, True)


def test_strings_follow_their_length() -> None:
    assert encode("BYTES", ["ab", ""]) == struct.pack("<I2sI", 2, b"ab", 0)
    assert decode("BYTES", encode("BYTES", ["ab", "", "ß"])) == [b"ab", b"", "ß".encode()]
