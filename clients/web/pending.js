// The request whose answer is on its way, kept where a reload of this tab finds it: until the history has the turn, no
// other place knows of it.

const NAME = "parley.pending";

/** `{ conversation, request, id }`: the body that was sent, and the response's id once it is known; or null. */
export function pending() {
  return JSON.parse(sessionStorage.getItem(NAME));
}

export function keepPending(conversation, { request, id }) {
  try {
    sessionStorage.setItem(NAME, JSON.stringify({ conversation, request, id }));
  } catch {
    forgetPending(); // Over the browser's quota: the turn runs all the same.
  }
}

export function forgetPending() {
  sessionStorage.removeItem(NAME);
}
