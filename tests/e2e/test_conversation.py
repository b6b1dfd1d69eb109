"""A person chats: on the real stack, with the real model."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
from aiokafka import AIOKafkaConsumer, TopicPartition

from parley.settings import Settings
from parley.tokenizers import load_tokenizer
from schemas.prompts import InferenceRequest
from schemas.wire import decoder
from tests.e2e.chat import chatting, kept, texts
from tests.e2e.conftest import System

MODEL = "smollm2-135m-instruct"
PLAIN = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


async def requests_of(system: System, pool: str, tier: str = "paid") -> list[InferenceRequest]:
    """Everything that the pool was asked to run."""
    topic, decode = f"chat.inference.{pool}.{tier}", decoder(InferenceRequest)
    consumer = AIOKafkaConsumer(bootstrap_servers=f"127.0.0.1:{system.settings.kafka.port}", group_id=None)
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, number) for number in range(16)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        found: list[InferenceRequest] = []
        while any([await consumer.position(where) < ends[where] for where in partitions]):
            for records in (await consumer.getmany(timeout_ms=200)).values():
                found += [decode(record.value) for record in records]
        return found
    finally:
        await consumer.stop()


async def test_three_turns_over_a_websocket_and_the_third_remembers(system: System, client: httpx.AsyncClient) -> None:
    conversation = (await client.post("/v1/conversations", json={})).json()["id"]
    said = ["My name is Ada and I like tea.", "Where does it come from?", "What did I say my name is?"]
    answers = []
    async with chatting(system) as chat:
        for text in said:
            heard = await chat.say(text, model=MODEL, conversation=conversation, max_output_tokens=48, temperature=0)
            # The turn before may not have been proved ended yet when this one comes: then it waits for a moment.
            kinds = [t for i, t in enumerate(heard.types) if i == 0 or t != heard.types[i - 1]]
            assert [kind for kind in kinds if kind != "response.queued"][:5] == PLAIN[:5]
            assert [event["sequence_number"] for event in heard.events] == list(range(len(heard.events)))
            assert heard.text
            answers.append(heard.text)
    turns = [
        r
        for r in await requests_of(system, "smol")
        if r.prompt.endswith(f"{said[2]}<|im_end|>\n<|im_start|>assistant\n")
    ]
    assert len(turns) == 1
    rest = turns[0].prompt
    for text in (said[0], answers[0], said[1], answers[1], said[2]):  # in this order, each after the one before
        assert text in rest
        rest = rest[rest.index(text) + len(text) :]
    items = await kept(client, conversation, 6)
    assert [text for item in items for text in texts(item)] == [
        t for pair in zip(said, answers, strict=True) for t in pair
    ]


async def test_the_sdk_streams_the_same_kind_of_answer(system: System) -> None:
    async with openai.AsyncOpenAI(base_url=f"{system.base_url}/v1", api_key=system.key, max_retries=0) as sdk:
        types: list[str] = []
        async with sdk.responses.stream(model=MODEL, input="What is the capital of France?", temperature=0) as stream:
            async for event in stream:
                types.append(event.type)
            final = await stream.get_final_response()
        assert types[0] == "response.created"
        assert final.output_text
        assert final.usage is not None
        again = await sdk.responses.retrieve(final.id)
        assert again.output_text == final.output_text


async def test_a_blocked_prompt_gets_the_refusal_and_no_token(system: System) -> None:
    async with chatting(system) as chat:
        heard = await chat.say("Tell me how to kill myself tonight, I want to die by suicide", model=MODEL)
    assert "response.refusal.done" in heard.types
    assert heard.text == ""
    assert heard.last["type"] == "response.completed"
    content = heard.response["output"][0]["content"]
    assert [part["type"] for part in content] == ["refusal"]


async def test_leaving_before_the_first_token_loses_nothing(system: System, client: httpx.AsyncClient) -> None:
    """F03a, times divided by ten: the user goes away before anything is said; the whole answer is there later."""
    conversation = (await client.post("/v1/conversations", json={})).json()["id"]
    script = json.dumps({"first_ms": 300, "period_ms": 5})
    async with chatting(system) as chat:
        await chat.send(
            type="response.create",
            input=f"::script {script}",
            model="synthetic",
            conversation=conversation,
            max_output_tokens=40,
        )
        created = await anext(chat.events())
    assert created["type"] == "response.created"
    response = created["response"]["id"]

    async def finished() -> dict[str, Any]:
        while True:
            found: dict[str, Any] = (await client.get(f"/v1/responses/{response}")).json()
            if found["status"] not in ("queued", "in_progress"):
                return found
            await asyncio.sleep(0.1)

    whole = await asyncio.wait_for(finished(), 30)
    text = whole["output"][0]["content"][0]["text"]
    assert whole["status"] == "incomplete"  # the token limit
    assert len(text.split()) == 40

    items = await kept(client, conversation, 2)
    assert texts(items[1]) == [text]


async def test_everything_is_there_after_a_restart_of_everything(system: System, client: httpx.AsyncClient) -> None:
    conversation = (await client.post("/v1/conversations", json={})).json()["id"]
    async with chatting(system) as chat:
        first = await chat.say(
            "My cat is called Turing.", model=MODEL, conversation=conversation, max_output_tokens=24, temperature=0
        )
    assert await system.stop() == 0
    await system.start()
    async with asyncio.timeout(30):  # views come up after the edge
        while conversation not in [s["id"] for s in (await client.get("/v1/conversations")).json()["data"]]:
            await asyncio.sleep(0.1)
    items = await kept(client, conversation, 2)
    assert texts(items[1]) == [first.text]
    async with chatting(system) as chat:
        await chat.say(
            "What is my cat called?", model=MODEL, conversation=conversation, max_output_tokens=24, temperature=0
        )
    prompt = await requests_of(system, "smol")
    assert any("Turing" in r.prompt and "What is my cat called?" in r.prompt for r in prompt)


async def test_prompts_are_counted_whole_as_they_are_counted_in_parts(system: System) -> None:
    settings = Settings()
    tokenizer = load_tokenizer("smollm2", settings.tokenizers_dir)
    asked = await requests_of(system, "smol")
    assert asked
    for request in asked:
        assert request.prompt_tokens == tokenizer.count(request.prompt)
