"""Gemma 4: layers with and without a window, whose heads differ; norms before and behind every block; experts
beside the dense block."""

import contextlib
import json
import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers.cache_utils import DynamicCache

import routing
from ablations import changed, hooked
from common import distance, entropy, load, run, write_facts
from hybrid import refuse_unless

LENGTHS = [1, 7, 67, 131]
MOVED = 0.05
HEAD_GAIN = 3.0
# The embeddings are HEAD_GAIN large.
ADDED = 0.8


def text(pattern, hidden, vocabulary, window, heads, kv_heads, head_dim, full_head_dim, width, /, **keys):
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attention_k_eq_v": True,
        "bos_token_id": 2,
        "dtype": "float32",
        "enable_moe_block": False,
        "eos_token_id": 1,
        "final_logit_softcapping": 8.0,
        "global_head_dim": full_head_dim,
        "head_dim": head_dim,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": hidden,
        "hidden_size_per_layer_input": 0,
        "initializer_range": 0.02,
        "intermediate_size": width,
        "layer_types": [{"S": "sliding_attention", "F": "full_attention"}[letter] for letter in pattern],
        "max_position_embeddings": 512,
        "model_type": "gemma4_text",
        "num_attention_heads": heads,
        "num_global_key_value_heads": 1,
        "num_hidden_layers": len(pattern),
        "num_key_value_heads": kv_heads,
        "num_kv_shared_layers": 0,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000.0, "rope_type": "proportional"},
            "sliding_attention": {"rope_theta": 100.0, "rope_type": "default"},
        },
        "sliding_window": window,
        "tie_word_embeddings": True,
        "use_bidirectional_attention": "vision",
        "use_cache": True,
        "use_double_wide_mlp": False,
        "vocab_size": vocabulary,
        "vocab_size_per_layer_input": vocabulary,
    } | keys


def experts(count, active, width):
    return {
        "enable_moe_block": True,
        "moe_intermediate_size": width,
        "num_experts": count,
        "top_k_experts": active,
    }


def text_only(config):
    return config | {"architectures": ["Gemma4ForCausalLM"], "transformers_version": transformers.__version__}


def multimodal(config):
    """As released: the text part below `text_config`, a tower beside it. Ids of images are in no prompt."""
    return {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "audio_config": None,
        "audio_token_id": 300,
        "boa_token_id": 301,
        "boi_token_id": 302,
        "dtype": "float32",
        "eoa_token_id": 303,
        "eoa_token_index": 303,
        "eoi_token_id": 304,
        "eos_token_id": [1, 3],
        "image_token_id": 305,
        "initializer_range": 0.02,
        "model_type": "gemma4",
        "text_config": config,
        "tie_word_embeddings": True,
        "transformers_version": "5.5.0.dev0",
        "video_token_id": 306,
        "vision_config": {"hidden_size": 8, "model_type": "gemma4_vision", "num_hidden_layers": 1},
        "vision_soft_tokens_per_image": 4,
    }


def catalogue():
    return {
        # As 31B: several K/V heads, fewer in layers without a window; it is shorter than two prompts; tied.
        "gemma4-dense": text_only(
            text("SSFSSF", 52, 83, 24, 6, 3, 12, 20, 60, num_global_key_value_heads=2)
        ),
        # As 26B-A4B: few experts beside the dense block, one K/V head, multimodal names; a short window;
        # tied.
        "gemma4-few": multimodal(
            text("SFSF", 44, 71, 5, 3, 1, 12, 24, 28, **experts(5, 2, 20))
        ),
        # Many experts; the window is longer than all prompts; values of their own, no cap, biases, untied.
        "gemma4-wide": text_only(
            text(
                "SFSF",
                68,
                83,
                256,
                4,
                2,
                20,
                12,
                36,
                attention_bias=True,
                attention_k_eq_v=False,
                final_logit_softcapping=None,
                num_global_key_value_heads=None,
                rope_parameters={
                    "full_attention": {"rope_theta": 1000.0, "rope_type": "proportional"},
                    "sliding_attention": {"rope_theta": 100.0, "rope_type": "default"},
                },
                tie_word_embeddings=False,
                **experts(24, 4, 28),
            )
        ),
    }


class Layout:
    """What prompts are chosen by."""

    def __init__(self, config):
        self.text, self.vocabulary = {"num_experts_per_tok": config.get("top_k_experts")}, config["vocab_size"]


class Choices:
    """A model of transformers whose routers are watched, as `routing.prompt` takes them."""

    def __init__(self, model, config):
        self.model, self.layout = model, Layout(config)

    @torch.inference_mode()
    def run(self, sequences):
        tokens, found = torch.tensor(sequences), []
        with hooked([router.proj for router in routers(self.model)], lambda _, __, out: found.append(out.float())):
            logits = self.model(tokens, use_cache=False).logits.float()
        leads, floors = (torch.full(tokens.shape, torch.inf) for _ in range(2))
        for keys in found:
            leads = torch.minimum(leads, routing.lead(keys.view(*tokens.shape, -1), self.layout))
        return logits, None, leads, floors


def routers(model):
    return [layer.router for layer in model.model.layers if hasattr(layer, "router")]


def text_of(config):
    return config.get("text_config", config)


def weights(config, rng):
    """Weights with which every part of a layer moves the logits, under the names of releases."""
    prefix = "model.language_model." if "text_config" in config else "model."
    text = text_of(config)
    hidden, vocabulary = text["hidden_size"], text["vocab_size"]
    tensors = {}

    def normal(name, dims, mean, deviation):
        values = mean + deviation * rng.standard_normal(dims)
        tensors[name] = torch.from_numpy(values.astype(np.float32))

    def linear(name, rows, columns, bias=False, gain=1.0):
        normal(name + ".weight", (rows, columns), 0.0, gain / columns**0.5)
        if bias:
            normal(name + ".bias", (rows,), 0.0, 0.3)

    normal(prefix + "embed_tokens.weight", (vocabulary, hidden), 0.0, HEAD_GAIN / hidden**0.5)
    for layer, kind in enumerate(text["layer_types"]):
        at = f"{prefix}layers.{layer}."
        norms = ["input", "post_attention", "pre_feedforward", "post_feedforward"]
        if text["enable_moe_block"]:
            norms += ["post_feedforward", "pre_feedforward", "post_feedforward"]
        for norm, number in zip(norms, ["", "", "", "", "_1", "_2", "_2"]):
            # What is added to the residual stream is smaller than it is: with more, rounding grows by layers.
            mean = ADDED if norm.startswith("post") and not number else 1.0
            normal(f"{at}{norm}_layernorm{number}.weight", (hidden,), mean, 0.3 * mean)
        normal(at + "layer_scalar", (1,), 0.8, 0.05)
        attention, bias = at + "self_attn.", text["attention_bias"]
        full = kind == "full_attention"
        shared = full and text["attention_k_eq_v"]
        dim = text["global_head_dim"] if full else text["head_dim"]
        heads, kv_heads = text["num_attention_heads"], text["num_key_value_heads"]
        kv_heads = text["num_global_key_value_heads"] if shared else kv_heads
        linear(attention + "q_proj", heads * dim, hidden, bias)
        linear(attention + "k_proj", kv_heads * dim, hidden, bias)
        if not shared:
            linear(attention + "v_proj", kv_heads * dim, hidden, bias)
        linear(attention + "o_proj", hidden, heads * dim, bias)
        # Scores are not divided by the root of the head's width.
        for norm in ["q_norm", "k_norm"]:
            normal(f"{attention}{norm}.weight", (dim,), 0.8, 0.2)
        dense = text["intermediate_size"]
        linear(at + "mlp.gate_proj", dense, hidden, gain=1.5)
        linear(at + "mlp.up_proj", dense, hidden)
        linear(at + "mlp.down_proj", hidden, dense)
        if text["enable_moe_block"]:
            count, width = text["num_experts"], text["moe_intermediate_size"]
            # What the router reads is divided by the root of its width.
            linear(at + "router.proj", count, hidden, gain=3.0 * hidden**0.5)
            normal(at + "router.scale", (hidden,), 1.0, 0.4)
            normal(at + "router.per_expert_scale", (count,), 1.0, 0.5)
            normal(at + "experts.gate_up_proj", (count, 2 * width, hidden), 0.0, hidden**-0.5)
            normal(at + "experts.down_proj", (count, hidden, width), 0.0, width**-0.5)
    normal(prefix + "norm.weight", (hidden,), 1.0, 0.2)
    if not text["tie_word_embeddings"]:
        normal("lm_head.weight", (vocabulary, hidden), 0.0, HEAD_GAIN / hidden**0.5)
    if "text_config" in config:
        # Of the tower, which nothing reads.
        normal("model.vision_tower.patch_embedder.input_proj.weight", (8, 12), 0.0, 1.0)
        normal("model.embed_vision.embedding_projection.weight", (hidden, 8), 0.0, 1.0)
    return tensors


def identity(_, given, __):
    return given[0]


@contextlib.contextmanager
def attribute(objects, name, value):
    """Sets an attribute of all objects."""
    with contextlib.ExitStack() as stack:
        for it in objects:
            stack.enter_context(patch.object(it, name, value(it)))
        yield


def ablations(model, config):
    """For every part of the model: its name, and a context that leaves it out."""
    layers, rotary = model.model.layers, model.model.rotary_emb
    attending = [layer.self_attn for layer in layers]
    zero = lambda *given: 0 * given[-1]

    def frequencies(kind, change):
        name = f"{kind}_attention_inv_freq"
        return changed([getattr(rotary, name)], change)

    def whole(inverse):
        """Turns all pairs of a head."""
        return 1000.0 ** -(torch.arange(len(inverse)) / len(inverse))

    def ones(name):
        return changed([getattr(layer, name).weight for layer in layers], torch.ones_like)

    found = {
        "attention": hooked(attending, lambda *given: (0 * given[-1][0], given[-1][1])),
        "attention_scale": attribute(attending, "scaling", lambda it: it.head_dim**-0.5),
        "dense": hooked([layer.mlp for layer in layers], zero),
        "embedding_scale": changed([model.model.embed_tokens.embed_scale], torch.ones_like),
        "layer_scale": changed([layer.layer_scalar for layer in layers], torch.ones_like),
        "post_attention_norm": hooked([layer.post_attention_layernorm for layer in layers], identity),
        "post_feedforward_norm": hooked([layer.post_feedforward_layernorm for layer in layers], identity),
        "pre_feedforward_weight": ones("pre_feedforward_layernorm"),
        "q_norm": hooked([it.q_norm for it in attending], identity),
        "k_norm": hooked([it.k_norm for it in attending], identity),
        "v_norm": hooked([it.v_norm for it in attending], identity),
        "rotary_full": frequencies("full", torch.zeros_like),
        "rotary_sliding": frequencies("sliding", torch.zeros_like),
    }
    if config["attention_k_eq_v"]:
        # Values that are normed as keys are.
        alike = [it for it in attending if it.v_proj is None]
        found["values_before_norm"] = hooked(
            [it.v_norm for it in alike], lambda norm, given, out: out * alike_weight[norm]
        )
        alike_weight = {it.v_norm: it.k_norm.weight for it in alike}
        found["rotary_part"] = frequencies("full", whole)
    if config["sliding_window"] < max(LENGTHS):
        found["window"] = attribute([model.config], "sliding_window", lambda _: 10 * max(LENGTHS))
        found["window_one_less"] = attribute([model.config], "sliding_window", lambda it: it.sliding_window - 1)
    if config["final_logit_softcapping"]:
        found["cap"] = attribute([model.config], "final_logit_softcapping", lambda _: None)
    if config["enable_moe_block"]:
        found["experts"] = hooked([layer.experts for layer in layers], zero)
        found["experts_norm"] = hooked([layer.pre_feedforward_layernorm_2 for layer in layers], identity)
        found["post_experts_norm"] = hooked([layer.post_feedforward_layernorm_2 for layer in layers], identity)
        found["post_dense_norm"] = hooked([layer.post_feedforward_layernorm_1 for layer in layers], identity)
        found["expert_scales"] = changed([it.per_expert_scale for it in routers(model)], torch.ones_like)
        found["router_scale"] = changed([it.scale for it in routers(model)], torch.ones_like)
        found["router_root"] = attribute(routers(model), "scalar_root_size", lambda _: 1.0)
        found["router_norm"] = hooked([it.norm for it in routers(model)], identity)
        # Whether weights are divided by their sum shows nowhere: the norm behind the experts undoes it.
        found["router_weights"] = hooked(
            routers(model), lambda it, _, out: (out[0], it.per_expert_scale[out[2]], out[2])
        )
    return found


def loaded(directory, dtype):
    """The text model. The factor of embeddings is bf16, as in releases, whatever weights are stored in."""
    model = load(directory, dtype)
    scale = model.model.embed_tokens.embed_scale
    scale.copy_(scale.bfloat16())
    return model


@torch.inference_mode()
def decoded(model, tokens):
    """Logits of a prompt fed token by token with transformers' cache, which forgets what is before a window."""
    cache, rows = DynamicCache(config=model.config), []
    for token in tokens:
        rows.append(model(torch.tensor([[token]]), past_key_values=cache, use_cache=True).logits[0])
    return torch.cat(rows).float()


@torch.inference_mode()
def whole_model(tensors, config, prompts):
    """Logits of the multimodal model, with a tower of no layers."""
    config = json.loads(json.dumps(config))
    config["vision_config"]["num_hidden_layers"] = 0
    config["attn_implementation"] = "eager"
    config = transformers.Gemma4Config(**config)
    model = transformers.Gemma4ForConditionalGeneration(config).eval()
    missing = model.load_state_dict({k: v for k, v in tensors.items() if ".language_model." in k}, strict=False)
    of_text = [name for name in missing.missing_keys if ".language_model." in name]
    refuse_unless(not of_text and not missing.unexpected_keys, f"other tensors: {missing}")
    model.tie_weights()
    scale = model.model.language_model.embed_tokens.embed_scale
    scale.copy_(scale.bfloat16())
    return run(model, prompts)


def prompts_for(models, text, rng):
    """Random prompts; where experts are chosen, such as make every choice clear."""
    if text["enable_moe_block"]:
        both = [Choices(model, text) for model in models]
        return [routing.prompt(both, rng, length) for length in LENGTHS]
    return [rng.integers(0, text["vocab_size"], length).tolist() for length in LENGTHS]


def readable(tensors, config, directory):
    """A directory that transformers reads as the text model alone."""
    directory.mkdir()
    named = {k.replace("model.language_model.", "model."): v for k, v in tensors.items()}
    named = {k: v for k, v in named.items() if not k.startswith(("model.vision_tower.", "model.embed_vision."))}
    save_file(named, directory / "model.safetensors", {"format": "pt"})
    alone = text_only(text_of(config))
    (directory / "config.json").write_text(json.dumps(alone))


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
        prompts = prompts_for(list(models.values()), text, rng)
        (out / "tokens.json").write_text(json.dumps(prompts, separators=(",", ":")) + "\n")
        for stored, model in models.items():
            logits = run(model, prompts)
            save_file({str(i): row for i, row in enumerate(logits)}, out / stored / "logits.safetensors")
            largest = max(row.abs().max().item() for row in logits)
            refuse_unless(1.0 < largest < 40.0, f"{name}: largest logit {largest}")
            if text["enable_moe_block"]:
                lead = min(Choices(model, text).run([prompt])[2].min().item() for prompt in prompts)
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
            if text is not config:
                apart = distance(whole_model(held[stored], config, prompts), logits)
                refuse_unless(apart < 5e-5, f"{name}: the multimodal model is {apart} from its text part")
                facts["text_part_from_whole"] = apart
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
