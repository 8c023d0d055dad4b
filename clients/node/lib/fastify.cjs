'use strict';

// A plugin for Fastify. It claims in a preHandler hook: what hooks before it and the schemas refuse has no claim.
const { Claim, Protection, SHARED, grouped, keepResponse, parsedBody } = require('./http.cjs');

const UNREAD = 'onceFastify finds no body of this request, because the parser of its content type keeps none';

async function onceFastify(fastify, { prefix, logLevel, logSerializers, ...options }) {
  const protection = new Protection(options);
  if (fastify.initialConfig?.http2) throw new TypeError('onceFastify serves HTTP/1.1 only; let a proxy in front speak HTTP/2');
  fastify.decorateRequest('onceClaim', null);

  fastify.addHook('preHandler', (request, reply, next) => {
    if (request.is404) return next();
    protection.begin({
      method: request.method, url: request.originalUrl, header: (name) => request.headers[name],
      body: () => parsedBody(request.raw, request.body, false, UNREAD), request,
    }).then((got) => {
      if (got === undefined) return next();
      if (!(got instanceof Claim)) return respond(reply, got);
      request.onceClaim = got;
      keepResponse(protection, reply.raw, got);
      protection.run(got, next);
    }, next);
  });

  // A stream is read to its end first: Fastify would cut it short when the client hangs up. Others are not made to wait,
  // so that a handler which throws after reply.send() has sent its response.
  fastify.addHook('onSend', (request, reply, payload, next) => {
    const isStream = request.onceClaim !== null && payload !== null && typeof payload === 'object' && !ArrayBuffer.isView(payload);
    if (!isStream) return next(null, payload);
    whole(reply, payload).then((body) => next(null, body), next);
  });
}

async function whole(reply, payload) {
  if (Object.prototype.toString.call(payload) === '[object Response]') {
    reply.code(payload.status);
    for (const [name, value] of payload.headers) reply.header(name, value);
    return Buffer.from(await payload.arrayBuffer());
  }
  if (typeof payload[Symbol.asyncIterator] !== 'function') return payload;
  const parts = [];
  for await (const part of payload) parts.push(Buffer.from(part));
  return Buffer.concat(parts);
}

function respond(reply, { status, headers, body }) {
  reply.code(status);
  for (const [name, value] of grouped(headers)) reply.header(name, value);
  reply.send(body.length === 0 ? undefined : Buffer.from(body));
}

// As fastify-plugin does it: the hooks are the application's, not only the plugin's own.
onceFastify[Symbol.for('skip-override')] = true;
onceFastify[Symbol.for('fastify.display-name')] = 'once-idempotency';
onceFastify[Symbol.for('plugin-meta')] = { name: 'once-idempotency', fastify: '>=5' };

module.exports = { onceFastify, SHARED };
