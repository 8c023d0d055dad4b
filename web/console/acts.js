// The dialog of an act: reason, what it needs, what it would do, and what became of it.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import * as api from "./api.js";
import { act_words, acts_for, word } from "./words.js";
import { local, name_of, plain, scope_of, to_base64 } from "./format.js";
import { Copy, Dialog, use_sending } from "./parts.js";
import { command_for } from "./command.js";
import { http_answer, http_type, run_result, run_type } from "./encodings.js";

const request_names = { complete: "resolve", fail: "resolve", release: "release", extend: "extend", remove: "remove", reconcile: "reconcile" };
// What the service says is taken by resolving.
export const request_of = (act, form) => (form.reconciled ? "resolve" : request_names[act]);

// The scope of a request: "shop/POST /charges CLIENT".
const is_of_http = /(^|\/)[A-Z]+ \/\S* \S+$/;

// What kind of result the callers of this record expect, by what the service says, or who held it.
function likely_kind(record) {
  if (record.service?.says === "done") return "reconciled";
  if (record.result?.content_type === run_type || /\bonce run\b/.test(record.holder)) return "run";
  if (record.result?.content_type === http_type || is_of_http.test(scope_of(record))) return "http";
  return "plain";
}

export const first_form = (act, record) => ({
  reason: "", force: false, any_payload: false, is_empty: false, retention: "", by: act === "extend" ? "10m" : "", on_lapse: "",
  kind: likely_kind(record), result: "", content_type: likely_kind(record) === "run" ? "" : "application/json",
  exit_code: "0", http_status: "200", code: "", message: "", says: record.service?.says,
  reconciled: (act === "fail" && record.service?.says === "failed") || (act === "release" && record.service?.says === "not_done"),
});

function result_of(form) {
  if (form.kind === "run") {
    return { text_base64: to_base64(run_result(Number(form.exit_code), form.result)), content_type: run_type };
  }
  if (form.kind === "http") {
    return { text_base64: to_base64(http_answer(form.http_status, form.content_type, form.result)), content_type: http_type };
  }
  if (!form.result) return undefined;
  return form.content_type ? { text: form.result, content_type: form.content_type } : { text: form.result };
}

// An answer without a body, or no result at all, is what a mistake looks like: a client that pays would get it.
const gives_nothing = (act, form) => act === "complete" && form.result === ""
  && (form.kind === "plain" || (form.kind === "http" && !["204", "205", "304"].includes(form.http_status.trim())));

// What has to be said before it is sent, or null: {text, field}.
export const lacking = (act, form) => (gives_nothing(act, form) && !form.is_empty
  ? { text: `Give what its callers get, or say that it is empty: nothing was sent.`, field: "is_empty" } : null);

export function body_of(act, form) {
  const body = { reason: form.reason };
  if (act === "complete") {
    body.as = "completed";
    const result = result_of(form);
    if (form.kind === "reconciled") body.reconciled = true;
    else if (result) body.result = result;
  }
  if (act === "fail") {
    body.as = "failed";
    if (form.reconciled) body.reconciled = true;
    else if (form.code) body.code = form.code;
    if (form.message && !form.reconciled) body.message = form.message;
  }
  if (act === "release" && form.reconciled) {
    body.as = "released";
    body.reconciled = true;
  }
  if (act === "extend") {
    if (form.on_lapse) body.on_lapse = form.on_lapse;
    else body.by = form.by;
  }
  if (form.retention && act !== "remove" && (act !== "extend" || form.on_lapse === "takeover")) body.retention = form.retention;
  if (form.any_payload && act === "release") body.any_payload = true;
  if (form.force && act !== "extend") body.force = true;
  return body;
}

const most_pages = 16;  // Of 1 MiB of an audit log each.

// What the server has noted under an act's id: its outcome, null if that is not noted yet, "unseen" if the server was
// not asked for it, or "forgotten" if it cannot tell: its log does not go back to `sent_at`, by its clock, or is too long.
async function noted_outcome(key, id, sent_at) {
  for (let after, pages = 0; pages < most_pages; ++pages) {
    const { body } = await api.acts({ key, id, limit: 1, after });
    if (body.acts.length) return body.acts[0].outcome;
    if (!body.next) return body.since && Date.parse(body.since) < sent_at ? "unseen" : "forgotten";
    after = body.next;
  }
  return "forgotten";
}

// The history keeps 256 bytes of a reason, and of what the service says behind it.
const is_reason = (kept, reason) => kept === reason || kept.startsWith(`${reason}; the service says`)
  || (new TextEncoder().encode(kept).length > 240 && `${reason}; the service says`.startsWith(kept.replace(/(\.\.\.|\u2026)$/, "")));

// Whether an act whose answer was lost was done: what the server has noted under its id. If the server itself does not
// know, or does not know any more, the record tells: a new entry in its history, or that it is removed. `seen`: the
// record before it.
async function what_became(act, key, seen, { id, sent_at, reason, who }) {
  const outcome = await noted_outcome(key, id, sent_at);
  if (act === "remove" && outcome === "done") return { done: true };
  const by_record = ["in_doubt", "forgotten", null].includes(outcome);
  let now;
  try {
    now = await api.show(key, "");
  } catch (problem) {
    if (act === "remove" && by_record && problem.status === 404) return { done: true };
    throw problem;
  }
  const ours = (record) => record.history.filter((entry) => entry.attempt === 0 && entry.who === who && is_reason(entry.why, reason)).length;
  const done = outcome === "done" || (by_record && act !== "remove" && ours(now.body) > ours(seen));
  if (!done && outcome === null) throw new Error("how it ended is not noted yet.");
  return { done, same: now.body.owner === seen.owner && now.body.revision === seen.revision, ...now };
}

// The server's message as a sentence.
const sentence = (text) => plain(text).replace(/^./, (first) => first.toUpperCase()).replace(/[:;,]$/, ".");

// What a dry run says, beside the change of state.
const would = ({ text, refused }) => sentence(refused ? text : text.replace(/^dry run[,:]? (?:this would be written[:;,]?)? */, ""));

const compared = [
  ["State", (record) => word(record.standing) + (record.overdue ? ", overdue" : "")],
  ["Attempt", (record) => String(record.attempt)],
  ["Holder", (record) => plain(record.holder)],
  ["Lease until", (record) => record.lease_until && local(record.lease_until)],
  ["Expires", (record) => record.expires_at && local(record.expires_at)],
  ["Result", (record) => record.result ? `${record.result.size} bytes` : "none"],
  ["Failure", (record) => record.failure && plain(`${record.failure.code}: ${record.failure.message}`)],
  ["Last note", (record) => plain(record.note)],
  ["Revision", (record) => String(record.revision)],
];

function Both({ seen, now }) {
  const rows = compared.map(([title, value]) => [title, value(seen) || "none", value(now) || "none"])
    .filter(([, before, after]) => before !== after);
  return html`<table class="plain-table both"><caption>It changed while you looked.</caption>
    <thead><tr><th scope="col"><span class="sr">What</span></th><th scope="col">You saw</th><th scope="col">It is now</th></tr></thead>
    <tbody>${rows.map(([title, before, after]) => html`<tr><th scope="row">${title}</th><td>${before}</td><td>${after}</td></tr>`)}</tbody>
  </table>`;
}

export const Field = ({ label, hint, children, id }) => html`<div class="field"><label for=${id}>${label}</label>${children}
  ${hint && html`<span class="muted" id=${`${id}-hint`}>${hint}</span>`}</div>`;

const Check = ({ form, set, member, label }) => html`<label class="check"><input type="checkbox" name=${member} checked=${form[member]}
  onChange=${set(member)} />${label}</label>`;

// What an act asks for: the reason first. `live`: what it is done to has a holder who may still work.
export function ActFields({ act, form, set, live }) {
  const Text = (member, label, extra = {}, hint) => html`<${Field} label=${label} hint=${hint} id=${`act-${member}`}>
    <input id=${`act-${member}`} name=${member} value=${form[member]} onInput=${set(member)} autocomplete="off"
      aria-describedby=${hint ? `act-${member}-hint` : undefined} ...${extra} /><//>`;
  return html`
    <${Field} label="Reason" hint="Kept in the record, with your name" id="act-reason">
      <input id="act-reason" name="reason" value=${form.reason} onInput=${set("reason")} required autocomplete="off"
        aria-describedby="act-reason-hint" placeholder="in the bank's ledger, INC-88" /><//>
    ${act === "complete" && html`
      <div class="fields">
        <${Field} label="Its callers expect" id="act-kind"><select id="act-kind" value=${form.kind}
          onChange=${set("kind")}>
          ${(form.says === "done" || form.kind === "reconciled") && html`<option value="reconciled" selected=${form.kind === "reconciled"}>what the service says</option>`}
          <option value="run" selected=${form.kind === "run"}>the output of once run</option>
          <option value="http" selected=${form.kind === "http"}>an HTTP answer</option>
          <option value="plain" selected=${form.kind === "plain"}>other bytes, or none</option>
        </select><//>
        ${form.kind === "run" && Text("exit_code", "Exit code", { inputmode: "numeric" })}
        ${form.kind === "http" && Text("http_status", "Status", { inputmode: "numeric" })}
        ${(form.kind === "http" || form.kind === "plain") && Text("content_type", "Content type")}
      </div>
      ${form.kind !== "reconciled" && html`<${Field} label=${form.kind === "run" ? "Standard output" : form.kind === "http" ? "Body" : "Result"} id="act-result">
        <textarea id="act-result" rows="4" class="mono" spellcheck=${false} value=${form.result} onInput=${set("result")} /><//>`}
      ${gives_nothing(act, form) && html`<${Check} form=${form} set=${set} member="is_empty"
        label=${form.kind === "http" ? "An empty response, on purpose" : "Its callers get nothing, on purpose"} />`}`}
    ${act === "fail" && form.says === "failed" && html`<${Check} form=${form} set=${set} member="reconciled" label="The failure that the service tells" />`}
    ${act === "fail" && !form.reconciled && html`<div class="fields">${Text("code", "Code", {}, "For programs")}
      ${Text("message", "Message", {}, "For people")}</div>`}
    ${act === "extend" && html`<div class="fields">
      ${!form.on_lapse && Text("by", "How much longer", {}, "As in 10m, 24h, 7d")}
      ${live && html`<${Field} label="What to change" id="act-on_lapse"><select id="act-on_lapse" onChange=${set("on_lapse")}>
        <option value="">the lease</option>
        <option value="takeover">when it lapses: take over</option>
        <option value="hold">when it lapses: hold</option></select><//>`}
      ${form.on_lapse === "takeover" && Text("retention", "Keep the record for", { placeholder: "24h" }, "As in 24h, 7d, never")}
    </div>`}
    ${["complete", "fail", "release"].includes(act) && html`<div class="fields">
      ${Text("retention", act === "release" ? "Keep the record for" : "Replay it for",
        { placeholder: (act === "complete" && form.kind === "reconciled") || form.reconciled ? "as configured" : "24h" }, "As in 24h, 7d, never")}</div>`}
    ${act === "release" && form.says === "not_done" && html`<${Check} form=${form} set=${set} member="reconciled" label="Only if the service still says: not done, within 10 minutes" />`}
    ${act === "release" && html`<${Check} form=${form} set=${set} member="any_payload" label="The next caller may send another payload" />`}`;
}

export function ActDialog({ act, record: opened, tag: opened_tag, session, store, onClose, onDone }) {
  const [seen, set_seen] = useState({ record: opened, tag: opened_tag });
  const [form, set_form] = useState(() => first_form(act, opened));
  const [preview, set_preview] = useState(null);
  const [tries, set_tries] = useState(0);         // Of the dry run, while no answer comes.
  const [busy, send] = use_sending();
  const [error, set_error] = useState(null);      // {text}
  const [changed, set_changed] = useState(null);  // {record, tag}: as it is, after 412
  const fields = useRef();
  const { name, means } = act_words[act];
  const key = opened.stored_key_hex;
  const live = seen.record.standing === "running";
  const title = `${name} ${name_of(opened)}`;

  const set = (member) => (event) => {
    const { type, checked, value } = event.currentTarget;
    set_form((old) => ({ ...old, [member]: type === "checkbox" ? checked : value }));
    set_error(null);
  };

  // What it would do, by a dry run of exactly this.
  const body = JSON.stringify(body_of(act, { ...form, reason: form.reason.trim() || "a dry run" }));
  useEffect(() => {
    if (changed || busy) return undefined;  // After the act itself, it would only meet what that has changed.
    let stale = false, again;
    const timer = setTimeout(async () => {
      try {
        const answer = await api.act(key, request_of(act, form), { ...JSON.parse(body), dry_run: true }, seen.tag);
        if (!stale) set_preview({ text: answer.body.message, record: answer.body.record, remark: answer.body.remark });
      } catch (problem) {
        if (stale) return;
        if (problem.status === 412 && problem.record) set_changed({ record: problem.record, tag: problem.tag });
        else if (problem.status === 503 || problem instanceof api.Lost) {
          set_preview({ text: problem.message, refused: true, title: "Not known" });
          again = setTimeout(() => set_tries((count) => count + 1), 2000);
        } else set_preview({ text: problem.message, refused: true, may_force: problem.kind === "refused" });
      }
    }, 250);
    return () => {
      stale = true;
      clearTimeout(timer);
      clearTimeout(again);
    };
  }, [body, seen.tag, changed, tries, busy]);

  useEffect(() => { fields.current.elements.reason.focus(); }, []);

  // True: it was done.
  const ask = async (reason) => {
    set_error(null);
    const id = crypto.randomUUID();
    const sent_at = api.answered_at();
    try {
      const answer = await api.act(key, request_of(act, form), { ...body_of(act, { ...form, reason }), act: id }, seen.tag);
      onDone({ text: sentence(answer.body.message), remark: answer.body.remark, removed: act === "remove" });
      return true;
    } catch (problem) {
      if (problem.status === 412) {
        if (problem.record) set_changed({ record: problem.record, tag: problem.tag });
        else set_error({ text: problem.message });
      } else if (problem.status === 503 || problem instanceof api.Lost) {
        set_error({ text: `${problem.message} It may have been done: looking …` });
        try {
          const now = await what_became(act, key, seen.record, { id, sent_at, reason, who: session.name });
          if (now.done) {
            onDone({ text: "The answer was lost, but it was done.", removed: act === "remove" });
            return true;
          }
          if (now.same) set_error({ text: `${problem.message} The record is as it was: it was not done.` });
          else set_changed({ record: now.body, tag: now.tag });
        } catch (again) {
          set_error({ text: `${problem.message} It may have been done, and the record cannot be read: ${again.message}` });
        }
      } else {
        set_error({ text: problem.message, may_force: problem.kind === "refused" });
      }
      return false;
    }
  };
  const submit = (event) => {
    event.preventDefault();
    const reason = form.reason.trim();
    const missing = lacking(act, form);
    if (reason && missing) {
      set_error(missing);
      fields.current.elements[missing.field].focus();
      return;
    }
    if (reason) {
      send(() => ask(reason));
      return;
    }
    set_error({ text: "Say why: the reason is kept in the record." });
    fields.current.elements.reason.focus();
  };

  const look_again = () => {
    set_seen(changed);
    set_changed(null);
    set_preview(null);
    fields.current.elements.reason.focus();
  };

  const fitting = [...acts_for(seen.record).first, ...acts_for(seen.record).more];
  const show_force = act !== "extend" && (live || form.force || preview?.may_force || error?.may_force);

  return html`<${Dialog} title=${title} onClose=${onClose}>
    <form ref=${fields} onSubmit=${submit} novalidate>
      <p>${act === "extend" && opened.standing !== "running" ? "Every call gets what is stored for longer." : means}</p>
      <${ActFields} act=${act} form=${form} set=${set} live=${live} />
      ${show_force && html`<${Check} form=${form} set=${set} member="force" label=${live ? "Although its holder may still work on it: what it writes is refused from then on"
        : act === "remove" || !seen.record.result ? "All the same" : "Although it has a stored result, which is lost"} />`}

      ${changed ? html`<div class="notice is-warning" role="alert"><${Both} seen=${seen.record} now=${changed.record} />
          <button type="button" onClick=${look_again}>Go on with what it is now</button></div>`
        : error ? html`<p class="notice is-bad" role="alert">${plain(error.text)}</p>`
        : !fitting.includes(act) ? html`<p class="notice is-warning">It is ${word(seen.record.standing)} now: look whether this still fits.</p>`
        : null}
      <div class=${`preview ${preview?.refused ? "is-bad" : ""}`} aria-live="polite">
        <span class="preview-title">${preview?.title || (preview?.refused ? "Refused" : "Would do")}</span>
        <span>${changed || !preview ? "…" : html`${would(preview)}${preview.remark ? ` ${plain(preview.remark)}` : ""}`}
          ${!changed && preview?.record && !preview.refused ? html`<span class="change"><span class=${`word is-${seen.record.standing}`}>
            ${word(seen.record.standing)}</span> → <span class=${`word is-${preview.record.standing}`}>${word(preview.record.standing)}</span>${
            preview.record.expires_at ? `, kept until ${local(preview.record.expires_at)}` : ""}${
            preview.record.lease_until ? `, lease until ${local(preview.record.lease_until)}` : ""}</span>` : ""}</span>
      </div>
      ${form.kind !== "reconciled" && !form.reconciled && html`<details class="by-hand"><summary>Command line</summary>
        <${ByHand} command=${command_for(act, seen.record, { ...form, reason: form.reason.trim() }, { who: session.name, store })} /></details>`}
      <div class="buttons">
        <button type="button" onClick=${onClose}>Cancel</button>
        <button class=${act === "remove" ? "primary is-danger" : "primary"} disabled=${busy || !!changed}>
          ${busy ? "Doing it …" : title}</button>
      </div>
    </form>
  <//>`;
}

export const ByHand = ({ command, name }) => html`<div class="command"><code tabindex="0" role="group"
  aria-label=${name || "Command"}>${command}</code><${Copy} text=${command} name=${name && `Copy: ${name}`} /></div>`;
