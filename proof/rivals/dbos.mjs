// dbos.mjs TOOLS URL EXECUTOR: DBOS Transact (TypeScript) as one of the clients of rivals.py. The key is a workflow's id, and
// each part of the work that acts is a step, as its documents ask. Whoever starts under an executor's name goes on with
// what that one left.
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';
import { answer, note, pause } from './work.mjs';

const [tools, url, executor] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${tools}/`));
const { DBOS } = require('@dbos-inc/dbos-sdk');

const step = (ask, what) => DBOS.runStep(async () => note(ask, what), { name: what });
const charge = DBOS.registerWorkflow(
  async (ask) => {
    note(ask, 'begun');
    if (ask.acts === 'first') await step(ask, 'effect');
    await pause(ask.work_ms);
    if (ask.acts === 'last') await step(ask, 'effect');
    return `${ask.by}:${process.pid}`;
  },
  { name: 'charge' }
);
DBOS.setConfig({
  name: 'rivals',
  systemDatabaseUrl: url,
  executorID: executor,
  applicationVersion: '1', // Otherwise a hash of the code: only the same version goes on with what another left.
  logLevel: 'error',
});
await DBOS.launch();
await answer(async (ask) => (await DBOS.startWorkflow(charge, { workflowID: ask.key })(ask)).getResult());
