// One client of npm, with its own retries: retries.mjs URL CLIENT json|upload KEY. It gives up its first try after
// a second. Prints the status and the body that the program gets in the end, as JSON.
import { createRequire } from "node:module";

const [url, name, kind, key] = process.argv.slice(2);
const require = createRequire(`${process.cwd()}/`);
const load = (module) => import(require.resolve(module));
const first_try_ms = 1000;
const tries = 30;
const order = { cents: 500 };
const file = () => new File(["an invoice"], "invoice.txt", { type: "text/plain" });
const form = () => {
  const fields = new FormData();
  fields.set("file", file());
  fields.set("purpose", "user_data");
  return fields;
};
const body = () => (kind === "json" ? JSON.stringify(order) : form());
const headers = { "Idempotency-Key": key, ...(kind === "json" && { "Content-Type": "application/json" }) };

const generated = async (module) => {
  const { default: Api } = await load(module);
  const api = new Api({ apiKey: "sk-test", baseURL: new URL(url).origin, timeout: first_try_ms, maxRetries: tries });
  const options = { body: kind === "json" ? order : form(), headers: { "Idempotency-Key": key } };
  const answer = await api.post(new URL(url).pathname, options).asResponse();
  return { status: answer.status, body: await answer.text() };
};

const clients = {
  openai: () => generated("openai"),
  anthropic: () => generated("@anthropic-ai/sdk"),
  async "axios-retry"() {
    const { default: axios } = await load("axios");
    const { default: axiosRetry, isNetworkError } = (await load("axios-retry")).default;
    const client = axios.create({ timeout: first_try_ms });
    axiosRetry(client, {
      retries: tries,
      shouldResetTimeout: true,
      retryDelay: (_, error) => axiosRetry.linearDelay(200)(1, error),
      retryCondition: (error) => isNetworkError(error) || error.code === "ECONNABORTED" || error.response?.status === 409,
    });
    const answer = await client.post(url, body(), { headers, responseType: "text" });
    return { status: answer.status, body: answer.data };
  },
  async got() {
    const { default: got } = await load("got");
    const answer = await got.post(url, {
      body: body(),
      headers,
      timeout: { response: first_try_ms },
      retry: { limit: tries, methods: ["POST"], statusCodes: [409], calculateDelay: ({ computedValue }) => computedValue && 200 },
    });
    return { status: answer.statusCode, body: answer.body };
  },
  async ky() {
    const { default: ky } = await load("ky");
    const answer = await ky.post(url, {
      body: body(),
      headers,
      timeout: first_try_ms,
      retry: { limit: tries, methods: ["post"], statusCodes: [409], retryOnTimeout: true, delay: () => 200 },
      totalTimeout: false,
    });
    return { status: answer.status, body: await answer.text() };
  },
  async undici() {
    const { Agent, RetryAgent, request } = (await load("undici")).default;
    const dispatcher = new RetryAgent(new Agent({ headersTimeout: first_try_ms }), {
      maxRetries: tries,
      methods: ["POST"],
      statusCodes: [409],
      errorCodes: ["UND_ERR_HEADERS_TIMEOUT"],
      minTimeout: 200,
      maxTimeout: 200,
      timeoutFactor: 1,
      retryAfter: false,
    });
    // It sends again only what is whole in memory.
    const whole = new Request(url, { method: "POST", headers, body: body() });
    const sent = { method: "POST", headers: Object.fromEntries(whole.headers), body: Buffer.from(await whole.arrayBuffer()) };
    const answer = await request(url, { ...sent, dispatcher });
    return { status: answer.statusCode, body: await answer.body.text() };
  },
};

console.log(JSON.stringify(await clients[name]()));
