// What is kept of an HTTP answer and of a command, as src/frontends/http/stored_answer.hpp and
// src/operators/run_result.hpp describe it: taken apart for people, and made of what an operator types.
const ascii = (text) => new TextEncoder().encode(text);

export const run_type = "application/vnd.once.run";
export const http_type = "application/vnd.once.http";

function joined(...parts) {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

export function run_result(exit_code, output) {
  const bytes = ascii(output);
  const length = new Uint8Array(4);
  new DataView(length.buffer).setUint32(0, bytes.length);
  const chunk = bytes.length ? joined(ascii("o"), length, bytes) : new Uint8Array();
  return joined(ascii("once-run\u0001"), chunk, ascii("x"), Uint8Array.of(exit_code));
}

export function http_answer(status, content_type, body) {
  const bytes = ascii(body);
  const header = content_type ? `Content-Type: ${content_type}\n` : "";
  return joined(ascii(`once-http/1 ${status} body ${bytes.length}\n${header}\n`), bytes);
}

// {status, reason, headers: [[name, value]], not_stored, dropped, body} or null: bytes of something else.
export function read_http_answer(bytes) {
  let end = -1;
  for (let at = 0; at + 1 < bytes.length && end < 0; ++at) if (bytes[at] === 10 && bytes[at + 1] === 10) end = at;
  if (end < 0) return null;
  const lines = new TextDecoder("latin1").decode(bytes.subarray(0, end)).split("\n");
  const first = /^once-http\/1 (\d{3}) (body|dropped) (\d+)(?: (.*))?$/.exec(lines[0]);
  if (!first) return null;
  const answer = {
    status: first[1], reason: first[4] || "", headers: [], not_stored: "",
    dropped: first[2] === "dropped" ? Number(first[3]) : null, body: bytes.subarray(end + 2),
  };
  for (const line of lines.slice(1)) {
    const dropped = /^\(not stored: (.*)\)$/.exec(line);
    const colon = line.indexOf(":");
    if (dropped) answer.not_stored = dropped[1];
    else if (colon > 0) answer.headers.push([line.slice(0, colon), line.slice(colon + 1).trim()]);
    else return null;
  }
  return answer;
}
