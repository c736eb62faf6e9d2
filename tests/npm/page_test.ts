/**
 * The chat page in Chromium, against the scripted model with `<think>`.
 *
 *     node page_test.ts http://127.0.0.1:8888/ http://127.0.0.1:8889/ KEY
 *
 * The second server wants the key. `[[say TEXT]]` makes the model say TEXT,
 * `[[forever]]` goes on until it is stopped. No page may ask anybody but its server, nor write an error.
 *
 * Planted in the page, each caught by the test of what it breaks: text set as HTML, and links of any scheme (nothing runs); a stop button that stops
 * the page alone, and a page left without keeping its answer (stopping); reasoning that stays open, or is sent back (reasoning); settings not kept, top p
 * under another name (settings); a request of another server (whichever test runs); speeds nine times
 * too high, or counted from before the question (speed); a key not kept, a question not asked again with it (keys); the
 * conversation kept for one tab alone (conversations); two questions in a row, no button to try again (what fails); an answer
 * drawn at its end (pieces); the language copied for the code (markup). The test of keys found that Chromium reads one challenge of a header, and several
 * tests a frame that was drawn late over the buttons.
 */

import { get, type IncomingMessage } from "node:http";
import type { Page, Request } from "playwright-core";
import { answered, ask, browser, next, onPage, pace, rest, text, visit } from "./browser.ts";
import { becomes, equal, expect, given, main, test, url } from "./harness.ts";

const [locked, key] = given;
if (locked === undefined || key === undefined) throw new Error("usage: node page_test.ts URL LOCKED_URL KEY");

async function metric(pattern: RegExp): Promise<number> {
  const text = await (await fetch(new URL("/metrics", url))).text();
  return Number(pattern.exec(text)?.[1] ?? Number.NaN);
}
const running = () => metric(/^vllm:num_requests_running\{[^}]*\} (\S+)/m);
const aborted = () => metric(/^vllm:request_success_total\{[^}]*finished_reason="abort"[^}]*\} (\S+)/m);

const body = (request: Request) => request.postDataJSON() as Record<string, unknown>;
/** What the next question is asked with. */
async function sent(page: Page): Promise<Record<string, unknown>> {
  const [request] = await Promise.all([page.waitForRequest("**/v1/chat/completions"), answered(page, "[[say Yes.]]")]);
  return body(request);
}

onPage("answers come in pieces", async (page) => {
  const whole = "Once upon a time there was a page.";
  await ask(page, `[[say ${whole}]]`);
  const answer = page.locator(".assistant .text");
  const seen = new Set<string>();
  while (await next(page, 20)) seen.add((await answer.textContent()) ?? "");
  await page.waitForSelector("text=Try again");
  equal(await text(page, ".assistant .text"), whole);
  expect(seen.size === whole.length + 1 && [...seen].every((it) => whole.startsWith(it)), [...seen]);
}, { before: pace });

onPage("stopping stops the engine", async (page) => {
  const before = (await aborted()) || 0;
  for (const stop of [() => page.click("#stop"), () => page.keyboard.press("Escape")]) {
    await ask(page, "[[forever]]");
    await page.waitForFunction(() => (document.querySelector(".assistant:last-child .text")?.textContent ?? "").length > 20);
    equal(await running(), 1);
    await stop();
    await becomes(running, 0);
    await page.waitForSelector(".assistant:last-child .about >> text=stopped");
    expect((await text(page, ".assistant .text")).startsWith("ab ab"), "what was said stays");
    expect((await page.isVisible("#send")) && !(await page.isVisible("#stop")), "there is nothing left to stop");
  }
  await becomes(async () => (await aborted()) - before, 2);
  // Leaving the page in the middle of an answer stops it, too, and keeps what there was.
  await ask(page, "[[forever]]");
  await page.waitForFunction(() => (document.querySelector(".assistant:last-child .text")?.textContent ?? "").length > 20);
  await page.reload();
  await becomes(running, 0);
  const kept = await page.locator(".assistant .text").allInnerTexts();
  expect(kept.length === 3 && kept.every((it) => it.startsWith("ab ab")), kept);
  expect((await text(page, ".about")).includes("stopped"), await text(page, ".about"));
});

onPage("reasoning is open while it comes and folded afterwards", async (page) => {
  const thought = page.locator("details.thought");
  await ask(page, "[[say <think>\nFirst this, then that.\n</think>\n\nSo it is, and so it was.]]");
  while ((await thought.count()) === 0) await next(page, 100);
  equal([await thought.locator("summary").innerText(), await thought.getAttribute("open")], ["Thinking…", ""]);
  let passed = 0;
  for (; (await thought.getAttribute("open")) !== null; passed++) await next(page, 100);
  equal(await text(page, ".assistant .text"), "S");
  await rest(page, 100);
  await page.waitForSelector("text=Try again");
  equal(await thought.locator("summary").innerText(), `Thought for ${(passed / 10).toFixed(1)} s`);
  expect(passed > 10 && passed < 40, passed);
  equal(await text(page, ".assistant .text"), "So it is, and so it was.");
  await page.reload();
  expect((await thought.getAttribute("open")) === null, "it stays folded");
  await thought.locator("summary").click();
  equal(await thought.locator("div").innerText(), "First this, then that.");
  // It is not sent back.
  const [request] = await Promise.all([page.waitForRequest("**/v1/chat/completions"), ask(page, "[[say Yes.]]")]);
  const messages = body(request)["messages"] as object[];
  equal(messages[1], { role: "assistant", content: "So it is, and so it was." });
}, { before: pace });

/** Waits until the page knows the model's name, without which it asks too. */
const known = (page: Page) => page.waitForFunction(() => document.querySelector("#model")?.textContent !== "Monomorph");

onPage("settings are sent and kept", async (page) => {
  await known(page);
  const plain = await sent(page);
  equal(Object.keys(plain), ["model", "messages", "stream", "stream_options"]);
  await page.click("#open-settings");
  await page.fill("#system", "Be brief.");
  await page.fill("#temperature", "0.35");
  await page.fill("#top-p", "0.8");
  await page.fill("#max-tokens", "77");
  await page.selectOption("#effort", "none");
  await page.click("#settings >> text=Done");
  const check = (asked: Record<string, unknown>) => {
    equal((asked["messages"] as object[])[0], { role: "system", content: "Be brief." });
    equal([asked["temperature"], asked["top_p"], asked["max_tokens"], asked["reasoning_effort"]], [0.35, 0.8, 77, "none"]);
  };
  check(await sent(page));
  await page.reload();
  await known(page);
  check(await sent(page));
  await page.click("#open-settings");
  equal(await page.inputValue("#max-tokens"), "77");
  await page.click("#reset");
  await page.click("#settings >> text=Done");
  equal(Object.keys(await sent(page)), Object.keys(plain));
});

onPage("the speed is shown live and at the end", async (page) => {
  await ask(page, "[[say abcdefghijklmnopqrst]]");
  const shown = new Set<string>();
  while (await next(page, 100)) shown.add(await text(page, ".about"));
  equal([...shown].filter((it) => it.includes("tokens/s")), ["10.0 tokens/s"]);
  await page.waitForSelector("text=Try again");
  // The first event says who speaks; the last token ends the answer and has none.
  const about = await text(page, ".about");
  expect(about.startsWith("21 tokens · 10.5 tokens/s · first after 0.20 s"), about);
}, { before: pace });

const HOSTILE = [
  "<script>window.hurt = 1</script>", "<img src=x onerror='window.hurt = 2'>", "<svg onload='window.hurt = 3'>",
  "[a](javascript:window.hurt=4)", "[b](https://example.com/\"onmouseover=window.hurt=5)", "`<b onclick=window.hurt=6>`",
  "```<i onload=hurt>\n</code></pre><script>window.hurt = 7</script>\n```",
  "| <iframe srcdoc='<script>parent.hurt = 8</script>'> | x |\n|---|---|\n| </td><script>window.hurt = 9</script> | y |",
  "> <style>* { display: none }</style>", "# <math><mtext></mtext></math>", "**<a href=data:text/html,x>x</a>**", "</div></main>{{7*7}}",
];

onPage("nothing that a model or its reader writes runs", async (page) => {
  await answered(page, `[[say <think>\n${HOSTILE.join("\n\n")}\n</think>\n\n${HOSTILE.join("\n\n")}]]`);
  await page.reload();
  const found = await page.evaluate(() => {
    const log = document.getElementById("log");
    if (log === null) throw new Error("no log");
    const names = [...new Set([...log.querySelectorAll("*")].map((it) => it.localName))].sort();
    const links = [...log.querySelectorAll("a")].map((it) => it.href);
    const handlers = [...log.querySelectorAll("*")].filter((it) => it.getAttributeNames().some((name) => name.startsWith("on")));
    return { names, links, handlers: handlers.length, hurt: Reflect.get(window, "hurt"), text: log.textContent };
  });
  equal([found.hurt ?? null, found.handlers], [null, 0]);
  const made = "blockquote button code details div h3 p pre span strong summary table tbody td th thead tr a".split(" ").sort();
  equal(found.names, made);
  expect(found.links.every((it) => it.startsWith("https://example.com/")), found.links);
  // Twice in the question, in the reasoning and in the answer it is text.
  equal(found.text?.split("<script>window.hurt = 1</script>").length, 5);
  expect(await page.isVisible("#input"), "the page is whole");
  const policy = (await (await fetch(url)).headers.get("content-security-policy")) ?? "";
  expect(/script-src 'sha256-[^']+';/.test(policy) && policy.startsWith("default-src 'none';"), policy);
  const ran = await page.evaluate(() => {
    document.body.appendChild(document.createElement("script")).textContent = "window.hurt = 10";
    return Reflect.get(window, "hurt") ?? null;
  });
  equal(ran, null);
}, { expected: /Content Security Policy/ });

const MARKUP = `# Title

Some **bold**, *soft* and \`code\`, and [a link](https://example.com/).

1. one
2. two
   - inner

| name | size |
|:---|---:|
| a \\| b | 12 |

> quoted

\`\`\`python
def f(x):
    return x < 1 and x[::-1]
\`\`\`

Done.`;

onPage("text has its markup, and code is copied", async (page) => {
  await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
  await answered(page, `[[say ${MARKUP}]]`);
  const answer = page.locator(".assistant .text");
  equal(await answer.locator("h3, strong, em, p > code, blockquote").allInnerTexts(), ["Title", "bold", "soft", "code", "quoted"]);
  equal(await answer.locator("ol > li").count(), 2);
  equal(await answer.locator("th, td").allInnerTexts(), ["name", "size", "a | b", "12"]);
  equal(await answer.locator("td").last().evaluate((it) => getComputedStyle(it).textAlign), "right");
  equal(await answer.locator("pre").innerText(), "def f(x):\n    return x < 1 and x[::-1]");
  await answer.locator(".block button").click();
  await becomes(() => page.evaluate(() => navigator.clipboard.readText()), "def f(x):\n    return x < 1 and x[::-1]");
  await page.click(".about >> text=Copy");
  await becomes(() => page.evaluate(() => navigator.clipboard.readText()), MARKUP);
});

onPage("what fails is said and tried again", async (page) => {
  await page.route("**/v1/chat/completions", (route) => route.abort());
  await ask(page, "[[say Yes.]]");
  await page.waitForSelector("#log .failed >> text=The server cannot be reached.");
  await page.unroute("**/v1/chat/completions");
  await page.click("#log .failed >> text=Try again");
  await page.waitForSelector(".assistant >> text=Yes.");
  equal(await page.locator("#log .failed").count(), 0);
  equal(await page.locator(".user").count(), 1);
  // The server's own words.
  await ask(page, "long ".repeat(2_000));
  await page.waitForSelector("#log .failed >> text=/8192/");
  // A question that failed is there after a reload, and can be asked again.
  await page.reload();
  await page.waitForSelector("#log .failed >> text=No answer came.");
  await answered(page, "[[say Shorter.]]");
  equal(await page.locator(".user").count(), 2);
}, { expected: /Failed to load resource/ });

onPage("conversations survive a reload until a new one begins", async (page) => {
  await answered(page, "[[say One.]]");
  await answered(page, "[[say Two.]]");
  await page.reload();
  equal(await page.locator(".assistant .text").allInnerTexts(), ["One.", "Two."]);
  const other = await page.context().newPage();
  await other.goto(url);
  equal(await other.locator(".assistant .text").allInnerTexts(), ["One.", "Two."]);
  const { messages } = await sent(other);
  equal((messages as { content: string }[]).map((it) => it.content), ["[[say One.]]", "One.", "[[say Two.]]", "Two.", "[[say Yes.]]"]);
  await other.click("#new");
  await other.reload();
  equal(await other.locator(".turn").count(), 0);
  expect(await other.isVisible("text=What shall we talk about?"), "it begins anew");
});

test("a server with keys wants one for the page, and a browser asks for it", async () => {
  // As a browser asks that opens it: `fetch` says that a script does.
  const bare = await new Promise<IncomingMessage>((resolve) => get(locked, resolve));
  expect(bare.statusCode === 401 && (bare.headers["www-authenticate"] ?? "").includes("Basic"), bare.headers);
  bare.destroy();
  const { page, close } = await visit(locked, { httpCredentials: { username: "page", password: key } });
  await answered(page, "[[say Come in.]]");
  equal(await text(page, ".assistant .text"), "Come in.");
  await close();
});

test("a page without a key asks for one, and keeps it", async () => {
  // The page as it is in a tab that was open before the server had keys.
  const served = await fetch(locked, { headers: { authorization: `Bearer ${key}` } });
  const headers = Object.fromEntries(served.headers);
  const html = await served.text();
  const before = async (page: Page) => {
    await page.route(locked, (route) => route.fulfill({ body: html, headers }));
  };
  const { page, close } = await visit(locked, { before, expected: /status of 401/ });
  await page.waitForSelector("#key-ask[open]");
  expect(!(await page.isVisible("#key-wrong")), "there is none yet");
  await page.click("#key-ask >> text=Cancel");
  await ask(page, "[[say Come in.]]");
  await page.waitForSelector("#key-ask[open]");
  await page.fill("#key-given", "a wrong one: ключ");
  await page.keyboard.press("Enter");
  await page.waitForSelector("#key-wrong", { state: "visible" });
  await page.fill("#key-given", key);
  await page.click("#key-ask >> text=Continue");
  await page.waitForSelector(".assistant >> text=Come in.");
  equal(await page.locator("dialog[open]").count(), 0);
  await becomes(() => page.innerText("#model"), "talk");
  await page.reload();
  await answered(page, "[[say Again.]]");
  await close();
});

await main();
await browser.close();
