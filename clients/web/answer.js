// One answer, as its public events tell it. Pure: no socket, no page. clients/terminal/conversation.py is its twin.
//
//   sending → waiting → running → completed | refused | incomplete | cancelled | failed
//
// The text shown is always a beginning of the whole answer: events are taken in the order of their numbers, one that
// came before changes nothing, and after a gap the answer has to be resumed.

const ENDED = new Set(["completed", "refused", "incomplete", "cancelled", "failed"]);

export class Answer {
  /** `request`: the body of response.create, for an answer that has not been asked for yet. */
  constructor({ request = null, id = null } = {}) {
    this.request = request;
    this.id = id;
    this.state = id === null ? "sending" : "running";
    this.text = "";
    this.refusal = "";
    this.reason = null;
    /** Earlier turns that the model did not see. */
    this.dropped = 0;
    this.error = null;
    /** Stop was asked for; the answer may still end in another way. */
    this.stopping = false;
    /** The number of the last event taken. */
    this.last = -1;
  }

  get ended() {
    return ENDED.has(this.state);
  }

  /** Whether asking again may help. */
  get retryable() {
    return this.state === "failed" && this.error?.retryable !== false;
  }

  /** Take one event. False: events before it are missing. */
  apply(event) {
    const number = event.sequence_number;
    if (number <= this.last) return true;
    if (number !== this.last + 1) return false;
    this.last = number;
    switch (event.type) {
      case "response.created":
        this.id = event.response.id;
        break;
      case "response.queued":
        this.state = "waiting";
        break;
      case "response.in_progress":
        this.state = "running";
        break;
      case "response.output_text.delta":
        this.text += event.delta;
        break;
      case "response.refusal.delta":
        this.refusal += event.delta;
        break;
      case "response.completed":
      case "response.incomplete":
      case "response.failed":
        this.#end(event.response);
    }
    return true;
  }

  /** The answer can't be had: it was not accepted, or can't be followed. */
  fail(error) {
    this.state = "failed";
    this.error = error;
  }

  /** Take a response that has ended, whole, as it is kept. */
  settle(response) {
    const parts = response.output.flatMap((item) => item.content);
    this.text = parts.map((part) => part.text ?? "").join("");
    this.refusal = parts.map((part) => part.refusal ?? "").join("");
    this.#end(response);
  }

  #end(response) {
    this.reason = response.incomplete_details?.reason ?? null;
    this.dropped = response["parley:dropped_turns"] ?? 0;
    if (response.error) this.fail({ ...response.error, retryable: response.error["parley:retryable"] });
    else if (response.status === "completed" && this.refusal) this.state = "refused";
    else this.state = response.status;
  }
}

const REASONS = {
  max_output_tokens: "Cut off: the answer reached its length limit.",
  content_filter: "Stopped by the content filter.",
};

/** What is said beneath an answer about its state; empty when its text says enough. */
export function remark(answer) {
  switch (answer.state) {
    case "sending":
      return "Sending…";
    case "waiting":
      return "Waiting for its turn…";
    case "running":
      if (answer.stopping) return "Stopping…";
      return answer.text ? "" : "Thinking…";
    case "refused":
      return "This was not answered.";
    case "incomplete":
      return REASONS[answer.reason] ?? "The answer is incomplete.";
    case "cancelled":
      return "Stopped.";
    case "failed":
      return answer.error?.message ?? "The answer failed.";
    case "completed":
      return answer.dropped ? `The start of this chat no longer fits (turns left out: ${answer.dropped}).` : "";
    default:
      return "";
  }
}
