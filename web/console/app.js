// The console: signs in, keeps the overview live, and shows the page that the fragment names.
import { html, render, useEffect, useState } from "./vendor/preact.js";
import * as api from "./api.js";
import { use_liveness, use_poll, toggle_pause } from "./live.js";
import { go, to_acts, to_bulk, to_overview, to_records, use_route } from "./router.js";
import { SignIn } from "./signin.js";
import { Overview } from "./overview.js";
import { Records } from "./records.js";
import { Record } from "./record.js";
import { BulkPage, Bulks } from "./bulk.js";
import { Acts } from "./who.js";
import { FindClient } from "./client.js";
import { KeyHelp, move_in_list, select_in_list, use_keys } from "./keys.js";
import { local, plain } from "./format.js";
import { Icon } from "./icons.js";
import { Failed } from "./parts.js";

const overview = async (signal) => (await api.overview(signal)).body;
const by_events = { topic: "overview", from_event: (data) => data };

function Live() {
  const { paused, since } = use_liveness();
  const known = since === undefined;
  return html`<span class=${`live ${!known ? "is-bad" : paused ? "is-paused" : ""}`}><span class="bulb" />
    <span role="status">${!known ? `Not live since ${local(since)}` : paused ? "Paused" : "Live"}</span>
    <button type="button" class="quiet" aria-label=${paused ? "Go on" : "Pause"} title=${paused ? "Go on (p)" : "Pause (p)"} onClick=${toggle_pause}>
      <${Icon} name=${paused ? "play" : "pause"} /></button></span>`;
}

// The value is only where it begins: with `value`, each refresh of the page would undo what is being typed.
function Search({ value }) {
  const submit = (event) => {
    event.preventDefault();
    const text = event.currentTarget.elements.q.value.trim();
    if (!text) return;
    document.activeElement.blur();
    const there = to_records({ q: text });
    if (location.hash === there) dispatchEvent(new HashChangeEvent("hashchange"));
    else go(there);
  };
  return html`<form class="search" role="search" onSubmit=${submit} key=${value}>
    <label class="sr" for="q">Find a key, a label or a holder</label><${Icon} name="search" />
    <input id="q" name="q" type="search" defaultValue=${value} placeholder="Find a key, label or holder" autocomplete="off" spellcheck=${false}
      onKeyDown=${(event) => { if (event.key === "Escape") event.currentTarget.blur(); }} />
    <kbd aria-hidden="true">/</kbd></form>`;
}

function Console({ session, on_sign_out }) {
  const route = use_route();
  const poll = use_poll("overview", overview, by_events);
  const [help, set_help] = useState(false);
  const [act, set_act] = useState(null);
  const [said, say] = useState(null);
  const gauges = poll.value?.gauges;
  const store = poll.value?.stores[0]?.name;

  useEffect(() => {
    set_act(null);
    say(null);
    if (route.page === "overview") document.title = "once";
    scrollTo(0, 0);
  }, [route.hash]);

  use_keys({
    "/": () => document.getElementById("q").focus(),
    "g o": () => go(to_overview()),
    "g r": () => go(to_records({})),
    "g b": () => go(to_bulk()),
    "g a": () => go(to_acts({})),
    x: () => select_in_list(false),
    X: () => select_in_list(true),
    j: () => move_in_list(1),
    k: () => move_in_list(-1),
    u: () => history.back(),
    ".": () => document.querySelector(".acts button:not(.quiet)")?.focus(),
    v: () => document.querySelector(".show[data-part=result]")?.click(),
    y: () => document.querySelector(".acts [aria-label='Copy link']")?.click(),
    p: toggle_pause,
    "?": () => set_help(true),
  });

  const current = (page) => (route.page === page ? "page" : undefined);
  return html`
    <header>
      <a class="skip" href=${route.hash || "#/"} onClick=${(event) => { event.preventDefault(); document.querySelector("h1")?.focus(); }}>To the content</a>
      <a class="brand" href="#/"><svg viewBox="0 0 16 16" width="20" height="20" aria-hidden="true"><rect width="16" height="16" rx="4" />
        <path d="M5.5 5 8.5 3.2V13" /></svg>once</a>
      <nav aria-label="Pages"><a href=${to_overview()} aria-current=${current("overview")}>Overview</a>
        <a href=${to_records({})} aria-current=${current("records") || current("client")}>Records</a>
        <a href=${to_bulk()} aria-current=${current("bulks") || current("bulk")}>Bulk acts</a>
        <a href=${to_acts({})} aria-current=${current("acts")}>Acts</a></nav>
      <${Search} value=${route.query.q || ""} />
      <${Live} />
      <span class="who"><span class="name">${plain(session.name)}</span>, ${session.role}</span>
      <button type="button" class="quiet" onClick=${() => set_help(true)} aria-label="Keys">?</button>
      <button type="button" class="quiet" onClick=${on_sign_out}>Sign out</button>
    </header>
    ${route.page === "overview" && html`<${Overview} poll=${poll} />`}
    ${route.page === "records" && html`<${Records} route=${route} gauges=${gauges} session=${session} store=${store} />`}
    ${route.page === "bulks" && html`<${Bulks} />`}
    ${route.page === "bulk" && html`<${BulkPage} key=${route.id} id=${route.id} session=${session} />`}
    ${route.page === "client" && html`<${FindClient} />`}
    ${route.page === "acts" && html`<${Acts} route=${route} />`}
    ${route.page === "record" && html`<${Record} key=${route.key} route=${route} session=${session} store=${store} act=${act} on_act=${(name) => {
      say(null);
      set_act(name);
    }} say=${say} said=${said} />`}
    ${route.page === "nowhere" && html`<main><h1 tabindex="-1">No such page</h1><p><a href="#/">Overview</a></p></main>`}
    ${help && html`<${KeyHelp} onClose=${() => set_help(false)} />`}`;
}

// The one-time link's secret leaves the address before anything else happens.
function take_link() {
  const link = /^#link=([0-9a-f]+)$/.exec(location.hash);
  if (!link) return null;
  history.replaceState(null, "", "#/");
  return link[1];
}
let link = take_link();

function App() {
  const [session, set_session] = useState(undefined);  // undefined: not known yet; null: none
  const [refusal, set_refusal] = useState("");
  const [error, set_error] = useState(null);
  const begin = async () => {
    set_error(null);
    try {
      if (link) {
        const secret = link;
        link = null;
        try {
          set_session(await api.sign_in({ link: secret }));
          return;
        } catch (problem) {
          if (problem.status !== 401) throw problem;
          set_refusal(problem.message);
          if (!api.has_half()) throw problem;  // A link that was used does not end the session that it began.
        }
      }
      set_session(api.has_half() ? await api.session() : null);
    } catch (problem) {
      if (problem.status === 401 || problem.status === 403) {
        api.forget_half();
        set_session(null);
      } else {
        set_error(problem);
      }
    }
  };
  useEffect(() => {
    api.on_session_end(() => {
      set_refusal("The session has ended.");
      set_session(null);
    });
    begin();
    const again = () => {
      link = take_link();
      if (link) begin();
    };
    addEventListener("hashchange", again);
    return () => removeEventListener("hashchange", again);
  }, []);
  if (error) return html`<main><h1 tabindex="-1">once</h1><${Failed} error=${error} /><button type="button" onClick=${begin}>Try again</button></main>`;
  if (session === undefined) return null;
  if (session === null) return html`<${SignIn} refusal=${refusal} onSession=${(begun) => { set_refusal(""); set_session(begun); }} />`;
  return html`<${Console} session=${session} on_sign_out=${async () => {
    try {
      await api.sign_out();
    } catch { /* It ends by itself. */ }
    set_refusal("");
    set_session(null);
  }} />`;
}

render(html`<${App} />`, document.getElementById("app"));
