#!/usr/bin/env python3
"""Writes the logits of a checkpoint by transformers, for `cargo xtask verify --reference`.

    python reference.py CHECKPOINT --out reference.safetensors [--text FILE] [--tokens N] [--no-rounded]

CHECKPOINT is a directory or a hub's id. It is loaded in f32 and, unless told otherwise, once more in bf16, which
says how far rounding moves the logits. Needs what tests/reference/requirements.txt pins."""

import argparse

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

TEXTS = [
    "The sea was calm that morning, and the boats lay still in the harbour. An old man sat on the wall and",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "1, 2, 3, 5, 8, 13, 21,",
    "Die Bundesrepublik Deutschland besteht aus sechzehn Bundesländern. Das größte davon ist",
]


@torch.inference_mode()
def logits(checkpoint, dtype, prompts):
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype).eval()
    return [model(torch.tensor([ids])).logits[0].float().contiguous() for ids in prompts]


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("checkpoint")
    arguments.add_argument("--out", required=True)
    arguments.add_argument("--text", help="a file, each line of which is a prompt")
    arguments.add_argument("--tokens", type=int, default=128, help="of a prompt at most")
    arguments.add_argument("--rounded", action=argparse.BooleanOptionalAction, default=True)
    arguments = arguments.parse_args()
    texts = TEXTS
    if arguments.text:
        with open(arguments.text, encoding="utf-8") as file:
            texts = [line for line in file.read().splitlines() if line]
    tokenizer = AutoTokenizer.from_pretrained(arguments.checkpoint)
    prompts = [tokenizer(text)["input_ids"][: arguments.tokens] for text in texts]
    tensors = {f"tokens/{i}": torch.tensor(ids, dtype=torch.int64) for i, ids in enumerate(prompts)}
    tensors |= {str(i): rows for i, rows in enumerate(logits(arguments.checkpoint, torch.float32, prompts))}
    if arguments.rounded:
        rounded = logits(arguments.checkpoint, torch.bfloat16, prompts)
        tensors |= {f"rounded/{i}": rows for i, rows in enumerate(rounded)}
    save_file(tensors, arguments.out)


if __name__ == "__main__":
    main()
