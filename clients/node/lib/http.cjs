'use strict';

// Requests with an Idempotency-Key run once, as docs/http.md has it: what the frameworks have in common. Protection
// serves all of them, keepResponse() those on node:http.
const { createHash } = require('node:crypto');
const { internal, Claim, Once, OnceError, InProgress, KeyReused, OutcomeUnknown, ClaimLost, ResultNotKept, StoredFailure, Unavailable, Unrecorded } =
  require('./index.cjs');
const { BUGS, compared } = require('./values.cjs');
const { NOT_KEPT, warn } = require('./claim.cjs');

const ANSWER = 'application/vnd.once.http-response+json'; // How a response is stored.
const SHARED = Symbol('once.SHARED');
const RELEASED = new Set([401, 403, 407, 408, 409, 421, 425, 429]); // Nothing was done.
const ERRORS_KEPT = new Set([500, 501, 505]);
const NOT_STORED = new Set([
  'connection', 'keep-alive', 'proxy-authenticate', 'proxy-authorization', 'proxy-connection', 'te', 'trailer',
  'transfer-encoding', 'upgrade', 'date', 'server', 'set-cookie', 'www-authenticate', 'content-length',
]);
const UNSTABLE_HEADERS = /signature|^(dpop|date|x-amz-date|x-amz-security-token|x-request-id|traceparent)$/i;
const UNSTABLE_SCHEMES = /^(aws4-hmac-sha256|hmac|signature|digest|oauth|dpop|hawk|negotiate|sharedkey)\b/i;
const JWT = /eyJ[\w-]*\.eyJ[\w-]*\.[\w-]*/;
const sha256 = (data) => createHash('sha256').update(data).digest('hex');

class Problem extends Error {
  constructor(word, status, title, detail, retryAfterS) {
    super(detail);
    this.body = JSON.stringify({ type: `urn:once:problem:${word}`, title, status, detail });
    this.status = status;
    this.headers = [['Content-Type', 'application/problem+json'], ['Cache-Control', 'no-store']];
    if (retryAfterS !== undefined) this.headers.push(['Retry-After', String(Math.max(1, Math.ceil(retryAfterS)))]);
  }
}

const notKept = () => new Problem('answer-not-kept', 410, 'The answer was too large to keep', 'The operation ran, and is not run again.');

// Of a begin: this request has done nothing.
function problemOf(error) {
  if (error instanceof InProgress) {
    return new Problem('in-progress', 409, 'The operation is in progress', 'Send the same request again after Retry-After.', error.retryAfterMs / 1000);
  }
  if (error instanceof KeyReused) {
    return new Problem('key-reused', 422, 'Idempotency key is already used', 'The key was used with another request. This request was not carried out.');
  }
  if (error instanceof OutcomeUnknown) {
    return new Problem('outcome-unknown', 409, 'The outcome is not known', 'The operation began, and is not run again until an operator has decided.');
  }
  if (error instanceof StoredFailure) {
    return new Problem('operation-failed', 500, 'The operation has failed', 'It ran earlier and is recorded as failed. It does not run again with this idempotency key.');
  }
  if (error instanceof ResultNotKept) return notKept();
  if (error instanceof Unavailable) return new Problem('store-unavailable', 503, 'The store cannot be used', 'Nothing was carried out.', 1);
  return new Problem('internal', 500, 'The request could not be protected', 'Nothing was carried out.');
}

// The request was carried out.
function problemOfFinish(error) {
  warn(`the answer of a request was not recorded: ${error.message}`);
  if (error instanceof ClaimLost) {
    return new Problem('claim-lost', 409, 'Another request took over this operation',
      'This request lost its claim while it ran, and its answer was not kept. Send it again after the time in Retry-After to get the answer that counts.', 1);
  }
  return new Problem('not-recorded', 503, 'The answer could not be recorded',
    'The operation was carried out, but its answer could not be recorded. Send the same request again after the time in Retry-After.', 1);
}

// The keys of one header line: quoted as the draft has them, or bare; intermediaries join lines with commas.
function keysIn(line) {
  const invalid = (why) => new Problem('key-invalid', 400, 'Idempotency key is invalid', `${why}. Nothing was carried out.`);
  const keys = [];
  let rest = line.trim();
  do {
    const quoted = /^"((?:[^"\\]|\\["\\])*)"\s*(?:;[^,"]*)?/.exec(rest);
    if (quoted) {
      keys.push(quoted[1].replace(/\\(.)/g, '$1'));
      rest = rest.slice(quoted[0].length).trim();
      if (rest !== '' && !rest.startsWith(',')) throw invalid('There is something after the quotes');
      rest = rest.slice(1).trim();
    } else {
      const [bare] = rest.split(',', 1);
      if (bare.includes('"')) throw invalid('It is wrongly quoted');
      keys.push(bare.trim());
      rest = rest.slice(bare.length + 1).trim();
    }
  } while (rest !== '');
  for (const key of keys) {
    if (!/^[\x20-\x7e]{1,255}$/.test(key)) throw invalid('It has 1 to 255 printable ASCII characters');
    if (BUGS.has(key.trim().toLowerCase())) throw invalid('It is what a program with a bug sends in place of a key');
  }
  return keys;
}

// How the requests of one service are protected.
class Protection {
  constructor({
    once, principal, service = '', methods = ['POST', 'PATCH'], keyHeader = 'Idempotency-Key', optionalKey = false,
    maxAnswerBytes = 1024 * 1024, onAmbiguous = 'hold', wait = 0, lease = 30_000, retention = '1d', maxDuration = '10m',
    ...unknown
  } = {}) {
    if (Object.keys(unknown).length > 0) throw new TypeError(`there is no option ${Object.keys(unknown).join(', ')}`);
    if (!(once instanceof Once)) throw new TypeError('once is missing: a client, new Once(...), of this copy of the package');
    if (typeof principal !== 'string' && typeof principal !== 'function' && principal !== SHARED) {
      throw new TypeError('principal is missing: the name of a header, a function of the request, or SHARED');
    }
    if (typeof principal === 'string' && (principal === '' || UNSTABLE_HEADERS.test(principal))) {
      throw new TypeError(`the header '${principal}' changes with each request: a retry would be another client's`);
    }
    if (!Array.isArray(methods) || methods.length === 0 || !methods.every((one) => ['POST', 'PATCH', 'PUT', 'DELETE'].includes(one))) {
      throw new TypeError('methods are of POST, PATCH, PUT and DELETE');
    }
    if (!['hold', 'takeover'].includes(onAmbiguous)) throw new TypeError("onAmbiguous is 'hold' or 'takeover'");
    this.policy = { wait, lease, retention, onLapse: onAmbiguous, maxDuration };
    new internal.Options('check', this.policy); // Mistakes are reported where they are made.
    Object.assign(this, { once, principal, service, methods, keyHeader: keyHeader.toLowerCase(), optionalKey, maxAnswerBytes, onAmbiguous });
  }

  // undefined: the request passes through. `header` is a function of a name in lower case.
  keyOf(method, header) {
    if (!this.methods.includes(method)) return undefined; // HTTP/1 by Node has methods in capitals only.
    const keys = new Set([header(this.keyHeader) ?? []].flat().flatMap(keysIn));
    if (keys.size > 1) throw new Problem('keys-differ', 400, 'Two idempotency keys', 'Send one. Nothing was carried out.');
    if (keys.size === 1) return [...keys][0];
    if (this.optionalKey) return undefined;
    throw new Problem('key-missing', 400, 'Idempotency key is missing', 'Send a new key for each operation, such as a UUID, and the same one with every retry. Nothing was carried out.');
  }

  #who(header, request) {
    if (this.principal === SHARED) return '';
    const value = typeof this.principal === 'string' ? header(this.principal.toLowerCase()) : this.principal(request);
    const text = typeof value === 'string' || typeof value === 'number' ? String(value).trim().toLowerCase() : '';
    if (text === '' || BUGS.has(text)) { // All clients would be one, and get one another's answers.
      throw new Problem('principal-missing', 400, 'The client is not known', 'A key belongs to a client. Nothing was carried out.');
    }
    if (JWT.test(value) || UNSTABLE_SCHEMES.test(value)) {
      throw new Problem('principal-unstable', 400, 'The credentials change with each request', "A retry would be another client's. Nothing was carried out.");
    }
    return `${typeof value}:${value}`;
  }

  // A claim that is renewed, or what the client gets at once. undefined: the request passes through. `body` is a function
  // that returns what is compared of it. `request` is the framework's, for the function that says whose it is.
  async begin({ method, url, header, body, request }) {
    try {
      const key = this.keyOf(method, header);
      if (key === undefined) return undefined;
      const [whole, query = ''] = url.split(/\?(.*)/s);
      const path = Buffer.byteLength(whole) > 128 ? whole.slice(0, 128) + sha256(whole) : whole;
      const scope = `${this.service}/${method} ${path} ${sha256(this.#who(header, request))}`;
      const compare = compared({ host: header('host') ?? '', query, body: await body() });
      if (internal.isDisabled(scope)) return undefined;
      const options = new internal.Options(scope, this.policy);
      const claim = await this.once.begin(options, key, compare);
      if (!(claim instanceof Claim)) return replayed(claim);
      claim.startRenewing(options.maxDurationS);
      return claim;
    } catch (error) {
      if (error instanceof Problem) return error;
      if (error instanceof OnceError) return problemOf(error);
      throw error;
    }
  }

  // Runs the handler, which finds its claim by currentClaim().
  run(claim, handler) {
    return internal.claims.run([...(internal.claims.getStore() ?? []), claim], handler);
  }

  // What the client gets, once it is recorded what became of the request.
  async finish(claim, answer) {
    try {
      if (RELEASED.has(answer.status)) {
        await settle(claim.release(`the answer was ${answer.status}`));
      } else if (!(answer.status >= 200 && answer.status < 500) && !ERRORS_KEPT.has(answer.status)) {
        await this.giveUp(claim, `the answer was ${answer.status}`);
      } else {
        const other = await claim.finishWith(this.#stored(answer));
        return other === undefined ? answer : replayed({ body: other.body, type: other.type });
      }
    } catch (error) {
      if (error instanceof Problem) return error;
      if (!(error instanceof Unrecorded)) return problemOfFinish(error);
      warn(`${error.message}; its answer is given, and it may run again`);
    }
    return answer;
  }

  // What the request has done is not known.
  async giveUp(claim, reason) {
    if (this.onAmbiguous === 'hold') await settle(claim.hold(reason));
    else claim.lapse();
  }

  #stored({ status, headers, body }) {
    if (body.length > this.maxAnswerBytes) return { body: Buffer.from(`a response of ${body.length} bytes is too large to keep`), type: NOT_KEPT };
    const kept = headers.filter(([name]) => !NOT_STORED.has(name.toLowerCase()));
    return { body: Buffer.from(JSON.stringify({ status, headers: kept, body: body.toString('base64') })), type: ANSWER };
  }
}

async function settle(end) {
  try {
    await end;
  } catch (error) {
    warn(`the end of a request was not recorded: ${error.message}`);
  }
}

function replayed({ body, type }) {
  if (type === NOT_KEPT) throw notKept();
  if (type !== ANSWER) throw new Problem('record-unreadable', 500, 'The stored answer cannot be read', 'The operation is not run again.');
  const { status, headers, body: text } = JSON.parse(body.toString());
  return { status, headers: [...headers, ['Idempotent-Replayed', 'true']], body: Buffer.from(text, 'base64') };
}

// ---- node:http

// What is compared of a body that a parser of the framework has read.
function parsedBody(request, body, isUnread, where) {
  const hasBody = Number(request.headers['content-length'] ?? 0) > 0 || request.headers['transfer-encoding'] !== undefined;
  if (hasBody && (body === undefined || isUnread)) throw new TypeError(`${where}: nothing could be compared`);
  return ArrayBuffer.isView(body) ? { sha256: sha256(body) } : body;
}

// The handler writes to a buffer. What it wrote is sent once it is recorded what became of the request.
function keepResponse(protection, response, claim) {
  const real = {};
  for (const name of ['write', 'end', 'writeHead', 'setHeader', 'flushHeaders', 'destroy']) real[name] = response[name];
  const parts = [];
  let isEnded = false;
  const keep = (part, encoding) => {
    if (part !== undefined && part !== null && typeof part !== 'function') {
      parts.push(typeof part === 'string' ? Buffer.from(part, typeof encoding === 'string' ? encoding : 'utf8') : Buffer.from(part));
    }
  };
  response.writeHead = (status, ...more) => {
    requireStatus(status);
    response.statusCode = status;
    const headers = more.at(-1);
    if (typeof more[0] === 'string') response.statusMessage = more[0];
    if (Array.isArray(headers)) for (let i = 0; i < headers.length; i += 2) response.setHeader(headers[i], headers[i + 1]);
    else if (typeof headers === 'object') for (const [name, value] of Object.entries(headers)) response.setHeader(name, value);
    return response;
  };
  response.setHeader = (name, value) => {
    if (response.headersSent) throw Object.assign(new Error('Cannot set headers after they are sent to the client'), { code: 'ERR_HTTP_HEADERS_SENT' });
    return real.setHeader.call(response, name, value);
  };
  response.flushHeaders = () => {};
  response.write = (part, encoding, done) => {
    keep(part, encoding);
    const callback = [encoding, done].find((one) => typeof one === 'function');
    if (callback) process.nextTick(callback);
    return true;
  };
  response.end = (part, encoding, done) => {
    if (isEnded) return response;
    requireStatus(response.statusCode);
    isEnded = true;
    keep(part, encoding);
    const callback = [part, encoding, done].find((one) => typeof one === 'function');
    const answer = { status: response.statusCode, headers: headersOf(response), body: Buffer.concat(parts) };
    const { statusMessage } = response;
    protection.finish(claim, answer).then((told) => {
      Object.assign(response, real);
      delete response.headersSent;
      delete response.writableEnded;
      // As they were: Express writes an error into them if the handler raises one after this.
      for (const name of response.getHeaderNames()) response.removeHeader(name);
      response.statusMessage = told === answer ? statusMessage : undefined;
      return send(response, told, callback);
    }).catch((error) => {
      warn(`the response of a request could not be sent: ${error.message}`);
      real.destroy.call(response, error);
    });
    return response;
  };
  // Frameworks ask for these before they respond to an error: what was written must not get a second response behind it.
  Object.defineProperties(response, {
    headersSent: { get: () => parts.length > 0 && !isEnded, configurable: true },
    writableEnded: { get: () => isEnded, configurable: true },
  });
  // A client that hangs up changes nothing: the handler may still end its response. One that the handler destroys has none.
  response.destroy = (error) => {
    if (!isEnded) {
      isEnded = true;
      protection.giveUp(claim, 'the handler destroyed its response');
    }
    return real.destroy.call(response, error);
  };
}

// As Node checks it when it sends, which is too late here.
function requireStatus(status) {
  if (!((status | 0) >= 100 && (status | 0) <= 999)) throw new RangeError(`Invalid status code: ${status}`);
}

const headersOf = (response) => response.getRawHeaderNames().flatMap((name) => [response.getHeader(name)].flat().map((value) => [name, String(value)]));

// A name once, with its value or a list of them.
function grouped(headers) {
  const all = new Map();
  for (const [name, value] of headers) all.set(name, [...(all.get(name) ?? []), value]);
  return [...all].map(([name, values]) => [name, values.length === 1 ? values[0] : values]);
}

function send(response, { status, headers, body }, done) {
  response.statusCode = status;
  for (const [name, value] of grouped(headers)) response.setHeader(name, value);
  response.end(body, done);
}

module.exports = { Claim, Protection, Problem, SHARED, grouped, keepResponse, parsedBody, send, sha256 };
