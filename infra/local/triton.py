"""Triton Inference Server, one process an engine, from the Python package nvidia-pytriton.

Triton's own readiness stays true over a model process that died, so it says only that the engine has started; whether
it lives is found out by asking for a token: here to start it again, in the worker to go elsewhere meanwhile.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from tritonclient.grpc.aio import InferenceServerClient

from inference_workers.engine.client import EngineClient
from inference_workers.engine.errors import EngineError
from infra.local.checks import PortUse
from infra.local.problems import StackError
from infra.local.process import Command, run
from infra.local.provision import ensure_triton_venv
from infra.local.service import Service, Unwell, clean_environment, listens
from infra.local.settings import LOOPBACK, EngineSettings, LocalSettings

# How long requests in flight may hold up the end. Workers have stopped theirs before.
EXIT_TIMEOUT = 5
# A token for a single request, however busy the engine is.
PULSE_LIMIT = 10.0

LAYOUT = """
import json, sysconfig
print(json.dumps({"site": sysconfig.get_path("purelib"), "libraries": sysconfig.get_config_var("LIBDIR"),
                  "version": sysconfig.get_python_version()}))
"""


def service_name(engine: str) -> str:
    """The name of the service that is an engine."""
    return f"triton-{engine}"


class Triton(Service):
    """An engine of a pool: a tritonserver with the models that belong to it, the one that streams first."""

    def __init__(self, settings: LocalSettings, name: str, engine: EngineSettings) -> None:
        self.name = service_name(name)
        self.title = f"Triton ({name})"
        super().__init__(settings.data, external=engine.endpoint is not None)
        self.settings = settings
        self.engine = engine
        self.engine_name = name
        self.endpoint = engine.endpoint or f"{LOOPBACK}:{engine.grpc_port}"

    @property
    def ports(self) -> Sequence[PortUse]:
        setting = f"{self.engine_name} in PARLEY_LOCAL_ENGINES"
        return (
            PortUse(self.engine.grpc_port, f"{self.title}, gRPC", setting),
            PortUse(self.engine.http_port, f"{self.title}, HTTP", setting),
            PortUse(self.engine.metrics_port, f"{self.title}, metrics", setting),
        )

    def check(self) -> None:
        for model in self.engine.models:
            if not (self.settings.models / model / "config.pbtxt").exists():
                raise StackError(
                    f"The engine {self.engine_name} needs the model {model}, which {self.settings.models} lacks."
                )

    async def prepare(self) -> None:
        venv = await ensure_triton_venv(self.settings)
        layout = self.folder / "layout.json"
        self.folder.mkdir(parents=True, exist_ok=True)
        layout.unlink(missing_ok=True)
        if await run(Command([str(venv / "bin" / "python"), "-I", "-c", LAYOUT], clean_environment()), layout) != 0:
            raise StackError(f"Triton's environment {venv} does not work: remove it, and it is made again.")
        found = json.loads(layout.read_text())
        self._site, self._libraries = Path(found["site"]), found["libraries"]
        self._gather_backend(found["version"])

    def _gather_backend(self, version: str) -> None:
        """Triton wants a backend's files and the stub for this Python version in one folder, all executable."""
        server = self._site / "pytriton" / "tritonserver"
        backend = self.folder / "backends" / "python"
        stub = "triton_python_backend_stub"
        shutil.rmtree(backend, ignore_errors=True)
        shutil.copytree(server / "backends" / "python", backend)
        shutil.copy(server / "python_backend_stubs" / version / stub, backend / stub)
        for program in (backend / stub, server / "bin" / "tritonserver"):
            program.chmod(0o755)

    def command(self) -> Command:
        venv = self.settings.triton_venv
        environment = clean_environment()
        environment |= {
            "VIRTUAL_ENV": str(venv),
            "PATH": f"{venv / 'bin'}:{environment.get('PATH', '')}",
            "LD_LIBRARY_PATH": f"{self._libraries}:{self._site / 'nvidia_pytriton.libs'}",
        }
        engine = self.engine
        argv = [
            str(self._site / "pytriton" / "tritonserver" / "bin" / "tritonserver"),
            f"--model-repository={self.settings.models}",
            f"--backend-directory={self.folder / 'backends'}",
            # Explicit: a model whose process died comes back with an unload and a load.
            "--model-control-mode=explicit",
            *(f"--load-model={model}" for model in engine.models),
            f"--exit-timeout-secs={EXIT_TIMEOUT}",
            f"--grpc-address={LOOPBACK}",
            f"--grpc-port={engine.grpc_port}",
            f"--http-address={LOOPBACK}",
            f"--http-port={engine.http_port}",
            f"--metrics-address={LOOPBACK}",
            f"--metrics-port={engine.metrics_port}",
        ]
        return Command(argv, environment)

    async def pulse(self) -> None:
        try:
            async with EngineClient(self.endpoint, self.engine.models[0]) as client:
                await client.probe(timeout_s=PULSE_LIMIT)
        except EngineError as error:
            raise Unwell(f"no token comes: {error}") from error

    async def probe(self) -> None:
        host, port = self.endpoint.rsplit(":", 1)
        await listens(host, int(port))
        async with InferenceServerClient(self.endpoint) as client:
            for model in self.engine.models:
                if not await client.is_model_ready(model, client_timeout=5):
                    raise Unwell(f"the model {model} is not ready")
