// The list: what matches, page by page. It never moves by itself: what changed is told, and shown on demand.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import * as api from "./api.js";
import { use_poll } from "./live.js";
import { go, go_instead, to_client, to_record, to_records } from "./router.js";
import { short_client } from "./client.js";
import { Standing, says_words, since, word } from "./words.js";
import { Age, age, count, name_of, plain, plural, scope_of } from "./format.js";
import { Failed, Waiting } from "./parts.js";
import { number_of } from "./overview.js";
import { SelectionBar, use_selection } from "./selection.js";
import { BulkDialog } from "./bulk.js";

const limit = 50;
const most = 500;  // Of a search.
const whole = new Set(["key", "label", "digest", "key hash", "scope and key", "holder"]);
const requests_at_once = 12;  // Each reads up to 10 000 records.
const standings = ["", "unknown", "overdue", "lapsed", "running", "released", "failed", "completed"];

const tag_of = (record) => `${record.owner}-${record.revision}-${record.standing}-${record.overdue}`;
const by_key = (records) => new Map(records.map((record) => [record.stored_key_hex, tag_of(record)]));

function changes(shown, now) {
  const old = by_key(shown), fresh = by_key(now);
  let changed = 0;
  for (const [key, tag] of fresh) if (old.get(key) !== tag) ++changed;
  for (const key of old.keys()) if (!fresh.has(key)) ++changed;
  return changed;
}

const parameters_of = (query) => ({
  standing: query.standing, scope: query.scope, holder: query.holder, q: query.q, reconciled: query.reconciled, client: query.client, after: query.after, limit: query.q ? most : limit,
});

// A page. A search for what is not found as a whole yet goes on by itself, up to a bound, and so does one for a client.
async function search(query, signal) {
  let requests = 1;
  let { body } = await api.list(parameters_of(query), signal);
  let { searched, records } = body;
  const found = () => (query.q ? records.some((record) => whole.has(record.match)) || records.length >= most : records.length >= limit);
  while ((query.q || query.client) && !query.after && body.next && !found() && requests < requests_at_once) {
    ++requests;
    ({ body } = await api.list({ ...parameters_of(query), after: body.next, ...(!query.q && { limit: limit - records.length }) }, signal));
    searched += body.searched || 0;
    records = [...records, ...body.records];
  }
  if (query.q) records = [...records.filter((record) => whole.has(record.match)), ...records.filter((record) => !whole.has(record.match))];
  return { ...body, searched, records };
}

// Its label is larger than the box, for fingers.
const Select = ({ name, checked, onChange }) => html`<label class="select"><input type="checkbox" aria-label=${name} checked=${checked}
  onChange=${onChange} /></label>`;

function Row({ record, select }) {
  const at = since(record);
  const what = record.failure ? record.failure.message || record.failure.code : record.note;
  return html`<tr class=${select?.checked ? "is-selected" : ""}>
    ${select && html`<td class="cell-select"><${Select} name=${`Select ${name_of(record)}`} ...${select} /></td>`}
    <td class="cell-state"><${Standing} record=${record} /></td>
    <td class="cell-key"><a class="mono row-link" href=${to_record(record.stored_key_hex)}>${name_of(record)}</a></td>
    <td class="cell-scope mono">${scope_of(record)}</td>
    <td class="cell-age right">${at ? html`<${Age} at=${at} />` : ""}</td>
    <td class="cell-attempt right"><span class="only-card">attempt </span>${record.attempt}</td>
    <td class="cell-holder mono" title=${plain(record.holder)}>${plain(record.holder)}</td>
    <td class="cell-what" title=${plain(what)}>${record.match && html`<span class="match">${record.match}</span>`}${record.service?.says
      && html`<span class="match">service: ${says_words[record.service.says]}, ${age(record.service.asked_at)} ago</span>`}${plain(what)}</td>
  </tr>`;
}

const Says = ({ query }) => html`<nav class="segments" aria-label="The service says">${["", ...Object.keys(says_words)].map((says) =>
  html`<a key=${says} href=${to_records({ ...query, reconciled: says, after: "" })} aria-current=${(query.reconciled || "") === says ? "true" : undefined}>${
    says ? `service says ${says_words[says]}` : "whatever it says"}</a>`)}</nav>`;

function Filters({ query, gauges, asks }) {
  const submit = (event) => {
    event.preventDefault();
    const { scope, holder } = event.currentTarget.elements;
    go(to_records({ ...query, scope: scope.value, holder: holder.value, after: "" }));
  };
  return html`<div class="filters">
    <nav class="segments" aria-label="State">${standings.map((name) => {
      const gauge = gauges?.[name];
      return html`<a key=${name} href=${to_records({ ...query, standing: name, after: "", reconciled: name === "unknown" ? query.reconciled : "" })} class=${name ? `is-${name}` : ""}
        aria-current=${(query.standing || "") === name ? "true" : undefined}>${name ? word(name) : "all"}${gauge
          ? html` <b>${number_of(gauge)}</b>` : ""}</a>`;
    })}</nav>
    ${(query.reconciled || (asks && query.standing === "unknown")) && html`<${Says} query=${query} />`}
    <form class="filter-form" key=${`${query.scope} ${query.holder}`} onSubmit=${submit}>
      <label for="scope">Scope</label><input id="scope" name="scope" defaultValue=${query.scope || ""} autocomplete="off" spellcheck=${false} />
      <label for="holder">Holder</label><input id="holder" name="holder" defaultValue=${query.holder || ""} autocomplete="off" spellcheck=${false} />
      <button>Filter</button>
      ${(query.scope || query.holder || query.q || query.client) && html`<a href=${to_records({ standing: query.standing })}>Clear</a>`}
    </form>
  </div>`;
}

export function Records({ route, gauges, session, store }) {
  const { query } = route;
  const what = JSON.stringify(parameters_of(query));
  const selection = use_selection(query);
  const [act, set_act] = useState(null);
  const title = query.client ? `Client ${short_client(query.client)}` : "Records";
  const selecting = selection.all || selection.rows.size > 0;
  // A search reads much: it is done once, not again and again. What is selected is not refreshed either.
  const poll = use_poll(what, (signal) => search(query, signal), { repeat: !query.q && !query.client && !selecting });
  const [shown, set_shown] = useState(null);  // {what, page, more: [records that "go on" has found]}
  const [going_on, set_going_on] = useState(false);
  const [error, set_error] = useState(null);
  const head = useRef();
  const current = useRef(what);
  current.current = what;

  useEffect(() => {
    document.title = `${title}${query.standing ? `, ${word(query.standing)}` : ""}${query.q ? `, ${query.q}` : ""} – once`;
    set_error(null);
    set_act(null);
  }, [what]);
  // The first answer is shown at once. Later ones wait for a click.
  if (poll.value && shown?.what !== what) set_shown({ what, page: poll.value, more: [] });
  const page = shown?.what === what ? shown : null;

  const exact = page && query.q && !query.list && !query.after
    ? page.page.records.filter((record) => whole.has(record.match)) : [];
  const only = exact.length === 1 && (page.page.records.length === 1 || exact[0].match !== "holder") ? exact[0] : null;
  useEffect(() => {
    if (only) go_instead(to_record(only.stored_key_hex, page.page.next ? { q: query.q, searched: String(page.page.searched) } : {}));
  }, [only]);

  if (only) return html`<main><h1 tabindex="-1">${title}</h1></main>`;
  if (!page) return html`<main><h1 tabindex="-1" ref=${head}>${title}</h1><${Filters} query=${query} gauges=${query.client ? null : gauges} />
    ${poll.error ? html`<${Failed} error=${poll.error} />` : html`<${Waiting} rows=${8} />`}</main>`;

  const { records, next, searched, unreadable } = page.page;
  const all = [...records, ...page.more];
  const waiting = poll.value && poll.value !== page.page ? changes(records, poll.value.records) : 0;
  const partial = next && (query.q || query.client || all.length < limit);
  const go_on = async () => {
    set_going_on(true);
    set_error(null);
    try {
      const found = await search({ ...query, after: next }, undefined);
      if (current.current === what) {
        set_shown({ what, more: [...page.more, ...found.records],
          page: { ...page.page, next: found.next, searched: (searched || 0) + (found.searched || 0) } });
      }
    } catch (problem) {
      set_error(problem);
    }
    set_going_on(false);
  };
  const chosen = (record) => selection.all || selection.rows.has(record.stored_key_hex);
  const choose = (record) => {
    // Without one of all there are those that are shown.
    const rows = selection.all ? new Map(all.map((one) => [one.stored_key_hex, one])) : new Map(selection.rows);
    if (!rows.delete(record.stored_key_hex)) rows.set(record.stored_key_hex, record);
    selection.set(rows);
  };
  const all_chosen = all.every(chosen);
  const choose_all = () => {
    const rows = new Map(selection.rows);
    for (const record of all) if (all_chosen) rows.delete(record.stored_key_hex); else rows.set(record.stored_key_hex, record);
    selection.set(rows);
  };
  const operator = session.role === "operator";
  const asks = all.some((one) => one.service?.asks);
  const alone = query.standing && !query.reconciled && !query.q && !query.scope && !query.holder && !query.client;
  const matching = !next && !query.after ? count(all.length) : alone && gauges?.[query.standing] ? number_of(gauges[query.standing]) : undefined;
  return html`<main>
    <div class="page-head"><h1 tabindex="-1" ref=${head}>${title}</h1>
      ${query.client && html`<p>All that a proxy keeps of this client, in all routes. <a href=${to_client()}>Another client</a></p>`}
      ${query.q && html`<p>that have <b class="mono">${plain(query.q)}</b></p>`}
      <p class="refresh" role="status">${waiting > 0 && html`<button type="button" onClick=${() => set_shown({ what, page: poll.value, more: [] })}>
        ${count(waiting)} changed: show</button>`}
        ${(query.q || query.client) && html`<button type="button" class="quiet" onClick=${() => { set_shown(null); poll.reload(); }}>Search again</button>`}</p></div>
    <${Filters} query=${query} gauges=${query.client ? null : gauges} asks=${asks} />
    ${poll.error && html`<${Failed} error=${poll.error} />`}
    ${error && html`<${Failed} error=${error} />`}
    ${(unreadable || []).map((problem) => html`<p class="notice is-bad">${plain(problem)}</p>`)}
    ${all.length ? html`<table class="records cards">
      <thead><tr>${operator && html`<th scope="col" class="cell-select"><${Select} name="Select all on this page" checked=${all_chosen} onChange=${choose_all} /></th>`}
        <th scope="col" class="cell-state">State</th><th scope="col" class="cell-key">Key</th><th scope="col" class="cell-scope">Scope</th>
        <th scope="col" class="cell-age right">For</th><th scope="col" class="cell-attempt right">Attempt</th>
        <th scope="col" class="cell-holder">Holder</th><th scope="col">What</th></tr></thead>
      <tbody>${all.map((record) => html`<${Row} key=${record.stored_key_hex} record=${record}
        select=${operator && { checked: chosen(record), onChange: () => choose(record) }} />`)}</tbody>
    </table>` : html`<p class="calm">${next ? "No record matches so far." : query.standing === "unknown" && !query.q && !query.scope && !query.holder && !query.client
      ? "Nothing waits for a person." : "No record matches."}</p>`}
    ${operator && html`<${SelectionBar} query=${query} selection=${selection} matching=${matching} asks=${asks} on_act=${set_act} />`}
    ${act && html`<${BulkDialog} key=${act} act=${act} query=${query} selection=${selection} matching=${matching} example=${all[0]} session=${session} store=${store}
      onClose=${() => set_act(null)} />`}
    <div class="pager">
      ${query.after && html`<a href=${to_records({ ...query, after: "" })}>First page</a>`}
      ${next && !partial && html`<a href=${to_records({ ...query, after: next })}>Next page</a>`}
      ${!query.client && html`<a href=${to_client()}>Find a client</a>`}
      <span class="muted">${plural(all.length, "record", "records")}${searched !== undefined
        ? ` of ${count(searched)} that were read` : ""}${partial ? ", not all" : ""}</span>
      ${partial && html`<button type="button" disabled=${going_on} onClick=${go_on}>${going_on ? "Reading …" : "Go on"}</button>`}
    </div>
  </main>`;
}
