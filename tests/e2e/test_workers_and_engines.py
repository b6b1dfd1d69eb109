"""Workers that stop, freeze and come back, engines that die, users who stop or leave: seen from the outside."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from infra.local.beside import edge_beside, environment_of
from infra.local.checks import free_ports
from infra.local.find import model_pid
from infra.local.supervisor import answers
from tests.e2e.chat import Heard, chatting
from tests.e2e.conftest import System
from tests.e2e.test_faults import check_whole, read, slow_answer

WORKER = ("worker", "--pool", "synthetic")


def scripted(words: int, period_ms: int) -> dict[str, Any]:
    """A request for so many words at a pace; the answer ends by itself."""
    how = json.dumps({"words": words, "period_ms": period_ms, "first_ms": 50})
    return {"model": "synthetic", "input": f"::script {how}", "max_output_tokens": words + 1}


@asynccontextmanager
async def another_worker(system: System) -> AsyncIterator[None]:
    """One more worker on the same engine, once it holds its partitions."""
    [port] = free_ports(1)
    chosen = {"PARLEY_INSTANCE": "worker-synthetic-another", "PARLEY_METRICS_PORT": str(port)}
    with system.log.open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "parley", *WORKER),
            stdout=log,
            stderr=log,
            env=os.environ | environment_of(system.settings.data) | system.extra | chosen,
        )
    try:
        await asyncio.wait_for(answers(f"http://127.0.0.1:{port}/health/ready"), 60)
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def slots_taken(system: System) -> int:
    """By the engine's own gauge."""
    port = system.settings.engines["synthetic"].metrics_port
    async with httpx.AsyncClient() as http:
        lines = (await http.get(f"http://127.0.0.1:{port}/metrics")).text.splitlines()
    return int(float(next(line for line in lines if line.startswith("engine_active_requests{")).rsplit(" ", 1)[1]))


async def test_a_stop_over_another_edge_stops_the_engine(system: System) -> None:
    """Field case F07, first half: at most one second of words more, and the slot is free."""
    async with (
        edge_beside(system.settings, system.log) as edge,
        httpx.AsyncClient(base_url=edge.base_url, headers=system.headers, timeout=30) as http,
        chatting(system) as chat,
    ):
        await chat.send(type="response.create", **scripted(2_000, 50))
        heard, deltas, stopping = Heard(), 0, None
        async for event in chat.events():
            heard.events.append(event)
            deltas += event["type"] == "response.output_text.delta"
            if deltas == 50 and stopping is None:
                shown = len(heard.text.split())
                stopping = asyncio.create_task(http.post(f"/v1/responses/{heard.events[0]['response']['id']}/cancel"))
        assert stopping is not None
        assert (await stopping).status_code == 200
    assert heard.response["status"] == "cancelled"
    assert len(heard.text.split()) <= shown + 20
    async with asyncio.timeout(5):
        while await slots_taken(system):
            await asyncio.sleep(0.02)


async def test_leaving_does_not_stop_the_answer(system: System, client: httpx.AsyncClient) -> None:
    """Field case F07, second half: the socket closes at word 50, and all 2,000 are there afterwards."""
    async with chatting(system) as chat:
        await chat.send(type="response.create", **scripted(2_000, 4))
        response, deltas = "", 0
        async for event in chat.events():
            response = response or event["response"]["id"]
            deltas += event["type"] == "response.output_text.delta"
            if deltas == 10:
                break
    async with asyncio.timeout(60):
        while (kept := (await client.get(f"/v1/responses/{response}")).json())["status"] == "in_progress":
            await asyncio.sleep(0.2)
    assert kept["status"] == "completed"
    assert kept["output"][0]["content"][0]["text"].split() == [f"w{n:03d}" for n in range(1, 2_001)]


async def test_a_worker_that_is_told_to_end_hands_its_answers_over(system: System) -> None:
    """A rolling restart: its spare goes on in the same sentence."""
    pid = system.pid_of(*WORKER)
    async with chatting(system) as chat:
        await chat.send(type="response.create", **slow_answer())
        heard = await read(chat.events(), 30, lambda: os.kill(pid, signal.SIGTERM))
    check_whole(heard)
    assert system.pid_of(*WORKER) != pid


async def test_a_worker_that_freezes_and_comes_back_says_nothing_that_counts(system: System) -> None:
    """A zombie: stopped for 5 s while another worker takes its turns, then awake again in the middle of them."""
    async with another_worker(system):
        frozen = system.pid_of(*WORKER)
        turns = [asyncio.create_task(_said(system)) for _ in range(8)]
        await asyncio.sleep(2)
        os.kill(frozen, signal.SIGSTOP)
        await asyncio.sleep(5)
        os.kill(frozen, signal.SIGCONT)
        for heard in await asyncio.gather(*turns):
            check_whole(heard)


async def _said(system: System) -> Heard:
    async with chatting(system) as chat:
        await chat.send(type="response.create", **slow_answer())
        return await read(chat.events(), 0, lambda: None)


async def test_an_engine_whose_model_process_died_is_started_again_and_the_sentence_goes_on(system: System) -> None:
    """Triton stays ready over it, and its streams fall silent: a probe for a token tells, here and in the worker."""
    pid = model_pid(system.settings.engines["synthetic"].grpc_port)
    async with chatting(system) as chat:
        await chat.send(type="response.create", **slow_answer())
        heard = await read(chat.events(), 30, lambda: os.kill(pid, signal.SIGKILL))
    check_whole(heard)
    assert "Triton (synthetic) runs, but no token comes" in system.log.read_text(errors="replace")
