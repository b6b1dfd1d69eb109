"""Field case F49: behind a default nginx the answer still comes token by token."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from infra.local.checks import free_ports
from tests.e2e.conftest import System

CONFIGURATION = """
daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1;
events {{ }}
http {{
  access_log off; gzip on;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {target}; }} }}
}}
"""


@pytest.fixture
async def nginx(system: System, tmp_path: Path) -> AsyncIterator[str]:
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        pytest.skip("nginx is not installed")
    (port,) = free_ports(1)
    (tmp_path / "nginx.conf").write_text(
        CONFIGURATION.format(folder=tmp_path, port=port, target=system.base_url), encoding="utf-8"
    )
    process = await asyncio.create_subprocess_exec(
        program, "-c", str(tmp_path / "nginx.conf"), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(10):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.05)
                else:
                    writer.close()
                    break
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


async def arrivals(client: httpx.AsyncClient, url: str) -> list[float]:
    """When each piece of a response's text came."""
    moments = []
    async with client.stream("GET", url) as answer:
        assert "content-encoding" not in answer.headers
        assert "no-transform" in answer.headers["cache-control"]
        assert "no-cache" in answer.headers["cache-control"]
        async for line in answer.aiter_lines():
            if line.startswith("data:") and '"response.output_text.delta"' in line:
                moments.append(time.perf_counter())
    return moments


def p95_gap(moments: list[float]) -> float:
    gaps = sorted(b - a for a, b in pairwise(moments))
    return gaps[int(len(gaps) * 0.95)]


async def test_f49_tokens_are_not_gathered_by_a_proxy(system: System, nginx: str) -> None:
    """At 20 tokens a second the gaps stay below 150 ms for 95% of them; where the machine is so busy that they don't
    without a proxy, the same response is read directly too, and the proxy may add next to nothing."""
    script = json.dumps({"first_ms": 50, "period_ms": 50, "words": 500})
    body = {"model": "synthetic", "input": f"::script {script}", "max_output_tokens": 60}
    headers = system.headers | {"accept-encoding": "gzip"}
    async with (
        httpx.AsyncClient(base_url=nginx, headers=headers, timeout=60) as proxied,
        httpx.AsyncClient(base_url=system.base_url, headers=headers, timeout=60) as direct,
    ):
        asked = (await direct.post("/v1/responses", json=body | {"background": True})).json()["id"]
        url = f"/v1/responses/{asked}?stream=true"
        through, straight = await asyncio.gather(arrivals(proxied, url), arrivals(direct, url))
    assert len(through) > 50
    # The engine says a word every 50 ms for 3 s; a proxy that gathers would hand them over in one lump.
    assert through[-1] - through[0] > 2.0
    assert p95_gap(through) < max(0.15, p95_gap(straight) + 0.03)
