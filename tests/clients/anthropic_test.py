"""The official `anthropic` client against the scripted model with Hermes calls and `<think>`.

    python anthropic_test.py http://127.0.0.1:8888

`[[say TEXT]]` makes the model say TEXT, markup and all. Output and exit code are those of openai_test.py.
"""

from typing import Literal

import anthropic
from anthropic import Anthropic
from anthropic.types import Message, TextBlock, ThinkingBlock, ToolUseBlock
from pydantic import BaseModel
from harness import expect, main, test

TOOL = {
    "name": "get_weather",
    "description": "The weather somewhere",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "%s"}}\n</tool_call>'
ANSWER = "<think>\nWell.\n</think>\n\nI look.\n" + CALL % "Paris" + "\n" + CALL % "Z\u00fcrich"


def asking(text, **fields):
    fields = {"model": "talk", "max_tokens": 500, "tools": [TOOL], **fields}
    return {"messages": [{"role": "user", "content": f"[[say {text}]]"}], **fields}


def check(message):
    """What the model says as ANSWER."""
    thinking, text, *calls = message.content
    expect(isinstance(thinking, ThinkingBlock) and thinking.thinking == "Well." and thinking.signature, message)
    expect(isinstance(text, TextBlock) and text.text == "I look.\n", message)
    expect(all(isinstance(call, ToolUseBlock) and call.name == "get_weather" for call in calls), message)
    expect([call.input for call in calls] == [{"city": "Paris"}, {"city": "Z\u00fcrich"}], message)
    expect(message.stop_reason == "tool_use" and message.stop_sequence is None, message)
    expect(message.usage.output_tokens > 0, message)


@test
def messages_are_typed(client):
    raw = client.messages.with_raw_response.create(**asking(ANSWER))
    Message.model_validate_json(raw.text if isinstance(raw.text, str) else raw.text())
    message = raw.parse()
    check(message)
    expect(message.id.startswith("msg_") and message.role == "assistant" and message.model == "talk", message)


@test
def streams_accumulate(client):
    whole = client.messages.create(**asking(ANSWER))
    with client.messages.stream(**asking(ANSWER)) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    check(final)
    expect([block.type for block in final.content] == [block.type for block in whole.content], final)
    expect({"text", "thinking", "signature", "input_json"} <= set(kinds), set(kinds))
    with client.messages.stream(**asking("Once upon a time")) as stream:
        expect("".join(stream.text_stream) == "Once upon a time", "the text stream")


@test
def raw_events_are_in_order(client):
    kinds = [event.type for event in client.messages.create(**asking("Hi"), stream=True)]
    expect(kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"], kinds)
    inner = [kind for kind in kinds if kind.startswith("content_block")]
    expect(inner == ["content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"], kinds)


@test
def tools_round_trip(client):
    asked = asking(ANSWER)
    message = client.messages.create(**asked)
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": f"[[say {block.input['city']}: rain]]"}
        for block in message.content
        if block.type == "tool_use"
    ]
    asked["messages"] += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
    answer = client.messages.create(**asked)
    expect([block.text for block in answer.content] == ["Z\u00fcrich: rain"], answer)
    expect(answer.stop_reason == "end_turn", answer)


@test
def thinking_is_switched(client):
    text = "So.\n</think>\n\nYes."
    on = client.messages.create(**asking(text, thinking={"type": "adaptive"}))
    expect([block.type for block in on.content] == ["thinking", "text"], on)
    off = client.messages.create(**asking(text, thinking={"type": "disabled"}))
    expect([block.type for block in off.content] == ["text"], off)


@test
def tokens_are_counted(client):
    asked = asking("Hi", system="Be brief.")
    asked.pop("max_tokens")
    counted = client.messages.count_tokens(**asked).input_tokens
    usage = client.messages.create(**asked, max_tokens=1).usage
    expect(counted == usage.input_tokens + usage.cache_read_input_tokens, (counted, usage))


class Order(BaseModel):
    dish: Literal["soup", "stew"]
    plates: Literal[1, 2, 3]


@test
def answers_are_parsed_into_the_client_s_types(client):
    asked = asking('{"dish": "soup", "plates": 3} and more', tools=[])
    expect(client.messages.parse(**asked, output_format=Order).parsed_output == Order(dish="soup", plates=3), asked)
    thought = asking('So.</think>{"dish": "soup", "plates": 3}', tools=[], thinking={"type": "adaptive"})
    expect(client.messages.parse(**thought, output_format=Order).parsed_output.plates == 3, thought)
    with client.messages.stream(**asked, output_format=Order) as stream:
        expect(stream.get_final_message().parsed_output.dish == "soup", asked)
    # A model that would say something else.
    expect(isinstance(client.messages.parse(**asking("no", tools=[]), output_format=Order).parsed_output, Order), "typed")


@test
def required_calls_are_made_and_valid(client):
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"], "additionalProperties": False}
    tool = {"name": "get_time", "input_schema": schema, "strict": True}
    for choice in [{"type": "any"}, {"type": "tool", "name": "get_time"}]:
        message = client.messages.create(**asking("Hello", tools=[tool], tool_choice=choice))
        expect(message.stop_reason == "tool_use", message)
        expect(all(block.type == "tool_use" and block.input["city"] in ("Paris", "Rome") for block in message.content), message)


@test
def stops_are_told(client):
    stopped = client.messages.create(**asking("one two three", stop_sequences=["two"]))
    expect((stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "two"), stopped)
    expect(stopped.content[0].text == "one ", stopped)
    cut = client.messages.create(**asking("one two three", max_tokens=3))
    expect((cut.stop_reason, cut.content[0].text) == ("max_tokens", "one"), cut)


@test
def errors_are_the_client_s_own(client):
    def refused(error, kind, **fields):
        try:
            client.messages.create(**asking("x", **fields))
        except error as found:
            expect(found.body["type"] == "error" and found.body["error"]["type"] == kind, found.body)
            expect(found.request_id, "the request has an id")
            return found.body["error"]["message"]
        raise AssertionError(f"no {error.__name__} of {fields}")

    bad = anthropic.BadRequestError
    expect("max_tokens" in refused(bad, "invalid_request_error", max_tokens=0), "the field is named")
    expect("temperature" in refused(bad, "invalid_request_error", extra_body={"temperature": 5.0}), "the field is named")
    expect("tool_choice" in refused(bad, "invalid_request_error", tools=[], tool_choice={"type": "any"}), "the field is named")
    refused(anthropic.NotFoundError, "not_found_error", model="claude")


def arguments_for(url):
    return (Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60),)


if __name__ == "__main__":
    main(arguments_for)
