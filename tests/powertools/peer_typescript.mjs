// Powertools for AWS Lambda (TypeScript) as the other side of cross_test.py. The same lines as peer_python.py; the
// function has no name of its own in the library's keys.
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';

// The libraries are where tools/node-tools has put them, not beside this file.
const require = createRequire(pathToFileURL(`${process.argv[2]}/`));
const { IdempotencyConfig, makeIdempotent } = require('@aws-lambda-powertools/idempotency');
const { DynamoDBPersistenceLayer } = require('@aws-lambda-powertools/idempotency/dynamodb');

const options = JSON.parse(process.argv[3]);
const persistenceStore = new DynamoDBPersistenceLayer({ tableName: options.table, ...(options.store ?? {}) });
const config = new IdempotencyConfig(options.config ?? {});
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const say = (answer) => process.stdout.write(`${JSON.stringify(answer)}\n`);
const hear = async () => {
  const { value, done } = await lines.next();
  if (done) process.exit(0);
  return JSON.parse(value);
};

console.warn = () => {}; // It warns of calls without a Lambda context.
let command = {};
let ran = false;
const handler = makeIdempotent(
  async () => {
    ran = true;
    let orders = command;
    if (command.hold) {
      say({ running: true });
      orders = await hear();
    }
    if (orders.raise !== undefined) throw new TypeError(orders.raise);
    return orders.result;
  },
  { persistenceStore, config, ...(options.key_prefix === undefined ? {} : { keyPrefix: options.key_prefix }) }
);

for (;;) {
  command = await hear();
  ran = false;
  const remaining = command.remaining_ms;
  config.registerLambdaContext(remaining === undefined ? undefined : { getRemainingTimeInMillis: () => remaining });
  try {
    const returned = await handler(command.event);
    say({ returned: returned === undefined ? '(undefined)' : returned, ran });
  } catch (error) {
    say({ threw: error.name, message: error.message, cause: error.cause?.message, ran });
  }
}
