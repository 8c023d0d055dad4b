// DBOS Transact (TypeScript) as one of the clients of compare.py, which says what is asked and answered on each line:
//
//   client_dbos.mjs TOOLS URL EXECUTOR POOL    TOOLS: where compare.py has put the library
//   client_dbos.mjs TOOLS --versions
//
// An idempotency key is a workflow's id. EXECUTOR: the process's name there; whoever starts under it again goes on with
// what it left. POOL: connections.
import { appendFileSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';

const [tools, url, executor, pool] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${tools}/`));

if (url === '--versions') {
  const version = JSON.parse(readFileSync(`${tools}/node_modules/@dbos-inc/dbos-sdk/package.json`)).version;
  console.log(JSON.stringify({ node: process.version.slice(1), '@dbos-inc/dbos-sdk': version }));
  process.exit(0);
}

const { DBOS } = require('@dbos-inc/dbos-sdk');
const receipt = 'r'.repeat(100);
let runs = 0;
const cycle = DBOS.registerWorkflow(
  async () => {
    runs += 1;
    return receipt;
  },
  { name: 'cycle' }
);
const work = DBOS.registerWorkflow(
  async (number, takes, effects) => {
    runs += 1;
    appendFileSync(effects, `${number}\n`);
    await new Promise((resolve) => setTimeout(resolve, takes));
    return receipt;
  },
  { name: 'work' }
);

DBOS.setConfig({
  name: 'bench',
  systemDatabaseUrl: url,
  systemDatabasePoolSize: Number(pool),
  executorID: executor,
  applicationVersion: '1', // Otherwise a hash of the code: only the same version goes on with what another left.
  logLevel: 'error',
});
await DBOS.launch();

// What is not answered within `limit` ms of the last answer is told as wrong.
async function answered(promise, limit) {
  let timer;
  const late = new Promise((resolve) => (timer = setTimeout(resolve, limit)));
  const value = await Promise.race([promise, late]);
  clearTimeout(timer);
  return value;
}

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  const { first, count, in_flight } = command;
  runs = 0;
  let wrong = 0;
  const left = Array.from({ length: count }, (_, i) => i).values(); // Shared by all workers.
  const worker = async () => {
    for (const i of left) {
      const workflowID = `pay#${first + i}`;
      let result;
      try {
        if (command.do === 'work') {
          const handle = await DBOS.startWorkflow(work, { workflowID })(i, command.work_ms, command.effects);
          result = await answered(handle.getResult(), command.limit_ms);
        } else {
          result = await (await DBOS.startWorkflow(cycle, { workflowID })()).getResult();
        }
      } catch (error) {
        console.error(`client_dbos.mjs: ${error}`);
      }
      if (result !== receipt) wrong += 1;
    }
  };
  const cpu = process.cpuUsage();
  const began = performance.now();
  await Promise.all(Array.from({ length: in_flight }, worker));
  const seconds = (performance.now() - began) / 1000;
  const { user, system } = process.cpuUsage(cpu);
  process.stdout.write(`${JSON.stringify({ seconds, cpu_us: user + system, runs, wrong })}\n`);
}
process.exit(0);
