"""The official `openai` client against a running server: typed answers, streaming and not, usage, errors.

    python openai_test.py http://127.0.0.1:8888/v1

Prints a line for every test and, last, "N passed, N failed"; exits 1 if any failed. It asks for nothing that a
particular model would say, so it runs against any server.
"""

import asyncio
from typing import Literal

import openai
from openai import AsyncOpenAI, OpenAI
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel, Field
from harness import expect, main, test

QUESTION = [{"role": "user", "content": "Write one sentence about the sea."}]


def check_usage(usage, most):
    expect(usage is not None, "no usage")
    expect(usage.prompt_tokens > 0, f"{usage}")
    expect(0 < usage.completion_tokens <= most, f"{usage}")
    expect(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, f"{usage}")


def refused(error, status, param, call):
    """Checks that a call raises the client's class of error for `status`, with the envelope's fields."""
    try:
        call()
    except error as found:
        expect(found.status_code == status, f"status {found.status_code}, expected {status}")
        expect(found.param == param, f"param {found.param!r}, expected {param!r}: {found.message}")
        expect(found.type and found.code, f"no type or code: {found.body}")
        return found.body["message"]
    raise AssertionError(f"no {error.__name__}")


@test
def models_are_listed(client, model):
    listed = client.models.list().data
    expect([entry.id for entry in listed] == [model], f"{listed}")
    one = client.models.retrieve(model)
    expect(isinstance(one, Model) and one.object == "model" and one.created > 0, f"{one}")


@test
def chat_is_typed(client, model):
    answer = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=12, temperature=0)
    expect(isinstance(answer, ChatCompletion) and answer.object == "chat.completion", f"{answer}")
    expect(answer.model == model and answer.id and answer.created > 0, f"{answer}")
    [choice] = answer.choices
    expect(choice.message.role == "assistant", f"{choice}")
    expect(isinstance(choice.message.content, str) and choice.message.content, f"{choice}")
    expect(choice.finish_reason in ("stop", "length"), f"{choice}")
    check_usage(answer.usage, 12)


@test
def chat_validates_against_the_client_s_types(client, model):
    raw = client.chat.completions.with_raw_response.create(model=model, messages=QUESTION, max_tokens=4)
    # The client builds answers without checking them; this checks.
    ChatCompletion.model_validate_json(raw.text if isinstance(raw.text, str) else raw.text())
    raw = client.completions.with_raw_response.create(model=model, prompt="The sea", max_tokens=4)
    Completion.model_validate_json(raw.text if isinstance(raw.text, str) else raw.text())


@test
def chat_streams(client, model):
    asked = dict(model=model, messages=QUESTION, max_tokens=12, temperature=0)
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True))
    for chunk in chunks:
        expect(isinstance(chunk, ChatCompletionChunk), f"{chunk}")
        ChatCompletionChunk.model_validate(chunk.model_dump())
        expect(chunk.usage is None and len(chunk.choices) == 1, f"{chunk}")
    expect(len({chunk.id for chunk in chunks}) == 1, "one id for all chunks")
    expect(chunks[0].choices[0].delta.role == "assistant", f"{chunks[0]}")
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    expect(text == whole.choices[0].message.content, f"{text!r} is not {whole.choices[0].message.content!r}")
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    expect(reasons[:-1] == [None] * (len(chunks) - 1), f"{reasons}")
    expect(reasons[-1] == whole.choices[0].finish_reason, f"{reasons}")


@test
def streams_end_with_usage_on_request(client, model):
    asked = dict(model=model, messages=QUESTION, max_tokens=5, temperature=0, stream=True)
    chunks = list(client.chat.completions.create(**asked, stream_options={"include_usage": True}))
    expect(chunks[-1].choices == [], f"{chunks[-1]}")
    check_usage(chunks[-1].usage, 5)
    expect(all(chunk.usage is None for chunk in chunks[:-1]), "usage before the end")


@test
def stream_helper_accumulates(client, model):
    with client.chat.completions.stream(model=model, messages=QUESTION, max_tokens=8) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        # Not `get_final_completion`: it raises for every answer that ends at its length.
        final = stream.current_completion_snapshot
    expect(deltas and final.choices[0].message.content == "".join(deltas), f"{final}")


@test
def completions_are_typed(client, model):
    asked = dict(model=model, prompt="The sea is", max_tokens=6, temperature=0)
    answer = client.completions.create(**asked)
    expect(isinstance(answer, Completion) and answer.object == "text_completion", f"{answer}")
    expect(isinstance(answer.choices[0].text, str) and answer.choices[0].text, f"{answer}")
    check_usage(answer.usage, 6)
    chunks = list(client.completions.create(**asked, stream=True))
    expect("".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text, f"{chunks}")
    expect(chunks[-1].choices[0].finish_reason == answer.choices[0].finish_reason, f"{chunks[-1]}")


@test
def prompts_are_echoed_with_their_log_probabilities(client, model):
    asked = dict(model=model, prompt="The sea is", echo=True, logprobs=2, temperature=0)
    answer = client.completions.create(**asked, max_tokens=0)
    [choice] = answer.choices
    expect(choice.text == "The sea is" and choice.finish_reason == "length", f"{choice}")
    logprobs = choice.logprobs
    expect("".join(logprobs.tokens) == choice.text, f"{logprobs}")
    expect(logprobs.token_logprobs[0] is None and logprobs.top_logprobs[0] is None, f"{logprobs}")
    expect(all(value <= 0 for value in logprobs.token_logprobs[1:]), f"{logprobs}")
    expect(all(len(top) == 2 for top in logprobs.top_logprobs[1:]), f"{logprobs}")
    longer = client.completions.create(**asked, max_tokens=1).choices[0].logprobs
    expect(longer.tokens[:-1] == logprobs.tokens and longer.text_offset[-1] == len(choice.text), f"{longer}")
    [first, *rest] = client.completions.create(**asked, max_tokens=1, stream=True)
    expect(first.choices[0].text == choice.text and first.choices[0].logprobs == logprobs and rest, f"{first}")


def scores(answer, context_lengths):
    """What an evaluation harness makes of echoed prompts: the sum of what stands behind the context, and whether it was likeliest."""
    found = []
    for choice, length in zip(sorted(answer.choices, key=lambda choice: choice.index), context_lengths, strict=True):
        values = choice.logprobs.token_logprobs[length:-1]
        tops = choice.logprobs.top_logprobs[length:-1]
        found.append((sum(values), all(value == max(top.values()) for value, top in zip(values, tops, strict=True))))
    return found


@test
def several_prompts_are_answered_as_each_is_alone(client, model):
    prompts = ["The sea is", "The sky is blue", "One, two, three", "a"]
    asked = dict(model=model, max_tokens=5, temperature=0, seed=1234)
    alone = [client.completions.create(**asked, prompt=prompt) for prompt in prompts]
    together = client.completions.create(**asked, prompt=prompts)
    expect([choice.index for choice in together.choices] == [0, 1, 2, 3], f"{together}")
    texts = [choice.text for choice in together.choices]
    expect(texts == [answer.choices[0].text for answer in alone], f"{texts} is not {alone}")
    expect(together.usage.prompt_tokens == sum(answer.usage.prompt_tokens for answer in alone), f"{together}")
    expect(together.usage.completion_tokens == sum(answer.usage.completion_tokens for answer in alone), f"{together}")
    streamed = [""] * 4
    for chunk in client.completions.create(**asked, prompt=prompts, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    expect(streamed == texts, f"{streamed} is not {texts}")
    twice = client.completions.create(**asked, prompt=prompts, n=2)
    expect([choice.text for choice in twice.choices] == [text for text in texts for _ in range(2)], f"{twice}")


@test
def several_prompts_are_scored_as_each_is_alone(client, model):
    prompts = [[72, 105, 33, 40, 50], [72, 105, 34], [90, 91, 92, 93], [35, 36]]
    asked = dict(model=model, max_tokens=1, temperature=0, logprobs=1, seed=1234, echo=True)
    alone = [scores(client.completions.create(**asked, prompt=prompt), [1])[0] for prompt in prompts]
    together = scores(client.completions.create(**asked, prompt=prompts), [1] * 4)
    for (value, likeliest), (expected, was) in zip(together, alone, strict=True):
        expect(abs(value - expected) < 0.05 and likeliest == was, f"{together} is not {alone}")


@test
def lengths_are_kept(client, model):
    answer = client.chat.completions.create(model=model, messages=QUESTION, max_completion_tokens=1, temperature=0)
    expect(answer.usage.completion_tokens == 1 and answer.choices[0].finish_reason == "length", f"{answer}")


@test
def seeds_repeat(client, model):
    asked = dict(model=model, messages=QUESTION, max_tokens=10, temperature=1.5, seed=7, top_p=0.9)
    texts = {client.chat.completions.create(**asked).choices[0].message.content for _ in range(3)}
    expect(len(texts) == 1, f"{texts}")


@test
def stop_strings_are_left_out(client, model):
    asked = dict(model=model, messages=QUESTION, max_tokens=12, temperature=0)
    text = client.chat.completions.create(**asked).choices[0].message.content
    stop = text[len(text) // 2]
    answer = client.chat.completions.create(**asked, stop=[stop])
    expect(answer.choices[0].message.content == text[: text.index(stop)], f"{answer}")
    expect(answer.choices[0].finish_reason == "stop", f"{answer}")


@test
def logprobs_are_typed(client, model):
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, max_tokens=4, temperature=0, logprobs=True, top_logprobs=3
    )
    tokens = answer.choices[0].logprobs.content
    expect(tokens and all(token.logprob <= 0 and len(token.top_logprobs) == 3 for token in tokens), f"{tokens}")
    text = b"".join(bytes(token.bytes) for token in tokens).decode("utf-8", "replace")
    expect(text.startswith(answer.choices[0].message.content[:1]), f"{text!r}")


@test
def parts_and_system_are_taken(client, model):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": " there"}]},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "And now?"},
    ]
    answer = client.chat.completions.create(model=model, messages=messages, max_tokens=4)
    check_usage(answer.usage, 4)


@test
def several_choices_are_whole(client, model):
    sampling = {"model": model, "messages": QUESTION, "n": 3, "max_tokens": 12, "temperature": 1.0, "seed": 5}
    whole = client.chat.completions.create(**sampling)
    expect([choice.index for choice in whole.choices] == [0, 1, 2], whole)
    expect(len({choice.message.content for choice in whole.choices}) == 3, whole)
    expect(3 < whole.usage.completion_tokens <= 3 * 12, whole)
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(**sampling, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    expect(streamed == [choice.message.content for choice in whole.choices], streamed)


@test
def errors_are_the_client_s_own(client, model):
    def create(**fields):
        return lambda: client.chat.completions.create(**{"model": model, "messages": QUESTION, **fields})

    bad = openai.BadRequestError
    refused(bad, 400, "max_tokens", create(max_tokens=-1))
    refused(bad, 400, "max_tokens", create(max_tokens=10**12))
    refused(bad, 400, "temperature", create(temperature=2.5))
    refused(bad, 400, "temperature", create(temperature="hot"))
    refused(bad, 400, "messages", create(messages=[]))
    refused(bad, 400, "messages[0].role", create(messages=[{"role": "king", "content": "x"}]))
    refused(bad, 400, "n", create(n=129))
    refused(bad, 400, "tools", create(tools=[{"type": "function", "function": {"name": "f"}}]))
    refused(bad, 400, "temprature", create(extra_body={"temprature": 1}))
    refused(bad, 400, "max_tokens", create(max_tokens=-1, stream=True))
    refused(openai.NotFoundError, 404, "model", create(model="gpt-4"))
    refused(openai.NotFoundError, 404, "model", lambda: client.models.retrieve("gpt-4"))
    # And it still answers.
    create(max_tokens=1)()


@test
def prompts_beyond_the_context_name_both_lengths(client, model):
    context = client.models.retrieve(model).max_model_len
    tokens = [1] * (context + 5)
    message = refused(
        openai.BadRequestError, 400, "prompt",
        lambda: client.completions.create(model=model, prompt=tokens, max_tokens=1),
    )
    expect(str(context) in message and str(context + 5) in message, message)


@test
def a_prompt_that_cannot_be_answered_is_named(client, model):
    context = client.models.retrieve(model).max_model_len
    for prompts, param in [(["a", ""], "prompt[1]"), ([[1], [1] * context], "prompt[1]"), ([[1], ["a"]], "prompt[1][0]")]:
        refused(openai.BadRequestError, 400, param, lambda: client.completions.create(model=model, prompt=prompts))
    refused(openai.BadRequestError, 400, "n", lambda: client.completions.create(model=model, prompt=["a"] * 65, n=2))


@test
def closed_streams_leave_the_server_serving(client, model):
    for _ in range(3):
        stream = client.chat.completions.create(model=model, messages=QUESTION, stream=True)
        next(iter(stream))
        stream.close()
    client.chat.completions.create(model=model, messages=QUESTION, max_tokens=1)


class Order(BaseModel):
    dish: Literal["soup", "salad", "stew"]
    plates: int = Field(ge=1, le=12)
    hot: bool
    table: Literal["window", "door"] | None


@test
def answers_are_parsed_into_the_client_s_types(client, model):
    asked = dict(model=model, messages=[{"role": "user", "content": "Order something."}], max_tokens=200)
    parsed = client.chat.completions.parse(**asked, response_format=Order, temperature=0)
    order = parsed.choices[0].message.parsed
    expect(isinstance(order, Order) and 1 <= order.plates <= 12, f"{parsed}")
    with client.chat.completions.stream(**asked, response_format=Order, temperature=1, seed=3) as stream:
        last = stream.get_final_completion()
    expect(isinstance(last.choices[0].message.parsed, Order), f"{last}")
    several = client.chat.completions.parse(**asked, response_format=Order, n=3, temperature=1)
    expect(all(isinstance(choice.message.parsed, Order) for choice in several.choices), f"{several}")
    chosen = client.chat.completions.create(**asked, extra_body={"structured_outputs": {"choice": ["soup", "stew"]}})
    expect(chosen.choices[0].message.content in ("soup", "stew"), f"{chosen}")
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    format = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
    path = "response_format.json_schema.schema.properties.a.uniqueItems"
    message = refused(openai.BadRequestError, 400, path, lambda: client.chat.completions.create(**asked, response_format=format))
    expect("not supported" in message, message)


@test
def many_at_once(client, model):
    asked = dict(model=model, messages=QUESTION, max_tokens=8, temperature=0)
    alone = client.chat.completions.create(**asked).choices[0].message.content

    async def ask_all():
        async with AsyncOpenAI(base_url=client.base_url, api_key="none", max_retries=0) as many:
            return await asyncio.gather(*(many.chat.completions.create(**asked) for _ in range(8)))

    answers = asyncio.run(ask_all())
    expect(len(answers) == 8, "eight answers")
    for answer in answers:
        check_usage(answer.usage, 8)
        expect(answer.choices[0].message.content == alone, f"{answer} is not {alone!r}")


def arguments_for(url):
    client = OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120)
    return client, client.models.list().data[0].id


if __name__ == "__main__":
    main(arguments_for)
