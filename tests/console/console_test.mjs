// The console in a browser, on real records in SQLite: what an operator sees, what an act does, and what nothing does.
// stores_test.mjs has what depends on the store.
import test, { after, afterEach, before } from "node:test";
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readFileSync, symlinkSync } from "node:fs";
import { delimiter, join } from "node:path";
import * as make from "./records.mjs";
import { axe_source, launch, open, patience_ms } from "./browser.mjs";
import { axe_finds_nothing, fits_a_phone, narrow } from "./screens.mjs";

const patient = { timeout: 3 * patience_ms };
const tokens = { "token-of-the-operator": { name: "alice", role: "operator" }, "token-of-the-reader": { name: "rita", role: "reader" } };
let browser, store, host;

before(async () => {
  browser = await launch();
  store = make.new_store();
  make.unknown(store, "first");
  host = await make.start_console(store, { tokens });
}, patient);

// An open page has a stream of events, and one token may have twelve.
afterEach(() => Promise.all(browser.contexts().map((context) => context.close())));

after(async () => {
  await browser?.close();
  await host?.close();
  make.close_store(store);
});

// A signed-in page, at `fragment`.
async function signed_in(fragment = "#/", { at = host, role, name, ...options } = {}) {
  const opened = await open(browser, options);
  await opened.page.goto(at.sign_in(role, name));
  await opened.page.getByRole("heading", { name: "Overview" }).waitFor();
  if (fragment !== "#/") await opened.page.evaluate((there) => { location.hash = there; }, fragment);
  return opened;
}

async function find(page, text) {
  await page.locator("#q").fill(text);
  await page.locator("#q").press("Enter");
}
const heading = (page, name) => page.getByRole("heading", { level: 1, name, exact: true }).waitFor();
const hex_of = (key, scope = "pay") => make.record_of(store, key, scope).stored_key_hex;
const at_record = async (key, options) => {
  const opened = await signed_in(`#/r/${hex_of(key)}`, options);
  await heading(opened.page, key);
  return opened;
};
const acts_of = (key, scope = "pay") => make.record_of(store, key, scope).history.filter((entry) => entry.attempt === 0);

// What the page's session is answered, without the page: {json, tag, date}.
const ask_api = (page, path, options = {}) => page.evaluate(async ([where, { headers, ...more }]) => {
  const half = Object.entries(localStorage).find(([name]) => name.startsWith("once-session"))[1];
  const answer = await fetch(`../v1/${where}`, { ...more, headers: { ...headers, "Content-Type": "application/json", "Once-Session": half } });
  return { json: await answer.json(), tag: answer.headers.get("ETag"), date: answer.headers.get("Date") };
}, [path, options]);

// As if the tab had come into sight: the page asks at once, instead of after its 5 s.
const look = (page) => page.evaluate(() => { document.dispatchEvent(new Event("visibilitychange")); });

// Opens an act's dialog.
async function choose(page, act) {
  const first = page.getByRole("group", { name: "Acts" }).getByRole("button", { name: `${act} …` });
  if (!await first.count()) await page.getByRole("button", { name: "More" }).click();
  await first.click();
  await page.getByRole("dialog").waitFor();
}
const press = (page, act) => page.getByRole("dialog").getByRole("button", { name: new RegExp(`^${act} `) }).click();

// Only what the browser itself says of answers that a test wants to be refused.
const unexpected = (faults, status) => faults.filter((fault) =>
  !(status && new RegExp(`Failed to load resource: the server responded with a status of ${status}`).test(fault)));

test("1: one of 100 000 records opens by its label, without a click", patient, async () => {
  const large = make.new_store();
  make.completed(large, "seed", "pay", "paid");
  make.fill(large, 49999, "seed", "customer-");
  make.completed(large, "order-54321", "pay", "paid");  // In a scope without open operations: no key is looked up in it.
  make.fill(large, 50000, "seed", "client-");
  const at = await make.start_console(large);
  try {
    const { page, faults } = await signed_in("#/", { at });
    const began = Date.now();
    await find(page, "order-54321");
    await page.getByText("Ran once.").waitFor();
    console.log(`# found after ${Date.now() - began} ms`);
    await heading(page, "order-54321");
    assert.match(page.url(), /#\/r\/[0-9a-f]+\?q=order-54321/);
    await page.getByText("records were read, not all.").waitFor();
    // What is found only in part is listed.
    await find(page, "rder-5432");
    await page.locator(".row-link").waitFor();
    assert.deepEqual(await page.locator(".row-link").allTextContents(), ["order-54321"]);
    assert.equal(await page.locator(".match").textContent(), "part of label");
    assert.deepEqual(faults, []);
  } finally {
    await at.close();
    make.close_store(large);
  }
});

test("2: a key in two scopes shows both", patient, async () => {
  make.completed(store, "order-2", "pay", "paid");
  make.failed(store, "order-2", "refunds");
  const { page, faults } = await signed_in();
  await find(page, "order-2");
  await page.locator(".row-link").nth(1).waitFor();
  assert.deepEqual((await page.locator("td.cell-scope").allTextContents()).sort(), ["pay", "refunds"]);
  assert.deepEqual((await page.locator(".row-link").allTextContents()), ["order-2", "order-2"]);
  assert.deepEqual(faults, []);
});

test("a client's page finds what a proxy keeps of it, and removes that alone", patient, async () => {
  const own = make.new_store();
  const at = await make.start_console(own, { principal: ["--principal-header", "X-Api-Key"] });
  try {
    for (const [key, path, name] of [["a-1", "/charges", "alice"], ["a-2", "/charges", "alice"], ["a-3", "/refunds", "alice"], ["b-1", "/charges", "bob"]])
      await at.post(key, path, { "X-Api-Key": name });
    make.completed(own, "job", "pay", "paid");  // Of no client.
    const rows = async (page) => (await page.locator(".row-link").allTextContents()).sort();
    const { page, faults } = await signed_in("#/client", { at });
    await heading(page, "Find a client");
    await page.getByLabel("Value of the header").fill("alice");
    await page.getByRole("button", { name: "Find", exact: true }).click();
    // tests/http/rules_test.cpp has the same digest.
    await heading(page, "Client 4b1d74d314e42fbd");
    assert.match(page.url(), /#\/records\?client=4b1d74d314e42fbdb8e2fef6b6ab43ba354a310909dd96095094f002b7f99463$/);
    await page.locator(".row-link").nth(2).waitFor();
    assert.deepEqual(await rows(page), ["a-1", "a-2", "a-3"]);
    // A claim of a JWT, with its issuer: nothing is kept of it.
    await page.getByRole("link", { name: "Another client" }).click();
    await page.getByLabel("The proxy knows clients by").selectOption("claim");
    await page.getByLabel("Issuer").fill("https://issuer.example.com");
    await page.getByLabel("Value of the claim").fill("alice");
    await page.getByRole("button", { name: "Find", exact: true }).click();
    await heading(page, "Client 6d4176c3fd5ddd96");
    await page.getByText("No record matches.").waitFor();
    // From one of its records.
    await find(page, "a-2");
    await heading(page, "a-2");
    await page.getByRole("link", { name: "All records of its client 4b1d74d314e42fbd" }).click();
    await page.locator(".row-link").nth(2).waitFor();
    await page.getByRole("checkbox", { name: "Select a-1" }).click();
    await page.getByRole("button", { name: /^Select all .*that match$/ }).click();
    await page.getByRole("button", { name: "Remove …" }).click();
    await page.getByLabel("Reason").fill("the customer asked for it");
    assert.equal(await page.getByRole("dialog").getByText("Command line").count(), 0, "no command selects so");
    await page.getByRole("button", { name: "Make the plan" }).click();
    await heading(page, "Remove 3 operations");
    await page.getByText("client 4b1d74d314e42fbd").waitFor();
    await page.getByLabel("Type 3").fill("3");
    await page.getByRole("button", { name: "Remove 3 operations" }).click();
    await page.locator(".state", { hasText: "done" }).waitFor();
    assert.deepEqual(make.list_of(own, []).map((record) => record.label).sort(), ["b-1", "job"]);
    assert.deepEqual(faults, []);
    // A record of no client leads to none.
    await find(page, "job");
    await heading(page, "job");
    assert.equal(await page.getByText("All records of its client").count(), 0);
  } finally {
    await at.close();
    make.close_store(own);
  }
});

test("3, 4: each tile opens the list that it counts; overdue ones are there although their holder renews", patient, async () => {
  const own = make.new_store();
  make.unknown(own, "u-1");
  make.unknown(own, "u-2");
  make.failed(own, "f-1");
  await make.running(own, "r-1", "pay");
  await make.running(own, "late", "pay", ["--expect", "1ms", "--lease", "1s"]);
  await make.lapsed(own, "l-1", "pay");
  const at = await make.start_console(own);
  try {
    const { page, faults } = await signed_in("#/", { at });
    const expected = { Unknown: ["u-1", "u-2"], Overdue: ["late"], Lapsed: ["l-1"], "In progress": ["late", "r-1"], Failed: ["f-1"] };
    for (const [title, keys] of Object.entries(expected)) {
      await page.locator(".tile", { has: page.getByText(title, { exact: true }) }).filter({ has: page.getByText(String(keys.length), { exact: true }) }).click();
      await heading(page, "Records");
      await page.locator(".row-link").nth(keys.length - 1).waitFor();
      assert.deepEqual((await page.locator(".row-link").allTextContents()).sort(), keys, title);
      await page.goBack();
      await heading(page, "Overview");
    }
    const before = make.record_of(own, "late", "pay").lease_until;
    await make.until("the holder renews", () => make.record_of(own, "late", "pay").lease_until > before);
    await page.getByRole("link", { name: /^Overdue/ }).click();
    await page.getByRole("link", { name: "late" }).click();
    await page.getByText("Should have been done at").waitFor();
    await page.getByText("has it, until").waitFor();
    assert.deepEqual(faults, []);
  } finally {
    await at.close();
    make.close_store(own);
  }
});

test("9: what changed meanwhile is left alone; both versions are shown, and the reason stays", patient, async () => {
  make.unknown(store, "order-9");
  const { page, faults } = await at_record("order-9");
  await choose(page, "Fail");
  await page.getByLabel("Reason").fill("the bank refused it");
  await page.locator(".preview .word.is-failed").waitFor();
  make.once(store, ["release", "--key", "order-9", "--scope", "pay", "--reason", "was quicker", "--who", "bob"], { expected: 0 });
  await press(page, "Fail");
  const both = page.getByRole("dialog").getByRole("table", { name: "It changed while you looked." });
  await both.waitFor();
  assert.match(await both.getByRole("row", { name: /^State/ }).textContent(), /unknown.*released/);
  await both.getByText("was quicker").waitFor();
  assert.equal(await page.getByLabel("Reason").inputValue(), "the bank refused it");
  assert.equal(make.record_of(store, "order-9", "pay").standing, "released");
  await page.getByRole("button", { name: "Go on with what it is now" }).click();
  await press(page, "Fail");
  await page.locator(".states", { hasText: "failed" }).waitFor();
  assert.deepEqual(acts_of("order-9").map(({ who, why }) => [who, why]), [["bob", "was quicker"], ["alice", "the bank refused it"]]);
  assert.deepEqual(unexpected(faults, 412), []);
});

test("10: a double click does one act", patient, async () => {
  make.unknown(store, "order-10");
  const { page, faults } = await at_record("order-10");
  const acts = [];
  page.on("request", (request) => { if (request.method() === "POST" && !/dry_run/.test(request.postData())) acts.push(request.url()); });
  await choose(page, "Release");
  await page.getByLabel("Reason").fill("never reached the bank");
  // Held until both clicks are over.
  let go_on;
  const clicked = new Promise((done) => { go_on = done; });
  await page.route("**/release", async (route) => {
    await clicked;
    await route.continue();
  });
  await page.getByRole("dialog").getByRole("button", { name: /^Release / }).dblclick();
  await page.locator("form").last().evaluate((form) => form.requestSubmit?.());
  go_on();
  await page.getByText("Written; the next caller runs it").waitFor();
  assert.equal(acts.length, 1);
  assert.equal(acts_of("order-10").length, 1);
  assert.deepEqual(unexpected(faults, 412), []);  // A dry run may come after the act.
});

test("11: an answer that is lost: the page looks, and says which", patient, async () => {
  make.unknown(store, "order-11");
  const { page } = await at_record("order-11");
  await choose(page, "Release");
  await page.getByLabel("Reason").fill("never reached the bank");
  await page.locator(".preview .word.is-released").waitFor();
  // Lost before it was done.
  const acts = (url) => url.pathname.endsWith("/release");
  await page.route(acts, (route) => route.abort());
  await press(page, "Release");
  await page.getByText("The record is as it was: it was not done.").waitFor();
  assert.equal(await page.getByLabel("Reason").inputValue(), "never reached the bank");
  assert.equal(acts_of("order-11").length, 0);
  await page.unroute(acts);
  // Refused by a store that is away.
  await page.route(acts, (route) => route.fulfill({ status: 503, contentType: "application/problem+json",
    body: '{"type":"urn:once:problem:store-unavailable","title":"store-unavailable","status":503,"detail":"The store does not answer."}' }));
  await press(page, "Release");
  await page.getByText("The store does not answer. The record is as it was: it was not done.").waitFor();
  await page.unroute(acts);
  // Done, and its answer lost.
  await page.route(acts, async (route) => {
    await route.fetch({ headers: { ...await route.request().allHeaders(), "sec-fetch-site": "same-origin" } });
    await route.abort();
  });
  await press(page, "Release");
  await page.getByText("The answer was lost, but it was done.").waitFor();
  await page.locator(".states", { hasText: "released" }).waitFor();
  assert.deepEqual(acts_of("order-11").map(({ who, why }) => [who, why]), [["alice", "never reached the bank"]]);
});

test("11: what another has done under the same name and with the same reason is not taken for ours", patient, async () => {
  make.unknown(store, "order-11b");
  const { page } = await at_record("order-11b");
  await make.until("the server's log is older than the act", async () => {
    const { json, date } = await ask_api(page, "acts");
    return Date.parse(json.since) < Date.parse(date);
  });
  await choose(page, "Release");
  await page.getByLabel("Reason").fill("never reached the bank");
  await page.route((url) => url.pathname.endsWith("/release"), (route) => {
    if (route.request().postDataJSON().dry_run) return route.continue();
    make.once(store, ["release", "--key", "order-11b", "--scope", "pay", "--reason", "never reached the bank", "--who", "alice"], { expected: 0 });
    return route.abort();
  });
  await press(page, "Release");
  await page.getByRole("dialog").getByRole("table", { name: "It changed while you looked." }).waitFor();
});

test("11: what the server does not know of an act either, the record tells", patient, async () => {
  make.unknown(store, "order-11c");
  make.unknown(store, "order-11d");
  const { page } = await at_record("order-11c");
  // The store wrote it, and neither that nor a look at it was answered: the server says 503, and has noted so.
  const outcome = (pages) => page.route((url) => url.pathname.endsWith("/v1/acts"), (route) => {
    const after = new URL(route.request().url()).searchParams.get("after");
    return route.fulfill({ json: pages[after === null ? 0 : Number(after)] });
  });
  const noted = (word) => ({ acts: [{ at: "2026-11-26T00:00:00.000Z", who: "alice", act: "release", outcome: word }], next: null, since: null });
  const doubt = async (path) => page.route((url) => url.pathname.endsWith(path), async (route) => {
    const request = route.request();
    if (request.method() === "GET" || request.postDataJSON().dry_run) return route.continue();
    await route.fetch({ headers: { ...await request.allHeaders(), "sec-fetch-site": "same-origin" } });
    return route.fulfill({ status: 503, contentType: "application/problem+json", body: '{"type":"urn:once:problem:store-unavailable","detail":"In doubt."}' });
  });
  const act = async (name) => {
    await choose(page, name);
    await page.getByLabel("Reason").fill("INC-88");
    await press(page, name);
    await page.getByText("The answer was lost, but it was done.").waitFor();
  };
  await outcome([noted("in_doubt")]);
  await doubt("/release");
  await act("Release");
  await page.locator(".states", { hasText: "released" }).waitFor();
  await doubt(hex_of("order-11c"));
  await act("Remove");
  await page.getByText("It is removed.").waitFor();
  // Its line is not on the first page of a long log.
  await page.unrouteAll({ behavior: "wait" });
  await page.evaluate((there) => { location.hash = there; }, `#/r/${hex_of("order-11d")}`);
  await heading(page, "order-11d");
  await outcome([{ acts: [], next: "1", since: null }, noted("done")]);
  await doubt("/release");
  await act("Release");
});

test("12: a reader sees no acts, and the API refuses them", patient, async () => {
  make.unknown(store, "order-12");
  const { page, faults } = await at_record("order-12", { role: "reader", name: "rita" });
  await page.getByText("It was started, and nobody knows how it ended.").waitFor();
  for (const name of ["Complete …", "Fail …", "Release …", "More"]) assert.equal(await page.getByRole("button", { name }).count(), 0, name);
  assert.equal(await page.getByRole("heading", { name: "Command line" }).count(), 0);
  assert.deepEqual(faults, []);
  const answer = await page.evaluate(async () => {
    const half = Object.entries(localStorage).find(([name]) => name.startsWith("once-session"))[1];
    const refused = await fetch(`../v1/records/${location.hash.slice(4)}/release`, { method: "POST", body: '{"reason":"x"}',
      headers: { "Content-Type": "application/json", "If-Match": '"x"', "Once-Session": half } });
    return [refused.status, (await refused.json()).type];
  });
  assert.deepEqual(answer, [403, "urn:once:problem:role"]);
  assert.equal(acts_of("order-12").length, 0);
});

test("13: markup in a key, a holder, a result and a reason is text, and runs nothing", patient, async () => {
  const evil = "<img src=x onerror=window.ran=1>";
  make.run_named(store, "<svg onload=window.ran=1>", evil, "<script>", `<script>window.ran = 1</script>\u202e<svg onload="window.ran = 1">`);
  make.once(store, ["extend", "--key", evil, "--scope", "<script>", "--by", "1h", "--reason", `<script>window.ran=1</script>\u001b[31m`, "--who",
    "<b>mallory</b>"], { expected: 0 });
  const { page, faults } = await signed_in("#/records");
  await page.getByRole("link", { name: evil }).waitFor();
  await page.getByRole("link", { name: evil }).click();
  await heading(page, evil);
  await page.getByText("“<script>window.ran=1</script>\\u{1b}[31m”").waitFor();
  await page.getByText("<b>mallory</b>").first().waitFor();
  await page.getByText("<svg onload=window.ran=1>").first().waitFor();
  await page.getByRole("button", { name: "Show result" }).click();
  await page.locator(".payload", { hasText: "<script>window.ran = 1</script>\\u{202e}<svg onload=" }).waitFor();
  // An HTTP answer, whose body says that it is HTML or not.
  await host.post("order-13");
  await find(page, "order-13");
  await heading(page, "order-13");
  await page.getByRole("button", { name: "Show result" }).click();
  await page.locator(".payload", { hasText: "<script>window.ran = true</script>" }).waitFor();
  // A reason that is typed here.
  make.unknown(store, "order-13b");
  await find(page, "order-13b");
  await heading(page, "order-13b");
  await choose(page, "Release");
  await page.getByLabel("Reason").fill(evil);
  await press(page, "Release");
  await page.getByText(`“${evil}”`).waitFor();
  assert.equal(await page.evaluate(() => window.ran), undefined);
  assert.equal(await page.locator("main script, main img, main [onload]").count(), 0);
  // The policy that would have stopped it: markup cannot even be made of text.
  assert.match(await page.evaluate(() => {
    try {
      document.createElement("div").innerHTML = "<b>x</b>";
      return "made";
    } catch (error) {
      return error.name;
    }
  }), /TypeError/);
  assert.deepEqual(unexpected(faults.filter((fault) => !/TrustedHTML/.test(fault))), []);
});

test("14: payloads are hidden until they are asked for, and no number is rounded", patient, async () => {
  make.completed(store, "order-14", "pay", '{"charge":9223372036854775807,"rate":0.10000000000000000001,"a":[],"name":"x","name":"y"}');
  const { page, faults } = await at_record("order-14");
  await page.getByText("of a command's result").waitFor();
  assert.ok(!(await page.content()).includes("9223372036854775807"));
  assert.ok(!host.requests().some((request) => /include=[a-z]/.test(request) && request.includes(hex_of("order-14"))));
  await page.getByRole("button", { name: "Show result" }).click();
  await page.locator(".payload").waitFor();
  assert.equal(await page.locator(".payload").textContent(),
    '{\n  "charge": 9223372036854775807,\n  "rate": 0.10000000000000000001,\n  "a": [],\n  "name": "x",\n  "name": "y"\n}');
  await page.getByRole("button", { name: "Hide result" }).click();
  await page.locator(".payload").waitFor({ state: "detached" });
  await host.post("order-14b");
  await find(page, "order-14b");
  await heading(page, "order-14b");
  await page.getByRole("button", { name: "Show result" }).click();
  await page.locator(".status-line", { hasText: "201" }).waitFor();
  await page.locator(".headers", { hasText: "/charges/1" }).waitFor();
  await page.locator(".payload", { hasText: '"charge": 9223372036854775807' }).waitFor();
  await page.getByRole("button", { name: "Hex" }).click();
  await page.locator(".payload", { hasText: "000000  6f 6e 63 65 2d 68 74 74 70" }).waitFor();
  await page.getByRole("button", { name: "Text" }).click();
  await page.locator(".payload", { hasText: "once-http/1 201 body" }).waitFor();
  const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Save result as a file" }).click()]);
  assert.match(file.suggestedFilename(), /^result-[0-9a-f]{16}$/);
  assert.deepEqual(faults, []);
});

test("18, 19: a link works once; the cookie alone does nothing; signing out ends the session", patient, async () => {
  const link = host.sign_in();
  const one = await open(browser), other = await open(browser);
  await one.page.goto(link);
  await heading(one.page, "Overview");
  assert.ok(!one.page.url().includes("link="));
  assert.equal(await one.page.evaluate(() => fetch("../v1/overview").then((answer) => answer.status)), 401);
  await other.page.goto(link);
  await other.page.getByText("This link was used, or is older than 60 s.").waitFor();
  await one.page.reload();
  await heading(one.page, "Overview");
  await one.page.getByRole("button", { name: "Sign out" }).click();
  await one.page.getByLabel("The token from your token file").waitFor();
  await one.page.reload();
  await one.page.getByLabel("The token from your token file").waitFor();
  assert.deepEqual(unexpected(one.faults, 401), []);
  assert.deepEqual(unexpected(other.faults, 401), []);
});

test("once console itself: its link, its page, an act under its name, a reader, and its end", patient, async () => {
  const own = make.new_store();
  make.unknown(own, "order-17");
  make.completed(own, "<img src=x onerror=alert(1)>", "pay", "<script>alert(1)</script>");
  const at = await make.start_program(own, ["--who", "alice", "--audit-log", join(own.folder, "audit.log")]);
  const reads = await make.start_program(own, ["--who", "rita", "--read-only"]);
  try {
    const { page, faults } = await open(browser);
    await page.goto(at.link);
    await page.locator(".tile.is-unknown .number", { hasText: "1" }).waitFor();
    await find(page, "order-17");
    await heading(page, "order-17");
    await choose(page, "Release");
    await page.getByRole("dialog").getByLabel("Reason").fill("the ledger has none");
    await press(page, "Release");
    await page.getByRole("dialog").waitFor({ state: "detached" });
    const [act] = make.record_of(own, "order-17", "pay").history.filter((entry) => entry.attempt === 0);
    assert.deepEqual([act.who, act.why], ["alice", "the ledger has none"]);
    await page.goto(`${at.page}#/r/${make.record_of(own, "<img src=x onerror=alert(1)>", "pay").stored_key_hex}`);
    await page.getByRole("button", { name: "Show result" }).click();
    await page.locator(".payload", { hasText: "<script>alert(1)</script>" }).waitFor();
    await page.reload();
    await page.getByRole("button", { name: "Show result" }).waitFor();
    const events = readFileSync(join(own.folder, "audit.log"), "utf8").trim().split("\n").map((line) => JSON.parse(line));
    assert.deepEqual(events.map(({ event, who }) => `${event} ${who}`),
      ["sign-in alice", "act alice", "acted alice", "show alice"]);
    assert.deepEqual(unexpected(faults, 412), []);  // A dry run may come after the act.

    // 16: another name of this host. 17: a page of another origin, with the session's cookie.
    const foreign = await page.context().newPage();
    const there = new URL(at.page);
    assert.equal((await foreign.goto(`http://foreign.localhost:${there.port}/console/`)).status(), 403);
    await foreign.goto(host.page);
    const { stored_key_hex: hex, revision } = make.record_of(own, "order-17", "pay");
    await foreign.evaluate(async ([url]) => {
      await fetch(url, { method: "POST", mode: "no-cors", credentials: "include", body: '{"reason":"x"}' }).catch(() => {});
    }, [`${there.origin}/v1/records/${hex}/release`]);
    assert.equal(make.record_of(own, "order-17", "pay").revision, revision);
    await foreign.close();

    const reader = await open(browser);
    await reader.page.goto(reads.link);
    await heading(reader.page, "Overview");
    await find(reader.page, "order-17");
    await heading(reader.page, "order-17");
    assert.equal(await reader.page.getByRole("button", { name: "Complete …" }).count(), 0);
    assert.deepEqual(reader.faults, []);
    const again = await open(browser);
    await again.page.goto(reads.link);
    await again.page.getByText("This link was used, or is older than 60 s.").waitFor();

    at.close();
    assert.equal(await at.exited, 0);
    await page.getByText("Not live since").waitFor();
  } finally {
    at.close();
    reads.close();
    make.close_store(own);
  }
});

test("the service is asked about many, which is stopped once; each takes its own answer; and about one, with its leads", patient, async () => {
  const own = make.new_store();
  const at = await make.start_console(own, { flags: ["--reconcile", "GET /charges?key={key}", "--reconcile-interval", "1h", "--aside-after-failures", "1000"] });
  try {
    const keys = ["lost-1", "lost-2", "lost-3"];
    for (const key of [...keys, "lost-4"]) await at.post(key, "/lost");
    const { page, faults } = await signed_in("#/records?standing=unknown", { at });
    const ask_about = async (count) => {
      await page.getByRole("button", { name: "More" }).click();
      await page.getByRole("button", { name: "Ask the service …" }).click();
      await page.getByRole("button", { name: "Make the plan" }).click();
      await page.getByRole("button", { name: `Ask the service about ${count} operations` }).click();
    };
    for (const key of keys) await page.getByRole("checkbox", { name: `Select ${key}` }).check();
    const go_on = at.hold_questions();
    await ask_about(3);
    await page.locator(".state", { hasText: "under way" }).waitFor();
    assert.ok(!at.requests().some((request) => /\/v1\/bulk\/[0-9a-f]{32}\/stop/.test(request)));
    await page.getByRole("button", { name: "Stop" }).click();
    await make.until("it was told", () => at.requests().some((request) => /\/stop$/.test(request)));
    go_on();
    await page.locator(".state", { hasText: "stopped" }).waitFor();
    await page.getByText("1 of 3").waitFor();
    await page.evaluate(() => { location.hash = "#/records?standing=unknown"; });
    await page.getByText("service: done").waitFor();
    assert.equal(await page.getByText("service: done").count(), 1);
    for (const key of keys) await page.getByRole("checkbox", { name: `Select ${key}` }).check();
    await ask_about(3);
    await page.getByText("3 of 3").waitFor();
    await page.locator("dd a", { hasText: "3" }).click();
    await make.until("those are listed", async () => (await page.locator(".row-link").allTextContents()).sort().join() === keys.join());
    await page.keyboard.press("X");
    await page.getByRole("button", { name: /^Select all .*that match$/ }).click();
    await page.getByRole("button", { name: "Complete …" }).click();
    await page.getByText("Every call of each gets what the service says of it.").waitFor();
    await page.getByLabel("Reason").fill("bank outage");
    await page.getByRole("button", { name: "Make the plan" }).click();
    await page.getByLabel("Type 3").fill("3");
    await page.getByRole("button", { name: "Complete 3 operations" }).click();
    await page.getByText("3 of 3").waitFor();
    for (const key of keys) assert.match(await at.post(key, "/lost"), /"charge":9223372036854775807/);  // Replayed.

    await find(page, "lost-4");
    await heading(page, "lost-4");
    await page.getByRole("button", { name: "Search for leads" }).click();
    // The four requests had one body.
    await make.until("its leads", async () => (await page.locator("section", { has: page.getByRole("heading", { name: "Leads" }) })
      .locator("a.mono").allTextContents()).sort().join() === keys.join());
    await page.getByText("4 records of the scope read").waitFor();
    await page.getByRole("button", { name: "Ask the service" }).click();
    await page.getByText("The service says: done.").waitFor();
    await choose(page, "Complete");
    await page.getByRole("dialog").getByLabel("Reason").fill("the service has it");
    await press(page, "Complete");
    await page.locator(".states", { hasText: "completed" }).waitFor();
    assert.match(await at.post("lost-4", "/lost"), /"charge":9223372036854775807/);

    // Another operator asks, who changes nothing: not the record's tag either.
    await at.post("lost-5", "/lost");
    await find(page, "lost-5");
    await heading(page, "lost-5");
    const hex = await page.evaluate(() => location.hash.slice(4).split("?")[0]);
    await make.until("it is live", () => at.requests().some((request) => request.includes("/v1/events") && request.includes(hex)));
    const { tag } = await ask_api(page, `records/${hex}?include=`);
    await ask_api(page, `records/${hex}/reconcile`, { method: "POST", body: "{}", headers: { "If-Match": tag } });
    await page.getByText("The service says: done.").waitFor();
    assert.deepEqual(unexpected(faults, 412), []);  // A dry run may come after the act.
    await choose(page, "Release");
    await page.getByLabel("Reason").fill("once more");
    await page.locator(".preview", { hasText: "the service says done" }).waitFor();
    await page.getByLabel("All the same").waitFor();
    await page.evaluate((there) => { location.hash = there; }, `#/acts?key=${hex}`);
    await page.getByRole("cell", { name: "the service says done" }).waitFor();
  } finally {
    await at.close();
    make.close_store(own);
  }
});

test("20: a deep link asks for the token, then shows its page, under a prefix too", patient, async () => {
  make.unknown(store, "order-20");
  const own = make.new_store();
  make.unknown(own, "order-20");
  const at = await make.start_console(own, { tokens, prefix: "/ops/once" });
  try {
    const { page, faults } = await open(browser);
    const hex = make.record_of(own, "order-20", "pay").stored_key_hex;
    await page.goto(`${at.page}#/r/${hex}`);
    await page.getByLabel("The token from your token file").fill("wrong");
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.getByText("The token is wrong.").waitFor();
    await page.getByLabel("The token from your token file").fill("token-of-the-operator");
    await page.keyboard.press("Enter");
    await heading(page, "order-20");
    assert.equal(page.url(), `${at.page}#/r/${hex}`);
    // A session that ends meanwhile: the same page again after the next sign-in.
    at.end_sessions();
    await look(page);
    await page.getByText("The session has ended.").waitFor();
    await page.getByLabel("The token from your token file").fill("token-of-the-reader");
    await page.keyboard.press("Enter");
    await heading(page, "order-20");
    assert.deepEqual(unexpected(faults, 401), []);
  } finally {
    await at.close();
    make.close_store(own);
  }
});

// The page's clock stands still, so that it asks for nothing by itself: what it shows it was told.
test("21: a stream that is cut is told, and caught up when it is back; a hidden page has none", patient, async () => {
  const own = make.new_store();
  make.unknown(own, "order-21");
  const at = await make.start_console(own);
  try {
    const { page } = await open(browser);
    await page.clock.install();
    await page.goto(at.sign_in());
    await page.locator(".tile.is-unknown .number", { hasText: "1" }).waitFor();
    const { stored_key_hex: hex } = make.record_of(own, "order-21", "pay");
    await page.evaluate((there) => { location.hash = there; }, `#/r/${hex}`);
    await heading(page, "order-21");
    await page.clock.pauseAt(await page.evaluate(() => Date.now() + 1000));
    const watched = (request) => request.includes("/v1/events?watch=") && request.includes(hex) && request.includes("overview");
    await make.until("one stream for both", () => at.streams() === 1 && at.requests().some(watched));
    const act = (...words) => make.once(own, [words[0], "--key", "order-21", "--scope", "pay", "--reason", "a test", ...words.slice(1)], { expected: 0 });
    act("release");
    await page.locator(".states", { hasText: "released" }).waitFor();
    await page.getByRole("status").filter({ hasText: "Live" }).waitFor();

    at.cut_streams();
    await page.getByText(/Not live since \d\d:\d\d:\d\d/).waitFor();
    act("resolve", "--as", "failed", "--message", "it did not happen");
    await page.locator(".states", { hasText: "released" }).waitFor();  // Old, and told to be.
    await page.clock.runFor(1000);
    await page.locator(".states", { hasText: "failed" }).waitFor();
    await page.getByRole("status").filter({ hasText: /^Live$/ }).waitFor();

    const show = (state) => page.evaluate((now) => {
      Object.defineProperty(document, "visibilityState", { value: now, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }, state);
    await show("hidden");
    await page.clock.runFor(100);
    await make.until("no stream", () => at.streams() === 0);
    await show("visible");
    await page.clock.runFor(100);
    await make.until("a stream again", () => at.streams() === 1);
    await page.keyboard.press("p");
    await page.clock.runFor(100);
    await make.until("none while paused", () => at.streams() === 0);
    await page.keyboard.press("p");
    await page.clock.runFor(100);
    await make.until("and again", () => at.streams() === 1);

    // A session that ends: its stream does, and the page asks who is there.
    at.end_sessions();
    await make.until("it is told", async () => {
      await page.clock.runFor(1000);
      return page.getByText("The session has ended.").isVisible();
    });
  } finally {
    await at.close();
    make.close_store(own);
  }
});

test("without room for a stream, the page asks again and again, and is live", patient, async () => {
  make.unknown(store, "order-refused");
  const { page, context } = await open(browser);
  let refused = 0;
  await context.route((url) => url.pathname.endsWith("/v1/events"), (route) => {
    ++refused;
    return route.fulfill({ status: 503, contentType: "application/problem+json", body: '{"type":"urn:once:problem:busy","detail":"no"}' });
  });
  await page.goto(host.sign_in());
  await page.evaluate((there) => { location.hash = there; }, `#/r/${hex_of("order-refused")}`);
  await heading(page, "order-refused");
  await make.until("it was refused", () => refused > 0);
  make.once(store, ["release", "--key", "order-refused", "--scope", "pay", "--reason", "a test"], { expected: 0 });
  await page.locator(".states", { hasText: "released" }).waitFor();
  await page.getByRole("status").filter({ hasText: /^Live$/ }).waitFor();
});

test("the open record follows the store; a list only tells what changed", patient, async () => {
  make.unknown(store, "live-1", "live");
  make.unknown(store, "live-2", "live");
  const one = await signed_in(`#/r/${hex_of("live-1", "live")}`);
  await heading(one.page, "live-1");
  const list = await signed_in("#/records?scope=live&standing=unknown");
  await list.page.locator(".row-link").nth(1).waitFor();
  make.once(store, ["release", "--key", "live-1", "--scope", "live", "--reason", "a test"], { expected: 0 });
  await one.page.locator(".states", { hasText: "released" }).waitFor();
  await list.page.getByRole("button", { name: "1 changed: show" }).waitFor();
  assert.deepEqual(await list.page.locator(".row-link").allTextContents(), ["live-1", "live-2"]);
  await list.page.getByRole("button", { name: "1 changed: show" }).click();
  await list.page.locator(".row-link").nth(1).waitFor({ state: "detached" });
  assert.deepEqual(await list.page.locator(".row-link").allTextContents(), ["live-2"]);
  // Removed while it is looked at.
  make.once(store, ["rm", "--key", "live-1", "--scope", "live", "--reason", "a test"], { expected: 0 });
  await look(one.page);
  await one.page.getByText("It was removed while you looked.").waitFor();
  assert.equal(await one.page.getByRole("button", { name: "Complete …" }).count(), 0);
  assert.deepEqual(unexpected(one.faults, 404), []);
  assert.deepEqual(list.faults, []);
});

test("a hidden page asks for nothing; what does not answer is told, and old data stay", patient, async () => {
  const own = make.new_store();
  make.unknown(own, "order-1");
  const at = await make.start_console(own);
  try {
    const { page } = await open(browser);
    await page.clock.install();
    await page.goto(at.sign_in());
    await page.locator(".tile.is-unknown .number", { hasText: "1" }).waitFor();
    const show = (state) => page.evaluate((now) => {
      Object.defineProperty(document, "visibilityState", { value: now, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }, state);
    await show("hidden");
    at.forget_requests();
    await page.clock.runFor(60000);
    await page.evaluate(() => fetch("style.css", { cache: "no-store" }));  // Whatever it asked for before is there by now.
    assert.deepEqual(at.requests(), []);
    await show("visible");
    await make.until("it asks again", () => at.requests().length > 0);
    await at.stop_api();
    await make.until("it says so", async () => {
      await page.clock.runFor(6000);
      return page.getByText(/Not live since \d\d:\d\d:\d\d/).isVisible();
    });
    await page.locator(".tile.is-unknown .number", { hasText: "1" }).waitFor();
  } finally {
    await at.close();
    make.close_store(own);
  }
});

test("a search that gets no answer is tried again, and says so meanwhile", patient, async () => {
  make.unknown(store, "order-again");
  const { page } = await signed_in();
  let asked = 0;
  await page.route((url) => url.searchParams.get("q") === "order-again", (route) => (++asked === 1 ? route.abort() : route.continue()));
  await find(page, "order-again");
  await page.getByRole("alert").getByText("The server does not answer.").waitFor();
  await heading(page, "order-again");
  assert.equal(asked, 2);
});

test("what is being typed stays while the page refreshes", patient, async () => {
  const { page, faults } = await signed_in("#/records");
  await page.locator(".row-link").first().waitFor();
  const typed = { "#q": "order", "#scope": "pa", "#holder": "web" };
  for (const [field, text] of Object.entries(typed)) await page.locator(field).fill(text);
  make.unknown(store, "order-typed");  // What the overview and the list tell of after the next round.
  await page.getByRole("button", { name: /changed: show$/ }).waitFor();
  const count = Number(await page.locator(".segments a.is-unknown b").textContent());
  make.unknown(store, "order-typed-2");
  await make.until("the overview is drawn again", async () => Number(await page.locator(".segments a.is-unknown b").textContent()) > count);
  for (const [field, text] of Object.entries(typed)) assert.equal(await page.locator(field).inputValue(), text, field);
  assert.deepEqual(faults, []);
});

test("what is not known says so, and is not 0", patient, async () => {
  const own = make.new_store();
  make.unknown(own, "order-1");
  const at = await make.start_console(own, { stats: "off" });
  try {
    const { page, faults } = await signed_in("#/", { at });
    await page.locator(".tile.is-unknown", { hasText: "not known" }).waitFor();
    assert.equal(await page.getByText("Nothing waited for a person at").count(), 0);
    await page.locator("tbody", { hasText: "is not asked" }).waitFor();
    assert.deepEqual(faults, []);
  } finally {
    await at.close();
    make.close_store(own);
  }
});

test("22: everything by keyboard, and the focus returns", patient, async () => {
  make.unknown(store, "order-22");
  make.unknown(store, "order-22b");
  const { page, faults } = await signed_in();
  const keys = page.keyboard;
  // The page moves the focus after it has drawn what changed.
  const focus_at = (name) => make.until(`the focus is at ${name}`, () => page.evaluate((wanted) =>
    (document.activeElement.getAttribute("aria-label") || document.activeElement.textContent) === wanted, name));
  await keys.press("/");
  await make.until("the search has the focus", () => page.evaluate(() => document.activeElement.id === "q"));
  await keys.type("order-22b");
  await keys.press("Enter");
  await heading(page, "order-22b");
  await keys.press(".");
  await focus_at("Complete …");
  await keys.press("Enter");
  await page.getByRole("dialog").waitFor();
  await make.until("the reason has the focus", () => page.evaluate(() => document.activeElement.id === "act-reason"));
  await keys.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  await focus_at("Complete …");
  await keys.press("Tab");
  await keys.press("Tab");
  await keys.press("Enter");
  await page.getByRole("dialog", { name: "Release order-22b" }).waitFor();
  await make.until("the reason has the focus", () => page.evaluate(() => document.activeElement.id === "act-reason"));
  await keys.type("by keyboard / ?");
  await keys.press("Enter");
  await page.getByText("Written; the next caller runs it").waitFor();
  await make.until("the focus is in the page", () => page.evaluate(() => document.activeElement !== document.body));
  assert.equal(acts_of("order-22b")[0].why, "by keyboard / ?");
  // Through the list.
  await keys.press("g");
  await keys.press("r");
  await page.locator(".row-link").nth(1).waitFor();
  const rows = await page.locator(".row-link").allTextContents();
  for (const [key, row] of [["j", 0], ["j", 1], ["k", 0]]) {
    await keys.press(key);
    await focus_at(rows[row]);
  }
  await keys.press("Enter");
  await heading(page, rows[0]);
  await keys.press("u");
  await heading(page, "Records");
  await keys.press("g");
  await keys.press("o");
  await heading(page, "Overview");
  await keys.press("p");
  await page.getByRole("status").filter({ hasText: "Paused" }).waitFor();
  await keys.press("p");
  await page.getByRole("status").filter({ hasText: "Live" }).waitFor();
  // The keys can be turned off, and stay so.
  await keys.press("?");
  await page.getByRole("dialog", { name: "Keys" }).waitFor();
  await page.getByLabel("Use these keys").uncheck();
  await keys.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  await page.reload();
  await heading(page, "Overview");
  await keys.press("?");
  await keys.press("g");
  await keys.press("r");
  await keys.press("/");
  assert.equal(await page.getByRole("dialog").count(), 0);
  assert.match(page.url(), /#\/$/);
  assert.equal(await page.evaluate(() => document.activeElement.id), "");
  assert.deepEqual(unexpected(faults, 412), []);  // A dry run may come after the act.
});

// The screens, one after the other, as check(name) is called.
async function each_screen(options, check) {
  const long = `order-23-${"0123456789abcdef".repeat(10)}`;
  make.unknown(store, long);
  make.completed(store, "order-23c", "pay", '{"charge":1}', ["--keep-input", "args"]);
  const { page, faults } = await open(browser, options);
  await page.goto(host.page);
  await page.getByLabel("The token from your token file").waitFor();
  await check(page, "sign-in");
  await page.goto(host.sign_in());
  await page.locator(".tile .number").first().waitFor();
  await check(page, "overview");
  await page.goto(`${host.page}#/records`);
  await page.locator(".row-link").first().waitFor();
  await check(page, "records");
  await page.goto(`${host.page}#/records?standing=lapsed`);
  await page.getByText("No record matches.").waitFor();
  await check(page, "an empty list");
  await page.goto(`${host.page}#/client`);
  await heading(page, "Find a client");
  await page.getByLabel("The proxy knows clients by").selectOption("claim");
  await check(page, "a client by a claim");
  await page.goto(`${host.page}#/records?client=${"5f".repeat(32)}`);
  await page.getByText("No record matches.").waitFor();
  await check(page, "a client without records");
  await page.goto(`${host.page}#/r/${hex_of("order-23c")}`);
  await heading(page, "order-23c");
  await page.getByRole("button", { name: "Show result" }).click();
  await page.getByRole("button", { name: "Show input" }).click();
  await page.locator(".payload").nth(1).waitFor();
  await page.getByText("Evidence").click();
  await check(page, "a completed record");
  await page.goto(`${host.page}#/r/${hex_of(long)}`);
  await heading(page, long);
  await check(page, "an unknown record");
  await page.getByRole("button", { name: "More" }).click();
  await check(page, "more acts");
  await page.keyboard.press("Escape");
  for (const act of ["Complete", "Fail", "Release", "Remove"]) {
    await choose(page, act);
    await page.locator(".preview .word, .preview.is-bad, .preview :text('removed')").first().waitFor();
    await page.getByRole("dialog").getByText("Command line").click();
    await check(page, act);
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "detached" });
  }
  await page.goto(`${host.page}#/r/00`);
  await page.getByText("No record has this key.").waitFor();
  await check(page, "no record");
  await page.getByRole("button", { name: "Keys" }).click();
  await check(page, "keys");
  assert.deepEqual(unexpected(faults, 404), []);
}

for (const colorScheme of ["light", "dark"]) {
  test(`23: axe finds nothing, ${colorScheme}`, patient, async () => {
    let checked = 0;
    await each_screen({ colorScheme }, async (page, name) => {
      await axe_finds_nothing(page, name);
      ++checked;
    });
    assert.equal(checked, 15);
    assert.ok(axe_source.length);
  });
}

test("24: nothing scrolls sideways at 320 px, and all that is pressed is large", patient, async () => {
  await each_screen(narrow, fits_a_phone);
});

test("25: the command by hand does what the button does, whatever is typed", patient, async () => {
  const reason = `it's "there" $(touch stolen) \`touch stolen\`; touch stolen \\ é\u202e\u001b[201~`;
  const shown_reason = reason.replace("\u202e", "\\u{202e}").replace("\u001b", "\\u{1b}");
  const output = `paid 'twice' $HOME\n%s \\n é`;
  const forms = {
    Complete: async (dialog) => {
      await dialog.getByLabel("Exit code").fill("3");
      await dialog.getByLabel("Standard output").fill(output);
      await dialog.getByLabel("Replay it for").fill("7d");
    },
    Fail: async (dialog) => {
      await dialog.getByLabel("Code").fill("no' funds");
      await dialog.getByLabel("Message").fill("the bank's answer");
    },
    Release: (dialog) => dialog.getByLabel("The next caller may send another payload").check(),
    Remove: async () => {},
  };
  const path = join(store.folder, "bin");
  spawnSync("mkdir", [path]);
  symlinkSync(make.program, join(path, "once"));
  const context_options = { permissions: ["clipboard-read", "clipboard-write"] };
  const { page, faults } = await signed_in("#/", context_options);
  for (const [act, fill] of Object.entries(forms)) {
    const records = {};
    for (const way of ["button", "command"]) {
      const key = `order-25-${act}-${way}`;
      make.unknown(store, key);
      await find(page, key);
      await heading(page, key);
      await choose(page, act);
      const dialog = page.getByRole("dialog");
      await dialog.getByLabel("Reason").evaluate((field, text) => {  // As pasting would: no key types these.
        field.value = text;
        field.dispatchEvent(new Event("input", { bubbles: true }));
      }, reason);
      await fill(dialog);
      if (way === "button") {
        await press(page, act);
      } else {
        await dialog.getByText("Command line").click();
        await dialog.getByRole("button", { name: "Copy" }).click();
        await dialog.getByText("Copied").waitFor();
        const command = await page.evaluate(() => navigator.clipboard.readText());
        assert.match(command, /^[\x20-\x7e]+$/, "nothing but printable ASCII reaches the terminal");
        const ran = spawnSync("bash", ["-c", command], { cwd: store.folder, encoding: "utf8",
          env: { ...process.env, PATH: `${path}${delimiter}${process.env.PATH}` } });
        assert.equal(ran.status, 0, `${command}\n${ran.stderr}`);
        await page.keyboard.press("Escape");
        await look(page);
      }
      if (act !== "Remove") await page.locator(".why", { hasText: shown_reason }).waitFor();
      else await page.getByText(way === "button" ? "It is removed." : "It was removed while you looked.").waitFor();
      records[way] = make.record_of(store, key, "pay");
    }
    assert.equal(spawnSync("test", ["-e", join(store.folder, "stolen")]).status, 1);
    if (act === "Remove") {
      assert.deepEqual(records, { button: null, command: null });
      continue;
    }
    const told = (record) => ({ standing: record.standing, result: record.result, failure: record.failure, fingerprint: !!record.fingerprint,
      on_lapse: record.on_lapse, days: Math.round((Date.parse(record.expires_at) - Date.now()) / 86400000),
      acts: record.history.filter(({ attempt }) => attempt === 0).map(({ what, who, why }) => [what, who, why]) });
    assert.deepEqual(told(records.button), told(records.command), act);
    assert.equal(told(records.button).acts[0][2], reason);
  }
  const replayed = make.unknown(store, "order-25-Complete-button");
  assert.deepEqual([replayed.status, replayed.stdout], [3, output]);
  // The record that was removed, and the dialog that was open while the command ran.
  assert.deepEqual(unexpected(faults, "(404|412)"), []);
});

test("an extension, and an answer in HTTP, as their callers get them", patient, async () => {
  make.completed(store, "order-26", "pay", "paid");
  const { page } = await at_record("order-26");
  const before = make.record_of(store, "order-26", "pay").expires_at;
  await choose(page, "Extend");
  await page.getByLabel("Reason").fill("the client retries next week");
  await page.getByLabel("How much longer").fill("7d");
  await press(page, "Extend");
  await page.getByText("“the client retries next week”").waitFor();
  assert.equal(Date.parse(make.record_of(store, "order-26", "pay").expires_at) - Date.parse(before), 7 * 86400000);
  // The proxy replays what was typed here.
  await host.post("order-26b", "/lost");
  await find(page, "order-26b");
  await heading(page, "order-26b");
  await choose(page, "Complete");
  await page.getByLabel("Reason").fill("in the ledger");
  assert.equal(await page.getByLabel("Its callers expect").inputValue(), "http");  // It came by the proxy.
  // A client that pays must not get an empty answer by mistake.
  await press(page, "Complete");
  await page.getByRole("alert").getByText("Give what its callers get, or say that it is empty").waitFor();
  assert.match(await host.post("order-26b", "/lost"), /outcome-unknown/);
  await page.getByLabel("An empty response, on purpose").waitFor();
  await page.getByLabel("Status").fill("202");
  await page.getByLabel("Body").fill('{"é":1}');
  await press(page, "Complete");
  await page.getByText("“in the ledger”").waitFor();
  assert.equal(await host.post("order-26b", "/lost"), '{"é":1}');
  await host.post("order-26c", "/lost");
  await find(page, "order-26c");
  await heading(page, "order-26c");
  await choose(page, "Complete");
  await page.getByLabel("Reason").fill("the endpoint answers nothing");
  await page.getByLabel("An empty response, on purpose").check();
  await press(page, "Complete");
  await page.getByText("“the endpoint answers nothing”").waitFor();
  assert.equal(await host.post("order-26c", "/lost"), "");
});
