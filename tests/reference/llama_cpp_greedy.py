#!/usr/bin/env python3
"""Greedy continuations by llama.cpp, with the margins that say which of them rounding could turn.

    python llama_cpp_greedy.py MODEL.gguf [--out FILE] [--check | --server URL]

Prompts are tests/fixtures/prompts/*.txt: `chat` ones are put through ChatML, all are tokenised by llama.cpp, and the
ids are recorded, so that a test needs neither. For each prompt, FILE holds

    prompt   ids of the prompt
    ids      128 greedy ids (an end-of-text id does not end the run)
    second   the runner-up of each step
    logits   logit of each of `ids`
    margins  its lead over `second`
    again    the same lead when llama.cpp is fed the very same ids with flash attention, an f32 cache and the prompt
             in pieces of 32: other orders of summing, which llama.cpp itself holds to be the same model
    noise    the largest |margins - again|
    first    the ten largest logits after the prompt, as [id, logit]

A step whose margin is not above the noise is one that rounding decides. With --server nothing is written: a running
server of the same file is asked for the same continuations, and where one first differs has to be such a step.
"""

import argparse
import ctypes
import hashlib
import json
import sys
import urllib.request
from pathlib import Path

import llama_cpp
import numpy as np

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
STEPS = 128
THREADS = 2
CONTEXT = 2048
PIECE = 32
RAW = {"0-capital", "3-code", "5-whale", "7-alice"}
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


@llama_cpp.llama_log_callback
def quiet(level, text, _):
    if level >= 3:
        sys.stderr.write(text.decode(errors="replace"))


class Context:
    """One llama.cpp context that returns logits after the last token fed."""

    def __init__(self, model, flash_attention, cache):
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = CONTEXT
        parameters.n_batch = parameters.n_ubatch = 1024
        parameters.n_threads = parameters.n_threads_batch = THREADS
        parameters.flash_attn_type = flash_attention
        parameters.type_k = parameters.type_v = cache
        self.context = llama_cpp.llama_init_from_model(model, parameters)
        if not self.context:
            raise RuntimeError("llama.cpp made no context")
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))

    def clear(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def feed(self, ids):
        tokens = (llama_cpp.llama_token * len(ids))(*ids)
        status = llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(tokens, len(ids)))
        if status:
            raise RuntimeError(f"llama_decode returned {status}")
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, -1), (self.vocabulary,)).copy()


def tokenise(model, text):
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    data = text.encode()
    room = (llama_cpp.llama_token * (len(data) + 8))()
    count = llama_cpp.llama_tokenize(vocabulary, data, len(data), room, len(room), False, True)
    if count < 0:
        raise RuntimeError("llama_tokenize ran out of room")
    return list(room[:count])


def chat(text):
    return f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def continuation(plain, other, ids):
    """Greedy steps of `plain`, and the differences of `other`'s margins from its own."""
    plain.clear()
    other.clear()
    logits = plain.feed(ids)
    first = [[int(i), round(float(logits[i]), 4)] for i in np.argsort(-logits, kind="stable")[:10]]
    for start in range(0, len(ids), PIECE):
        check = other.feed(ids[start : start + PIECE])
    steps = []
    for _ in range(STEPS):
        # The smallest id on a tie, as in our samplers.
        best, second = (int(i) for i in np.argsort(-logits, kind="stable")[:2])
        margin = float(logits[best] - logits[second])
        again = float(check[best] - check[second])
        steps.append((best, second, round(float(logits[best]), 3), round(margin, 3), round(again, 3)))
        logits, check = plain.feed([best]), other.feed([best])
    run = dict(zip(("ids", "second", "logits", "margins", "again"), map(list, zip(*steps))))
    noise = max(abs(margin - again) for margin, again in zip(run["margins"], run["again"]))
    return run | {"noise": round(noise, 3), "first": first}


def asked(url, prompt):
    """The ids that a server goes on with."""
    body = {"prompt": prompt, "max_tokens": STEPS, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["token_ids"]


def compared(url, run):
    """Says where the server's continuation first differs, and whether rounding decides that step."""
    found = asked(url, run["prompt"])
    at = next((at for at, pair in enumerate(zip(found, run["ids"], strict=True)) if pair[0] != pair[1]), None)
    if at is None:
        print(f"{run['name']}: {STEPS} ids are equal")
        return True
    margin, tie = run["margins"][at], run["margins"][at] <= run["noise"]
    print(f"{run['name']}: differs at {at}, where llama.cpp leads by {margin}, noise {run['noise']}{'' if tie else ' !'}")
    return tie


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("model", type=Path)
    arguments.add_argument("--out", type=Path, default=FIXTURES / "smollm2" / "llama_cpp.json")
    arguments.add_argument("--check", action="store_true", help="compare the ids with --out, write nothing")
    arguments.add_argument("--server", metavar="URL", help="compare a running server with llama.cpp, write nothing")
    arguments = arguments.parse_args()
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(
        str(arguments.model).encode(), llama_cpp.llama_model_default_params()
    )
    if not model:
        raise RuntimeError(f"llama.cpp cannot load {arguments.model}")
    plain = Context(model, llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED, llama_cpp.GGML_TYPE_F16)
    other = Context(model, llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED, llama_cpp.GGML_TYPE_F32)
    digest = hashlib.sha256(arguments.model.read_bytes()).hexdigest()
    result = {"llama-cpp-python": llama_cpp.__version__, "sha256": digest, "prompts": []}
    for file in sorted((FIXTURES / "prompts").glob("*.txt")):
        text = file.read_text().rstrip("\n")
        raw = file.stem in RAW
        ids = tokenise(model, text if raw else chat(text))
        run = {"name": file.stem, "chat": not raw, "prompt": ids} | continuation(plain, other, ids)
        close = sum(margin <= run["noise"] for margin in run["margins"])
        print(f"{file.stem}: {len(ids)} ids, noise {run['noise']}, {close} of {STEPS} steps within it")
        result["prompts"].append(run)
    if arguments.server:
        alike = [compared(arguments.server.rstrip("/"), run) for run in result["prompts"]]
        return int(not all(alike))
    if arguments.check:
        committed = json.loads(arguments.out.read_text())
        ids = [[(p["name"], p["prompt"], p["ids"]) for p in each["prompts"]] for each in (committed, result)]
        print(f"{arguments.out}: {'as recorded' if ids[0] == ids[1] else 'holds other ids'}")
        return int(ids[0] != ids[1])
    # One prompt per line: compact, and a diff shows which prompts changed.
    lines = ",\n".join(json.dumps(p, separators=(",", ":")) for p in result.pop("prompts"))
    head = json.dumps(result)[:-1]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(f'{head}, "prompts": [\n{lines}\n]}}\n')
    return 0


if __name__ == "__main__":
    sys.exit(main())
