// Run by node_test.py: the Node package, with Express of npm. ONCE_SERVER names a server on an empty store.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { getEventListeners, once as event } from 'node:events';
import { chmodSync, cpSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { inspect } from 'node:util';
import { runInNewContext } from 'node:vm';

import * as esm from '../../clients/node/lib/index.mjs';
import { onceExpress, SHARED } from '../../clients/node/lib/express.mjs';

const require = createRequire(import.meta.url);
const cjs = require('../../clients/node/lib/index.cjs');
const { compared, encoded, keyText, durationMs } = require('../../clients/node/lib/values.cjs');
const { randomId, uptime } = require('../../clients/node/lib/kernel.cjs');
const express = createRequire(`${process.env.ONCE_TEST_MODULES}/x.js`)('express');
const { ClaimLost, InProgress, KeyMissing, KeyReused, Once, OutcomeUnknown, Refused, StoredFailure, currentClaim } = esm;

const once = new Once({ timeout: '60s' });
test.after(() => once.close());

function counted(scope, options = {}) {
  const ran = [];
  const charge = once.makeIdempotent((order, cents) => {
    ran.push(order);
    return { receipt: ran.length, cents };
  }, { key: (order) => order, scope, wait: 0, ...options });
  return [charge, ran];
}

test('both kinds of import give the same classes', () => {
  assert.equal(esm.Once, cjs.Once);
  assert.equal(Object.keys(esm).sort().join(), Object.keys(cjs).filter((name) => name !== 'internal').sort().join());
});

test('a function runs once and all arguments are compared', async () => {
  const [charge, ran] = counted('arguments');
  assert.deepEqual(await charge(17, 100), { receipt: 1, cents: 100 });
  assert.deepEqual(await charge(17, 100), { receipt: 1, cents: 100 });
  await assert.rejects(charge(17, 101), KeyReused);
  await charge(18);
  await charge(18, undefined); // The same call.
  assert.deepEqual(ran, [17, 18]);
});

test('a missing key runs nothing', async () => {
  const [charge, ran] = counted('missing');
  for (const key of [undefined, null, '', 'undefined', 'NaN', '[object Object]']) await assert.rejects(charge(key), KeyMissing);
  for (const key of [{}, NaN, 1.5, true, () => 1, Symbol('x')]) await assert.rejects(charge(key), TypeError);
  const [parts] = counted('parts', { key: (order) => [order, undefined] });
  await assert.rejects(parts(1), KeyMissing);
  assert.deepEqual(ran, []);
  assert.notEqual(keyText(['1-2', '3']), keyText(['1', '2-3']));
});

test('what JSON would change in silence is refused', async () => {
  const [charge, ran] = counted('silent');
  for (const value of [new Map(), new Set(), NaN, 1n, () => 1, Symbol('x'), Promise.resolve(), new Error('x'), Buffer.from('x')]) {
    await assert.rejects(charge(17, value), TypeError);
  }
  const around = {};
  around.self = around;
  assert.throws(() => compared(around), TypeError);
  assert.deepEqual(compared({ b: 1, a: [null, { y: 1, x: new Date(0) }], c: undefined }), {
    payload_json: '{"a":[null,{"x":"1970-01-01T00:00:00.000Z","y":1}],"b":1}',
  });
  assert.match(compared('x'.repeat(100_000)).fingerprint, /^sha256:[0-9a-f]{64}$/);
  assert.deepEqual(ran, []);
});

test('different values are not compared as one', async () => {
  class Card {
    #number;
    constructor(number) { this.kind = 'card'; this.#number = number; }
    get number() { return this.#number; }
  }
  const here = { toJSON: () => 'here' };
  const refused = [new Map(), new Set([1]), new Date(NaN), new Card(1), Card, 1n, new Uint8Array(1), new ArrayBuffer(1), () => 1, Symbol('x'), undefined, NaN,
    [undefined], [1, , 2], new URLSearchParams('a=1'), new Number(5), new WeakMap(), (function* each() {})(), { [Symbol('x')]: 1 }, runInNewContext('new Map()'),
    Object.create({ a: 1 }), [[new Card(1)]], 'ab'.match(/b/)];
  for (const value of refused) assert.throws(() => compared(value), /nothing was run/);
  for (const value of [new Date(0), new URL('http://a/'), here, Object.assign(Object.create(null), { a: 1 }), runInNewContext('({ a: [1] })')]) compared(value);
  const [charge, ran] = counted('undefined', { key: () => 'a' });
  await charge(undefined, 5);
  await assert.rejects(charge(null, 5), KeyReused);
  await charge(undefined, 5);
  assert.equal(ran.length, 1);
  const [typo] = counted('typo', { payload: (order) => order.totl });
  await assert.rejects(typo('b'), /undefined/);
  const [hinted] = counted('hinted', { key: () => 'a' });
  await assert.rejects(hinted(new Card(1)), /payload/);
  assert.equal(encoded(new Card(1)).toString(), '{"kind":"card"}'); // A result: its public members are all that a caller sees.
  assert.equal(encoded({ a: 1, [Symbol('x')]: 1 }).toString(), '{"a":1}');
});

test('a mistake is told when it is made', () => {
  const fn = (order) => order;
  const good = { key: fn, scope: 'mistakes' };
  for (const bad of [{}, { key: fn }, { scope: 'x' }, { ...good, key: 'id' }, { ...good, leese: 1 }, { ...good, lease: '3 days' },
    { ...good, onLapse: 'holds' }, { ...good, onError: 'keep' }, { ...good, payload: 'order' }]) {
    assert.throws(() => once.makeIdempotent(fn, bad), TypeError, JSON.stringify(bad));
  }
  assert.throws(() => once.makeIdempotent(function* each() {}, good), TypeError);
  once.makeIdempotent(fn, good);
  assert.throws(() => once.makeIdempotent((other) => [other], good), /two functions/);
  const charge = (bank) => (order) => bank + order; // Closures and bound functions have one source, and differ.
  for (const [scope, first, second] of [['closures', charge('a'), charge('b')], ['bound', fn.bind(1), good.key.bind(2)]]) {
    once.makeIdempotent(first, { key: fn, scope });
    once.makeIdempotent(first, { key: fn, scope });
    assert.throws(() => once.makeIdempotent(second, { key: fn, scope }), /two functions/);
  }
  for (const bad of [{ server: 'unix:' }, { server: 'http://example.com:1' }, { server: 'unix:x', store: 'sqlite:x' }, { sever: 'x' }]) {
    assert.throws(() => new Once(bad), TypeError, JSON.stringify(bad));
  }
  assert.equal(durationMs('1.5s', 'x'), 1500);
});

test('a decorator is for methods only', () => {
  const decorate = once.idempotent({ key: (n) => n, scope: 'decorated' });
  const method = async (n) => n;
  assert.equal(typeof decorate(method, { kind: 'method' }), 'function');
  for (const [value, context] of [[method, { kind: 'getter' }], [undefined, { kind: 'field' }], [{}, 'charge']]) assert.throws(() => decorate(value, context), TypeError);
  assert.throws(() => decorate(async (n) => n, { kind: 'method' }), /two functions/);
});

test('a rejection is released, stored or held', async () => {
  const fates = { LookupError: 'fail', TypeError: 'hold', Error: 'release' };
  const work = once.makeIdempotent(async (name) => {
    throw Object.assign(new Error('no'), { name });
  }, { key: (name) => name, scope: 'fates', wait: 0, onError: (error) => fates[error.name] });
  const again = { LookupError: StoredFailure, TypeError: OutcomeUnknown, Error };
  for (const name of Object.keys(fates)) {
    await assert.rejects(work(name), { name, message: 'no' });
    await assert.rejects(work(name), again[name]);
  }
});

test('the claim is at hand in the function', async () => {
  const work = once.makeIdempotent(async () => {
    const claim = currentClaim();
    await claim.note('half done');
    await assert.rejects(claim.step('bad', () => new Map()), /ran/);
    return [claim.key, claim.attempt, claim.derivedKeys.bank.length, claim.validForMs > 0, await claim.step('one', () => 5), await claim.step('one', () => 6)];
  }, { key: () => '7', scope: 'claim', derive: ['bank'] });
  assert.deepEqual(await work(), ['7', 1, 64, true, 5, 5]);
  assert.throws(currentClaim);
});

test('a lost claim aborts the signal of the work', async () => {
  const released = ['release', '--scope', 'lost', '--key', 'a', '--force', '--reason', 'by hand'];
  await assert.rejects(once.call('lost', 'a', async (claim) => {
    execFileSync(process.env.ONCE_PROGRAM, released, { stdio: 'ignore' });
    const alive = setInterval(() => {}, 1000); // Renewals alone do not keep a process alive.
    if (!claim.signal.aborted) await event(claim.signal, 'abort');
    clearInterval(alive);
    claim.signal.throwIfAborted();
  }, { lease: 1500 }), ClaimLost);
});

test('what names no safe server is refused', () => {
  const tokenFile = 'x';
  for (const [server, more, wanted] of [
    ['http://db.internal:7117', { tokenFile }, /unencrypted/], ['http://0.0.0.0:7117', { tokenFile }, /unencrypted/],
    ['http://127.0.0.1.example:7117', { tokenFile }, /unencrypted/], ['https://db:7117', {}, /needs a token/],
    ['https://user:hush@db:7117', { tokenFile }, /tokenFile or ONCE_TOKEN_FILE/],
    ['https://hush@db', { tokenFile }, /tokenFile or ONCE_TOKEN_FILE/], ['https://db:7117?token=hush', { tokenFile }, /none of/],
    ['https://db:7117/#hush', { tokenFile }, /none of/], ['https://db:x/', { tokenFile }, /none of/], ['https://', { tokenFile }, /none of/],
    ['https://db/v1', { tokenFile }, /none of/], ['ftp://db:1', { tokenFile }, /none of/], ['http://127.0.0.1', { tokenFile }, /none of/],
    ['https://db', { certFile: 'x' }, /both certFile and keyFile/],
    ['https://db', { tokenFile, certFile: 'x', keyFile: 'x' }, /not both/], ['http://127.0.0.1:1', { tokenFile, caFile: 'x' }, /for https:/],
    ['unix:s', { caFile: 'x' }, /at an address/], ['https://db:0', { tokenFile }, /none of/], ['https://db:65536', { tokenFile }, /none of/],
    ['https:db', { tokenFile }, /none of/], ['https:\\\\db', { tokenFile }, /none of/], ['https://[fe80::1%25eth0]:1', { tokenFile }, /none of/],
    ['', {}, /server is empty/], ['https://db', { tokenFile: '' }, /tokenFile is empty/], ['https://db', { tokenFile, caFile: '' }, /caFile is empty/],
    ['https://db', { tokenFile, caFile: null }, /caFile is no text/], ['https://db', { certFile: '', keyFile: '' }, /is empty/],
  ]) {
    assert.throws(() => new Once({ server, ...more }), (error) => {
      assert.match(error.message, wanted);
      assert.doesNotMatch(error.message, /hush/);
      return true;
    });
  }
  assert.throws(() => new Once({ store: 'sqlite:x.db', tokenFile }), TypeError);
  for (const server of ['https://db', 'https://[::1]:7117/', 'http://localhost:7117', 'http://127.0.0.2:1']) new Once({ server, tokenFile }).close();
});

test('an empty variable is refused', async () => {
  const known = { ...process.env };
  for (const empty of ['ONCE_SERVER', 'ONCE_TOKEN_FILE', 'ONCE_CA_FILE']) {
    Object.assign(process.env, { ONCE_SERVER: 'https://db.invalid', ONCE_TOKEN_FILE: 'x', ONCE_CA_FILE: 'x', ONCE_STORE: 'sqlite:x.db', [empty]: '' });
    await assert.rejects(new Once().call('variables', 'a', () => 1), (error) => error instanceof esm.Unavailable && error.message.includes(`${empty} is empty`));
  }
  for (const name of ['ONCE_SERVER', 'ONCE_TOKEN_FILE', 'ONCE_CA_FILE', 'ONCE_STORE']) {
    if (known[name] === undefined) delete process.env[name];
    else process.env[name] = known[name];
  }
});

test('a token is never shown', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'once-token-'));
  const file = join(folder, 'token');
  const client = new Once({ server: 'https://127.0.0.1:1', tokenFile: file, timeout: 1 });
  for (const [text, wanted] of [['hush hush', /holds no token/], ['hüsh', /holds no token/], ['', /holds no token/], ['hush\n', /nothing was run/]]) {
    writeFileSync(file, text, { mode: 0o600 });
    await assert.rejects(client.call('shown', 'a', () => 1), (error) => !/h.sh/.test(inspect(error)) && wanted.test(error.message));
  }
  assert.doesNotMatch(inspect(client, { depth: 9, showHidden: true }), /hush/);
  client.close();
  rmSync(folder, { recursive: true });
});

test("another user's server is not used", async () => {
  const call = (options) => new Once({ timeout: '1s', ...options }).call('strangers', 'a', () => 1);
  const server = process.env.ONCE_TEST_STRANGER; // Only root can start it.
  if (server) await assert.rejects(call({ server }), { name: 'Unavailable', message: /65534/ });
  // One on demand, whose socket and directory are not of this user alone.
  const folder = mkdtempSync(join(tmpdir(), 'once-'));
  const listener = createServer().listen(join(folder, 's'));
  await event(listener, 'listening');
  const program = join(folder, 'program');
  writeFileSync(program, `#!/bin/sh\necho '${JSON.stringify({ socket: join(folder, 's') })}'\n`, { mode: 0o755 });
  listener.on('connection', () => assert.fail('a connection'));
  chmodSync(folder, 0o777);
  await assert.rejects(call({ store: 'sqlite:x', program }), /write its directory/);
  chmodSync(folder, 0o700);
  const real = process.geteuid;
  process.geteuid = () => 4711;
  await assert.rejects(call({ store: 'sqlite:x', program }), /belongs to user/);
  process.geteuid = real;
  listener.close();
  rmSync(folder, { recursive: true });
});

test('protection is switched off only by its word', async () => {
  const [charge, ran] = counted('disabled');
  process.env.ONCE_DISABLED = '1';
  await charge(1);
  await charge(1);
  process.env.ONCE_DISABLED = '2';
  await assert.rejects(charge(1), TypeError);
  delete process.env.ONCE_DISABLED;
  assert.deepEqual(ran, [1, 1]);
});

test('ids are drawn anew, and time does not go back', () => {
  assert.match(randomId(), /^[0-9a-f]{32}$/);
  assert.notEqual(randomId(), randomId());
  const times = Array.from({ length: 1000 }, uptime);
  assert.deepEqual(times, [...times].sort((a, b) => a - b));
});

test('Express', async (context) => {
  const app = express();
  const charged = [];
  let enter, leave;
  const entered = new Promise((resolve) => { enter = resolve; });
  const left = new Promise((resolve) => { leave = resolve; });
  app.post('/early', onceExpress({ once, principal: SHARED }), (request, response) => response.end('x'));
  app.use(express.json({ limit: '4mb' }));
  app.use((request, response, next) => {
    if (request.headers['x-old-parser']) request.body = {};
    next();
  });
  app.use(onceExpress({ once, principal: 'X-Api-Key', service: 'shop' }));
  app.post('/charges', (request, response) => {
    charged.push(request.body.cents);
    response.status(201).location(`/charges/${charged.length}`).cookie?.('session', 'secret');
    response.json({ charge: charged.length });
  });
  app.post('/slow', async (request, response) => {
    charged.push('slow');
    enter();
    await left;
    response.send('done');
  });
  app.post('/raw', (request, response) => {
    charged.push('raw');
    response.writeHead(200, { 'X-Part': 'one' });
    response.write('a');
    response.end('b');
  });
  app.post('/:what', (request, response) => {
    charged.push(request.params.what);
    const { what } = request.params;
    if (what === 'raises') throw new Error('a bug');
    const [status, body] = { busy: [429, 'later'], ambiguous: [502, '?'], large: [200, 'x'.repeat(1_100_000)] }[what];
    response.status(status).send(body);
  });
  app.use((error, request, response, next) => response.status(500).send('failed'));
  const server = app.listen(0, '127.0.0.1');
  await event(server, 'listening');
  context.after(() => server.close());
  const post = async (path, key, body, client = 'alice') => {
    const headers = { 'content-type': 'application/json' };
    if (key !== undefined) headers['idempotency-key'] = key;
    if (client !== undefined && client !== null) headers['x-api-key'] = client;
    const got = await fetch(`http://127.0.0.1:${server.address().port}${path}`, { method: 'POST', headers, body: JSON.stringify(body) });
    const text = await got.text();
    const type = got.headers.get('content-type') ?? '';
    return { status: got.status, text, headers: got.headers, word: type.startsWith('application/problem') && JSON.parse(text).type.replace('urn:once:problem:', '') };
  };

  const first = await post('/charges', 'order-17', { cents: 500 });
  assert.deepEqual([first.status, first.text, first.headers.get('location')], [201, '{"charge":1}', '/charges/1']);
  const again = await post('/charges', '"order-17"', { cents: 500 });
  assert.deepEqual([again.status, again.text, again.headers.get('location'), again.headers.get('idempotent-replayed')], [201, '{"charge":1}', '/charges/1', 'true']);
  assert.equal(again.headers.get('set-cookie'), null);
  for (const [got, status, word] of [
    [await post('/charges', 'order-17', { cents: 900 }), 422, 'key-reused'],
    [await post('/charges', undefined, { cents: 900 }), 400, 'key-missing'],
    [await post('/charges', 'undefined', { cents: 900 }), 400, 'key-invalid'],
    [await post('/charges', 'a, b', { cents: 900 }), 400, 'keys-differ'],
    [await post('/charges', 'order-18', { cents: 900 }, null), 400, 'principal-missing'],
    [await post('/charges', 'order-18', { cents: 900 }, 'undefined'), 400, 'principal-missing'],
    [await post('/charges', 'order-18', { cents: 900 }, 'eyJhbGciOiJ9.eyJzdWIiOiJ9.sig'), 400, 'principal-unstable'],
  ]) assert.deepEqual([got.status, got.word], [status, word]);
  assert.deepEqual(charged, [500]);
  assert.equal((await post('/charges', 'order-17', { cents: 500 }, 'bob')).text, '{"charge":2}');
  for (let i = 0; i < 2; ++i) assert.equal((await post('/busy', 'order-20', {})).status, 429);
  assert.equal((await post('/ambiguous', 'order-21', {})).status, 502);
  assert.equal((await post('/ambiguous', 'order-21', {})).word, 'outcome-unknown');
  for (let i = 0; i < 2; ++i) assert.equal((await post('/raises', 'order-22', {})).text, 'failed');
  assert.equal((await post('/large', 'order-23', {})).text.length, 1_100_000);
  assert.equal((await post('/large', 'order-23', {})).word, 'answer-not-kept');
  for (let i = 0; i < 2; ++i) {
    const raw = await post('/raw', 'order-24', {});
    assert.deepEqual([raw.text, raw.headers.get('x-part')], ['ab', 'one']);
  }
  const slow = post('/slow', 'order-30', {});
  await entered;
  const conflict = await post('/slow', 'order-30', {});
  assert.deepEqual([conflict.status, conflict.word], [409, 'in-progress']);
  assert.ok(Number(conflict.headers.get('retry-after')) >= 1);
  leave();
  assert.equal((await slow).text, 'done');
  assert.equal((await post('/early', 'order-31', { a: 1 })).status, 500); // Before the parser: refused, not unprotected.
  // What no parser has read: body-parser 1 leaves an empty object, version 2 nothing.
  for (const headers of [{ 'content-type': 'text/plain' }, { 'content-type': 'text/plain', 'x-old-parser': '1' }]) {
    const unread = await fetch(`http://127.0.0.1:${server.address().port}/charges`, {
      method: 'POST', body: 'cents=500', headers: { ...headers, 'idempotency-key': 'order-32', 'x-api-key': 'alice' },
    });
    assert.equal(unread.status, 500);
    await unread.text();
  }
  assert.equal((await post('/busy', 'order-33', {})).status, 429); // An empty object that was read.
  assert.deepEqual(charged, [500, 500, 'busy', 'busy', 'ambiguous', 'raises', 'large', 'raw', 'slow', 'busy']);
});

const serving = async (context, add, ...options) => {
  const app = express();
  app.use(express.json());
  for (const [path, more] of options) app.use(path, onceExpress({ once, principal: SHARED, ...more }));
  add(app);
  app.use((error, request, response, next) => response.status(500).send(error.message));
  const server = app.listen(0, '127.0.0.1');
  await event(server, 'listening');
  context.after(() => server.close());
  return (path, key, signal) => fetch(`http://127.0.0.1:${server.address().port}${path}`, { method: 'POST', headers: { 'idempotency-key': key }, signal });
};

test('the claim of a response that never ends is not renewed for ever', async (context) => {
  const warned = new Promise((resolve) => { process.on('warning', ({ message }) => message.includes('maxDuration') && resolve(message)); });
  const post = await serving(context, (app) => {
    app.post('/never', () => {});
    app.post('/half', (request, response) => {
      response.write('a');
      throw new Error('half');
    });
  }, ['/', { maxDuration: 1, lease: 1500, wait: '60s' }]);
  const client = new AbortController();
  const first = post('/never', 'order-1', client.signal);
  assert.match(await warned, /lapses/);
  assert.match((await (await post('/never', 'order-1')).json()).type, /outcome-unknown/);
  client.abort();
  await assert.rejects(first);
  await assert.rejects(post('/half', 'order-2')); // As without this package, and it is not taken for a response.
  assert.match((await (await post('/half', 'order-2')).json()).type, /outcome-unknown/);
});

test('a client that hangs up changes nothing, and a handler that does ends its claim', async (context) => {
  let entered;
  const post = await serving(context, (app) => {
    app.post('/gone', async (request, response) => {
      entered();
      await event(response, 'close');
      response.send('done');
    });
    app.post('/destroyed', (request, response) => response.destroy());
    app.post('/status', (request, response) => response.status(9999).end());
    app.post('/head', (request, response) => response.writeHead(99).end());
    app.post('/late', (request, response, next) => {
      response.status(201).send('made');
      next(new Error('late'));
    });
  }, ['/', { wait: '60s' }]);
  const client = new AbortController();
  const isIn = new Promise((resolve) => { entered = resolve; });
  const first = post('/gone', 'order-1', client.signal);
  await isIn;
  client.abort();
  await assert.rejects(first);
  const again = await post('/gone', 'order-1');
  assert.deepEqual([await again.text(), again.headers.get('idempotent-replayed')], ['done', 'true']);
  await assert.rejects(post('/destroyed', 'order-2'));
  assert.match((await (await post('/destroyed', 'order-2')).json()).type, /outcome-unknown/);
  for (const kind of ['run', 'replayed']) {
    const got = await post('/late', 'order-4');
    assert.deepEqual([got.status, got.statusText, await got.text()], [201, 'Created', 'made'], kind);
  }
  for (const [path, text] of [['/status', /9999/], ['/head', /99/]]) assert.match(await (await post(path, 'order-3')).text(), text); // No unhandled rejection.
});

test("a caller's signal keeps no listeners", async () => {
  const caller = new AbortController();
  const work = once.makeIdempotent((n) => n, { key: (n) => n, scope: 'signal', signal: caller.signal });
  for (let n = 0; n < 5; ++n) await work(n);
  for (const fate of ['release', 'fail', 'hold']) {
    const failing = once.makeIdempotent(() => { throw new Error('no'); }, { key: () => fate, scope: fate, signal: caller.signal, onError: fate });
    await assert.rejects(failing(), /no/);
  }
  await work(0);
  assert.equal(getEventListeners(caller.signal, 'abort').length, 0);
});

test('a finish that is refused does not say that nothing was done', async (context) => {
  const refusing = new Once({ server: process.env.ONCE_TEST_REFUSING, timeout: '60s' });
  await assert.rejects(refusing.call('refused', 'a', () => 1), (error) => error instanceof Refused && /ran/.test(error.message));
  const app = express();
  app.use(express.json(), onceExpress({ once: refusing, principal: SHARED }));
  app.post('/charges', (request, response) => response.send('charged'));
  const server = app.listen(0, '127.0.0.1');
  await event(server, 'listening');
  context.after(() => [server, refusing].map((one) => one.close()));
  const got = await fetch(`http://127.0.0.1:${server.address().port}/charges`, { method: 'POST', headers: { 'idempotency-key': 'order-1' } });
  const { type, detail } = await got.json();
  assert.deepEqual([got.status, type], [503, 'urn:once:problem:not-recorded']);
  assert.match(detail, /was carried out/);
});

test("a middleware refuses another copy's client", (context) => {
  const copy = mkdtempSync(join(tmpdir(), 'once-'));
  context.after(() => rmSync(copy, { recursive: true }));
  cpSync(new URL('../../clients/node/lib', import.meta.url), copy, { recursive: true });
  assert.throws(() => require(join(copy, 'express.cjs')).onceExpress({ once, principal: SHARED }), /copy of the package/);
});

test('a middleware without a principal, or with one that changes, is refused', () => {
  for (const options of [{ once }, { principal: 'X-Api-Key' }, { once, principal: 'X-Signature' }, { once, principal: SHARED, methods: ['POTS'] },
    { once, principal: SHARED, onAmbigous: 'hold' }]) assert.throws(() => onceExpress(options), TypeError);
});
