// Times, ages, counts and foreign text, as the page shows them.
import { html } from "./vendor/preact.js";
import { now } from "./api.js";

const two = (number) => String(number).padStart(2, "0");
const clock = (date) => `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
const months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

// Local time: "05:02:11" of today, else with the day.
export function local(at) {
  const date = new Date(at);
  const today = new Date(now());
  if (date.toDateString() === today.toDateString()) return clock(date);
  const year = date.getFullYear() === today.getFullYear() ? "" : ` ${date.getFullYear()}`;
  return `${date.getDate()} ${months[date.getMonth()]}${year} ${clock(date)}`;
}

const utc = (at) => `${new Date(at).toISOString().replace("T", " ").replace("Z", "")} UTC`;
export const Time = ({ at }) => html`<time datetime=${new Date(at).toISOString()} title=${utc(at)}>${local(at)}</time>`;

// "2 h 51 min": never rounded up.
export function duration(ms) {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  const parts = [[Math.floor(seconds / 86400), "d"], [Math.floor(seconds / 3600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "min"], [seconds % 60, "s"]];
  const first = parts.findIndex(([count]) => count > 0);
  if (first < 0) return "0 s";
  return parts.slice(first, first === 1 || first === 0 ? first + 2 : first + 1)
    .filter(([count]) => count > 0).map(([count, unit]) => `${count} ${unit}`).join(" ");
}
export const age = (at) => duration(now() - Date.parse(at));
export const Age = ({ at }) => html`<time datetime=${new Date(at).toISOString()} title=${`${local(at)}, ${utc(at)}`}>${age(at)}</time>`;

// "10 000", as digits in groups with a narrow space that does not break.
export const count = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, " ");
export const plural = (number, one, many) => `${count(number)} ${number === 1 ? one : many}`;

// What would move other text about, or hide: control, bidi and zero-width characters, line ends beside.
const hidden = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028\u2029\ufff9-\ufffb\p{Default_Ignorable_Code_Point}]/gu;
const hidden_in_line = new RegExp(`[\\t\\n]|${hidden.source}`, "gu");
const code_of = (character) => `\\u{${character.codePointAt(0).toString(16)}}`;

// Stored text in a line: a text node, in which such characters show as \u{202e}.
export const plain = (text) => (text || "").replace(hidden_in_line, code_of);
// The same in several lines.
export const plain_lines = (text) => text.replace(/\r\n/g, "\n").replace(hidden, code_of);

// "4.0 MiB".
export function size(number) {
  let unit = 0;
  for (; number >= 1024 && unit < 4; ++unit) number /= 1024;
  return `${unit ? number.toFixed(1) : number} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

export const hex_of = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
export const from_base64 = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
export const to_base64 = (bytes) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));

// A field that is text, or bytes in Base64 beside it.
export function field(object, name) {
  if (typeof object[name] === "string") return plain(object[name]);
  const base64 = object[`${name}_base64`];
  return typeof base64 === "string" ? `0x${hex_of(from_base64(base64))}` : "";
}
export const scope_of = (record) => field(record, "scope");
// The key as people know it.
export const name_of = (record) => field(record, "key") || plain(record.label) || record.stored_key_hex;
