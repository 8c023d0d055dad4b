// Stored bytes, shown as what they are: always as text nodes, never as anything that a browser runs.
import { html, useState } from "./vendor/preact.js";
import { count, from_base64, plain, plain_lines, plural } from "./format.js";
import { indented } from "./json_text.js";
import { http_type, read_http_answer, run_type } from "./encodings.js";

const shown_bytes = 64 * 1024;  // More than this is for a file.

function text_of(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return null;
  }
}

function hex_lines(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const row = Array.from(bytes.subarray(at, at + 16));
    const digits = row.map((byte) => byte.toString(16).padStart(2, "0"));
    const signs = row.map((byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${digits.join(" ").padEnd(47)}  ${signs}`);
  }
  return lines.join("\n");
}

const Pre = ({ label, children }) => html`<pre class="payload" tabindex="0" role="region" aria-label=${label}>${children}</pre>`;
const Json = ({ pieces, label }) => html`<${Pre} label=${label}>${pieces.map(([kind, piece]) =>
  kind ? html`<span class=${`json-${kind}`}>${plain_lines(piece)}</span>` : piece)}<//>`;

// The views that fit, the best first: [[name, shown]].
function views_of(bytes, content_type, run) {
  const views = [];
  if (run && !run.error) views.push(["Command", html`<${Command} run=${run} />`]);
  if (!bytes) return views;  // A command's result comes taken apart.
  const http = content_type === http_type ? read_http_answer(bytes) : null;
  if (http) views.push(["HTTP", html`<${Http} answer=${http} />`]);
  const text = text_of(bytes);
  const pieces = text === null || bytes.length > 4 * shown_bytes ? null : indented(text);
  if (pieces) views.push(["JSON", html`<${Json} pieces=${pieces} label="JSON" />`]);
  if (text !== null) views.push(["Text", html`<${Pre} label="Text">${plain_lines(text.slice(0, shown_bytes))}<//>`]);
  views.push(["Hex", html`<${Pre} label="Hexadecimal">${hex_lines(bytes.subarray(0, shown_bytes))}<//>`]);
  return views;
}

// Bytes as JSON, text or hexadecimal, whatever is the first that fits.
function Best({ bytes, label }) {
  if (!bytes.length) return html`<p class="muted">Nothing.</p>`;
  const text = text_of(bytes);
  const pieces = text === null || bytes.length > 4 * shown_bytes ? null : indented(text);
  if (pieces) return html`<${Json} pieces=${pieces} label=${label} />`;
  return html`<${Pre} label=${label}>${text === null ? hex_lines(bytes.subarray(0, shown_bytes))
    : plain_lines(text.slice(0, shown_bytes))}<//>`;
}

function Http({ answer }) {
  return html`<div class="http">
    <p class="mono status-line"><b>${answer.status}</b> ${plain(answer.reason)}</p>
    <dl class="headers mono">${answer.headers.map(([name, value]) => html`<dt>${plain(name)}</dt><dd>${plain(value)}</dd>`)}</dl>
    ${answer.not_stored && html`<p class="muted">Not stored: ${plain(answer.not_stored)}.</p>`}
    ${answer.dropped === null ? html`<${Best} bytes=${answer.body} label="Body" />`
      : html`<p class="muted">The body was too large to keep${answer.dropped ? `: ${plural(answer.dropped, "byte", "bytes")}` : ""}.</p>`}
  </div>`;
}

function Command({ run }) {
  const bytes = (name) => typeof run[name] === "string" ? new TextEncoder().encode(run[name])
    : typeof run[`${name}_base64`] === "string" ? from_base64(run[`${name}_base64`]) : null;
  const Stream = ({ name, title }) => run[`${name}_bytes`] === 0 ? null : html`<h4>${title}</h4>
    ${bytes(name) ? html`<${Best} bytes=${bytes(name)} label=${title} />`
      : html`<p class="muted">${plural(run[`${name}_bytes`], "byte", "bytes")}, too many to keep.</p>`}`;
  return html`<div>
    <p class="mono status-line">${run.signal === null || run.signal === undefined ? html`exit code <b>${run.exit_code}</b>`
      : html`signal <b>${run.signal}</b>`}</p>
    <${Stream} name="stdout" title="Standard output" />
    <${Stream} name="stderr" title="Standard error" />
    ${run.stdout_bytes + run.stderr_bytes === 0 && html`<p class="muted">No output.</p>`}
  </div>`;
}

// What kind of bytes these are, in a word, before they are shown.
export function kind_of(content_type) {
  if (content_type === run_type) return "of a command's result";
  if (content_type === http_type) return "of an HTTP answer";
  if (/json/.test(content_type)) return "of JSON";
  return content_type ? `of ${plain(content_type)}` : "";
}

export function Payload({ bytes, content_type = "", run = null }) {
  const [chosen, choose] = useState(0);
  const views = views_of(bytes, content_type, run);
  const at = Math.min(chosen, views.length - 1);
  return html`<div class="shown">
    ${views.length > 1 && html`<div class="segments" role="group" aria-label="Shown as">${views.map(([name], index) =>
      html`<button type="button" aria-pressed=${index === at} onClick=${() => choose(index)}>${name}</button>`)}</div>`}
    ${views.length ? views[at][1] : html`<p class="muted">Not known.</p>`}
    ${bytes && bytes.length > shown_bytes && html`<p class="muted">More than ${count(shown_bytes)} bytes: the rest is in the file.</p>`}
  </div>`;
}
