// What the clients in TypeScript's libraries have in common: as work.py.
import { appendFileSync } from 'node:fs';
import { createInterface } from 'node:readline';

export function note(ask, what) {
  const line = { t: Number(process.hrtime.bigint()), what, by: ask.by };
  appendFileSync(ask.ledger, `${JSON.stringify(line)}\n`);
}

// In slices: work goes on where it was after its process stood still, as computing does.
export async function pause(ms) {
  for (let left = ms; left > 0; left -= 100) await new Promise((resolve) => setTimeout(resolve, 100));
}

export async function work(ask) {
  note(ask, 'begun');
  if (ask.acts === 'first') note(ask, 'effect');
  await pause(ask.work_ms);
  if (ask.acts === 'last') note(ask, 'effect');
  return `${ask.by}:${process.pid}`;
}

export async function answer(call) {
  process.stdout.write('{}\n');
  for await (const line of createInterface({ input: process.stdin })) {
    let told;
    try {
      told = { told: await call(JSON.parse(line)) };
    } catch (error) {
      told = { error: error.name, why: String(error.message).slice(0, 200) };
    }
    process.stdout.write(`${JSON.stringify(told)}\n`);
  }
  process.exit(0);
}
