// The page: who is here, which conversation is open, what is being said.

import { Answer } from "./answer.js";
import { Api, MAX_BYTES } from "./api.js";
import { Connection } from "./connection.js";
import { endIsUnknown, textOf, turns } from "./history.js";
import { ConversationList } from "./list.js";
import { Pastes } from "./pastes.js";
import { forgetPending, keepPending, pending } from "./pending.js";
import { AnswerView, Messages, element, said } from "./view.js";

const KEY = "parley.key";
const MODEL = "parley.model";
/** A key goes into a WebSocket's subprotocol, which takes these characters only. */
const KEY_FORM = /^[\w.~-]+$/;
/** The list of conversations follows the log: a title is there this long after an answer. */
const LIST_LAG_MS = 700;
/** What the edge can't answer now is asked for again after this. */
const AGAIN_MS = 3000;

const $ = (id) => document.getElementById(id);
const prompt = $("prompt");
const pastes = new Pastes();
const messages = new Messages($("messages"));
const list = new ConversationList($("list"), $("more"), (id) => open(id));

let api = null;
let connection = null;
/** The id of the open conversation; null: it begins with the next message. */
let conversation = null;
/** The views of answers by their answer; of the conversation that is open. */
let views = new Map();
/** Counts what was opened, so that late answers of the edge about something else are dropped. */
let opened = 0;
/** The first message of a conversation is being sent. */
let opening = false;

// Who is here

function addressed() {
  return new URLSearchParams(location.hash.slice(1));
}

function start() {
  const given = addressed().get("key");
  if (given !== null) {
    const rest = addressed();
    rest.delete("key");
    history.replaceState(null, "", rest.size ? `#${rest}` : location.pathname);
    localStorage.setItem(KEY, given);
  }
  const key = localStorage.getItem(KEY);
  if (key) enter(key);
  else askForKey("");
}

function askForKey(problem) {
  connection?.close();
  connection = null;
  localStorage.removeItem(KEY);
  $("app").hidden = true;
  $("entry").hidden = false;
  $("key-problem").textContent = problem;
  $("key").focus();
}

async function enter(key) {
  if (!KEY_FORM.test(key)) return askForKey("This is not an API key.");
  api = new Api(key);
  let models;
  try {
    models = await api.models();
  } catch (error) {
    if (error.status === 401) return askForKey("This key is not valid.");
    $("app").hidden = false;
    notice(`${error.message} Trying again…`);
    return setTimeout(() => enter(key), AGAIN_MS);
  }
  localStorage.setItem(KEY, key);
  $("key").value = "";
  $("entry").hidden = true;
  $("app").hidden = false;
  notice("");
  showModels(models);
  const wanted = addressed().get("c");
  await Promise.all([wanted === null ? begin() : open(wanted, { push: false }), attempt(list.refresh(api))]);
  showTitle();
}

function showModels(models) {
  const chosen = localStorage.getItem(MODEL) ?? "auto";
  $("model").replaceChildren(...models.map((name) => element("option", { text: name, selected: name === chosen })));
}

// Which conversation is open

/** Empty the page for another conversation. */
function turnTo(id) {
  connection?.close();
  connection = new Connection(api.key, {
    changed: answerChanged,
    connected: (yes) => notice(yes ? "" : "Connection lost. Reconnecting…"),
    unheard: () => attempt(api.models()),
    turn: showOthersTurn,
    rejoined: showMissedTurns,
    deleted: () => notice("This conversation was deleted."),
  });
  connection.warm();
  opened += 1;
  conversation = id;
  views = new Map();
  messages.clear();
  notice("");
  list.select(id);
  showTitle();
  showRunning();
  showSide(false);
}

function begin({ push = false } = {}) {
  if (push) history.pushState(null, "", location.pathname);
  turnTo(null);
  prompt.focus();
}

async function open(id, { push = true } = {}) {
  if (push) history.pushState(null, "", `#c=${id}`);
  turnTo(id);
  await showHistory(id, opened);
}

/** Show what was said, above what is said meanwhile. While it can't be read it is asked for again. */
async function showHistory(id, place) {
  const left = () => place !== opened || connection === null;
  const page = await attempt(api.items(id), () => {
    if (left()) return;
    goOnWithPending([]); // what runs comes from the log
    setTimeout(() => left() || showHistory(id, place), AGAIN_MS);
  });
  if (page === undefined || left()) return;
  notice("");
  const items = page.data.reverse();
  messages.container.prepend(...shown(unknown(turns(items))));
  if (page.has_more) showEarlier(page.last_id);
  goOnWithPending(items);
  connection.join(id);
  messages.toEnd();
  prompt.focus();
}

/** The messages of turns; running ones are followed, those whose end isn't known are asked for. */
function shown(found) {
  return found.flatMap((turn) => {
    const answer = new Answer({ id: turn.response });
    const inputs = turn.inputs.map((item) => said(textOf(item), item.role));
    if (turn.output?.status === "in_progress") {
      connection.follow(answer);
    } else if (turn.output !== null) {
      answer.settle({ status: "completed", output: [turn.output] });
    }
    const view = show(answer, textOf(turn.inputs.at(-1)));
    if (endIsUnknown(turn)) complete(view);
    return [...inputs, view.element];
  });
}

/** The view of an answer to a text. */
function show(answer, text) {
  const view = new AnswerView(messages, answer, () => retry(answer, text));
  views.set(answer, view);
  showRunning();
  return view;
}

/** Ask how a turn ended of which the history shows no end. */
async function complete({ answer }) {
  try {
    const known = await api.response(answer.id);
    if (known.status === "queued" || known.status === "in_progress") connection.follow(answer);
    else answer.settle(known);
  } catch (error) {
    checkKey(error);
    answer.fail({ code: error.code, message: error.message, retryable: true });
  }
  views.get(answer)?.changed();
  showRunning();
}

/** A turn that this page may not know: another tab or device has asked for it. Gives the answer that its events are for. */
function showOthersTurn({ response_id: id, input }) {
  const answer = new Answer({ id });
  const known = [...views.keys()].find((other) => other.id === id);
  if (known !== undefined) return known.ended ? answer : known;
  const text = textOf(input.at(-1));
  messages.add(...input.map((item) => said(textOf(item), item.role)), show(answer, text).element);
  return answer;
}

/** What was said while this page heard nothing. */
async function showMissedTurns() {
  const place = opened;
  const page = await attempt(api.items(conversation));
  if (page === undefined || place !== opened) return;
  messages.add(...shown(unknown(turns(page.data.reverse()))));
}

/** Of these turns those that are not on the page. */
function unknown(found) {
  const known = new Set([...views.keys()].map((answer) => answer.id));
  return found.filter((turn) => !known.has(turn.response));
}

function showEarlier(after) {
  const button = element("button", { type: "button", className: "quiet earlier", text: "Earlier messages" });
  const place = opened;
  button.onclick = async () => {
    const page = await attempt(api.items(conversation, after));
    if (page === undefined || place !== opened) return;
    button.remove();
    messages.addAbove(...shown(turns(page.data.reverse())));
    if (page.has_more) showEarlier(page.last_id);
  };
  messages.container.prepend(button);
}

/** After a reload: the turn that this tab had sent, if the history does not show it. */
function goOnWithPending(items) {
  const kept = pending();
  if (kept?.conversation !== conversation) return;
  if ([...views.keys()].some((answer) => answer.request?.idempotency_key === kept.request.idempotency_key)) return;
  if (items.some((item) => item.response_id === kept.id)) return forgetPending();
  const answer = new Answer(kept);
  messages.add(said(kept.request.input), show(answer, kept.request.input).element);
  connection.follow(answer);
}

// What is being said

async function send(written) {
  const text = pastes.expand(written);
  const request = { model: $("model").value, input: text, idempotency_key: newKey() };
  const bytes = new TextEncoder().encode(JSON.stringify(request)).length + 200;
  if (bytes > MAX_BYTES) {
    const size = (bytes / MAX_BYTES).toFixed(2);
    return notice(`This message has ${size} MiB; at most 1 MiB can be sent. Shorten it.`);
  }
  notice("");
  prompt.value = "";
  fit();
  await ask(request);
}

async function ask(request) {
  const answer = new Answer({ request });
  messages.add(said(request.input), show(answer, request.input).element);
  messages.toEnd();
  const first = conversation === null;
  if (first && !(await openConversation(answer))) return;
  answer.request = { ...request, conversation };
  keepPending(conversation, answer);
  connection.follow(answer);
  if (first) connection.join(conversation);
}

async function openConversation(answer) {
  const place = opened;
  opening = true;
  try {
    const { id } = await api.openConversation();
    if (place !== opened) return false;
    conversation = id;
  } catch (error) {
    checkKey(error);
    if (place === opened) {
      answer.fail({ code: error.code, message: error.message, retryable: true });
      answerChanged(answer);
    }
    return false;
  } finally {
    opening = false;
  }
  history.replaceState(null, "", `#c=${conversation}`);
  list.add(conversation, answer.request.input);
  showTitle();
  return true;
}

/** A request that was never accepted goes out as it was; a turn that ran and failed is a new turn. */
function retry(answer, text) {
  const key = answer.id === null ? answer.request.idempotency_key : newKey();
  if (answer.id === null) forgetTurn(answer);
  ask({ model: $("model").value, ...answer.request, input: text, idempotency_key: key });
}

function answerChanged(answer) {
  const view = views.get(answer);
  if (view === undefined) return;
  if (answer.request !== null && answer.id !== null && answer.last <= 0) {
    // The same turn may be there from the history, when it was not known whether it had been accepted.
    for (const other of [...views.keys()]) {
      if (other !== answer && other.id === answer.id) forgetTurn(other);
    }
    keepPending(conversation, answer);
  }
  view.changed();
  showRunning();
  if (!answer.ended) return;
  if (pending()?.request.idempotency_key === answer.request?.idempotency_key) forgetPending();
  if (answer.id === null && !answer.retryable && !prompt.value) giveBack(answer.request.input);
  setTimeout(() => api && attempt(list.refresh(api)).then(showTitle), LIST_LAG_MS);
}

/** What was refused can be changed and sent again. */
function giveBack(text) {
  prompt.value = pastes.keep(text) ?? text;
  fit();
}

function forgetTurn(answer) {
  views.get(answer).removeTurn();
  views.delete(answer);
}

function runningAnswer() {
  return [...views.keys()].find((answer) => !answer.ended);
}

// The page's small parts

function showRunning() {
  const running = runningAnswer();
  $("send").hidden = running !== undefined;
  $("stop").hidden = running === undefined;
  $("stop").disabled = running?.stopping ?? false;
}

function showTitle() {
  $("title").textContent = conversation === null ? "New chat" : list.title(conversation);
  document.title = conversation === null ? "Parley" : `${list.title(conversation)} · Parley`;
}

function showSide(yes) {
  $("side").classList.toggle("open", yes);
  $("menu").ariaExpanded = String(yes);
}

function notice(text) {
  if ($("notice").textContent !== text) $("notice").textContent = text;
}

function checkKey(error) {
  if (error.status === 401) askForKey("This key is no longer valid.");
}

/** What the edge answers; undefined, and a notice, when it does not. `away` is called when it may answer later. */
async function attempt(asked, away = () => {}) {
  try {
    return await asked;
  } catch (error) {
    if (error.status === undefined) throw error;
    checkKey(error);
    if (error.code !== "unreachable" || !runningAnswer()) notice(error.message);
    if (error.status === 0 || error.status >= 500) away();
    return undefined;
  }
}

function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The field grows with its text; measuring a very long one would stall the page. */
function fit() {
  prompt.style.height = prompt.value.length > 5_000 ? "40vh" : "auto";
  if (prompt.style.height === "auto" && prompt.value) prompt.style.height = `${prompt.scrollHeight + 2}px`;
}

function submit() {
  const text = prompt.value;
  if (text.trim() && !runningAnswer() && !opening) send(text);
}

$("entry").onsubmit = (event) => {
  event.preventDefault();
  enter($("key").value.trim());
};
$("composer").onsubmit = (event) => {
  event.preventDefault();
  submit();
};
prompt.onkeydown = (event) => {
  // An Enter that confirms a candidate of an input method is none of ours; 229 is how some browsers say so.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
  event.preventDefault();
  submit();
};
prompt.oninput = fit;
prompt.onpaste = (event) => {
  const mark = pastes.keep(event.clipboardData.getData("text/plain"));
  if (mark === null) return;
  event.preventDefault();
  prompt.setRangeText(mark, prompt.selectionStart, prompt.selectionEnd, "end");
  fit();
};
$("stop").onclick = () => {
  const running = runningAnswer();
  if (running) connection.stop(running);
  showRunning();
};
$("new").onclick = () => begin({ push: true });
$("more").onclick = () => attempt(list.showMore(api));
$("menu").onclick = () => showSide(!$("side").classList.contains("open"));
$("leave").onclick = () => askForKey("");
$("model").onchange = () => localStorage.setItem(MODEL, $("model").value);
addEventListener("keydown", (event) => event.key === "Escape" && showSide(false));
addEventListener("popstate", () => {
  if (addressed().has("key")) return start();
  if (api === null) return;
  const id = addressed().get("c");
  if (id === null) begin();
  else if (id !== conversation) open(id, { push: false });
});

start();
