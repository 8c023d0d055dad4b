// Debian's Chromium, driven by Playwright.
import { createRequire } from "node:module";
import { join } from "node:path";

const modules = process.env.ONCE_CONSOLE_MODULES;  // Where tools/node-tools tests/console has put them.
if (!modules) throw new Error("run tests/console/run, which sets ONCE_CONSOLE_MODULES");
const require = createRequire(join(modules, "package.json"));
const { chromium } = require("playwright-core");
export const axe_source = require("axe-core").source;

export const patience_ms = Number(process.env.ONCE_CONSOLE_PATIENCE_MS || 60000);

export const launch = () => chromium.launch({
  executablePath: process.env.ONCE_CHROMIUM || "/usr/bin/chromium",
  args: process.getuid() === 0 ? ["--no-sandbox"] : [],
  timeout: patience_ms,
});

// A page of its own browser context. `faults` collects what it complained of, and what it asked other hosts for.
export async function open(browser, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 860 }, reducedMotion: "reduce", ...options });
  context.setDefaultTimeout(patience_ms);
  await context.addInitScript({ content: axe_source });
  const page = await context.newPage();
  const faults = [];
  page.on("pageerror", (error) => faults.push(`error: ${error.message}`));
  page.on("console", (message) => { if (["error", "warning"].includes(message.type())) faults.push(`${message.type()}: ${message.text()}`); });
  page.on("request", (request) => {
    const { protocol, hostname } = new URL(request.url());
    if (hostname !== "127.0.0.1" && protocol !== "data:" && protocol !== "blob:") faults.push(`asked ${request.url()}`);
  });
  page.on("dialog", (dialog) => {
    faults.push(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  return { page, context, faults };
}
