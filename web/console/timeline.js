// The attempts and the operators' acts of a record, in their order.
import { html } from "./vendor/preact.js";
import { field, plain, plural, Time } from "./format.js";
import { claimed_at } from "./words.js";
import { Icon } from "./icons.js";

const icon_of = (what) => /^(resolved as )?completed/.test(what) ? "completed" : /^(resolved as )?failed/.test(what) ? "failed"
  : /unknown|gave up/.test(what) ? "unknown" : /lapsed|on lapse/.test(what) ? "lapsed" : /released|displaced/.test(what) ? "released"
  : "running";

const Steps = ({ record }) => record.steps.map((step) =>
  html`<span class="step"><${Icon} name="completed" />step ${field(step, "name")}</span>`);

// An act's words, with the times in them as the page shows times.
const with_times = (text) => plain(text).split(/(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z)/)
  .map((part, index) => (index % 2 ? html`<${Time} at=${part} />` : part));

function Past({ entry }) {
  const act = entry.attempt === 0;
  return html`<li class=${act ? "is-act" : ""}>
    <span class="at">${entry.began_at || entry.at ? html`<${Time} at=${entry.began_at || entry.at} />` : "not known"}</span>
    <span class=${`dot is-${icon_of(entry.what)}`}><${Icon} name=${icon_of(entry.what)} /></span>
    <div>
      ${act ? html`<b>${plain(entry.who) || "an operator"}</b> ${with_times(entry.what)}`
        : html`<b>attempt ${entry.attempt}</b> <span class="mono">${plain(entry.who)}</span> → ${plain(entry.what)}
          ${entry.began_at && entry.at && html` <span class="muted"><${Time} at=${entry.at} /></span>`}`}
      ${entry.why && html`<div class="why">${act ? `“${plain(entry.why)}”` : plain(entry.why)}</div>`}
      ${entry.trace_id && html`<div class="muted mono">trace ${entry.trace_id}</div>`}
    </div>
  </li>`;
}

// The attempt that the record itself is about, unless the history already tells its end.
function has_present(record) {
  const attempts = record.history.filter((entry) => entry.attempt > 0);
  return record.attempt > 0 && !(attempts.length && attempts[attempts.length - 1].attempt >= record.attempt);
}

function Present({ record }) {
  const began = claimed_at(record);
  const ended = record.standing === "expired" ? record.state : record.standing;
  const going = ended === "running" || ended === "in_progress";
  return html`<li class="is-present">
    <span class="at">${began ? html`<${Time} at=${began} />` : "not known"}</span>
    <span class=${`dot is-${record.standing}`}><${Icon} name=${ended} /></span>
    <div><b>attempt ${record.attempt}</b> <span class="mono">${plain(record.holder)}</span>${going ? " has it" : ` → ${ended}`}
      ${(record.finished_at || (ended === "lapsed" && record.lease_until)) && html` <span class="muted"><${Time}
        at=${record.finished_at || record.lease_until} /></span>`}
      ${record.failure && html`<div class="why">${plain(record.failure.message || record.failure.code)}</div>`}
      ${record.steps.length > 0 && html`<div><${Steps} record=${record} /></div>`}
      ${record.trace_id && html`<div class="muted mono">trace ${record.trace_id}</div>`}
    </div>
  </li>`;
}

export function TimeLine({ record }) {
  const items = record.history.map((entry, index) =>
    ({ at: entry.began_at || entry.at, shown: html`<${Past} key=${index} entry=${entry} />` }));
  if (has_present(record)) items.push({ at: claimed_at(record), shown: html`<${Present} key="present" record=${record} />` });
  const order = (item) => (item.at ? Date.parse(item.at) : Infinity);
  items.sort((one, other) => order(one) - order(other) || 0);
  return html`<ol class="time-line">
    ${record.history_dropped > 0 && html`<li class="muted"><span class="at" /><span class="dot" />
      <div>${plural(record.history_dropped, "older entry is", "older entries are")} no longer kept.</div></li>`}
    ${items.map(({ shown }) => shown)}
  </ol>`;
}
