#!/usr/bin/env python3
"""Writes a tiny dense model with made-up weights, and the logits that it has.

    python3 tiny.py CHECKPOINT --out reference.safetensors

CHECKPOINT is a directory in the form of a hub's: config.json, model.safetensors, tokenizer.json. The logits are
computed here, number by number in double precision and once more rounded to bf16 after every operation, in the
form that `cargo xtask verify --reference` reads. Python alone is needed. The same files come out each time."""

import argparse
import json
import math
import pathlib
import random
import struct

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "bos_token_id": None,
    "eos_token_id": 256,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 48,
    "intermediate_size": 80,
    "max_position_embeddings": 512,
    "num_attention_heads": 6,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 257,
}
END = "<|end|>"
TEXTS = ["A", "The sea was calm", "1, 2, 3, 5, 8, 13, 21, 34, 55, 89,"]


def bf16(number):
    """The nearest number in bf16, ties to even."""
    bits = struct.unpack("<I", struct.pack("<f", number))[0]
    return struct.unpack("<f", struct.pack("<I", (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000))[0]


def weights():
    """Names, shapes and numbers, all of which bf16 has."""
    source = random.Random(7)
    hidden, head = CONFIG["hidden_size"], CONFIG["head_dim"]
    heads, pairs = CONFIG["num_attention_heads"] * head, CONFIG["num_key_value_heads"] * head
    wide, vocabulary = CONFIG["intermediate_size"], CONFIG["vocab_size"]
    tensors = {}

    def matrix(name, rows, columns, size=1.0):
        deviation = size / math.sqrt(columns)
        tensors[name] = [[bf16(source.gauss(0, deviation)) for _ in range(columns)] for _ in range(rows)]

    def vector(name, columns):
        tensors[name] = [bf16(source.uniform(0.5, 1.5)) for _ in range(columns)]

    matrix("model.embed_tokens.weight", vocabulary, hidden, math.sqrt(hidden))
    for layer in range(CONFIG["num_hidden_layers"]):
        of = f"model.layers.{layer}."
        vector(of + "input_layernorm.weight", hidden)
        matrix(of + "self_attn.q_proj.weight", heads, hidden)
        matrix(of + "self_attn.k_proj.weight", pairs, hidden)
        matrix(of + "self_attn.v_proj.weight", pairs, hidden)
        vector(of + "self_attn.q_norm.weight", head)
        vector(of + "self_attn.k_norm.weight", head)
        matrix(of + "self_attn.o_proj.weight", hidden, heads)
        vector(of + "post_attention_layernorm.weight", hidden)
        matrix(of + "mlp.gate_proj.weight", wide, hidden)
        matrix(of + "mlp.up_proj.weight", wide, hidden)
        matrix(of + "mlp.down_proj.weight", hidden, wide)
    vector("model.norm.weight", hidden)
    matrix("lm_head.weight", vocabulary, hidden, 3.0)
    return tensors


def forward(tensors, ids, rounded):
    """The logits of each token; `rounded` is applied to what every operation gives."""
    heads, pairs, head = (CONFIG[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))

    def product(name, x):
        return [rounded(sum(map(float.__mul__, row, x))) for row in tensors[name]]

    def norm(name, x):
        scale = 1 / math.sqrt(sum(it * it for it in x) / len(x) + CONFIG["rms_norm_eps"])
        return [rounded(it * scale * weight) for it, weight in zip(x, tensors[name])]

    def split(x):
        return [x[at : at + head] for at in range(0, len(x), head)]

    def turned(x, position):
        half = head // 2
        angles = [position * CONFIG["rope_theta"] ** (-at / half) for at in range(half)]
        first = [x[i] * math.cos(a) - x[i + half] * math.sin(a) for i, a in enumerate(angles)]
        last = [x[i + half] * math.cos(a) + x[i] * math.sin(a) for i, a in enumerate(angles)]
        return [rounded(it) for it in first + last]

    def attend(q, keys, values):
        scores = [sum(map(float.__mul__, q, key)) / math.sqrt(head) for key in keys]
        exponentials = [math.exp(score - max(scores)) for score in scores]
        whole = sum(exponentials)
        columns = zip(*values)
        return [rounded(sum(map(float.__mul__, exponentials, column)) / whole) for column in columns]

    def add(x, y):
        return [rounded(a + b) for a, b in zip(x, y)]

    kept = [([], []) for _ in range(CONFIG["num_hidden_layers"])]
    logits = []
    for position, token in enumerate(ids):
        x = tensors["model.embed_tokens.weight"][token]
        for layer, (keys, values) in enumerate(kept):
            of = f"model.layers.{layer}."
            normed = norm(of + "input_layernorm.weight", x)
            q = [turned(norm(of + "self_attn.q_norm.weight", it), position)
                 for it in split(product(of + "self_attn.q_proj.weight", normed))]
            keys.append([turned(norm(of + "self_attn.k_norm.weight", it), position)
                         for it in split(product(of + "self_attn.k_proj.weight", normed))])
            values.append(split(product(of + "self_attn.v_proj.weight", normed)))
            context = []
            for at in range(heads):
                pair = at * pairs // heads
                context += attend(q[at], [key[pair] for key in keys], [value[pair] for value in values])
            x = add(x, product(of + "self_attn.o_proj.weight", context))
            normed = norm(of + "post_attention_layernorm.weight", x)
            gate = product(of + "mlp.gate_proj.weight", normed)
            up = product(of + "mlp.up_proj.weight", normed)
            inner = [rounded(g / (1 + math.exp(-g)) * u) for g, u in zip(gate, up)]
            x = add(x, product(of + "mlp.down_proj.weight", inner))
        logits.append(product("lm_head.weight", norm("model.norm.weight", x)))
    return logits


def flat(numbers):
    return [it for row in numbers for it in flat(row)] if isinstance(numbers[0], list) else numbers


def shape(numbers):
    return [len(numbers)] + (shape(numbers[0]) if isinstance(numbers[0], list) else [])


def safetensors(path, tensors, kind):
    """Writes tensors, `kind` of whose name is the format of its numbers."""
    header, data = {}, b""
    for name, numbers in tensors.items():
        if kind(name) == "BF16":
            raw = b"".join(struct.pack("<f", it)[2:] for it in flat(numbers))
        else:
            raw = struct.pack("<" + {"F32": "f", "I64": "q"}[kind(name)] * len(flat(numbers)), *flat(numbers))
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": kind(name), "shape": shape(numbers), "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def characters():
    """The characters that stand for the 256 bytes in byte-level tokenizers."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte if byte in shown else 256 + hidden.index(byte)) for byte in range(256)}


def tokenizer():
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    end = {"id": 256, "content": END, "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": False, "special": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
             "vocab": {text: byte for byte, text in characters().items()} | {END: 256}, "merges": []}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [end], "normalizer": None,
            "pre_tokenizer": bytes_, "post_processor": None, "decoder": bytes_, "model": model}


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("checkpoint", type=pathlib.Path)
    arguments.add_argument("--out", type=pathlib.Path, required=True)
    arguments = arguments.parse_args()
    arguments.checkpoint.mkdir(parents=True, exist_ok=True)
    tensors = weights()
    for name, content in [("config.json", CONFIG), ("tokenizer.json", tokenizer())]:
        (arguments.checkpoint / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    safetensors(arguments.checkpoint / "model.safetensors", tensors, lambda name: "BF16")

    reference = {}
    for at, text in enumerate(TEXTS):
        ids = list(text.encode())
        reference[f"tokens/{at}"] = ids
        reference[str(at)] = forward(tensors, ids, float)
        reference[f"rounded/{at}"] = forward(tensors, ids, bf16)
    safetensors(arguments.out, reference, lambda name: "I64" if name.startswith("tokens/") else "F32")


if __name__ == "__main__":
    main()
