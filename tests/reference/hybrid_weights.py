"""Random weights of the hybrid and mixture-of-experts families, under the names that releases use."""

import re

import numpy as np
import torch

HEAD_GAIN = 3.0
# The share of a key's projection that is the query's.
LIKE = 0.8


class Layout:
    """The kind of each layer, from a config."""

    def __init__(self, config):
        text = config.get("text_config", config)
        self.text, self.multimodal = text, "text_config" in config
        self.family = text["model_type"].removesuffix("_text")
        # These have neither linear layers, nor 1+w norms, nor a gate on attention.
        self.plain = self.family in ("qwen3_moe", "qwen3_vl_moe", "minimax_m2")
        # Corrected sigmoids choose experts, and norms of queries and keys are over whole rows.
        self.minimax = self.family == "minimax_m2"
        self.experts = text.get("num_local_experts" if self.minimax else "num_experts")
        self.layers = text["num_hidden_layers"]
        interval = text.get("full_attention_interval", 4)
        self.kinds = text.get("layer_types") or [
            "full_attention" if self.plain or (i + 1) % interval == 0 else "linear_attention"
            for i in range(self.layers)
        ]
        self.tied = (config if self.multimodal else text).get("tie_word_embeddings", False)
        self.head_dim = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
        # Ids that a prompt may contain: all but those that stand for images.
        self.vocabulary = text["vocab_size"] - (4 if self.multimodal else 0)

    def sparse(self, layer):
        text = self.text
        if self.experts is None:
            return False
        if self.minimax or self.family == "qwen3_5_moe":
            return True
        return layer not in text.get("mlp_only_layers", []) and (layer + 1) % text.get("decoder_sparse_step", 1) == 0


class Maker:
    """Draws the tensors of one checkpoint."""

    def __init__(self, config, rng, per_expert):
        self.layout, self.rng, self.per_expert, self.tensors = Layout(config), rng, per_expert, {}
        self.text = self.layout.text
        self.hidden = self.text["hidden_size"]

    def normal(self, name, dims, mean, deviation):
        values = mean + deviation * self.rng.standard_normal(dims)
        self.tensors[name] = torch.from_numpy(values.astype(np.float32))

    def linear(self, name, rows, columns, gain=1.0):
        self.normal(f"{name}.weight", (rows, columns), 0.0, gain / columns**0.5)

    def norm(self, name, width, plain):
        self.normal(f"{name}.weight", (width,), 1.0 if plain else 0.0, 0.2)

    def attention(self, prefix):
        text, plain, dim = self.text, self.layout.plain, self.layout.head_dim
        heads, kv_heads = text["num_attention_heads"], text["num_key_value_heads"]
        self.linear(prefix + "q_proj", heads * dim * (1 if plain else 2), self.hidden)
        self.linear(prefix + "k_proj", kv_heads * dim, self.hidden)
        self.linear(prefix + "v_proj", kv_heads * dim, self.hidden)
        # The gate halves the output of attention.
        self.linear(prefix + "o_proj", self.hidden, heads * dim, 0.8 if plain else 1.6)
        rows = self.layout.minimax
        self.norm(prefix + "q_norm", heads * dim if rows else dim, plain)
        self.norm(prefix + "k_norm", kv_heads * dim if rows else dim, plain)

    def delta(self, prefix):
        text = self.text
        key_heads, value_heads = text["linear_num_key_heads"], text["linear_num_value_heads"]
        keys, values = key_heads * text["linear_key_head_dim"], value_heads * text["linear_value_head_dim"]
        taps = text["linear_conv_kernel_dim"]

        def draw(*dims, mean=0.0, deviation=1.0):
            return torch.from_numpy((mean + deviation * self.rng.standard_normal(dims)).astype(np.float32))

        # Keys resemble queries; otherwise outputs were sums that cancel, which the norm after them amplifies.
        q, k = draw(keys, self.hidden), draw(keys, self.hidden)
        v, z = draw(values, self.hidden), draw(values, self.hidden)
        b, a = draw(value_heads, self.hidden), draw(value_heads, self.hidden)
        q, k, v, z, b, a = (x / self.hidden**0.5 for x in (q, LIKE * q + (1 - LIKE**2) ** 0.5 * k, v, z, b, a))
        if self.layout.family == "qwen3_next":
            grouped = [x.unflatten(0, (key_heads, -1)) for x in (q, k, v, z, b, a)]
            self.tensors[prefix + "in_proj_qkvz.weight"] = torch.cat(grouped[:4], 1).flatten(0, 1)
            self.tensors[prefix + "in_proj_ba.weight"] = torch.cat(grouped[4:], 1).flatten(0, 1)
        else:
            self.tensors[prefix + "in_proj_qkv.weight"] = torch.cat([q, k, v])
            for name, x in (("z", z), ("b", b), ("a", a)):
                self.tensors[f"{prefix}in_proj_{name}.weight"] = x
        q, k = (draw(keys, 1, taps, mean=0.1, deviation=0.6) for _ in range(2))
        v = draw(values, 1, taps, mean=0.2, deviation=1.2)
        self.tensors[prefix + "conv1d.weight"] = torch.cat([q, LIKE * q + (1 - LIKE**2) ** 0.5 * k, v])
        # Decay times from two tokens to several chunks of 64.
        a_log = np.log(self.rng.uniform(0.05, 3.0, value_heads))
        self.tensors[prefix + "A_log"] = torch.from_numpy(a_log.astype(np.float32))
        self.normal(prefix + "dt_bias", (value_heads,), -2.0, 1.0)
        self.norm(prefix + "norm", text["linear_value_head_dim"], True)
        self.linear(prefix + "out_proj", self.hidden, values, 0.7)

    def dense(self, prefix, width):
        self.linear(prefix + "gate_proj", width, self.hidden)
        self.linear(prefix + "up_proj", width, self.hidden)
        self.linear(prefix + "down_proj", self.hidden, width, 0.9)

    def mixture(self, prefix):
        text, minimax, count = self.text, self.layout.minimax, self.layout.experts
        width, active = text["intermediate_size" if minimax else "moe_intermediate_size"], text["num_experts_per_tok"]
        # Many experts have close logits: with a wider spread, some prompts choose clearly.
        self.linear(prefix + "gate", count, self.hidden, 3.0 if count > 16 else 1.5)
        gate_up = self.rng.standard_normal((count, 2 * width, self.hidden)) / self.hidden**0.5
        # The mean over active experts with independent directions would be small.
        down = 1.2 * active**0.5 * self.rng.standard_normal((count, self.hidden, width)) / width**0.5
        gate_up, down = (torch.from_numpy(x.astype(np.float32)) for x in (gate_up, down))
        if self.per_expert:
            gate_name, up_name, down_name = ("w1", "w3", "w2") if minimax else ("gate_proj", "up_proj", "down_proj")
            for e in range(count):
                self.tensors[f"{prefix}experts.{e}.{gate_name}.weight"] = gate_up[e, :width].contiguous()
                self.tensors[f"{prefix}experts.{e}.{up_name}.weight"] = gate_up[e, width:].contiguous()
                self.tensors[f"{prefix}experts.{e}.{down_name}.weight"] = down[e].contiguous()
        else:
            self.tensors[prefix + "experts.gate_up_proj"] = gate_up
            self.tensors[prefix + "experts.down_proj"] = down
        if minimax:
            # As wide as sigmoids are, so that it changes many choices.
            self.normal(prefix + "e_score_correction_bias", (count,), 0.3, 0.3)
        if "shared_expert_intermediate_size" in text:
            self.dense(prefix + "shared_expert.", text["shared_expert_intermediate_size"])
            self.linear(prefix + "shared_expert_gate", 1, self.hidden, 1.5)

    def layer(self, prefix, full, sparse):
        self.norm(prefix + "input_layernorm", self.hidden, self.layout.plain)
        if full:
            self.attention(prefix + "self_attn.")
        else:
            self.delta(prefix + "linear_attn.")
        self.norm(prefix + "post_attention_layernorm", self.hidden, self.layout.plain)
        if sparse:
            self.mixture(prefix + ("block_sparse_moe." if self.layout.minimax else "mlp."))
        else:
            self.dense(prefix + "mlp.", self.text["intermediate_size"])

    def draft(self):
        """The draft layer, at the top level in every release."""
        for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            self.norm(f"mtp.{name}", self.hidden, False)
        self.linear("mtp.fc", self.hidden, 2 * self.hidden)
        self.layer("mtp.layers.0.", True, "num_experts" in self.text)

    def vision(self, config):
        """The whole tower: no text uses it, but transformers requires it, and other readers may."""
        prefix, hidden, width = "model.visual.", config["hidden_size"], config["intermediate_size"]
        patch = (config["in_channels"], config["temporal_patch_size"], config["patch_size"], config["patch_size"])
        merged = hidden * config["spatial_merge_size"] ** 2

        def biased(name, *dims):
            self.normal(f"{prefix}{name}.weight", dims, 0.0, 0.3)
            self.normal(f"{prefix}{name}.bias", (dims[0],), 0.0, 0.3)

        biased("patch_embed.proj", hidden, *patch)
        self.normal(prefix + "pos_embed.weight", (config["num_position_embeddings"], hidden), 0.0, 0.3)
        for block in range(config["depth"]):
            for norm in ("norm1", "norm2"):
                biased(f"blocks.{block}.{norm}", hidden)
            biased(f"blocks.{block}.attn.qkv", 3 * hidden, hidden)
            biased(f"blocks.{block}.attn.proj", hidden, hidden)
            biased(f"blocks.{block}.mlp.linear_fc1", width, hidden)
            biased(f"blocks.{block}.mlp.linear_fc2", hidden, width)
        # Qwen3-VL's further mergers norm after four patches are concatenated.
        deep = [(f"deepstack_merger_list.{i}.", merged) for i in range(len(config["deepstack_visual_indexes"]))]
        for name, normed in [("merger.", hidden), *deep]:
            biased(f"{name}norm", normed)
            biased(f"{name}linear_fc1", merged, merged)
            biased(f"{name}linear_fc2", config["out_hidden_size"], merged)


def weights(config, rng, per_expert=False, draft=False, **_):
    """Weights with which every part of the model moves the logits and none dominates."""
    maker = Maker(config, rng, per_expert)
    layout = maker.layout
    prefix = "model.language_model." if layout.multimodal else "model."
    rows = (maker.text["vocab_size"], maker.hidden)
    maker.normal(prefix + "embed_tokens.weight", rows, 0.0, HEAD_GAIN / maker.hidden**0.5 if layout.tied else 1.0)
    for i, kind in enumerate(layout.kinds):
        maker.layer(f"{prefix}layers.{i}.", kind == "full_attention", layout.sparse(i))
    maker.norm(prefix + "norm", maker.hidden, layout.plain)
    if not layout.tied:
        maker.linear("lm_head", *rows, HEAD_GAIN)
    if draft:
        maker.draft()
    if layout.multimodal:
        maker.vision(config["vision_config"])
    return maker.tensors


def stacked(tensors):
    """The same weights with experts stacked, the only form of Qwen3.5's and Qwen3-VL's that transformers reads."""
    pattern = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")
    out, experts = {}, {}
    for name, tensor in tensors.items():
        if match := pattern.fullmatch(name):
            experts.setdefault(match[1], {})[int(match[2]), match[3]] = tensor
        else:
            out[name] = tensor
    for prefix, parts in experts.items():
        count = len(parts) // 3
        gate_up = [torch.cat([parts[e, "gate"], parts[e, "up"]]) for e in range(count)]
        out[f"{prefix}.gate_up_proj"] = torch.stack(gate_up)
        out[f"{prefix}.down_proj"] = torch.stack([parts[e, "down"] for e in range(count)])
    return out
