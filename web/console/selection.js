// What is selected in the list of records: rows, or all that match its filter. It stays from page to page.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import * as api from "./api.js";
import { act_words, acts_for } from "./words.js";
import { count, name_of, plain, plural, scope_of } from "./format.js";
import { Dialog, Failed } from "./parts.js";
import { More } from "./more.js";

export const most_at_once = 10000;  // Of a bulk act.
const filter_names = ["standing", "scope", "holder", "q", "reconciled", "client"];

// The filter of a list, as a bulk act and a link to the list take it.
export const filter_of = (query) => Object.fromEntries(filter_names.filter((name) => query[name]).map((name) => [name, query[name]]));

const none = (what) => ({ what, all: false, rows: new Map() });
let kept = none("");

// {all, rows: stored_key_hex -> record, set(rows), set_all(), clear()}. Another filter begins with none.
export function use_selection(query) {
  const what = JSON.stringify(filter_of(query));
  const [, again] = useState(0);
  if (kept.what !== what) kept = none(what);
  const change = (to) => {
    kept = { ...none(what), ...to };
    again((times) => times + 1);
  };
  return { ...kept, set: (rows) => change({ rows }), set_all: () => change({ all: true }), clear: () => change({}) };
}

// All records that match, page by page, up to what a bulk act may have.
async function read_all(query, signal) {
  const records = [];
  let after;
  do {
    const { body } = await api.list({ ...filter_of(query), after, limit: 500 }, signal);
    records.push(...body.records);
    after = body.next;
  } while (after && records.length <= most_at_once);
  return { records, bounded: !!after };
}

// What a line of a ledger may call a record.
const names_of = (record) => [name_of(record), record.key, record.label, record.stored_key_hex, record.key_hash,
  `${scope_of(record)}/${name_of(record)}`].filter(Boolean);

// The records that the lines of a text name, those that it does not, and the lines that name none of them. A line is a
// name, or begins with one, before a tab, comma or semicolon.
export function parted(records, text) {
  const named = new Map();
  for (const record of records)
    for (const name of names_of(record)) named.set(name, [...new Set([...(named.get(name) || []), record])]);
  const found = new Set(), strange = [];
  for (const line of text.split(/\r?\n/).map((one) => one.trim()).filter(Boolean)) {
    const records_of = [line, line.split(/[\t,;]/)[0]].map((one) => named.get(one.trim().replace(/^"(.*)"$/, "$1"))).find(Boolean);
    if (records_of) for (const record of records_of) found.add(record);
    else strange.push(line);
  }
  return { found: records.filter((record) => found.has(record)), others: records.filter((record) => !found.has(record)), strange };
}

const First = ({ names }) => html`<span class="muted mono wrap"> ${names.slice(0, 3).map(plain).join(", ")}${names.length > 3 ? ", …" : ""}</span>`;

function MatchDialog({ query, selection, onClose }) {
  const [records, set_records] = useState(selection.all ? null : [...selection.rows.values()]);
  const [error, set_error] = useState(null);
  const [text, set_text] = useState("");
  const field = useRef();
  useEffect(() => { field.current.focus(); }, []);
  useEffect(() => {
    if (records) return undefined;
    const reading = new AbortController();
    read_all(query, reading.signal).then(({ records: all, bounded }) => {
      if (bounded) set_error(new Error(`More than ${count(most_at_once)} records match: narrow the filter.`));
      else set_records(all);
    }, (problem) => { if (!reading.signal.aborted) set_error(problem); });
    return () => reading.abort();
  }, []);
  const parts = records && text.trim() ? parted(records, text) : null;
  const select = (part) => {
    selection.set(new Map(part.map((record) => [record.stored_key_hex, record])));
    onClose();
  };
  const Part = (part, one, many, rest) => html`<div class="match-part"><dt>${plural(part.length, one, many)}
      <${First} names=${part.map(name_of)} /></dt>
    <dd><button type="button" disabled=${!part.length} onClick=${() => select(part)}>Select ${count(part.length)} ${rest}</button></dd></div>`;
  return html`<${Dialog} title="Match a list" onClose=${onClose}>
    <p>Paste what your ledger has, one a line: keys, labels or stored keys. What is selected parts in two.</p>
    <div class="field"><label for="match-list">Lines</label>
      <textarea id="match-list" ref=${field} rows="8" class="mono" spellcheck=${false} value=${text} onInput=${(event) => set_text(event.currentTarget.value)} /></div>
    ${error && html`<${Failed} error=${error} />`}
    <div role="status">${!records ? !error && html`<p class="muted">Reading all that match …</p>` : parts ? html`
      <dl class="match-parts">
        ${Part(parts.found, "is in the list", "are in the list", "in the list")}
        ${Part(parts.others, "is not in the list", "are not in the list", "not in it")}
        ${parts.strange.length > 0 && html`<div><dt>${plural(parts.strange.length, "line names", "lines name")} nothing that is selected
          <${First} names=${parts.strange} /></dt></div>`}
      </dl>` : html`<p class="muted">${plural(records.length, "record is", "records are")} selected.</p>`}</div>
    <div class="buttons"><button type="button" onClick=${onClose}>Cancel</button></div>
  <//>`;
}

// The acts that may fit what is selected.
const acts_of = (query) => {
  if (query.client && !query.standing) return { first: ["remove"], more: ["complete", "fail", "release", "extend"] };
  const fit = ["overdue", "in_progress", "", undefined].includes(query.standing) ? null : acts_for({ standing: query.standing });
  return fit?.first.length ? fit : { first: ["complete", "fail", "release"], more: ["extend", "remove"] };
};

// Below the rows, so that none moves when it comes. `matching`: how many match the filter, in words, or undefined.
export function SelectionBar({ query, selection, matching, asks, on_act }) {
  const [match, set_match] = useState(false);
  const { all, rows } = selection;
  if (!all && !rows.size) return null;
  const { first, more } = acts_of(query);
  const filtered = Object.keys(filter_of(query)).length > 0;
  return html`<div class="selection acts" role="group" aria-label="Selected">
    <p role="status">${all ? html`<b>All${matching ? ` ${matching}` : ""} that match</b> are selected.`
      : html`<b>${count(rows.size)} selected.</b>`} <span class="muted">The list waits meanwhile.</span></p>
    ${!all && filtered && html`<button type="button" class="quiet" onClick=${selection.set_all}>Select all${matching ? ` ${matching}` : ""} that match</button>`}
    ${first.map((act) => html`<button type="button" key=${act} onClick=${() => on_act(act)}>${act_words[act].name} …</button>`)}
    <${More} acts=${asks ? ["reconcile", ...more] : more} onAct=${on_act} />
    <button type="button" onClick=${() => set_match(true)}>Match a list …</button>
    <button type="button" class="quiet" onClick=${selection.clear}>Clear</button>
    ${match && html`<${MatchDialog} query=${query} selection=${selection} onClose=${() => set_match(false)} />`}
  </div>`;
}
