"""Times llama.cpp on request: a JSON object a line on standard input, tokens a second on standard output.

    {"prefill": 512}            one llama_decode of that many tokens
    {"decode": [32, 128]}       one token at a time: 128 after a prompt of 32

Two threads (the second argument), f16 keys and values, everything else as llama.cpp has it by default.
Token ids are made up, as ours are: what they are does not change the work.
"""

import ctypes
import json
import sys
import time

import llama_cpp


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


def main():
    peer = Peer(sys.argv[1], int(sys.argv[2]))
    print("ready", flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        rate = peer.prefill(command["prefill"]) if "prefill" in command else peer.decode(*command["decode"])
        print(rate, flush=True)


main()
