// A conversation's items as turns. Pure.

/** Items in order, as [{ response, inputs, output }]: `output` is null when the turn has left none. */
export function turns(items) {
  const found = [];
  for (const item of items) {
    let turn = found.at(-1);
    if (turn?.response !== item.response_id) {
      turn = { response: item.response_id, inputs: [], output: null };
      found.push(turn);
    }
    // Of several messages of the assistant the last is the answer: a turn's input ends with the user's.
    if (turn.output !== null) turn.inputs.push(turn.output);
    turn.output = item.role === "assistant" ? item : null;
    if (turn.output === null) turn.inputs.push(item);
  }
  return found;
}

/** The text of an item. */
export function textOf(item) {
  return item.content.map((part) => part.text ?? part.refusal ?? "").join("");
}

/** What the item does not say of its turn's end: whether it has to be asked for. */
export function endIsUnknown({ output }) {
  return output === null || output.status === "incomplete";
}
