'use strict';

// Handlers of web-standard requests: (Request, ...) => Response. Next.js, Hono, React Router and others have them.
const { Claim, Problem, Protection, SHARED, sha256 } = require('./http.cjs');

const NO_CONTENT = new Set([204, 205, 304]); // A Response with these has no body.

function onceRoute({ maxRequestBytes = 1024 * 1024, ...options } = {}, handler) {
  if (typeof handler !== 'function') throw new TypeError('the handler is missing: a function of a Request that returns a Response');
  if (!Number.isSafeInteger(maxRequestBytes) || maxRequestBytes < 0) throw new TypeError('maxRequestBytes is a number of bytes');
  const protection = new Protection(options);

  return async function onceHandler(request, ...more) {
    const url = new URL(request.url);
    const header = (name) => request.headers.get(name) ?? (name === 'host' ? url.host : undefined);
    const claim = await protection.begin({
      method: request.method, url: url.pathname + url.search, header, body: () => bodyOf(request, maxRequestBytes), request,
    });
    if (claim === undefined) return handler(request, ...more);
    if (!(claim instanceof Claim)) return responseOf(claim);
    let response;
    let isThrown = false;
    try {
      response = await protection.run(claim, () => handler(request, ...more));
    } catch (error) {
      response = error; // React Router's handlers throw a Response to give it.
      isThrown = true;
    }
    try {
      if (!isResponse(response)) throw isThrown ? response : new TypeError('the handler returned no Response');
      response = await finished(protection, claim, response);
    } catch (error) { // What the framework makes of it is not known here.
      if (!claim.hasEnded) await protection.giveUp(claim, `the handler threw ${error?.name ?? 'an error'}: ${error?.message ?? error}`);
      throw error;
    }
    if (isThrown) throw response;
    return response;
  };
}

const isResponse = (value) => Object.prototype.toString.call(value) === '[object Response]'; // Of any copy of the class.

async function finished(protection, claim, response) {
  const { status, statusText } = response;
  const headers = [...response.headers];
  const answer = { status, headers, body: Buffer.from(await response.arrayBuffer()) };
  const told = await protection.finish(claim, answer);
  return responseOf(told, told === answer ? statusText : undefined);
}

function responseOf({ status, headers, body }, statusText) {
  return new Response(NO_CONTENT.has(status) ? null : body, { status, statusText, headers });
}

// What is compared of a body. A copy of it is read, so that the handler reads its own.
async function bodyOf(request, maxBytes) {
  if (request.body === null) return undefined;
  if (request.bodyUsed) throw new TypeError('onceRoute() must stand before what reads the body: nothing could be compared');
  const bytes = await read(request, maxBytes);
  if (bytes === undefined) throw new Problem('body-too-large', 413, 'The body is too large', 'Nothing was carried out.');
  const type = request.headers.get('content-type') ?? '';
  const [name] = type.split(';', 1).map((text) => text.trim().toLowerCase());
  if (request.headers.get('content-encoding') === null) {
    if (name === 'application/json' || name.endsWith('+json')) return { json: json(bytes) ?? sha256(bytes) };
    if (name === 'multipart/form-data') return { form: await form(bytes, type) ?? sha256(bytes) };
  }
  return bytes.length === 0 ? undefined : { sha256: sha256(bytes) };
}

// undefined: it is too large, and neither copy is wanted.
async function read(request, maxBytes) {
  const reader = request.clone().body.getReader();
  const parts = [];
  let length = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return Buffer.concat(parts);
    length += value.length;
    if (length > maxBytes) {
      Promise.all([reader.cancel(), request.body.cancel()]).catch(() => {}); // The first ends only with the second.
      return undefined;
    }
    parts.push(value);
  }
}

// A list, which no digest is. undefined: it has no single meaning, and its bytes count.
function json(bytes) {
  const exact = (name, value) => {
    if (typeof value === 'number' && Math.abs(value) > Number.MAX_SAFE_INTEGER) throw new RangeError(value);
    return value;
  };
  try {
    return [JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes), exact)];
  } catch {
    return undefined;
  }
}

// The parts of a form, without their boundary, which each attempt draws anew.
async function form(bytes, type) {
  try {
    const data = await new Response(bytes, { headers: { 'content-type': type } }).formData();
    return await Promise.all([...data].map(async ([name, value]) => (
      typeof value === 'string' ? [name, value] : [name, value.name, value.type, sha256(Buffer.from(await value.arrayBuffer()))]
    )));
  } catch {
    return undefined;
  }
}

module.exports = { onceRoute, SHARED };
