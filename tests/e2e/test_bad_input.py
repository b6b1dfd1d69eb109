"""Bad input: each gets the right error or the dead-letter queue, and the next good one works."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
import websockets
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.e2e.chat import chatting
from tests.e2e.conftest import System

GOOD = {"model": "synthetic", "input": "hello", "max_output_tokens": 16}


async def good_one_works(client: httpx.AsyncClient) -> None:
    answer = (await client.post("/v1/responses", json=GOOD)).json()
    assert answer["status"] == "incomplete"
    assert len(answer["output"][0]["content"][0]["text"].split()) == 16


BAD_BODIES: list[tuple[str, bytes, int, str]] = [
    ("not JSON", b"{", 400, "invalid_json"),
    ("a wrong type", json.dumps(GOOD | {"temperature": "hot"}).encode(), 400, "invalid_request"),
    ("a field too long", json.dumps(GOOD | {"metadata": {"k": "x" * 600}}).encode(), 400, "invalid_request"),
    ("too little room asked for", json.dumps(GOOD | {"max_output_tokens": 5}).encode(), 400, "invalid_request"),
    ("an unknown model", json.dumps(GOOD | {"model": "gpt-99"}).encode(), 404, "model_not_found"),
    ("nobody's session", json.dumps(GOOD | {"conversation": "conv_" + "A" * 32}).encode(), 404, "not_found"),
    ("over 1 MiB", json.dumps(GOOD | {"input": "x" * (1 << 20)}).encode(), 413, "request_too_large"),
]


@pytest.mark.parametrize(("body", "status", "code"), [b[1:] for b in BAD_BODIES], ids=[b[0] for b in BAD_BODIES])
async def test_a_bad_body_gets_its_error(client: httpx.AsyncClient, body: bytes, status: int, code: str) -> None:
    answer = await client.post("/v1/responses", content=body, headers={"content-type": "application/json"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code)
    assert set(error) >= {"type", "code", "message", "param"}
    await good_one_works(client)


async def test_a_prompt_over_the_context_fails_with_its_reason(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/responses", json=GOOD | {"input": "word " * 9_000})
    body: dict[str, Any] = answer.json()
    code = body["error"]["code"]
    assert code == "context_length_exceeded"
    await good_one_works(client)


async def test_somebody_elses_conversation_is_not_found(system: System, client: httpx.AsyncClient) -> None:
    conversation = (await client.post("/v1/conversations", json={})).json()["id"]
    email = "eve@localhost"
    await parley(system, "users", "create", email)
    key = (await parley(system, "keys", "create", email)).split()[-1]
    async with httpx.AsyncClient(base_url=system.base_url, headers={"authorization": f"Bearer {key}"}) as eve:
        refused = await eve.post("/v1/responses", json=GOOD | {"conversation": conversation})
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_found")
        assert (await eve.get(f"/v1/conversations/{conversation}")).status_code == 404


async def test_a_revoked_key_is_no_key(system: System) -> None:
    email = "mallory@localhost"
    await parley(system, "users", "create", email)
    key_id, key = (await parley(system, "keys", "create", email)).split()[-2:]
    async with httpx.AsyncClient(base_url=system.base_url, headers={"authorization": f"Bearer {key}"}) as client:
        assert (await client.get("/v1/conversations")).status_code == 200
        await parley(system, "keys", "revoke", key_id)

        async def refused() -> None:
            while (await client.get("/v1/conversations")).status_code != 401:
                await asyncio.sleep(0.2)

        await asyncio.wait_for(refused(), 10)  # keys are remembered for 5 s
    with pytest.raises(websockets.InvalidStatus) as answer:
        async with websockets.connect(system.ws_url, additional_headers={"authorization": f"Bearer {key}"}):
            pass
    assert answer.value.response.status_code == 401


async def test_the_socket_survives_bad_messages_and_closes_on_a_giant(system: System) -> None:
    async with chatting(system) as chat:
        for message in ("{", "[]", '{"type":"no.such"}', json.dumps({"type": "response.create", **GOOD, "model": "x"})):
            await chat.socket.send(message)
            event = json.loads(await chat.socket.recv())
            assert event["type"] == "error"
            assert event["status"] in (400, 404)
        heard = await chat.say("hello", model="synthetic", max_output_tokens=16)
        assert len(heard.text.split()) == 16
        await chat.send(type="response.create", **GOOD | {"input": "x" * (1 << 20)})
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await chat.socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


async def test_f36_unparsable_records_in_every_topic_block_nothing(system: System, client: httpx.AsyncClient) -> None:
    bootstrap = f"127.0.0.1:{system.settings.kafka.port}"
    bad = (b"\xff\xfe{", json.dumps({"v": 99, "type": "prompt.accepted"}).encode(), None)
    topics = [
        "chat.prompts",
        "chat.verdicts",
        "chat.turns",
        "chat.control",
        "chat.tokens",
        "chat.inference.synthetic.paid",
        "chat.inference.smol.free",
    ]
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all")
    await producer.start()
    try:
        for topic in topics:
            # A view that meets twenty in a row stands still on purpose: fewer where views read.
            for partition in range(4 if topic == "chat.turns" else 16):
                for value in bad:
                    await producer.send(topic, value, key=b"by hand", partition=partition)
        await producer.flush()
    finally:
        await producer.stop()
    for _ in range(10):
        await good_one_works(client)
    wanted = {"chat.prompts": 48, "chat.inference.synthetic.paid": 48, "chat.turns": 12}
    letters = await dead_letters(bootstrap, wanted)
    for topic in ("chat.prompts", "chat.inference.synthetic.paid"):
        values = [value for where, value, _ in letters if where == topic]
        assert len(values) == 16 * len(bad)
        assert set(values) == set(bad)
    reasons = {headers["x-dlq-reason"] for _, _, headers in letters}
    assert all(reasons)


async def dead_letters(bootstrap: str, wanted: dict[str, int]) -> list[tuple[str, bytes | None, dict[str, str]]]:
    """(original topic, original value, headers) of chat.dlq, once every wanted topic has its number of them."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None)
    await consumer.start()
    found: list[tuple[str, bytes | None, dict[str, str]]] = []
    try:
        partitions = [TopicPartition("chat.dlq", number) for number in range(16)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        async with asyncio.timeout(30):
            while any(sum(topic == name for topic, _, _ in found) < count for name, count in wanted.items()):
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    for record in records:
                        headers = {name: value.decode() for name, value in record.headers if name.startswith("x-dlq")}
                        found.append((headers["x-dlq-topic"], record.value, headers))
    finally:
        await consumer.stop()
    return found


async def parley(system: System, *arguments: str) -> str:
    """What a command of the command line prints."""
    output = await system.command(*arguments)
    return output.strip()
