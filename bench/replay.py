"""How fast a replay is: prompts of a topic through moderation in shadow, with Kafka and nothing else running."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from uuid import uuid4

from consumers.moderation.train.own_texts import rows
from infra.local.aside import settings_aside
from infra.local.stack import LocalStack
from parley.clock import now_ms
from parley.ids import Keys, message_id, new_response_id, new_session
from parley.log.partitions import partition_of, session_key
from parley.log.producer import Producer
from parley.settings import Settings
from parley.topics import PROMPTS, TOKENS
from parley.topics_cli import apply_topics
from schemas.base import Item, Route, Text
from schemas.prompts import PromptAccepted
from schemas.wire import encode, headers

KEYS = Keys((b"of a bench alone, thirty-two byte",))


async def report(count: int) -> str:
    """The figures in one line: the whole command, from its start to the report on disk."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="parley-bench-") as folder:
        stack = LocalStack(settings_aside(Path(folder) / "data"))
        stack.open()
        try:
            await stack.start("kafka")
            settings = Settings.model_validate({"kafka": {"bootstrap": stack.kafka.bootstrap}})
            await apply_topics(settings)
            await _write(settings, count)
            began = time.perf_counter()
            totals = await _replay(settings, Path(folder) / "replay")
            took = time.perf_counter() - began
        finally:
            await stack.stop()
    return f"{totals['turns']:,} prompts through moderation in shadow: {took:.1f} s, {count / took:.0f} a second"


async def _write(settings: Settings, count: int) -> None:
    """Prompts as an edge writes them, of as many sessions, with texts of the classifier's own training set."""
    producer = Producer(settings.kafka, "bench")
    await producer.start()
    texts = itertools.cycle([text for text, _ in rows()])
    try:
        posted = [await _post(producer, settings, text) for text in itertools.islice(texts, count)]
        for each in posted:
            await producer.acknowledged(each)
    finally:
        await producer.stop()


async def _post(producer: Producer, settings: Settings, text: str) -> asyncio.Future[object]:
    user, session, now = uuid4(), new_session(), now_ms()
    key = session_key(session.hex)
    partition = partition_of(key, settings.topics.session_partitions)
    response = new_response_id(KEYS, user, session, 0, 0, now)
    item = Item(id=message_id(response, 0), role="user", parts=(Text(text=text),))
    prompt = PromptAccepted(
        response=response,
        session=session,
        user=user,
        tier="free",
        accepted_at=now,
        model="auto",
        items=(item,),
        new_session=True,
        route=Route(topic=TOKENS, partition=0, start=0),
    )
    about = headers(prompt.type, response=response, session=session.hex, route=prompt.route)
    return await producer.post(PROMPTS, encode(prompt), key=key, partition=partition, headers=about)


async def _replay(settings: Settings, folder: Path) -> dict[str, int]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "parley", "replay", "run", "--stage", "moderation", "--since", "1h"),
        *("--rate", "100000", "--out", str(folder), "--yes"),
        env=os.environ | {"PARLEY_KAFKA__BOOTSTRAP": settings.kafka.bootstrap},
        stdout=asyncio.subprocess.DEVNULL,
    )
    if await process.wait():
        raise RuntimeError(f"`parley replay run` ended with {process.returncode}")
    totals: dict[str, int] = json.loads((folder / "report.json").read_text())["totals"]
    return totals
