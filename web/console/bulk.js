// Bulk acts: an act on many records is a plan first, then started with its count, then told of while it goes on.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import * as api from "./api.js";
import { use_poll } from "./live.js";
import { go, to_acts, to_bulk, to_record, to_records } from "./router.js";
import { Standing, act_words, says_words, word } from "./words.js";
import { Time, age, count, field, name_of, plain, plural } from "./format.js";
import { ActFields, ByHand, Field, body_of, first_form, lacking, request_of } from "./acts.js";
import { command_for_many } from "./command.js";
import { Dialog, Failed, Waiting, use_sending } from "./parts.js";
import { filter_of } from "./selection.js";
import { short_client } from "./client.js";

const goes_on = new Set(["counting", "running"]);

// complete, fail, release ...: the page's word for what is asked of the API.
const act_of = (bulk) => (bulk.act !== "resolve" ? bulk.act
  : { completed: "complete", failed: "fail", released: "release" }[bulk.as]);
const title_of = (bulk) => `${act_words[act_of(bulk)]?.name || bulk.act} ${bulk.act === "reconcile" ? "about " : ""}${bulk.count === null ? "operations"
  : plural(bulk.count, "operation", "operations")}`;
const means = (act) => (act === "complete" ? "They happened. Every call of each gets the one result that you give here."
  : act === "fail" ? "They failed, and shall not run again. Every call of each gets this failure."
  : act === "release" ? "They did not happen: the next call runs each of them. If one did happen, it happens twice."
  : act === "extend" ? "More time for each." : act === "reconcile" ? act_words.reconcile.means : "Forgets the records and their results: the operations can run again.");

// "unknown, scope pay".
const words_of = (bulk) => (bulk.filter ? Object.entries(bulk.filter).map(([name, value]) =>
  (name === "standing" ? word(value) : name === "q" ? `with “${plain(value)}”` : name === "reconciled" ? `service says ${says_words[value]}` : name === "client" ? `client ${short_client(value)}` : `${name} ${plain(value)}`)).join(", ")
  : plural(bulk.keys, "selected record", "selected records"));
// The list that shows just what it selects, if there is one.
const list_of = (bulk) => {
  const kept = filter_of(bulk.filter || {});
  return bulk.filter && Object.keys(kept).length === Object.keys(bulk.filter).length ? to_records(kept) : null;
};

const state_words = {
  counting: "reading what it would change", planned: "waits for its start", running: "under way", done: "done", stopped: "stopped",
  expired: "not started within 10 minutes", failed: "broke off",
};
const icons = { done: "completed", failed: "failed", running: "running", counting: "running", planned: "unknown" };
const BulkState = ({ bulk }) => html`<span class=${`state is-${icons[bulk.state] || "expired"}`}>${state_words[bulk.state] || bulk.state}</span>`;

const known = (number) => (number === null || number === undefined ? "not known" : count(number));

export function BulkDialog({ act, query, selection, matching, example, session, store, onClose }) {
  const first = selection.rows.size ? [...selection.rows.values()][0] : example;
  const [form, set_form] = useState(() => ({ ...first_form(act, first || {}),
    ...(act === "release" && { reconciled: query.reconciled === "not_done", says: query.reconciled }) }));
  const [error, set_error] = useState(null);
  const [busy, send] = use_sending();
  const fields = useRef();
  const { name } = act_words[act];
  const what = selection.all ? `all${matching ? ` ${matching}` : ""} that match` : plural(selection.rows.size, "operation", "operations");
  useEffect(() => { (fields.current.elements.reason || fields.current.querySelector(".primary")).focus(); }, []);
  const set = (member) => (event) => {
    const { type, checked, value } = event.currentTarget;
    set_form((old) => ({ ...old, [member]: type === "checkbox" ? checked : value }));
    set_error(null);
  };
  // True: it is planned.
  const plan = async (reason) => {
    set_error(null);
    const seen = [...selection.rows.values()];
    const chosen = selection.all ? { filter: filter_of(query) }
      : { keys: [...selection.rows.keys()], tags: seen.map(({ owner, revision }) => `"${owner}-${revision}"`) };
    try {
      const { body } = await api.plan_bulk({ act: request_of(act, form), ...chosen, ...body_of(act, { ...form, reason }) });
      selection.clear();
      go(to_bulk(body.id));
      return true;
    } catch (problem) {
      set_error(problem);
      return false;
    }
  };
  const submit = (event) => {
    event.preventDefault();
    const reason = form.reason.trim();
    const missing = lacking(act, form);
    if (missing && (reason || act === "reconcile")) {
      set_error(new Error(missing.text));
      fields.current.elements[missing.field].focus();
      return;
    }
    if (reason || act === "reconcile") {
      send(() => plan(reason));
      return;
    }
    set_error(new Error("Say why: the reason is kept in each record."));
    fields.current.elements.reason.focus();
  };
  const by_hand = act !== "reconcile" && !form.reconciled && command_for_many(act, selection.all ? { filter: filter_of(query) } : { records: [...selection.rows.values()] },
    { ...form, reason: form.reason.trim() }, { who: session.name, store });
  return html`<${Dialog} title=${`${name}${act === "reconcile" ? " about" : ""} ${what}`} onClose=${onClose}>
    <form ref=${fields} onSubmit=${submit} novalidate>
      <p>${form.kind === "reconciled" && act === "complete" ? "They happened. Every call of each gets what the service says of it." : means(act)}</p>
      ${act !== "reconcile" && html`<${ActFields} act=${act} form=${form} set=${set} live />`}
      ${error && html`<${Failed} error=${error} />`}
      ${by_hand && html`<details class="by-hand"><summary>Command line</summary><${ByHand} command=${by_hand} /></details>`}
      <p class="muted">A plan comes first: it says what would change, and what is refused.</p>
      <div class="buttons">
        <button type="button" onClick=${onClose}>Cancel</button>
        <button class="primary" disabled=${busy}>${busy ? "Planning …" : "Make the plan"}</button>
      </div>
    </form>
  <//>`;
}

const Leftovers = ({ title, rows, total, open }) => html`<details class="leftovers" open=${open}><summary>${title}</summary>
  <ul>${rows.map((one) => html`<li key=${one.stored_key_hex}><a class="mono" href=${to_record(one.stored_key_hex)}>${name_of(one)}</a>
    <span class="muted"> ${plain(one.text)}</span></li>`)}</ul>
  ${total > rows.length && html`<p class="muted">The first ${count(rows.length)} of ${count(total)}.</p>`}</details>`;

function Planned({ bulk }) {
  if (!bulk.planned?.length) return null;
  return html`<section aria-labelledby="planned"><h2 id="planned">Would be changed
      ${bulk.count > bulk.planned.length && html`<span class="muted">the first ${count(bulk.planned.length)} of ${count(bulk.count)}</span>`}</h2>
    <table class="cards planned"><thead><tr><th scope="col">State</th><th scope="col">Key</th><th scope="col">Scope</th></tr></thead>
      <tbody>${bulk.planned.map((one) => html`<tr key=${one.stored_key_hex}>
        <td><${Standing} record=${one} /></td>
        <td><a class="mono row-link" href=${to_record(one.stored_key_hex)}>${name_of(one)}</a></td>
        <td class="cell-scope mono">${field(one, "scope")}${one.service?.says
          && html` <span class="match">service: ${says_words[one.service.says]}, ${age(one.service.asked_at)} ago</span>`}</td></tr>`)}</tbody></table></section>`;
}

// Starts it, if its count is typed.
function Start({ bulk, reload, title }) {
  const [typed, set_typed] = useState("");
  const [error, set_error] = useState(null);
  const [busy, send] = use_sending();
  const input = useRef();
  const is_question = bulk.act === "reconcile";  // Nothing is changed.
  const ask = (request) => send(async () => {
    set_error(null);
    try {
      await request();
    } catch (problem) {
      set_error(problem.status === undefined || problem.status === 503
        ? new Error(`${problem.message} It may have started: this page says so as soon as it knows.`) : problem);
    }
    reload();
  });
  const submit = (event) => {
    event.preventDefault();
    if (!is_question && typed.replace(/\s/g, "") !== String(bulk.count)) {
      set_error(new Error(`Type ${bulk.count}, the number of records that it changes.`));
      input.current.focus();
      return;
    }
    ask(() => api.start_bulk(bulk.id, bulk.count));
  };
  return html`<form class="start" onSubmit=${submit} novalidate>
    ${!is_question && html`<${Field} label=${`Type ${bulk.count}`} hint="The number of records that it changes" id="bulk-count">
      <input id="bulk-count" ref=${input} inputmode="numeric" autocomplete="off" value=${typed} aria-describedby="bulk-count-hint"
        onInput=${(event) => { set_typed(event.currentTarget.value); set_error(null); }} /><//>`}
    ${error && html`<${Failed} error=${error} />`}
    <div class="buttons"><button type="button" disabled=${busy} onClick=${() => ask(() => api.stop_bulk(bulk.id))}>Cancel</button>
      <button class=${act_of(bulk) === "remove" ? "primary is-danger" : "primary"} disabled=${busy}>${title}</button></div>
  </form>`;
}

function Stop({ bulk, reload }) {
  const [error, set_error] = useState(null);
  return html`<button type="button" onClick=${async () => {
    set_error(null);
    try {
      await api.stop_bulk(bulk.id);
    } catch (problem) {
      set_error(problem);
    }
    reload();
  }}>Stop</button>${error && html`<${Failed} error=${error} />`}`;
}

// Those of its start come first, then the plan's.
const of_start = (bulk) => (bulk.left_alone || 0) + (bulk.failed || 0);
const plan_leftovers = (bulk) => (bulk.leftovers || []).slice(of_start(bulk));
const run_leftovers = (bulk) => (bulk.leftovers || []).slice(0, of_start(bulk));

function Progress({ bulk }) {
  const left = run_leftovers(bulk);
  return html`<section aria-labelledby="progress"><h2 id="progress">What was done</h2>
    <progress max=${bulk.count || 1} value=${(bulk.written || 0) + of_start(bulk)} aria-labelledby="progress" />
    <p class="sentence" role="status">${count(bulk.written || 0)} of ${count(bulk.count || 0)}${bulk.left_alone
      ? `, ${count(bulk.left_alone)} changed: left alone` : ""}${bulk.failed ? `, ${count(bulk.failed)} failed` : ""}</p>
    ${left.length > 0 && html`<${Leftovers} title="What was left alone" rows=${left} total=${of_start(bulk)} open />`}
  </section>`;
}

// What the service said, each with the list of those that it said it of.
const Says = ({ bulk }) => html`<dl class="facts">${Object.entries(bulk.says).map(([says, number]) => html`<div key=${says}>
  <dt>Service says ${says_words[says]}</dt><dd>${number ? html`<a href=${to_records({ ...filter_of(bulk.filter || {}), standing: "unknown", reconciled: says })}>${count(number)}</a>` : "0"}</dd></div>`)}</dl>`;

// While it goes on, an event has the numbers; what is listed is asked for at each change of state.
const from_event = (told, shown) => (shown && ["state", "left_alone", "failed"].every((name) => told[name] === shown.body[name]) ? { ...shown, body: { ...shown.body, ...told } } : undefined);

export function BulkPage({ id, session }) {
  const [ended, set_ended] = useState(false);
  const poll = use_poll(`bulk ${id}`, (signal) => api.bulk(id, signal), ended ? { repeat: false } : { topic: `bulk:${id}`, from_event });
  const head = useRef();
  const bulk = poll.value?.body;
  useEffect(() => { head.current?.focus(); }, []);
  useEffect(() => { if (bulk && !goes_on.has(bulk.state) && bulk.state !== "planned") set_ended(true); }, [bulk?.state]);
  // A button that was pressed may be gone: the focus must not fall out of the page.
  useEffect(() => { if (document.activeElement === document.body) head.current?.focus(); }, [bulk?.state]);
  const title = bulk ? title_of(bulk) : "Bulk act";
  useEffect(() => { document.title = `${title} – once`; }, [title]);

  if (!bulk) return html`<main><h1 tabindex="-1" ref=${head}>Bulk act</h1>
    ${poll.error?.status === 404 ? html`<p class="notice">No such bulk act. They are kept in memory: the program has ended since, or
        newer ones took its place. <a href=${to_acts({})}>Acts</a> may tell what it did.</p>`
      : poll.error ? html`<${Failed} error=${poll.error} />` : html`<${Waiting} rows=${4} />`}</main>`;
  const refused = plan_leftovers(bulk);
  const began = bulk.written !== null && !["counting", "planned", "expired"].includes(bulk.state) && bulk.count !== null;
  const operator = session.role === "operator";
  return html`<main class="bulk">
    <p class="crumb"><a href=${to_bulk()}>Bulk acts</a></p>
    <div class="page-head"><h1 tabindex="-1" ref=${head}>${title}</h1>
      <p>${list_of(bulk) ? html`<a href=${list_of(bulk)}>${words_of(bulk)}</a>` : words_of(bulk)}</p></div>
    <p role="status"><${BulkState} bulk=${bulk} /></p>
    <p class="sentence">${means(act_of(bulk))}</p>
    ${poll.error && html`<${Failed} error=${poll.error} />`}
    ${bulk.error && html`<p class="notice is-bad" role="alert">${plain(bulk.error)}</p>`}
    ${(bulk.remarks || []).map((remark) => html`<p class="notice is-warning">${plain(remark)}</p>`)}
    <dl class="facts">
      <div><dt>Changes</dt><dd>${known(bulk.count)}</dd></div>
      <div><dt>Refused</dt><dd>${known(bulk.refused)}</dd></div>
      <div><dt>Records read</dt><dd>${known(bulk.searched)}</dd></div>
      ${bulk.reason && html`<div><dt>Reason</dt><dd>“${plain(bulk.reason)}”</dd></div>`}
      <div><dt>By</dt><dd>${plain(bulk.who)}, <${Time} at=${bulk.made_at} /></dd></div>
    </dl>
    ${refused.length > 0 && html`<${Leftovers} title=${`What is refused: ${count(bulk.refused || refused.length)}`} rows=${refused} total=${bulk.refused || 0}
      open=${bulk.state === "planned" && refused.length <= 10} />`}
    ${bulk.bounded && html`<p class="notice is-warning">More than 10 000 records match. Narrow the filter, or do it in parts.</p>`}
    ${bulk.state === "planned" && bulk.count === 0 && html`<p class="notice">Nothing would change.</p>`}
    ${bulk.state === "planned" && !bulk.bounded && bulk.count > 0 && (operator ? html`<${Start} bulk=${bulk} reload=${poll.reload} title=${title} />`
      : html`<p class="notice">A reader cannot start it.</p>`)}
    ${bulk.state === "expired" && html`<p class="notice is-warning">The plan is older than 10 minutes, so it cannot be started. Nothing was changed.</p>`}
    ${bulk.state === "stopped" && !began && html`<p class="notice">Nothing was changed.</p>`}
    ${began && html`<${Progress} bulk=${bulk} />`}
    ${began && bulk.says && html`<${Says} bulk=${bulk} />`}
    ${operator && goes_on.has(bulk.state) && html`<p class="stop"><${Stop} bulk=${bulk} reload=${poll.reload} /></p>`}
    ${!began && html`<${Planned} bulk=${bulk} />`}
  </main>`;
}

export function Bulks() {
  const poll = use_poll("bulk", (signal) => api.bulk_list(signal));
  const head = useRef();
  const bulks = poll.value?.body.bulk;
  useEffect(() => { document.title = "Bulk acts – once"; }, []);
  return html`<main><h1 tabindex="-1" ref=${head}>Bulk acts</h1>
    <p class="muted">The last 20 of this process. To begin one, select <a href=${to_records({})}>records</a>.</p>
    ${poll.error && html`<${Failed} error=${poll.error} />`}
    ${!bulks ? !poll.error && html`<${Waiting} rows=${3} />` : !bulks.length ? html`<p class="calm">There is none.</p>`
      : html`<table class="cards bulks"><thead><tr><th scope="col">Act</th><th scope="col">Of</th><th scope="col">State</th>
          <th scope="col" class="right">Changed</th><th scope="col">By</th><th scope="col">Reason</th></tr></thead>
        <tbody>${bulks.map((bulk) => html`<tr key=${bulk.id}>
          <td class="cell-key"><a class="row-link" href=${to_bulk(bulk.id)}>${title_of(bulk)}</a></td>
          <td>${words_of(bulk)}</td><td><${BulkState} bulk=${bulk} /></td>
          <td class="right">${bulk.written === null ? "" : `${count(bulk.written)} changed`}</td>
          <td>${plain(bulk.who)}, <${Time} at=${bulk.made_at} /></td><td>${plain(bulk.reason)}</td></tr>`)}</tbody></table>`}
  </main>`;
}
