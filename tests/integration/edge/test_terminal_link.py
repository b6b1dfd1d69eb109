"""The terminal's link to an edge, when the way between them is silent, or the edge goes away."""

from __future__ import annotations

import asyncio
import secrets
import time

import pytest
from edge_stage import Person, Roles, Running, answer, running
from test_edge_http import Orchestrator
from test_edge_socket import silent_proxy

from clients.terminal import link as terminal
from clients.terminal.api import Place
from clients.terminal.conversation import Answer, State
from clients.terminal.link import Link, Lost
from parley.settings import Settings
from schemas.prompts import PromptAccepted

pytestmark = pytest.mark.stack

DIVIDED_BY = 10
NOTICED_S = 45 / DIVIDED_BY
WORDS = [f"w{n:03d} " for n in range(100)]


class Words(Orchestrator):
    """Answers a prompt once for each key, with a hundred words."""

    async def __call__(self, roles: Roles, prompt: PromptAccepted) -> None:
        if self.first.setdefault(prompt.key_hash or "", prompt) is prompt:
            await answer(*WORDS, gap=0.03)(roles, prompt)
        else:
            await super().__call__(roles, prompt)


def asking() -> Answer:
    return Answer({"model": "synthetic", "input": "Hello?", "idempotency_key": secrets.token_hex(8)})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The link's times, divided."""
    for name in ("PING_S", "OPEN_TIMEOUT_S", "LONGEST_PAUSE_S"):
        monkeypatch.setattr(terminal, name, getattr(terminal, name) / DIVIDED_BY)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("only_back", [False, True])
async def test_f46_a_silent_way_is_noticed_and_the_answer_goes_on_without_a_gap(
    edge: Running, roles: Roles, ada: Person, only_back: bool
) -> None:
    """Field case F46, its times divided by ten: nothing passes both ways, later from the server to the client only."""
    roles.script = Words()
    async with silent_proxy(edge.port, only_back=only_back) as (port, silence):
        link, said, silent_at, noticed = Link(Place(f"http://127.0.0.1:{port}", ada.key)), asking(), 0.0, 0.0
        async for shown in link.follow(said):
            if not silent_at and len(said.text) > 100:
                silence.set()
                silent_at = time.monotonic()
            elif isinstance(shown, Lost):
                noticed = time.monotonic() - silent_at
                silence.clear()
        await link.close()
    assert said.state is State.COMPLETED
    assert said.text == "".join(WORDS)
    assert 0 < noticed < NOTICED_S


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("only_back", [False, True])
async def test_f46_a_message_that_was_swallowed_is_sent_again_and_runs_once(
    edge: Running, roles: Roles, ada: Person, only_back: bool
) -> None:
    """Field case F46: what was sent into the silence, and what arrived without a word coming back."""
    roles.script = script = Words()
    async with silent_proxy(edge.port, only_back=only_back) as (port, silence):
        link, first, said = Link(Place(f"http://127.0.0.1:{port}", ada.key)), asking(), asking()
        async for _ in link.follow(first):
            pass
        silence.set()
        async for shown in link.follow(said):
            if isinstance(shown, Lost):
                silence.clear()
        await link.close()
    assert said.text == "".join(WORDS)
    assert len(script.first) == 2
    assert len(roles.prompts) == (3 if only_back else 2)


async def test_an_edge_that_ends_says_when_to_come_back_and_the_link_does(
    base_settings: Settings, edge: Running, roles: Roles, ada: Person
) -> None:
    roles.script = Words()
    async with running(base_settings, route="lane", drain_s=1) as going:
        link, said = Link(Place(going.url, ada.key)), asking()
        lost_at = back_at = 0.0
        async for shown in link.follow(said):
            if len(said.text) > 100 and not going.server.should_exit:
                going.server.should_exit = True
            if isinstance(shown, Lost):
                lost_at = lost_at or time.monotonic()
                link._place = Place(edge.url, ada.key)
            elif lost_at and not back_at:
                back_at = time.monotonic()
        await link.close()
    assert said.text == "".join(WORDS)
    assert back_at - lost_at < 2
    await asyncio.sleep(0)
