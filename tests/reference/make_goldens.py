#!/usr/bin/env python3
"""Tiny random checkpoints with awkward dimensions, and the logits transformers computes from them.

    python make_goldens.py            rewrites tests/fixtures/goldens
    python make_goldens.py NAME...    rewrites these only
    python make_goldens.py --check    recomputes everything and compares with what is committed

For every golden NAME:

    NAME/config.json               as a model of that family would ship it
    NAME/tokens.json               list of token-id lists
    NAME/golden.json               how the golden was made and how well conditioned it is
    NAME/f32/model.safetensors     weights, f32
    NAME/f32/logits.safetensors    logits: f32 tensors "0", "1", ... of shape [tokens, vocabulary]
    NAME/bf16/model.safetensors    the same weights rounded to bf16
    NAME/bf16/logits.safetensors   logits: f32 arithmetic on the bf16 weights, the exact meaning of that checkpoint
    NAME/*/mtp.safetensors         where the checkpoint has a draft layer, its logits: see mtp.py, nemotron_mtp.py

Logits are computed by transformers in f32, with eager attention, without a cache, on one thread. Random
numbers come from numpy's PCG64, which gives the same stream on every machine.
"""

import argparse
import importlib
import sys
import tempfile
from pathlib import Path

import torch
import transformers

from common import check, replace

HERE = Path(__file__).resolve().parent
GOLDENS = HERE.parent / "fixtures" / "goldens"


def families():
    """Every module of `families`: its `catalogue()` maps names to the arguments of `make`."""
    names = sorted(path.stem for path in (HERE / "families").glob("*.py"))
    return [importlib.import_module(f"families.{name}") for name in names]


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--check", action="store_true", help="compare with the committed goldens, write nothing")
    arguments.add_argument("names", nargs="*", help="goldens to make; all of them when none is named")
    arguments = arguments.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    differences = []
    made = set()
    for family in families():
        for seed, (name, entry) in enumerate(family.catalogue().items(), start=1):
            made.add(name)
            if arguments.names and name not in arguments.names:
                continue
            with tempfile.TemporaryDirectory() as scratch:
                scratch = Path(scratch)
                family.make(name, entry, seed, scratch)
                if arguments.check:
                    differences += check(scratch / name, GOLDENS / name)
                else:
                    replace(scratch / name, GOLDENS / name)
    for stray in sorted({path.name for path in GOLDENS.glob("*")} - made):
        differences.append(f"{GOLDENS / stray}: no script makes this")
    print("\n".join(differences) or "goldens are as committed" if arguments.check else "")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
