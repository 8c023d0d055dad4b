// `once console` itself on each kind of store: lists, a search, one record, an act on what changed.
import test, { after, before } from "node:test";
import assert from "node:assert/strict";
import { join } from "node:path";
import * as make from "./records.mjs";
import { launch, open, patience_ms } from "./browser.mjs";

const patient = { timeout: 3 * patience_ms };
const many = 120, on_a_page = 50;
let browser;
before(async () => { browser = await launch(); }, patient);
after(() => browser?.close());

const heading = (page, name) => page.getByRole("heading", { level: 1, name, exact: true }).waitFor();
const rows = (page) => page.locator(".row-link").allTextContents();
const rows_are = (page, count) => make.until(`there are ${count} rows`, async () => (await rows(page)).length === count);
const refusals = /Failed to load resource: the server responded with a status of 4(03|12)/;
const unexpected = (faults) => faults.filter((fault) => !refusals.test(fault));

// A program, and a page in its one session at each fragment.
async function start(store, flags) {
  const at = await make.start_program(store, flags);
  const { page, context } = await open(browser);
  await page.goto(at.link);
  await heading(page, "Overview");
  const storageState = await context.storageState();
  await context.close();
  return { ...at, async at(fragment, options = {}) {
    const opened = await open(browser, { storageState, ...options });
    await opened.page.goto(`${at.page}${fragment}`);
    return opened;
  } };
}

// What an outage leaves: 120 operations whose outcome is unknown, made by the proxy; and some of `once run`.
async function records_of(kind) {
  const store = kind === "sqlite" ? make.new_store() : make.new_table(kind);
  const proxy = await make.start_proxy(store, { flags: ["--aside-after-failures", "1000"] });
  const keys = Array.from({ length: many }, (_, index) => `charge-${index}`);
  const left = [...keys];
  await Promise.all(Array.from({ length: 8 }, async () => {
    while (left.length) await proxy.post(left.pop(), "/lost");
  }));
  proxy.close();
  for (const key of ["order-17", "order-9", "order-21", "order-22"]) make.unknown(store, key);
  make.completed(store, "order-18", "pay", "paid");
  const { scope } = make.list_of(store, ["--state", "unknown"]).find(({ key }) => key === keys[0]);
  return { store, keys, scope };
}

async function pages_and_search(at, { keys, scope }) {
  const { page, faults } = await at.at(`#/records?${new URLSearchParams({ standing: "unknown", scope })}`);
  const seen = [];
  for (const count of [on_a_page, on_a_page, many - 2 * on_a_page]) {
    await rows_are(page, count);
    seen.push(...await rows(page));
    if (seen.length < many) await page.getByRole("link", { name: "Next page" }).click();
    await make.until("the next page", async () => !seen.includes((await rows(page))[0]) || seen.length === many);
  }
  assert.deepEqual(seen.sort(), [...keys].sort());
  await page.locator("#q").fill("order-17");
  await page.locator("#q").press("Enter");
  await heading(page, "order-17");
  await page.getByText("It was started, and nobody knows how it ended.").waitFor();
  assert.deepEqual(faults, []);
}

async function changed_meanwhile(at, { store }) {
  const hex = make.record_of(store, "order-9", "pay").stored_key_hex;
  const { page, faults } = await at.at(`#/r/${hex}`);
  await heading(page, "order-9");
  await page.getByRole("button", { name: "Fail …" }).click();
  await page.getByLabel("Reason").fill("the bank refused it");
  await page.locator(".preview .word.is-failed").waitFor();
  make.once(store, ["release", "--key", "order-9", "--scope", "pay", "--reason", "was quicker", "--who", "bob"], { expected: 0 });
  await page.getByRole("dialog").getByRole("button", { name: /^Fail / }).click();
  await page.getByRole("table", { name: "It changed while you looked." }).waitFor();
  assert.equal(await page.getByLabel("Reason").inputValue(), "the bank refused it");
  assert.equal(make.record_of(store, "order-9", "pay").standing, "released");
  await page.getByRole("button", { name: "Go on with what it is now" }).click();
  await page.getByRole("dialog").getByRole("button", { name: /^Fail / }).click();
  await page.locator(".states", { hasText: "failed" }).waitFor();
  assert.deepEqual(unexpected(faults), []);
}

// [status, the problem's type] of a request of the page's own session.
const ask = (page, method, path, body) => page.evaluate(async ([verb, there, json]) => {
  const half = Object.entries(localStorage).find(([name]) => name.startsWith("once-session"))[1];
  const answer = await fetch(`../v1/${there}`, { method: verb, body: JSON.stringify(json),
    headers: { "Content-Type": "application/json", "Once-Session": half } });
  return [answer.status, (await answer.json()).type];
}, [method, path, body]);

async function reader(at, { store }) {
  const { page, faults } = await at.at("#/records?standing=unknown");
  await page.locator(".row-link").first().waitFor();
  assert.equal(await page.getByRole("checkbox").count(), 0);
  await page.keyboard.press("X");
  assert.equal(await page.getByRole("group", { name: "Selected" }).count(), 0);
  const before = make.record_of(store, "order-17", "pay");
  for (const [path, body] of [[`records/${before.stored_key_hex}/release`, { reason: "x" }]]) assert.deepEqual(await ask(page, "POST", path, body), [403, "urn:once:problem:role"], path);
  assert.equal(make.record_of(store, "order-17", "pay").revision, before.revision);
  assert.deepEqual(unexpected(faults), []);
}

for (const kind of (process.env.ONCE_CONSOLE_STORES || "sqlite postgresql dynamodb").split(" ")) {
  test(kind, { timeout: 8 * patience_ms }, async (t) => {
    const records = await records_of(kind);
    const { store } = records;
    const at = await start(store, ["--who", "alice", "--audit-log", join(store.folder, "audit.log")]);
    const reads = await start(store, ["--who", "rita", "--read-only"]);
    try {
      await t.test(`${kind}: pages, a search, one record`, () => pages_and_search(at, records));
      await t.test(`${kind}: 9: what changed meanwhile is left alone`, () => changed_meanwhile(at, records));
      await t.test(`${kind}: 12: a reader has no acts, and the API refuses them`, () => reader(reads, records));
    } finally {
      at.close();
      reads.close();
      await Promise.all([at.exited, reads.exited]);
      make.close_store(store);
    }
  });
}
