'use strict';

// A claim: what to send about it, and what the answers mean.
const { ClaimLost, OnceError, Refused, StepReused, TooLarge, Unavailable, Unrecorded } = require('./errors.cjs');
const { pauses, uptime } = require('./kernel.cjs');
const { Unreachable } = require('./transport.cjs');
const { encoded } = require('./values.cjs');

const JSON_TYPE = 'application/json';
const NOT_KEPT = 'application/vnd.once.not-kept'; // A result that could not be kept; its bytes say why, for people.
const MAX_RESULT_BYTES = 2 * 1024 * 1024;

const json = (value) => Buffer.from(JSON.stringify(value));
const warn = (message) => process.emitWarning(message, 'OnceWarning');
const cut = (text, bytes) => {
  const data = Buffer.from(String(text));
  return data.length <= bytes ? String(text) : data.toString('utf8', 0, bytes).replace(/\ufffd+$/, '');
};

// `what` also says whether anything ran.
function refused(answer, what) {
  const { word, detail } = answer.problem();
  return new Refused(`${what}: the server refused it: ${answer.status} ${word}: ${detail}${answer.advised}`, { status: answer.status, reason: word });
}

// The transaction that was in doubt was committed.
class Committed extends OnceError {}

// A COMMIT that PostgreSQL answered by ROLLBACK, which is no error there.
class RolledBack extends OnceError {}

// SQLSTATE of an error that the database has sent: `code` may also be the system's, such as EPIPE.
const stateOf = (error) => (error?.severity === undefined ? '' : String(error.code));

// Whether this error of COMMIT says so. A connection that broke says nothing, and neither does a pooler's word that its own
// connection to the database did.
const isRolledBack = (error) => error instanceof RolledBack || !/^$|^(08|57|58|XX)|^40003$/.test(stateOf(error));

// What the store's function, or its absence, means for the work.
function explained(error, schema, key) {
  const { name, text } = {
    ON001: {
      name: 'ClaimLost',
      text: `this transaction does not find the claim of '${key}'. Another attempt or an operator has taken it. Or the ` +
        "transaction began before the claim, under repeatable read; or the client is of another database than the store's",
    },
    42883: { text: `the client's database has no ${schema}.finish_or_raise(). It must be the store's: name its schema by new Once({ schema }), and run 'once table create' after an upgrade` },
    42501: { text: "the client's role may not finish claims: run 'once table create --role ROLE'" },
  }[stateOf(error).replace('3F000', '42883')] ?? {};
  if (text === undefined) return error;
  return new (name === 'ClaimLost' ? ClaimLost : OnceError)(`nothing is committed: ${text}`, { cause: error });
}

class Claim {
  #transport;
  #timeoutS;
  #id;
  #steps;
  #timer;
  #abort = new AbortController();
  #ended = false;
  #renewUntil;
  #forget;
  #storedKey;
  #owner; // Empty: of a server whose claims are of another version.
  #isHandedOut = false; // To a transaction, which ends the claim: a renewal then finds it gone.
  #inDoubt; // The result of a transaction that may have been committed.
  #isUnseen = false; // The work's client did not find the claim. The server may.

  constructor(transport, timeoutS, scope, key, got, sentAt, signal) {
    this.#transport = transport;
    this.#timeoutS = timeoutS;
    this.scope = scope;
    this.key = key;
    try {
      this.#id = encodeURIComponent(got.claim);
      this.attempt = got.attempt;
      this.token = got.token;
      this.leaseS = got.lease_ms / 1000;
      this.validUntil = sentAt + got.valid_for_ms / 1000;
      this.#steps = new Map(Object.entries(got.steps).map(([name, text]) => [name, Buffer.from(text, 'base64')]));
      this.#storedKey = got.stored_key_hex;
      this.#owner = got.claim.startsWith('01') ? got.claim.slice(2, 34) : '';
      this.derivedKeys = Object.freeze({ ...got.derived_keys });
      if (!got.claim || !Number.isFinite(this.validUntil) || !(this.leaseS > 0)) throw new TypeError('members are missing');
    } catch (error) {
      throw new Unreachable(`the server's claim is malformed: ${error.message}`, true);
    }
    // Aborted when the claim is lost, or when the caller cancels.
    this.signal = this.#abort.signal;
    const cancel = () => this.#abort.abort(signal.reason);
    if (signal?.aborted) cancel();
    signal?.addEventListener('abort', cancel, { once: true });
    this.#forget = () => signal?.removeEventListener('abort', cancel); // The signal may outlive many claims.
  }

  get validForMs() {
    return Math.max(0, (this.validUntil - uptime()) * 1000);
  }

  get hasEnded() {
    return this.#ended;
  }

  // ---- for once.cjs

  startRenewing(maxDurationS) {
    this.#renewUntil = uptime() + maxDurationS;
    this.#renewAfter(this.leaseS / 3);
  }

  lapse() {
    this.#stop();
  }

  #stop() {
    this.#ended = true;
    clearTimeout(this.#timer);
    this.#forget();
  }

  #renewAfter(seconds) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(async () => {
      if (uptime() >= this.#renewUntil) {
        warn(`the work of '${this.key}' runs for longer than maxDuration: its claim is not renewed, and lapses`);
        return;
      }
      let following = this.leaseS / 3;
      try {
        await this.#renew(Math.min(this.#timeoutS, this.leaseS / 3));
      } catch (error) {
        if (error instanceof ClaimLost) {
          if (this.#isHandedOut || this.#inDoubt !== undefined) return;
          this.#abort.abort(error);
          return;
        }
        if (error instanceof Unreachable) following = Math.min(this.leaseS / 20, 1);
        else warn(error.message);
      }
      if (!this.#ended) this.#renewAfter(following);
    }, seconds * 1000);
    this.#timer.unref(); // The work keeps the process alive, or nothing does.
  }

  #lost() {
    return new ClaimLost(
      `the claim of '${this.key}' was lost while the work ran, and no result is stored; look what the work has done`,
    );
  }

  async #renew(timeoutS, note) {
    const sentAt = uptime();
    const body = note === undefined ? undefined : json({ note });
    const answer = await this.#transport.send({ method: 'POST', path: this.#path('renew'), body, type: JSON_TYPE }, timeoutS);
    if (answer.status === 200 && answer.word === 'renewed') {
      this.validUntil = Math.max(this.validUntil, sentAt + answer.json().valid_for_ms / 1000);
      return;
    }
    if (answer.status === 503 || !answer.isOfOnce) throw new Unreachable('the server could not renew the claim yet');
    if (answer.status === 409 || answer.status === 200) throw this.#lost();
    throw refused(answer, `the claim of '${this.key}' is not renewed`);
  }

  #path(word) {
    return `/v1/claims/${this.#id}/${word}`;
  }

  // Sends until it is answered, for one lease from now: then the claim is over, whenever it was renewed.
  async #persist(method, word, body, type) {
    const giveUp = uptime() + this.leaseS;
    const pause = pauses();
    for (;;) {
      let why;
      try {
        const answer = await this.#transport.send({ method, path: this.#path(word), body, type }, this.#timeoutS);
        if (answer.isOfOnce && ![401, 500, 502, 503, 504].includes(answer.status)) return answer;
        why = `${answer.status} ${answer.problem().word || 'of another server'}`;
      } catch (error) {
        if (!(error instanceof Unreachable)) throw error;
        why = error.message;
      }
      if (uptime() >= giveUp) throw new Unrecorded(`the end of '${this.key}' could not be recorded: ${why}`);
      await pause();
    }
  }

  // Resolves with undefined when it is recorded, else with the answer that has another attempt's result.
  async finish(word, body, type = JSON_TYPE) {
    this.#ended = true;
    try {
      const answer = await this.#persist('POST', word, body, type);
      if (answer.status === 200 && answer.word === 'recorded') return undefined;
      if (answer.status === 200 && answer.word === 'superseded') return answer;
      if (answer.status === 413) throw new TooLarge(answer.problem().detail);
      if (answer.status === 409) {
        if (this.#inDoubt !== undefined && answer.problem().word === 'already-finished') throw new Committed('it was committed');
        throw this.#lost();
      }
      throw refused(answer, `the work of '${this.key}' ran, and its end is not recorded`);
    } finally {
      this.#stop();
    }
  }

  // `stored` is { body, type }. A result that is too large is replaced by a note of that.
  async finishWith(stored) {
    if (stored.body.length <= MAX_RESULT_BYTES) {
      try {
        return await this.finish('complete', stored.body, stored.type);
      } catch (error) {
        if (!(error instanceof TooLarge)) throw error;
      }
    }
    warn(`'${this.key}' ran, and its result of ${stored.body.length} bytes was too large to keep`);
    return this.finish('complete', Buffer.from(`a result of ${stored.body.length} bytes was too large to keep`), NOT_KEPT);
  }

  // Records the result in the transaction of `client`, as its last statement, and commits it.
  async commitWith(client, schema, stored, retentionMs) {
    if (this.#ended || this.#owner === '') {
      throw new OnceError(`nothing is committed: the claim of '${this.key}' has ended, or is of a server that this package does not know`);
    }
    await this.check();
    try {
      await client.query('SAVEPOINT once_commit; RELEASE SAVEPOINT once_commit');
    } catch (error) {
      if (stateOf(error) !== '25P01') throw error;
      throw new OnceError(
        'nothing is committed: without BEGIN on this client the rows are committed already, each by itself. Of a pool use a ' +
          'client of its own, as by pool.connect()',
      );
    }
    this.#isHandedOut = true; // A renewal that found the claim finished would take it for lost.
    let isFinished = false;
    try {
      await client.query(
        `SELECT "${schema.replaceAll('"', '""')}".finish_or_raise($1::text, $2::text, $3::bytea, $4::text, $5::text::interval)`,
        [this.#storedKey, this.#owner, stored.body, stored.type, `${retentionMs} milliseconds`],
      );
      isFinished = true;
      this.#inDoubt = stored; // An earlier commit was rolled back: the claim was there.
      const done = await client.query('COMMIT');
      if (done?.command === 'ROLLBACK') {
        throw new RolledBack(`nothing is committed for '${this.key}': another statement of this transaction failed meanwhile`);
      }
    } catch (error) {
      this.#isHandedOut = false;
      if (isFinished) {
        if (isRolledBack(error)) this.#inDoubt = undefined;
      } else if (this.#inDoubt === undefined) {
        this.#isUnseen = stateOf(error) === 'ON001';
        throw explained(error, schema, this.key);
      }
      throw error;
    }
    this.#inDoubt = undefined;
    this.#stop();
    // Ends the claim in the server, which would find out by its next renewal. What is committed is not released.
    this.#transport.send({ method: 'POST', path: this.#path('release'), body: json({ reason: 'COMMIT rolled back' }), type: JSON_TYPE }, 1).catch(() => {});
  }

  // Whether nothing is to be sent for this error of the work: it was cancelled, or its claim is lost, and it may have acted.
  // After a commit that may have been carried out, or did not see the claim, the server knows how it stands.
  lapses(error) {
    const isLost = error instanceof ClaimLost && this.#inDoubt === undefined && !this.#isUnseen;
    return isLost || this.signal.aborted;
  }

  get resultInDoubt() {
    return this.#inDoubt;
  }

  // ---- for the work

  // Look before you leap: resolves if the claim is certainly still ours, else rejects with ClaimLost.
  async check() {
    if (this.signal.aborted) throw this.signal.reason;
    const giveUp = uptime() + this.#timeoutS;
    const pause = pauses();
    while (this.validUntil <= uptime()) {
      try {
        await this.#renew(Math.max(giveUp - uptime(), 0.001));
      } catch (error) {
        if (!(error instanceof Unreachable)) throw error;
        if (error.fatal || uptime() >= giveUp) {
          throw new Unavailable(`whether the claim of '${this.key}' still stands is not known: ${error.message}`);
        }
      }
      if (this.validUntil > uptime()) return;
      if (uptime() >= giveUp) {
        throw new Unavailable(`the claim of '${this.key}' is over each time before it can be used: raise the lease`);
      }
      await pause();
    }
  }

  // For operators, who see it with the record: how far the work is.
  async note(text) {
    try {
      await this.#renew(this.#timeoutS, text);
    } catch (error) {
      if (!(error instanceof Unreachable)) throw error;
    }
  }

  // The result of fn(), which is kept in the record: an attempt that takes over gets it, and does not call fn.
  async step(name, fn) {
    if (typeof name !== 'string' || name === '' || Buffer.byteLength(name) > 255) {
      throw new TypeError("a step's name has 1 to 255 bytes");
    }
    const known = this.#steps.get(name);
    if (known !== undefined) return JSON.parse(known.toString());
    await this.check();
    const value = await fn();
    let body;
    try {
      body = encoded(value);
    } catch (error) {
      throw new TypeError(`the step '${name}' ran, and is not recorded: its result is not JSON: ${error.message}`, { cause: error });
    }
    const path = `steps/${encodeURIComponent(name).replaceAll('.', '%2E')}`;
    const answer = await this.#persist('PUT', path, body, JSON_TYPE);
    if (answer.status === 200 && answer.word === 'recorded') {
      this.#steps.set(name, body);
      return value;
    }
    const { word, detail } = answer.problem();
    if (answer.status === 413) throw new TooLarge(`the step '${name}' has no room in the record: ${detail}`);
    if (word === 'already-finished') throw new StepReused(`the step '${name}' was finished with another result`);
    if (answer.status === 409 || answer.status === 200) throw this.#lost();
    throw refused(answer, `the step '${name}' ran, and is not recorded`);
  }

  #begin() {
    if (this.#ended) throw new OnceError(`the claim of '${this.key}' has ended already`);
  }

  // Nothing was done: the next caller may run it at once.
  async release(reason = '') {
    this.#begin();
    await this.finish('release', json({ reason: cut(reason, 1000) || 'release' }));
  }

  // The outcome is not known: nothing is run until an operator has decided.
  async hold(reason) {
    this.#begin();
    await this.finish('hold', json({ reason: cut(reason, 1000) || 'hold' }));
  }

  // A failure that is replayed to later callers as StoredFailure.
  async fail(code, message = '') {
    this.#begin();
    await this.finish('fail', json({ code: cut(code, 255) || 'failed', message: cut(message, 4096) }));
  }
}

module.exports = { Claim, Committed, refused, warn, JSON_TYPE, NOT_KEPT };
