"""The official clients send pictures to the scripted model that takes images.

    python images_test.py http://127.0.0.1:8888

`[[seen]]` makes the model say its prompt, with each image as how many tokens it has and a hash of what is in them.
Output and exit code are those of openai_test.py.
"""

import base64
import re
import struct
import zlib

from anthropic import Anthropic, BadRequestError as AnthropicBadRequest
from openai import BadRequestError, OpenAI
from harness import expect, main, test

SEEN = re.compile(r"user\nthis: <64 [0-9a-f]{8}>, and that: <64 [0-9a-f]{8}>\[\[seen\]\]\n")


def png(red):
    """A picture of 32 x 32 pixels of one colour."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0)
    rows = (b"\0" + bytes([red, 9, 9]) * 32) * 32
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


PICTURES = [base64.b64encode(png(red)).decode() for red in (10, 200)]
URLS = [f"data:image/png;base64,{data}" for data in PICTURES]


def said(text, picture):
    """This, that, and what they are."""
    this, that = picture(0), picture(1)
    parts = [text("this: "), this, text(", and that: "), that, text("[[seen]]\n")]
    return [{"role": "user", "content": parts}]


def chat(detail=None):
    def picture(at):
        url = {"url": URLS[at], **({"detail": detail} if detail else {})}
        return {"type": "image_url", "image_url": url}

    return said(lambda text: {"type": "text", "text": text}, picture)


def items():
    def picture(at):
        return {"type": "input_image", "image_url": URLS[at], "detail": "auto"}

    return said(lambda text: {"type": "input_text", "text": text}, picture)


def blocks():
    def picture(at):
        source = {"type": "base64", "media_type": "image/png", "data": PICTURES[at]}
        return {"type": "image", "source": source}

    return said(lambda text: {"type": "text", "text": text}, picture)


def check(text):
    expect(SEEN.search(text), text)
    first, second = re.findall(r"<64 ([0-9a-f]{8})>", text)
    expect(first != second, text)
    return text


@test
def chats_take_pictures(openai, _):
    for detail in (None, "auto", "low", "high"):
        answer = openai.chat.completions.create(model="sees", messages=chat(detail))
        text = check(answer.choices[0].message.content)
        expect(answer.usage.prompt_tokens > 128, answer.usage)
    stream = openai.chat.completions.create(model="sees", messages=chat(), stream=True)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    expect(streamed == text, streamed)


@test
def responses_take_pictures(openai, _):
    response = openai.responses.create(model="sees", input=items())
    text = check(response.output_text)
    expect(response.usage.input_tokens > 128, response.usage)
    with openai.responses.stream(model="sees", input=items()) as stream:
        streamed = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        expect(stream.get_final_response().output_text == streamed == text, streamed)


@test
def messages_take_pictures(_, anthropic):
    asked = {"model": "sees", "messages": blocks()}
    message = anthropic.messages.create(max_tokens=500, **asked)
    text = check(message.content[0].text)
    usage = message.usage
    counted = anthropic.messages.count_tokens(**asked).input_tokens
    expect(counted == usage.input_tokens + usage.cache_read_input_tokens, usage)
    with anthropic.messages.stream(max_tokens=500, **asked) as stream:
        expect("".join(stream.text_stream) == text, "the text stream")


@test
def errors_name_the_picture(openai, anthropic):
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]}]
    try:
        openai.chat.completions.create(model="sees", messages=messages)
    except BadRequestError as error:
        expect(error.code == "invalid_image_url", error)
        expect(error.param == "messages[0].content[0].image_url.url", error)
    else:
        raise AssertionError("it is fetched")
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(b"no picture").decode()}
    messages = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    try:
        anthropic.messages.create(model="sees", max_tokens=9, messages=messages)
    except AnthropicBadRequest as error:
        expect("messages[0].content[0].source.data" in str(error) and "neither PNG, JPEG" in str(error), error)
    else:
        raise AssertionError("it is seen")


def arguments_for(url):
    options = {"api_key": "none", "max_retries": 0, "timeout": 60}
    return OpenAI(base_url=f"{url}/v1", **options), Anthropic(base_url=url, **options)


if __name__ == "__main__":
    main(arguments_for)
