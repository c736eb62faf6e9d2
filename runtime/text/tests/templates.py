"""Makes templates.json: what transformers would render for the templates in templates/.

Needs only jinja2 (pip install jinja2==3.1.6): the environment below is the one that
transformers.utils.chat_template_utils sets up.
"""

import json
import pathlib

import jinja2
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_keep"), [], [], body).set_lineno(line)

    def _keep(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


environment = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
)
environment.filters["tojson"] = tojson
environment.globals["raise_exception"] = raise_exception

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city: \"now\" or later, é <b>&'",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
            "required": ["city"],
            "default": {"a": None, "b": True, "c": 1.5, "d": 1e20, "e": 1e-7, "f": [], "g": {}, "h": 2.0},
        },
    },
}
USER = {"role": "user", "content": "What is the weather in Zürich?\n"}
CALL = {
    "role": "assistant",
    "content": "<think>\nI must ask.\n</think>\n\nLet me see.",
    "tool_calls": [{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2}}}],
}
RESULT = {"role": "tool", "content": "{\"sky\": \"clear\"}"}
CHATS = {
    "one": ([USER], {}),
    "system": ([{"role": "system", "content": "  Be brief.  "}, USER], {}),
    "turns": ([USER, {"role": "assistant", "content": "Clear."}, {"role": "user", "content": "And tomorrow?"}], {}),
    "tools": ([{"role": "system", "content": "Be brief."}, USER], {"tools": [WEATHER]}),
    "calls": ([USER, CALL, RESULT, RESULT, {"role": "assistant", "content": "It is clear."}, USER], {"tools": [WEATHER]}),
    "thinking off": ([USER], {"enable_thinking": False}),
    "parts": ([{"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}]}], {}),
    "order": ([{"role": "assistant", "content": "I speak first."}, USER], {}),
}

cases = []
for path in sorted((HERE / "templates").glob("*.jinja")):
    template = environment.from_string(path.read_text())
    for name, (messages, extra) in CHATS.items():
        for prompt in (True, False):
            case = {"template": path.name, "chat": name, "messages": messages, "extra": extra, "prompt": prompt}
            try:
                case["text"] = template.render(
                    messages=messages, add_generation_prompt=prompt, bos_token="<s>", eos_token="</s>", **extra
                )
            except jinja2.exceptions.TemplateError as error:
                case["error"] = error.message
            cases.append(case)
(HERE / "templates.json").write_text(json.dumps(cases, ensure_ascii=True, indent=0) + "\n")
print(len(cases), "cases,", sum("error" in case for case in cases), "of them errors")
