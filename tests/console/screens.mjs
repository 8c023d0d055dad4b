// What holds for every screen: check(page, its name).
import assert from "node:assert/strict";

export async function axe_finds_nothing(page, name) {
  const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  assert.deepEqual(found.violations.map(({ id, nodes }) => [id, nodes.map((node) => `${node.html} ${node.failureSummary}`)]), [], name);
  assert.ok(found.passes.length > 5, name);
}

export const narrow = { viewport: { width: 320, height: 640 }, hasTouch: true, isMobile: false };

export async function fits_a_phone(page, name) {
  const found = await page.evaluate(() => ({
    width: document.scrollingElement.scrollWidth,
    small: [...document.querySelectorAll("button, select, input:not([type=checkbox])")].filter((one) => one.offsetParent && one.getBoundingClientRect().height < 44)
      .map((one) => one.outerHTML),
    outside: [...document.querySelectorAll("button, select, input, a:not(.skip)")].filter((one) => one.offsetParent &&
      (one.getBoundingClientRect().left < 0 || one.getBoundingClientRect().right > 320)).map((one) => one.outerHTML),
    cut: [...document.querySelectorAll("button")].filter((one) => one.offsetParent && one.scrollWidth > one.clientWidth + 1)
      .map((one) => one.outerHTML),
  }));
  assert.deepEqual([found.outside, found.cut], [[], []], name);
  assert.ok(found.width <= 320, `${name}: ${found.width} px wide`);
  assert.deepEqual(found.small, [], name);
}
