// Powertools for AWS Lambda (TypeScript) as a function for compare.py, on a runtime of a few lines: less than the
// managed one does.
//
//   function_typescript.mjs TOOLS                TOOLS: where tools/node-tools has put the libraries
//   function_typescript.mjs TOOLS --versions
//
// BENCH_MODE is bare or idempotent; ONCE_STORE, as for the others, memory: or dynamodb://TABLE.
import { readFileSync } from 'node:fs';
import { Agent, request } from 'node:http';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [tools, versions] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${tools}/`));
if (versions) {
  const names = ['@aws-lambda-powertools/idempotency', '@aws-sdk/client-dynamodb'];
  const version = (library) => JSON.parse(readFileSync(`${tools}/node_modules/${library}/package.json`)).version;
  const all = Object.fromEntries(names.map((library) => [library, version(library)]));
  console.log(JSON.stringify({ node: process.version.slice(1), ...all }));
  process.exit(0);
}

const charge = async (order) => ({ order_id: order.order_id, status: 'paid', amount: order.amount });

const memoryLayer = () => {
  const library = require('@aws-lambda-powertools/idempotency');
  const { BasePersistenceLayer } = require('@aws-lambda-powertools/idempotency/persistence');
  return class extends BasePersistenceLayer {
    items = new Map();
    async _putRecord(record) {
      const found = this.items.get(record.idempotencyKey);
      if (found && !found.isExpired()) throw new library.IdempotencyItemAlreadyExistsError('there is one', found);
      this.items.set(record.idempotencyKey, record);
    }
    async _getRecord(key) {
      const found = this.items.get(key);
      if (!found) throw new library.IdempotencyItemNotFoundError();
      return found;
    }
    async _updateRecord(record) {
      this.items.set(record.idempotencyKey, record);
    }
    async _deleteRecord(record) {
      this.items.delete(record.idempotencyKey);
    }
  };
};

const makeHandler = () => {
  if (process.env.BENCH_MODE === 'bare') return charge;
  const { IdempotencyConfig, makeIdempotent } = require('@aws-lambda-powertools/idempotency');
  const config = new IdempotencyConfig({ eventKeyJmesPath: 'order_id' });
  let persistenceStore;
  if (process.env.ONCE_STORE === 'memory:') {
    persistenceStore = new (memoryLayer())();
  } else {
    const { DynamoDBPersistenceLayer } = require('@aws-lambda-powertools/idempotency/dynamodb');
    const tableName = process.env.ONCE_STORE.slice('dynamodb://'.length);
    persistenceStore = new DynamoDBPersistenceLayer({ tableName });
  }
  const idempotent = makeIdempotent(charge, { persistenceStore, config });
  return (order, remaining) => {
    config.registerLambdaContext({ getRemainingTimeInMillis: () => remaining });
    return idempotent(order);
  };
};

const [host, port] = process.env.AWS_LAMBDA_RUNTIME_API.split(':');
const agent = new Agent({ keepAlive: true, maxSockets: 1 });
const call = (method, path, body) =>
  new Promise((resolve, reject) => {
    const headers = body === undefined ? {} : { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(body) };
    const sent = request({ host, port, agent, method, path: `/2018-06-01/runtime/${path}`, headers }, (answer) => {
      const chunks = [];
      answer.on('data', (chunk) => chunks.push(chunk));
      answer.on('end', () => resolve({ headers: answer.headers, body: Buffer.concat(chunks).toString() }));
      answer.on('error', reject);
    });
    sent.on('error', reject);
    sent.end(body);
  });

const handler = makeHandler();
for (;;) {
  const next = await call('GET', 'invocation/next');
  const id = next.headers['lambda-runtime-aws-request-id'];
  const remaining = Number(next.headers['lambda-runtime-deadline-ms']) - Date.now();
  const response = await handler(JSON.parse(next.body), remaining);
  await call('POST', `invocation/${id}/response`, JSON.stringify(response));
}
