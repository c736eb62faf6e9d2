/** A browser for tests of the chat page: Debian's Chromium, told to ask nobody but whom the page asks. */

import { chromium, type BrowserContextOptions, type Page } from "playwright-core";
import { expect, PATIENCE, test, url } from "./harness.ts";

const ARGUMENTS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync",
];

export const DESKTOP = { viewport: { width: 1280, height: 800 } };
export const PHONE = { viewport: { width: 390, height: 844 }, deviceScaleFactor: 1, hasTouch: true, isMobile: true };

/** Chromium, which whoever imports this closes. */
export const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ARGUMENTS, timeout: 120_000 });

/** A page, and what must not have happened on it. */
export type Visit = { page: Page; close: () => Promise<void> };

/**
 * Opens the page in a profile of its own. Closing it fails where it asked anybody but the server, or said an error that is none of the
 * `expected`.
 */
export async function visit(
  url: string,
  options: BrowserContextOptions & { expected?: RegExp; before?: (page: Page) => Promise<void> } = {},
): Promise<Visit> {
  const { expected, before, ...rest } = options;
  const context = await browser.newContext({ ...DESKTOP, ...rest });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  const wrong: string[] = [];
  const origin = new URL(url).origin;
  page.on("request", (request) => {
    const asked = new URL(request.url());
    if (asked.origin !== origin && asked.protocol !== "data:") wrong.push(`asked ${request.url()}`);
  });
  page.on("console", (message) => {
    const bad = message.type() === "error" || message.type() === "warning";
    if (bad && !expected?.test(message.text())) wrong.push(`said ${message.text()}`);
  });
  page.on("pageerror", (error) => wrong.push(`threw ${String(error)}`));
  await before?.(page);
  await page.goto(url);
  const close = async () => {
    await context.close();
    expect(wrong.length === 0, wrong.join("\n"));
  };
  return { page, close };
}

/** A test with a page of its own, of the server whose address is given. */
export function onPage(name: string, run: (page: Page) => Promise<void>, options?: Parameters<typeof visit>[1]): void {
  test(name, async () => {
    const opened = await visit(url, options);
    await run(opened.page);
    await opened.close();
  });
}

/** What stands in the last element of this kind. */
export async function text(page: Page, selector: string): Promise<string> {
  return await page.locator(selector).last().innerText();
}

export async function ask(page: Page, text: string): Promise<void> {
  await page.fill("#input", text);
  await page.click("#send");
}

/** Asks, and waits for the end of the answer. */
export async function answered(page: Page, text: string): Promise<void> {
  await ask(page, text);
  await page.waitForSelector(".assistant:last-child .about >> text=Try again");
}

/**
 * Takes the page's clock and the events of its answers into the test's hands: none comes but by `next`, and time stands still between
 * them. What is seen does not depend on how busy the machine is.
 */
export async function pace(page: Page): Promise<void> {
  await page.addInitScript(() => {
    let now = 1_000;
    performance.now = () => now;
    const later = () => new Promise((resolve) => setTimeout(resolve));
    const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
    let wanted: ((come: void) => void) | undefined, ended = false;
    const ask = window.fetch;
    window.fetch = async (...asked) => {
      const response = await ask(...asked);
      const kind = response.headers.get("content-type") ?? "";
      if (!kind.startsWith("text/event-stream") || response.body === null) return response;
      ended = false;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let held = "";
      const event = async () => {
        for (;;) {
          const end = held.indexOf("\n\n") + 2;
          if (end > 1) {
            const first = held.slice(0, end);
            held = held.slice(end);
            return new TextEncoder().encode(first);
          }
          const { value, done } = await reader.read();
          if (done) return undefined;
          held += value;
        }
      };
      const pull = async (controller: ReadableStreamDefaultController<Uint8Array>) => {
        await new Promise<void>((resolve) => (wanted = resolve));
        const come = await event();
        if (come === undefined) {
          ended = true;
          controller.close();
        } else controller.enqueue(come);
      };
      return new Response(new ReadableStream({ pull }, { highWaterMark: 0 }), response);
    };
    Reflect.set(window, "next", async (milliseconds: number) => {
      while (wanted === undefined && !ended) await later();
      if (ended) return false;
      now += milliseconds;
      const give = wanted;
      wanted = undefined;
      give?.();
      // The page asks for more when it has read this one, and draws it in the next frame.
      while (wanted === undefined && !ended) await later();
      await later();
      await frame();
      await frame();
      return !ended;
    });
  });
}

/** Lets the next event of an answer come, so many milliseconds after the one before it, and be drawn; whether one did. */
export async function next(page: Page, milliseconds: number): Promise<boolean> {
  return await page.evaluate(
    async (milliseconds) => await (Reflect.get(window, "next") as (milliseconds: number) => Promise<boolean>)(milliseconds),
    milliseconds,
  );
}

/** Lets all further events come. */
export async function rest(page: Page, milliseconds: number): Promise<void> {
  while (await next(page, milliseconds));
}
