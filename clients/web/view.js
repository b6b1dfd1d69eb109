// Messages on the page. All text goes in as text nodes: nothing in an answer is ever markup.

import { remark } from "./answer.js";
import { blocks } from "./blocks.js";

/** Characters of a sent message that are laid out at once: more would make the page stutter. */
const LONG_TEXT = 20_000;
/** Pixels from the end within which a reader is taken to follow it. */
const NEAR_END = 60;

export function element(name, { text, ...properties } = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  if (text !== undefined) made.textContent = text;
  made.append(...children);
  return made;
}

/** The list of messages, which stays at its end while the reader is there. */
export class Messages {
  constructor(container) {
    this.container = container;
  }

  clear() {
    this.container.replaceChildren();
  }

  /** Change something, and keep what the reader looks at where it is. */
  keepingPlace(change) {
    const { container } = this;
    const atEnd = container.scrollHeight - container.scrollTop - container.clientHeight < NEAR_END;
    change();
    if (atEnd) container.scrollTop = container.scrollHeight;
  }

  toEnd() {
    this.container.scrollTop = this.container.scrollHeight;
  }

  add(...nodes) {
    this.keepingPlace(() => this.container.append(...nodes));
  }

  /** Earlier messages, above those that are there. */
  addAbove(...nodes) {
    const below = this.container.scrollHeight - this.container.scrollTop;
    this.container.prepend(...nodes);
    this.container.scrollTop = this.container.scrollHeight - below;
  }
}

/** What somebody said, as it was said. */
export function said(text, role = "user") {
  const body = element("div", { className: "body", text: text.slice(0, LONG_TEXT) });
  const message = element("article", { className: `message ${role}`, ariaLabel: role === "user" ? "You" : role }, body);
  if (text.length > LONG_TEXT) {
    const label = `Show all ${text.length.toLocaleString()} characters`;
    const all = element("button", { type: "button", className: "quiet", text: label });
    all.onclick = () => {
      body.textContent = text;
      all.remove();
    };
    message.append(all);
  }
  return message;
}

/** An answer, drawn again at most once a frame while it comes. */
export class AnswerView {
  #messages;
  #drawing = null;
  #shown = [];
  #body = element("div", { className: "body" });
  #remark = element("p", { className: "remark" });
  #retry = element("button", { type: "button", className: "quiet retry", text: "Try again", hidden: true });

  /** `retry(view)` is called for the button of a failed answer. */
  constructor(messages, answer, retry) {
    this.#messages = messages;
    this.answer = answer;
    const properties = { className: "message assistant", ariaLabel: "Parley" };
    this.element = element("article", properties, this.#body, this.#remark, this.#retry);
    this.#retry.onclick = () => {
      this.#retry.hidden = true;
      retry(this);
    };
    this.draw();
  }

  /** Take the answer off the page, and the message that it answers. */
  removeTurn() {
    this.element.previousSibling.remove();
    this.element.remove();
  }

  /** The answer has changed. */
  changed() {
    this.#drawing ??= requestAnimationFrame(() => {
      this.#drawing = null;
      this.#messages.keepingPlace(() => this.draw());
    });
  }

  draw() {
    const { answer } = this;
    this.element.dataset.state = answer.state;
    this.element.ariaBusy = String(!answer.ended);
    this.#remark.textContent = remark(answer);
    this.#retry.hidden = !answer.retryable;
    this.#drawText(blocks(answer.text));
    if (answer.refusal && !this.element.querySelector(".refusal")) {
      this.#body.after(element("p", { className: "refusal", text: answer.refusal }));
    }
  }

  /** Text only grows: of the blocks that were drawn, none but the last can have changed. */
  #drawText(wanted) {
    wanted.forEach((block, n) => {
      const known = this.#shown[n];
      if (known && known.code === block.code) {
        if (known.text === block.text && known.language === block.language) return;
        known.node.data = block.text;
        if (block.code) known.parent.dataset.language = block.language;
        Object.assign(known, block);
        return;
      }
      for (const stale of this.#shown.splice(n)) stale.parent.remove();
      const node = document.createTextNode(block.text);
      const parent = block.code ? element("pre", {}, element("code", {}, node)) : element("div", {}, node);
      if (block.code) parent.dataset.language = block.language;
      this.#body.append(parent);
      this.#shown.push({ ...block, node, parent });
    });
    for (const stale of this.#shown.splice(wanted.length)) stale.parent.remove();
  }
}
