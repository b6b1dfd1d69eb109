"""The page itself, in Node, on a document that only remembers what was put into it."""

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
class Element {
  style = {};
  dataset = {};
  children = [];
  value = "";
  classList = { toggle() {}, contains: () => false };
  constructor(text = "") {
    this.textContent = text;
  }
  append(...nodes) {
    this.children.push(...nodes);
  }
  prepend(...nodes) {
    this.children.unshift(...nodes);
  }
  replaceChildren(...nodes) {
    this.children = nodes;
  }
  after() {}
  focus() {}
  remove() {}
  querySelector() {}
  get words() {
    return [this.textContent, ...this.children.map((child) => child.words)].filter((text) => text).join(" ");
  }
  get data() {
    return this.textContent;
  }
  set data(text) {
    this.textContent = text;
  }
}
const known = new Map();
const storage = () => {
  const kept = new Map();
  return {
    getItem: (name) => kept.get(name) ?? null,
    setItem: (name, value) => kept.set(name, value),
    removeItem: (name) => kept.delete(name),
  };
};
const waitFor = globalThis.setTimeout;
Object.assign(globalThis, {
  addEventListener() {},
  removeEventListener() {},
  requestAnimationFrame: (draw) => waitFor(draw, 1),
  setTimeout: (act, ms) => waitFor(act, ms === 3000 ? 30 : ms), // what is away is asked for again sooner
  location: { href: "http://edge/", pathname: "/", hash: "#c=conv_1" },
  history: { replaceState() {}, pushState() {} },
  localStorage: storage(),
  sessionStorage: storage(),
  document: {
    getElementById: (id) => known.get(id) ?? known.set(id, new Element()).get(id),
    createElement: () => new Element(),
    createTextNode: (text) => new Element(text),
  },
});
const sent = [];
globalThis.WebSocket = class {
  static OPEN = 1;
  readyState = 0;
  constructor() {
    waitFor(() => {
      this.readyState = 1;
      this.onopen?.();
    }, 1);
  }
  send(text) {
    sent.push(JSON.parse(text));
  }
  close() {}
};
const answered = (status, body) => ({ ok: status < 400, status, json: async () => body });
const away = answered(503, { error: { code: "store_unavailable", message: "A store does not answer." } });
const nothing = { data: [], has_more: false };
/** What the edge says of the open conversation's items, one after the other; the last for good. */
let items = [];
globalThis.fetch = async (path) => {
  if (path.includes("/items")) return items.length > 1 ? items.shift() : items[0];
  return answered(200, path.endsWith("/models") ? { data: [{ id: "auto" }] } : nothing);
};
const message = (response, role, text) => ({
  id: `msg_${response}_${role}`, response_id: response, role, status: "completed", content: [{ text }],
});
localStorage.setItem("parley.key", "pk_1");
"""
AFTER = """
await import(`${process.argv[1]}/app.js`);
for (let n = 0; n < 1000 && !until(); n++) await new Promise((done) => waitFor(done, 10));
await new Promise((done) => waitFor(done, 100));
console.log(JSON.stringify({ sent, page: known.get("messages").words, notice: known.get("notice").textContent }));
process.exit(0);
"""


def told(folder: Path, story: str) -> Any:
    """What the page has sent and shows after this, a little after `until` has come true."""
    assert NODE is not None
    for file in WEB.glob("*.js"):
        shutil.copy(file, folder)
    (folder / "package.json").write_text('{"type": "module"}')
    run = [NODE, "--input-type=module", "-e", BEFORE + story + AFTER, folder.as_uri()]
    return json.loads(subprocess.run(run, check=True, capture_output=True, text=True, timeout=30).stdout)


PENDING = """
sessionStorage.setItem("parley.pending", JSON.stringify({
  conversation: "conv_1", request: { input: "And now?", idempotency_key: "k" }, id: "resp_2",
}));
"""


def test_a_reload_while_the_history_is_away_goes_on_with_the_answer_and_shows_the_history_once_it_is_back(
    tmp_path: Path,
) -> None:
    end = told(
        tmp_path,
        PENDING
        + """
        const before = [message("resp_1", "user", "Hello?"), message("resp_1", "assistant", "Hi.")];
        items = [away, away, answered(200, { data: before.reverse(), has_more: false })];
        const until = () => sent.length > 1;
        """,
    )
    assert [each["type"] for each in end["sent"]] == ["parley:resume", "parley:follow"]
    assert end["sent"][0]["response_id"] == "resp_2"
    assert end["page"].index("Hello?") < end["page"].index("Hi.") < end["page"].index("And now?")
    assert end["notice"] == ""


def test_a_conversation_that_is_not_there_is_not_asked_for_again(tmp_path: Path) -> None:
    end = told(
        tmp_path,
        """
        items = [answered(404, { error: { code: "not_found", message: "No." } }), answered(200, nothing)];
        const until = () => known.get("notice").textContent === "No.";
        """,
    )
    assert (end["sent"], end["notice"]) == ([], "No.")
