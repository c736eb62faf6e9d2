"""Asks llama.cpp: a JSON object a line on standard input, tokens a second on standard output, or what is asked.

    {"prefill": 512}            one llama_decode of that many tokens
    {"decode": [32, 128]}       one token at a time: 128 after a prompt of 32
    {"judge": {"text": FILE, "tokens": 900, "cut": [[0, 1, 512], [256, 512, 768]]}}
                                negative logarithms of probabilities, a token, of windows of a text of so many
                                tokens: where each begins, from which token on it is judged, and its end

Two threads (the second argument), f16 keys and values, everything else as llama.cpp has it by default.
Token ids are made up, as ours are: what they are does not change the work.
"""

import ctypes
import json
import sys
import time

import llama_cpp
import numpy as np


def ids(count):
    return [(i * 7919 + 13) % 40000 + 100 for i in range(count)]


class Peer:
    def __init__(self, path, threads):
        llama_cpp.llama_backend_init()
        self.silent = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self.silent, ctypes.c_void_p(0))
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = 2048, 2048, 512
        parameters.n_threads = parameters.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, parameters)

    def clear(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def feed(self, tokens):
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        if llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(array, len(tokens))) != 0:
            raise SystemExit("llama_decode failed")
        llama_cpp.llama_synchronize(self.context)

    def prefill(self, count):
        self.clear()
        tokens = ids(count)
        start = time.perf_counter()
        self.feed(tokens)
        return count / (time.perf_counter() - start)

    def decode(self, depth, count):
        self.clear()
        self.feed(ids(depth))
        tokens = ids(depth + count)[depth:]
        start = time.perf_counter()
        for token in tokens:
            self.feed([token])
        return count / (time.perf_counter() - start)

    def tokens(self, path):
        vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        with open(path, "rb") as file:
            text = file.read()
        room = (llama_cpp.llama_token * (len(text) + 8))()
        count = llama_cpp.llama_tokenize(vocabulary, text, len(text), room, len(room), True, False)
        if count < 0:
            raise SystemExit(f"llama.cpp could not tokenize {path}")
        return list(room[:count])

    def judge(self, text, tokens, cut):
        found = self.tokens(text)
        if len(found) != tokens:
            raise SystemExit(f"{text} is {tokens} tokens to the server and {len(found)} to llama.cpp")
        return [self.nats(found[begin:end], judged - begin) for begin, judged, end in cut]

    def nats(self, tokens, judged):
        """The mean over the tokens from `judged` on."""
        self.clear()
        size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for at, token in enumerate(tokens):
            batch.token[at], batch.pos[at], batch.logits[at] = token, at, True
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, 0
        if llama_cpp.llama_decode(self.context, batch) != 0:
            raise SystemExit("llama_decode failed")
        llama_cpp.llama_batch_free(batch)
        total = 0.0
        for at in range(judged, len(tokens)):
            row = llama_cpp.llama_get_logits_ith(self.context, at - 1)
            logits = np.ctypeslib.as_array(row, (size,)).astype(np.float64)
            most = logits.max()
            total += most + np.log(np.exp(logits - most).sum()) - logits[tokens[at]]
        return total / (len(tokens) - judged)


def answer(peer, command):
    match command:
        case {"prefill": count}:
            return peer.prefill(count)
        case {"decode": [depth, count]}:
            return peer.decode(depth, count)
        case {"judge": what}:
            return peer.judge(**what)
    raise SystemExit(f"not a command: {command}")


def main():
    peer = Peer(sys.argv[1], int(sys.argv[2]))
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(peer, json.loads(line))), flush=True)


main()
