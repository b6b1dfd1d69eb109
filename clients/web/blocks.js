// An answer's text as prose and code, at every moment of its coming. Pure.

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`\n]*)$/;

/** Split a text at its code fences into [{ code: bool, language, text }]; a fence that is not closed yet is open. */
export function blocks(text) {
  const found = [];
  let block = { code: false, language: "", text: "" };
  let fence = null;
  const lines = text.split("\n");
  lines.forEach((line, n) => {
    const match = FENCE.exec(line);
    const end = n === lines.length - 1 ? "" : "\n";
    if (fence === null && match) {
      if (block.text) found.push(block);
      block = { code: true, language: match[2].trim(), text: "" };
      fence = match[1];
    } else if (fence !== null && match && match[1].startsWith(fence) && !match[2].trim()) {
      found.push(block);
      block = { code: false, language: "", text: "" };
      fence = null;
    } else {
      block.text += line + end;
    }
  });
  if (block.text || block.code) found.push(block);
  return found;
}
