'use strict';

// Keys, what is compared, and results: from values to texts. What JSON.stringify() would change in silence is refused.
const { createHash } = require('node:crypto');
const { KeyMissing } = require('./errors.cjs');

const MAX_PAYLOAD_BYTES = 32 * 1024; // A larger one is compared by its SHA-256.
const BUGS = new Set([
  'undefined', 'null', 'nil', 'none', 'nan', 'true', 'false', '[object object]', '00000000-0000-0000-0000-000000000000',
]);

function part(value, name) {
  if (value === undefined || value === null || value === '') throw new KeyMissing(`the ${name} is missing; nothing was run`);
  if (value instanceof Date && !Number.isNaN(value.getTime())) return value.toISOString();
  const isNumber = typeof value === 'bigint' || (typeof value === 'number' && Number.isSafeInteger(value));
  if (typeof value !== 'string' && !isNumber) {
    throw new TypeError(`the ${name} is ${typeof value === 'number' ? value : `a ${typeof value}`}; use a text, a whole number or a date`);
  }
  const text = String(value);
  if (BUGS.has(text.trim().toLowerCase())) {
    throw new KeyMissing(`the ${name} is '${text}', as a program with a bug sends it; nothing was run`);
  }
  return text;
}

// Several parts become a JSON array, so that no two lists of parts are one key.
function keyText(value) {
  if (!Array.isArray(value)) return part(value, 'key');
  if (value.length === 0) throw new KeyMissing('the key is an empty list; nothing was run');
  return JSON.stringify(value.map((one, index) => part(one, `key's part ${index}`)));
}

const byName = ([a], [b]) => (a < b ? -1 : a > b ? 1 : 0);

const tagOf = (value) => Object.prototype.toString.call(value).slice(8, -1); // Of another realm's objects too.

// JSON with its members in order. Throws for what is not data. Two values that are compared must not become the same, so
// there an object of a class must say by toJSON() what it is: it may have private members.
function plain(value, isCompared, path = 'the value', above = []) {
  switch (typeof value) {
    case 'string':
    case 'boolean':
      return value;
    case 'number':
      if (!Number.isFinite(value)) throw new TypeError(`${path} is ${value}, which is not JSON`);
      return value;
    case 'object':
      break;
    default:
      throw new TypeError(`${path} is ${value === undefined ? 'undefined' : `a ${typeof value}`}, which is not JSON`);
  }
  if (value === null) return null;
  if (above.includes(value)) throw new TypeError(`${path} contains itself`);
  const inside = [...above, value];
  const tag = tagOf(value);
  if (ArrayBuffer.isView(value)) throw new TypeError(`${path} is binary, which is not JSON`);
  if (tag === 'Date' && Number.isNaN(Number(value))) throw new TypeError(`${path} is an invalid date`);
  if (typeof value.toJSON === 'function') return plain(value.toJSON(), isCompared, path, inside);
  if (Array.isArray(value)) {
    if (isCompared && Object.keys(value).length > value.length) throw new TypeError(`${path} is a list with names, which is not JSON`);
    return Array.from(value, (one, index) => plain(isCompared ? one : one ?? null, isCompared, `${path}[${index}]`, inside));
  }
  if (tag !== 'Object') throw new TypeError(`${path} is a ${tag}, which is not JSON`);
  const members = Object.entries(value).filter(([, one]) => one !== undefined).sort(byName);
  const prototype = Object.getPrototypeOf(value);
  const isPlain = prototype === null || Object.getPrototypeOf(prototype) === null;
  if (!isPlain && (isCompared || members.length === 0)) {
    throw new TypeError(`${path} is a ${value.constructor?.name || 'class instance'} without toJSON(), which is not JSON`);
  }
  if (isCompared && Object.getOwnPropertySymbols(value).length > 0) throw new TypeError(`${path} has a symbol as a name, which is not JSON`);
  return Object.fromEntries(members.map(([name, one]) => [name, plain(one, isCompared, `${path}.${name}`, inside)]));
}

const encoded = (value) => Buffer.from(JSON.stringify(plain(value ?? null, false)));

// The member of POST /v1/claims that has what is compared. `hint` is how to choose something else.
function compared(value, hint = '') {
  let data;
  try {
    data = Buffer.from(JSON.stringify(plain(value, true)));
  } catch (error) {
    if (error instanceof TypeError) error.message += `: it cannot be compared, and nothing was run${hint}`;
    throw error;
  }
  if (data.length <= MAX_PAYLOAD_BYTES) return { payload_json: data.toString() };
  return { fingerprint: `sha256:${createHash('sha256').update(data).digest('hex')}` };
}

const UNITS = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

// Milliseconds, or a text such as '30s' or '3d'.
function durationMs(value, name) {
  const [, digits, unit] = (typeof value === 'string' && /^(\d+(?:\.\d+)?)(ms|s|m|h|d)$/.exec(value)) || [];
  const ms = digits === undefined ? value : Math.round(Number(digits) * UNITS[unit]);
  if (typeof ms !== 'number' || !Number.isFinite(ms) || ms < 0) {
    throw new TypeError(`${name}: ${JSON.stringify(value)} is no duration, such as 30000, '30s' or '3d'`);
  }
  return Math.round(ms);
}

module.exports = { keyText, encoded, compared, durationMs, BUGS };
