// Powertools for AWS Lambda (TypeScript) as one of the clients of compare.py, which says what is asked and answered on
// each line:
//
//   client_typescript.mjs TOOLS TABLE EVENT FUNCTION       TOOLS: where tools/node-tools has put the libraries
//   client_typescript.mjs TOOLS --versions
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';

const [tools, table, template, name] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${tools}/`));

if (table === '--versions') {
  const names = ['@aws-lambda-powertools/idempotency', '@aws-sdk/client-dynamodb'];
  const version = (library) => JSON.parse(readFileSync(`${tools}/node_modules/${library}/package.json`)).version;
  const versions = Object.fromEntries(names.map((library) => [library, version(library)]));
  console.log(JSON.stringify({ node: process.version.slice(1), ...versions }));
  process.exit(0);
}

process.env.AWS_LAMBDA_FUNCTION_NAME = name; // The keys' prefix.
const { IdempotencyConfig, makeIdempotent } = require('@aws-lambda-powertools/idempotency');
const { DynamoDBPersistenceLayer } = require('@aws-lambda-powertools/idempotency/dynamodb');

const config = new IdempotencyConfig({ eventKeyJmesPath: 'order_id' });
config.registerLambdaContext({ getRemainingTimeInMillis: () => 30_000 }); // Otherwise each call prints a warning.
let runs = 0;
const charge = makeIdempotent(
  async (order) => {
    runs += 1;
    return { order_id: order.order_id, status: 'paid', amount: order.amount };
  },
  // Its DynamoDB client is the SDK's as it comes: connections are kept alive, 50 at the most.
  { persistenceStore: new DynamoDBPersistenceLayer({ tableName: table }), config }
);

for await (const line of createInterface({ input: process.stdin })) {
  const { first, count, in_flight } = JSON.parse(line);
  const numbered = (_, i) => template.replace('0000000000', String(first + i).padStart(10, '0'));
  const events = Array.from({ length: count }, numbered);
  const ids = events.map((event) => JSON.parse(event).order_id);

  runs = 0;
  let wrong = 0;
  const left = events.entries(); // Shared by all workers.
  const work = async () => {
    for (const [i, event] of left) {
      const receipt = await charge(JSON.parse(event));
      if (receipt.order_id !== ids[i] || receipt.status !== 'paid' || receipt.amount !== 4990) wrong += 1;
    }
  };
  const cpu = process.cpuUsage();
  const began = performance.now();
  await Promise.all(Array.from({ length: in_flight }, work));
  const seconds = (performance.now() - began) / 1000;
  const { user, system } = process.cpuUsage(cpu);
  process.stdout.write(`${JSON.stringify({ seconds, cpu_us: user + system, runs, wrong })}\n`);
}
