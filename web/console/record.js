// One record: what it is, its proof, its time line, its payloads on demand, and what can be done.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import * as api from "./api.js";
import { use_poll } from "./live.js";
import { to_acts, to_record, to_records, to_client } from "./router.js";
import { client_in, short_client } from "./client.js";
import { Overdue, Sentence, Standing, act_words, acts_for, says_words, since, word } from "./words.js";
import { Time, age, count, field, from_base64, hex_of, name_of, plain, plural, scope_of } from "./format.js";
import { Copy, Failed, Waiting, use_sending } from "./parts.js";
import { More } from "./more.js";
import { ActDialog, ByHand, first_form } from "./acts.js";
import { command_for } from "./command.js";
import { TimeLine } from "./timeline.js";
import { Payload, kind_of } from "./payload.js";

const bytes_of = (object, name) => typeof object[name] === "string" ? new TextEncoder().encode(object[name])
  : typeof object[`${name}_base64`] === "string" ? from_base64(object[`${name}_base64`]) : null;

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// Hidden until it is asked for. `tag` says which version is shown.
function Part({ part, title, about, record, tag, empty }) {
  const [shown, set_shown] = useState(null);  // {record, tag}
  const [error, set_error] = useState(null);
  const [busy, set_busy] = useState(false);
  const show = async () => {
    set_busy(true);
    set_error(null);
    try {
      const answer = await api.show(record.stored_key_hex, part);
      set_shown({ record: answer.body, tag: answer.tag });
    } catch (problem) {
      set_error(problem);
    }
    set_busy(false);
  };
  const download = async () => {
    try {
      save(await api.raw(record.stored_key_hex, part), `${part}-${record.key_hash}`);
    } catch (problem) {
      set_error(problem);
    }
  };
  return html`<section class="part" aria-labelledby=${`part-${part}`}>
    <div class="part-head">
      <h3 id=${`part-${part}`}>${title}</h3>
      <span class="muted">${about}</span>
      ${!empty && html`<span class="part-buttons">
        <button type="button" class="show" data-part=${part} aria-expanded=${!!shown} disabled=${busy}
          aria-label=${`${shown ? "Hide" : "Show"} ${part}`}
          onClick=${() => (shown ? set_shown(null) : show())}>${shown ? "Hide" : "Show"}</button>
        ${part !== "steps" && html`<button type="button" class="quiet" aria-label=${`Save ${part} as a file`}
          onClick=${download}>Save</button>`}</span>`}
    </div>
    ${error && html`<${Failed} error=${error} />`}
    ${shown && shown.tag !== tag && html`<p class="notice is-warning">The record changed since this was shown.
      <button type="button" onClick=${show}>Show it as it is</button></p>`}
    ${shown && html`<${Shown} part=${part} record=${shown.record} />`}
  </section>`;
}

function Shown({ part, record }) {
  const problems = (record.problems || []).map((problem) => html`<p class="notice is-bad">${plain(problem)}</p>`);
  if (part === "steps") {
    return html`${problems}${record.steps.map((step) => html`<h4>${field(step, "name")}</h4>
      ${bytes_of(step, "result") ? html`<${Payload} bytes=${bytes_of(step, "result")} />` : html`<p class="muted">Not known.</p>`}`)}`;
  }
  if (part === "input") {
    const bytes = bytes_of(record, "input");
    return html`${problems}${bytes || record.result?.run ? html`<${Payload} bytes=${bytes} />` : html`<p class="muted">It was not kept.</p>`}
      ${bytes && bytes.length < record.input_bytes && html`<p class="muted">${count(bytes.length)} of
        ${count(record.input_bytes)} bytes were kept.</p>`}`;
  }
  const bytes = record.result && bytes_of(record.result, "text");
  return html`${problems}${bytes || record.result?.run ? html`<${Payload} bytes=${bytes} content_type=${record.result.content_type} run=${record.result.run} />`
    : html`<p class="muted">Its bytes are not in the store${record.result?.location ? html`: <span class="mono">${plain(record.result.location)}</span>` : ""}.</p>`}`;
}

function Facts({ record }) {
  const facts = [
    ["Results stored", record.result ? "1" : "0"],
    ["Attempts", count(record.attempt)],
    ["Token", html`<span class="mono">${String(record.token)}</span>`],
    ["Holder", record.holder && html`<span class="mono">${plain(record.holder)}</span>`],
    ["Claimed first", record.created_at && html`<${Time} at=${record.created_at} />`],
    ["Lease until", record.lease_until && html`<${Time} at=${record.lease_until} />`],
    ["Expected until", record.expected_until && html`<${Time} at=${record.expected_until} />`],
    ["Ended", record.finished_at && html`<${Time} at=${record.finished_at} />`],
    ["Expires", record.expires_at ? html`<${Time} at=${record.expires_at} />` : "never"],
    ["When it lapses", record.state === "in_progress" && (record.on_lapse === "hold" ? "hold: an operator decides" : "the next call takes over")],
    ["Failure", record.failure && html`<span class="mono">${plain(record.failure.code)}</span>${record.failure.message
      ? ` ${plain(record.failure.message)}` : ""}`],
    ["Note", plain(record.note)],
  ];
  const evidence = [
    ["Label", plain(record.label)], ["Owner", record.owner], ["Revision", String(record.revision)],
    ["Fingerprint", record.fingerprint || "not checked"], ["Trace", record.trace_id], ["Span", record.span_id],
    ["Stored key", record.stored_key_hex], ["Key in logs", record.key_hash], ["SHA-256 of the result", record.result?.sha256],
  ];
  return html`<dl class="facts">${facts.filter(([, value]) => value).map(([title, value]) => html`<div><dt>${title}</dt><dd>${value}</dd></div>`)}</dl>
    <details><summary>Evidence</summary><dl class="evidence">${evidence.filter(([, value]) => value)
      .map(([title, value]) => html`<dt>${title}</dt><dd class="mono">${value}</dd>`)}</dl></details>`;
}

// What the service says of it, and the question.
function Service({ record, tag, operator, reload }) {
  const [error, set_error] = useState(null);
  const [busy, send] = use_sending();
  const { asks, says, why, asked_at } = record.service || {};
  if (!says && !(asks && operator)) return null;
  const ask = () => send(async () => {
    set_error(null);
    try {
      await api.ask_service(record.stored_key_hex, tag);
    } catch (problem) {
      set_error(problem);
    }
    await reload();
  });
  return html`<div class="notice" role="status">${says && html`<b>The service says: ${says_words[says]}.</b> ${plain(why)} <span class="muted"><${Time} at=${asked_at} /></span> `}
    ${asks && operator && html`<button type="button" disabled=${busy} onClick=${ask}>${busy ? "Asking …" : says ? "Ask it again" : "Ask the service"}</button>`}
    ${error && html`<${Failed} error=${error} />`}</div>`;
}

const Links = ({ records, none }) => (records.length ? records.map((one) => html`<div><a class="mono" href=${to_record(one.stored_key_hex)}>${name_of(one)}</a>${" "}
  <span class="muted">${scope_of(one) || "no scope"}, ${word(one.standing)}</span></div>`) : none);

// Where else to look: searched on demand, as it reads much.
function Leads({ record, label }) {
  const [found, set_found] = useState(null);
  const [error, set_error] = useState(null);
  const [busy, send] = use_sending();
  const search = () => send(async () => {
    set_error(null);
    try {
      const { body } = await api.related(record.stored_key_hex, found?.next);
      set_found(found ? { ...body, same_payload: [...found.same_payload, ...body.same_payload], searched: found.searched + body.searched } : body);
    } catch (problem) {
      set_error(problem);
    }
  });
  return html`<section aria-labelledby="leads"><h2 id="leads">Leads</h2>
    ${label && html`<p><a href=${to_records({ q: label, list: "1" })}>${plain(label)} in other scopes</a></p>`}
    ${client_in(record) && html`<p><a href=${to_client(client_in(record))}>All records of its client ${short_client(client_in(record))}</a></p>`}
    ${found && html`<dl class="facts">
      <div><dt>Same key</dt><dd><${Links} records=${found.same_key} none=${`Not in ${plural(found.scopes_searched, "other scope", "other scopes")} with open operations.`} /></dd></div>
      <div><dt>Same payload</dt><dd>${found.same_payload === null ? "Its payload is not checked." : html`<${Links} records=${found.same_payload} none="Under no other key." />
        <span class="muted">${plural(found.searched, "record", "records")} of the scope read, of <${Time} at=${found.from} /> to <${Time} at=${found.until} />${found.next ? ", not all" : ""}</span>`}</dd></div>
      ${found.downstream.map((one) => html`<div><dt>Sent on as ${plain(one.name)}</dt><dd class="mono">${one.key} <${Copy} text=${one.key} name=${`Copy the key of ${plain(one.name)}`} /></dd></div>`)}
    </dl>`}
    ${(!found || found.next) && html`<button type="button" disabled=${busy} onClick=${search}>${busy ? "Searching …" : found ? "Search on" : "Search for leads"}</button>`}
    ${error && html`<${Failed} error=${error} />`}</section>`;
}

const example_form = (act, record) => (act === "complete" ? { ...first_form(act, record), content_type: "" } : { reason: "", by: act === "extend" ? "10m" : "" });

// Whether an event says of the record what is shown. `shown`: null if there is none. What the service says changes no tag.
const is_known = (shown, told) => shown === null ? told.tag === null
  : shown.tag === told.tag && shown.body.standing === told.standing && shown.body.overdue === told.overdue
    && JSON.stringify(shown.body.service ?? null) === JSON.stringify(told.service);

export function Record({ route, session, store, act: opened, on_act, say, said }) {
  const key = route.key;
  const poll = use_poll(key, (signal) => api.show(key, "", signal), { topic: key, is_known });
  const head = useRef();
  useEffect(() => {
    head.current?.focus();
    document.title = "once";
  }, [key]);
  const record = poll.value?.body;
  const tag = poll.value?.tag;
  const gone = poll.error?.status === 404;
  // An act may take its own button away: the focus must not fall out of the page.
  useEffect(() => { if (document.activeElement === document.body) head.current?.focus(); }, [tag, opened]);
  useEffect(() => { if (record) document.title = `${name_of(record)}, ${word(record.standing)} – once`; }, [record?.stored_key_hex, record?.standing]);

  if (!record) return html`<main><h1 tabindex="-1" ref=${head}>Record</h1>
    ${said && html`<p class="notice is-good" role="status">${plain(said.text)} ${plain(said.remark)}</p>`}
    ${gone ? html`<p class="notice">No record has this key. It may have expired, or an operator removed it: the next call runs
        the operation.</p><p class="mono wrap">${key}</p><p><a href=${to_records({})}>All records</a></p>`
      : poll.error ? html`<${Failed} error=${poll.error} />` : html`<${Waiting} rows=${6} />`}</main>`;

  const acts = acts_for(record);
  const operator = session.role === "operator";
  const who = session.name;
  const at = since(record);
  const label = record.label || (typeof record.key === "string" ? record.key : "");
  const done = (result) => {
    on_act(null);
    say(result);
    poll.reload();
  };
  return html`<main class=${gone ? "record is-gone" : "record"}>
    <p class="crumb"><a href=${to_records(scope_of(record) ? { scope: record.scope || undefined } : {})}>${scope_of(record) || "no scope"}</a></p>
    <div class="record-head">
      <h1 tabindex="-1" ref=${head} class="mono">${name_of(record)}</h1>
      <p class="standing-line"><${Standing} record=${record} />${at && html` <span class="muted">for ${age(at)}</span>`}</p>
      <div class="acts" role="group" aria-label="Acts">
        ${operator && !gone && html`${acts.first.map((act, index) => html`<button type="button" key=${act} onClick=${() => on_act(act)}
          class=${index === 0 ? "primary" : ""}>${act_words[act].name} …</button>`)}
          <${More} acts=${acts.more} onAct=${on_act} />`}
        <${Copy} what="Link" name="Copy link" text=${`${location.origin}${location.pathname}${to_record(key)}`} />
      </div>
    </div>
    ${said && html`<p class="notice is-good" role="status">${plain(said.text)} ${plain(said.remark)}</p>`}
    ${gone ? html`<p class="notice is-warning" role="alert">${said?.removed ? "It is removed." : "It was removed while you looked."}
        This is how it was.</p>` : poll.error && html`<${Failed} error=${poll.error} />`}
    <p class="sentence"><${Sentence} record=${record} /></p>
    <${Overdue} record=${record} />
    ${!gone && html`<${Service} key=${tag} record=${record} tag=${tag} operator=${operator} reload=${poll.reload} />`}
    ${route.query.searched && html`<p class="notice">The first match. ${count(route.query.searched)} records were read, not all.${" "}
      <a href=${to_records({ q: route.query.q, list: "1" })}>Search on</a></p>`}
    <div class="columns">
      <section aria-labelledby="line"><h2 id="line">Time line</h2><${TimeLine} record=${record} />
        <p><a href=${to_acts({ key })}>Who acted on it, or looked at its payloads</a></p></section>
      <section aria-labelledby="proof"><h2 id="proof">Proof</h2><${Facts} record=${record} /></section>
    </div>
    <section aria-labelledby="payloads"><h2 id="payloads">Payloads <span class="muted">hidden until you ask for them</span></h2>
      <${Part} key=${`${key}-result`} part="result" title="Result" record=${record} tag=${tag} empty=${!record.result}
        about=${record.result ? `${plural(record.result.size, "byte", "bytes")} ${kind_of(record.result.content_type)}${
          record.result.placement === "inlined" ? "" : `, ${record.result.placement}`}` : "none is stored"} />
      <${Part} key=${`${key}-input`} part="input" title="Input" record=${record} tag=${tag} empty=${!record.input_bytes}
        about=${record.input_bytes ? plural(record.input_bytes, "byte", "bytes") : "was not kept"} />
      <${Part} key=${`${key}-steps`} part="steps" title="Steps" record=${record} tag=${tag} empty=${!record.steps.length}
        about=${record.steps.length ? record.steps.map((step) => field(step, "name")).join(", ") : "none"} />
    </section>
    ${!gone && html`<${Leads} key=${`leads ${key}`} record=${record} label=${label} />`}
    ${operator && !gone && html`<section aria-labelledby="by-hand"><h2 id="by-hand">Command line</h2>
      ${[...acts.first, ...acts.more].map((act) => html`<${ByHand} key=${act} name=${act_words[act].name}
        command=${command_for(act, record, { ...example_form(act, record), force: act === "release" && record.standing !== "unknown" && record.standing !== "lapsed" }, { who, store })} />`)}
    </section>`}
    ${opened && operator && html`<${ActDialog} key=${opened} act=${opened} record=${record} tag=${tag} session=${session} store=${store}
      onClose=${() => on_act(null)} onDone=${done} />`}
  </main>`;
}
