"""Many HTTP requests at once, each of which must be answered as alone."""

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .common import Missing, tail

READY_SECONDS = 120
STREAMS = 64


class Server:
    """A server on loopback, stopped at the end of a `with`. `wrapper` is what it runs under."""

    def __init__(self, command, wrapper=(), ready_seconds=READY_SECONDS):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.ready_seconds = ready_seconds
        self.command = [str(word) for word in (*wrapper, *command, "--port", self.port)]
        self.program = str(command[0])
        self.output = ""

    def __enter__(self):
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        # Read all along, so that the server never waits for us.
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        began = time.time()
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    return self
            except OSError:
                if self.process.poll() is not None or time.time() - began > self.ready_seconds:
                    self.stop()
                    raise RuntimeError(f"the server is not ready: {tail(self.output)}") from None
                time.sleep(0.05)

    def __exit__(self, *_):
        self.stop()

    def _read(self):
        for line in self.process.stdout:
            self.output += line

    def _pid(self):
        """The server's process, which a wrapper does not hand signals on to."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if words[0] == self.program and str(self.port) in words:
                return int(path.parent.name)
        return self.process.pid

    def stop(self, seconds=60):
        """Asks it to finish; its exit status."""
        if self.process.poll() is None:
            os.kill(self._pid(), signal.SIGTERM)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.reader.join(5)
        return self.process.returncode

    def complete(self, prompt, seconds=240, **parameters):
        """The answer to a completion, as it was written."""
        return self.post("/v1/completions", {"prompt": prompt, **parameters}, seconds)

    def post(self, path, body, seconds=240):
        """What a path answers to a body."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=seconds) as response:
            return json.loads(response.read())

    def get(self, path):
        """What a path answers."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as response:
            return response.read().decode()

    def counts(self):
        """What /metrics says, by name: of several with one name the sum."""
        found = {}
        for line in self.get("/metrics").splitlines():
            if not line.startswith("#"):
                name = line.split("{")[0].split()[0]
                found[name] = found.get(name, 0.0) + float(line.split()[-1])
        return found


# The constraint of every fourth answer.
FORMAT = r"[A-Z][a-z]{2,7}( [a-z]{1,6}){2,4}[.!]"


def requests(prompts, count):
    """Requests of different prompts, lengths and ways of sampling; every third needs the history of its tokens, every fourth a mask, others
    biases, DRY or the deviation of their logits."""
    for number in range(count):
        parameters = {"max_tokens": 16 + 7 * (number % 11), "temperature": 0.8 * (number % 2), "seed": number}
        if number % 3 == 0:
            parameters["frequency_penalty"] = 0.4
        if number % 4 == 2:
            parameters["guided_regex"] = FORMAT
        if number % 5 == 1:
            parameters["logit_bias"] = {str(200 + 37 * at): 8 - at for at in range(16)}
        if number % 5 == 3:
            parameters |= {"dry_multiplier": 2.0, "dry_sequence_breakers": ["\n"]}
        if number % 7 < 2:
            parameters["top_n_sigma"] = 1.0
        yield prompts[number % len(prompts)], parameters


def repeats(ids, length=6):
    """How many stretches of so many tokens stand there before, too."""
    stretches = [tuple(ids[at : at + length]) for at in range(len(ids) - length + 1)]
    return len(stretches) - len(set(stretches))


def biased(context, server, prompt):
    """What is biased is said, and what repeats is not."""
    # Of three tokens an answer of 400 repeats itself, whatever the weights.
    few = {str(id): 100 for id in (40, 41, 42)}
    long = {"temperature": 0, "max_tokens": 400, "ignore_eos": True, "return_token_ids": True, "logit_bias": few}
    ids = lambda **parameters: server.complete(prompt, **(long | parameters))["choices"][0]["token_ids"]
    forced = ids(max_tokens=8, logit_bias={"30": 100, "31": -100})
    context.add("serving", "a biased token is said", forced == 8 * [30], f"{forced}")
    plain, dry = repeats(ids()), repeats(ids(dry_multiplier=2.0, dry_sequence_breakers=[]))
    context.add("serving", "DRY against repetition", dry < plain, f"{plain} stretches of 6 tokens again without it, {dry} with it")


# An answer that never ends of itself.
SCHEMA = {
    "type": "array",
    "minItems": 600,
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 16}, "size": {"type": "integer"}, "tags": {"type": "array", "maxItems": 3, "items": {"enum": ["red", "green", "blue"]}}},
        "required": ["name", "size", "tags"],
        "additionalProperties": False,
    },
}


def costs(context, server, prompt):
    """Milliseconds a token, alone and for each of many that begin one after the other, when the device needs nothing of the host and when the host
    has to see each token first."""
    ways = {
        "nothing": {},
        "biases": {"logit_bias": {"30": 1, "31": -1}},
        "a penalty": {"frequency_penalty": 0.01},
        "DRY": {"dry_multiplier": 0.8},
        "a mask": {"guided_regex": "(.|\n)*"},
        "a schema": {"guided_json": SCHEMA},
    }
    for streams in (1, 16):
        found = []
        for name, parameters in ways.items():
            goes_on = {} if "guided_regex" in parameters or "guided_json" in parameters else {"ignore_eos": True}

            def ask(number):
                time.sleep(0.013 * number)
                start = time.time()
                answer = server.complete(prompt, temperature=0.8, seed=number, max_tokens=512, **goes_on, **parameters)
                return 1000 * (time.time() - start) / answer["usage"]["completion_tokens"]

            ask(0)
            with ThreadPoolExecutor(streams) as pool:
                each = list(pool.map(ask, range(streams)))
            found.append(f"{name} {sum(each) / streams:.3f}")
        context.add("serving", f"ms a token, {streams} at once", True, ", ".join(found))


def run(context):
    case = context.manifest.get("served")
    if case is None:
        raise Missing("no server with weights was gathered")
    command = [context.path(case["server"]), "serve", "--weights", context.path(case["crowd"]), "--memory-fraction", "0.3"]
    asked = list(requests(case["texts"], STREAMS))
    with Server(command) as server:
        alone = [server.complete(prompt, **parameters) for prompt, parameters in asked]
        start = time.time()
        with ThreadPoolExecutor(STREAMS) as pool:
            crowded = list(pool.map(lambda one: server.complete(one[0], **one[1]), asked))
        seconds = time.time() - start
        biased(context, server, case["texts"][0])
        costs(context, server, case["texts"][0])
        stats = json.loads(server.get("/health"))["stats"]
        status = server.stop()
    # How much of a prompt was cached depends on who came before; nothing else may.
    said = lambda answer: (answer["choices"], answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"])
    differing = [number for number, pair in enumerate(zip(alone, crowded)) if said(pair[0]) != said(pair[1])]
    cached = sum(answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in crowded)
    tokens = sum(answer["usage"]["completion_tokens"] for answer in crowded)
    detail = f"{STREAMS - len(differing)} of {STREAMS} answers equal the lone ones; {tokens} tokens in {seconds:.2f} s, {cached} of the prompts' cached"
    context.add("serving", "64 requests at once", not differing, detail, differing=differing)
    held = [answer["choices"][0] for (_, parameters), answer in zip(asked, alone) if "guided_regex" in parameters]
    complete = [choice["text"] for choice in held if choice["finish_reason"] == "stop"]
    wrong = [text for text in complete if re.fullmatch(FORMAT, text) is None]
    held_to = complete and not wrong
    context.add("serving", "answers held to a format", bool(held_to), f"{len(complete)} of {len(held)} complete, {len(wrong)} do not fit", wrong=wrong)
    leaked = stats["total_blocks"] - stats["free_blocks"]
    context.add("serving", "blocks come back", leaked == 0, f"{leaked} of {stats['total_blocks']} blocks not free")
    context.add("serving", "SIGTERM", status == 0, f"exit status {status}")
