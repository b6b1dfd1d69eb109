"""`tensorrt_llm`: one answer a request, by asking `chat` through Triton itself, so that both share one engine.

Triton refuses a call of one answer on a decoupled model, and NVIDIA's own tools make such calls under this name.
"""

import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np  # noqa: E402
import triton_python_backend_utils as pb  # noqa: E402
from llmapi import reply, request as llmapi_request  # noqa: E402

ENGINE = "chat"
CALLS_AT_ONCE = 64
CANCEL_POLL_S = 0.1
OUTPUTS = [
    "text_output",
    "finish_reason",
    "stop_reason",
    "cumulative_logprob",
    "arrival_time_ns",
    "first_scheduled_time_ns",
    "first_token_time_ns",
    "last_token_time_ns",
]


class TritonPythonModel:
    """The shell that Triton calls: a thread for each call that waits, and one that looks for callers who left."""

    def initialize(self, args):
        self._open = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._calls = ThreadPoolExecutor(CALLS_AT_ONCE)
        self._watcher = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._watcher.start()

    def execute(self, requests):
        for request in requests:
            # Triton takes the tensors' memory back when this returns.
            inputs = [pb.Tensor(tensor.name(), np.array(tensor.as_numpy())) for tensor in request.inputs()]
            self._calls.submit(self._serve, request, request.get_response_sender(), inputs)

    def finalize(self):
        self._closing.set()
        self._calls.shutdown(wait=False, cancel_futures=True)

    def _serve(self, request, sender, inputs):
        try:
            if llmapi_request.is_stop(request):
                self._stop(request, sender, inputs)
            elif llmapi_request.scalar(request, "streaming", False):
                raise ValueError(f"streaming needs a decoupled model: ask {ENGINE}")
            else:
                self._answer(request, sender, inputs)
        except Exception as error:
            reply.refuse(sender, error)

    def _answer(self, request, sender, inputs):
        key = uuid.uuid4()
        inner_id = inner(request.request_id() or str(key))
        with self._lock:
            self._open[key] = (request, inner_id)
        try:
            response = ask(inputs, inner_id)
        finally:
            with self._lock:
                del self._open[key]
        forward(sender, response)

    def _stop(self, request, sender, inputs):
        if not request.request_id():
            raise ValueError("a stop request needs the id of the request to stop")
        ask(inputs, inner(request.request_id()))
        reply.cancelled(sender)

    def _watch(self):
        """This Triton does not pass a caller's cancellation on to the inner call: stop its run."""
        while not self._closing.wait(CANCEL_POLL_S):
            with self._lock:
                calls = list(self._open.values())
            for request, inner_id in calls:
                if request.is_cancelled():
                    ask([string("text_input", b""), pb.Tensor("stop", np.array([True]))], inner_id)


def inner(request_id: str) -> str:
    """An id that can't be that of one of `chat`'s own callers."""
    return f"{ENGINE}/{request_id}"


def ask(inputs, request_id):
    """The last response of the engine that says something."""
    last = None
    call = pb.InferenceRequest(
        model_name=ENGINE, inputs=inputs, request_id=request_id, requested_output_names=OUTPUTS
    )
    for response in call.exec(decoupled=True):
        if response.has_error() or response.output_tensors():
            last = response
    if last is None:
        raise RuntimeError("the engine gave no response")
    return last


def forward(sender, response):
    if not response.has_error():
        sender.send(pb.InferenceResponse(response.output_tensors()), flags=reply.FINAL)
        return
    # An inner call keeps the text of an error and loses its code.
    message = response.error().message()
    if reply.CANCELLED in message:
        reply.cancelled(sender)
    else:
        error = pb.TritonError(message, pb.TritonError.INTERNAL)
        sender.send(pb.InferenceResponse([string("text_output", b"N/A")], error=error), flags=reply.FINAL)


def string(name, value):
    return pb.Tensor(name, np.array([value], dtype=object))
