// Node.js's fetch, given up while the service works, and asked again until there is an answer: fetch_aborted.mjs URL.
const url = process.argv[2];
const charge = (signal) =>
  fetch(url, { method: "POST", body: "cents=500", headers: { "Idempotency-Key": "slow-20" }, signal });

const abort = new AbortController();
const left = charge(abort.signal).catch((error) => error.name);
const arrived = async () => (await (await fetch(url)).text()).includes("slow-20");
while (!(await arrived()));
abort.abort();

const statuses = [];
let answer;
do {
  answer = await charge();
  statuses.push(answer.status);
} while (answer.status === 409);
console.log(JSON.stringify({
  left: await left,
  conflicts: statuses.length - 1,
  replayed: answer.headers.get("Idempotent-Replayed"),
  body: await answer.text(),
}));
