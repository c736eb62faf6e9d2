/**
 * `@ai-sdk/openai-compatible` with `ai`, against the scripted model with Hermes calls and `<think>`.
 *
 *     node ai_sdk_test.ts http://127.0.0.1:8888/v1
 *
 * `[[say TEXT]]` makes the model say TEXT, markup and all; `[[forever]]` goes on until it is stopped.
 *
 * Of what openai_test.ts names, planted the same way, this client sees finish reasons, reasoning and statuses.
 */

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { equal, expect, main, refused, test, url } from "./harness.ts";

const provider = createOpenAICompatible({
  name: "monomorph",
  baseURL: url,
  apiKey: "none",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const model = provider.chatModel("talk");
const once = { model, maxRetries: 0 };

const PLATES = z.strictObject({ dish: z.enum(["soup", "stew"]), plates: z.number().int().min(1).max(12) });
const call = (city: string) => `<tool_call>\n{"name": "get_weather", "arguments": {"city": "${city}"}}\n</tool_call>`;
const said = (text: string) => `[[say ${text}]]`;

/** A tool that keeps what it is asked and makes the model say the weather. */
function weather() {
  const asked: string[] = [];
  const get_weather = tool({
    description: "The weather somewhere",
    inputSchema: z.strictObject({ city: z.string() }),
    execute: async ({ city }) => {
      asked.push(city);
      return said(`${city}: rain`);
    },
  });
  return { asked, tools: { get_weather } };
}

test("texts are generated, with reasoning and usage", async () => {
  const answer = await generateText({ ...once, prompt: said("<think>\nWell.\n</think>\n\nHello, wörld! 🌊") });
  equal([answer.text, answer.reasoningText, answer.finishReason], ["Hello, wörld! 🌊", "Well.", "stop"]);
  expect((answer.usage.inputTokens ?? 0) > 0 && (answer.usage.outputTokens ?? 0) > 20, answer.usage);
});

test("texts are streamed, reasoning apart", async () => {
  const answer = streamText({ ...once, prompt: said("<think>\nWell.\n</think>\n\nOnce upon a time.") });
  const kinds: string[] = [];
  let text = "";
  let thought = "";
  for await (const part of answer.stream) {
    kinds.push(part.type);
    if (part.type === "text-delta") text += part.text;
    if (part.type === "reasoning-delta") thought += part.text;
  }
  equal([text, thought], ["Once upon a time.", "Well."]);
  expect(kinds.indexOf("reasoning-end") < kinds.indexOf("text-start"), kinds);
  expect(kinds.filter((it) => it === "text-delta").length > 5, kinds);
  expect(((await answer.usage).outputTokens ?? 0) > 10, await answer.usage);
});

test("calls go the round, whole", async () => {
  const { asked, tools } = weather();
  const answer = await generateText({ ...once, tools, prompt: said(call("Paris")), stopWhen: stepCountIs(3) });
  equal([answer.text, asked, answer.steps.length], ["Paris: rain", ["Paris"], 2]);
});

test("calls go the round, streamed, two at once", async () => {
  const { asked, tools } = weather();
  const prompt = said(`I look.\n${call("Paris")}\n${call("Zürich")}`);
  const answer = streamText({ ...once, tools, prompt, stopWhen: stepCountIs(3) });
  let deltas = 0;
  for await (const part of answer.stream) deltas += part.type === "tool-input-delta" ? 1 : 0;
  equal([await answer.text, asked], ["Zürich: rain", ["Paris", "Zürich"]]);
  expect(deltas > 10, `arguments come as they form: ${deltas}`);
  expect((await answer.steps)[0]?.finishReason === "tool-calls", await answer.steps);
});

test("objects are what the schema describes", async () => {
  const output = Output.object({ schema: PLATES });
  const prompt = said('{"dish":"stew","plates":7} and more');
  equal((await generateText({ ...once, output, prompt })).output, { dish: "stew", plates: 7 });
  const stream = streamText({ ...once, output, prompt });
  let partial = 0;
  for await (const _ of stream.partialOutputStream) partial += 1;
  equal(await stream.output, { dish: "stew", plates: 7 });
  expect(partial > 1, `objects come as they form: ${partial}`);
});

test("efforts switch reasoning", async () => {
  const ask = async (reasoningEffort: string, text: string) => {
    const answer = await generateText({ ...once, prompt: said(text), providerOptions: { monomorph: { reasoningEffort } } });
    return [answer.text, answer.reasoningText];
  };
  equal(await ask("high", "So.\n</think>\n\nYes."), ["Yes.", "So."]);
  equal(await ask("none", "Yes."), ["Yes.", undefined]);
});

test("abort ends the answer", async () => {
  const abort = new AbortController();
  const answer = streamText({ ...once, prompt: "[[forever]]", abortSignal: abort.signal });
  let ended = false;
  for await (const part of answer.stream) {
    if (part.type === "text-delta") abort.abort();
    ended ||= part.type === "abort";
  }
  expect(ended, "the stream says that it was aborted");
});

test("errors are the client's own", async () => {
  const refusal = async (fields: object) => await refused(APICallError, generateText({ ...once, prompt: "x", ...fields }));
  const hot = await refusal({ temperature: 2.5 });
  expect(hot.statusCode === 400 && hot.message.includes("temperature") && !hot.isRetryable, hot);
  const gone = await refusal({ model: provider.chatModel("gpt-4") });
  expect(gone.statusCode === 404 && gone.message.includes("gpt-4"), gone);
});

await main();
