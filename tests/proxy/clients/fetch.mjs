// Node.js's fetch: fetch.mjs URL. Prints what became of each case as JSON.
import assert from "node:assert/strict";

const url = process.argv[2];
const charge = (key, options = {}) =>
  fetch(url, { method: "POST", body: "cents=500", headers: { "Idempotency-Key": key }, ...options });
const seen = async (answer) => ({
  status: answer.status,
  replayed: answer.headers.get("Idempotent-Replayed"),
  body: await answer.text(),
});

// Bare, as most send it, and quoted, as the draft has it: one key.
const first = await seen(await charge("order-17"));
const again = await seen(await charge('"order-17"'));

// At once, on as many connections.
const together = await Promise.all(Array.from({ length: 20 }, async () => seen(await charge("order-18"))));

// A body that streams goes out in chunks.
const stream = () => ReadableStream.from([Buffer.from("cents="), Buffer.from("500")]);
const chunked = await seen(await charge("order-19", { body: stream(), duplex: "half" }));
const repeated = await seen(await charge("order-19", { body: stream(), duplex: "half" }));

// Another body with the same key.
const reused = await seen(await charge("order-17", { body: "cents=900" }));
assert.equal(JSON.parse(reused.body).type, "urn:once:problem:key-reused");

console.log(JSON.stringify({ first, again, together, chunked, repeated, reused: reused.status }));
