"""The page's way to an edge, in Node, on a socket whose other side is the test."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

NODE = shutil.which("node")
WEB = Path(__file__).resolve().parents[3] / "clients" / "web"
pytestmark = pytest.mark.skipif(NODE is None, reason="Node is not installed")

BEFORE = """
import { readFileSync } from "node:fs";
const load = (name) =>
  import("data:text/javascript;base64," + readFileSync(`${process.argv[1]}/${name}`).toString("base64"));
globalThis.addEventListener = globalThis.removeEventListener = () => {};
globalThis.location = { href: "http://edge/" };
const sockets = [];
globalThis.WebSocket = class {
  static OPEN = 1;
  readyState = 1;
  sent = [];
  constructor() {
    sockets.push(this);
  }
  send(text) {
    this.sent.push(JSON.parse(text));
  }
  close() {}
  hear(event) {
    this.onmessage({ data: JSON.stringify(event) });
  }
};
const { Answer } = await load("answer.js");
const { Connection } = await load("connection.js");
const answers = [];
const connection = new Connection("pk", {
  changed() {},
  connected() {},
  unheard() {},
  turn: ({ response_id: id }) => answers.find((answer) => answer.id === id) ?? new Answer({ id }),
  rejoined() {},
  deleted() {},
});
const follow = (answer) => {
  answers.push(answer);
  connection.follow(answer);
  return answer;
};
const lifecycle = (id, number, type, status) => ({
  type: `response.${type}`, sequence_number: number, response: { id, status, output: [] },
});
const delta = (number, text) => ({ type: "response.output_text.delta", sequence_number: number, delta: text });
const busy = { type: "error", status: 409, error: { code: "response_in_progress", message: "busy" } };
"""
AFTER = """
console.log(JSON.stringify(typeof end === "undefined" ? answers.map(({ state, text }) => ({ state, text })) : end));
process.exit(0);
"""


def told(story: str) -> Any:
    """The answers after a story, each with its state and text; or what it calls `end`."""
    assert NODE is not None
    run = [NODE, "--input-type=module", "-e", BEFORE + story + AFTER, str(WEB)]
    return json.loads(subprocess.run(run, check=True, capture_output=True, text=True, timeout=30).stdout)


def test_a_turn_that_is_announced_while_the_page_asks_for_it_is_shown() -> None:
    """Two turns of the conversation were on their way when the page came: the edge goes on to the second by itself."""
    assert told("""
    follow(new Answer({ id: "resp_1" }));
    follow(new Answer({ id: "resp_2" }));
    connection.join("conv");
    const [socket] = sockets;
    socket.onopen();
    socket.hear(lifecycle("resp_1", 0, "created", "in_progress"));
    socket.hear(lifecycle("resp_1", 1, "completed", "completed"));
    socket.hear({ type: "parley:turn", conversation: "conv", response_id: "resp_2", input: [] });
    socket.hear(lifecycle("resp_2", 0, "created", "in_progress"));
    socket.hear(busy);  // to the question that crossed the announcement
    socket.hear(delta(1, "Hi"));
    socket.hear(lifecycle("resp_2", 2, "completed", "completed"));
    """) == [{"state": "completed", "text": ""}, {"state": "completed", "text": "Hi"}]


def test_a_request_that_is_refused_because_the_socket_is_busy_fails() -> None:
    assert told("""
    follow(new Answer({ request: { input: "Hi" } }));
    sockets[0].onopen();
    sockets[0].hear(busy);
    """) == [{"state": "failed", "text": ""}]


@pytest.mark.parametrize(("code", "sockets"), [("log_unavailable", 2), ("not_found", 1)])
def test_a_page_that_could_not_join_its_conversation_yet_comes_again(code: str, sockets: int) -> None:
    """An edge that has just begun reads first what runs; a conversation that is not there never will be."""
    told_ = told(
        """
    globalThis.setTimeout = ((wait) => (act, ms) => wait(act, ms > 100 && ms < 1000 ? 1 : ms))(globalThis.setTimeout);
    connection.join("conv");
    sockets[0].onopen();
    """
        + f'sockets[0].hear({{ type: "error", status: 503, error: {{ code: "{code}", message: "" }} }});'
        + """
    await new Promise((done) => setTimeout(done, 50));
    sockets.at(-1).onopen?.();
    const end = { sockets: sockets.length, asked: sockets.at(-1).sent.at(-1).type };
    """
    )
    assert told_ == {"sockets": sockets, "asked": "parley:follow"}
