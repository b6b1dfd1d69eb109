"""What operators see of the whole system, and what they can put right in it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import httpx
from aiokafka import AIOKafkaProducer

from consumers.lag.groups import expected
from consumers.lag.states import State
from consumers.lag.survey import GroupLag, Survey
from infra.local.beside import environment_of
from parley.ids import message_id, response_address
from parley.log.dlq import dead_letter
from parley.log.groups import GroupReader
from parley.log.partitions import partition_of, session_key
from parley.log.producer import Producer
from parley.log.ranges import RangeReader
from parley.log.spans import open_spans
from parley.settings import KafkaSettings, Settings
from parley.topics import PROMPTS
from tests.e2e.chat import chatting
from tests.e2e.conftest import System
from tests.e2e.test_faults import read, slow_answer


def settings_of(system: System) -> Settings:
    return Settings(kafka=KafkaSettings(bootstrap=f"127.0.0.1:{system.settings.kafka.port}"))


async def lag_until(system: System, group: str, done: Callable[[GroupLag], bool]) -> GroupLag:
    """The group as `parley lag` sees it, as soon as it is as wanted."""
    settings = settings_of(system)
    [watched] = [one for one in expected(settings.topics, settings.protocol) if one.name == group]
    survey, seen = Survey([watched], 60), None
    async with GroupReader(settings.kafka) as reader, open_spans(settings.kafka, "test") as spans:
        try:
            async with asyncio.timeout(60):
                while seen is None or not done(seen):
                    [seen] = (await survey.look(reader, spans)).groups
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"not so after a minute: {seen}") from None
    return seen


async def timeline(system: System, what: str, *options: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (await system.command("log", what, "--json", *options)).splitlines()]


async def test_no_group_of_a_running_system_lacks_a_topic(system: System) -> None:
    """Also Faust's, which has topics of its own: whoever lacks one pages somebody."""
    for name in ("parley-usage", "moderation", "history-sessions"):
        seen = await lag_until(system, name, lambda group: group.members > 0 and group.kafka_state == "Stable")
        assert (seen.missing, seen.left) == ((), ()), name


async def test_a_long_answer_runs_and_is_not_lag(system: System) -> None:
    """Records that run and records that wait are told apart, from outside of the group."""
    await lag_until(system, "worker-synthetic", lambda group: group.unfinished == 0)  # answers that others left
    script = json.dumps({"first_ms": 50, "period_ms": 100, "words": 500})
    async with chatting(system) as chat:
        request = {"model": "synthetic", "input": f"::script {script}", "max_output_tokens": 150}
        await chat.send(type="response.create", **request)
        answer = asyncio.create_task(read(chat.events(), 1, lambda: None))

        def runs(group: GroupLag) -> bool:
            assert not answer.done(), f"it has ended and was never seen to run: {answer.result().last}"
            return any(p.counts.running for p in group.partitions)

        seen = await lag_until(system, "worker-synthetic", runs)
        [one] = [p for p in seen.partitions if p.counts.running]
        assert (one.verdict.state, one.counts.waiting, one.look.held) == (State.OK, 0, True)
        assert one.look.claim.holder.startswith("worker-synthetic-0:")
        assert one.ages.running_s is not None
        assert (await answer).last["type"] == "response.incomplete"
    await lag_until(system, "worker-synthetic", lambda group: group.unfinished == 0)


async def test_what_comes_to_an_orchestrator_that_hangs_waits(system: System) -> None:
    """Field case F71 (b): stopped, not dead. What it had not taken is told as waiting, until somebody takes it."""
    pid = system.pid_of("orchestrator")
    os.kill(pid, signal.SIGSTOP)
    try:
        async with chatting(system) as chat:
            await chat.send(type="response.create", model="synthetic", input="hello", max_output_tokens=16)
            seen = await lag_until(
                system, "orchestrator", lambda group: any(p.counts.waiting for p in group.partitions)
            )
            assert sum(p.counts.waiting for p in seen.partitions) == 1
            os.kill(pid, signal.SIGCONT)
            heard = await read(chat.events(), 1, lambda: None)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    assert heard.last["type"] == "response.incomplete"
    await lag_until(system, "orchestrator", lambda group: group.unfinished == 0)


async def test_a_turn_that_was_killed_in_the_middle_tells_its_whole_story(system: System) -> None:
    pid = system.pid_of("worker", "--pool", "synthetic")
    async with chatting(system) as chat:
        await chat.send(type="response.create", **slow_answer())
        heard = await read(chat.events(), 30, lambda: os.kill(pid, signal.SIGKILL))
    response = heard.response["id"]
    async with asyncio.timeout(30):
        while "turn.ended" not in [entry["type"] for entry in await timeline(system, response)]:
            await asyncio.sleep(0.2)
    told = await timeline(system, response)
    kinds = [entry["type"] for entry in told]
    assert kinds[0] == "prompt.accepted"
    assert {"opened", "verdict", "turn.started", "inference.request", "delta", "terminal", "turn.ended"} <= set(kinds)
    fences = [entry["event"]["epoch"] for entry in told if entry["type"] == "fence" and not entry["void"]]
    assert len(fences) >= 2
    assert fences == sorted(fences), "one run after the other"
    valid = sum(entry["type"] == "delta" and not entry["void"] for entry in told)
    people = await system.command("log", response)
    assert f"in {valid} deltas, continued 1 times" in people
    assert "w001" not in people, "contents are left out"
    fall = json.loads(await system.command("turn", response, "--json"))
    stages = {stage["stage"]: stage for stage in fall["stages"]}
    assert len(fall["runs"]) == len(fences)
    assert sum(run["deltas"] for run in fall["runs"]) == valid
    assert stages["takeover"]["end_ms"] - stages["takeover"]["start_ms"] > fall["gaps"]["p99_ms"]
    assert {"log", "moderation", "orchestration", "context", "queue", "taking", "engine", "guard", "proof"} <= set(
        stages
    )
    shown = await timeline(system, response, "--show-content")
    assert "".join(e["event"]["text"] for e in shown if e["type"] == "delta" and not e["void"]) == heard.text


async def test_a_clients_trace_is_carried_by_every_record_that_makes_the_turn(
    system: System, client: httpx.AsyncClient
) -> None:
    sent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    body = {"model": "synthetic", "input": "hello", "max_output_tokens": 16}
    response = (await client.post("/v1/responses", json=body, headers={"traceparent": sent})).json()["id"]
    carried = {
        entry["type"]: entry["event"]["traceparent"]
        for entry in await timeline(system, response)
        if entry["event"] and "traceparent" in entry["event"]
    }
    assert carried == dict.fromkeys(("prompt.accepted", "turn.started", "inference.request", "turn.ended"), sent)


async def test_a_drained_pool_gets_no_new_turns_until_it_is_put_back(system: System, client: httpx.AsyncClient) -> None:
    """Also an orchestrator that starts later knows of it; what runs when the pool is drained is answered to its end."""

    async def answer() -> dict[str, Any]:
        body = {"model": "synthetic", "input": "hello", "max_output_tokens": 16}
        return dict((await client.post("/v1/responses", json=body)).json())

    async with chatting(system) as chat:
        await chat.send(type="response.create", **slow_answer())
        running = asyncio.create_task(read(chat.events(), 1, lambda: None))
        await lag_until(system, "worker-synthetic", lambda group: any(p.counts.running for p in group.partitions))
        try:
            told = await system.command("pool", "drain", "synthetic")
            assert "`parley pool resume synthetic` puts it back" in told
            refused = await answer()
            assert refused["error"]["code"] == "overloaded", refused
            os.kill(system.pid_of("orchestrator"), signal.SIGKILL)
            refused = await answer()
            assert refused["error"]["code"] == "overloaded", refused
            assert (await running).last["type"] == "response.incomplete", "its answer came to its end"
            assert "drained  synthetic by" in await system.command("pool", "status")
        finally:
            await system.command("pool", "resume", "synthetic")
        assert (await answer())["status"] == "incomplete"


async def test_the_doctor_finds_the_whole_system_well_and_what_is_not(system: System) -> None:
    """Other tests leave dead letters and records that nobody can read; nothing else may be less than well."""
    left = {"dead letters", "records"}
    variables = os.environ | environment_of(system.settings.data)

    async def examined(**changes: str) -> dict[str, list[str]]:
        """Levels by check."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "parley", "doctor", "--json"),
            stdout=asyncio.subprocess.PIPE,
            env=variables | changes,
        )
        output, _ = await process.communicate()
        found: dict[str, list[str]] = {}
        for finding in json.loads(output):
            found.setdefault(finding["check"], []).append(finding["level"])
        worst = {level for levels in found.values() for level in levels}
        assert process.returncode == (5 if "fail" in worst else 3 if "warn" in worst else 0)
        return found

    well = await examined()
    assert {check for check, levels in well.items() if set(levels) != {"ok"}} <= left, well
    assert {"clocks", "engines", "groups", "id keys", "kafka", "message store", "postgresql", "topics"} <= set(well)
    broken = await examined(PARLEY_ID_KEYS="[]", PARLEY_MODERATION__POLICY="/nowhere.yaml")
    assert {check for check, levels in broken.items() if "fail" in levels} == {"id keys", "moderation"}


async def test_a_prompt_from_the_dead_letters_is_answered_as_a_new_turn(
    system: System, client: httpx.AsyncClient
) -> None:
    """A prompt that could not be processed, as a letter of the orchestrator's; the operator asks it anew."""
    conversation = (await client.post("/v1/conversations", json={})).json()["id"]
    body = {"model": "synthetic", "input": "hello", "max_output_tokens": 16, "conversation": conversation}
    first = (await client.post("/v1/responses", json=body)).json()
    prompt = next(
        entry["event"]
        for entry in await timeline(system, first["id"], "--show-content")
        if entry["type"] == "prompt.accepted"
    )
    address = response_address(first["id"])
    lost = first["id"][:-14] + ("AA" if first["id"][-14:-12] != "AA" else "BB") + first["id"][-12:]
    renamed = json.loads(
        json.dumps(prompt).replace(first["id"], lost).replace(message_id(first["id"], 0), message_id(lost, 0))
    )

    bootstrap = f"127.0.0.1:{system.settings.kafka.port}"
    kafka = settings_of(system).kafka
    key = session_key(address.session.hex)
    partition = partition_of(key, 16)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as poison:
        # As a broken deployment would have met it: bytes of which nothing is known but the prompt they were to be.
        where = await poison.send_and_wait(PROMPTS, b"\xff\xfe{", key=key, partition=partition)
    ranges, producer = RangeReader(kafka), Producer(kafka, "test")
    await producer.start()
    try:
        [record] = await ranges.read(PROMPTS, partition, where.offset, where.offset)
        record.value = json.dumps(renamed).encode()
        offset = await dead_letter(producer, record, group="orchestrator", error=ValueError("a bug"), partitions=16)
    finally:
        await producer.stop()
        await ranges.stop()

    [planned] = json.loads(await system.command("dlq", "redrive", f"{partition}@{offset}", "--as-new-turn", "--json"))
    assert planned["outcome"] == "planned"
    sent = await system.command("dlq", "redrive", f"{partition}@{offset}", "--as-new-turn", "--yes", "--json")
    response = json.loads(sent)[0]["what"].removeprefix("new turn ")
    async with asyncio.timeout(60):
        while (answer := (await client.get(f"/v1/responses/{response}")).json()).get("status") != "incomplete":
            await asyncio.sleep(0.2)
    assert len(answer["output"][0]["content"][0]["text"].split()) == 16
    ended = [entry for entry in await timeline(system, conversation) if entry["type"] == "turn.ended"]
    assert [entry["event"]["turn"] for entry in ended] == [1, 2], "the second turn of the same session"
