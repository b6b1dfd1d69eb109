"""The orchestrator's offsets moved by an operator: nothing runs twice, and open turns have one who can end them."""

from __future__ import annotations

import asyncio

import pytest

from parley.offsets.consequences import EMPTY
from parley.offsets.moving import look, move
from parley.offsets.plan import Plan
from parley.ownership import Claim
from parley.topics import PROMPTS
from tests.integration.orchestrator.conftest import PROTOCOL
from tests.integration.orchestrator.stage import Chat, Stage

pytestmark = pytest.mark.stack

PATIENT = PROTOCOL.model_copy(update={"max_turn_age_s": 120.0})


async def planned_once_empty(stage: Stage, partition: int) -> Plan:
    """The move of one partition to its beginning, as soon as Kafka has seen that the orchestrator has left."""
    async with asyncio.timeout(20):
        while True:
            state, planned = await look(stage.settings.kafka, "orchestrator", PROMPTS, [partition], "earliest")
            if state.state == EMPTY:
                return planned
            await asyncio.sleep(0.2)


async def test_back_to_the_beginning_no_turn_runs_again_and_an_open_one_ends(stage: Stage) -> None:
    """Field case F75. The number of the takeover goes on rising; from 1 on, what is said of the open turn were void."""
    patient = stage.settings.model_copy(update={"protocol": PATIENT})
    chat = Chat()
    other, partition = stage.beside(chat), stage.partition(chat)
    async with stage.orchestrating(patient):
        done = await stage.turn(chat, "one", "1")
    async with stage.orchestrating(patient):
        lost = await stage.say(other, "tell me a story")
        await stage.begin(await stage.request(lost), "Once upon ")  # and its worker is gone
        await asyncio.sleep(1)  # a commit: the prompt is done with
    before = await stage.claim(chat)

    planned = await planned_once_empty(stage, partition)
    assert planned.again >= 2
    commits, found = await move(stage.settings, planned)
    [(where, (offset, metadata))] = commits.items()
    assert found[where] == (offset, metadata)
    assert Claim.decode(metadata, offset).takeover == before.takeover + 1

    async with stage.orchestrating():
        terminal, ended = await stage.end(lost, within=PROTOCOL.start_deadline_s + PROTOCOL.max_turn_age_s + 10)
        assert terminal.kind == "failed"
        assert [item.text for item in ended.output] == ["Once upon "]
        assert ended.dispatch[0] == before.takeover + 2
        again = await stage.request(await stage.say(chat, "two"))
        assert (again.turn, "one" in again.prompt) == (2, True)
        await stage.answer(again, "2")
    assert len(stage.asked(done)) == len(stage.starts(done)) == len(stage.ends(done)) == 1
