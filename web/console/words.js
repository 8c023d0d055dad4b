// One word, one sentence and the acts for each state of a record.
import { html } from "./vendor/preact.js";
import { Icon } from "./icons.js";
import { Age, Time, age, plain } from "./format.js";

const words = {
  running: "in progress", lapsed: "lapsed", released: "released", completed: "completed", failed: "failed",
  unknown: "unknown", expired: "expired", overdue: "overdue",
  in_progress: "in progress, lapsed or released",
};
export const word = (standing) => words[standing] || standing;

export const Standing = ({ record }) => html`<span class="states">
  <span class=${`state is-${record.standing}`}><${Icon} name=${record.standing} />${word(record.standing)}</span>
  ${record.overdue && html`<span class="state is-overdue"><${Icon} name="overdue" />overdue</span>`}
</span>`;

// When the present attempt began: its token is the time of its claim, unless clocks differed.
export function claimed_at(record) {
  if (record.attempt <= 1) return record.created_at;
  const token = Number(record.token);
  const ended = Date.parse(record.finished_at || record.lease_until || "9999-01-01T00:00:00Z");
  return token >= Date.parse(record.created_at) && token <= ended ? new Date(token).toISOString() : null;
}
// An operator's decision, as the record was left.
const decided = (record) => {
  const last = record.history[record.history.length - 1];
  return last && last.attempt === 0 && /^resolved as/.test(last.what);
};

const last_at = (record) => record.history.length ? record.history[record.history.length - 1].at : null;
// Since when the record is what it is, as far as it tells.
export function since(record) {
  switch (record.standing) {
    case "lapsed": return record.lease_until;
    case "expired": return record.expires_at;
    case "running": return claimed_at(record) || record.created_at;
    default: return record.finished_at || last_at(record) || record.created_at;
  }
}

const Until = ({ at }) => at ? html`until <${Time} at=${at} />` : "without end";

export function Sentence({ record }) {
  const holder = record.holder ? html`<span class="mono">${plain(record.holder)}</span>` : "A caller";
  switch (record.standing) {
    case "running":
      return html`${holder} has it, until <${Time} at=${record.lease_until} /> at least.`;
    case "lapsed":
      return html`Its holder stopped renewing <${Age} at=${record.lease_until} /> ago. ${record.on_lapse === "hold"
        ? "The next call marks it unknown." : "The next call runs it again."}`;
    case "unknown":
      return "It was started, and nobody knows how it ended. Nothing runs it until an operator decides.";
    case "failed":
      return html`${decided(record) ? "An operator recorded that it failed." : "It failed."} Every call gets this failure <${Until} at=${record.expires_at} />.`;
    case "completed":
      return html`${decided(record) ? "An operator recorded that it ran." : record.attempt <= 1 ? "Ran once." : `It ran, in attempt ${record.attempt}.`} Every call gets this
        result <${Until} at=${record.expires_at} />.`;
    case "released":
      return "Given up: nobody has it. The next call runs it.";
    default:
      return "It has expired: the next call runs the operation again.";
  }
}

export const Overdue = ({ record }) => record.overdue && record.expected_until
  ? html`<p class="overdue-line">Should have been done at <${Time} at=${record.expected_until} />,${" "}
      ${age(record.expected_until)} ago.</p>` : null;

// The acts that fit, the likely one first. `more`: behind "More".
export function acts_for(record) {
  const more = ["remove"];
  switch (record.standing) {
    case "running": return { first: ["extend"], more: ["release", ...more] };
    case "lapsed": return { first: ["release", "complete", "fail"], more };
    case "unknown": return { first: ["complete", "fail", "release"], more };
    case "failed": return { first: ["extend"], more: ["release", ...more] };
    case "completed": return { first: ["extend"], more };
    case "released": return { first: ["complete", "fail"], more };
    default: return { first: [], more };
  }
}

// What a service says of an unknown operation.
export const says_words = { done: "done", failed: "failed", not_done: "not done", not_known: "not known" };

export const act_words = {
  complete: { name: "Complete", means: "It happened. Every call gets the result that you give here." },
  fail: { name: "Fail", means: "It failed, and shall not run again. Every call gets this failure." },
  release: { name: "Release", means: "It did not happen: the next call runs it. If it did happen, it happens twice." },
  extend: { name: "Extend", means: "More time." },
  reconcile: { name: "Ask the service", means: "Nothing is changed: what the service says is kept for your decision." },
  remove: { name: "Remove", means: "Forgets the record and its result: the operation can run again." },
};
