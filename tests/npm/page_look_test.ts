/**
 * How the chat page looks on phones and desktops, by day and by night: run like page_test.ts, which says against what.
 *
 *     node page_look_test.ts http://127.0.0.1:8888/
 *
 * Planted, and caught: tables and words that do not give way (widths), Enter that asks on phones, grey text on black (themes).
 */

import type { Page } from "playwright-core";
import { answered, browser, onPage, PHONE, text } from "./browser.ts";
import { becomes, equal, expect, main } from "./harness.ts";

const WIDE = `${"w".repeat(300)}\n\n\`${"c".repeat(200)}\`\n\n\`\`\`\n${"x = 1; ".repeat(60)}\n\`\`\`\n\n` +
  `| ${"column | ".repeat(12)}\n|${"---|".repeat(12)}\n| ${"1234567890 | ".repeat(12)}\n\n- ${"l".repeat(200)}\n> ${"q".repeat(200)}`;

for (const width of [320, 360, 390, 430, 768, 1280]) {
  const phone = width < 500;
  const name = `nothing is wider than ${width} px`;
  onPage(name, async (page) => {
    const fits = async (where: string) => {
      const over = await page.evaluate(() => {
        const wide = [document.documentElement, document.body, document.getElementById("scroll")];
        return wide.map((it) => (it === null ? 1 : it.scrollWidth - it.clientWidth));
      });
      equal([where, ...over], [where, 0, 0, 0]);
    };
    await fits("at first");
    await answered(page, `[[say <think>\n${"t".repeat(300)}\n</think>\n\n${WIDE}]]`);
    await page.click("details.thought summary");
    await fits("with a wide answer");
    await page.click("#open-settings");
    const box = await page.locator("#settings").boundingBox();
    expect(box !== null && box.x >= 0 && box.x + box.width <= width && box.y >= 0, box);
    await page.locator("#settings >> text=Done").scrollIntoViewIfNeeded();
    await page.click("#settings >> text=Done");
    await page.fill("#input", "long ".repeat(300));
    await fits("with a long question");
    const send = await page.locator("#send").boundingBox();
    expect(send !== null && send.width >= 40 && send.height >= 40 && send.x + send.width <= width, send);
  }, phone ? { ...PHONE, viewport: { width, height: 700 } } : { viewport: { width, height: 700 } });
}

onPage("on a phone, Enter breaks lines and the keyboard hides nothing", async (page) => {
  await page.tap("#input");
  await page.keyboard.type("one");
  await page.keyboard.press("Enter");
  await page.keyboard.type("two");
  equal(await page.inputValue("#input"), "one\ntwo");
  // A keyboard takes half of the screen.
  await page.setViewportSize({ width: 390, height: 420 });
  await becomes(async () => {
    const box = await page.locator("form.ask").boundingBox();
    return box !== null && box.y >= 56 && box.y + box.height <= 420;
  }, true);
  await page.fill("#input", "[[say Yes.]]");
  await page.tap("#send");
  await page.waitForSelector(".assistant >> text=Yes.");
}, PHONE);

onPage("with keys, Enter asks and Shift with Enter breaks lines", async (page) => {
  // A page that has just been opened gives the input what is typed, once it has been drawn.
  await page.waitForFunction(() => document.activeElement?.id === "input");
  await page.keyboard.type("[[say a");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type("b]]");
  await page.keyboard.press("Enter");
  await page.waitForSelector("text=Try again");
  equal(await text(page, ".assistant .text"), "a\nb");
});

/** The luminance of what is drawn on, and the contrast of the text on it. */
const colours = (page: Page) =>
  page.evaluate(() => {
    const luminance = (colour: string) => {
      const [r = 0, g = 0, b = 0] = (colour.match(/[\d.]+/g) ?? []).map((it) => {
        const part = Number(it) / 255;
        return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
      });
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const paper = luminance(getComputedStyle(document.body).backgroundColor);
    const contrast = (selector: string) => {
      const ink = luminance(getComputedStyle(document.querySelector(selector) ?? document.body).color);
      return (Math.max(paper, ink) + 0.05) / (Math.min(paper, ink) + 0.05);
    };
    return { paper, text: contrast("body"), note: contrast(".note") };
  });

for (const scheme of ["light", "dark"] as const) {
  onPage(`the ${scheme} theme is the system's, until it is changed`, async (page) => {
    const check = async (dark: boolean) => {
      const { paper, text: ink, note } = await colours(page);
      expect(dark ? paper < 0.05 : paper > 0.9, paper);
      expect(ink > 10 && note > 4.5, [ink, note]);
    };
    await check(scheme === "dark");
    await page.click("#theme");
    await check(scheme !== "dark");
    await page.reload();
    await check(scheme !== "dark");
  }, { colorScheme: scheme });
}

await main();
await browser.close();
