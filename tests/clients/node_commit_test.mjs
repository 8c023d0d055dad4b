// Run by node_commit_test.py: results that are committed with rows, by `pg`. ONCE_SERVER names a server on
// ONCE_TEST_DATABASE.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { createRequire } from 'node:module';
import { test } from 'node:test';

import { ClaimLost, Once, OnceError, TooLarge, commit, currentClaim } from '../../clients/node/lib/index.mjs';

const { Client, Pool } = createRequire(`${process.env.ONCE_TEST_MODULES}/x.js`)('pg');
const { ONCE_TEST_DATABASE: database, ONCE_TEST_SCHEMA: schema } = process.env;
const once = new Once({ timeout: '60s', schema });
const pool = new Pool({ connectionString: database });
test.after(async () => {
  once.close();
  await pool.end();
});
await pool.query('CREATE TABLE charges (id text, n int, UNIQUE (id, n) DEFERRABLE INITIALLY DEFERRED)');

const rows = async (order) => Number((await pool.query('SELECT count(*) FROM charges WHERE id = $1', [order])).rows[0].count);

// Calls `act` with a client whose transaction has written a row, and with what the work returns.
const charge = (order, act, options) => once.call('charge', order, async (claim) => act({ order, attempt: claim.attempt }), options);
async function begun(order, act, n = 1) {
  const client = new Client(database);
  await client.connect();
  try {
    await client.query('BEGIN');
    await client.query('INSERT INTO charges VALUES ($1, $2)', [order, n]);
    return await act(client);
  } finally {
    await client.end();
  }
}
const commits = (order, n) => (made) => begun(order, (client) => commit(client, made), n);

// Loses the answer to COMMIT, or the request. Or gets another error of it.
const broken = (client, isDone, error = { code: 'EPIPE' }) => ({
  query: async (text, values) => {
    if (text !== 'COMMIT') return client.query(text, values);
    await client.query(isDone ? 'COMMIT' : 'ROLLBACK');
    throw Object.assign(new Error('write EPIPE'), error);
  },
});
const doubts = (order, isDone, n) => (made) => begun(order, (client) => commit(broken(client, isDone), made), n);

test('rows and result are committed together', async () => {
  for (let i = 0; i < 3; i++) {
    assert.deepEqual(await charge('a', commits('a'), { retention: '1h', onLapse: 'hold' }), { order: 'a', attempt: 1 });
    assert.equal(await rows('a'), 1);
  }
  // A claim under hold does not expire, and its record says nothing of the retention.
  const { rows: [{ hours }] } = await pool.query(
    `SELECT (max(expires_at_ms) - extract(epoch FROM now()) * 1000) / 3600000 AS hours FROM "${schema}".records`,
  );
  assert.ok(Math.abs(hours - 1) < 0.1, hours);
});

test('encoded results', async () => {
  const encoded = once.makeIdempotent((order) => begun(order, (client) => commit(client, new Map([['order', order]]))), {
    key: (order) => order, scope: 'encoded', encode: (map) => [...map], decode: (pairs) => new Map(pairs),
  });
  assert.deepEqual([await encoded('b'), await encoded('b')], [new Map([['order', 'b']]), new Map([['order', 'b']])]);
  assert.equal(await rows('b'), 1);
});

test('failed work commits nothing', async () => {
  await assert.rejects(charge('c', () => begun('c', () => { throw new RangeError('declined'); })), RangeError);
  assert.equal(await rows('c'), 0);
  assert.deepEqual(await charge('c', commits('c')), { order: 'c', attempt: 1 });
});

test('a lost claim commits nothing', async () => {
  await assert.rejects(charge('d', (made) => begun('d', (client) => {
    execFileSync(process.env.ONCE_PROGRAM, ['release', '--scope', 'charge', '--key', 'd', '--force', '--reason', 'by hand']);
    return commit(client, made);
  })), ClaimLost);
  assert.equal(await rows('d'), 0);
});

test('a transaction is repeated in one claim', async () => {
  await pool.query("INSERT INTO charges VALUES ('e', 1)");
  const codes = [];
  const made = await charge('e', async (result) => {
    for (const n of [1, 2]) { // The first one fails in COMMIT, the second one in the finish.
      await begun('e', async (client) => {
        if (n === 2) await client.query('SAVEPOINT one');
        await assert.rejects(commit(client, result), (error) => codes.push(error.code) > 0);
      }, n);
    }
    return commits('e', 3)(result);
  });
  assert.deepEqual([made, codes.length, codes[0], await rows('e')], [{ order: 'e', attempt: 1 }, 2, '23505', 2]);
});

test('a doubtful commit is found out', async () => {
  for (const onError of ['release', 'fail', 'hold']) {
    assert.deepEqual(await charge(onError, doubts(onError, true), { onError }), { order: onError, attempt: 1 });
    assert.equal(await rows(onError), 1);
  }
  await assert.rejects(charge('f', doubts('f', false)), /EPIPE/);
  assert.equal(await rows('f'), 0);
  // It repeats the transaction, whose first try was committed.
  assert.deepEqual(await charge('f', async (made) => {
    await assert.rejects(doubts('f', true)(made), /EPIPE/);
    return commits('f', 2)('other');
  }), { order: 'f', attempt: 1 });
  assert.equal(await rows('f'), 1);
  // Its first try was not.
  assert.deepEqual(await charge('g', async (made) => {
    await assert.rejects(doubts('g', false)(made), /EPIPE/);
    return commits('g', 2)(made);
  }), { order: 'g', attempt: 1 });
  assert.equal(await rows('g'), 1);
});

test("a pooler's error of the commit is a doubt", async () => {
  for (const code of ['08P01', '57P01', '58000', 'XX000', '40003']) {
    const made = await charge(code, (result) => begun(code, (client) => commit(broken(client, true, { code, severity: 'FATAL' }), result)));
    assert.deepEqual([made, await rows(code)], [{ order: code, attempt: 1 }, 1]);
  }
});

test('work that goes on in doubt gets the result', async () => {
  const lost = Object.assign(Object.create(ClaimLost.prototype), { message: 'as a renewal reports it' });
  for (const [order, meets] of [['l', (claim) => claim.step('after', () => 1)], ['l2', () => { throw lost; }]]) {
    const made = await charge(order, async (result) => {
      await assert.rejects(doubts(order, true)(result), /EPIPE/);
      await meets(currentClaim());
      assert.fail('it went on');
    });
    assert.deepEqual([made, await rows(order)], [{ order, attempt: 1 }, 1]);
  }
});

test('a statement that fails between finish and COMMIT rolls back', async () => {
  const fails = (client) => ({
    query: async (text, values) => {
      if (text === 'COMMIT') await client.query('SELECT 1 / 0').catch(() => {}); // Of another branch of the work.
      return client.query(text, values);
    },
  });
  await assert.rejects(charge('m', (made) => begun('m', (client) => commit(fails(client), made))), /another statement/);
  assert.deepEqual([await charge('m', commits('m'), { wait: 0 }), await rows('m')], [{ order: 'm', attempt: 1 }, 1]);
});

test('isolation', async () => {
  for (const level of ['REPEATABLE READ', 'SERIALIZABLE']) {
    const isolated = (order, act) => begun(order, async (client) => {
      await client.query('ROLLBACK');
      await client.query(`BEGIN ISOLATION LEVEL ${level}`);
      await client.query('INSERT INTO charges VALUES ($1, 1)', [order]); // Its snapshot is of now.
      return act(client);
    });
    const codes = [];
    const made = await charge(level, async (result) => {
      await isolated(level, async (client) => {
        await currentClaim().step('written', () => 1); // Since the snapshot, as a renewal is.
        await commit(client, result).catch((error) => codes.push(error.code));
      });
      return isolated(level, (client) => commit(client, result));
    });
    assert.deepEqual([made, codes, await rows(level)], [{ order: level, attempt: 1 }, ['40001'], 1]);
    const early = `${level} early`; // Before the claim, which it does not see. The next call need not wait for a lease.
    await isolated(early, (client) => assert.rejects(charge(early, (result) => commit(client, result)), { name: 'ClaimLost', message: /repeatable read/ }));
    assert.deepEqual(await charge(early, (result) => isolated(early, (client) => commit(client, result)), { wait: 0 }), { order: early, attempt: 1 });
  }
});

test('what the client cannot do is said', async () => {
  const elsewhere = new Client(Object.assign(new URL(database), { pathname: '/template1' }).href);
  await elsewhere.connect();
  await elsewhere.query('BEGIN');
  await assert.rejects(charge('n', (made) => commit(elsewhere, made)), { name: 'OnceError', message: /must be the store's/ });
  await elsewhere.end();
  await pool.query('CREATE ROLE clerk');
  const clerk = (client) => client.query('SET ROLE clerk').then(() => client);
  await assert.rejects(charge('n', (made) => begun('n', async (client) => commit(await clerk(client), made))), /table create --role/);
  const aborted = (client) => client.query('SELECT 1 / 0').catch(() => client);
  await assert.rejects(charge('n', (made) => begun('n', async (client) => commit(await aborted(client), made))), { code: '25P02' });
  assert.deepEqual([await charge('n', commits('n')), await rows('n')], [{ order: 'n', attempt: 1 }, 1]);
});

test('work that swallows a doubt completes nothing', async () => {
  await assert.rejects(charge('h', async (made) => {
    await assert.rejects(doubts('h', false)(made), /EPIPE/);
    return 'swallowed';
  }), /may not have been committed/);
  assert.deepEqual(await charge('h', commits('h')), { order: 'h', attempt: 1 });
});

test('what cannot commit is refused', async () => {
  await assert.rejects(charge('i', () => begun('i', (client) => commit(client, new Map()))), TypeError);
  await assert.rejects(charge('i', () => begun('i', (client) => commit(client, 'x'.repeat(2_100_000)))), TooLarge);
  await assert.rejects(begun('i', (client) => commit(client, 1)), OnceError); // No claim.
  assert.equal(await rows('i'), 0);
  const outside = { name: 'OnceError', message: /without BEGIN/ };
  await assert.rejects(charge('i', (made) => commit(pool, made)), outside);
  const client = new Client(database);
  await client.connect();
  await assert.rejects(charge('i', (made) => commit(client, made)), outside);
  await client.end();
  assert.deepEqual(await charge('i', commits('i')), { order: 'i', attempt: 1 });
  process.env.ONCE_DISABLED = '1';
  const disabled = once.makeIdempotent((order) => begun(order, (one) => commit(one, order)), { key: (order) => order, scope: 'disabled' });
  assert.equal(await disabled('j'), 'j');
  delete process.env.ONCE_DISABLED;
  assert.equal(await rows('j'), 1);
});

test('a renewal that comes after the commit does not abort the work', async () => {
  const signal = await charge('k', async (made) => {
    const claim = currentClaim();
    await begun('k', async (client) => {
      const renewed = claim.note('on its way');
      await Promise.all([renewed.catch(() => {}), commit(client, made)]);
    });
    assert.equal(claim.signal.aborted, false);
    return made;
  }, { lease: '1s' });
  assert.deepEqual(signal, { order: 'k', attempt: 1 });
});
