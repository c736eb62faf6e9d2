"""Nemotron-H, with Mamba-2 layers: recurrent state, one mixer per layer."""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers.cache_utils import DynamicCache

from ablations import changed, current_tap
from common import distance, load, run, write_facts
from hybrid import refuse_unless

# The last prompt spans several of transformers' chunks.
LENGTHS = [1, 7, 67, 131]
MOVED = 0.05
HEAD_GAIN = 3.0


def nemotron(pattern, hidden, vocabulary, heads, head_dim, groups, state, **keys):
    return {
        "architectures": ["NemotronHForCausalLM"],
        "bos_token_id": 1,
        "chunk_size": 32,
        "conv_kernel": 4,
        "dtype": "float32",
        "eos_token_id": 2,
        "expand": 2,
        "hidden_size": hidden,
        "hybrid_override_pattern": pattern,
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-5,
        "mamba_head_dim": head_dim,
        "mamba_hidden_act": "silu",
        "mamba_num_heads": heads,
        "mamba_proj_bias": False,
        "mamba_ssm_cache_dtype": "float32",
        "max_position_embeddings": 512,
        "model_type": "nemotron_h",
        "n_groups": groups,
        "num_hidden_layers": len(pattern),
        "pad_token_id": 0,
        "ssm_state_size": state,
        "tie_word_embeddings": False,
        "transformers_version": transformers.__version__,
        "use_bias": False,
        "use_cache": True,
        "use_conv_bias": True,
        "vocab_size": vocabulary,
    } | keys


def catalogue():
    return {
        # Two groups of three heads, no width a multiple of a vector, untied.
        "nemotron-h-mamba": nemotron("MMMM", 36, 71, 6, 20, 2, 12),
    }


def weights(config, rng):
    """Weights with which every part of a layer moves the logits, under the names of releases."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    heads, groups, state = config["mamba_num_heads"], config["n_groups"], config["ssm_state_size"]
    inner = heads * config["mamba_head_dim"]
    channels = inner + 2 * groups * state
    tensors = {}

    def normal(name, dims, mean, deviation):
        values = mean + deviation * rng.standard_normal(dims)
        tensors[name] = torch.from_numpy(values.astype(np.float32))

    normal("backbone.embeddings.weight", (vocabulary, hidden), 0.0, 1.0)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"backbone.layers.{layer}."
        mixer = prefix + "mixer."
        normal(prefix + "norm.weight", (hidden,), 1.0, 0.2)
        normal(mixer + "in_proj.weight", (inner + channels + heads, hidden), 0.0, hidden**-0.5)
        normal(mixer + "conv1d.weight", (channels, 1, config["conv_kernel"]), 0.2, 0.7)
        normal(mixer + "conv1d.bias", (channels,), 0.0, 0.3)
        # Decay times from two tokens to a hundred.
        a_log = np.log(rng.uniform(0.05, 3.0, heads))
        tensors[mixer + "A_log"] = torch.from_numpy(a_log.astype(np.float32))
        # Time steps above 0.001, to which transformers raises smaller ones, but only in prefill.
        normal(mixer + "dt_bias", (heads,), -1.0, 0.5)
        normal(mixer + "D", (heads,), 1.0, 0.5)
        normal(mixer + "norm.weight", (inner,), 1.0, 0.2)
        normal(mixer + "out_proj.weight", (hidden, inner), 0.0, inner**-0.5)
    normal("backbone.norm_f.weight", (hidden,), 1.0, 0.2)
    normal("lm_head.weight", (vocabulary, hidden), 0.0, HEAD_GAIN / hidden**0.5)
    return tensors


def ablations(model, config):
    """For every part of the model: its name, and a context that leaves it out."""
    mixers = [layer.mixer for layer in model.model.layers]
    heads, groups, state = config["mamba_num_heads"], config["n_groups"], config["ssm_state_size"]
    inner = heads * config["mamba_head_dim"]

    def part(first, length):
        def zeroed(weight):
            changed = weight.clone()
            changed[first : first + length] = 0
            return changed

        return changed([mixer.in_proj.weight for mixer in mixers], zeroed)

    return {
        "x": part(inner, inner),
        "b": part(2 * inner, groups * state),
        "c": part(2 * inner + groups * state, groups * state),
        "dt": part(2 * inner + 2 * groups * state, heads),
        "convolution": changed([mixer.conv1d.weight for mixer in mixers], current_tap),
        "convolution_bias": changed([mixer.conv1d.bias for mixer in mixers], torch.zeros_like),
        "decay": changed([mixer.A_log for mixer in mixers], lambda a_log: a_log - 20),
        "memory": changed([mixer.A_log for mixer in mixers], lambda a_log: a_log + 20),
        "dt_bias": changed([mixer.dt_bias for mixer in mixers], torch.zeros_like),
        "d": changed([mixer.D for mixer in mixers], torch.zeros_like),
        "norm": changed([mixer.norm.weight for mixer in mixers], torch.ones_like),
    }


@torch.inference_mode()
def decoded(model, tokens):
    """Logits of a prompt fed one token at a time with transformers' cache: the recurrent form."""
    cache, rows = DynamicCache(config=model.config), []
    for token in tokens:
        # Layer by layer: the whole model asks the cache for what only attention has.
        hidden = model.model.embeddings(torch.tensor([[token]]))
        for layer in model.model.layers:
            hidden = layer(hidden, past_key_values=cache, use_cache=True)
        rows.append(model.lm_head(model.model.norm_f(hidden))[0])
    return torch.cat(rows).float()


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
        (out / stored).mkdir()
        held = {k: v.to(dtype) for k, v in tensors.items()}
        save_file(held, out / stored / "model.safetensors", {"format": "pt"})
        with tempfile.TemporaryDirectory() as scratch:
            # transformers calls the backbone `model` and requires the config beside the weights.
            scratch = Path(scratch)
            named = {k.replace("backbone.", "model."): v for k, v in held.items()}
            save_file(named, scratch / "model.safetensors", {"format": "pt"})
            (scratch / "config.json").write_text(text)
            model = load(scratch, torch.float32)
            logits = run(model, prompts)
            save_file({str(i): row for i, row in enumerate(logits)}, out / stored / "logits.safetensors")
            largest = max(row.abs().max().item() for row in logits)
            refuse_unless(1.0 < largest < 40.0, f"{name}: largest logit {largest}")
            if stored == "bf16":
                facts["torch_bf16"] = distance(run(load(scratch, torch.bfloat16), prompts), logits)
                continue
            exact = distance(run(load(scratch, torch.float64), prompts), logits)
            refuse_unless(exact < 5e-5, f"{name}: ill-conditioned, f32 is {exact} from f64")
            apart = distance([decoded(model, prompts[-1])], logits[-1:])
            refuse_unless(apart < 5e-5, f"{name}: transformers' decoding is {apart} from its one pass")
            facts |= {"largest_logit": largest, "f32_from_f64": exact, "decoded_from_one_pass": apart}
            without = {}
            for part, context in ablations(model, config).items():
                with context:
                    without[part] = float(f"{distance(run(model, prompts[2:]), logits[2:]):.3g}")
            refuse_unless(distance(run(model, prompts[2:3]), logits[2:3]) == 0.0, f"{name}: a part was not put back")
            small = {part: moved for part, moved in without.items() if moved <= MOVED}
            refuse_unless(not small, f"{name}: leaving out moves the logits little: {small}")
            facts["without"] = without
    write_facts(facts, out / "golden.json")
