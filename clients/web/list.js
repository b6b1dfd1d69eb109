// The list of conversations at the side.

import { element } from "./view.js";

const UNTITLED = "New chat";

export class ConversationList {
  #list;
  #more;
  #open;
  #entries = new Map();
  #next = null;
  current = null;

  /** `open(id)` is called for a conversation that was chosen. */
  constructor(list, more, open) {
    this.#list = list;
    this.#more = more;
    this.#open = open;
  }

  title(id) {
    return this.#entries.get(id)?.title ?? UNTITLED;
  }

  /** Show the newest conversations again. */
  async refresh(api) {
    const page = await api.conversations();
    const known = this.#entries;
    this.#entries = new Map();
    // The list is a view that follows the log: what has just been opened may not be in it yet.
    const newest = page.data.map((each) => each.id);
    if (this.current !== null && known.has(this.current) && !newest.includes(this.current)) {
      this.#entries.set(this.current, known.get(this.current));
    }
    this.#take(page, known);
  }

  async showMore(api) {
    this.#take(await api.conversations(this.#next), this.#entries);
  }

  /** A conversation that has just been opened, with its first prompt for a title. */
  add(id, prompt) {
    const entry = { id, title: prompt.trim().split("\n")[0].slice(0, 80) };
    this.#entries = new Map([[id, entry], ...this.#entries]);
    this.select(id);
  }

  select(id) {
    this.current = id;
    this.draw();
  }

  draw() {
    this.#list.replaceChildren(
      ...[...this.#entries.values()].map(({ id, title }) => {
        const button = element("button", { type: "button", text: title ?? UNTITLED, title: title ?? "" });
        if (id === this.current) button.ariaCurrent = "page";
        button.onclick = () => this.#open(id);
        return element("li", {}, button);
      }),
    );
    this.#more.hidden = this.#next === null;
  }

  #take(page, known) {
    for (const { id, title } of page.data) {
      this.#entries.set(id, { id, title: title ?? known.get(id)?.title ?? null });
    }
    this.#next = page.next ?? null;
    this.draw();
  }
}
