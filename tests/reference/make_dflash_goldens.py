"""Makes tests/fixtures/drafters/: tiny random DFlash drafters for the models of some goldens, and the logits of their
blocks. The model's residual streams are those of transformers; the drafter, which transformers does not have, is
written here after its paper (Chen et al., DFlash, 2026) and the published config:

    c_t = w_hidden rms(W_fc [h^l1_t ; ... ; h^lm_t])        h^l: the residual stream BEHIND layer l, counted from 0
    context, per layer:  k = rot_t(w_k rms(W_k c_t)),  v = W_v c_t
    block at n .. n+B-1: x = scale * embedding of [token n, mask, ..., mask]
    per layer:           u = w_in rms(x);  q, k, v of u;  x += W_o attention(q; context up to n-1, block);
                         x += MLP(w_post rms(x))
    logits of row j >= 1, about the token at n+j:  head(w_norm rms(x_j))

A row of a layer of `full_attention` sees all of its block; one of `sliding_attention` the rows up to its own, and of
all positions only those less than `sliding_window` behind it. `is_causal`, or `dflash_config.causal`, says otherwise
of all layers.

    $ .venv/bin/python make_dflash_goldens.py [--check]
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from common import CHECK_TOLERANCE, distance, load

FIXTURES = Path(__file__).parent.parent / "fixtures"
# Tokens of the blocks' contexts: the last of so many is the one sampled last.
LENGTHS = [2, 7, 40, 67]
MOVED = 0.05

# The golden that a drafter is for, its config where it differs from COMMON, and drafts of a block.
COMMON = {
    "architectures": ["DFlashDraftModel"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    "dtype": "float32",
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_window_layers": 5,
    "model_type": "qwen3",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "use_cache": True,
    "use_sliding_window": False,
}
DRAFTERS = {
    # A hybrid; both kinds of layer, of which those that slide are causal.
    "dflash-quarters": {
        "golden": "qwen35-quarters",
        "drafts": [5, 2],
        "config": {
            "block_size": 6,
            "dflash_config": {"mask_token_id": 41, "target_layer_ids": [0, 2, 4]},
            "head_dim": 10,
            "intermediate_size": 26,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "max_position_embeddings": 512,
            "num_attention_heads": 4,
            "num_hidden_layers": 3,
            "num_key_value_heads": 2,
            "num_target_layers": 5,
            "rope_scaling": None,
            "sliding_window": 6,
        },
    },
    # One K/V head, YaRN, scaled embeddings, what keeps the order of logits; no `layer_types`.
    "dflash-deep": {
        "golden": "qwen3-deep",
        "drafts": [7, 3],
        "config": {
            "dflash_config": {
                "block_size": 8,
                "input_embedding_scale": 1.5,
                "mask_token_id": 100,
                "target_layer_ids": [1, 3],
            },
            "final_logit_softcapping": 30.0,
            "head_dim": 12,
            "intermediate_size": 33,
            "max_position_embeddings": 256,
            "num_attention_heads": 3,
            "num_hidden_layers": 2,
            "num_key_value_heads": 1,
            "rope_scaling": {
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "rope_type": "yarn",
            },
        },
    },
    # Layers that slide and see all of their block.
    "dflash-tied": {
        "golden": "qwen3-tied",
        "drafts": [4],
        "config": {
            "block_size": 5,
            "dflash_config": {"causal": False, "mask_token_id": 0, "target_layer_ids": [0]},
            "head_dim": 8,
            "intermediate_size": 20,
            "layer_types": ["sliding_attention", "full_attention"],
            "max_position_embeddings": 256,
            "num_attention_heads": 2,
            "num_hidden_layers": 2,
            "num_key_value_heads": 2,
            "sliding_window": 4,
        },
    },
}


def drawn(config, hidden, rng):
    """Weights of a drafter."""
    heads, kv, dim = (config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    width, taps = config["intermediate_size"], len(config["dflash_config"]["target_layer_ids"])

    def matrix(rows, columns, gain=1.0):
        return torch.from_numpy((gain * rng.standard_normal((rows, columns)) / columns**0.5).astype(np.float32))

    def norm(size, mean=1.0):
        return torch.from_numpy((mean * (1 + 0.2 * rng.standard_normal(size))).astype(np.float32))

    tensors = {"fc.weight": matrix(hidden, taps * hidden), "hidden_norm.weight": norm(hidden)}
    for layer in range(config["num_hidden_layers"]):
        at = f"layers.{layer}."
        tensors |= {
            f"{at}input_layernorm.weight": norm(hidden),
            f"{at}self_attn.q_proj.weight": matrix(heads * dim, hidden),
            f"{at}self_attn.k_proj.weight": matrix(kv * dim, hidden),
            f"{at}self_attn.v_proj.weight": matrix(kv * dim, hidden),
            f"{at}self_attn.o_proj.weight": matrix(hidden, heads * dim, 2.0),
            f"{at}self_attn.q_norm.weight": norm(dim, 1.4),
            f"{at}self_attn.k_norm.weight": norm(dim),
            f"{at}post_attention_layernorm.weight": norm(hidden),
            f"{at}mlp.gate_proj.weight": matrix(width, hidden),
            f"{at}mlp.up_proj.weight": matrix(width, hidden),
            f"{at}mlp.down_proj.weight": matrix(hidden, width, 2.0),
        }
    return tensors | {"norm.weight": norm(hidden)}


def rms(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


class Drafter:
    """A drafter over an embedding and a head; `without` leaves a part of it out."""

    def __init__(self, config, tensors, table, head, dtype, without=None):
        self.config, self.without, self.dtype = config, without, dtype
        self.tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
        self.table, self.head = table.to(dtype), head.to(dtype)
        known = {k: v for k, v in config.items() if k not in ("architectures", "auto_map", "dflash_config")}
        self.rotary = Qwen3RotaryEmbedding(Qwen3Config(**known))

    def weight(self, name):
        return self.tensors[f"{name}.weight"]

    def turned(self, x, positions):
        """x [heads, rows, dim], turned by halves."""
        cos, sin = (it[0].to(self.dtype) for it in self.rotary(x.float(), positions[None]))
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    def keys_and_values(self, layer, x, positions):
        kv, eps = self.config["num_key_value_heads"], self.config["rms_norm_eps"]
        k, v = (
            (x @ self.weight(f"layers.{layer}.self_attn.{part}_proj").T).unflatten(-1, (kv, -1)).transpose(0, 1)
            for part in "kv"
        )
        return self.turned(rms(k, self.weight(f"layers.{layer}.self_attn.k_norm"), eps), positions), v

    def sees(self, layer, rows, keys):
        """Which keys a row sees, by positions."""
        types = self.config.get("layer_types")
        sliding = types is not None and types[layer] == "sliding_attention"
        causal = self.config.get("is_causal", self.config["dflash_config"].get("causal"))
        causal = sliding if causal is None else causal
        if self.without in ("what is causal", "what is whole"):
            causal = self.without == "what is whole"
        apart = rows[:, None] - keys[None]
        seen = torch.ones_like(apart, dtype=torch.bool) if not causal else apart >= 0
        return seen & (apart < self.config["sliding_window"]) if sliding and self.without != "window" else seen

    def block(self, taps, last, drafts):
        """Logits of the drafts behind `last`, with the residual streams `taps` of all tokens before it."""
        config, eps, inner = self.config, self.config["rms_norm_eps"], self.config["dflash_config"]
        heads, dim, n = config["num_attention_heads"], config["head_dim"], len(taps)
        c = taps.to(self.dtype) @ self.weight("fc").T
        if self.without != "hidden_norm":
            c = rms(c, self.weight("hidden_norm"), eps)
        ids = torch.full((1 + drafts,), 0 if self.without == "mask" else inner["mask_token_id"])
        ids[0] = last
        x = self.table[ids] * (1 if self.without == "scale" else inner.get("input_embedding_scale", 1.0))
        context = torch.arange(n)
        rows = torch.arange(n, n + len(ids)) + (self.without == "position")
        for layer in range(config["num_hidden_layers"]):
            at = f"layers.{layer}."
            u = rms(x, self.weight(f"{at}input_layernorm"), eps)
            q = (u @ self.weight(f"{at}self_attn.q_proj").T).unflatten(-1, (heads, dim)).transpose(0, 1)
            q = self.turned(rms(q, self.weight(f"{at}self_attn.q_norm"), eps), rows)
            of = [self.keys_and_values(layer, c, context), self.keys_and_values(layer, u, rows)]
            k, v = (torch.cat(sides, 1).repeat_interleave(heads // config["num_key_value_heads"], 0) for sides in zip(*of))
            seen = self.sees(layer, rows, torch.cat([context, rows]))
            if self.without == "context":
                seen[:, :n] = False
            scores = (q @ k.transpose(-1, -2) * dim**-0.5).masked_fill(~seen, float("-inf"))
            mixed = (scores.softmax(-1) @ v).transpose(0, 1).flatten(-2)
            x = x + mixed @ self.weight(f"{at}self_attn.o_proj").T
            u = rms(x, self.weight(f"{at}post_attention_layernorm"), eps)
            gate = functional.silu(u @ self.weight(f"{at}mlp.gate_proj").T)
            x = x + (gate * (u @ self.weight(f"{at}mlp.up_proj").T)) @ self.weight(f"{at}mlp.down_proj").T
        return rms(x, self.weight("norm"), eps)[1:] @ self.head.T


@torch.inference_mode()
def residuals(golden, prompts, layers):
    """The residual streams of prompts behind these layers of a golden's model, side by side; its table and head."""
    directory = FIXTURES / "goldens" / golden
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        save_file(load_file(directory / "f32/model.safetensors"), scratch / "model.safetensors", {"format": "pt"})
        (scratch / "config.json").write_text((directory / "config.json").read_text())
        model = load(scratch, torch.float32)
    streams = {}

    def keep(layer):
        def hook(_module, _inputs, output):
            streams[layer] = (output[0] if isinstance(output, tuple) else output)[0]

        return hook

    for layer in layers:
        model.model.layers[layer].register_forward_hook(keep(layer))
    found = []
    for prompt in prompts:
        model(torch.tensor([prompt]))
        found.append(torch.cat([streams[layer] for layer in layers], -1).clone())
    return found, model.model.embed_tokens.weight.data, model.lm_head.weight.data


def refuse_unless(holds, what):
    if not holds:
        raise SystemExit(f"refused: {what}")


def make(name, entry, directory):
    """Writes one drafter and its blocks below `directory`."""
    config = COMMON | entry["config"]
    golden = FIXTURES / "goldens" / entry["golden"]
    target = json.loads((golden / "config.json").read_text())
    config |= {"hidden_size": target["hidden_size"], "vocab_size": target["vocab_size"]}
    rng = np.random.Generator(np.random.PCG64(1))
    tensors = drawn(config, target["hidden_size"], rng)
    longest = max(json.loads((golden / "tokens.json").read_text()), key=len)
    contexts = [longest[:length] for length in LENGTHS]
    layers = config["dflash_config"]["target_layer_ids"]
    fed = [tokens[:-1] for tokens in contexts]
    taps, table, head = residuals(entry["golden"], fed, layers)
    shifted = [it + 1 if it + 1 < target["num_hidden_layers"] else it - 1 for it in layers]
    others, *_ = residuals(entry["golden"], fed, shifted)

    def blocks(dtype=torch.float32, without=None):
        drafter = Drafter(config, tensors, table, head, dtype, without)
        given = others if without == "layers of the model" else taps
        return {
            f"{at}.{drafts}": drafter.block(given[at], tokens[-1], drafts).float().contiguous()
            for at, tokens in enumerate(contexts)
            for drafts in entry["drafts"]
        }

    with torch.inference_mode():
        found = blocks()
        exact = distance(found.values(), blocks(torch.float64).values())
        refuse_unless(exact < 5e-5, f"{name}: f32 is {exact} from f64")
        kinds = set(config.get("layer_types") or ["full_attention"])
        parts = ["context", "hidden_norm", "position", "layers of the model"]
        parts += ["what is causal"] if "sliding_attention" in kinds and "causal" not in config["dflash_config"] else []
        parts += ["what is whole"] if "full_attention" in kinds else []
        parts += ["window"] if "sliding_attention" in kinds else []
        parts += ["mask"] if config["dflash_config"]["mask_token_id"] else []
        parts += ["scale"] if "input_embedding_scale" in config["dflash_config"] else []
        without = {part: distance(blocks(without=part).values(), found.values()) for part in parts}
    small = {part: moved for part, moved in without.items() if moved <= MOVED}
    refuse_unless(not small, f"{name}: leaving out moves the logits little: {small}")
    out = directory / name
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    save_file(found, out / "blocks.safetensors")
    facts = {
        "contexts": contexts,
        "f32_from_f64": float(f"{exact:.3g}"),
        "golden": entry["golden"],
        "torch": torch.__version__.split("+")[0],
        "transformers": transformers.__version__,
        "without": {part: float(f"{moved:.3g}") for part, moved in without.items()},
    }
    (out / "golden.json").write_text(json.dumps(facts, sort_keys=True) + "\n")


def main():
    if "--check" not in sys.argv:
        for name, entry in DRAFTERS.items():
            make(name, entry, FIXTURES / "drafters")
        return
    with tempfile.TemporaryDirectory() as scratch:
        for name, entry in DRAFTERS.items():
            make(name, entry, Path(scratch))
            for file in ("model.safetensors", "blocks.safetensors"):
                new, old = (load_file(at / name / file) for at in (Path(scratch), FIXTURES / "drafters"))
                refuse_unless(new.keys() == old.keys(), f"{name}/{file}: other tensors")
                apart = max((new[key] - old[key]).abs().max().item() for key in new)
                refuse_unless(apart <= 10 * CHECK_TOLERANCE, f"{name}/{file}: {apart} from what is committed")


if __name__ == "__main__":
    main()
