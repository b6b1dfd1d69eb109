// The edge's HTTP API.

/** What one message or body may have at most, in bytes (PARLEY_EDGE__MAX_MESSAGE_BYTES). */
export const MAX_BYTES = 1_048_576;

/** An error that the edge answered with, or `unreachable`. */
export class ApiError extends Error {
  constructor(status, { code, message }) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export class Api {
  constructor(key) {
    this.key = key;
  }

  async models() {
    return (await this.#call("GET", "/v1/models")).data.map((model) => model.id);
  }

  /** A page of earlier conversations, and `next` for the one after it. */
  conversations(after = null) {
    return this.#call("GET", `/v1/conversations?limit=30${after ? `&after=${encodeURIComponent(after)}` : ""}`);
  }

  openConversation() {
    return this.#call("POST", "/v1/conversations", {});
  }

  /** A page of a conversation's items, the newest first; `after`: the last item of the page before. */
  items(conversation, after = null) {
    const more = after ? `&after=${encodeURIComponent(after)}` : "";
    return this.#call("GET", `/v1/conversations/${encodeURIComponent(conversation)}/items?order=desc&limit=100${more}`);
  }

  response(id) {
    return this.#call("GET", `/v1/responses/${encodeURIComponent(id)}`);
  }

  async #call(method, path, body) {
    const headers = { authorization: `Bearer ${this.key}` };
    if (body !== undefined) headers["content-type"] = "application/json";
    let answer;
    try {
      answer = await fetch(path, { method, headers, body: body && JSON.stringify(body), cache: "no-store" });
    } catch {
      throw new ApiError(0, { code: "unreachable", message: "The server can't be reached." });
    }
    const said = await answer.json().catch(() => ({}));
    if (!answer.ok) {
      const unknown = { code: "internal", message: `The server said ${answer.status}.` };
      throw new ApiError(answer.status, said.error ?? unknown);
    }
    return said;
  }
}
