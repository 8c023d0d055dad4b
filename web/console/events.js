// What the server tells by itself: one stream of events for all that this page watches. None in a hidden tab, none while
// nothing is watched. By fetch and not EventSource, which sends no header Once-Session.
import { events, now } from "./api.js";

const silent_ms = 45000;   // The server says something every 15 s.
const refused_ms = 30000;  // Until a server that has no room for a stream, or no streams, is asked again.
const settle_ms = 50;      // One page goes and the next one comes: that is one change.
const retry_ms = [500, 1000, 2000, 5000];

const watched = new Map();  // What -> its listeners.
let active = () => true;
let report_cut = () => {};
let running = null;  // {topics, abort, live}
let last_id, failures = 0, timer, good_at;

// `is_active`: whether to have a stream at all. `on_cut(since)`: it was cut, or with undefined is back.
export function begin_events(is_active, on_cut) {
  active = is_active;
  report_cut = on_cut;
  document.addEventListener("visibilitychange", renew);
}

const wanted = () => active() ? [...watched.keys()].sort().join(",") : "";
const tell = (topics, event) => {
  for (const topic of topics.split(",")) for (const listener of watched.get(topic) || []) listener(event);
};
export const is_live = (topic) => running !== null && running.live && running.topics.split(",").includes(topic);

// Calls listener({kind, data}) for `live`, `lost`, `reset`, and the server's events of this topic. Returns what ends that.
export function watch(topic, listener) {
  if (!watched.has(topic)) watched.set(topic, new Set());
  watched.get(topic).add(listener);
  renew();
  return () => {
    watched.get(topic).delete(listener);
    if (!watched.get(topic).size) watched.delete(topic);
    renew();
  };
}

// A stream for what is watched now.
export function renew() {
  if (timer !== undefined && failures > 0 && wanted()) return;  // It waits to be asked again.
  clearTimeout(timer);
  timer = setTimeout(() => {
    timer = undefined;
    const topics = wanted();
    if (running?.topics === topics) return;
    stop();
    failures = 0;
    if (topics) open(topics);
    else report_cut();
  }, settle_ms);
}

function stop() {
  const ended = running;
  running = null;
  ended?.abort.abort();
  if (ended?.live) tell(ended.topics, { kind: "lost" });
}

async function open(topics) {
  const mine = { topics, abort: new AbortController(), live: false };
  running = mine;
  let watchdog, refused = false;
  const alive = () => {
    good_at = now();
    clearTimeout(watchdog);
    watchdog = setTimeout(() => mine.abort.abort(), silent_ms);
  };
  try {
    watchdog = setTimeout(() => mine.abort.abort(), silent_ms);
    const answer = await events(topics, last_id, mine.abort.signal);
    if (running !== mine) return;
    mine.live = true;
    failures = 0;
    alive();
    report_cut();
    tell(topics, { kind: "live" });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let left = ""; ;) {
      const { done, value } = await reader.read();
      if (running !== mine) return;
      if (done) break;
      alive();
      left += value;
      for (let end = left.indexOf("\n\n"); end >= 0; end = left.indexOf("\n\n")) {
        take(topics, left.slice(0, end));
        left = left.slice(end + 2);
      }
    }
  } catch (error) {
    refused = error.status !== undefined;  // An answer, and a clear one: then asking again and again must do.
  } finally {
    clearTimeout(watchdog);
    if (running === mine) ended(refused);
  }
}

function ended(refused) {
  const was_live = running.live;
  stop();
  if (refused) report_cut();
  else if (was_live) report_cut(good_at);
  timer = setTimeout(() => {
    timer = undefined;
    const topics = wanted();
    if (topics) open(topics);
    else report_cut();
  }, refused ? refused_ms : retry_ms[Math.min(failures, retry_ms.length - 1)]);
  ++failures;
}

function take(topics, text) {
  const fields = {};
  for (const line of text.split("\n")) {
    const colon = line.indexOf(": ");
    if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 2);
  }
  if (!fields.event) return;
  last_id = fields.id;
  if (fields.event === "reset") {
    tell(topics, { kind: "reset" });
    return;
  }
  const data = JSON.parse(fields.data);
  const topic = fields.event === "changed" ? data.key : fields.event === "bulk" ? `bulk:${data.id}` : fields.event;
  for (const listener of watched.get(topic) || []) listener({ kind: fields.event, data });
}
