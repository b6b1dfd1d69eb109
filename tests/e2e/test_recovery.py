"""What a store, or the log, takes with it when it is lost, and what comes back: docs/runbooks/recover-*.md, as tests.

Each has a system of its own, and loses the data of one of its services for good. They print what an operator would see;
`pytest -m long -s tests/e2e/test_recovery.py` is where the pages' output is from.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from infra.local.aside import settings_aside
from infra.local.beside import environment_of
from infra.local.postgres import programs
from infra.local.process import kill_group
from infra.local.service import recall
from infra.local.stack import LocalStack
from parley.ids import response_address
from tests.e2e.chat import Chat, Heard, chatting, kept
from tests.e2e.conftest import System

pytestmark = [pytest.mark.stack, pytest.mark.long]

PATIENCE_S = 60.0
QUESTION = {"model": "synthetic", "input": "are you there?", "max_output_tokens": 16}


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[System]:
    """A system that may lose its data."""
    system = System(settings_aside(tmp_path / "data"), tmp_path / "log")
    try:
        await system.start()
        yield system
    finally:
        await system.stop()


@asynccontextmanager
async def services(system: System, *names: str) -> AsyncIterator[None]:
    """Services of a system that does not run, as for work on them."""
    async with LocalStack(system.settings) as stack:
        await stack.start_services(*names)
        stack.write_environment()
        yield


def lose(system: System, service: str) -> None:
    """The disk of a service is gone while it runs."""
    running = recall(system.settings.data / "run" / service)
    assert running is not None
    kill_group(running.pid)
    folder = system.settings.data / service / "data"
    folder.rename(folder.with_name("lost"))


async def shown(system: System, *command: str) -> str:
    """What a command prints, printed here as well."""
    output = await system.command(*command)
    print(f"\n$ parley {' '.join(command)}\n{output}")
    return output


def http(system: System) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=system.base_url, headers=system.headers, timeout=60)


async def refused(client: httpx.AsyncClient, path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
    """(status, code) of an answer that is an error."""
    answer = await (client.get(path) if body is None else client.post(path, json=body))
    print(f"{'GET' if body is None else 'POST'} {path}: {answer.status_code} {answer.text[:300]}")
    return answer.status_code, answer.json()["error"]["code"]


async def until_refused(client: httpx.AsyncClient, path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
    """`refused`, once it is: what has been read before may serve for seconds."""
    async with asyncio.timeout(PATIENCE_S):
        while (await (client.get(path) if body is None else client.post(path, json=body))).is_success:
            await asyncio.sleep(0.2)
    return await refused(client, path, body)


async def conversation(client: httpx.AsyncClient, chat: Chat, *said: str, **about: Any) -> str:
    """A conversation with a turn for each thing that is said."""
    made: str = (await client.post("/v1/conversations", json=about)).json()["id"]
    for text in said:
        await speak(chat, text, conversation=made)
    return made


async def speak(chat: Chat, text: str, **more: Any) -> Heard:
    heard = await chat.say(text, model="synthetic", max_output_tokens=16, **more)
    assert heard.last["type"] in ("response.completed", "response.incomplete"), heard.last
    return heard


async def listed(client: httpx.AsyncClient, count: int) -> list[dict[str, Any]]:
    """The user's conversations, once there are as many, all with titles."""
    rows: list[dict[str, Any]] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(rows) < count or not all(row["title"] for row in rows):
            rows = (await client.get("/v1/conversations")).json()["data"]
            await asyncio.sleep(0.1)
    return rows


async def items(client: httpx.AsyncClient, made: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await client.get(f"/v1/conversations/{made}/items?limit=100")).json()["data"]
    return found


async def turns_of(system: System) -> int:
    """How many turns were counted."""
    return sum(row["turns"] for row in json.loads(await system.command("usage", "--json")))


async def test_the_message_store_is_lost_and_built_again_from_the_log(own: System) -> None:
    async with http(own) as client, chatting(own) as chat:
        told = await conversation(client, chat, "my name is Ada", "and I like tea")
        chained = await speak(chat, "a chain begins")
        before = await kept(client, told, 4)
        last = await speak(chat, "it goes on", previous_response_id=chained.response["id"])

        # Away, then there and empty: chats go on, what was said can't be read, and nothing is given up.
        lose(own, "cassandra")
        assert await until_refused(client, f"/v1/conversations/{told}/items") == (503, "store_unavailable")
        await speak(chat, "a new chat")
        await speak(chat, "still there?", previous_response_id=last.response["id"])
        assert len((await client.get("/v1/conversations")).json()["data"]) == 1
        async with asyncio.timeout(PATIENCE_S):
            while "lacks Parley's tables" not in own.log.read_text():
                await asyncio.sleep(0.2)
        assert await refused(client, f"/v1/conversations/{told}/items") == (503, "store_unavailable")
        await speak(chat, "and now?", previous_response_id=last.response["id"])
        await shown(own, "lag", "--once", "--group", "history-messages")
        assert await shown(own, "dlq", "list") == "no dead letters\n"

    await own.stop()
    async with services(own, "kafka", "cassandra", "postgres"):
        await shown(own, "migrate")
        code, told_us = await tried(own, "doctor", "--only", "views")
        print(f"\n$ parley doctor --only views; echo $?\n{told_us}{code}")
        assert (code, "its store is empty" in told_us) == (5, True)
        await shown(own, "group", "reset", "history-messages", "--to", "earliest", "--yes")
    await own.start()

    async with http(own) as client, chatting(own) as chat:
        assert await kept(client, told, 4) == before
        after = await speak(chat, "what is my name?", conversation=told)
        await speak(chat, "go on", previous_response_id=last.response["id"])
        assert (await kept(client, told, 6))[:4] == before
        stored = (await client.get(f"/v1/responses/{chained.response['id']}")).json()
        assert stored["output"] == chained.response["output"]
        assert after.response["id"] != stored["id"]
        await shown(own, "lag", "--once", "--group", "history-messages")


async def test_kafka_is_lost_and_the_stores_carry_the_conversations_on(own: System) -> None:
    async with http(own) as client, chatting(own) as chat, chatting(own) as other:
        told = await conversation(client, chat, "my name is Ada", "and I like tea")
        chained = await speak(chat, "a chain begins")
        before, rows = await kept(client, told, 4), await listed(client, 1)
        counted = await turns_of(own)
        cut = (await client.post("/v1/conversations", json={})).json()["id"]
        script = json.dumps({"first_ms": 50, "period_ms": 100, "words": 500})
        request = {"model": "synthetic", "input": f"::script {script}", "max_output_tokens": 400}
        await other.send(type="response.create", conversation=cut, **request)
        running: dict[str, Any] = {}
        async for event in other.events():
            running = event.get("response", running)
            if event["type"] == "response.output_text.delta":
                break
        async with asyncio.timeout(PATIENCE_S):
            while [item["status"] for item in await items(client, cut)] != ["completed", "in_progress"]:
                await asyncio.sleep(0.1)

        lose(own, "kafka")
        assert await items(client, told) == before, "history is read without the log"
        # At once: `parley up` gives up after half a minute.
        asked = asyncio.create_task(refused(client, "/v1/responses", QUESTION))
        for command in (("lag", "--check"), ("doctor", "--quiet", "--only", "kafka")):
            code, told_us = await tried(own, *command)
            print(f"\n$ parley {' '.join(command)}; echo $?\n{told_us}{code}")
            assert code != 0
        assert await asked == (503, "log_unavailable")
        print(f"GET /health/ready: {(await client.get('/health/ready')).text}")

    print(f"parley up ended with {await own.stop()}:\n{own.tail()}")
    await own.start()

    async with http(own) as client, chatting(own) as chat:
        assert await kept(client, told, 4) == before
        assert [row["id"] for row in await listed(client, 2)][-1] == rows[-1]["id"]
        assert [item["status"] for item in await items(client, cut)] == ["completed", "in_progress"]
        assert counted > 0
        assert await turns_of(own) == 0, "what was counted was in the log alone"

        # Cold, all of them: their past is in the store alone.
        await speak(chat, "what is my name?", conversation=told)
        assert (await kept(client, told, 6))[:4] == before
        await speak(chat, "go on", previous_response_id=chained.response["id"])
        replayed = (await client.get(f"/v1/responses/{chained.response['id']}")).json()
        assert replayed["output"] == chained.response["output"]

        # The answer that was cut is ended when its conversation speaks.
        await speak(chat, "go on", conversation=cut)
        found = await kept(client, cut, 3)
        assert [item["role"] for item in found] == ["user", "user", "assistant"]
        ended = (await client.get(f"/v1/responses/{running['id']}")).json()
        assert (ended["status"], ended["error"]["code"]) == ("failed", "log_unavailable")
        await shown(own, "log", str(response_address(running["id"]).session))
        await shown(own, "lag", "--once")
        await shown(own, "doctor", "--quiet", "--only", "topics", "--only", "groups")
        async with asyncio.timeout(PATIENCE_S):
            while await turns_of(own) < 4:  # the one that was cut, and three since
                await asyncio.sleep(0.5)


async def tried(system: System, *command: str) -> tuple[int, str]:
    """Exit code and output of a command that may fail."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "parley", *command),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=os.environ | environment_of(system.settings.data),
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


def postgres(system: System, program: str, *arguments: str) -> None:
    """A program of PostgreSQL's on the system's database."""
    dsn = environment_of(system.settings.data)["PARLEY_POSTGRES__DSN"]
    subprocess.run([str(programs() / program), "--dbname", dsn, *arguments], check=True, timeout=60)


async def test_postgresql_is_lost_and_comes_back_from_a_dump_and_the_log(own: System, tmp_path: Path) -> None:
    dump = tmp_path / "parley.sql"
    async with http(own) as client, chatting(own) as chat:
        old = await conversation(client, chat, "my name is Ada")
        await listed(client, 1)
        postgres(own, "pg_dump", f"--file={dump}")
        new = await conversation(client, chat, "and I like tea", title="Tea", metadata={"cup": "blue"})
        rows = await listed(client, 2)

        lose(own, "postgres")
        await speak(chat, "sockets that are open go on", conversation=old)
        # At once: `parley up` gives up after a quarter of a minute.
        assert (
            await asyncio.gather(
                until_refused(client, "/v1/conversations"), until_refused(client, "/v1/responses", QUESTION)
            )
            == [(503, "store_unavailable")] * 2
        )
        print(f"GET /health/ready: {(await client.get('/health/ready')).text}")

    print(f"parley up ended with {await own.stop()}:\n{own.tail()}")
    key = own.key
    async with services(own, "kafka", "cassandra", "postgres"):
        postgres(own, "psql", "--quiet", "--single-transaction", f"--file={dump}")
        await shown(own, "migrate")
        await shown(own, "keys", "list", "demo@localhost")
        await shown(own, "group", "reset", "history-sessions", "--to", "earliest", "--yes")
    await own.start()
    assert own.key == key, "the same key works"

    async with http(own) as client, chatting(own) as chat:
        again = await listed(client, 2)
        assert [row["id"] for row in again] == [old, new], "what was said while it was away counts"
        assert {row["id"]: described(row) for row in again} == {row["id"]: described(row) for row in rows}
        await speak(chat, "go on", conversation=new)
        await shown(own, "lag", "--once", "--group", "history-sessions")


def described(row: dict[str, Any]) -> tuple[Any, ...]:
    """What a list shows of a conversation, but when it was last used."""
    return row["title"], row["metadata"], row["created_at"]
