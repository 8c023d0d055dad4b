// Acts: who did what, and who looked at payloads. Read once, not again and again: the newest are first, and would move the rest.
import { html, useEffect, useRef } from "./vendor/preact.js";
import * as api from "./api.js";
import { use_poll } from "./live.js";
import { go, to_acts, to_bulk, to_record } from "./router.js";
import { says_words } from "./words.js";
import { Time, name_of, plain, plural } from "./format.js";
import { Failed, Waiting } from "./parts.js";

const act_names = ["resolve", "release", "extend", "remove", "show", "sign-in", "sign-in-refused", "sign-out", "bulk-start", "bulk-stop", "bulk-end", "reconcile"];

const Of = ({ act }) => (act.bulk ? html`<a href=${to_bulk(act.bulk)}>a bulk act</a> ` : null);

// What became of an act, or what the service said.
const became = ({ says, why, outcome, force }) => says ? plain(`the service says ${says_words[says]}${why ? `: ${why}` : ""}`)
  : outcome === null || (says === null && !outcome) ? html`<span class="muted">not known</span>` : `${plain(outcome)}${force ? ", by force" : ""}`;

const Row = ({ act }) => html`<tr>
  <td><${Time} at=${act.at} /></td>
  <td><a href=${to_acts({ who: act.who })}>${plain(act.who)}</a></td>
  <td class="cell-key">${plain(act.act)}</td>
  <td>${act.stored_key_hex && html`<a class="mono" href=${to_record(act.stored_key_hex)}>${name_of(act)}</a> `}<${Of} act=${act} /></td>
  <td>${act.reason ? `“${plain(act.reason)}”` : ""}</td>
  <td>${became(act)}</td>
</tr>`;

export function Acts({ route }) {
  const { who, key, act, after } = route.query;
  const what = JSON.stringify(["acts", who, key, act, after]);
  const poll = use_poll(what, (signal) => api.acts({ who, key, act, after, limit: 100 }, signal), { repeat: false });
  const head = useRef();
  const page = poll.value?.body;
  useEffect(() => { document.title = "Acts – once"; }, []);
  const submit = (event) => {
    event.preventDefault();
    const fields = event.currentTarget.elements;
    go(to_acts({ who: fields.who.value.trim(), key: fields.key.value.trim(), act: fields.act.value }));
  };
  return html`<main>
    <div class="page-head"><h1 tabindex="-1" ref=${head}>Acts</h1>
      ${page && html`<p class="muted">${page.source === "audit log" ? "from the audit log" : "of this process, as far as it remembers"}${page.since
        ? html`, since <${Time} at=${page.since} />` : ""}</p>`}
      <p class="refresh"><button type="button" class="quiet" onClick=${poll.reload}>Read again</button></p></div>
    <form class="filter-form acts-filter" key=${what} onSubmit=${submit}>
      <label for="who">Who</label><input id="who" name="who" defaultValue=${who || ""} autocomplete="off" spellcheck=${false} />
      <label for="act">Act</label><select id="act" name="act"><option value="">all</option>
        ${act_names.map((name) => html`<option value=${name} selected=${name === act}>${name}</option>`)}</select>
      <label for="key">Stored key</label><input id="key" name="key" class="mono" defaultValue=${key || ""} autocomplete="off" spellcheck=${false} />
      <button>Filter</button>
      ${(who || key || act) && html`<a href=${to_acts({})}>Clear</a>`}
    </form>
    ${poll.error && html`<${Failed} error=${poll.error} />`}
    ${!page ? !poll.error && html`<${Waiting} rows=${6} />` : html`
      ${page.acts.length ? html`<table class="cards acts-table"><thead><tr><th scope="col">At</th><th scope="col">Who</th><th scope="col">Act</th>
          <th scope="col">On</th><th scope="col">Reason</th><th scope="col">Outcome</th></tr></thead>
        <tbody>${page.acts.map((one, index) => html`<${Row} key=${index} act=${one} />`)}</tbody></table>`
        : html`<p class="calm">${page.next ? "No act matches so far." : "No act matches."}</p>`}
      <div class="pager">
        ${after && html`<a href=${to_acts({ who, key, act })}>Newest</a>`}
        ${page.next && html`<a href=${to_acts({ who, key, act, after: page.next })}>Older</a>`}
        <span class="muted">${plural(page.acts.length, "act", "acts")}${page.skipped ? `; ${plural(page.skipped, "line is", "lines are")} not ours` : ""}</span>
      </div>`}
  </main>`;
}
