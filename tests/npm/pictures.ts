/**
 * The pictures of the chat page in docs/page.md.
 *
 *     node pictures.ts http://127.0.0.1:8888/ DIRECTORY http://127.0.0.1:8889/
 *
 * The first server is the scripted one with `<think>` and Hermes calls, the second the one that takes images; what it says is told by the system prompt, which the page does not show.
 */

import type { BrowserContextOptions, Page } from "playwright-core";
import { ask, browser, DESKTOP, PHONE, visit } from "./browser.ts";
import { given, url } from "./harness.ts";

const [directory, sees] = given;
if (directory === undefined || sees === undefined) throw new Error("usage: node pictures.ts URL DIRECTORY SEEING_URL");

const ANSWER = `<think>
Two ways to sort: quicksort and merge sort. Compare memory and worst case, then show the shorter one.
</think>

Both halve the list until there is nothing left to sort. What differs is **where the work happens**: merge sort works while it joins the halves, quicksort while it divides.

| | merge sort | quicksort |
|---|---|---|
| worst case | *n* log *n* | *n*² |
| extra memory | *n* | log *n* |
| keeps equal items in order | yes | no |

\`\`\`python
def merge_sort(items):
    if len(items) < 2:
        return items
    half = len(items) // 2
    return merge(merge_sort(items[:half]), merge_sort(items[half:]))
\`\`\`

For short lists neither wins: below some twenty items, insertion sort is quicker.`;

const THOUGHT = `<think>
The sky is blue because air scatters short waves more than long ones. A child knows balls and puddles better than waves.

Perhaps: sunlight is all colours mixed, and blue bounces around the most. So wherever one looks, some of it comes from there, and the whole sky is blue.`;

async function tell(page: Page, what: string): Promise<void> {
  await page.click("#open-settings");
  await page.fill("#system", `[[${what}]]`);
  await page.click("#settings >> text=Done");
}

async function picture(name: string, options: BrowserContextOptions, what: string, question: string, until: string): Promise<void> {
  const { page, close } = await visit(url, options);
  await tell(page, what);
  await ask(page, question);
  await page.waitForSelector(until, { timeout: 60_000 });
  await page.screenshot({ path: `${directory}/page-${name}.png` });
  await close();
}
await picture("desktop", { ...DESKTOP, colorScheme: "light" }, `slowly ${ANSWER}`, "How do merge sort and quicksort differ?", "text=Try again");
const blue = "Why is the sky blue? Explain it to a six-year-old.";
await picture("phone", { ...PHONE, colorScheme: "dark" }, `slowly ${THOUGHT}`, blue, "text=/bounces/");

/** Two pictures that the browser draws: columns of a chart, and hills in the evening. */
const DRAWINGS = [
  () => {
    const canvas = Object.assign(document.createElement("canvas"), { width: 640, height: 400 });
    const pen = canvas.getContext("2d") as CanvasRenderingContext2D;
    pen.fillStyle = "#fff";
    pen.fillRect(0, 0, 640, 400);
    pen.fillStyle = "#4f46e5";
    [120, 180, 150, 240, 310].forEach((height, at) => pen.fillRect(60 + 110 * at, 350 - height, 70, height));
    pen.fillStyle = "#333";
    pen.font = "22px sans-serif";
    ["Mon", "Tue", "Wed", "Thu", "Fri"].forEach((day, at) => pen.fillText(day, 72 + 110 * at, 382));
    return canvas.toDataURL();
  },
  () => {
    const canvas = Object.assign(document.createElement("canvas"), { width: 640, height: 400 });
    const pen = canvas.getContext("2d") as CanvasRenderingContext2D;
    const sky = pen.createLinearGradient(0, 0, 0, 400);
    sky.addColorStop(0, "#2b2d6e");
    sky.addColorStop(1, "#f2a65a");
    pen.fillStyle = sky;
    pen.fillRect(0, 0, 640, 400);
    pen.fillStyle = "#ffe9c2";
    pen.arc(430, 250, 46, 0, 7);
    pen.fill();
    ["#3b3a5c", "#26263f", "#151524"].forEach((hill, at) => {
      pen.fillStyle = hill;
      pen.beginPath();
      pen.moveTo(0, 400);
      for (let x = 0; x <= 640; x += 8) pen.lineTo(x, 270 + 40 * at + 34 * Math.sin(x / (90 - 20 * at) + 2 * at));
      pen.lineTo(640, 400);
      pen.fill();
    });
    return canvas.toDataURL();
  },
] as const;

async function withPicture(name: string, options: BrowserContextOptions, drawing: 0 | 1, what: string, question: string): Promise<void> {
  const { page, close } = await visit(sees as string, options);
  await page.waitForSelector("#attach", { state: "visible" });
  await tell(page, what);
  const url = await page.evaluate(DRAWINGS[drawing]);
  const buffer = Buffer.from(url.slice(url.indexOf(",") + 1), "base64");
  const file = { name: "picture.png", mimeType: "image/png", buffer };
  await page.setInputFiles("#file", file);
  await page.waitForSelector(".chosen");
  await ask(page, question);
  await page.waitForSelector("text=Try again", { timeout: 60_000 });
  await page.setInputFiles("#file", file);
  await page.waitForSelector(".chosen");
  await page.screenshot({ path: `${directory}/page-${name}.png` });
  await close();
}
const chart = "It is the week's orders, a column a day. They fall once, on Wednesday, and rise by **a third** from Thursday to Friday.";
await withPicture("picture-desktop", { ...DESKTOP, colorScheme: "light" }, 0, `say ${chart}`, "What does this chart show?");
const hills = "Three rows of hills under a low sun. The sky goes from *indigo* to orange, so it is evening, or very early.";
await withPicture("picture-phone", { ...PHONE, colorScheme: "dark" }, 1, `say ${hills}`, "What time of day is this?");
await browser.close();
