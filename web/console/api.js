// The operators' API, as docs/operators-api.md describes it, and the session in which the page uses it.
const base = new URL("../v1/", import.meta.url);
const half_name = `once-session${base.pathname}`;

// A refusal: the problem's fields, and with 409 and 412 the record as it is.
export class Problem extends Error {
  constructor(status, fields, tag) {
    super(fields.detail || fields.title || `The server answered ${status}.`);
    this.status = status;
    this.kind = (fields.type || "").replace("urn:once:problem:", "");
    this.record = fields.record || null;
    this.tag = tag;
  }
}

// No answer came: what was asked may have been done.
export class Lost extends Error {}

// Integers that a double cannot hold become their digits, so that none is shown rounded.
const exact = (key, value, context) =>
  typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value) && context?.source
    ? context.source : value;

let ahead_ms = 0, date_ms = 0;
// When the server sent its last answer, by its own clock: the beginning of that second. 0: it does not say.
export const answered_at = () => date_ms;
// Now by the server's clock, which is what the records' times were compared with. It tells whole seconds only.
export const now = () => Date.now() + ahead_ms;
const learn_clock = (date) => {
  date_ms = Date.parse(date);
  const ahead = date_ms + 500 - Date.now();
  ahead_ms = Math.abs(ahead) > 2000 ? ahead : 0;
};

let when_ended = () => {};
// `ended` is called when the server no longer knows the session.
export const on_session_end = (ended) => { when_ended = ended; };
export const has_half = () => localStorage.getItem(half_name) !== null;
export const forget_half = () => localStorage.removeItem(half_name);

async function fetch_api(path, { method = "GET", body, tag, signal, last_id } = {}) {
  const headers = {};
  const half = localStorage.getItem(half_name);
  if (half !== null) headers["Once-Session"] = half;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (tag !== undefined) headers["If-Match"] = tag;
  if (last_id !== undefined) headers["Last-Event-ID"] = last_id;
  let answer;
  try {
    answer = await fetch(new URL(path, base), {
      method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body), cache: "no-store",
      credentials: "same-origin", redirect: "error",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Lost("The server does not answer.");
  }
  if (answer.headers.get("Date")) learn_clock(answer.headers.get("Date"));
  return answer;
}

// {body, tag} of an answer that says yes. Throws Problem or Lost.
export async function call(path, options) {
  const answer = await fetch_api(path, options);
  const tag = answer.headers.get("ETag");
  let text;
  try {
    text = await answer.text();
  } catch {
    throw new Lost("The server's answer broke off.");
  }
  let body = null;
  try {
    body = text === "" ? null : JSON.parse(text, exact);
  } catch {
    if (answer.ok) throw new Lost("The server's answer is no JSON.");
  }
  if (answer.ok) return { body, tag };
  end_session_with(answer, path);
  throw new Problem(answer.status, body || {}, tag);
}

function end_session_with(answer, path) {
  if (answer.status !== 401 || path === "session") return;
  forget_half();
  when_ended();
}

// A stream of events. Throws Problem or Lost.
export async function events(topics, last_id, signal) {
  const answer = await fetch_api(`events?watch=${topics}`, { last_id, signal });
  if (answer.ok) return answer;
  end_session_with(answer, "events");
  throw new Problem(answer.status, await answer.json().catch(() => ({})), null);
}

// What a link of the page can name, as bytes, for a file.
export async function bytes_of(path) {
  const answer = await fetch_api(path);
  if (!answer.ok) throw new Problem(answer.status, await answer.json().catch(() => ({})), null);
  return answer.blob();
}

// {name, role}. `secret` is {link} or {token}.
export async function sign_in(secret) {
  const { body } = await call("session", { method: "POST", body: secret });
  localStorage.setItem(half_name, body.half);
  return { name: body.name, role: body.role };
}

export async function sign_out() {
  try {
    await call("session", { method: "DELETE", body: {} });
  } finally {
    forget_half();
  }
}

export const session = async () => (await call("session")).body;

const query = (parameters) => {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
};
export const overview = (signal) => call("overview", { signal });
export const list = (parameters, signal) => call(`records${query(parameters)}`, { signal });
export const show = (key, include, signal) => call(`records/${key}?include=${include}`, { signal });
export const raw = (key, part) => bytes_of(`records/${key}/raw?part=${part}`);
// `name`: resolve, release, extend, or remove.
export const act = (key, name, body, tag) => name === "remove"
  ? call(`records/${key}`, { method: "DELETE", body, tag })
  : call(`records/${key}/${name}`, { method: "POST", body, tag });
// What the service says of an unknown operation. Nothing is changed.
export const ask_service = (key, tag) => call(`records/${key}/reconcile`, { method: "POST", body: {}, tag });
export const related = (key, after) => call(`records/${key}/related${query({ after })}`);
// A bulk act is a plan first, which changes nothing.
export const bulk_list = (signal) => call("bulk", { signal });
export const bulk = (id, signal) => call(`bulk/${id}`, { signal });
export const plan_bulk = (body) => call("bulk", { method: "POST", body });
export const start_bulk = (id, planned) => call(`bulk/${id}/start`, { method: "POST", body: { count: planned } });
export const stop_bulk = (id) => call(`bulk/${id}/stop`, { method: "POST", body: {} });
export const acts = (parameters, signal) => call(`acts${query(parameters)}`, { signal });
