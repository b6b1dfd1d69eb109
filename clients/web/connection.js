// Answers over one WebSocket, one after the other, each to its end whatever happens to the socket.
//
// A lost socket is opened again after a pause that doubles up to a limit and is drawn at random, so that many pages do
// not come back at the same moment; an edge that ends says itself when each of them is to come. An answer that was
// accepted is resumed after its last event; a request without a word on its acceptance is sent again under its
// idempotency key, so it runs once. The turns of the open conversation that other devices ask for are shown here too.

const FIRST_PAUSE_MS = 300;
const LONGEST_PAUSE_MS = 10_000;
/** Silence after which the edge is asked for a sign of life, and after which the socket counts as dead. */
const PING_AFTER_MS = 8_000;
const DEAD_AFTER_MS = 16_000;
/** The same while nothing is expected: silence is the rule then. */
const IDLE_PING_AFTER_MS = 30_000;
/** In the reason of an edge that closes because it ends: the client's turn to come back. */
const RETRY_AFTER = /retry_after_ms=(\d{1,5})$/;
/** An edge that has the answer but can't read it now is asked this often. */
const RESUME_TRIES = 5;
/** Errors about the socket or the moment, not about the answer. */
const PASSING = new Set([
  "internal",
  "log_unavailable",
  "overloaded",
  "rate_limit_exceeded",
  "shutting_down",
  "slow_reader",
  "store_unavailable",
]);
/** What is said between turns: the socket closes next. */
const BETWEEN_TURNS = "websocket_connection_limit_reached";
const IN_PROGRESS = "response_in_progress";

export class Connection {
  #key;
  #on;
  #socket = null;
  #answers = [];
  #failures = 0;
  #resumes = 0;
  #pause = null;
  #silence = null;
  #conversation = null;
  #joined = false;
  /** The edge has said that it tells this socket of them. */
  #following = false;
  /** The response of another's turn that this socket was told of last. */
  #announced = null;

  /**
   * `on.changed(answer)`: it has more to show; `on.connected(bool)`: whether the answer in flight is being heard;
   * `on.unheard()`: the socket was refused or lost, perhaps for its key; `on.turn(event)` gives the answer that a turn
   * of the conversation is shown in; `on.rejoined()`: turns may have come and gone meanwhile; `on.deleted()`.
   */
  constructor(key, on) {
    this.#key = key;
    this.#on = on;
    addEventListener("online", this.#wake);
  }

  /** Open the socket before it is needed. */
  warm() {
    if (this.#socket === null && this.#pause === null) this.#connect();
  }

  /** Hear of every turn of a conversation from now on. */
  join(conversation) {
    this.#conversation = conversation;
    this.#joined = false;
    if (this.#ready) this.#sayJoin();
    else this.warm();
  }

  /** Ask for an answer, or go on with one that runs; after those that were given before. */
  follow(answer) {
    this.#answers.push(answer);
    if (this.#answers.length === 1) this.#begin();
  }

  /** Have the answer in flight end with what it has. */
  stop(answer) {
    answer.stopping = true;
    if (answer === this.#answers[0]) this.#cancel();
    this.#on.changed(answer);
  }

  /** Hear no more; answers go on without us. */
  close() {
    removeEventListener("online", this.#wake);
    this.#answers = [];
    this.#conversation = null;
    clearTimeout(this.#pause);
    this.#pause = null;
    this.#drop();
  }

  get #ready() {
    return this.#socket?.readyState === WebSocket.OPEN;
  }

  /** The network is back: no need to wait out the pause. */
  #wake = () => {
    if (this.#pause !== null) {
      clearTimeout(this.#pause);
      this.#connect();
    }
  };

  #connect() {
    this.#pause = null;
    const url = new URL("/v1/responses", location.href);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(url, ["parley.v1", `parley.key.${this.#key}`]);
    this.#socket = socket;
    this.#following = false;
    this.#announced = null;
    socket.onopen = () => {
      this.#begin(); // an answer that goes on first: what is shown already is not told of again
      this.#sayJoin();
    };
    socket.onmessage = (message) => this.#hear(JSON.parse(message.data));
    socket.onclose = ({ reason }) => this.#lost(reason);
    this.#listen();
  }

  /** Let go of the socket without waiting for its end. */
  #drop() {
    clearTimeout(this.#silence);
    const socket = this.#socket;
    this.#socket = null;
    if (socket !== null) {
      socket.onopen = socket.onmessage = socket.onclose = null;
      socket.close();
    }
  }

  #lost(reason = "") {
    this.#drop();
    if (this.#answers.length === 0 && this.#conversation === null) return;
    this.#failures += 1;
    if (this.#answers.length > 0) this.#on.connected(false);
    if (this.#answers.length > 0 || this.#failures > 1) this.#on.unheard();
    const longest = Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** this.#failures);
    const told = RETRY_AFTER.exec(reason)?.[1];
    this.#pause = setTimeout(() => this.#connect(), told ?? longest * (0.5 + Math.random() / 2));
  }

  /** Say what the first answer needs: to be asked for, or to go on. */
  #begin() {
    const answer = this.#answers[0];
    if (answer === undefined) return;
    if (!this.#ready) {
      this.warm();
      return;
    }
    if (answer.id === null) {
      this.#say({ type: "response.create", ...answer.request });
    } else {
      this.#say({ type: "parley:resume", response_id: answer.id, starting_after: answer.last });
      this.#cancel();
    }
    this.#listen();
  }

  #hear(event) {
    this.#failures = 0;
    this.#on.connected(true);
    this.#listen();
    if (event.type.startsWith("parley:")) return this.#hearOurs(event);
    const answer = this.#answers[0];
    if (answer === undefined) {
      // An edge that has just begun may not know yet what runs: it is asked again.
      if (event.type === "error" && PASSING.has(event.error.code) && !this.#following) this.#lost();
      return;
    }
    if (event.type === "error") {
      this.#refused(answer, event);
    } else if (answer.apply(event)) {
      this.#resumes = 0;
      if (event.type === "response.created") this.#cancel();
      this.#on.changed(answer);
    } else {
      this.#lost();
    }
    if (answer.ended && answer === this.#answers[0]) this.#next();
  }

  #hearOurs(event) {
    if (event.type === "parley:turn") {
      this.#announced = event.response_id;
      const answer = this.#on.turn(event); // its events come next
      this.#answers = [answer, ...this.#answers.filter((other) => other !== answer)];
    } else if (event.type === "parley:following" && event.conversation === this.#conversation) {
      if (this.#joined) this.#on.rejoined();
      this.#joined = this.#following = true;
    } else if (event.type === "parley:deleted" && event.conversation === this.#conversation) {
      this.#on.deleted();
    }
  }

  #refused(answer, { error, status }) {
    if (error.code === BETWEEN_TURNS) return;
    // Another device's answer comes first on this socket; the one that was refused is asked for after it. Or what was
    // asked for is on its way already: it was announced before the edge had heard the question.
    const announced = answer.id !== null && answer.id === this.#announced;
    if (error.code === IN_PROGRESS && (this.#answers.length > 1 || announced)) return;
    const passing = PASSING.has(error.code);
    if (passing && answer.id !== null && this.#resumes < RESUME_TRIES) {
      this.#failures = this.#resumes;
      this.#resumes += 1;
      this.#lost();
      return;
    }
    answer.fail({ ...error, retryable: passing || status === 429 || status >= 500 });
    this.#on.changed(answer);
  }

  #next() {
    this.#answers.shift();
    this.#resumes = 0;
    this.#listen();
    this.#begin();
  }

  #cancel() {
    const answer = this.#answers[0];
    if (answer?.stopping && answer.id !== null && this.#ready) {
      this.#say({ type: "parley:cancel", response_id: answer.id });
    }
  }

  #sayJoin() {
    if (this.#conversation !== null) this.#say({ type: "parley:follow", conversation: this.#conversation });
    this.#listen();
  }

  #say(message) {
    this.#socket.send(JSON.stringify(message));
  }

  /** A socket may be dead without anybody having said so: the browser does not tell, so its silence is watched. */
  #listen() {
    clearTimeout(this.#silence);
    const idle = this.#answers.length === 0;
    if (this.#socket === null || (idle && this.#conversation === null)) return;
    this.#silence = setTimeout(
      () => {
        if (this.#ready) this.#say({ type: "parley:ping" });
        this.#silence = setTimeout(() => this.#lost(), DEAD_AFTER_MS - PING_AFTER_MS);
      },
      idle ? IDLE_PING_AFTER_MS : PING_AFTER_MS,
    );
  }
}
