// Stores with records of each kind, made by the program itself, and the servers that show them.
import { spawn, spawnSync } from "node:child_process";
import http from "node:http";
import { mkdtempSync, readFileSync, rmSync, writeFileSync, chmodSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { start_host } from "./host.mjs";
import { patience_ms } from "./browser.mjs";

export const program = process.env.ONCE_PROGRAM;
if (!program) throw new Error("ONCE_PROGRAM names the program once");
const folder = new URL("../../web/console", import.meta.url).pathname;

// Runs the program and returns what it printed. Its exit code is the caller's business, unless `expected` says it.
export function once(store, arguments_, { expected, input } = {}) {
  const [command, ...rest] = arguments_;
  const ran = spawnSync(program, [command, "--store", store.url, ...rest], { encoding: "utf8", input, cwd: store.folder });
  if (ran.error) throw ran.error;
  if (expected !== undefined && ran.status !== expected) throw new Error(`once ${arguments_.join(" ")}: ${ran.status} ${ran.stderr}`);
  return ran;
}
const run = (store, key, scope, flags, command) => once(store, ["run", "--key", key, "--scope", scope, ...flags, "--", ...command]);

export function new_store(name = "once.db") {
  const place = mkdtempSync(join(tmpdir(), "once-console-"));
  return { folder: place, url: `sqlite:${join(place, name)}`, children: [], remove: () => rmSync(place, { recursive: true, force: true }) };
}

// An empty store of another kind, in the server that tests/real_servers/with-postgresql or with-moto has started.
export function new_table(kind) {
  const server = process.env[{ postgresql: "ONCE_TEST_POSTGRESQL", dynamodb: "ONCE_TEST_MOTO_ENDPOINT" }[kind]];
  if (!server) throw new Error(`there is no server of ${kind}: run this by tests/real_servers/with-${kind === "dynamodb" ? "moto" : kind}`);
  const store = new_store();
  store.url = kind === "postgresql" ? server : "dynamodb://once-console?region=eu-central-1";
  const made = spawnSync(program, ["table", "create", "--store", store.url], { encoding: "utf8" });
  if (made.status !== 0) throw new Error(made.stderr);
  return store;
}

export const record_of = (store, key, scope) => {
  const shown = once(store, ["show", "--key", key, "--scope", scope, "--json"]);
  return shown.status === 0 ? JSON.parse(shown.stdout) : null;
};

export const list_of = (store, flags) => JSON.parse(once(store, ["ls", "--json", "--limit", "1000", ...flags], { expected: 0 }).stdout);

// Waits until check() gives something, which it returns.
export async function until(what, check) {
  const end = Date.now() + patience_ms;
  for (;;) {
    const value = await check();
    if (value) return value;
    if (Date.now() > end) throw new Error(`not in time: ${what}`);
    await new Promise((done) => { setTimeout(done, 50); });
  }
}

export const unknown = (store, key, scope = "pay") => run(store, key, scope, ["--on-lapse", "hold"], ["sh", "-c", "kill -9 $$"]);
export const completed = (store, key, scope, output, flags = []) => run(store, key, scope, flags, ["printf", "%s", output]);
export const failed = (store, key, scope = "pay") => run(store, key, scope, [], ["sh", "-c", "echo no funds >&2; exit 3"]);

// Work that goes on: its holder renews its lease until the store is closed.
export async function running(store, key, scope, flags = []) {
  const child = spawn(program, ["run", "--store", store.url, "--key", key, "--scope", scope, ...flags, "--", "sleep", "3000"],
    { stdio: "ignore" });
  store.children.push(child);
  await until(`${key} runs`, () => record_of(store, key, scope));
  return child;
}

// A holder that is killed, so that it stops renewing.
export async function lapsed(store, key, scope) {
  const child = spawn(program, ["run", "--store", store.url, "--key", key, "--scope", scope, "--lease", "1s", "--", "sleep", "3000"],
    { stdio: "ignore", detached: true });
  await until(`${key} runs`, () => record_of(store, key, scope));
  process.kill(-child.pid, "SIGKILL");
  await until(`${key} lapses`, () => record_of(store, key, scope).standing === "lapsed");
}

// A command with such a name, so that the holder of its record has it.
export function run_named(store, name, key, scope, output) {
  const file = join(store.folder, name);
  writeFileSync(file, `#!/bin/sh\ncat <<'END'\n${output}\nEND\n`);
  chmodSync(file, 0o755);
  return run(store, key, scope, [], [file]);
}

// `count` records beside those that are there: copies of one of them, under labels of their own, as no `once run` could
// make them in a test's time. Their keys are in no index, so only a search by label finds them.
export function fill(store, count, of_label, label_prefix) {
  const columns = spawnSync("sqlite3", [join(store.folder, "once.db"), "SELECT group_concat(name) FROM pragma_table_info('records')"],
    { encoding: "utf8" }).stdout.trim().split(",").filter((name) => !["id", "key", "label", "hash"].includes(name)).join(", ");
  const filled = spawnSync("sqlite3", [join(store.folder, "once.db"), `
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ${count})
    INSERT INTO records (key, label, hash, ${columns})
    SELECT CAST('bulk#${label_prefix}' || i AS TEXT), '${label_prefix}' || i, i, ${columns} FROM n, records WHERE label = '${of_label}'`], { encoding: "utf8" });
  if (filled.status !== 0) throw new Error(filled.stderr);
}

// An HTTP service, behind the proxy.
async function start_service() {
  const server = http.createServer((request, response) => {
    request.resume();
    request.on("end", async () => {
      if (request.method === "GET") await server.held;  // A question about an operation.
      if (request.url === "/lost") {  // After the request came: its outcome is not known.
        request.socket.destroy();
        return;
      }
      response.writeHead(201, { "Content-Type": "application/json", Location: "/charges/1" });
      response.end('{"charge":9223372036854775807,"note":"<script>window.ran = true</script>"}');
    });
  });
  await new Promise((done) => { server.listen(0, "127.0.0.1", done); });
  return server;
}

const port_of = (log, what) => new RegExp(`${what} on port (\\d+)`).exec(log)?.[1];

// `once console` itself, with the page and the sessions that users get: {link, exited, close}. Its link works once.
export async function start_program(store, flags = []) {
  const child = spawn(program, ["console", "--store", store.url, "--stats-interval", "1s", ...flags], { stdio: ["ignore", "pipe", "pipe"] });
  let out = "", log = "";
  child.stdout.on("data", (data) => { out += data; });
  child.stderr.on("data", (data) => { log += data; });
  const exited = new Promise((done) => { child.once("exit", done); });
  const link = await until("the console prints its link", () => {
    if (child.exitCode !== null) throw new Error(log);
    return /^(http:\S+)\n/.exec(out)?.[1];
  });
  return { link, exited, page: link.split("#")[0], close: () => child.kill("SIGTERM") };
}

// `once proxy --admin` before a service: {admin, post, stop, close}.
export async function start_proxy(store, { stats = "1s", flags = [], principal = ["--no-principal"] } = {}) {
  const service = await start_service();
  const proxy = spawn(program, ["proxy", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--store", store.url, ...principal, "--log", "none",
    "--stats-interval", stats, "--upstream", `http://127.0.0.1:${service.address().port}`, ...flags], { stdio: ["ignore", "pipe", "pipe"] });
  let log = "";
  for (const stream of [proxy.stdout, proxy.stderr]) stream.on("data", (data) => { log += data; });
  const ports = await until("the proxy listens", () => {
    if (proxy.exitCode !== null) throw new Error(log);
    const listen = port_of(log, "listening"), admin = port_of(log, "operators");
    const file = /the token of the operators' API is in (\S+)\n/.exec(log)?.[1];
    return listen && admin && file && { listen, admin, token: readFileSync(file, "utf8").trim() };
  }).catch((error) => { throw new Error(`${error.message}\n${log}`); });
  return {
    admin: ports.admin,
    token: ports.token,
    // A request through the proxy, under this key.
    post: (key, path = "/charges", headers = {}) => fetch(`http://127.0.0.1:${ports.listen}${path}`, { method: "POST",
      headers: { ...headers, "Idempotency-Key": key, "Content-Type": "application/json" }, body: '{"order":17}' }).then((answer) => answer.text()),
    // The service answers no question until the function is called that this returns.
    hold_questions() {
      let go_on;
      service.held = new Promise((done) => { go_on = done; });
      return go_on;
    },
    stop: () => new Promise((done) => {
      proxy.once("exit", done);
      proxy.kill("SIGKILL");
    }),
    close() {
      proxy.kill("SIGKILL");
      service.close();
      service.closeAllConnections();
    },
  };
}

// The proxy's API, and a host of the page in front that lets tests count requests, end sessions, sign in under any name
// and put all below a path: {link(role), page, post, close, ...}.
export async function start_console(store, { tokens = {}, prefix = "", stats = "1s", flags = [], principal } = {}) {
  const proxy = await start_proxy(store, { stats, flags, principal });
  const host = await start_host({ folder, admin_port: proxy.admin, admin_token: proxy.token, tokens, prefix });
  return {
    ...host,
    sign_in: (role = "operator", name = "alice") => host.link({ name, role }),
    post: proxy.post,
    hold_questions: proxy.hold_questions,
    stop_api: proxy.stop,
    async close() {
      await host.close();
      proxy.close();
    },
  };
}

export function close_store(store) {
  for (const child of store.children) child.kill("SIGKILL");
  store.remove();
}
