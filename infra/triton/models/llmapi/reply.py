"""Answers of the llmapi contract, as Triton's tensors."""

from dataclasses import dataclass, field

import numpy as np
import triton_python_backend_utils as pb

from llmapi.request import Wants

FINAL = pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL
UNFINISHED = "None"
"""What finish_reason and stop_reason say until the answer has ended: a word, as the contract has it."""
CANCELLED = "Request cancelled by client"


@dataclass
class Times:
    """When things happened to a run, in nanoseconds of the monotonic clock; 0 = not yet."""

    arrival_time_ns: int
    first_scheduled_time_ns: int = 0
    first_token_time_ns: int = 0
    last_token_time_ns: int = 0


@dataclass
class Reply:
    """The state of an answer that one response reports; `text` is the answer so far."""

    text: bytes
    finish_reason: str = UNFINISHED
    stop_reason: str = UNFINISHED
    logprob: float = 0.0
    times: Times | None = field(default=None)


def send(sender, wants: Wants, reply: Reply, final: bool) -> None:
    """Send the text and whatever else the caller wants to know."""
    tensors = [_string("text_output", reply.text)]
    if wants.finish_reason:
        tensors.append(_string("finish_reason", reply.finish_reason.encode()))
    if wants.stop_reason:
        tensors.append(_string("stop_reason", reply.stop_reason.encode()))
    if wants.cumulative_logprob:
        tensors.append(pb.Tensor("cumulative_logprob", np.array([reply.logprob], dtype=np.float32)))
    if wants.perf_metrics and final and reply.times:
        tensors += [pb.Tensor(name, np.array([at], dtype=np.int64)) for name, at in vars(reply.times).items()]
    sender.send(pb.InferenceResponse(tensors), flags=FINAL if final else 0)


def refuse(sender, error: Exception) -> None:
    """End with an error. It carries a text too, as TensorRT-LLM's does: callers must look at the error first."""
    code = pb.TritonError.INVALID_ARG if isinstance(error, ValueError) else pb.TritonError.INTERNAL
    tensors = [_string("text_output", b"N/A")]
    error = pb.TritonError(f"Error generating request: {error}", code)
    sender.send(pb.InferenceResponse(tensors, error=error), flags=FINAL)


def cancelled(sender) -> None:
    """End with CANCELLED: the answer to a stop request, and to a caller whose run was stopped."""
    sender.send(pb.InferenceResponse(error=pb.TritonError(CANCELLED, pb.TritonError.CANCELLED)), flags=FINAL)


def _string(name: str, value: bytes):
    return pb.Tensor(name, np.array([value], dtype=object))
