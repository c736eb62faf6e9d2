"""The Llama and Qwen3 families: attention and a dense block."""

import json

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

from common import Bf16Cache, F16Cache, distance, entropy, load, run, write_facts

LENGTHS = [1, 7, 33, 67]


def llama(**keys):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 256,
        "mlp_bias": False,
        "pad_token_id": None,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "dtype": "float32",
        "transformers_version": transformers.__version__,
        "use_cache": True,
    } | keys


def llama_4(**keys):
    """As transformers 4 wrote it: `rope_theta` and `rope_scaling` at the top level, `torch_dtype`."""
    config = llama(rope_scaling=None, rope_theta=10000.0, torch_dtype="float32", transformers_version="4.46.3")
    del config["rope_parameters"], config["dtype"]
    return config | keys


def qwen3(layers, **keys):
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "layer_types": ["full_attention"] * layers,
        "max_position_embeddings": 256,
        "max_window_layers": layers,
        "num_hidden_layers": layers,
        "pad_token_id": None,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
        "dtype": "float32",
        "sliding_window": None,
        "transformers_version": transformers.__version__,
        "use_cache": True,
        "use_sliding_window": False,
    } | keys


def shape(hidden, heads, kv_heads, head_dim, width, vocabulary, tied):
    return {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": width,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
    }


def catalogue():
    """Name to config. No dimension is a multiple of 32 unless that is what the config tests."""
    return {
        # Odd heads, multi-query, tied, narrower than a vector.
        "llama-multi-query": llama(num_hidden_layers=2, **shape(36, 3, 1, 12, 50, 101, True)),
        # Nine heads in three groups, head_dim not hidden/heads, untied, odd hidden, the Llama 3 base.
        "llama-grouped": llama(
            num_hidden_layers=2,
            rope_parameters={"rope_theta": 500000.0, "rope_type": "default"},
            rms_norm_eps=1e-5,
            **shape(45, 9, 3, 20, 70, 223, False),
        ),
        # Ungrouped, linear scaling, biases on attention only.
        "llama-linear": llama(
            num_hidden_layers=2,
            attention_bias=True,
            rope_parameters={"rope_theta": 10000.0, "rope_type": "linear", "factor": 4.0},
            **shape(50, 5, 5, 10, 66, 131, True),
        ),
        # Llama 3 scaling: with an original context of 64, all three branches are taken.
        "llama-llama3": llama(
            num_hidden_layers=3,
            rope_parameters={
                "rope_theta": 500000.0,
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            **shape(42, 3, 3, 40, 61, 97, False),
        ),
        # YaRN with all defaults; biases everywhere; GELU.
        "llama-yarn": llama(
            num_hidden_layers=2,
            attention_bias=True,
            mlp_bias=True,
            hidden_act="gelu",
            rope_parameters={
                "rope_theta": 10000.0,
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            **shape(52, 4, 2, 24, 75, 113, False),
        ),
        # transformers 4 spelling, YaRN with every field stated, tanh GELU, a large epsilon.
        "llama-yarn-stated": llama_4(
            num_hidden_layers=2,
            hidden_act="gelu_pytorch_tanh",
            rms_norm_eps=1e-3,
            rope_theta=20000.0,
            rope_scaling={
                "rope_type": "yarn",
                "factor": 3.0,
                "original_max_position_embeddings": 80,
                "attention_factor": 1.25,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
                "truncate": False,
            },
            **shape(55, 11, 11, 6, 74, 151, True),
        ),
        # transformers 4 spelling, the oldest form of `rope_scaling`; head_dim left out; ReLU.
        "llama-legacy": {
            key: value
            for key, value in llama_4(
                num_hidden_layers=4,
                hidden_act="relu",
                rope_theta=50000.0,
                rope_scaling={"type": "linear", "factor": 2.5},
                mlp_bias=True,
                **shape(40, 5, 1, None, 57, 101, False),
            ).items()
            if key != "head_dim"
        },
        # Dimensions of whole tiles, so that the paths without remainders have goldens too.
        "llama-aligned": llama(num_hidden_layers=2, **shape(64, 4, 2, 16, 96, 128, True)),
        # Five query heads per key head, head_dim 24, untied.
        "qwen3-multi-query": qwen3(3, **shape(40, 5, 1, 24, 59, 149, False)),
        # hidden no multiple of heads, odd hidden and width, tied.
        "qwen3-tied": qwen3(2, **shape(63, 10, 5, 8, 83, 127, True)),
        # Biases beside q/k norms, YaRN.
        "qwen3-yarn": qwen3(
            2,
            attention_bias=True,
            rope_parameters={
                "rope_theta": 1000000.0,
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            **shape(30, 6, 3, 20, 77, 109, False),
        ),
        # Five layers, seven ungrouped heads.
        "qwen3-deep": qwen3(5, rms_norm_eps=1e-5, **shape(28, 7, 7, 12, 41, 101, True)),
    }


def weights(config, rng):
    """Random weights that make the logits a few units large and attention neither flat nor one-hot."""
    hidden, width, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    qwen = config["model_type"] == "qwen3"
    tensors = {}

    def normal(name, dims, mean, deviation):
        values = mean + deviation * rng.standard_normal(dims)
        tensors[name] = torch.from_numpy(values.astype(np.float32))

    def linear(name, rows, columns, gain, bias):
        normal(f"{name}.weight", (rows, columns), 0.0, gain / columns**0.5)
        if bias:
            normal(f"{name}.bias", (rows,), 0.0, 0.3)

    head_gain = 3.0
    normal(
        "model.embed_tokens.weight",
        (vocabulary, hidden),
        0.0,
        head_gain / hidden**0.5 if config["tie_word_embeddings"] else 1.0,
    )
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        biased = config.get("attention_bias", False)
        normal(prefix + "input_layernorm.weight", (hidden,), 1.0, 0.2)
        linear(attention + "q_proj", heads * head_dim, hidden, 1.0, biased)
        linear(attention + "k_proj", kv_heads * head_dim, hidden, 1.0, biased)
        linear(attention + "v_proj", kv_heads * head_dim, hidden, 1.0, biased)
        linear(attention + "o_proj", hidden, heads * head_dim, 0.8, biased)
        if qwen:
            normal(attention + "q_norm.weight", (head_dim,), 1.1, 0.2)
            normal(attention + "k_norm.weight", (head_dim,), 1.1, 0.2)
        normal(prefix + "post_attention_layernorm.weight", (hidden,), 1.0, 0.2)
        biased = config.get("mlp_bias", False)
        linear(mlp + "gate_proj", width, hidden, 1.0, biased)
        linear(mlp + "up_proj", width, hidden, 1.0, biased)
        linear(mlp + "down_proj", hidden, width, 1.0, biased)
    normal("model.norm.weight", (hidden,), 1.0, 0.2)
    if not config["tie_word_embeddings"]:
        linear("lm_head", vocabulary, hidden, head_gain, False)
    return tensors


def unscale(model):
    """Removes rotary scaling from a model; false if it has none."""
    rotary = model.model.rotary_emb
    if rotary.rope_type == "default":
        return False
    rotary.inv_freq, rotary.attention_scaling = rotary.compute_default_rope_parameters(model.config)[0], 1.0
    return True


def make(name, config, seed, directory):
    """Writes one golden below `directory`."""
    rng = np.random.Generator(np.random.PCG64(seed))
    tensors = weights(config, rng)
    prompts = [rng.integers(0, config["vocab_size"], length).tolist() for length in LENGTHS]
    out = directory / name
    out.mkdir(parents=True)
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    (out / "config.json").write_text(text)
    (out / "tokens.json").write_text(json.dumps(prompts, separators=(",", ":")) + "\n")
    facts = {"seed": seed, "torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    for stored, dtype in [("f32", torch.float32), ("bf16", torch.bfloat16)]:
        files = out / stored
        files.mkdir()
        save_file({k: v.to(dtype) for k, v in tensors.items()}, files / "model.safetensors", {"format": "pt"})
        # transformers requires the config beside the weights; one committed copy serves both formats.
        (files / "config.json").write_text(text)
        model = load(files, torch.float32)
        logits = run(model, prompts)
        save_file({str(i): row for i, row in enumerate(logits)}, files / "logits.safetensors")
        largest = max(row.abs().max().item() for row in logits)
        assert 1.0 < largest < 40.0, f"{name}: largest logit {largest}"
        if stored == "f32":
            mean = entropy(model, prompts[-1])
            assert 0.3 < mean < 0.97, f"{name}: attention entropy {mean}"
            exact = distance(logits, run(load(files, torch.float64), prompts))
            facts |= {"largest_logit": largest, "attention_entropy": mean, "f32_from_f64": exact}
            assert exact < 2e-5, f"{name}: ill-conditioned, f32 is {exact} from f64"
            if unscale(model):
                facts["without_rope_scaling"] = distance(run(model, prompts), logits)
                assert facts["without_rope_scaling"] > 0.05, f"{name}: rope scaling does not show"
        else:
            facts["f16_cache"] = distance(run(model, prompts, F16Cache), logits)
            facts["bf16_cache"] = distance(run(model, prompts, Bf16Cache), logits)
            facts["torch_bf16"] = distance(run(load(files, torch.bfloat16), prompts), logits)
        (files / "config.json").unlink()
    write_facts(facts, out / "golden.json")
