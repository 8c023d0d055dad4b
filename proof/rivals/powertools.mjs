// powertools.mjs TOOLS TABLE: Powertools for AWS Lambda (TypeScript) as one of the clients of rivals.py; as powertools.py.
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';
import { answer, work } from './work.mjs';

const [tools, tableName] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${tools}/`));
const { IdempotencyConfig, makeIdempotent } = require('@aws-lambda-powertools/idempotency');
const { DynamoDBPersistenceLayer } = require('@aws-lambda-powertools/idempotency/dynamodb');

const config = new IdempotencyConfig({ eventKeyJmesPath: 'key' });
const handler = makeIdempotent(work, { persistenceStore: new DynamoDBPersistenceLayer({ tableName }), config });
await answer((ask) => {
  config.registerLambdaContext({ getRemainingTimeInMillis: () => ask.lease_ms });
  return handler(ask);
});
