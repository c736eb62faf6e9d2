"""Shared by all families of goldens: loads a checkpoint into transformers, runs it, compares and checks the
results."""

import json

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

# Same machine: bit for bit equal. Another machine's matrix products sum in another order.
CHECK_TOLERANCE = 2e-6


class RoundedCache(DynamicCache):
    """A cache that holds keys and values in a narrower format, as a server may."""

    stored = torch.float32

    def update(self, keys, values, *rest, **more):
        keys, values = (tensor.to(self.stored).to(tensor.dtype) for tensor in (keys, values))
        return super().update(keys, values, *rest, **more)


class F16Cache(RoundedCache):
    stored = torch.float16


class Bf16Cache(RoundedCache):
    stored = torch.bfloat16


def load(directory, dtype, kind=AutoModelForCausalLM):
    """Loads the checkpoint with transformers, which must use every tensor and miss none."""
    model, report = kind.from_pretrained(
        directory,
        dtype=dtype,
        attn_implementation="eager",
        experts_implementation="eager",
        output_loading_info=True,
    )
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    trouble = (set(report["missing_keys"]) - tied, report["unexpected_keys"], report["mismatched_keys"])
    assert not any(trouble), f"{directory}: {trouble}"
    return model.eval()


@torch.inference_mode()
def run(model, prompts, cache=None):
    rows = []
    for prompt in prompts:
        past = cache(config=model.config) if cache else None
        output = model(torch.tensor([prompt]), past_key_values=past, use_cache=past is not None)
        rows.append(output.logits[0].float().contiguous())
    return rows


def distance(found, expected):
    """Largest difference in any row over that row's largest magnitude."""
    return max(
        ((a - b).abs().amax(-1) / b.abs().amax(-1)).max().item()
        for a, b in zip(found, expected, strict=True)
        if len(b)
    )


@torch.inference_mode()
def entropy(model, prompt):
    """Mean entropy of the attention rows of a prompt, 1 being uniform."""
    attentions = model(torch.tensor([prompt]), output_attentions=True, use_cache=False).attentions
    rows = torch.stack([layer[0] for layer in attentions])[..., 1:, :]
    uniform = torch.log(torch.arange(2, rows.shape[-1] + 1, dtype=rows.dtype))
    return (torch.special.entr(rows).sum(-1) / uniform).mean().item()


def write_facts(facts, file):
    """Three digits suffice, and keep the file unchanged on a machine that rounds differently."""
    facts = {k: float(f"{v:.3g}") if isinstance(v, float) else v for k, v in facts.items()}
    file.write_text(json.dumps(facts, indent=2) + "\n")
    print(file.parent.name, json.dumps(facts), flush=True)


def check(made, committed):
    """The differences between two trees of goldens."""
    differences = []
    names = {str(p.relative_to(made)) for p in made.rglob("*") if p.is_file()}
    found = {str(p.relative_to(committed)) for p in committed.rglob("*") if p.is_file()}
    differences += [f"{name}: only in one place" for name in sorted(names ^ found)]
    for name in sorted(names & found):
        ours, theirs = made / name, committed / name
        if name.endswith(("logits.safetensors", "mtp.safetensors")):
            ours, theirs = load_file(ours), load_file(theirs)
            if ours.keys() != theirs.keys():
                differences.append(f"{name}: other tensors")
                continue
            apart = distance([ours[k] for k in sorted(ours)], [theirs[k] for k in sorted(ours)])
            if not apart <= CHECK_TOLERANCE:
                differences.append(f"{name}: {apart:.3g} apart")
        elif not name.endswith("golden.json") and ours.read_bytes() != theirs.read_bytes():
            differences.append(f"{name}: differs")
    return differences


def replace(made, committed):
    """Replaces the committed goldens by a tree of new ones."""
    for old in sorted(committed.rglob("*"), reverse=True) if committed.exists() else []:
        old.unlink() if old.is_file() else old.rmdir()
    for file in sorted(made.rglob("*")):
        target = committed / file.relative_to(made)
        if file.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
