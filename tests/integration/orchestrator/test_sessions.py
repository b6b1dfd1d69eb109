"""Sessions over restarts: what an orchestrator must find that has not seen a session begin (protocol.md, section 2)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from consumers.orchestrator import main as orchestrator
from consumers.orchestrator.shard import ViewReset
from parley.clock import now_ms
from parley.endings import turn_ended
from parley.ids import message_id
from parley.settings import OrchestratorSettings, ProtocolSettings, Settings
from parley.topics import TURNS
from schemas.base import Failure, Item, Route, Text
from schemas.routes import Delta, Opened, Terminal, encode_route_record
from schemas.turns import TurnStarted
from tests.integration.orchestrator.conftest import PROTOCOL
from tests.integration.orchestrator.stage import Chat, Stage
from tests.integration.stores_parts import Proxy

pytestmark = pytest.mark.stack

PATIENT = PROTOCOL.model_copy(update={"max_turn_age_s": 120.0, "start_deadline_s": 8.0})
"""For turns that a test leaves open while it restarts something."""
LATER = Failure(code="engine_error", message="it failed", retryable=True)


def with_protocol(settings: Settings, protocol: ProtocolSettings) -> Settings:
    return settings.model_copy(update={"protocol": protocol})


def through(settings: Settings, proxy: Proxy) -> Settings:
    """The message store behind a proxy."""
    messages = settings.messages.model_copy(update={"hosts": ("127.0.0.1",), "port": proxy.port})
    return settings.model_copy(update={"messages": messages})


async def test_a_chain_is_found_after_a_restart_and_what_is_not_in_it_is_an_error(stage: Stage) -> None:
    """Field case F30: the parent is known to whoever holds the session next; what is not in it is an error."""
    chat = Chat()
    async with stage.orchestrating():
        first = await stage.turn(chat, "my name is Ada", "hello Ada")
        await stage.turn(chat, "and I like tea", "noted")
    await stage.kept()
    async with stage.orchestrating():
        named = await stage.request(await stage.say(chat, "what did I say?", parent=first))
        assert "my name is Ada" in named.prompt
        assert "tea" not in named.prompt, "a branch does not see its sibling"
        assert named.turn == 3
        await stage.answer(named, "your name")
        newest = await stage.request(await stage.say(chat, "and then?"))
        assert "what did I say?" in newest.prompt
        assert newest.turn == 4
        await stage.answer(newest, "that")
        unknown = await stage.say(chat, "and this?", parent=(await stage.prompt(Chat(), "x")).response)
        terminal, ended = await stage.end(unknown)
        assert terminal.failure is not None
        assert (terminal.failure.code, terminal.failure.retryable) == ("previous_response_not_found", False)
        assert stage.asked(unknown) == []
        assert ended.turn == 5


async def test_the_fold_begins_where_the_store_ends(stage: Stage) -> None:
    """What is below the watermark is not read again, however much it is."""
    chat = Chat()
    async with stage.orchestrating():
        await stage.turn(chat, "one", "1")
    await stage.kept()
    await asyncio.sleep(2 * PROTOCOL.margin_s)  # prompts that are not done with, and edges' clocks
    async with stage.orchestrating():
        claim = await stage.claim(chat)
        await stage.turn(chat, "two", "2")
        async with asyncio.timeout(20):
            while (await stage.claim(chat)).floor <= claim.floor:
                await asyncio.sleep(0.1)
    assert claim.takeover > 0


async def test_a_turn_that_is_open_below_the_watermark_still_has_its_end(stage: Stage) -> None:
    """Field case F03 (b): the worker is gone for good. The answer fails, retryable, with what was shown of it, at the
    latest max_turn_age after its deadline, also when everything but the turn was forgotten meanwhile."""
    chat, other = Chat(), Chat()
    async with stage.orchestrating():
        response = await stage.say(chat, "tell me a story")
        await stage.begin(await stage.request(response), "Once upon ", "a time")
        queued = await stage.say(chat, "and then?")
        assert (await stage.word(queued)).waiting
        await stage.turn(other, "something else", "fine")
        await asyncio.sleep(1)  # a commit: the prompt is done with
    await stage.kept()
    async with stage.orchestrating():
        limit = PROTOCOL.start_deadline_s + PROTOCOL.max_turn_age_s + 7
        terminal, ended = await stage.end(response, within=limit)
        assert terminal.kind == "failed"
        assert terminal.failure is not None
        assert terminal.failure.retryable
        assert [item.text for item in ended.output] == ["Once upon a time"]
        assert stage.asked(queued) == [] or stage.terminal(queued) is None


async def test_while_the_store_is_away_sessions_that_began_since_go_on_and_cold_ones_wait_and_fail(
    stage: Stage,
) -> None:
    """Interleaving 9: store down, orchestrator restarts, cold session. The turn waits, never the partition."""
    cold = Chat()
    async with Proxy(stage.settings.messages.hosts[0], stage.settings.messages.port) as proxy:
        settings = through(with_protocol(stage.settings, PATIENT), proxy)
        async with stage.orchestrating(settings):
            await stage.turn(cold, "the secret is 42", "I'll remember")
            await asyncio.sleep(2 * PROTOCOL.margin_s + 1)
            await stage.turn(stage.beside(cold), "later", "the fold begins at most that margin before this")
        await stage.kept()
        await proxy.cut()
        warm = stage.beside(cold)
        async with stage.orchestrating(settings):
            await stage.turn(warm, "warm one", "since the store went down")
        async with stage.orchestrating(settings):
            waits = await stage.say(cold, "what is the secret?")
            request = await stage.request(await stage.say(warm, "do you remember?"))
            assert "warm one" in request.prompt
            await stage.answer(request, "yes")
            fresh = stage.beside(cold)
            await stage.turn(fresh, "a new session", "in the same partition")
            assert stage.terminal(waits) is None
            await stage.until(lambda: stage.terminal(waits), within=PATIENT.start_deadline_s + 3)
            terminal = stage.terminal(waits)
            assert terminal is not None
            assert terminal.failure is not None
            assert (terminal.failure.code, terminal.failure.retryable) == ("store_unavailable", True)
            assert stage.asked(waits) == []
            await proxy.heal()
            request = await stage.request(await stage.say(cold, "and now?"))
            assert "the secret is 42" in request.prompt
            await stage.answer(request, "42")


async def test_a_late_decision_about_a_turn_that_has_ended_opens_nothing(stage: Stage) -> None:
    """Interleaving 21, where the end is below the watermark: only the store knows it."""
    chat = Chat()
    async with stage.orchestrating():
        response = await stage.turn(chat, "one", "1")
        await stage.turn(chat, "two", "2")
        await asyncio.sleep(2 * PROTOCOL.margin_s + 0.5)
        await stage.turn(stage.beside(chat), "much later", "the fold begins after those two turns")
    await stage.kept()
    [started] = stage.starts(response)
    late = started.model_copy(update={"dispatch": (started.dispatch[0], 0)})
    await stage.log(late, stage.partition(chat))
    async with stage.orchestrating():
        request = await stage.request(await stage.say(chat, "three"))
        assert request.turn == 3
        assert "one" in request.prompt
        assert "two" in request.prompt
        await stage.answer(request, "3")
        assert len(stage.asked(response)) == 1, "it was not run again"
        assert len(stage.ends(response)) == 1


class TestWhatWasShown:
    async def test_after_a_stop_the_next_turn_remembers_what_was_shown_and_nothing_else(self, stage: Stage) -> None:
        """Field cases F08 and F27: "next" is sent while the stopped run still speaks. It waits visibly, is answered,
        and its context holds what was shown; what comes after the end is void for every reader."""
        chat = Chat()
        async with stage.orchestrating():
            stopped = await stage.say(chat, "tell me a story")
            request = await stage.request(stopped)
            fence = await stage.begin(request, "one ", "two ", "three")
            follower = await stage.say(chat, "go on")
            assert (await stage.word(follower)).waiting
            end = Terminal(writer=fence.writer, seq=3, kind="cancelled", model="m", ended_at=now_ms())
            late = [Delta(writer=fence.writer, seq=3 + n, text=f" late{n}", tokens=1) for n in range(200)]
            await stage.write(request, end, *late)
            await stage.until(lambda: stage.terminal(stopped))
            await stage.log(turn_ended(request, stage.routes[stopped], request.dispatch), stage.partition(chat))
            next_one = await stage.request(follower)
            assert next_one.prompt.count("one two three") == 1
            assert "late" not in next_one.prompt
            await stage.answer(next_one, "four")
        await stage.kept()
        told = [
            (turn.status, [item.text for item in turn.output])
            for turn in await stage.messages.turns(chat.session, limit=10)
        ]
        assert told == [("cancelled", ["one two three"]), ("completed", ["four"])]

    async def test_a_stop_before_any_word_leaves_no_empty_message(self, stage: Stage) -> None:
        """Field case F08: no empty assistant message is sent to the model or kept."""
        chat = Chat()
        async with stage.orchestrating():
            stopped = await stage.say(chat, "tell me a story")
            await stage.answer(await stage.request(stopped), kind="cancelled")
            request = await stage.request(await stage.say(chat, "hello"))
            assert request.prompt.count("<|im_start|>assistant") == 1, "only the one that is to be answered"
            assert "tell me a story" in request.prompt
            await stage.answer(request, "hi")
        assert stage.ends(stopped)[0].output == ()


class TestKeys:
    async def test_a_key_is_known_to_whoever_holds_the_session_next(self, stage: Stage) -> None:
        """Interleaving 16: a retry with the same key an hour later, on another edge."""
        chat = Chat.of_key("k")
        async with stage.orchestrating():
            first = await stage.turn(chat, "buy milk", "bought", key="k")
        await stage.kept()
        async with stage.orchestrating():
            again = await stage.say(chat, "buy milk", key="k")
            assert (await stage.word(again)).duplicate_of == first
            other = await stage.word(await stage.say(chat, "buy beer", key="k", body="another"))
            assert (other.duplicate_of, other.conflict) == (first, True)
            assert stage.asked(again) == []

    async def test_a_key_whose_turn_failed_retryably_starts_anew(self, stage: Stage) -> None:
        """Also one whose text is not stored."""
        chat = Chat.of_key("k")
        async with stage.orchestrating():
            first = await stage.say(chat, "buy milk", key="k", store=False)
            await stage.answer(await stage.request(first), kind="failed", failure=LATER)
        await stage.kept()
        async with stage.orchestrating():
            again = await stage.say(chat, "buy milk", key="k", store=False)
            assert (await stage.word(again)).duplicate_of is None
            await stage.answer(await stage.request(again), "bought")

    async def test_what_an_earlier_holder_said_about_a_key_stands(self, stage: Stage) -> None:
        """It answered the retry as a duplicate of a turn that failed retryably since, and died before it was done.

        Whoever holds the session next must not run the retry: nobody reads its route.
        """
        chat = Chat.of_key("k")
        async with stage.orchestrating():
            first = await stage.say(chat, "buy milk", key="k")
            await stage.answer(await stage.request(first), kind="failed", failure=LATER)
            again = await stage.prompt(chat, "buy milk", key="k")
            said = Opened(session=chat.session, user=chat.user, created_at=5, waiting=False, duplicate_of=first)
            value, key = encode_route_record((said,)), again.response.encode()
            await stage.producer.send(again.route.topic, value, key=key, partition=again.route.partition)
            await stage.send(again)
            third = await stage.say(chat, "buy milk", key="k")
            await stage.answer(await stage.request(third), "bought")
            assert (await stage.word(again.response)).duplicate_of == first
            assert stage.starts(again.response) == []

    async def test_a_key_lives_for_a_time(self, stage: Stage) -> None:
        chat = Chat.of_key("k")
        day_ms = int(PROTOCOL.key_life_s * 1000)
        async with stage.orchestrating():
            await stage.turn(chat, "buy milk", "bought", key="k", accepted_at=now_ms() - day_ms - 1)
            later = await stage.turn(chat, "buy milk", "again", key="k", accepted_at=now_ms() - day_ms + 60_000)
            assert (await stage.word(later)).duplicate_of is None
            again = await stage.word(await stage.say(chat, "buy milk", key="k"))
            assert again.duplicate_of == later

    async def test_two_at_once_are_one_turn(self, stage: Stage) -> None:
        """Field case F05, the orchestrator's half."""
        chat = Chat.of_key("k")
        async with stage.orchestrating():
            prompts = [await stage.prompt(chat, "ok", key="k") for _ in range(3)]
            await asyncio.gather(*(stage.send(prompt) for prompt in prompts))
            words = [await stage.word(prompt.response) for prompt in prompts]
            assert [word.duplicate_of for word in words] == [None, prompts[0].response, prompts[0].response]
            await stage.answer(await stage.request(prompts[0].response), "once")


class TestDeletion:
    async def test_the_running_turn_is_cancelled_and_the_waiting_ones_end(self, stage: Stage) -> None:
        chat = Chat()
        async with stage.orchestrating():
            running = await stage.say(chat, "a long story")
            await stage.begin(await stage.request(running), "Once")
            waiting = await stage.say(chat, "and then?")
            assert (await stage.word(waiting)).waiting
            await stage.delete(chat)
            await stage.until(lambda: [cancel for cancel in stage.cancels if cancel.response == running])
            terminal, _ = await stage.end(waiting)
            assert terminal.failure is not None
            assert terminal.failure.code == "not_found"

    async def test_a_deleted_session_stays_deleted_for_whoever_holds_it_next(self, stage: Stage) -> None:
        chat = Chat()
        async with stage.orchestrating():
            await stage.turn(chat, "a secret", "safe with me")
            await stage.delete(chat)
            await stage.until(lambda: any(event.type == "session.deleted" for event, _ in stage.events))
        await stage.kept()
        async with stage.orchestrating():
            response = await stage.say(chat, "what was it?")
            terminal, _ = await stage.end(response)
            assert terminal.failure is not None
            assert (terminal.failure.code, terminal.failure.retryable) == ("not_found", False)
            assert stage.asked(response) == []
        await stage.kept()
        assert await stage.messages.turns(chat.session, limit=10) == []


class TestMemory:
    @pytest.fixture
    def forgetful(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Settings:
        """Keeps no session that it may forget, and looks often."""
        monkeypatch.setattr(orchestrator, "FORGETTING_S", 0.2)
        return stage.settings.model_copy(update={"orchestrator": OrchestratorSettings(sessions_mb=0)})

    async def test_idle_sessions_are_forgotten_once_the_store_has_them_and_remembered_when_they_speak(
        self, stage: Stage, forgetful: Settings
    ) -> None:
        chats = [Chat() for _ in range(5)]
        async with stage.orchestrating(forgetful):
            for number, chat in enumerate(chats):
                await stage.turn(chat, f"I am number {number}", "hello")
            await asyncio.sleep(1)
            assert orchestrator.HELD._value.get() >= 5, "the store does not have them yet"
            await all_forgotten(stage)
            for number, chat in enumerate(chats):
                request = await stage.request(await stage.say(chat, "who am I?"))
                assert f"I am number {number}" in request.prompt
                assert request.turn == 2
                await stage.answer(request, f"{number}")

    async def test_a_view_that_begins_anew_makes_the_orchestrator_begin_anew(
        self, stage: Stage, forgetful: Settings
    ) -> None:
        """What it has forgotten may not be in the store yet: a chat would be answered without its past."""
        chat = Chat()
        async with stage.orchestrating(forgetful) as task:
            await stage.turn(chat, "one", "1")
            await all_forgotten(stage)
            await begin_anew(stage, chat)
            with pytest.raises(ViewReset):
                await asyncio.wait_for(asyncio.shield(task), 20)


async def all_forgotten(stage: Stage) -> None:
    """The store is brought up to date until nothing is held: what earlier tests left open ends meanwhile."""
    async with asyncio.timeout(60):
        while True:
            await stage.kept()
            await asyncio.sleep(0.5)
            if orchestrator.HELD._value.get() == 0:
                return


async def begin_anew(stage: Stage, chat: Chat) -> None:
    """As an operator does who has thrown the store away."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=stage.settings.kafka.bootstrap, group_id="history-messages", enable_auto_commit=False
    )
    await consumer.start()
    where = TopicPartition(TURNS, stage.partition(chat))
    consumer.assign([where])
    await consumer.commit({where: 0})
    await consumer.stop()


async def test_an_unreadable_prompt_ends_on_its_route_and_is_kept_as_it_was(stage: Stage) -> None:
    """Section 8: whoever gives up on a record ends its turn first."""
    chat = Chat()
    async with stage.orchestrating():
        prompt = await stage.prompt(chat, "from the future")
        bad = b'{"v": 2, "type": "prompt.accepted"}'
        await stage.send(prompt, bad)
        await stage.until(lambda: stage.terminal(prompt.response) and [x for x in stage.letters if x.value == bad])
        terminal, opened = stage.terminal(prompt.response), stage.opened(prompt.response)
        assert terminal is not None
        assert terminal.failure is not None
        assert (terminal.kind, terminal.failure.code) == ("failed", "unprocessable")
        assert opened is not None
        assert (opened.user, opened.session) == (chat.user, chat.session)
        await stage.turn(Chat(session=chat.session, user=chat.user), "and now?", "fine")


async def test_a_request_says_where_its_decision_stands(stage: Stage) -> None:
    """So that whoever can't read the request can end the turn all the same."""
    chat = Chat()
    async with stage.orchestrating(with_protocol(stage.settings, PATIENT)):
        response = await stage.say(chat, "one")
        await stage.request(response)
    async with stage.orchestrating(with_protocol(stage.settings, PATIENT)):
        await stage.until(lambda: len(stage.asked(response)) == 2)
        places = {place(stage, record) for request, record in stage.requests if request.response == response}
        found = [(event, record.offset) for event, record in stage.events if isinstance(event, TurnStarted)]
        assert places == {offset for event, offset in found if event.response == response}
        await stage.answer(stage.asked(response)[-1], "done")


def place(stage: Stage, record: Any) -> int:
    return int(dict(record.headers)["started"])


async def test_a_turn_whose_topic_was_deleted_for_its_age_ends_in_the_state_log(stage: Stage) -> None:
    """All orchestrators were away while the conversation's own topic went: nobody can read the route any more."""
    chat, old = Chat(), now_ms() - 3_600_000
    response = (await stage.prompt(chat, "long ago")).response
    route = Route(topic=f"chat.tokens.s.{chat.session.hex}", partition=0, start=0)
    started = TurnStarted(
        response=response,
        session=chat.session,
        user=chat.user,
        tier="paid",
        turn=1,
        parent=None,
        items=(Item(id=message_id(response, 0), role="user", parts=(Text(text="long ago"),)),),
        pool="synthetic",
        model="synthetic",
        dispatch=(0, 1),
        route=route,
        deadline=old,
        moderation_deadline=old,
        accepted_at=old,
    )
    kafka = stage.settings.kafka.model_copy(update={"request_timeout_ms": 2_000})
    await stage.log(started, stage.partition(chat))
    async with stage.orchestrating(stage.settings.model_copy(update={"kafka": kafka})):
        await stage.until(lambda: stage.ends(response))
        [ended] = stage.ends(response)
        assert ended.status == "failed"
        assert ended.failure is not None
        assert ended.failure.retryable
