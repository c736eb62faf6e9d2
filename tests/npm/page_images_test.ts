/**
 * Pictures on the chat page in Chromium, against the scripted model that takes images: run like page_test.ts.
 *
 *     node page_images_test.ts http://127.0.0.1:8888/ http://127.0.0.1:8889/
 *
 * The second server's model takes none. `[[seen]]` makes the model say its prompt, with each image as how many tokens it has and a hash.
 *
 * Planted in the page, each caught by the test of what it breaks: pictures behind their text (sending), large files sent whole (sizes), a database never
 * written, and one that keeps everything (keeping), files that a page without a tower opens (refusing).
 */

import type { Page, Request } from "playwright-core";
import { browser, onPage, PHONE, text, visit } from "./browser.ts";
import { becomes, equal, expect, given, main, test } from "./harness.ts";

const [blind] = given;
if (blind === undefined) throw new Error("usage: node page_images_test.ts URL BLIND_URL");

type Part = { type: string; text?: string; image_url?: { url: string } };
type Message = { role: string; content: string | Part[] };
type File = { name: string; mimeType: string; buffer: Buffer };

/** A file that the browser draws: noise, which no format makes small, or one colour. */
async function drawn(page: Page, width: number, height: number, kind: string, colour?: string): Promise<File> {
  const url = await page.evaluate(([width, height, kind, colour]) => {
    const canvas = document.createElement("canvas");
    canvas.width = width;
    canvas.height = height;
    const pen = canvas.getContext("2d");
    if (pen === null) throw new Error("no canvas");
    if (colour === undefined) {
      const noise = pen.createImageData(width, height);
      for (let at = 0, next = 1; at < noise.data.length; at++) noise.data[at] = at % 4 === 3 ? 255 : (next = (next * 48271) % 2147483647) % 256;
      pen.putImageData(noise, 0, 0);
    } else {
      pen.fillStyle = colour;
      pen.fillRect(0, 0, width, height);
    }
    return canvas.toDataURL(kind);
  }, [width, height, kind, colour] as const);
  return { name: "drawn", mimeType: kind, buffer: Buffer.from(url.slice(url.indexOf(",") + 1), "base64") };
}

/** Gives the page a file as pasting or dropping it does. */
async function hand(page: Page, how: "paste" | "drop", { name, mimeType, buffer }: File): Promise<void> {
  await page.evaluate(([how, name, type, data]) => {
    const bytes = Uint8Array.from(atob(data), (it) => it.charCodeAt(0));
    const files = new DataTransfer();
    files.items.add(new File([bytes], name, { type }));
    const event = how === "paste"
      ? new ClipboardEvent("paste", { clipboardData: files, bubbles: true, cancelable: true })
      : new DragEvent("drop", { dataTransfer: files, bubbles: true, cancelable: true });
    (document.querySelector(how === "paste" ? "#input" : "#scroll") ?? document).dispatchEvent(event);
    if (!event.defaultPrevented) throw new Error("the browser would open it");
  }, [how, name, mimeType, buffer.toString("base64")] as const);
}

const ready = (page: Page) => page.waitForSelector("#attach", { state: "visible" });
const chosen = (page: Page, count: number) => page.waitForFunction((count) => document.querySelectorAll(".chosen").length === count, count);

/** Asks, and returns what was sent and said. */
async function sent(page: Page, question: string): Promise<{ messages: Message[]; said: string }> {
  await page.fill("#input", question);
  const [request] = await Promise.all([
    page.waitForRequest("**/v1/chat/completions"),
    page.click("#send").then(() => page.waitForSelector(".assistant:last-child .about >> text=Try again")),
  ]);
  return { messages: messagesOf(request), said: await text(page, ".assistant .text") };
}
const messagesOf = (request: Request) => (request.postDataJSON() as { messages: Message[] }).messages;
const kinds = (message: Message | undefined) => (typeof message?.content === "string" ? ["plain"] : message?.content.map((it) => it.type));
const url = (message: Message | undefined, at: number) => (typeof message?.content === "string" ? undefined : message?.content[at]?.image_url?.url);

/** How many pictures the browser's database has. */
const kept = (page: Page) => page.evaluate(async () => {
  const opening = indexedDB.open("monomorph", 1);
  await new Promise((done) => (opening.onsuccess = done));
  const asked = opening.result.transaction("pictures").objectStore("pictures").count();
  await new Promise((done) => (asked.onsuccess = done));
  opening.result.close();
  return asked.result;
});

onPage("pictures are chosen, pasted and dropped, and sent as they are before what is said of them", async (page) => {
  await ready(page);
  const files = await Promise.all([drawn(page, 16, 16, "image/png", "#f00"), drawn(page, 32, 16, "image/jpeg", "#0f0"), drawn(page, 16, 32, "image/webp", "#00f")]);
  const [first, second, third] = files as [File, File, File];
  await page.setInputFiles("#file", first);
  await hand(page, "paste", second);
  await hand(page, "drop", third);
  await chosen(page, 3);
  // One is left out again.
  await page.locator(".chosen").nth(1).getByRole("button", { name: "Leave this picture out" }).click();
  await chosen(page, 2);
  const { messages, said } = await sent(page, "[[seen]]");
  equal(kinds(messages[0]), ["image_url", "image_url", "text"]);
  const data = ({ mimeType, buffer }: File) => `data:${mimeType};base64,${buffer.toString("base64")}`;
  equal([url(messages[0], 0), url(messages[0], 1)], [data(first), data(third)]);
  expect(/<\d+ [0-9a-f]{8}>.*<\d+ [0-9a-f]{8}>.*\[\[seen\]\]/s.test(said), said);
  equal(await page.locator(".chosen").count(), 0);
  equal(await page.locator(".user .picture img").count(), 2);
  // A picture needs no words, and the next question has the pictures of those before it.
  await hand(page, "paste", second);
  await chosen(page, 1);
  const { messages: more } = await sent(page, "");
  equal([kinds(more[0]), kinds(more[2])], [["image_url", "image_url", "text"], ["image_url"]]);
});

onPage("large pictures are made smaller, and no others", async (page) => {
  await ready(page);
  const pixels = await page.evaluate(async () => {
    const { build, engine } = (await (await fetch("/info")).json()) as
      { build: { vision: { patch: number; merge: number } }; engine: { images: { max_tokens: number } } };
    return engine.images.max_tokens * (build.vision.patch * build.vision.merge) ** 2;
  });
  const large = await drawn(page, 800, 600, "image/png");
  expect(large.buffer.length > 512 * 1024, large.buffer.length);
  await page.setInputFiles("#file", large);
  await chosen(page, 1);
  const shown = await page.locator(".chosen img").evaluate((image) => [(image as HTMLImageElement).naturalWidth, (image as HTMLImageElement).naturalHeight]);
  const [width = 0, height = 0] = shown;
  expect(Math.abs(width * height - 2 * pixels) < 2 * (width + height) && Math.abs(width / height - 4 / 3) < 0.05, [shown, pixels]);
  const { messages } = await sent(page, "[[say Small.]]");
  expect(url(messages[0], 0)?.startsWith("data:image/jpeg;base64,"), url(messages[0], 0)?.slice(0, 40));
  // BMP is read by browsers alone.
  const bmp = Buffer.from("Qk06AAAAAAAAADYAAAAoAAAAAQAAAAEAAAABABgAAAAAAAQAAAATCwAAEwsAAAAAAAAAAAAA/wD/AA==", "base64");
  await page.setInputFiles("#file", { name: "one.bmp", mimeType: "image/bmp", buffer: bmp });
  await chosen(page, 1);
  const { messages: next } = await sent(page, "[[say Converted.]]");
  expect(url(next[2], 0)?.startsWith("data:image/jpeg;base64,"), url(next[2], 0)?.slice(0, 40));
});

onPage("pictures are kept with their conversation, for all tabs, and go with it", async (page) => {
  await ready(page);
  await page.setInputFiles("#file", await drawn(page, 16, 16, "image/png", "#f00"));
  await chosen(page, 1);
  const { messages } = await sent(page, "[[seen]]");
  await becomes(() => kept(page), 1);
  const other = await page.context().newPage();
  await other.goto(page.url());
  await other.waitForSelector(".user .picture img");
  const { messages: again } = await sent(other, "[[say Yes.]]");
  equal(url(again[0], 0), url(messages[0], 0));
  // It is shown large, and put away.
  await other.click(".user .picture");
  expect(await other.isVisible("#large img"), "it is shown large");
  await other.click("#large img");
  expect(!(await other.isVisible("#large")), "it is put away");
  await other.click("#new");
  await becomes(() => kept(other), 0);
  await other.reload();
  equal(await other.locator(".picture").count(), 0);
  // This tab had it all the time, and its next question keeps it again.
  const { messages: third } = await sent(page, "[[say Yes.]]");
  equal(url(third[0], 0), url(messages[0], 0));
});

onPage("a picture that is gone is said to be, to its reader and to the model", async (page) => {
  await ready(page);
  await page.setInputFiles("#file", await drawn(page, 16, 16, "image/png", "#f00"));
  await chosen(page, 1);
  await sent(page, "[[say Yes.]]");
  await becomes(() => kept(page), 1);
  await page.evaluate(() => new Promise((done) => {
    const opening = indexedDB.open("monomorph", 1);
    opening.onsuccess = () => {
      opening.result.transaction("pictures", "readwrite").objectStore("pictures").clear().onsuccess = done;
    };
  }));
  await page.reload();
  equal(await text(page, ".user .picture"), "(a picture that this browser has not kept)");
  const { messages } = await sent(page, "[[say Yes.]]");
  equal(messages[0]?.content, [{ type: "text", text: "(a picture that this browser has not kept)" }, { type: "text", text: "[[say Yes.]]" }]);
});

onPage("what is no picture is named", async (page) => {
  await ready(page);
  await page.setInputFiles("#file", { name: "notes.txt", mimeType: "text/plain", buffer: Buffer.from("no picture") });
  await page.waitForSelector(".note >> text=notes.txt is no picture that this browser can read.");
  equal(await page.locator(".chosen").count(), 0);
  // What the browser takes for one, the server may still refuse; the page shows what it says.
  await page.setInputFiles("#file", { name: "broken.png", mimeType: "image/png", buffer: Buffer.from("no picture") });
  await chosen(page, 1);
  await page.click("#send");
  await page.waitForSelector("#log .failed");
  expect((await text(page, "#log .failed")).includes("messages[0].content[0].image_url.url"), await text(page, "#log .failed"));
}, { expected: /status of 400/ });

test("a page without a tower takes no picture, and opens none", async () => {
  const { page, close } = await visit(blind);
  await page.waitForFunction(() => document.querySelector("#model")?.textContent !== "Monomorph");
  expect(!(await page.isVisible("#attach")), "there is nothing to press");
  const file = await drawn(page, 16, 16, "image/png", "#f00");
  for (const how of ["paste", "drop"] as const) {
    await hand(page, how, file);
    await page.waitForSelector(".note >> text=This model takes no pictures.");
  }
  equal(await page.locator(".chosen").count(), 0);
  await close();
});

for (const width of [320, 1280]) {
  onPage(`pictures are no wider than ${width} px`, async (page) => {
    await ready(page);
    await page.setInputFiles("#file", [await drawn(page, 3000, 20, "image/png", "#f00"), await drawn(page, 20, 3000, "image/png", "#00f"), await drawn(page, 600, 600, "image/png", "#0f0")]);
    await chosen(page, 3);
    const over = () => page.evaluate(() => [document.documentElement, document.body, document.getElementById("scroll")].map((it) => (it === null ? 1 : it.scrollWidth - it.clientWidth)));
    equal(await over(), [0, 0, 0]);
    await page.fill("#input", "[[say Wide.]]");
    await page.click("#send");
    await page.waitForSelector(".user .picture img");
    equal(await over(), [0, 0, 0]);
    await page.locator(".user .picture").first().click();
    const box = await page.locator("#large").boundingBox();
    expect(box !== null && box.x >= 0 && box.x + box.width <= width, box);
  }, { ...(width < 500 ? PHONE : {}), viewport: { width, height: 700 }, expected: /status of 400/ });
}

await main();
await browser.close();
