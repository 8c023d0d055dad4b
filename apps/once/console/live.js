// Asking again and again, while somebody looks: every 5 s, never in a hidden tab, never while paused.
import { useCallback, useEffect, useRef, useState } from "./vendor/preact.js";
import { now } from "./api.js";

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

export function toggle_pause() {
  paused = !paused;
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
export function use_poll(what, load, { repeat = true } = {}) {
  const [state, set_state] = useState({ what: null, value: null, error: null, loaded: false });
  const latest = useRef(load);
  latest.current = load;
  const wake = useRef(() => {});

  useEffect(() => {
    const who = {};
    let timer, running = null, ended = false, good_at = now(), failed = false;
    const ask = async () => {
      clearTimeout(timer);
      if (running) return;
      running = new AbortController();
      try {
        const value = await latest.current(running.signal);
        if (ended) return;
        good_at = now();
        failed = false;
        report(who);
        set_state({ what, value, error: null, loaded: true });
      } catch (error) {
        if (ended) return;
        failed = error.status !== 404 && error.status !== 400;
        report(who, failed ? good_at : undefined);
        set_state((old) => ({ what, value: old.what === what ? old.value : null, error, loaded: true }));
      }
      running = null;
      later();
    };
    const later = () => {
      clearTimeout(timer);
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
    return () => {
      ended = true;
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
