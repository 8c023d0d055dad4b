// Overview: what waits for a person, what this process did, how the stores are.
import { html } from "./vendor/preact.js";
import { to_records } from "./router.js";
import { Age, Time, count, duration, plain, size } from "./format.js";
import { Icon } from "./icons.js";
import { Failed, Waiting } from "./parts.js";

const tiles = [
  ["unknown", "Unknown", "somebody has to decide"],
  ["overdue", "Overdue", "should be done by now"],
  ["lapsed", "Lapsed", "holder stopped renewing"],
  ["running", "In progress", "somebody has it"],
  ["released", "Released", "the next call runs it"],
  ["failed", "Failed", "every call gets the failure"],
];

export const number_of = (gauge) => `${count(gauge.count)}${gauge.bounded ? "+" : ""}`;

function Tile({ name, title, means, gauge }) {
  const quiet = gauge && gauge.count === 0 && !gauge.bounded;
  return html`<a class=${`tile is-${name} ${quiet || !gauge ? "is-quiet" : ""}`} href=${to_records({ standing: name })}>
    <span class="tile-head"><${Icon} name=${name} />${title}</span>
    <span class="number">${gauge ? number_of(gauge) : html`<span class="unknown-number">not known</span>`}</span>
    <span class="muted">${gauge?.oldest ? html`oldest <${Age} at=${gauge.oldest} />` : means}</span>
  </a>`;
}

function Rate({ value, seconds, title, means, alarm }) {
  return html`<div class=${`rate ${alarm && value > 0 ? "is-alarm" : ""}`}>
    <dt>${title}</dt>
    <dd><b class="number">${value === undefined ? "not known" : count(value)}</b>
      <span class="muted">${means}</span></dd>
  </div>`;
}

const low_bytes = 64 * 1024 * 1024;  // As once doctor: soon new operations are refused.

function Store({ store }) {
  const [state, sign] = store.answers === null ? ["is not asked", "lapsed"] : !store.answers ? ["does not answer", "failed"]
    : store.refusal ? ["takes no new operations", "failed"] : ["answers", "completed"];
  const why = store.error ?? store.refusal;
  return html`<tr>
    <th scope="row" class="mono">${plain(store.name)}</th>
    <td><span class=${`state is-${sign === "lapsed" ? "expired" : sign}`}><${Icon} name=${sign} />${state}</span>
      ${why && html`<span class="mono wrap"> ${plain(why)}</span>`}</td>
    <td class="right">${store.latency_ms === null ? "not known" : `${store.latency_ms.toFixed(store.latency_ms < 10 ? 1 : 0)} ms`}</td>
    <td class="right">${store.clock_ahead_ms === null ? "not known"
      : `${store.clock_ahead_ms > 0 ? "+" : ""}${count(store.clock_ahead_ms)} ms ± ${count(store.clock_error_ms)}`}</td>
    <td class="right">${typeof store.about_records === "number" ? `about ${count(store.about_records)}` : "not known"}</td>
    <td class="right">${store.bytes === null ? "not known" : size(store.bytes)}</td>
    <td class=${`right ${store.free_bytes !== null && store.free_bytes < low_bytes ? "is-low" : ""}`}>${
      store.free_bytes === null ? "not known" : size(store.free_bytes)}</td>
    <td class="right">${store.asked_at ? html`<${Time} at=${store.asked_at} />` : "not known"}</td>
  </tr>`;
}

export function Overview({ poll }) {
  const overview = poll.value;
  if (!overview) return html`<main><h1 tabindex="-1">Overview</h1>
    ${poll.error ? html`<${Failed} error=${poll.error} />` : html`<${Waiting} rows=${4} />`}</main>`;
  const { gauges, rates } = overview;
  const calm = ["unknown", "overdue", "lapsed"].every((name) => gauges[name] && gauges[name].count === 0 && !gauges[name].bounded);
  return html`<main>
    <div class="page-head"><h1 tabindex="-1">Overview</h1>
      <p class="muted">${overview.as_of ? html`counted at <${Time} at=${overview.as_of} />`
        : "Nobody looks at the store here, so the counts are not known."}</p></div>
    ${poll.error && html`<${Failed} error=${poll.error} />`}
    <nav class="tiles" aria-label="Records by state">${tiles.map(([name, title, means]) =>
      html`<${Tile} key=${name} name=${name} title=${title} means=${means} gauge=${gauges[name]} />`)}</nav>
    ${calm && html`<p class="calm"><${Icon} name="completed" />Nothing waited for a person at <${Time} at=${overview.as_of} />.</p>`}
    <section aria-labelledby="rates">
      <h2 id="rates">This process ${rates && html`<span class="muted">in the last ${duration(rates.seconds * 1000)}</span>`}</h2>
      ${rates ? html`<dl class="rates">
        <${Rate} title="Ran" value=${rates.ran} means="calls with a claim that ended" />
        <${Rate} title="Replayed" value=${rates.replayed} means="got a stored result" />
        <${Rate} title="Unprotected" value=${rates.unprotected} means="work without a claim" alarm />
        <${Rate} title="Unrecorded" value=${rates.unrecorded} means="not written at first" alarm />
      </dl>` : html`<p class="muted">How much ran is not known: this process runs no operations.</p>`}
    </section>
    <section aria-labelledby="stores">
      <h2 id="stores">Stores</h2>
      <div class="scroll" tabindex="0" role="region" aria-label="Stores, a table"><table class="plain-table">
        <thead><tr><th scope="col">Store</th><th scope="col">Health</th><th scope="col" class="right">Answers in</th>
          <th scope="col" class="right">Clock offset</th><th scope="col" class="right">Records, estimated</th><th scope="col" class="right">Size</th><th scope="col" class="right">Free space</th><th scope="col" class="right">Asked at</th></tr></thead>
        <tbody>${overview.stores.map((store) => html`<${Store} key=${store.name} store=${store} />`)}</tbody>
      </table></div>
    </section>
  </main>`;
}
