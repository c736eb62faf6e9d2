"""The official `openai` client's responses, against the scripted model with Hermes calls and `<think>`.

    python openai_responses_test.py http://127.0.0.1:8888/v1

`[[say TEXT]]` makes the model say TEXT, markup and all. Output and exit code are those of openai_test.py.
"""

import time
from typing import Literal

import openai
from openai import OpenAI
from openai.types.responses import Response
from pydantic import BaseModel
from harness import expect, main, test

TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather somewhere",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "%s"}}\n</tool_call>'
ANSWER = "<think>\nWell.\n</think>\n\nI look.\n" + CALL % "Paris"


def asking(text, **fields):
    return {"model": "talk", "input": f"[[say {text}]]", "tools": [TOOL], **fields}


def check(response):
    reasoning, message, call = response.output
    expect(reasoning.type == "reasoning" and reasoning.content[0].text == "Well.", response)
    expect(message.type == "message" and response.output_text == "I look.\n", response)
    expect(call.type == "function_call" and call.arguments == '{"city": "Paris"}' and call.call_id, response)
    expect(response.status == "completed" and response.usage.output_tokens_details.reasoning_tokens > 3, response)


@test
def responses_are_typed(client):
    raw = client.responses.with_raw_response.create(**asking(ANSWER))
    Response.model_validate_json(raw.text if isinstance(raw.text, str) else raw.text())
    check(raw.parse())


@test
def streams_accumulate(client):
    with client.responses.stream(**asking(ANSWER)) as stream:
        events = list(stream)
        check(stream.get_final_response())
    expect([event.sequence_number for event in events] == list(range(len(events))), "numbered")
    kinds = {event.type for event in events}
    for kind in ["output_item.added", "content_part.added", "output_text.delta", "output_text.done", "reasoning_text.delta",
                 "function_call_arguments.delta", "function_call_arguments.done", "output_item.done", "completed"]:
        expect("response." + kind in kinds, kinds)


class Order(BaseModel):
    dish: Literal["soup", "stew"]
    plates: Literal[1, 2, 3]


@test
def answers_are_parsed_into_the_client_s_types(client):
    # What it says behind the object has no place there, nor has another answer.
    for said, order in [('{"dish": "soup", "plates": 3} and more', Order(dish="soup", plates=3)), ("no", None)]:
        asked = asking(said, text_format=Order, tools=[])
        parsed = client.responses.parse(**asked).output_parsed
        expect(isinstance(parsed, Order) and order in (None, parsed), parsed)
        with client.responses.stream(**asked) as stream:
            for _ in stream:
                pass
            expect(stream.get_final_response().output_parsed == parsed, parsed)


@test
def required_calls_are_parsed(client):
    tool = openai.pydantic_function_tool(Order)["function"]
    asked = asking("Hello", tools=[{"type": "function", **tool}], tool_choice="required")
    [call] = client.responses.parse(**asked).output
    expect(call.type == "function_call" and Order.model_validate(call.parsed_arguments), call)


@test
def conversations_go_on(client):
    first = client.responses.create(**asking(ANSWER))
    result = {"type": "function_call_output", "call_id": first.output[2].call_id, "output": "[[say Rain.]]"}
    second = client.responses.create(model="talk", input=[result], previous_response_id=first.id, tools=[TOOL])
    expect(second.output_text == "Rain." and second.previous_response_id == first.id, second)
    # The same without anything kept.
    items = [{"role": "user", "content": f"[[say {ANSWER}]]"}, *first.output, result]
    anew = client.responses.create(model="talk", input=items, tools=[TOOL], store=False)
    expect(anew.output_text == "Rain." and anew.usage.input_tokens == second.usage.input_tokens, anew)


@test
def kept_responses_are_had_back(client):
    made = client.responses.create(**asking("Hi"))
    expect(client.responses.retrieve(made.id) == made, made)
    [item] = list(client.responses.input_items.list(made.id))
    expect(item.role == "user" and item.content[0].text == "[[say Hi]]", item)
    client.responses.delete(made.id)
    for gone in (lambda: client.responses.retrieve(made.id), lambda: client.responses.cancel(made.id)):
        try:
            gone()
        except openai.NotFoundError as found:
            expect(found.code == "response_not_found", found)
        else:
            raise AssertionError("it is still there")


@test
def responses_in_the_background_are_had_by_their_ids(client):
    begun = client.responses.create(**asking("Hi", background=True))
    expect(begun.status in ("in_progress", "completed") and begun.background, begun)
    end = time.monotonic() + 30
    while (found := client.responses.retrieve(begun.id)).status == "in_progress" and time.monotonic() < end:
        time.sleep(0.02)
    expect(found.status == "completed" and found.output_text == "Hi", found)
    endless = client.responses.create(model="talk", input="[[forever]]", background=True)
    expect(client.responses.cancel(endless.id).status == "cancelled", endless)


@test
def log_probabilities_are_typed(client):
    asked = asking("Hi", top_logprobs=2, include=["message.output_text.logprobs"])
    with client.responses.stream(**asked) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_response()
    for response in (client.responses.create(**asked), streamed):
        tokens = response.output[0].content[0].logprobs
        expect([token.token for token in tokens] == ["H", "i"], tokens)
        expect(all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in tokens), tokens)


@test
def errors_name_the_field(client):
    for param, fields in [
        ("background", {"background": True, "store": False}),
        ("max_output_tokens", {"max_output_tokens": 10**9}),
        ("previous_response_id", {"previous_response_id": "resp_x"}),
    ]:
        try:
            client.responses.create(**asking("x", **fields))
        except openai.BadRequestError as found:
            expect(found.param == param, found)
        else:
            raise AssertionError(f"{fields} was taken")


def arguments_for(url):
    return (OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60),)


if __name__ == "__main__":
    main(arguments_for)
