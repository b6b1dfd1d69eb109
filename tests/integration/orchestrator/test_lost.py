"""Sessions whose log, or whose store, is not the one that they ran in (docs/runbooks/recover-kafka.md and its like)."""

from __future__ import annotations

import pytest

from parley.clock import now_ms
from parley.ids import message_id
from schemas.base import Dispatch, Item, Text
from schemas.turns import TurnStarted
from tests.integration.orchestrator.stage import Chat, Stage

pytestmark = pytest.mark.stack


async def in_the_store_alone(stage: Stage, chat: Chat, dispatch: Dispatch, offset: int) -> TurnStarted:
    """A turn that was running in a log that is gone: at an offset, and under a takeover, of that log."""
    prompt = await stage.prompt(chat, "tell me a story")
    started = TurnStarted(
        response=prompt.response,
        session=chat.session,
        user=chat.user,
        tier="paid",
        turn=1,
        parent=None,
        items=(Item(id=message_id(prompt.response, 0), role="user", parts=(Text(text="tell me a story"),)),),
        pool="synthetic",
        model="synthetic",
        dispatch=dispatch,
        route=prompt.route.model_copy(update={"start": 1_000_000}),
        accepted_at=now_ms(),
        deadline=now_ms() + 60_000,
        moderation_deadline=now_ms() + 60_000,
    )
    await stage.messages.write_started(started, offset=offset, appended=now_ms())
    return started


@pytest.mark.parametrize("offset", [0, 1_000_000])
async def test_a_turn_whose_log_was_lost_is_ended_when_its_session_speaks(stage: Stage, offset: int) -> None:
    """Else it would be in progress for ever, and the session's next turns would wait for it. Takeovers and offsets
    begin anew with the log: the old ones may be greater than any to come."""
    chat = Chat()
    lost = await in_the_store_alone(stage, chat, (700, 3), offset)
    async with stage.orchestrating():
        after = await stage.request(await stage.say(chat, "are you there?"))
        assert (after.turn, after.parent) == (2, lost.response)
        assert "story" not in after.prompt, "it had no answer"
        await stage.answer(after, "yes")
    [ended] = stage.ends(lost.response)
    assert ended.failure is not None
    assert (ended.status, ended.failure.code, ended.failure.retryable) == ("failed", "log_unavailable", True)
    await stage.kept()
    first, second = await stage.messages.turns(chat.session, limit=10)
    assert (first.status, first.items[0].text, second.status) == ("failed", "tell me a story", "completed")


async def test_a_store_that_has_lost_a_session_does_not_begin_it_anew(stage: Stage) -> None:
    """An empty store in the place of the one that was lost: the turn waits and fails, and takes nobody's number."""
    chat = Chat(spoken=True)
    async with stage.orchestrating():
        response = await stage.say(chat, "what did I say yesterday?")
        await stage.until(lambda: stage.terminal(response))
    terminal = stage.terminal(response)
    assert terminal is not None
    assert terminal.failure is not None
    assert (terminal.failure.code, terminal.failure.retryable) == ("store_inconsistent", True)
    assert stage.starts(response) == []
