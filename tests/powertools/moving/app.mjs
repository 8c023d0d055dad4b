// The function as it is before it moves: Powertools for AWS Lambda (TypeScript).
import { createRequire } from 'node:module';

const require = createRequire(`${process.argv[2]}/`); // Where the tests have installed the library.
const { IdempotencyConfig, makeIdempotent } = require('@aws-lambda-powertools/idempotency');
const { DynamoDBPersistenceLayer } = require('@aws-lambda-powertools/idempotency/dynamodb');

// [before]
const persistenceStore = new DynamoDBPersistenceLayer({ tableName: 'payments' });
const config = new IdempotencyConfig({ eventKeyJmesPath: 'order_id', payloadValidationJmesPath: 'amount' });

const handler = makeIdempotent(
  async (event) => {
    console.error('charging', event.order_id);
    return { status: 'paid', amount: event.amount };
  },
  { persistenceStore, config }
);
// [/before]

config.registerLambdaContext({ getRemainingTimeInMillis: () => 30_000 });
console.log(JSON.stringify(await handler(JSON.parse(process.argv[3]))));
