// Run by node_frameworks_test.py: the Node package in frameworks of npm. ONCE_SERVER names a server on an empty store.
import assert from 'node:assert/strict';
import { once as event } from 'node:events';
import { createRequire } from 'node:module';
import { Readable } from 'node:stream';
import { test } from 'node:test';

import { Once, currentClaim } from '../../clients/node/lib/index.mjs';
import { onceFastify, SHARED } from '../../clients/node/lib/fastify.mjs';

const load = createRequire(`${process.env.ONCE_TEST_MODULES}/x.js`);
const fastify = load('fastify');

const once = new Once({ timeout: '60s' });
const refusing = new Once({ server: process.env.ONCE_TEST_REFUSING, timeout: '60s' });
test.after(() => [once, refusing].forEach((one) => one.close()));

// What the handlers of every framework do. `made` has what they did.
function shop() {
  const made = [];
  const gates = Object.fromEntries(['entered', 'left'].map((name) => {
    let open;
    const opened = new Promise((resolve) => { open = resolve; });
    return [name, { open, opened }];
  }));
  return {
    made, ...gates,
    charge(cents) {
      made.push(cents);
      return { charge: made.length, attempt: currentClaim().attempt };
    },
    async slow() {
      made.push('slow');
      gates.entered.open();
      await gates.left.opened;
      return 'done';
    },
    act(what) {
      made.push(what);
      if (what === 'raises') throw new Error('a bug');
      return { busy: [429, 'later'], ambiguous: [502, '?'], large: [200, 'x'.repeat(1_100_000)] }[what];
    },
  };
}

// Sends to `answer`, a function of a Request.
const poster = (answer) => async (path, key, body, client = 'alice', more = {}) => {
  const headers = { 'content-type': 'application/json', ...more.headers };
  if (key !== undefined) headers['idempotency-key'] = key;
  if (client !== null) headers['x-api-key'] = client;
  const text = typeof body === 'string' ? body : JSON.stringify(body);
  const got = await answer(path, { method: more.method ?? 'POST', headers, body: text, signal: more.signal });
  const type = got.headers.get('content-type') ?? '';
  const said = await got.text();
  const word = type.startsWith('application/problem') && JSON.parse(said).type.replace('urn:once:problem:', '');
  return { status: got.status, text: said, headers: got.headers, word, isReplayed: got.headers.get('idempotent-replayed') === 'true' };
};
const at = (port) => poster((path, init) => fetch(`http://127.0.0.1:${port}${path}`, init));

// What every framework promises.
async function keepsItsPromises(post, { made, entered, left }, raised = 500) {
  const first = await post('/charges', 'order-17', { cents: 500 });
  assert.deepEqual([first.status, first.text, first.headers.get('location')], [201, '{"charge":1,"attempt":1}', '/charges/1']);
  const again = await post('/charges', '"order-17"', '{ "cents": 5e2 }'); // JSON by its meaning.
  assert.deepEqual([again.status, again.text, again.headers.get('location'), again.isReplayed], [201, first.text, '/charges/1', true]);
  assert.match(again.headers.get('content-type'), /^application\/json/);
  for (const [got, status, word] of [
    [await post('/charges', 'order-17', { cents: 900 }), 422, 'key-reused'],
    [await post('/charges', undefined, { cents: 900 }), 400, 'key-missing'],
    [await post('/charges', 'undefined', { cents: 900 }), 400, 'key-invalid'],
    [await post('/charges', 'a, b', { cents: 900 }), 400, 'keys-differ'],
    [await post('/charges', 'order-18', { cents: 900 }, null), 400, 'principal-missing'],
    [await post('/charges', 'order-18', { cents: 900 }, 'eyJhbGciOiJ9.eyJzdWIiOiJ9.sig'), 400, 'principal-unstable'],
  ]) assert.deepEqual([got.status, got.word], [status, word]);
  assert.deepEqual(made, [500]);
  assert.equal(JSON.parse((await post('/charges', 'order-17', { cents: 500 }, 'bob')).text).charge, 2); // A key belongs to its client.
  for (let i = 0; i < 2; ++i) assert.equal((await post('/busy', 'order-20', {})).status, 429); // Nothing was done: it runs again.
  assert.equal((await post('/ambiguous', 'order-21', {})).status, 502);
  assert.deepEqual((await post('/ambiguous', 'order-21', {})).word, 'outcome-unknown');
  for (let i = 0; i < 2; ++i) assert.equal((await post('/raises', 'order-22', {})).status, i === 0 ? 500 : raised);
  assert.equal((await post('/large', 'order-23', {})).text.length, 1_100_000);
  assert.deepEqual((await post('/large', 'order-23', {})).word, 'answer-not-kept');
  const slow = post('/slow', 'order-30', {});
  await entered.opened;
  const conflict = await post('/slow', 'order-30', {});
  assert.deepEqual([conflict.status, conflict.word], [409, 'in-progress']);
  assert.ok(Number(conflict.headers.get('retry-after')) >= 1);
  left.open();
  assert.equal((await slow).text, 'done');
  assert.deepEqual(made, [500, 500, 'busy', 'busy', 'ambiguous', 'raises', 'large', 'slow']);
}

const fastifyOn = async (context, options, add) => {
  const app = fastify();
  app.register(onceFastify, { once, principal: SHARED, ...options });
  app.after(() => add(app));
  await app.listen({ port: 0, host: '127.0.0.1' });
  context.after(() => {
    app.server.closeAllConnections();
    return app.close();
  });
  return at(app.server.address().port);
};

test('Fastify', async (context) => {
  const here = shop();
  const post = await fastifyOn(context, { principal: 'X-Api-Key', service: 'fastify' }, (app) => {
    app.post('/charges', async (request, reply) => {
      const { charge, attempt } = here.charge(request.body.cents);
      assert.equal(request.onceClaim.attempt, attempt);
      reply.code(201).header('Location', `/charges/${charge}`).header('Set-Cookie', 'session=secret');
      return { charge, attempt };
    });
    app.post('/slow', () => here.slow());
    app.post('/:what', (request, reply) => {
      const [status, body] = here.act(request.params.what);
      reply.code(status).send(body);
    });
  });
  await keepsItsPromises(post, here);
  assert.equal((await post('/charges', 'order-17', { cents: 500 })).headers.get('set-cookie'), null);
  assert.equal((await post('/no/such/route', undefined, {})).status, 404);
});

test('Fastify: hooks, schemas and parsers before the claim', async (context) => {
  const ran = [];
  const schema = { body: { type: 'object', required: ['cents'], properties: { cents: { type: 'integer' } } } };
  const post = await fastifyOn(context, { service: 'hooks' }, (app) => {
    app.addHook('onRequest', async (request, reply) => request.headers['x-api-key'] === 'eve' && reply.code(401).send('who?'));
    app.addHook('onSend', (request, reply, payload, done) => {
      reply.header('X-Seen', 'yes'); // Of every response, also of those of this package.
      done();
    });
    app.addContentTypeParser('text/plain', (request, payload, done) => done(null, payload));
    app.addContentTypeParser('text/csv', (request, payload, done) => {
      payload.resume();
      done();
    });
    app.addContentTypeParser('application/octet-stream', { parseAs: 'buffer' }, (request, body, done) => done(null, body));
    app.post('/charges', { schema }, async (request) => {
      ran.push(request.body.cents);
      return request.body;
    });
    app.post('/raw', async (request, reply) => {
      ran.push('raw');
      reply.hijack();
      reply.raw.writeHead(200, { 'X-Part': 'one' });
      reply.raw.write('a');
      reply.raw.end('b');
    });
    app.post('/bytes', async (request) => ran.push(request.body.length) && 'kept');
    app.post('/none', async (request, reply) => ran.push('none') && reply.code(204).send());
    app.post('/late', async (request, reply) => {
      reply.code(201).send('made');
      throw new Error('late');
    });
  });
  assert.equal((await post('/charges', 'order-1', { cents: 5 }, 'eve')).status, 401);
  assert.equal((await post('/charges', 'order-1', { cents: 'much' })).status, 400);
  assert.equal((await post('/charges', 'order-1', { cents: '5' })).text, '{"cents":5}'); // It had claimed nothing.
  assert.equal((await post('/charges', 'order-1', { cents: 5 })).isReplayed, true); // As the handler sees it.
  assert.deepEqual((await post('/charges', 'order-1', { cents: 6 })).headers.get('x-seen'), 'yes');
  for (const isReplayed of [false, true]) {
    const raw = await post('/raw', 'order-2', {});
    assert.deepEqual([raw.text, raw.headers.get('x-part'), raw.isReplayed], ['ab', 'one', isReplayed]);
    const none = await post('/none', 'order-3', {});
    assert.deepEqual([none.status, none.text, none.isReplayed], [204, '', isReplayed]);
    const late = await post('/late', 'order-4', {});
    assert.deepEqual([late.status, late.text, late.isReplayed], [201, 'made', isReplayed]);
    const headers = { 'content-type': 'application/octet-stream' };
    assert.equal((await post('/bytes', 'order-5', 'abc', 'alice', { headers })).isReplayed, isReplayed);
  }
  for (const type of ['text/plain', 'text/csv']) { // A stream, and nothing: refused, not unprotected.
    const got = await post('/bytes', 'order-6', 'abc', 'alice', { headers: { 'content-type': type } });
    assert.equal(got.status, 500);
    assert.match(got.text, /compared/);
  }
  assert.deepEqual(ran, [5, 'raw', 'none', 3]);
});

test('Fastify: streams, clients that hang up, and handlers that never end', async (context) => {
  const here = shop();
  const ended = [];
  async function* parts(fails) {
    yield 'a';
    here.entered.open();
    await here.left.opened;
    if (fails) throw new Error('a broken stream');
    ended.push('stream');
    yield 'b';
  }
  const post = await fastifyOn(context, { service: 'streams', wait: '60s', lease: 1500, maxDuration: '2s' }, (app) => {
    app.post('/stream', async (request, reply) => reply.type('text/plain').send(Readable.from(parts())));
    app.post('/broken', async (request, reply) => reply.send(Readable.from(parts(true))));
    app.post('/response', async () => new Response('made', { status: 201, headers: { 'X-Part': 'one' } }));
    app.post('/cut', async (request, reply) => {
      reply.hijack();
      reply.raw.write('a');
      reply.raw.destroy();
    });
    app.post('/never', () => {});
  });
  const client = new AbortController();
  const first = post('/stream', 'order-1', {}, 'alice', { signal: client.signal });
  await here.entered.opened;
  client.abort();
  await assert.rejects(first);
  here.left.open();
  const again = await post('/stream', 'order-1', {});
  assert.deepEqual([again.text, again.isReplayed, ended.join()], ['ab', true, 'stream']);
  for (const isReplayed of [false, true]) {
    const broken = await post('/broken', 'order-2', {});
    assert.deepEqual([broken.status, broken.isReplayed], [500, isReplayed]);
    const made = await post('/response', 'order-3', {});
    assert.deepEqual([made.status, made.text, made.headers.get('x-part'), made.isReplayed], [201, 'made', 'one', isReplayed]);
  }
  await assert.rejects(post('/cut', 'order-4', {}));
  assert.equal((await post('/cut', 'order-4', {})).word, 'outcome-unknown');
  const never = new AbortController();
  const hanging = post('/never', 'order-5', {}, 'alice', { signal: never.signal });
  assert.equal((await post('/never', 'order-5', {})).word, 'outcome-unknown');
  never.abort();
  await assert.rejects(hanging);
});

test('Fastify: a finish that is refused, and mistakes', async (context) => {
  const post = await fastifyOn(context, { once: refusing, service: 'refusing' }, (app) => app.post('/charges', async () => 'charged'));
  const got = await post('/charges', 'order-1', {});
  assert.deepEqual([got.status, got.word], [503, 'not-recorded']);
  for (const options of [{ once }, { principal: SHARED }, { once, principal: SHARED, onAmbigous: 'hold' }]) {
    await assert.rejects(async () => fastify().register(onceFastify, options).ready(), TypeError);
  }
  await assert.rejects(async () => fastify({ http2: true }).register(onceFastify, { once, principal: SHARED }).ready(), /HTTP\/1.1/);
});
