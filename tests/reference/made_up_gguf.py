#!/usr/bin/env python3
"""A GGUF of made-up weights of some 300 million parameters, to time llama.cpp and a server on one file.

    python made_up_gguf.py qwen3moe|qwen35 --tokenizer SmolLM2.gguf --out FILE [--format MOSTLY_Q4_K_M]

The tokenizer is that of another file. Weights are normal, scaled so that values neither grow nor vanish; what the model
says means nothing. Needs llama-cpp-python (xtask/src/peer/requirements.txt) and gguf.
"""

import argparse
import ctypes
import os
import tempfile

import gguf
import llama_cpp
import numpy as np

HIDDEN, HEAD, CONTEXT, VOCABULARY = 1024, 128, 4096, 49152


def matrix(random, rows, columns, *before):
    spread = 1 / np.sqrt(columns)
    return (random.standard_normal((*before, rows, columns), dtype=np.float32) * spread).astype(np.float16)


def around_one(random, size):
    return (1 + 0.1 * random.standard_normal(size)).astype(np.float32)


def attention(random, block, heads, kv_heads, gated):
    return {
        f"{block}.attn_q.weight": matrix(random, heads * HEAD * (2 if gated else 1), HIDDEN),
        f"{block}.attn_k.weight": matrix(random, kv_heads * HEAD, HIDDEN),
        f"{block}.attn_v.weight": matrix(random, kv_heads * HEAD, HIDDEN),
        f"{block}.attn_output.weight": matrix(random, HIDDEN, heads * HEAD),
        f"{block}.attn_q_norm.weight": around_one(random, HEAD),
        f"{block}.attn_k_norm.weight": around_one(random, HEAD),
    }


def qwen3moe(random, writer):
    """12 layers, 24 experts of 256 of which 8: 309 million parameters, 158 million a token."""
    layers, heads, kv_heads, experts, wide = 12, 8, 2, 24, 256
    writer.add_block_count(layers)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_feed_forward_length(wide)
    writer.add_expert_feed_forward_length(wide)
    writer.add_expert_count(experts)
    writer.add_expert_used_count(8)
    writer.add_rope_dimension_count(HEAD)
    for layer in range(layers):
        block = f"blk.{layer}"
        yield f"{block}.attn_norm.weight", around_one(random, HIDDEN)
        yield from attention(random, block, heads, kv_heads, False).items()
        yield f"{block}.ffn_norm.weight", around_one(random, HIDDEN)
        yield f"{block}.ffn_gate_inp.weight", matrix(random, experts, HIDDEN).astype(np.float32)
        yield f"{block}.ffn_gate_exps.weight", matrix(random, wide, HIDDEN, experts)
        yield f"{block}.ffn_up_exps.weight", matrix(random, wide, HIDDEN, experts)
        yield f"{block}.ffn_down_exps.weight", matrix(random, HIDDEN, wide, experts)


def qwen35(random, writer):
    """16 layers, every fourth of which attends and the others have delta-nets: 343 million parameters."""
    layers, heads, kv_heads, wide, state, keys = 16, 8, 2, 3072, 128, 16
    writer.add_block_count(layers)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_feed_forward_length(wide)
    writer.add_rope_dimension_count(HEAD // 4)
    writer.add_rope_dimension_sections([11, 11, 10, 0])
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_state_size(state)
    writer.add_ssm_group_count(keys)
    writer.add_ssm_time_step_rank(keys)
    writer.add_ssm_inner_size(keys * state)
    writer.add_uint32("qwen35.full_attention_interval", 4)
    inner = keys * state
    for layer in range(layers):
        block = f"blk.{layer}"
        yield f"{block}.attn_norm.weight", around_one(random, HIDDEN)
        if layer % 4 == 3:
            yield from attention(random, block, heads, kv_heads, True).items()
        else:
            yield f"{block}.attn_qkv.weight", matrix(random, 3 * inner, HIDDEN)
            yield f"{block}.attn_gate.weight", matrix(random, inner, HIDDEN)
            yield f"{block}.ssm_beta.weight", matrix(random, keys, HIDDEN)
            yield f"{block}.ssm_alpha.weight", matrix(random, keys, HIDDEN)
            yield f"{block}.ssm_conv1d.weight", matrix(random, 3 * inner, 4).astype(np.float32)
            yield f"{block}.ssm_a", -np.exp(random.uniform(0, 2, keys)).astype(np.float32)
            yield f"{block}.ssm_dt.bias", random.uniform(-4, -1, keys).astype(np.float32)
            yield f"{block}.ssm_norm.weight", around_one(random, state)
            yield f"{block}.ssm_out.weight", matrix(random, HIDDEN, inner)
        yield f"{block}.post_attention_norm.weight", around_one(random, HIDDEN)
        yield f"{block}.ffn_gate.weight", matrix(random, wide, HIDDEN)
        yield f"{block}.ffn_up.weight", matrix(random, wide, HIDDEN)
        yield f"{block}.ffn_down.weight", matrix(random, HIDDEN, wide)


FAMILIES = {"qwen3moe": qwen3moe, "qwen35": qwen35}


def write(family, tokenizer, path):
    random = np.random.default_rng(17)
    writer = gguf.GGUFWriter(path, family)
    writer.add_name(f"made-up {family}")
    writer.add_embedding_length(HIDDEN)
    writer.add_context_length(CONTEXT)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    for name, field in gguf.GGUFReader(tokenizer).fields.items():
        if name.startswith("tokenizer."):
            kind = field.types[0]
            inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, inner)
    writer.add_tensor("token_embd.weight", matrix(random, VOCABULARY, HIDDEN))
    for name, values in FAMILIES[family](random, writer):
        writer.add_tensor(name, values)
    writer.add_tensor("output_norm.weight", around_one(random, HIDDEN))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantize(source, target, form):
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_{form}")
    if llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(parameters)) != 0:
        raise SystemExit(f"llama.cpp did not quantize {source}")


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("family", choices=FAMILIES)
    arguments.add_argument("--tokenizer", required=True)
    arguments.add_argument("--out", required=True)
    arguments.add_argument("--format", default="MOSTLY_Q4_K_M")
    arguments = arguments.parse_args()
    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(arguments.out))) as directory:
        whole = os.path.join(directory, "f16.gguf")
        write(arguments.family, arguments.tokenizer, whole)
        quantize(whole, arguments.out, arguments.format)


main()
