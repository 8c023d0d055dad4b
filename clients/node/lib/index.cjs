'use strict';

// Operations that run once, however often they are called: a client of `once serve`. index.d.ts is the manual.
const { AsyncLocalStorage } = require('node:async_hooks');
const errors = require('./errors.cjs');
const { Claim, Committed, refused, warn, JSON_TYPE, NOT_KEPT } = require('./claim.cjs');
const { pauses, randomId, sleep, uptime } = require('./kernel.cjs');
const { Transport, Unreachable } = require('./transport.cjs');
const { compared, durationMs, encoded, keyText } = require('./values.cjs');

const { ClaimLost, InProgress, KeyReused, OnceError, OutcomeUnknown } = errors;
const { ResultNotKept, ResultUnreadable, StoredFailure, TooLarge, Unavailable, Unrecorded } = errors;
const FATES = ['release', 'fail', 'hold'];
const SWITCH = { 1: true, true: true, yes: true, on: true, 0: false, false: false, no: false, off: false, '': false };
const MAX_RESULT_BYTES = 2 * 1024 * 1024;
const claims = new AsyncLocalStorage();
const policies = new WeakMap(); // Of claims whose results are JSON: options and schema.

const currentClaim = () => {
  const claim = (claims.getStore() ?? []).findLast((one) => !one.hasEnded);
  if (claim === undefined) throw new OnceError('no claim here: this code was not called by an idempotent function');
  return claim;
};

// Records the result in the transaction of `client`, and commits it. After any error it is rolled back.
async function commit(client, result) {
  const claim = (claims.getStore() ?? []).findLast((one) => !one.hasEnded);
  try {
    if (claim === undefined && SWITCH[(process.env.ONCE_DISABLED ?? '').toLowerCase()]) { // The function has reported it.
      await client.query('COMMIT');
      return result;
    }
    if (!policies.has(claim)) {
      throw new OnceError('nothing is committed: no claim here, or a middleware\'s: this code was not called by an idempotent function');
    }
    const { options, schema } = policies.get(claim);
    const stored = options.committed(result, claim.key);
    await claim.commitWith(client, schema, stored, options.members.retention_ms ?? 86_400_000);
    return result;
  } catch (error) {
    await client.query('ROLLBACK').catch(() => {}); // It may have ended already.
    throw error;
  }
}

// Whether ONCE_DISABLED switches protection off, as docs/testing.md has it. Each such run is reported.
function isDisabled(scope) {
  const word = process.env.ONCE_DISABLED ?? '';
  const off = SWITCH[word.toLowerCase()];
  if (off === undefined) throw new TypeError(`ONCE_DISABLED is '${word}': neither 1 nor 0`);
  if (off) warn(`ONCE_DISABLED is set: '${scope}' runs unprotected, so that it may run twice`);
  return off;
}

// How calls of one operation are claimed, and what becomes of them. Mistakes are reported where they are made.
class Options {
  constructor(scope, given) {
    const {
      lease = 30_000, wait = 10_000, retention, failureRetention, expected, onLapse = 'takeover', onError = 'release',
      onUnrecorded = 'return', retryFailures = false, derive = [], encode, decode, signal, payload, maxDuration, ...unknown
    } = given;
    if (Object.keys(unknown).length > 0) throw new TypeError(`there is no option ${Object.keys(unknown).join(', ')}`);
    if (typeof scope !== 'string' || scope === '') {
      throw new TypeError("scope is missing: the operation's name, such as 'charge'. A function's own name may change when it is bundled");
    }
    if (!['takeover', 'hold'].includes(onLapse)) throw new TypeError("onLapse is 'takeover' or 'hold'");
    if (!['return', 'throw'].includes(onUnrecorded)) throw new TypeError("onUnrecorded is 'return' or 'throw'");
    if (typeof onError !== 'function' && !FATES.includes(onError)) throw new TypeError(`onError is a function, or one of ${FATES.join(', ')}`);
    Object.assign(this, { scope, onError, onUnrecorded, encode, decode });
    this.maxDurationS = maxDuration === undefined ? Infinity : durationMs(maxDuration, 'maxDuration') / 1000;
    this.waitS = durationMs(wait, 'wait') / 1000;
    this.members = { scope, lease_ms: durationMs(lease, 'lease') };
    for (const [name, value] of Object.entries({ retention, failure_retention: failureRetention, expected })) {
      if (value !== undefined) this.members[`${name}_ms`] = durationMs(value, name);
    }
    if (onLapse !== 'takeover') this.members.on_lapse = onLapse;
    if (retryFailures) this.members.retry_failures = true;
    if (derive.length > 0) this.members.derive = [...derive];
  }

  // What is stored of the result. The work has run, so this never throws: it says that there is no result.
  stored(value, key) {
    try {
      return { body: encoded(this.encode ? this.encode(value) : value), type: JSON_TYPE };
    } catch (error) {
      warn(`'${key}' ran, and its result is not kept: ${error.message}`);
      return { body: Buffer.from(`its result is not JSON: ${error.message}`.slice(0, 1000)), type: NOT_KEPT };
    }
  }

  // The same for commit(), which can still refuse.
  committed(value, key) {
    let body;
    try {
      body = encoded(this.encode ? this.encode(value) : value);
    } catch (error) {
      throw new TypeError(`nothing is committed: the result of '${key}' is not JSON: ${error.message}`, { cause: error });
    }
    if (body.length > MAX_RESULT_BYTES) throw new TooLarge(`nothing is committed: the result of '${key}' has ${body.length} bytes`);
    return { body, type: JSON_TYPE };
  }

  decoded({ body, type }, key) {
    if (type === NOT_KEPT) throw new ResultNotKept(`'${key}' ran, and ${body}; it is not run again`);
    let value;
    try {
      if (type !== JSON_TYPE) throw new TypeError(`its result is of the type '${type}'`);
      value = JSON.parse(body.toString());
    } catch (error) {
      throw new ResultUnreadable(`'${key}' ran, and ${error.message}, not JSON`, { body, contentType: type });
    }
    return this.decode ? this.decode(value) : value;
  }

  // What a call resolves with that did not run; that ran, where another attempt's result counts; and where none is stored.
  replayed(stored, key) {
    return this.decoded(stored, key);
  }

  superseded(stored, key) {
    return this.decoded(stored, key);
  }

  lost(error, result) {
    if (!(error instanceof Unrecorded) || this.onUnrecorded === 'throw') throw error;
    warn(`${error.message}; its work has run, and may run again`);
    return result;
  }

  fate(error) {
    const fate = typeof this.onError === 'function' ? this.onError(error) : this.onError;
    return FATES.includes(fate) ? fate : 'hold'; // A function with a bug must not let the work run again.
  }
}

// By their numbers where one is left out: undefined has a default, and null has none.
function comparedArguments(args) {
  const given = args.includes(undefined) ? Object.fromEntries(Object.entries(args).filter(([, one]) => one !== undefined)) : args;
  return compared(given, '; name what counts by payload, such as (order) => order.total');
}

class Once {
  #transport;
  #timeoutS;
  #holder;
  #schema;
  #scopes = new Map();

  constructor(options = {}) {
    const { timeout = 10_000, holder = `pid ${process.pid}`, server, store, tokenFile, caFile, certFile, keyFile, program, schema = 'once', ...unknown } =
      typeof options === 'string' ? { store: options } : options;
    if (Object.keys(unknown).length > 0) throw new TypeError(`there is no option ${Object.keys(unknown).join(', ')}`);
    this.#transport = new Transport({ server, store, tokenFile, caFile, certFile, keyFile, program });
    this.#timeoutS = durationMs(timeout, 'timeout') / 1000;
    this.#holder = holder;
    this.#schema = schema;
  }

  close() {
    this.#transport.close();
  }

  makeIdempotent(fn, { key, scope, payload, ...more } = {}) {
    if (typeof fn !== 'function') throw new TypeError('makeIdempotent() takes a function');
    if (/Generator/.test(fn.constructor.name)) throw new TypeError('a generator has no single result');
    if (typeof key !== 'function') throw new TypeError('key is missing: a function of the arguments, such as (order) => order.id');
    if (payload !== undefined && payload !== null && typeof payload !== 'function') {
      throw new TypeError('payload is a function of the arguments that returns what is compared, or null');
    }
    const options = new Options(scope, more);
    this.#claimScope(scope, fn);
    const once = this;
    const run = async function (...args) {
      if (isDisabled(scope)) return fn.apply(this, args);
      while (args.length > 0 && args.at(-1) === undefined) args.pop(); // f(1) and f(1, undefined) are one call.
      const text = keyText(await key(...args));
      const compare = payload === undefined ? comparedArguments(args) : payload === null ? {} : compared(payload(...args));
      return once.#run(options, text, compare, () => fn.apply(this, args), more.signal);
    };
    Object.defineProperty(run, 'name', { value: fn.name });
    return run;
  }

  // Not by their sources: closures and bound functions that differ have the same one.
  #claimScope(scope, fn) {
    if ((this.#scopes.get(scope) ?? fn) !== fn) {
      throw new TypeError(
        `two functions have the scope '${scope}': they would give their results to one another's callers. Give each a scope ` +
          'of its own, or use call() for work that is made anew for each call',
      );
    }
    this.#scopes.set(scope, fn);
  }

  tool(fn, options) {
    const { tooled } = require('./tool.cjs');
    return tooled(fn, options, {
      run: (...of) => this.#run(...of),
      claimScope: (scope, one) => this.#claimScope(scope, one),
    });
  }

  // A decorator of methods. The function is the class's, so one scope serves all of its objects.
  idempotent(options) {
    return (method, context) => {
      if (context?.kind !== 'method' || typeof method !== 'function') {
        throw new TypeError('idempotent() decorates methods, as JavaScript has it: not with experimentalDecorators of TypeScript');
      }
      return this.makeIdempotent(method, options);
    };
  }

  async call(scope, key, fn, { payload, ...more } = {}) {
    const options = new Options(scope, more);
    if (isDisabled(scope)) throw new Unavailable('ONCE_DISABLED is set: there is no claim for this work; use makeIdempotent()');
    return this.#run(options, keyText(key), payload === undefined ? {} : compared(payload), fn, more.signal);
  }

  async #run(options, key, compare, work, signal) {
    const claim = await this.begin(options, key, compare, signal);
    if (!(claim instanceof Claim)) return options.replayed(claim, key);
    claim.startRenewing(options.maxDurationS);
    policies.set(claim, { options, schema: this.#schema });
    let result;
    try {
      result = await claims.run([...(claims.getStore() ?? []), claim], () => work(claim));
      // Its rows may have been rolled back, so no result is recorded.
      if (claim.resultInDoubt !== undefined) throw new Unrecorded(`the work of '${key}' returned, but its transaction may not have been committed`);
    } catch (error) {
      if (await ended(claim, options, error)) return options.decoded(claim.resultInDoubt, key);
      throw error;
    }
    if (claim.hasEnded) return result;
    try {
      const other = await claim.finishWith(options.stored(result, key));
      return other === undefined ? result : options.superseded({ body: other.body, type: other.type }, key);
    } catch (error) {
      if (!(error instanceof ClaimLost || error instanceof Unrecorded)) throw error;
      return options.lost(error, result);
    }
  }

  // A claim that is certainly ours now, or { body, type }. For the middleware too.
  async begin(options, key, compare, signal) {
    for (const claim of claims.getStore() ?? []) {
      if (claim.key === key && claim.scope === options.scope && !claim.hasEnded) {
        throw new InProgress(`'${key}' is asked for by its own work, which would wait for itself`, { retryAfterMs: 1000 });
      }
    }
    const waitedUntil = uptime() + options.waitS;
    for (;;) {
      signal?.throwIfAborted();
      const got = await this.#begin(options, key, compare, Math.max(waitedUntil - uptime(), 0), signal);
      if (!(got instanceof Claim)) return got;
      try {
        await got.check(); // After a long wait it may be over. Nothing has run: if it is lost, another one is as good.
        return got;
      } catch (error) {
        got.lapse();
        if (!(error instanceof ClaimLost)) throw error;
      }
    }
  }

  async #begin(options, key, compare, waitS, signal) {
    // The same bytes each time: that is how the server knows a call again whose answer was lost.
    const body = Buffer.from(JSON.stringify({
      ...options.members, key, ...compare, holder: `${this.#holder} ${options.scope}`.slice(0, 200),
      wait_ms: Math.floor(waitS * 1000), request_id: randomId(),
    }));
    const giveUp = uptime() + waitS + this.#timeoutS;
    const pause = pauses(signal);
    for (;;) {
      const sentAt = uptime();
      let answer;
      try {
        answer = await this.#transport.send(
          { method: 'POST', path: '/v1/claims', body, type: JSON_TYPE }, Math.max(giveUp - sentAt, 0.001), signal,
        );
        if (answer.status === 201) {
          return new Claim(this.#transport, this.#timeoutS, options.scope, key, answer.json(), sentAt, signal);
        }
      } catch (error) {
        if (!(error instanceof Unreachable)) throw error;
        if (error.fatal || uptime() >= giveUp) throw new Unavailable(`nothing was run: ${error.message}`);
        await pause(Math.max(giveUp - uptime(), 0));
        continue;
      }
      if (answer.status !== 503 && (answer.status < 500 || answer.isOfOnce)) return otherBegin(answer, key);
      if (uptime() + answer.retryAfterS >= giveUp) {
        const { word, detail } = answer.problem();
        throw new Unavailable(`nothing was run: ${word || answer.status}: ${detail}`);
      }
      await sleep(answer.retryAfterS * 1000, undefined, { signal });
    }
  }
}

function otherBegin(answer, key) {
  if (answer.status === 200 && answer.word === 'replayed') return { body: answer.body, type: answer.type };
  if (answer.status === 200 && answer.word === 'failed') {
    const { code = '', message = '', result, content_type: contentType = '' } = answer.json();
    throw new StoredFailure(`${code}: ${message}`, {
      code, failure: message, result: result === undefined ? undefined : Buffer.from(result, 'base64'), contentType,
    });
  }
  switch (answer.problem().word) {
    case 'in-progress':
      throw new InProgress(`another call with the key '${key}' is running`, { retryAfterMs: answer.json().retry_after_ms ?? 1000 });
    case 'key-reused':
      throw new KeyReused(`the key '${key}' was used with another payload; nothing was run`);
    case 'outcome-unknown':
      throw new OutcomeUnknown(`the outcome of '${key}' is unknown; nothing is run until an operator has decided`);
    case 'answer-not-kept':
      throw new ResultNotKept(`'${key}' ran, and its result was too large to keep; it is not run again`);
    default:
      throw refused(answer, `nothing was run for '${key}'`);
  }
}

// What becomes of the claim of work that threw. Resolves with whether its transaction that was in doubt has been committed.
async function ended(claim, options, error) {
  if (claim.hasEnded) return false;
  if (claim.lapses(error)) {
    claim.lapse();
    return false;
  }
  const name = error?.name ?? 'Error';
  const message = String(error?.message ?? error);
  try {
    const fate = options.fate(error);
    if (fate === 'fail') await claim.fail(name, message);
    else await claim[fate](`${name}: ${message}`);
  } catch (problem) {
    if (problem instanceof Committed) return true;
    if (!(problem instanceof OnceError)) throw problem;
    warn(`the end of '${claim.key}' was not recorded: ${problem.message}`);
  }
  return false;
}

module.exports = { ...errors, Claim, Once, commit, currentClaim, internal: { Options, isDisabled, claims } };
