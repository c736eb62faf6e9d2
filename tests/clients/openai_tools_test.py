"""The official `openai` client's tools and reasoning, against the scripted model with Hermes calls and `<think>`.

    python openai_tools_test.py http://127.0.0.1:8888/v1

`[[say TEXT]]` makes the model say TEXT, markup and all. Output and exit code are those of openai_test.py.
"""

import json
from typing import Literal

import openai
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel
from harness import expect, main, test

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather somewhere",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "%s", "days": 2}}\n</tool_call>'
ANSWER = "<think>\nWell.\n</think>\n\nI look.\n" + CALL % "Paris" + "\n" + CALL % "Z\u00fcrich"


def asking(text, **fields):
    return dict(model="talk", messages=[{"role": "user", "content": f"[[say {text}]]"}], tools=[WEATHER], **fields)


def check_calls(calls):
    expect([call.type for call in calls] == ["function"] * 2, calls)
    expect([call.function.name for call in calls] == ["get_weather"] * 2, calls)
    arguments = [json.loads(call.function.arguments) for call in calls]
    expect(arguments == [{"city": "Paris", "days": 2}, {"city": "Z\u00fcrich", "days": 2}], calls)
    expect(len({call.id for call in calls}) == 2, calls)


@test
def calls_are_typed(client):
    raw = client.chat.completions.with_raw_response.create(**asking(ANSWER))
    ChatCompletion.model_validate_json(raw.text if isinstance(raw.text, str) else raw.text())
    answer = raw.parse()
    [choice] = answer.choices
    expect(choice.finish_reason == "tool_calls" and choice.message.content == "I look.\n", choice)
    expect(choice.message.reasoning_content == "Well.", choice)
    expect(answer.usage.completion_tokens_details.reasoning_tokens > 5, answer.usage)
    check_calls(choice.message.tool_calls)
    only = client.chat.completions.create(**asking(CALL % "Paris")).choices[0].message
    expect(only.content is None and len(only.tool_calls) == 1, only)


@test
def calls_round_trip(client):
    asked = asking(ANSWER)
    message = client.chat.completions.create(**asked).choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": f"[[say {json.loads(call.function.arguments)['city']}: rain]]"}
        for call in message.tool_calls
    ]
    asked["messages"] += [message, *results]
    answer = client.chat.completions.create(**asked).choices[0]
    expect(answer.message.content == "Z\u00fcrich: rain" and answer.finish_reason == "stop", answer)
    # As a program that kept only what it needs sends it.
    asked["messages"][1] = message.model_dump(exclude_none=True)
    expect(client.chat.completions.create(**asked).choices[0].message.content == "Z\u00fcrich: rain", asked)


@test
def calls_stream(client):
    chunks = list(client.chat.completions.create(**asking(ANSWER, stream=True)))
    names, arguments, text, thought = {}, {}, "", ""
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk.model_dump())
        delta = chunk.choices[0].delta
        text += delta.content or ""
        thought += getattr(delta, "reasoning_content", None) or ""
        for call in delta.tool_calls or []:
            if call.id:
                names[call.index] = call.function.name
            arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
    expect((text, thought) == ("I look.\n", "Well."), (text, thought))
    expect(names == {0: "get_weather", 1: "get_weather"}, names)
    expect(json.loads(arguments[1]) == {"city": "Z\u00fcrich", "days": 2}, arguments)
    pieces = sum(1 for chunk in chunks if chunk.choices[0].delta.tool_calls)
    expect(pieces > 20, f"arguments come as they form: {pieces}")
    expect(chunks[-1].choices[0].finish_reason == "tool_calls", chunks[-1])


@test
def stream_helper_accumulates(client):
    with client.chat.completions.stream(**asking(ANSWER)) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    check_calls(final.choices[0].message.tool_calls)
    kinds = {event.type for event in events}
    expect({"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds, kinds)


@test
def several_choices_have_their_own(client):
    answer = client.chat.completions.create(**asking(ANSWER, n=3))
    for choice in answer.choices:
        check_calls(choice.message.tool_calls)
    ids = {call.id for choice in answer.choices for call in choice.message.tool_calls}
    expect(len(ids) == 6, ids)


@test
def one_at_a_time_and_none(client):
    one = client.chat.completions.create(**asking(ANSWER, parallel_tool_calls=False)).choices[0]
    expect(len(one.message.tool_calls) == 1 and one.finish_reason == "tool_calls", one)
    none = client.chat.completions.create(**asking(ANSWER, tool_choice="none")).choices[0]
    expect(none.message.tool_calls is None and none.finish_reason == "stop", none)
    expect("tool_call" not in none.message.content, none)


class Forecast(BaseModel):
    """The weather of some days"""

    city: Literal["Paris", "Rome"]
    days: Literal[1, 2, 3]
    hourly: bool


@test
def required_calls_are_made_and_valid(client):
    tool = openai.pydantic_function_tool(Forecast)
    for choice in ["required", {"type": "function", "function": {"name": "Forecast"}}]:
        # It would say something else.
        for said in ["Hello", "no", CALL % "Paris"]:
            asked = dict(model="talk", messages=[{"role": "user", "content": f"[[say {said}]]"}], tools=[tool])
            parsed = client.chat.completions.parse(**asked, tool_choice=choice, max_tokens=500).choices[0]
            expect(parsed.finish_reason == "tool_calls" and parsed.message.content is None, parsed)
            expect(all(isinstance(call.function.parsed_arguments, Forecast) for call in parsed.message.tool_calls), parsed)
            with client.chat.completions.stream(**asked, tool_choice=choice, max_tokens=500) as stream:
                final = stream.get_final_completion().choices[0]
            expect(isinstance(final.message.tool_calls[0].function.parsed_arguments, Forecast), final)


@test
def calls_in_text_are_held_to_their_schema(client):
    said = 'I look.\n<tool_call>\n{"name": "Forecast", "arguments": {"city": "Berlin", "days": 9}}\n</tool_call>'
    asked = dict(model="talk", messages=[{"role": "user", "content": f"[[say {said}]]"}])
    parsed = client.chat.completions.parse(**asked, tools=[openai.pydantic_function_tool(Forecast)], max_tokens=500)
    [choice] = parsed.choices
    expect(choice.message.content.startswith("I look.\n"), choice)
    expect(isinstance(choice.message.tool_calls[0].function.parsed_arguments, Forecast), choice)


@test
def reasoning_is_switched(client):
    def ask(effort, said):
        fields = asking(said, reasoning_effort=effort)
        return client.chat.completions.create(**fields).choices[0].message

    on = ask("high", "So.\n</think>\n\nYes.")
    expect((on.content, on.reasoning_content) == ("Yes.", "So."), on)
    off = ask("none", "Yes.")
    expect(off.content == "Yes." and not hasattr(off, "reasoning_content"), off)


@test
def errors_name_the_field(client):
    for param, fields in [
        ("tool_choice.function.name", {"tool_choice": {"type": "function", "function": {"name": "get_wether"}}}),
        ("reasoning_effort", {"reasoning_effort": "huge"}),
    ]:
        try:
            client.chat.completions.create(**asking("x", **fields))
        except openai.BadRequestError as found:
            expect(found.param == param, found)
        else:
            raise AssertionError(f"{fields} was taken")


def arguments_for(url):
    return (OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60),)


if __name__ == "__main__":
    main(arguments_for)
