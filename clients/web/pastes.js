// Long pasted texts, and the marks that stand for them in the field: a browser takes seconds to lay out a megabyte in
// one. Pure.

/** Characters from which a paste is kept aside. */
const LONG_PASTE = 20_000;

export class Pastes {
  #kept = new Map();

  /** The mark for a text; null: it is short enough to be shown. */
  keep(text) {
    if (text.length < LONG_PASTE) return null;
    const mark = `[paste ${this.#kept.size + 1}: ${text.split("\n").length.toLocaleString("en")} lines]`;
    this.#kept.set(mark, text);
    return mark;
  }

  /** What was meant: every mark that is still there replaced by its text. */
  expand(written) {
    for (const [mark, text] of this.#kept) written = written.split(mark).join(text);
    return written;
  }
}
