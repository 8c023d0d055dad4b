// pictures.mjs FOLDER: makes the pictures of the console for the docs there: each screen, light and dark. What is in them
// ran, on hosts of these names (unshare); then the records were moved back in time.
import { spawn, spawnSync } from "node:child_process";
import { chmodSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import * as make from "./records.mjs";
import { launch, open } from "./browser.mjs";

const [to] = process.argv.slice(2);
const store = make.new_store("payments.db");
const held = [];
process.on("exit", () => {
  for (const child of held) {
    try {
      process.kill(-child.pid, "SIGKILL");
    } catch { /* It has ended. */ }
  }
  make.close_store(store);
});

const at_host = (host, arguments_) => ["unshare", ["--uts", "sh", "-c", 'hostname "$1"; shift; exec "$@"', "sh", host,
  make.program, arguments_[0], "--store", store.url, ...arguments_.slice(1)], { cwd: store.folder }];
function at(host, ...arguments_) {
  const ran = spawnSync(...at_host(host, arguments_));
  if (ran.error) throw ran.error;
}
const ages = [];  // [key, seconds]
function past(host, ago, key, scope, ...arguments_) {
  at(host, "run", "--key", key, "--scope", scope, ...arguments_);
  ages.push([key, ago]);
}
async function started(host, ago, key, scope, ...arguments_) {
  const [command, flags, options] = at_host(host, ["run", "--key", key, "--scope", scope, ...arguments_]);
  const child = spawn(command, flags, { ...options, stdio: "ignore", detached: true });
  held.push(child);
  ages.push([key, ago]);
  await make.until(`${key} runs`, () => make.record_of(store, key, scope));
  return child;
}
async function died(child, key, scope) {
  process.kill(-child.pid, "SIGKILL");
  await make.until(`${key} lapses`, () => make.record_of(store, key, scope).standing === "lapsed");
}

// Each time of these records, and those in their histories, where they have 13 digits before and after.
function move_back() {
  const sql = (text) => {
    const ran = spawnSync("sqlite3", ["-json", join(store.folder, "payments.db"), text], { encoding: "utf8" });
    if (ran.status !== 0) throw new Error(ran.stderr);
    return ran.stdout ? JSON.parse(ran.stdout) : [];
  };
  for (const [key, ago] of ages) {
    const [{ id, history }] = sql(`SELECT id, history FROM records WHERE label = '${key}'`);
    const older = (history || "").replace(/(?<!\d)1\d{12}(?!\d)/g, (ms) => String(Number(ms) - Math.round(ago * 1000)))
      .replace(/\d{4}-\d\d-\d\dT[\d:.]{12}Z/g, (at) => new Date(Date.parse(at) - Math.round(ago * 1000)).toISOString());
    const columns = ["created_at_ms", "finished_at_ms", "lease_until_ms", "expires_at_ms", "sweep_at_ms", "expected_until_ms", "token"];
    sql(`UPDATE records SET ${columns.map((name) => `${name} = ${name} - ${Math.round(ago * 1000)}`).join(", ")}${
      history ? `, history = '${older.replace(/'/g, "''")}'` : ""} WHERE id = ${id}`);
  }
}
const script = (name, text) => {
  writeFileSync(join(store.folder, name), `#!/bin/sh\n${text}\n`);
  chmodSync(join(store.folder, name), 0o755);
};
const minutes = 60;

script("charge", 'case $1-$ONCE_ATTEMPT in *-1) sleep 3000;; *) kill -9 $$;; esac');
script("lose", "kill -9 $$");
script("refuse", 'echo "{\\"error\\":\\"card declined\\"}"; exit 4');
script("pay", 'echo "{\\"charge\\":\\"ch_1001\\",\\"order\\":\\"$1\\",\\"amount\\":4950,\\"balance\\":9223372036854775807}"');
script("settle", "sleep 3000");

// order-17: a first holder died, a second one does not know.
const first = await started("web-3", 171 * minutes, "order-17", "pay", "--lease", "1s", "--keep-input", "args", "--", "./charge", "order-17");
at("web-4", "extend", "--key", "order-17", "--scope", "pay", "--by", "4s", "--who", "alice", "--reason", "the bank is slow, INC-88");
await died(first, "order-17", "pay");
at("web-4", "run", "--key", "order-17", "--scope", "pay", "--on-signal", "hold", "--keep-input", "args", "--", "./charge", "order-17");
["order-23", "order-31", "order-38", "order-44"].forEach((key, index) =>
  past(`web-${1 + index % 4}`, (150 - 23 * index) * minutes + 17 * index, key, "pay", "--on-lapse", "hold", "--", "./lose", key));
["payout-7", "payout-9"].forEach((key, index) =>
  past("batch-1", (71 - 9 * index) * minutes, key, "payouts", "--on-lapse", "hold", "--", "./lose", key));
["order-40", "order-47", "order-52"].forEach((key, index) =>
  past(`web-${2 + index}`, (64 - 17 * index) * minutes, key, "pay", "--", "./refuse", key));
past("web-2", 22 * minutes, "order-50", "pay", "--on-lapse", "hold", "--", "./lose", "order-50");
at("web-2", "release", "--key", "order-50", "--scope", "pay", "--reason", "never reached the bank", "--who", "bob");
await died(await started("batch-2", 4 * minutes, "report-2026-11", "nightly", "--lease", "1s", "--", "./settle"), "report-2026-11", "nightly");
for (const [host, ago, key, expect] of [["batch-1", 19 * minutes, "ledger-2026-11", "10m"], ["batch-1", 15 * minutes, "fees-2026-11", "10m"],
  ["web-1", 41, "order-64", "1h"], ["web-3", 17, "order-65", "1h"], ["web-4", 9, "order-66", "1h"]])
  await started(host, ago, key, key.startsWith("order") ? "pay" : "nightly", "--lease", "1h", "--expect", expect, "--", "./settle");
for (let order = 53; order < 64; ++order)
  past(`web-${1 + order % 4}`, (65 - order) * 190 + order, `order-${order}`, "pay", "--", "./pay", `order-${order}`);
move_back();

const host = await make.start_console(store);
for (let call = 0; call < 57; ++call) await host.post(`c-${call % 41}`);
const browser = await launch();
for (const colorScheme of ["light", "dark"]) {
  const { page, faults } = await open(browser, { colorScheme, viewport: { width: 1200, height: 700 }, deviceScaleFactor: 2 });
  const take = async (name, height) => {
    await page.setViewportSize({ width: 1200, height });
    await page.mouse.move(0, 0);
    await page.evaluate(() => document.activeElement.blur());
    await page.screenshot({ path: join(to, `console-${name}-${colorScheme}.png`) });
  };
  await page.goto(host.sign_in());
  await page.locator(".tile.is-unknown .number").waitFor();
  await page.goto(`${host.page}#/records`);
  await page.locator(".row-link").nth(20).waitFor();
  await take("records", 700);
  await page.locator("#q").fill("order-17");
  await page.locator("#q").press("Enter");
  await page.getByText("It was started, and nobody knows how it ended.").waitFor();
  await take("record", 700);
  await page.getByRole("button", { name: "Complete …" }).click();
  await page.getByLabel("Reason").fill("in the bank's ledger, INC-88");
  await page.getByLabel("Standard output").fill('{"charge":"ch_1017"}');
  await page.locator(".change").waitFor();
  await take("act", 700);
  await page.keyboard.press("Escape");
  await page.goto(`${host.page}#/records?standing=unknown&scope=pay`);
  await page.locator(".row-link").nth(4).waitFor();
  await page.keyboard.press("X");
  await page.getByText("5 selected.").waitFor();
  await take("selection", 420);
  await page.getByRole("button", { name: "Release …" }).click();
  await page.getByLabel("Reason").fill("bank outage 02:10, none is in the ledger, INC-88");
  await page.getByRole("button", { name: "Make the plan" }).click();
  await page.getByLabel("Type 5").fill("5");
  await take("bulk", 760);
  await page.goto(`${host.page}#/`);
  await page.locator(".tile.is-unknown .number", { hasText: "7" }).waitFor();
  await take("overview", 500);
  if (faults.length) throw new Error(faults.join("\n"));
}
await browser.close();
await host.close();
process.exit(0);
