"""Mistral Small 4: attention over latents, experts beside a shared one."""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers.cache_utils import DynamicCache

import routing
from ablations import changed, hooked
from common import distance, entropy, load, run, write_facts
from families.gemma4 import attribute, identity
from hybrid import refuse_unless

# The last two are longer than every original context.
LENGTHS = [1, 7, 67, 131]
MOVED = 0.05
HEAD_GAIN = 3.0
WHOLE = "language_model."


def text(layers, hidden, vocabulary, heads, sizes, experts, /, *, rope, **keys):
    """`sizes`: widths of a key, of its rotated part, of a value, of the latent, and of that of queries or None.
    `experts`: how many, chosen ones, their width, shared ones."""
    key, rotated, value, latent, query = sizes
    count, active, width, shared = experts
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "dtype": "float32",
        "eos_token_id": 2,
        "first_k_dense_replace": 0,
        "head_dim": key + rotated,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": 40,
        "kv_lora_rank": latent,
        "max_position_embeddings": 512,
        "model_type": "mistral4",
        "moe_intermediate_size": width,
        "n_group": 1,
        "n_routed_experts": count,
        "n_shared_experts": shared,
        "norm_topk_prob": True,
        "num_attention_heads": heads,
        "num_experts_per_tok": active,
        "num_hidden_layers": layers,
        "num_key_value_heads": heads,
        "pad_token_id": 11,
        "q_lora_rank": query,
        "qk_nope_head_dim": key,
        "qk_rope_head_dim": rotated,
        "rms_norm_eps": 1e-5,
        "rope_interleave": True,
        "rope_parameters": {
            "beta_fast": 4.0,
            "beta_slow": 1.0,
            "factor": 8.0,
            "llama_4_scaling_beta": 0.3,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 32,
            "partial_rotary_factor": rotated / (key + rotated),
            "rope_theta": 100.0,
            "rope_type": "yarn",
        }
        | rope,
        "routed_scaling_factor": 1.0,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "use_cache": True,
        "v_head_dim": value,
        "vocab_size": vocabulary,
    } | keys


def text_only(config):
    return config | {"architectures": ["Mistral4ForCausalLM"], "transformers_version": transformers.__version__}


def multimodal(config):
    """As released: the text part below `text_config`, a tower beside it."""
    return {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "dtype": "float32",
        "image_token_index": 10,
        "model_type": "mistral3",
        "multimodal_projector_bias": False,
        "projector_hidden_act": "gelu",
        "spatial_merge_size": 2,
        "text_config": config,
        "tie_word_embeddings": config["tie_word_embeddings"],
        "transformers_version": "5.5.0.dev0",
        "vision_config": {"hidden_size": 8, "model_type": "pixtral"},
        "vision_feature_layer": -1,
    }


def catalogue():
    return {
        # As the release: several heads, queries of a latent, many experts; multimodal names.
        "mistral4": multimodal(text(3, 68, 83, 5, (12, 8, 20, 36, 28), (24, 4, 20, 1), rope={})),
        # One head, whose queries are made directly; few experts behind a dense layer, two shared ones; tied.
        "mistral4-one": text_only(
            text(
                3,
                44,
                71,
                1,
                (10, 6, 14, 20, None),
                (5, 2, 24, 2),
                rope={"original_max_position_embeddings": 16},
                first_k_dense_replace=1,
                tie_word_embeddings=True,
            )
        ),
        # Pairs of halves, cosines that are scaled instead of scores, weights that are not renormalised.
        "mistral4-halves": text_only(
            text(
                2,
                52,
                83,
                3,
                (14, 10, 12, 24, 20),
                (5, 2, 20, 1),
                rope={"mscale": 0.0, "mscale_all_dim": 0.0, "original_max_position_embeddings": 24},
                norm_topk_prob=False,
                rope_interleave=False,
            )
        ),
        # Widths that cards have kernels for, none a whole panel of 64; three heads, queries of a latent.
        "mistral4-eights": multimodal(text(2, 72, 83, 3, (16, 8, 24, 40, 32), (5, 2, 32, 1), rope={})),
    }


class Layout:
    """What prompts are chosen by."""

    def __init__(self, config):
        self.text, self.vocabulary = config, config["vocab_size"]


def text_of(config):
    return config.get("text_config", config)


def weights(config, rng):
    """Weights with which every part of a layer moves the logits, under the names of releases."""
    whole = WHOLE if "text_config" in config else ""
    prefix, text = whole + "model.", text_of(config)
    hidden, vocabulary, heads = text["hidden_size"], text["vocab_size"], text["num_attention_heads"]
    key, rotated, value = text["qk_nope_head_dim"], text["qk_rope_head_dim"], text["v_head_dim"]
    latent, query = text["kv_lora_rank"], text["q_lora_rank"]
    tensors = {}

    def normal(name, dims, mean, deviation):
        values = mean + deviation * rng.standard_normal(dims)
        tensors[name] = torch.from_numpy(values.astype(np.float32))

    def linear(name, rows, columns, gain=1.0):
        normal(name + ".weight", (rows, columns), 0.0, gain / columns**0.5)

    def gated(name, width):
        linear(name + ".gate_proj", width, hidden, 1.5)
        linear(name + ".up_proj", width, hidden)
        linear(name + ".down_proj", hidden, width)

    normal(prefix + "embed_tokens.weight", (vocabulary, hidden), 0.0, HEAD_GAIN / hidden**0.5)
    for layer in range(text["num_hidden_layers"]):
        at = f"{prefix}layers.{layer}."
        for norm in ["input", "post_attention"]:
            normal(f"{at}{norm}_layernorm.weight", (hidden,), 1.0, 0.2)
        attention = at + "self_attn."
        if query is None:
            linear(attention + "q_proj", heads * (key + rotated), hidden, 1.4)
        else:
            linear(attention + "q_a_proj", query, hidden)
            normal(attention + "q_a_layernorm.weight", (query,), 1.3, 0.4)
            linear(attention + "q_b_proj", heads * (key + rotated), query)
        linear(attention + "kv_a_proj_with_mqa", latent + rotated, hidden, 1.2)
        normal(attention + "kv_a_layernorm.weight", (latent,), 1.2, 0.4)
        linear(attention + "kv_b_proj", heads * (key + value), latent)
        linear(attention + "o_proj", hidden, heads * value)
        if layer < text["first_k_dense_replace"]:
            gated(at + "mlp", text["intermediate_size"])
            continue
        count, width = text["n_routed_experts"], text["moe_intermediate_size"]
        linear(at + "mlp.gate", count, hidden, 2.0)
        normal(at + "mlp.experts.gate_up_proj", (count, 2 * width, hidden), 0.0, 1.5 * hidden**-0.5)
        normal(at + "mlp.experts.down_proj", (count, hidden, width), 0.0, 1.5 * width**-0.5)
        gated(at + "mlp.shared_experts", width * text["n_shared_experts"])
    normal(prefix + "norm.weight", (hidden,), 1.0, 0.2)
    if not text["tie_word_embeddings"]:
        normal(whole + "lm_head.weight", (vocabulary, hidden), 0.0, HEAD_GAIN / hidden**0.5)
    if whole:
        # Of the tower, which nothing reads.
        normal("vision_tower.patch_conv.weight", (8, 12), 0.0, 1.0)
        normal("multi_modal_projector.linear_1.weight", (hidden, 8), 0.0, 1.0)
    return tensors


def ablations(model, config):
    """For every part of the model: its name, and a context that leaves it out."""
    layers, rotary, rope = model.model.layers, model.model.rotary_emb, config["rope_parameters"]
    attending = [layer.self_attn for layer in layers]
    sparse = [layer.mlp for layer in layers if hasattr(layer.mlp, "experts")]
    of = model.config.rope_parameters
    key, rotated, latent = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["kv_lora_rank"]
    zero = lambda *given: 0 * given[-1]

    def plain(inverse):
        return rope["rope_theta"] ** -(torch.arange(len(inverse)) / len(inverse))

    def without_keys(weight):
        """What makes values alone."""
        out = weight.clone()
        out.view(config["num_attention_heads"], -1, latent)[:, :key] = 0.0
        return out

    def without_rotated(weight):
        out = weight.clone()
        out[latent:] = 0.0
        return out

    def unscaled(_):
        return (key + rotated) ** -0.5

    def beta(value):
        return attribute([model.config], "rope_parameters", lambda _: of | {"llama_4_scaling_beta": value})

    found = {
        "attention": hooked(attending, lambda *given: (0 * given[-1][0], given[-1][1])),
        "keys_of_latents": changed([it.kv_b_proj.weight for it in attending], without_keys),
        "rotated_keys": changed([it.kv_a_proj_with_mqa.weight for it in attending], without_rotated),
        "kv_norm": hooked([it.kv_a_layernorm for it in attending], identity),
        "rotary": changed([rotary.inv_freq], torch.zeros_like),
        "yarn": changed([rotary.inv_freq], plain),
        "pairs": attribute([model.config], "rope_interleave", lambda it: not it.rope_interleave),
        "query_scale": beta(0.0),
        "experts": hooked([it.experts for it in sparse], zero),
        "shared": hooked([it.shared_experts for it in sparse], zero),
        "router_weights": hooked([it.gate for it in sparse], lambda _, __, out: (out[0], out[1] * 0 + 0.5, out[2])),
        "router_renormalised": attribute([it.gate for it in sparse], "norm_topk_prob", lambda it: not it.norm_topk_prob),
    }
    if config["q_lora_rank"]:
        found["q_norm"] = hooked([it.q_a_layernorm for it in attending], identity)
    if rope["mscale_all_dim"]:
        found["score_factor"] = attribute(attending, "scaling", unscaled)
    else:
        found["cosine_factor"] = attribute([rotary], "attention_scaling", lambda _: 1.0)
    return found


@torch.inference_mode()
def decoded(model, tokens):
    """Logits of a prompt fed token by token with transformers' cache, which holds latents."""
    cache, rows = DynamicCache(config=model.config), []
    for token in tokens:
        rows.append(model(torch.tensor([[token]]), past_key_values=cache, use_cache=True).logits[0])
    return torch.cat(rows).float()


def readable(tensors, config, directory):
    """A directory that transformers reads as the text model alone."""
    directory.mkdir()
    named = {k.removeprefix(WHOLE): v for k, v in tensors.items()}
    named = {k: v for k, v in named.items() if not k.startswith(("vision_tower.", "multi_modal_projector."))}
    save_file(named, directory / "model.safetensors", {"format": "pt"})
    (directory / "config.json").write_text(json.dumps(text_only(text_of(config))))


def loaded(directory, dtype):
    """transformers has no automatic class for it."""
    return load(directory, dtype, transformers.Mistral4ForCausalLM)


def make(name, config, seed, directory):
    """Writes one golden below `directory`."""
    rng = np.random.Generator(np.random.PCG64(seed))
    tensors, text = weights(config, rng), text_of(config)
    out = directory / name
    out.mkdir(parents=True)
    (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    facts = {"seed": seed, "torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    with tempfile.TemporaryDirectory() as scratch:
        scratch, models, held = Path(scratch), {}, {}
        for stored, dtype in [("f32", torch.float32), ("bf16", torch.bfloat16)]:
            (out / stored).mkdir()
            held[stored] = {k: v.to(dtype) for k, v in tensors.items()}
            save_file(held[stored], out / stored / "model.safetensors", {"format": "pt"})
            readable(held[stored], config, scratch / stored)
            models[stored] = loaded(scratch / stored, torch.float32)
        watched = {stored: routing.Model(model, Layout(text), {}) for stored, model in models.items()}
        prompts = [routing.prompt(list(watched.values()), rng, length) for length in LENGTHS]
        (out / "tokens.json").write_text(json.dumps(prompts, separators=(",", ":")) + "\n")
        for stored, model in models.items():
            logits = run(model, prompts)
            save_file({str(i): row for i, row in enumerate(logits)}, out / stored / "logits.safetensors")
            largest = max(row.abs().max().item() for row in logits)
            refuse_unless(1.0 < largest < 40.0, f"{name}: largest logit {largest}")
            lead = min(watched[stored].run([prompt])[2].min().item() for prompt in prompts)
            refuse_unless(lead > 0.99 * routing.LEAD, f"{name}: router lead {lead}")
            facts[f"{stored}_router_lead"] = lead
            if stored == "bf16":
                facts["torch_bf16"] = distance(run(loaded(scratch / stored, torch.bfloat16), prompts), logits)
                continue
            exact = distance(run(loaded(scratch / stored, torch.float64), prompts), logits)
            refuse_unless(exact < 5e-5, f"{name}: ill-conditioned, f32 is {exact} from f64")
            apart = distance([decoded(model, prompts[-1])], logits[-1:])
            refuse_unless(apart < 5e-5, f"{name}: transformers' decoding is {apart} from its one pass")
            facts |= {"largest_logit": largest, "f32_from_f64": exact, "decoded_from_one_pass": apart}
            facts["attention_entropy"] = mean = entropy(model, prompts[2])
            refuse_unless(0.3 < mean < 0.97, f"{name}: attention entropy {mean}")
            without = {}
            for part, context in ablations(model, text).items():
                with context:
                    without[part] = float(f"{distance(run(model, prompts[2:]), logits[2:]):.3g}")
            refuse_unless(distance(run(model, prompts[2:3]), logits[2:3]) == 0.0, f"{name}: a part was not put back")
            small = {part: moved for part, moved in without.items() if moved <= MOVED}
            refuse_unless(not small, f"{name}: leaving out moves the logits little: {small}")
            facts["without"] = without
    write_facts(facts, out / "golden.json")
