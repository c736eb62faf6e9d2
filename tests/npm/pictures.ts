/**
 * The pictures of the chat page in docs/page.md.
 *
 *     node pictures.ts http://127.0.0.1:8888/ DIRECTORY
 *
 * The server is the scripted one with `<think>` and Hermes calls; what it says is told by the system prompt, which the page does not show.
 */

import type { BrowserContextOptions, Page } from "playwright-core";
import { ask, browser, DESKTOP, PHONE, visit } from "./browser.ts";
import { given, url } from "./harness.ts";

const [directory] = given;
if (directory === undefined) throw new Error("usage: node pictures.ts URL DIRECTORY");

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
await browser.close();
