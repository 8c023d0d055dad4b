// What is shown stays as it is in the store, while somebody looks: told by the server's events where it has some, else by
// asking again every 5 s. Never in a hidden tab, never while paused.
import { useCallback, useEffect, useRef, useState } from "./vendor/preact.js";
import { now } from "./api.js";
import { begin_events, is_live, renew, watch } from "./events.js";

const every_ms = 5000;
const listeners = new Set();
const failing = new Map();  // Who asks -> since when there is no answer.
let paused = false;

const tell = () => { for (const listener of listeners) listener(); };
function report(who, since) {
  if (since === undefined ? failing.delete(who) : !failing.has(who)) {
    if (since !== undefined) failing.set(who, since);
    tell();
  }
}

const stream = {};
begin_events(() => !paused && document.visibilityState === "visible", (since) => report(stream, since));

export function toggle_pause() {
  paused = !paused;
  renew();
  tell();
}

// {paused, since}: since when something is not known any more, or undefined.
export function use_liveness() {
  const [, again] = useState(0);
  useEffect(() => {
    const listener = () => again((count) => count + 1);
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, []);
  return { paused, since: failing.size ? Math.min(...failing.values()) : undefined };
}

// Calls load(signal) at once, and again as above (without `repeat` only until it succeeds); `what` names what is asked for: another begins anew. Returns
// {value, error, loaded, reload}; `value` stays while there is an error, and `loaded` is false until the first answer.
// `topic`: of the events that tell when to ask, instead of the clock. `is_known(value, data)`: the value, or null for none,
// is what an event says. `from_event(data, value)`: the value that an event makes; undefined: ask.
export function use_poll(what, load, { repeat = true, topic, is_known, from_event } = {}) {
  const [state, set_state] = useState({ what: null, value: null, error: null, loaded: false });
  const latest = useRef(load);
  latest.current = load;
  const wake = useRef(() => {});

  useEffect(() => {
    const who = {};
    let timer, running = null, ended = false, good_at = now(), failed = false, loaded = null, told = null;
    const ask = async () => {
      clearTimeout(timer);
      if (running) return;
      told = null;
      running = new AbortController();
      try {
        const value = await latest.current(running.signal);
        if (ended) return;
        take(value);
      } catch (error) {
        if (ended) return;
        failed = error.status !== 404 && error.status !== 400;
        report(who, failed ? good_at : undefined);
        loaded = null;
        set_state((old) => ({ what, value: old.what === what ? old.value : null, error, loaded: true }));
      }
      running = null;
      later();
      if (told && !failed) heard(told);  // Perhaps after the answer was made.
    };
    const take = (value) => {
      good_at = now();
      failed = false;
      loaded = value;
      report(who);
      set_state({ what, value, error: null, loaded: true });
    };
    const heard = (event) => {
      let made;
      if (event.kind === "live" || event.kind === "lost") later();
      else if (event.kind === "reset") ask();
      else if ((made = from_event?.(event.data, loaded)) !== undefined) take(made);
      else if (running) told = event;
      else if (event.data.error || !is_known?.(loaded, event.data)) ask();
    };
    const later = () => {
      clearTimeout(timer);
      if (topic && is_live(topic) && !failed) return;
      if ((repeat || failed) && !paused && document.visibilityState === "visible" && !ended) timer = setTimeout(ask, every_ms);
    };
    const changed = () => {
      if (!repeat && !failed) return;
      if (paused || document.visibilityState !== "visible") clearTimeout(timer);
      else ask();
    };
    wake.current = ask;
    document.addEventListener("visibilitychange", changed);
    listeners.add(changed_pause);
    let was_paused = paused;
    function changed_pause() {
      if (paused !== was_paused) changed();
      was_paused = paused;
    }
    ask();
    const unwatch = topic ? watch(topic, heard) : () => {};
    return () => {
      ended = true;
      unwatch();
      clearTimeout(timer);
      running?.abort();
      report(who);
      listeners.delete(changed_pause);
      document.removeEventListener("visibilitychange", changed);
    };
  }, [what, repeat]);

  const reload = useCallback(() => wake.current(), []);
  const mine = state.what === what;
  return {
    value: mine ? state.value : null, error: mine ? state.error : null, loaded: mine && state.loaded, reload,
  };
}
