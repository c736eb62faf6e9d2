/**
 * The official `openai` package for JavaScript, against the scripted model with Hermes calls and `<think>`.
 *
 *     node openai_test.ts http://127.0.0.1:8888/v1
 *
 * `[[say TEXT]]` makes the model say TEXT, markup and all; `[[forever]]` goes on until it is stopped.
 *
 * Planted on the wire by a proxy, and caught: another finish reason, reasoning under another name, one index or one id for all calls, codes,
 * parameters and statuses of errors, a token too many in the usage, names of events and types of parts in responses; a client's hanging up not
 * passed on (abort).
 */

import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import type { ChatCompletionMessageParam, ChatCompletionMessageToolCall, ChatCompletionTool } from "openai/resources/chat/completions";
import type { Response } from "openai/resources/responses/responses";
import { z } from "zod";
import { equal, expect, main, refused, test, url } from "./harness.ts";

const client = new OpenAI({ baseURL: url, apiKey: "none", maxRetries: 0, timeout: 60_000 });

const WEATHER: ChatCompletionTool = {
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather somewhere",
    parameters: { type: "object", properties: { city: { type: "string" }, days: { type: "integer" } } },
  },
};
const Arguments = z.strictObject({ city: z.string(), days: z.number().int() });
const call = (city: string) =>
  `<tool_call>\n{"name": "get_weather", "arguments": {"city": "${city}", "days": 2}}\n</tool_call>`;
const ANSWER = `<think>\nWell.\n</think>\n\nI look.\n${call("Paris")}\n${call("Zürich")}`;
const PLATES = z.strictObject({ dish: z.enum(["soup", "stew"]), plates: z.number().int().min(1).max(12) });

function said(text: string): ChatCompletionMessageParam[] {
  return [{ role: "user", content: `[[say ${text}]]` }];
}
const asking = (text: string) => ({ model: "talk", messages: said(text), tools: [WEATHER] });

function checkCalls(calls: ChatCompletionMessageToolCall[] | undefined): void {
  const functions = (calls ?? []).map((it) => (it.type === "function" ? it.function : undefined));
  equal(functions.map((it) => it?.name), ["get_weather", "get_weather"]);
  const given = functions.map((it) => Arguments.parse(JSON.parse(it?.arguments ?? "")));
  equal(given, [{ city: "Paris", days: 2 }, { city: "Zürich", days: 2 }]);
  expect(new Set((calls ?? []).map((it) => it.id)).size === 2, calls);
}

/** A field of vLLM's and ours that the client's types do not have. */
function reasoning(part: object): string | undefined {
  const found = Reflect.get(part, "reasoning_content");
  expect(found === undefined || typeof found === "string", part);
  return found;
}

test("models are listed", async () => {
  const models = [];
  for await (const model of client.models.list()) models.push(model);
  equal(models.map((it) => it.id), ["talk"]);
  expect((await client.models.retrieve("talk")).object === "model", models);
});

test("chats are answered, whole and streamed", async () => {
  const asked = { model: "talk", messages: said("Hello, wörld! 🌊") };
  const whole = await client.chat.completions.create(asked);
  equal(whole.choices[0]?.message.content, "Hello, wörld! 🌊");
  expect(whole.usage?.completion_tokens === 20 && whole.choices[0]?.finish_reason === "stop", whole);
  let text = "";
  let usage = 0;
  const stream = await client.chat.completions.create({ ...asked, stream: true, stream_options: { include_usage: true } });
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage += chunk.usage?.completion_tokens ?? 0;
  }
  equal([text, usage], ["Hello, wörld! 🌊", 20]);
});

test("completions are answered", async () => {
  const answer = await client.completions.create({ model: "talk", prompt: "[[say Once]]", max_tokens: 3 });
  equal([answer.choices[0]?.text, answer.choices[0]?.finish_reason], ["Onc", "length"]);
});

test("calls and reasoning are apart", async () => {
  const answer = await client.chat.completions.create(asking(ANSWER));
  const [choice] = answer.choices;
  expect(choice !== undefined && choice.finish_reason === "tool_calls" && choice.message.content === "I look.\n", answer);
  equal(reasoning(choice.message), "Well.");
  expect((answer.usage?.completion_tokens_details?.reasoning_tokens ?? 0) > 5, answer.usage);
  checkCalls(choice.message.tool_calls);
});

test("the stream helper accumulates", async () => {
  const stream = client.chat.completions.stream(asking(ANSWER));
  let pieces = 0;
  let text = "";
  let thought = "";
  stream.on("content", (delta) => (text += delta));
  stream.on("chunk", (chunk) => {
    const delta = chunk.choices[0]?.delta ?? {};
    thought += reasoning(delta) ?? "";
    pieces += "tool_calls" in delta ? 1 : 0;
  });
  const final = await stream.finalChatCompletion();
  checkCalls(final.choices[0]?.message.tool_calls);
  equal([text, thought, final.choices[0]?.finish_reason], ["I look.\n", "Well.", "tool_calls"]);
  expect(pieces > 20, `arguments come as they form: ${pieces}`);
});

test("runTools goes the round", async () => {
  const seen: unknown[] = [];
  const runner = client.chat.completions.runTools({
    model: "talk",
    messages: said(call("Paris")),
    tools: [
      {
        type: "function",
        function: {
          name: "get_weather",
          description: "The weather somewhere",
          parameters: { type: "object", properties: { city: { type: "string" }, days: { type: "integer" } } },
          parse: (given: string) => Arguments.parse(JSON.parse(given)),
          function: (given: z.infer<typeof Arguments>) => {
            seen.push(given);
            return `[[say ${given.city}: rain]]`;
          },
        },
      },
    ],
  });
  equal(await runner.finalContent(), "Paris: rain");
  equal(seen, [{ city: "Paris", days: 2 }]);
  equal(runner.messages.map((it) => it.role), ["user", "assistant", "tool", "assistant"]);
});

test("parse gives what the schema describes", async () => {
  const response_format = zodResponseFormat(PLATES, "order");
  const asked = { model: "talk", messages: said('{"dish":"stew","plates":7} and more'), response_format };
  const parsed = await client.chat.completions.parse(asked);
  equal(parsed.choices[0]?.message.parsed, { dish: "stew", plates: 7 });
  const stream = client.chat.completions.stream(asked);
  equal((await stream.finalChatCompletion()).choices[0]?.message.parsed, { dish: "stew", plates: 7 });
});

const TOOL = {
  type: "function",
  name: "get_weather",
  description: "The weather somewhere",
  parameters: { type: "object", properties: { city: { type: "string" }, days: { type: "integer" } } },
  strict: false,
} as const;

function checkResponse(response: Response): string {
  const [thought, message, first, second] = response.output;
  expect(thought?.type === "reasoning" && thought.content?.[0]?.text === "Well.", response);
  expect(message?.type === "message" && response.output_text === "I look.\n", response);
  expect(first?.type === "function_call" && second?.type === "function_call", response);
  equal(Arguments.parse(JSON.parse(second.arguments)), { city: "Zürich", days: 2 });
  expect(response.status === "completed" && (response.usage?.output_tokens ?? 0) > 0, response);
  return first.call_id;
}

test("responses are made, streamed and gone on from", async () => {
  const asked = { model: "talk", input: `[[say ${ANSWER}]]`, tools: [TOOL] };
  const first = await client.responses.create(asked);
  const call_id = checkResponse(first);
  const stream = client.responses.stream(asked);
  let deltas = 0;
  stream.on("response.function_call_arguments.delta", () => (deltas += 1));
  checkResponse(await stream.finalResponse());
  expect(deltas > 20, `arguments come as they form: ${deltas}`);
  const next = await client.responses.create({
    model: "talk",
    previous_response_id: first.id,
    input: [{ type: "function_call_output", call_id, output: "[[say Rain.]]" }],
    tools: [TOOL],
  });
  equal(next.output_text, "Rain.");
  equal((await client.responses.retrieve(next.id)).output_text, "Rain.");
  await client.responses.delete(next.id);
  const gone = await refused(OpenAI.NotFoundError, client.responses.retrieve(next.id));
  equal(gone.code, "response_not_found");
});

test("efforts switch reasoning", async () => {
  const ask = async (reasoning_effort: "high" | "none", text: string) => {
    const answer = await client.chat.completions.create({ ...asking(text), reasoning_effort });
    const message = answer.choices[0]?.message;
    expect(message !== undefined, answer);
    return [message.content, reasoning(message)];
  };
  equal(await ask("high", "So.\n</think>\n\nYes."), ["Yes.", "So."]);
  equal(await ask("none", "Yes."), ["Yes.", undefined]);
});

test("abort ends the answer", async () => {
  const running = async () => {
    const metrics = await (await fetch(new URL("/metrics", url))).text();
    return Number(/^vllm:num_requests_running\{[^}]*\} (\S+)/m.exec(metrics)?.[1]);
  };
  const abort = new AbortController();
  const messages: ChatCompletionMessageParam[] = [{ role: "user", content: "[[forever]]" }];
  const stream = await client.chat.completions.create({ model: "talk", messages, stream: true }, { signal: abort.signal });
  let chunks = 0;
  for await (const _ of stream) {
    chunks += 1;
    if (chunks === 5) {
      expect((await running()) === 1, "it runs");
      abort.abort();
    }
  }
  expect(chunks >= 5 && chunks < 1000, chunks);
  const deadline = Date.now() + 5_000;
  while ((await running()) > 0) expect(Date.now() < deadline, "it goes on without its client");
  // Before the answer begins, too: the client's own error.
  const early = client.chat.completions.create({ model: "talk", messages: said("x") }, { signal: AbortSignal.abort() });
  await refused(OpenAI.APIUserAbortError, early);
});

test("errors are the client's own", async () => {
  const create = (fields: object) =>
    client.chat.completions.create({ model: "talk", messages: said("x"), ...fields } as OpenAI.ChatCompletionCreateParams);
  for (const [param, fields] of [
    ["max_tokens", { max_tokens: -1 }],
    ["temperature", { temperature: 2.5, stream: true }],
    ["messages[0].role", { messages: [{ role: "king", content: "x" }] }],
    ["temprature", { temprature: 1 }],
    ["reasoning_effort", { reasoning_effort: "huge" }],
  ] as const) {
    const error = await refused(OpenAI.BadRequestError, create(fields));
    expect(error.param === param && error.status === 400 && error.type === "invalid_request_error", error);
    expect(error.requestID, error);
  }
  const gone = await refused(OpenAI.NotFoundError, create({ model: "gpt-4" }));
  equal([gone.param, gone.code], ["model", "model_not_found"]);
});

await main();
