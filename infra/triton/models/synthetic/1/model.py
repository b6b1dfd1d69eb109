"""`synthetic`: the tensors of TensorRT-LLM's llmapi model without a language model (see script.py)."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine import Engine  # noqa: E402
from llmapi import reply, request as llmapi_request  # noqa: E402
from script import Script  # noqa: E402


class TritonPythonModel:
    """The shell that Triton calls."""

    def initialize(self, args):
        settings = {k: v["string_value"] for k, v in json.loads(args["model_config"])["parameters"].items()}
        pace = Script(int(settings["answer_words"]), float(settings["first_ms"]), float(settings["period_ms"]))
        self._engine = Engine(pace, int(settings["context_words"]))

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            try:
                if llmapi_request.is_stop(request):
                    self._stop(request, sender)
                else:
                    self._engine.add(llmapi_request.read(request), request, sender)
            except Exception as error:
                reply.refuse(sender, error)

    def finalize(self):
        self._engine.close()

    def _stop(self, request, sender):
        if not request.request_id():
            raise ValueError("a stop request needs the id of the request to stop")
        self._engine.stop(request.request_id())
        reply.cancelled(sender)
