"""The page, in a browser, on the whole system."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator, Callable, Sequence

import httpx
import pytest
from playwright.async_api import Browser, BrowserContext, Page, WebSocketRoute, async_playwright, expect

from infra.local.beside import Beside
from tests.e2e.conftest import System

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

ANSWER_MS = 30_000
WATCH = """() => {
    window.seen = [];
    const answer = () => [...document.querySelectorAll('.assistant .body')].at(-1)?.textContent ?? '';
    new MutationObserver(() => window.seen.push(answer())).observe(
        document.getElementById('messages'), { childList: true, subtree: true, characterData: true });
}"""
"""Note every text that the newest answer has had."""


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        await browser.close()


@pytest.fixture
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    context = await browser.new_context()
    yield context
    await context.close()


@pytest.fixture
async def page(context: BrowserContext, system: System) -> AsyncIterator[Page]:
    """The page of somebody whose key it has, with the synthetic model chosen. Errors in it fail the test."""
    page = await context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    await page.goto(f"{system.base_url}/#key={system.key}")
    await page.select_option("#model", "synthetic")
    yield page
    assert errors == []


async def say(page: Page, text: str, **script: object) -> None:
    """Send a message; what the synthetic engine is to do is part of it."""
    await page.fill("#prompt", f"{text}\n::script {json.dumps(script)}" if script else text)
    await page.press("#prompt", "Enter")


async def answered(page: Page, state: str = "completed") -> str:
    """The newest answer's text, once it has ended like this."""
    newest = page.locator(".assistant").last
    await expect(newest).to_have_attribute("data-state", state, timeout=ANSWER_MS)
    await expect(page.locator("#send")).to_be_visible()
    return await newest.locator(".body").inner_text()


def words(count: int) -> str:
    return " ".join(f"w{number:03d}" for number in range(1, count + 1))


def assert_beginnings(texts: Sequence[str], whole: str) -> None:
    for text in texts:
        assert whole.startswith(text)
    assert [len(text) for text in texts] == sorted(len(text) for text in texts)


async def test_a_key_is_asked_for_once_and_a_wrong_one_is_said_to_be_wrong(
    context: BrowserContext, system: System
) -> None:
    page = await context.new_page()
    await page.goto(system.base_url)
    await page.fill("#key", "pk_wrong")
    await page.press("#key", "Enter")
    await expect(page.get_by_role("alert")).to_have_text("This key is not valid.")
    await page.fill("#key", system.key)
    await page.press("#key", "Enter")
    await expect(page.locator("#prompt")).to_be_focused()
    await page.reload()
    await expect(page.locator("#prompt")).to_be_focused()
    await expect(page.locator("#entry")).to_be_hidden()


async def test_a_key_in_the_address_is_taken_out_of_it(page: Page, system: System) -> None:
    assert page.url == f"{system.base_url}/"
    assert system.key not in await page.evaluate("() => JSON.stringify(history.state) + location.href")


async def test_an_answer_appears_token_by_token(page: Page) -> None:
    await page.evaluate(WATCH)
    await say(page, "Count", words=40, first_ms=10, period_ms=20)
    assert await answered(page) == words(40)
    texts = await page.evaluate("() => window.seen")
    assert len(set(texts)) >= 10
    assert_beginnings(texts, words(40))


async def test_earlier_chats_are_listed_opened_and_gone_on_with(page: Page) -> None:
    await say(page, "The first of two chats", words=3)
    await answered(page)
    await page.click("#new")
    await expect(page.locator(".message")).to_have_count(0)
    await say(page, "The second of two chats", words=4)
    await answered(page)
    await page.reload()
    await expect(page.locator(".user")).to_have_count(1)
    await page.click("#list button:has-text('The first of two chats')")
    await expect(page.locator(".user")).to_contain_text("The first of two chats")
    assert await answered(page) == words(3)
    await page.select_option("#model", "synthetic")
    await say(page, "And on", words=5)
    assert await answered(page) == words(5)
    await expect(page.locator(".assistant")).to_have_count(2)
    await page.go_back()
    await expect(page.locator(".user")).to_contain_text("The second of two chats")


async def test_a_reload_in_mid_answer_shows_a_beginning_of_it_and_then_all_of_it(page: Page) -> None:
    """F01, with the tab reloaded twice."""
    await page.add_init_script(f"addEventListener('DOMContentLoaded', {WATCH})")
    await page.evaluate(WATCH)
    await say(page, "Count", words=100, first_ms=10, period_ms=80)
    for word in ("w030", "w060"):
        await expect(page.locator(".assistant .body")).to_contain_text(word, timeout=ANSWER_MS)
        assert_beginnings(await page.evaluate("() => window.seen"), words(100))
        await page.reload()
    assert await answered(page) == words(100)
    assert_beginnings(await page.evaluate("() => window.seen"), words(100))
    await expect(page.locator(".message")).to_have_count(2)


async def test_a_reload_right_after_sending_loses_nothing(page: Page) -> None:
    await say(page, "Count", words=30, first_ms=400, period_ms=10)
    await page.wait_for_function("() => sessionStorage.getItem('parley.pending')")
    await page.reload()
    assert await answered(page) == words(30)
    await expect(page.locator(".user")).to_have_count(1)
    await page.reload()
    assert await answered(page) == words(30)
    await expect(page.locator(".user")).to_have_count(1)


async def test_a_running_answer_goes_on_in_another_tab(page: Page, context: BrowserContext) -> None:
    await say(page, "Count", words=100, first_ms=10, period_ms=40)
    await expect(page.locator(".assistant .body")).to_contain_text("w020", timeout=ANSWER_MS)
    other = await context.new_page()
    await other.goto(page.url)
    assert await answered(other) == words(100)


async def test_two_tabs_on_two_edges_show_every_answer_of_a_conversation(
    page: Page, context: BrowserContext, system: System, second: Beside, client: httpx.AsyncClient
) -> None:
    """F04: three turns and one regenerated, asked for here and there, without a reload."""
    await say(page, "One", words=10, first_ms=10, period_ms=10)
    assert await answered(page) == words(10)
    conversation = page.url.partition("#c=")[2]
    other = await context.new_page()
    await other.goto(f"{second.base_url}/#key={system.key}&c={conversation}")
    assert await answered(other) == words(10)
    await other.select_option("#model", "synthetic")
    for number, (tab, watching) in enumerate([(other, page), (page, other)], start=2):
        await watching.evaluate(WATCH)
        await say(tab, f"Number {number}", words=10 * number, first_ms=10, period_ms=100)
        for each in (watching, tab):
            await expect(each.locator(".user").last).to_contain_text(f"Number {number}")
            await expect(each.locator(".assistant")).to_have_count(number)
            assert await answered(each) == words(10 * number)
        texts = await watching.evaluate("() => window.seen")
        assert len(set(texts)) >= 3  # it came live
    items = (await client.get(f"/v1/conversations/{conversation}/items")).json()["data"]
    again = {"model": "synthetic", "previous_response_id": items[2]["response_id"]}
    script = json.dumps({"words": 40, "first_ms": 10, "period_ms": 20})
    await client.post("/v1/responses", json=again | {"input": f"Number 3, again\n::script {script}"})
    for each in (page, other):
        await expect(each.locator(".assistant")).to_have_count(4)
        assert await answered(each) == words(40)
        await expect(each.locator(".user")).to_have_count(4)


async def test_a_page_whose_edge_hears_nothing_any_more_notices_and_goes_on(
    context: BrowserContext, system: System
) -> None:
    """F46 in the browser: nothing passes either way for a while, nobody closes anything."""
    silent = asyncio.Event()

    def pass_on(socket: WebSocketRoute) -> None:
        server, dead = socket.connect_to_server(), [False]

        def unless_silent(send: Callable[[str | bytes], None]) -> Callable[[str | bytes], None]:
            def relay(message: str | bytes) -> None:
                dead[0] = dead[0] or silent.is_set()
                if not dead[0]:
                    send(message)

            return relay

        socket.on_message(unless_silent(server.send))
        server.on_message(unless_silent(socket.send))

    await context.route_web_socket(re.compile("/v1/responses"), pass_on)
    page = await context.new_page()
    await page.goto(f"{system.base_url}/#key={system.key}")
    await page.select_option("#model", "synthetic")
    await say(page, "Count", words=100, first_ms=10, period_ms=50)
    await expect(page.locator(".assistant .body")).to_contain_text("w020", timeout=ANSWER_MS)
    silent.set()
    await expect(page.locator("#notice")).to_contain_text("Reconnecting", timeout=45_000)
    silent.clear()
    assert await answered(page) == words(100)


async def test_a_lost_socket_is_opened_again_and_the_answer_resumed(context: BrowserContext, system: System) -> None:
    sockets: list[WebSocketRoute] = []

    def cut(socket: WebSocketRoute) -> None:
        sockets.append(socket)
        server = socket.connect_to_server()
        left = [40]

        async def pass_on(message: str | bytes) -> None:
            left[0] -= 1
            if left[0] == 0:
                await socket.close(code=1012)
            elif left[0] > 0:
                socket.send(message)

        server.on_message(pass_on)

    await context.route_web_socket(re.compile("/v1/responses"), cut)
    page = await context.new_page()
    await page.goto(f"{system.base_url}/#key={system.key}")
    await page.select_option("#model", "synthetic")
    await page.evaluate(WATCH)
    await page.evaluate(
        """() => { window.notices = []; const notice = document.getElementById('notice');
        new MutationObserver(() => window.notices.push(notice.textContent)).observe(notice, { childList: true }); }"""
    )
    await say(page, "Count", words=100, first_ms=10, period_ms=20)
    assert await answered(page) == words(100)
    assert_beginnings(await page.evaluate("() => window.seen"), words(100))
    assert len(sockets) >= 3
    assert "Connection lost. Reconnecting…" in await page.evaluate("() => window.notices")
    await expect(page.locator("#notice")).to_be_empty()


async def test_stop_keeps_what_is_there_and_the_next_message_is_answered(page: Page) -> None:
    await say(page, "Count", words=2000, first_ms=10, period_ms=20)
    await expect(page.locator(".assistant .body")).to_contain_text("w020", timeout=ANSWER_MS)
    await page.click("#stop")
    text = await answered(page, "cancelled")
    assert words(2000).startswith(text)
    await expect(page.locator(".assistant .remark")).to_have_text("Stopped.")
    await page.reload()
    assert await answered(page, "cancelled") == text
    await page.select_option("#model", "synthetic")
    await say(page, "Go on", words=3)
    assert await answered(page) == words(3)


async def test_a_failed_answer_can_be_tried_again(page: Page) -> None:
    await say(page, "Break", words=30, first_ms=10, period_ms=10, error_after=12)
    await answered(page, "failed")
    await expect(page.locator(".assistant .retry")).to_be_visible()
    await page.reload()
    await answered(page, "failed")
    await page.select_option("#model", "synthetic")
    await page.click(".assistant .retry")
    await expect(page.locator(".assistant")).to_have_count(2)
    await answered(page, "failed")


async def test_an_answer_at_its_length_limit_says_so(page: Page) -> None:
    await say(page, "Count", words=5, first_ms=10, period_ms=10, finish="length")
    assert await answered(page, "incomplete") == words(5)
    await expect(page.locator(".assistant .remark")).to_contain_text("length limit")


async def test_enter_sends_but_not_while_text_is_being_composed(page: Page) -> None:
    """F11; Shift+Enter is a new line."""
    await page.fill("#prompt", "にほん")
    press = "(options) => document.getElementById('prompt').dispatchEvent(new KeyboardEvent('keydown', options))"
    await page.evaluate(press, {"key": "Enter", "isComposing": True, "bubbles": True})
    await page.evaluate(press, {"key": "Enter", "keyCode": 229, "bubbles": True})
    await page.press("#prompt", "Shift+Enter")
    await expect(page.locator(".user")).to_have_count(0)
    await expect(page.locator("#prompt")).to_have_value("にほん\n")
    await page.press("#prompt", "Enter")
    await expect(page.locator(".user")).to_have_count(1)
    await answered(page, "incomplete")


async def test_answers_are_text_and_code_at_every_moment_never_markup(page: Page) -> None:
    """F13."""
    pieces = ["```ht", "ml\n<img src=x oner", "ror=window.pwn=1>\n", "```\n", "<script>window.pwn=1</script> x$&y"]
    await page.evaluate(WATCH)
    await say(page, "Code", pieces_hex=[piece.encode().hex() for piece in pieces], first_ms=10, period_ms=150)
    text = await answered(page)
    assert "<script>window.pwn=1</script> x$&y" in text
    assert await page.locator(".assistant pre").inner_text() == "<img src=x onerror=window.pwn=1>\n"
    assert await page.locator(".assistant :is(img, script)").count() == 0
    assert await page.evaluate("() => window.pwn") is None
    seen = await page.evaluate("() => window.seen")
    assert not any("```" in text for text in seen)


PASTE = """(lines) => {
    const clipboardData = new DataTransfer();
    clipboardData.setData('text/plain', ('x'.repeat(59) + '\\n').repeat(lines));
    const began = performance.now();
    document.getElementById('prompt').dispatchEvent(
        new ClipboardEvent('paste', { clipboardData, bubbles: true, cancelable: true }));
    return new Promise((shown) => requestAnimationFrame(() => setTimeout(() => shown(performance.now() - began))));
}"""
"""Paste so many lines of 60 characters; gives the milliseconds until the page has drawn them."""


async def test_a_text_over_the_limit_is_refused_before_it_is_sent_and_the_page_stays_alive(page: Page) -> None:
    """F10: 20,000 lines, 1.2 MB. Its 200 ms are a third of what is allowed here: tests may share two cores."""
    assert await page.evaluate(PASTE, 20_000) < 600
    await expect(page.locator("#prompt")).to_have_value("[paste 1: 20,001 lines]")
    await page.press("#prompt", "Enter")
    await expect(page.locator("#notice")).to_contain_text("at most 1 MiB")
    await expect(page.locator(".user")).to_have_count(0)
    await page.fill("#prompt", "")
    await say(page, "Still there?", words=2, first_ms=10, period_ms=10)
    assert await answered(page) == words(2)


async def test_a_text_that_only_the_edge_can_refuse_comes_back_to_be_shortened(page: Page) -> None:
    assert await page.evaluate(PASTE, 6_000) < 600
    await page.press("#prompt", "Enter")
    await expect(page.locator(".assistant .remark")).to_contain_text("Shorten the input", timeout=ANSWER_MS)
    await expect(page.locator("#prompt")).to_have_value("[paste 2: 6,001 lines]")
    await page.reload()
    await expect(page.locator("#prompt")).to_be_focused()
    await say(page, "Shorter", words=2, first_ms=10, period_ms=10)
    assert await answered(page) == words(2)
