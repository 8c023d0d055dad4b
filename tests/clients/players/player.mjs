// player.mjs: plays calls for tests/clients/clients_test.py with the Node package.
import { appendFileSync, writeSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';

import { Once, OnceError } from '../../../clients/node/lib/index.mjs';

const say = (event) => writeSync(1, `${JSON.stringify(event)}\n`);
const gates = new Map();
const cancels = new Map();
let once;

class Rejected extends Error {}

function gate(name) {
  if (!gates.has(name)) {
    let open;
    const opened = new Promise((resolve) => {
      open = resolve;
    });
    gates.set(name, { opened, open });
  }
  return gates.get(name);
}

const aborted = (signal) => new Promise((_, reject) => {
  signal.addEventListener('abort', () => reject(signal.reason), { once: true });
});

async function work(call, claim, actions) {
  for (const action of actions) {
    if ('effect' in action) say({ id: call.id, effect: action.effect, attempt: claim.attempt });
    else if ('gate' in action) {
      say({ id: call.id, at: action.gate });
      const opened = gate(action.gate).opened;
      await (cancels.get(call.id).isCancellable ? Promise.race([opened, aborted(call.signal)]) : opened);
    } else if ('append' in action) appendFileSync(action.append, `${action.text}\n`);
    else if ('wait_ms' in action) await sleep(action.wait_ms);
    else if ('step' in action) await claim.step(action.step, () => work(call, claim, action.work));
    else if ('check' in action) await claim.check();
    else if ('call' in action) await run(action.call);
    else if ('throw' in action) throw new Rejected(action.throw);
    else if ('unserialisable' in action) return new Map();
    else return 'large' in action ? 'x'.repeat(action.large) : action.return;
  }
  return null;
}

async function run(call) {
  const { lease_ms: lease, wait_ms: wait, on_lapse: onLapse, on_error: onError, on_unrecorded: unrecorded } = call.options;
  const cancel = new AbortController();
  cancels.set(call.id, { cancel, isCancellable: true });
  call.signal = cancel.signal;
  const onUnrecorded = unrecorded === 'fail' ? 'throw' : undefined;
  const options = { lease, wait, onLapse, onError, onUnrecorded, payload: call.payload, signal: cancel.signal };
  for (const name of Object.keys(options)) if (options[name] === undefined) delete options[name];
  try {
    const result = await once.call(call.scope, call.key, (claim) => work(call, claim, call.work), options);
    say({ id: call.id, result: result instanceof Map ? null : result });
  } catch (error) {
    if (error?.name === 'AbortError') say({ id: call.id, error: 'cancelled' });
    else if (error instanceof OnceError) say({ id: call.id, error: error.word, message: error.failure ?? error.message });
    else if (error instanceof Rejected) say({ id: call.id, error: 'thrown', message: error.message });
    else throw error;
  }
}

say({ ready: 'node', can: ['cancel'] });
for await (const line of createInterface({ input: process.stdin })) {
  const message = JSON.parse(line);
  if (message.do === 'client') {
    const { server, store, program, timeout_ms: timeout } = message;
    const { token_file: tokenFile, ca_file: caFile, cert_file: certFile, key_file: keyFile } = message;
    once = new Once(JSON.parse(JSON.stringify({ server, store, tokenFile, caFile, certFile, keyFile, program, timeout })));
  } else if (message.do === 'open') gate(message.gate).open();
  else if (message.do === 'cancel') cancels.get(message.id).cancel.abort();
  else run(message);
}
process.exit(0);
