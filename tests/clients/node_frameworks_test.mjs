// Run by node_frameworks_test.py: the Node package in frameworks of npm. ONCE_SERVER names a server on an empty store.
import assert from 'node:assert/strict';
import { once as event } from 'node:events';
import { createRequire } from 'node:module';
import { Readable } from 'node:stream';
import { test } from 'node:test';

import { Once, currentClaim } from '../../clients/node/lib/index.mjs';
import { onceProcessor } from '../../clients/node/lib/bullmq.mjs';
import { onceExpress } from '../../clients/node/lib/express.mjs';
import { onceFastify, SHARED } from '../../clients/node/lib/fastify.mjs';
import { onceRoute } from '../../clients/node/lib/web.mjs';

const load = createRequire(`${process.env.ONCE_TEST_MODULES}/x.js`);
const fastify = load('fastify');
const { Queue, QueueEvents, Worker } = load('bullmq');
const { Hono } = await import(load.resolve('hono'));
await import(load.resolve('reflect-metadata'));
const nest = { ...await import(load.resolve('@nestjs/common')), ...await import(load.resolve('@nestjs/core')) };

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

// A handler without a server: what throws is a framework's to answer.
const calling = (handler) => poster(async (path, init) => {
  try {
    return await handler(new Request(`http://shop.test${path}`, init));
  } catch (error) {
    if (error instanceof Response) return error;
    return new Response(error.message, { status: 500 });
  }
});

test('Hono', async () => {
  const here = shop();
  const app = new Hono();
  const options = { once, principal: 'X-Api-Key', service: 'hono' };
  const route = (handler) => {
    const protectedHandler = onceRoute(options, handler);
    return (context) => protectedHandler(context.req.raw, context);
  };
  app.post('/charges', route(async (request, context) => {
    const { cents } = await context.req.json();
    const made = here.charge(cents);
    context.header('Location', `/charges/${made.charge}`);
    context.header('Set-Cookie', 'session=secret');
    return context.json(made, 201);
  }));
  app.post('/slow', route(async () => new Response(await here.slow())));
  app.post('/:what', route((request, context) => {
    const [status, body] = here.act(context.req.param('what'));
    return new Response(body, { status });
  }));
  app.onError((error, context) => context.text(error.message, 500));
  const post = poster((path, init) => app.request(`http://shop.test${path}`, init));
  await keepsItsPromises(post, here, 409); // What it threw, the framework answered: nobody knows what it has done.
  assert.equal((await post('/charges', 'order-17', { cents: 500 })).headers.get('set-cookie'), null);
});

test('onceRoute: bodies are compared by their parts', async () => {
  let ran = 0;
  const post = calling(onceRoute({ once, principal: SHARED, service: 'bodies', maxRequestBytes: 2000 }, async (request) => {
    ++ran;
    return new Response(await request.text());
  }));
  const sent = (key, type, body) => post('/bodies', key, body, null, { headers: { 'content-type': type } });
  const form = (boundary, name, text) => [
    `multipart/form-data; boundary=${boundary}`,
    `--${boundary}\r\nContent-Disposition: form-data; name="file"; filename="${name}"\r\nContent-Type: text/csv\r\n\r\n${text}\r\n--${boundary}--\r\n`,
  ];
  const json = 'application/json';
  for (const [key, [first, same, other]] of Object.entries({
    json: [[json, '{"a":1,"b":2}'], [json, '{ "b":2.0, "a":1 }'], [json, '{"a":1,"b":3}']],
    large: [[json, '9007199254740993'], [json, '9007199254740993'], [json, '9007199254740992']],
    broken: [[json, '{"a":'], [json, '{"a":'], [json, '{"a": ']],
    text: [['text/plain', 'a'], ['text/plain', 'a'], ['text/plain', 'b']],
    form: [form('one', 'a.csv', '1,2'), form('two', 'a.csv', '1,2'), form('two', 'b.csv', '1,2')],
    malformed: [['multipart/form-data; boundary=x', 'a'], ['multipart/form-data; boundary=x', 'a'], ['multipart/form-data; boundary=x', 'b']],
    mixed: [[json, '"a"'], [json, '"a"'], ['text/plain', '"a"']],
  })) {
    const before = ran;
    assert.equal((await sent(key, ...first)).text, first[1], key);
    const again = await sent(key, ...same);
    assert.deepEqual([again.text, again.isReplayed], [first[1], true], key);
    assert.equal((await sent(key, ...other)).word, 'key-reused', key);
    assert.equal(ran, before + 1);
  }
  assert.equal((await sent('much', 'text/plain', 'x'.repeat(2001))).word, 'body-too-large');
  const read = new Request('http://shop.test/bodies', { method: 'POST', body: 'a', headers: { 'idempotency-key': 'read' } });
  await read.text();
  await assert.rejects(onceRoute({ once, principal: SHARED, service: 'read' }, () => new Response())(read), /compared/);
});

test('onceRoute: what handlers return and throw', async (context) => {
  const ran = [];
  const answers = {
    '/none': () => new Response(null, { status: 204, statusText: 'Nothing' }),
    '/redirect': () => Response.redirect('http://shop.test/charges/1', 303),
    '/thrown': () => { throw new Response('thrown', { status: 404 }); },
    '/nothing': () => undefined,
    '/broken': () => new Response(new ReadableStream({ pull: (stream) => stream.error(new Error('a broken stream')) })),
    '/stream': () => new Response(Readable.toWeb(Readable.from(['a', 'b'].map((text) => Buffer.from(text))))),
    '/never': () => new Promise(() => {}),
  };
  const options = { once, principal: (request) => request.headers.get('x-api-key'), service: 'answers', wait: '60s', lease: 1500, maxDuration: 1 };
  const post = calling(onceRoute(options, (request) => {
    const { pathname } = new URL(request.url);
    ran.push(pathname);
    return answers[pathname]();
  }));
  for (const [path, status, text] of [['/none', 204, ''], ['/redirect', 303, ''], ['/thrown', 404, 'thrown'], ['/stream', 200, 'ab']]) {
    for (const isReplayed of [false, true]) {
      const got = await post(path, 'order-1', {});
      assert.deepEqual([got.status, got.text, got.isReplayed], [status, text, isReplayed], path);
    }
  }
  assert.equal((await post('/redirect', 'order-1', {})).headers.get('location'), 'http://shop.test/charges/1');
  for (const path of ['/nothing', '/broken']) {
    assert.equal((await post(path, 'order-2', {})).status, 500);
    assert.equal((await post(path, 'order-2', {})).word, 'outcome-unknown');
  }
  const alive = setInterval(() => {}, 1000); // Renewals alone do not keep a process alive.
  context.after(() => clearInterval(alive));
  post('/never', 'order-3', {});
  assert.equal((await post('/never', 'order-3', {})).word, 'outcome-unknown');
  assert.equal(ran.length, 7);
  assert.equal((await post('/none', undefined, undefined, 'alice', { method: 'PUT' })).status, 204); // Not protected.
});

test('onceRoute: a finish that is refused, and mistakes', async () => {
  const post = calling(onceRoute({ once: refusing, principal: SHARED, service: 'refusing web' }, () => new Response('charged')));
  assert.equal((await post('/charges', 'order-1', {})).word, 'not-recorded');
  for (const [options, handler] of [[{ once }, () => {}], [{ once, principal: SHARED }], [{ once, principal: SHARED, maxRequestBytes: '1' }, () => {}]]) {
    assert.throws(() => onceRoute(options, handler), TypeError);
  }
});

// As a compiler writes what decorators are in front of: `members` has them by name, and those of parameters last.
function decorated(made, decorators, members = {}) {
  for (const [name, [decorator, ...parameters]] of Object.entries(members)) {
    decorator(made.prototype, name, Object.getOwnPropertyDescriptor(made.prototype, name));
    parameters.forEach((one, index) => one(made.prototype, name, index));
  }
  for (const decorator of decorators) decorator(made);
  return made;
}

test('Nest', async (context) => {
  const { Body, Controller, HttpException, Module, NestFactory, Param, Post, Res } = nest;
  const here = shop();
  const guarded = [];
  class Charges {
    charges(body, response) {
      const made = here.charge(body.cents);
      response.status(201).setHeader('Location', `/charges/${made.charge}`);
      return made;
    }
    slow() { return here.slow(); }
    others(what) {
      const [status, body] = here.act(what);
      if (status >= 400) throw new HttpException(body, status);
      return body;
    }
  }
  decorated(Charges, [Controller()], {
    charges: [Post('/charges'), Body(), Res({ passthrough: true })],
    slow: [Post('/slow')],
    others: [Post('/:what'), Param('what')],
  });
  class Shop {
    configure(consumer) {
      consumer.apply(onceExpress({ once, principal: 'X-Api-Key', service: 'nest' })).forRoutes(Charges);
    }
  }
  decorated(Shop, [Module({ controllers: [Charges] })]);
  const app = await NestFactory.create(Shop, { logger: false });
  app.useGlobalGuards({ canActivate: (at) => guarded.push(at.switchToHttp().getRequest().url) > 0 });
  await app.listen(0, '127.0.0.1');
  context.after(() => {
    app.getHttpServer().closeAllConnections();
    return app.close();
  });
  const post = at(app.getHttpServer().address().port);
  await keepsItsPromises(post, here);
  assert.equal(guarded.length, here.made.length); // As the page says: a replay runs no guard.
});

const connection = { path: process.env.ONCE_TEST_REDIS, maxRetriesPerRequest: null };

// A queue with a worker, or with one for each of `processors`. `done` waits for a job's end, `failed` for its failure.
async function queueing(context, name, processors, options = {}) {
  const queue = new Queue(name, { connection });
  const events = new QueueEvents(name, { connection });
  await events.waitUntilReady();
  const workers = [processors].flat().map((processor) => new Worker(name, processor, { connection, drainDelay: 1, ...options }));
  for (const worker of workers) worker.on('error', () => {}); // A stalled job's lock is gone.
  context.after(async () => {
    await Promise.all([...workers.map((worker) => worker.close(true)), events.close()]);
    await queue.close();
  });
  const done = async (job) => (await job.waitUntilFinished(events, 60_000));
  const failed = async (job) => {
    await assert.rejects(done(job));
    return queue.getJob(job.id);
  };
  return { queue, done, failed };
}

test('BullMQ: a job runs once, and its result is kept', async (context) => {
  const ran = [];
  const { queue, done, failed } = await queueing(context, 'emails', onceProcessor(once, { scope: 'emails' }, async (job, token) => {
    ran.push(job.data.to);
    if (job.data.fails && job.attemptsMade === 0) throw new Error('no connection');
    return { sent: ran.length, key: currentClaim().key, hasToken: typeof token === 'string' };
  }));
  const add = (data, options) => queue.add('send', data, options);
  const first = { sent: 1, key: '["emails","order-17"]', hasToken: true };
  assert.deepEqual(await done(await add({ to: 'a' }, { jobId: 'order-17', removeOnComplete: true })), first);
  // BullMQ has forgotten the job, and so adds it again.
  assert.deepEqual(await done(await add({ to: 'a' }, { jobId: 'order-17', removeOnComplete: true })), first);
  const reused = await failed(await add({ to: 'b' }, { jobId: 'order-17', attempts: 5 }));
  assert.match(reused.failedReason, /another payload/);
  assert.equal(reused.attemptsMade, 1); // No retry changes it.
  assert.equal((await done(await add({ to: 'c', fails: true }, { attempts: 2 }))).sent, 3); // Released, so it ran again.
  assert.deepEqual(ran, ['a', 'c', 'c']);
  // Redis has lost its data: BullMQ counts from 1 again, and these are other jobs.
  const counted = [];
  for (let i = 0; i < 2; ++i) {
    await queue.obliterate({ force: true });
    const job = await add({ to: 'd' });
    counted.push(job.id);
    await done(job);
  }
  assert.equal(counted[0], counted[1]);
  assert.deepEqual(ran.slice(3), ['d', 'd']);
});

test('BullMQ: a stalled job waits for the worker that has it', async (context) => {
  const { entered, left } = shop();
  let ran = 0;
  const processor = onceProcessor(once, { scope: 'stalled', lease: '3s' }, async () => {
    ++ran;
    entered.open();
    await left.opened;
    return 'done';
  });
  const starts = [];
  const { queue, done } = await queueing(context, 'stalled', (job, token) => {
    starts.push(job.attemptsStarted);
    return processor(job, token);
  }, { concurrency: 2, lockDuration: 200, skipLockRenewal: true, stalledInterval: 100, maxStalledCount: 100 });
  const job = await queue.add('slow', {});
  await entered.opened;
  while (starts.length < 2 || await queue.getDelayedCount() === 0) await new Promise((resolve) => setTimeout(resolve, 20));
  left.open();
  assert.equal(await done(job), 'done');
  const { attemptsMade } = await queue.getJob(job.id);
  assert.deepEqual([ran, attemptsMade], [1, 1]);
});

test('BullMQ: what an operator decides, and a store that is down', async (context) => {
  const ran = [];
  const work = async (job) => {
    ran.push(job.name);
    if (job.name === 'later' && ran.filter((name) => name === 'later').length === 1) {
      await job.moveToDelayed(Date.now() + 1, job.token);
      throw Object.assign(new Error('later'), { name: 'DelayedError' });
    }
    if (job.name !== 'later') throw new RangeError('declined');
    return 'done';
  };
  const { queue, done, failed } = await queueing(context, 'fates', onceProcessor(once, {
    scope: 'fates', onError: (error) => (error.message === 'declined' ? 'hold' : 'fail'),
  }, work));
  const held = await failed(await queue.add('held', {}, { attempts: 5 }));
  assert.match(held.failedReason, /unknown/);
  assert.equal(held.attemptsMade, 2); // The second one found that the outcome is not known.
  assert.equal(await done(await queue.add('later', {})), 'done'); // It left the job for later, which is no failure.
  assert.deepEqual(ran, ['held', 'later', 'later']);

  const down = new Once({ server: `unix:${process.env.ONCE_TEST_REDIS}.none`, timeout: 50 });
  context.after(() => down.close());
  const other = await queueing(context, 'down', onceProcessor(down, { scope: 'down' }, work));
  const job = await other.queue.add('held', {});
  while (await other.queue.getDelayedCount() === 0) await new Promise((resolve) => setTimeout(resolve, 20));
  assert.equal((await other.queue.getJob(job.id)).attemptsMade, 0);
  assert.equal(ran.length, 3);
});

test('BullMQ: mistakes, and switching protection off', async () => {
  const processor = async (job, token, signal) => signal;
  for (const [client, options, fn] of [[{}, { scope: 'x' }, processor], [once, {}, processor], [once, { scope: 'x' }], [once, { scope: 'x', leese: 1 }, processor],
    [once, { scope: 'x', payload: 'a' }, processor], [once, { scope: 'x', onError: 'keep' }, processor], [once, { scope: 'x', signal: null }, processor]]) {
    assert.throws(() => onceProcessor(client, options, fn), TypeError);
  }
  assert.equal(onceProcessor(once, { scope: 'x' }, processor).length, 3); // By it BullMQ gives a signal.
  process.env.ONCE_DISABLED = '1';
  assert.equal(await onceProcessor(once, { scope: 'x' }, processor)({ id: 'a' }, 't', 'signal'), 'signal');
  delete process.env.ONCE_DISABLED;
});
