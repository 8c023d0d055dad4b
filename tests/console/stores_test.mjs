// `once console` itself on each kind of store: lists, a search, one record, an act on what changed, bulk acts, who did what.
import test, { after, before } from "node:test";
import assert from "node:assert/strict";
import { join } from "node:path";
import * as make from "./records.mjs";
import { launch, open, patience_ms } from "./browser.mjs";
import { axe_finds_nothing, fits_a_phone, narrow } from "./screens.mjs";

const patient = { timeout: 3 * patience_ms };
const many = 120, on_a_page = 50;
let browser;
before(async () => { browser = await launch(); }, patient);
after(() => browser?.close());

const heading = (page, name) => page.getByRole("heading", { level: 1, name, exact: true }).waitFor();
const rows = (page) => page.locator(".row-link").allTextContents();
const rows_are = (page, count) => make.until(`there are ${count} rows`, async () => (await rows(page)).length === count);
const refusals = /Failed to load resource: the server responded with a status of 4(00|03|09|12)/;
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

async function bulk(at, { store, keys, scope }) {
  const { page, faults } = await at.at(`#/records?${new URLSearchParams({ standing: "unknown", scope })}`);
  await rows_are(page, on_a_page);
  const first = (await rows(page))[0];
  // 5: from page to page, then all that match.
  await page.keyboard.press("X");
  await page.getByText("50 selected.").waitFor();
  await page.getByRole("link", { name: "Next page" }).click();
  await make.until("the next page", async () => {
    const [now] = await rows(page);
    return now && now !== first;
  });
  await page.keyboard.press("X");
  await page.getByText("100 selected.").waitFor();
  await page.getByRole("button", { name: /^Select all .*that match$/ }).click();
  await page.getByText("that match are selected.").waitFor();
  await page.getByRole("button", { name: "Release …" }).click();
  // 6: no plan without a reason.
  await page.getByRole("button", { name: "Make the plan" }).click();
  await page.getByText("Say why: the reason is kept in each record.").waitFor();
  await page.getByLabel("Reason").fill("bank outage 02:10, INC-88");
  await page.getByRole("button", { name: "Make the plan" }).click();
  await heading(page, "Release 120 operations");
  await page.getByText("“bank outage 02:10, INC-88”").waitFor();
  // 6: no start without its count.
  for (const typed of ["", "119"]) {
    await page.getByLabel("Type 120").fill(typed);
    await page.getByRole("button", { name: "Release 120 operations" }).click();
    await page.getByText("Type 120, the number of records that it changes.").waitFor();
  }
  const id = /#\/bulk\/([0-9a-f]{32})$/.exec(page.url())[1];
  assert.deepEqual(await ask(page, "POST", `bulk/${id}/start`, { count: 119 }), [409, "urn:once:problem:bulk-refused"]);
  assert.deepEqual(await ask(page, "POST", `bulk/${id}/start`, {}), [400, "urn:once:problem:bad-request"]);
  assert.equal(make.record_of(store, keys[5], scope).standing, "unknown");
  // 7: changed after the plan.
  make.once(store, ["resolve", "--key", keys[7], "--scope", scope, "--as", "failed", "--reason", "the bank refused it", "--who", "bob"], { expected: 0 });
  await page.getByLabel("Type 120").fill("120");
  await page.getByRole("button", { name: "Release 120 operations" }).click();
  await page.getByText("119 of 120, 1 changed: left alone").waitFor();
  await page.locator(".state", { hasText: "done" }).waitFor();
  const left = page.locator(".leftovers", { hasText: "What was left alone" }).getByRole("link");
  assert.deepEqual(await left.allTextContents(), [keys[7]]);
  const standings = keys.map((key) => (key === keys[7] || key === keys[0] || key === keys[119] ? make.record_of(store, key, scope).standing : ""));
  assert.deepEqual([standings[7], standings[0], standings[119]], ["failed", "released", "released"]);
  assert.equal(make.list_of(store, ["--scope", scope, "--state", "released"]).length, 119);
  const entry = make.record_of(store, keys[3], scope).history.at(-1);
  assert.deepEqual([entry.who, entry.why], ["alice", "bank outage 02:10, INC-88"]);
  await left.click();
  await heading(page, keys[7]);
  await page.locator(".states", { hasText: "failed" }).waitFor();
  // 8: nothing is meant by nothing.
  assert.deepEqual(await ask(page, "POST", "bulk", { act: "release", filter: {}, reason: "x" }), [400, "urn:once:problem:bad-request"]);
  assert.deepEqual(await ask(page, "POST", "bulk", { act: "release", reason: "x" }), [400, "urn:once:problem:bad-request"]);
  await page.goto(`${at.page}#/records`);
  await rows_are(page, on_a_page);
  await page.keyboard.press("X");
  await page.getByText("selected.").waitFor();
  assert.equal(await page.getByRole("button", { name: /that match$/ }).count(), 0, "without a filter");
  assert.deepEqual(unexpected(faults), []);
  return id;
}

// [status, the problem's type] of a request of the page's own session.
const ask = (page, method, path, body) => page.evaluate(async ([verb, there, json]) => {
  const half = Object.entries(localStorage).find(([name]) => name.startsWith("once-session"))[1];
  const answer = await fetch(`../v1/${there}`, { method: verb, body: JSON.stringify(json),
    headers: { "Content-Type": "application/json", "Once-Session": half } });
  return [answer.status, (await answer.json()).type];
}, [method, path, body]);

async function acts(at, { store }, id) {
  const hex = make.record_of(store, "order-18", "pay").stored_key_hex;
  const { page, faults } = await at.at(`#/r/${hex}`);
  await page.getByRole("button", { name: "Show result" }).click();
  await page.locator(".payload").waitFor();
  await page.getByRole("link", { name: "Who acted on it, or looked at its payloads" }).click();
  await heading(page, "Acts");
  const shown = page.getByRole("row").filter({ hasText: "show" });
  await shown.getByRole("link", { name: "alice" }).waitFor();
  assert.equal(await page.locator("tbody tr").count(), 1);
  assert.equal(await shown.locator(`a[href="#/r/${hex}"]`).count(), 1);
  await page.getByRole("link", { name: "Clear" }).click();
  // The bulk act's own records, the newest first, by its name; its start; and the act on one.
  await page.getByRole("row").filter({ hasText: "release" }).locator(`a[href="#/bulk/${id}"]`).first().waitFor();
  await page.getByRole("link", { name: "Older" }).waitFor();
  for (const [name, told] of [["bulk-start", "a bulk act"], ["resolve", "“the bank refused it”"]]) {
    await page.locator("#act").selectOption(name);
    await page.getByRole("button", { name: "Filter" }).click();
    await make.until(`only ${name}`, async () => {
      const names = await page.locator("tbody .cell-key").allTextContents();
      return names.length && names.every((one) => one === name);
    });
    await page.getByRole("row").filter({ hasText: told }).getByRole("link", { name: "alice" }).first().waitFor();
  }
  // The first try met another version of the record.
  assert.deepEqual(await page.locator("tbody td:last-child").allTextContents().then((all) => all.slice(-2)), ["done", "changed"]);
  await page.getByLabel("Who").fill("nobody");
  await page.getByRole("button", { name: "Filter" }).click();
  await page.getByText(/^No act matches/).waitFor();
  assert.deepEqual(faults, []);
}

async function reader(at, { store }, id) {
  const { page, faults } = await at.at("#/records?standing=unknown");
  await page.locator(".row-link").first().waitFor();
  assert.equal(await page.getByRole("checkbox").count(), 0);
  await page.keyboard.press("X");
  assert.equal(await page.getByRole("group", { name: "Selected" }).count(), 0);
  const before = make.record_of(store, "order-17", "pay");
  for (const [path, body] of [["bulk", { act: "release", keys: [before.stored_key_hex], reason: "x" }], [`bulk/${id}/start`, { count: 1 }],
    [`bulk/${id}/stop`, {}]]) assert.deepEqual(await ask(page, "POST", path, body), [403, "urn:once:problem:role"], path);
  assert.equal(make.record_of(store, "order-17", "pay").revision, before.revision);
  assert.deepEqual(unexpected(faults), []);
}

// All of it by keyboard: two rows, a list that parts them, a plan, its count; and the focus returns.
async function keyboard(at, { store }) {
  const { page, faults } = await at.at("#/records?standing=unknown&scope=pay");
  const keys = page.keyboard;
  await rows_are(page, 3);
  const names = await rows(page);
  const focus_at = (what, check, wanted) => make.until(`the focus is at ${what}`, () => page.evaluate(check, wanted));
  for (const name of names.slice(0, 2)) {
    await keys.press("j");
    await focus_at(name, (text) => document.activeElement.textContent === text, name);
    await keys.press("x");
  }
  await page.getByText("2 selected.").waitFor();
  // No list moves, and nothing is refreshed, while something is selected.
  await keys.press("k");
  await keys.press("x");
  await page.getByText("1 selected.").waitFor();
  await keys.press("X");
  await page.getByText("3 selected.").waitFor();
  const match = page.getByRole("button", { name: "Match a list …" });
  await match.focus();
  await keys.press("Enter");
  await focus_at("the lines", () => document.activeElement.id === "match-list");
  await keys.insertText(`${names[1]};4950;EUR\n"pay/${names[2]}"\n\nnot-there\n`);
  await page.getByText("2 are in the list").waitFor();
  await page.getByText("1 is not in the list").waitFor();
  await page.getByText("1 line names nothing that is selected").waitFor();
  await page.getByRole("button", { name: "Select 1 not in it" }).focus();
  await keys.press("Enter");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  await page.getByText("1 selected.").waitFor();
  await focus_at("the button", () => document.activeElement.textContent.startsWith("Match a list"));
  await keys.press(".");
  await keys.press("Enter");
  await page.getByRole("dialog", { name: "Complete 1 operation" }).waitFor();
  await focus_at("the reason", () => document.activeElement.id === "act-reason");
  await keys.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  await page.getByRole("button", { name: "Fail …" }).focus();
  await keys.press("Enter");
  await focus_at("the reason", () => document.activeElement.id === "act-reason");
  await keys.type("not in the ledger");
  await keys.press("Enter");
  await heading(page, "Fail 1 operation");
  await page.getByLabel("Type 1").focus();
  await keys.type("1");
  await keys.press("Enter");
  await page.getByText("1 of 1").waitFor();
  await make.until("the focus is in the page", () => page.evaluate(() => document.activeElement !== document.body));
  assert.equal(make.record_of(store, names[0], "pay").standing, "failed");
  assert.deepEqual(names.slice(1).map((name) => make.record_of(store, name, "pay").standing), ["unknown", "unknown"]);
  await keys.press("g");
  await keys.press("a");
  await heading(page, "Acts");
  await keys.press("g");
  await keys.press("b");
  await heading(page, "Bulk acts");
  await page.locator(".row-link").nth(1).waitFor();
  await keys.press("j");
  await keys.press("Enter");
  await heading(page, "Fail 1 operation");
  assert.deepEqual(faults, []);
}

// The new screens, one after the other. Nothing is changed.
async function each_screen(at, id, options, check) {
  const { page, faults } = await at.at("#/records?standing=unknown&scope=pay", options);
  await rows_are(page, 2);
  await page.getByRole("checkbox", { name: /^Select order/ }).first().check();
  await page.getByText("1 selected.").waitFor();
  await check(page, "a selection");
  await page.getByRole("button", { name: "More" }).click();
  await check(page, "more acts");
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: "Match a list …" }).click();
  await page.getByLabel("Lines").fill("order-21\nnot-there");
  await page.getByText("names nothing that is selected").waitFor();
  await check(page, "a list");
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  await page.getByRole("button", { name: /^Select all/ }).click();
  await page.getByRole("button", { name: "Release …" }).click();
  await page.getByRole("dialog").getByLabel("Reason").fill("a test of screens");
  await check(page, "a bulk act's dialog");
  await page.getByRole("button", { name: "Make the plan" }).click();
  await page.getByLabel("Type 2").waitFor();
  await check(page, "a plan");
  await page.getByRole("button", { name: "Cancel" }).click();
  await page.getByText("Nothing was changed.").waitFor();
  await check(page, "a plan that was cancelled");
  await page.goto(`${at.page}#/bulk/${id}`);
  await page.getByText("1 changed: left alone").waitFor();
  await check(page, "a bulk act that is done");
  await page.goto(`${at.page}#/bulk/${"0".repeat(32)}`);
  await page.getByText("No such bulk act.").waitFor();
  await check(page, "no bulk act");
  await page.goto(`${at.page}#/bulk`);
  await page.locator(".row-link").first().waitFor();
  await check(page, "bulk acts");
  await page.goto(`${at.page}#/acts`);
  await page.locator("tbody tr").nth(2).waitFor();
  await check(page, "acts");
  assert.deepEqual(faults.filter((fault) => !/status of 404/.test(fault)), []);
}

for (const kind of (process.env.ONCE_CONSOLE_STORES || "sqlite postgresql dynamodb").split(" ")) {
  test(kind, { timeout: 8 * patience_ms }, async (t) => {
    const records = await records_of(kind);
    const { store } = records;
    const at = await start(store, ["--who", "alice", "--audit-log", join(store.folder, "audit.log")]);
    const reads = await start(store, ["--who", "rita", "--read-only"]);
    let id;
    try {
      await t.test(`${kind}: pages, a search, one record`, () => pages_and_search(at, records));
      await t.test(`${kind}: 9: what changed meanwhile is left alone`, () => changed_meanwhile(at, records));
      await t.test(`${kind}: 5 to 8: a bulk act on 120 over 3 pages`, async () => { id = await bulk(at, records); });
      await t.test(`${kind}: 15: what was shown and done is in Acts`, () => acts(at, records, id));
      await t.test(`${kind}: 12: a reader has no bulk acts, and the API refuses them`, () => reader(reads, records, id));
      if (kind === "sqlite") {  // What does not touch the store.
        await t.test("22: a bulk act by keyboard", () => keyboard(at, records));
        for (const colorScheme of ["light", "dark"])
          await t.test(`23: axe finds nothing, ${colorScheme}`, () => each_screen(at, id, { colorScheme }, axe_finds_nothing));
        await t.test("24: the new screens at 320 px", () => each_screen(at, id, narrow, fits_a_phone));
      }
    } finally {
      at.close();
      reads.close();
      await Promise.all([at.exited, reads.exited]);
      make.close_store(store);
    }
  });
}
