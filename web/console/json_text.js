// JSON set in lines by its text. Numbers and strings stay as they were written: 9223372036854775807 is not rounded, and
// of a name that is there twice, both are shown.

const is_json = (text) => {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
};

const most_levels = 64;  // Each level indents all that is in it: without a bound, 30 KB of "[" become a gigabyte.

// [[kind, text], ...] with kinds "name", "string", "number", "word" and "" (the rest), or null: it is no JSON, or has too
// many levels.
export function indented(text) {
  if (!is_json(text)) return null;
  const pieces = [];
  let rest = "";
  const put = (kind, piece) => {
    if (kind === "") {
      rest += piece;
      return;
    }
    if (rest) pieces.push(["", rest]);
    rest = "";
    pieces.push([kind, piece]);
  };
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) || [];
  let depth = 0, deepest = 0;
  for (const token of tokens) {
    if (token === "{" || token === "[") deepest = Math.max(deepest, ++depth);
    if (token === "}" || token === "]") --depth;
  }
  if (deepest > most_levels) return null;
  const line = () => put("", `\n${"  ".repeat(depth)}`);
  tokens.forEach((token, index) => {
    const next = tokens[index + 1];
    switch (token) {
      case "{": case "[":
        put("", token);
        ++depth;
        if (next !== "}" && next !== "]") line();
        break;
      case "}": case "]": {
        const before = tokens[index - 1];
        --depth;
        if (before !== "{" && before !== "[") line();
        put("", token);
        break;
      }
      case ",":
        put("", token);
        line();
        break;
      case ":":
        put("", ": ");
        break;
      default:
        if (token[0] === '"') put(next === ":" ? "name" : "string", token);
        else put(/^[-\d]/.test(token) ? "number" : "word", token);
    }
  });
  if (rest) pieces.push(["", rest]);
  return pieces;
}
