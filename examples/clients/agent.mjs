// An agent whose model is a script, and whose tool charges a card. It retries as agents were reported to:
//
// 1. The first call takes longer than the agent waits. The model plans again: the same arguments under a new ID.
// 2. It asks for another sum for the same order.
// 3. The bank does not answer, so nobody knows whether it has charged. The model tries once more.
//
//     npm install once-idempotency
//     ONCE_STORE=sqlite:agent.db node agent.mjs    # The second time nothing is charged.
//
// `once.tool()` wraps the function that a framework calls. Here is none, so that nothing else needs to be installed.
import { appendFileSync } from 'node:fs';
import { Once } from 'once-idempotency';

const once = new Once();
let ask, answer;
const asked = new Promise((resolve) => { ask = resolve; });
const answers = new Promise((resolve) => { answer = resolve; });
class Timeout extends Error {}

const charge = once.tool(async ({ orderId, cents }) => {
  appendFileSync('bank.log', `charged ${orderId}: ${cents}\n`);
  ask();
  await answers;
  if (orderId === 'order-18') throw new Timeout('the bank does not answer');
  return `charged ${cents} cents`;
}, { name: 'charge', key: 'orderId', onError: (error) => (error instanceof Timeout ? 'hold' : 'fail') });

const model = [
  { orderId: 'order-17', cents: 4000 },
  { orderId: 'order-17', cents: 4000 },
  { orderId: 'order-17', cents: 9000 },
  { orderId: 'order-18', cents: 500 },
  { orderId: 'order-18', cents: 500 },
];
for (const [number, args] of model.entries()) {
  const called = charge(args).catch((error) => `error: ${error.message}`);
  if (number > 0) answer();
  // In the first turn the agent waits until the bank is asked, and no longer.
  const text = await (number === 0 ? Promise.race([called, asked.then(() => 'error: the tool takes too long')]) : called);
  console.log(`call_${number + 1} charge(${JSON.stringify(args)})\n${text}\n`);
}
once.close();
