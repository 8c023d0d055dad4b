// rate.mjs TOOLS EVENT_FILE EXPRESSION SECONDS: calls a second of Powertools for AWS Lambda (TypeScript) idempotency over
// a store in memory, one line of JSON. Each new call's event differs in its order id; replays repeat the first ones.
// TOOLS: where tools/node-tools has put the library.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [tools, file, expression, seconds] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${tools}/`));
const {
  IdempotencyConfig,
  IdempotencyItemAlreadyExistsError,
  IdempotencyItemNotFoundError,
  makeIdempotent,
} = require('@aws-lambda-powertools/idempotency');
const { BasePersistenceLayer } = require('@aws-lambda-powertools/idempotency/persistence');

class MemoryLayer extends BasePersistenceLayer {
  items = new Map();
  async _putRecord(record) {
    const found = this.items.get(record.idempotencyKey);
    if (found && !found.isExpired()) throw new IdempotencyItemAlreadyExistsError('there is one', found);
    this.items.set(record.idempotencyKey, record);
  }
  async _getRecord(key) {
    const found = this.items.get(key);
    if (!found) throw new IdempotencyItemNotFoundError();
    return found;
  }
  async _updateRecord(record) {
    this.items.set(record.idempotencyKey, record);
  }
  async _deleteRecord(record) {
    this.items.delete(record.idempotencyKey);
  }
}

process.env.POWERTOOLS_IDEMPOTENCY_DISABLED = 'false';
process.env.AWS_LAMBDA_FUNCTION_NAME = 'rate';
const text = readFileSync(file, 'utf8');
const numbered = (number) => text.replaceAll('000042', String(number).padStart(6, '0'));
const parsed = (number) => JSON.parse(numbered(number));

const config = new IdempotencyConfig({ eventKeyJmesPath: expression });
config.registerLambdaContext({ getRemainingTimeInMillis: () => 30_000 }); // Otherwise each call prints a warning.
let runs = 0;
const layer = new MemoryLayer();
const handler = makeIdempotent(
  async (event) => {
    runs += 1;
    return { statusCode: 201, body: event.path };
  },
  { persistenceStore: layer, config }
);

// Only call(event) is timed. The best of several rounds, since other load only adds: as bench_engine does for its own.
async function rate(first, eventOf, call) {
  const until = performance.now() + Number(seconds) * 1000;
  const best = { calls: 0, perSecond: 0, microseconds: Infinity };
  while (performance.now() < until) {
    const events = Array.from({ length: 5000 }, (_, i) => eventOf(first + best.calls + i));
    const processor = process.cpuUsage();
    const began = performance.now();
    for (const event of events) await call(event);
    const spent = performance.now() - began;
    const { user, system } = process.cpuUsage(processor);
    best.calls += events.length;
    best.perSecond = Math.max(best.perSecond, (events.length / spent) * 1000);
    best.microseconds = Math.min(best.microseconds, (user + system) / events.length);
  }
  return best;
}

// Handed the event as an object, as handlers are, and from its text, which is what arrives: JSON.parse is the runtime's
// part of it.
const results = { node: process.version };
const ways = { object: [parsed, handler], text: [numbered, (event) => handler(JSON.parse(event))] };
for (const [way, [eventOf, call]] of Object.entries(ways)) {
  layer.items.clear();
  await rate(0, (i) => eventOf(i % 1000), call); // Warms the compiler up, and leaves the records that are replayed.
  layer.items.clear();
  for (let i = 0; i < 1000; i += 1) await call(eventOf(i));
  runs = 0;
  const replays = await rate(0, (i) => eventOf(i % 1000), call);
  if (runs !== 0) throw new Error(`${runs} replays were runs`);
  const fresh = await rate(100_000, eventOf, call);
  if (runs !== fresh.calls) throw new Error(`${runs} runs of ${fresh.calls} new calls`);
  results[way] = {
    new_per_second: fresh.perSecond,
    new_us: fresh.microseconds,
    replays_per_second: replays.perSecond,
    replay_us: replays.microseconds,
  };
}
console.log(JSON.stringify(results));
