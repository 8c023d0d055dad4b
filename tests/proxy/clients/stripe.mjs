// Stripe's client for Node.js, pointed at the proxy: stripe.mjs PORT MODULES. Prints what became of each case as JSON.
import { createRequire } from "node:module";

const [port, modules] = process.argv.slice(2);
const Stripe = createRequire(`${modules}/`)("stripe");
const client = (options = {}) =>
  Object.assign(
    new Stripe("sk_test_1", { host: "127.0.0.1", port, protocol: "http", maxNetworkRetries: 8, ...options }),
    // It rests for half a second and more between two tries, and there is no option for that.
    { getInitialNetworkRetryDelay: () => 0.02, getMaxNetworkRetryDelay: () => 0.1 },
  );

const charge = async (stripe, description, options = {}) => {
  try {
    const order = { amount: 500, currency: "eur", description };
    const { id, lastResponse } = await stripe.charges.create(order, options);
    return { id, status: lastResponse.statusCode };
  } catch (error) {
    return { error: error.type, code: error.code, status: error.statusCode };
  }
};

const stripe = client();
const cases = {};
cases.plain = await charge(stripe, "plain");
// The same key twice, as a program does that was started again.
cases.first = await charge(stripe, "named", { idempotencyKey: "order-17" });
cases.again = await charge(stripe, "named", { idempotencyKey: "order-17" });
// It waits for 100 ms, and tries again with the same key while the first charge is under way.
cases.impatient = await charge(client({ timeout: 100, maxNetworkRetries: 100 }), "slow");
// The service says 503 twice: nothing was done.
cases.busy = await charge(stripe, "busy");
// The service does it and breaks off.
cases.lost = await charge(stripe, "lost");
// Another charge with the key of the first.
cases.reused = await charge(stripe, "other", { idempotencyKey: "order-17" });
// An error of the service's own, and its replay.
cases.declined = await charge(stripe, "declined", { idempotencyKey: "order-18" });
cases.declined_again = await charge(stripe, "declined", { idempotencyKey: "order-18" });
console.log(JSON.stringify(cases));
process.exit();  // Or it lives as long as its kept connections.
