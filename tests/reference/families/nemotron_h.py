"""Nemotron-H: one block a layer, which is Mamba-2, attention without positions, experts or a dense block."""

import contextlib
import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers.cache_utils import DynamicCache

import nemotron_mtp
import routing
from ablations import changed, current_tap, hooked
from common import distance, entropy, load, run, write_facts
from hybrid import refuse_unless

# The last prompt spans several of transformers' chunks.
LENGTHS = [1, 7, 67, 131]
MOVED = 0.05
HEAD_GAIN = 3.0


def nemotron(pattern, hidden, vocabulary, heads, head_dim, groups, state, /, **keys):
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


def attention(heads, kv_heads, head_dim):
    return {
        "attention_bias": False,
        "head_dim": head_dim,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "partial_rotary_factor": 1.0,
        "rope_theta": 10000,
        "sliding_window": None,
    }


def experts(count, active, width, shared, scale, latent=None):
    return {
        "mlp_bias": False,
        "mlp_hidden_act": "relu2",
        "moe_intermediate_size": width,
        "moe_latent_size": latent,
        "moe_shared_expert_intermediate_size": shared,
        "n_group": 1,
        "n_routed_experts": count,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": active,
        "routed_scaling_factor": scale,
        "topk_group": 1,
    }


def catalogue():
    return {
        # Two groups of three heads, no width a multiple of a vector, untied.
        "nemotron-h-mamba": nemotron("MMMM", 36, 71, 6, 20, 2, 12),
        # One K/V head, few experts, a dense block, tied.
        "nemotron-h-few": nemotron(
            "ME*-ME",
            44,
            71,
            4,
            12,
            2,
            20,
            **attention(3, 1, 20),
            **experts(5, 2, 28, 52, 2.5),
            intermediate_size=60,
            tie_word_embeddings=True,
        ),
        # As Nano: many experts, several K/V heads, untied.
        "nemotron-h-nano": nemotron(
            "MEM*EME*", 52, 83, 6, 20, 3, 12, **attention(6, 2, 12), **experts(24, 4, 20, 44, 2.5)
        ),
        # As Super: experts of a width of their own, untied.
        "nemotron-h-super": nemotron(
            "ME*E*EME", 68, 83, 4, 20, 1, 12, **attention(4, 2, 20), **experts(24, 5, 28, 76, 5.0, latent=36)
        ),
        # As Super with its draft head, whose two layers are the model's in their sizes alone.
        "nemotron-h-mtp": nemotron(
            "MEM*",
            60,
            79,
            4,
            12,
            2,
            20,
            **attention(6, 2, 12),
            **experts(20, 3, 20, 36, 2.5, latent=28),
            mtp_hybrid_override_pattern=nemotron_mtp.LETTERS,
            num_nextn_predict_layers=1,
        ),
    }


class Layout:
    """What prompts are chosen by."""

    def __init__(self, config):
        self.text, self.vocabulary = config, config["vocab_size"]


class Choices:
    """A model of transformers whose routers are watched, as `routing.prompt` takes them, with its draft head if it has
    one."""

    def __init__(self, model, config, tensors):
        self.model, self.layout, self.tensors = model, Layout(config), tensors
        self.drafts = config.get("num_nextn_predict_layers", 0) > 0

    @torch.inference_mode()
    def run(self, sequences):
        tokens, found, drafted = torch.tensor(sequences), [], None
        gates = [mixer.gate for mixer in of_kind(self.model, "experts")]

        def watch(gate, _, out):
            # Corrected sigmoids, which move a quarter as far as logits at most.
            found.append(4 * (out[0].float().sigmoid() + gate.e_score_correction_bias.float()))

        with hooked(gates, watch):
            hidden = self.model.model(tokens, use_cache=False).last_hidden_state
        logits = self.model.lm_head(hidden).float()
        leads, floors = (torch.full(tokens.shape, torch.inf) for _ in range(2))
        for keys in found:
            leads = torch.minimum(leads, routing.lead(keys.view(*tokens.shape, -1), self.layout))
        if self.drafts:
            embedding, head = self.model.model.embeddings.weight, self.model.lm_head.weight
            config = self.layout.text
            drafted, keys = nemotron_mtp.draft(self.tensors, config, tokens, hidden, embedding, head)
            # Pair t depends on token t+1.
            leads[:, 1:] = torch.minimum(leads[:, 1:], routing.lead(4 * keys, self.layout))
        return logits, drafted, leads, floors


def of_kind(model, part):
    """The blocks that have a part of this name."""
    return [layer.mixer for layer in model.model.layers if hasattr(layer.mixer, part)]


def weights(config, rng):
    """Weights with which every part of a layer moves the logits, under the names of releases."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    tensors = {}

    def normal(name, dims, mean, deviation):
        values = mean + deviation * rng.standard_normal(dims)
        tensors[name] = torch.from_numpy(values.astype(np.float32))

    def linear(name, rows, columns, gain=1.0):
        normal(name + ".weight", (rows, columns), 0.0, gain / columns**0.5)

    def ungated(mixer, width, outer, gain):
        linear(mixer + "up_proj", width, outer)
        # A squared half of a normal distribution has a second moment of 3/2.
        linear(mixer + "down_proj", outer, width, gain * (2 / 3) ** 0.5)

    normal("backbone.embeddings.weight", (vocabulary, hidden), 0.0, 1.0)
    draft = config.get("mtp_hybrid_override_pattern", "")
    of_draft = [(f"mtp.layers.{layer}.", letter) for layer, letter in enumerate(draft)]
    of_model = enumerate(config["hybrid_override_pattern"])
    for prefix, letter in [(f"backbone.layers.{layer}.", letter) for layer, letter in of_model] + of_draft:
        mixer = prefix + "mixer."
        normal(prefix + "norm.weight", (hidden,), 1.0, 0.2)
        if letter == "*":
            heads, kv_heads, dim = (config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
            # Without positions, attention would be nearly uniform.
            linear(mixer + "q_proj", heads * dim, hidden, 1.5)
            linear(mixer + "k_proj", kv_heads * dim, hidden, 1.5)
            linear(mixer + "v_proj", kv_heads * dim, hidden)
            linear(mixer + "o_proj", hidden, heads * dim, 1.5)
            continue
        if letter == "-":
            ungated(mixer, config["intermediate_size"], hidden, 1.0)
            continue
        if letter == "E":
            count, latent = config["n_routed_experts"], config["moe_latent_size"]
            # Many experts have close logits: with a wider spread, some prompts choose clearly.
            linear(mixer + "gate", count, hidden, 3.0 if count > 16 else 1.5)
            # As wide as sigmoids are, so that it changes many choices.
            normal(mixer + "gate.e_score_correction_bias", (count,), 0.3, 0.3)
            if latent:
                linear(mixer + "fc1_latent_proj", latent, hidden)
                linear(mixer + "fc2_latent_proj", hidden, latent)
            for expert in range(count):
                ungated(f"{mixer}experts.{expert}.", config["moe_intermediate_size"], latent or hidden, 0.5)
            ungated(mixer + "shared_experts.", config["moe_shared_expert_intermediate_size"], hidden, 0.7)
            continue
        heads, groups, state = config["mamba_num_heads"], config["n_groups"], config["ssm_state_size"]
        inner = heads * config["mamba_head_dim"]
        channels = inner + 2 * groups * state
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
    if draft:
        for norm in (nemotron_mtp.ATTENTION + "enorm", nemotron_mtp.ATTENTION + "hnorm"):
            normal(norm + ".weight", (hidden,), 1.0, 0.2)
        linear(nemotron_mtp.ATTENTION + "eh_proj", hidden, 2 * hidden)
        normal(nemotron_mtp.LAST + "final_layernorm.weight", (hidden,), 1.0, 0.2)
    if config["tie_word_embeddings"]:
        tensors["backbone.embeddings.weight"] *= HEAD_GAIN / hidden**0.5
    else:
        normal("lm_head.weight", (vocabulary, hidden), 0.0, HEAD_GAIN / hidden**0.5)
    return tensors


def ablations(model, config):
    """For every part of the model: its name, and a context that leaves it out."""
    mixers = of_kind(model, "in_proj")
    heads, groups, state = config["mamba_num_heads"], config["n_groups"], config["ssm_state_size"]
    inner = heads * config["mamba_head_dim"]

    def part(first, length):
        def zeroed(weight):
            changed = weight.clone()
            changed[first : first + length] = 0
            return changed

        return changed([mixer.in_proj.weight for mixer in mixers], zeroed)

    found = {
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
    if attending := of_kind(model, "q_proj"):
        found["attention"] = hooked(attending, lambda *given: (0 * given[-1][0], None))
        found["query"] = changed([mixer.q_proj.weight for mixer in attending], torch.zeros_like)
    if mixtures := of_kind(model, "experts"):
        gates = [mixer.gate for mixer in mixtures]

        def weighed(change):
            """Routers with other weights."""
            return hooked(gates, lambda gate, _, out: (out[0], change(gate, *out), out[2]))

        found["router_weights"] = weighed(lambda gate, logits, w, ids: w.mean(-1, keepdim=True).expand_as(w))
        found["renormalise"] = weighed(
            lambda gate, logits, w, ids: gate.routed_scaling_factor * logits.sigmoid().gather(-1, ids)
        )
        found["router_scale"] = weighed(lambda gate, logits, w, ids: w / gate.routed_scaling_factor)
        found["correction"] = changed([gate.e_score_correction_bias for gate in gates], torch.zeros_like)
        for part in ("experts", "shared_experts"):
            found[part] = hooked([getattr(mixer, part) for mixer in mixtures], lambda *given: 0 * given[-1])
    if dense := [mixer for mixer in of_kind(model, "up_proj") if not hasattr(mixer, "experts")]:
        found["dense"] = hooked(dense, lambda *given: 0 * given[-1])
    if blocks := [module for module in model.modules() if hasattr(module, "act_fn")]:
        found["squared"] = plain_relu(blocks)
    return found


@contextlib.contextmanager
def plain_relu(blocks):
    """Activates without squaring."""
    before = [block.act_fn for block in blocks]
    for block in blocks:
        block.act_fn = torch.nn.ReLU()
    yield
    for block, function in zip(blocks, before, strict=True):
        block.act_fn = function


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


def prompts_for(both, config, rng):
    """Random prompts; where experts are chosen, such as make every choice clear."""
    if "E" in config["hybrid_override_pattern"]:
        return [routing.prompt(both, rng, length) for length in LENGTHS]
    return [rng.integers(0, config["vocab_size"], length).tolist() for length in LENGTHS]


@torch.inference_mode()
def layers_of_transformers(model, tensors, config):
    """The distance of the draft head's layers from transformers' own blocks with the same weights."""
    x = torch.randn(1, 40, config["hidden_size"], generator=torch.Generator().manual_seed(1))
    theirs = x
    for prefix, letter in zip((nemotron_mtp.ATTENTION, nemotron_mtp.EXPERTS), nemotron_mtp.LETTERS, strict=True):
        position = config["hybrid_override_pattern"].index(letter)
        block = type(model.model.layers[position])(model.config, position).eval()
        wanted = block.state_dict()
        held = {name: tensors[prefix + name].float() for name in wanted if prefix + name in tensors}
        held |= stacked(tensors, prefix, wanted.keys() - held.keys())
        block.load_state_dict(held)
        mask = torch.full((40, 40), -torch.inf).triu(1)[None, None] if letter == "*" else None
        theirs = block(theirs, attention_mask=mask)
    return distance([nemotron_mtp.layers(tensors, x, config)[0][0]], [theirs[0]])


def stacked(tensors, prefix, names):
    """What transformers has as one tensor for all experts."""

    def experts(name):
        outer, part = name.rsplit(".", 1)
        count = sum(key.startswith(f"{prefix}{outer}.") and key.endswith(f".{part}.weight") for key in tensors)
        return torch.stack([tensors[f"{prefix}{outer}.{e}.{part}.weight"].float() for e in range(count)])

    return {name: experts(name) for name in names}


def readable(tensors, text, directory):
    """A directory that transformers reads: the backbone is called `model`, and the config stands beside.
    transformers ties no head of this family, whatever the config says: it is given the embedding."""
    directory.mkdir()
    named = {k.replace("backbone.", "model."): v for k, v in tensors.items() if not k.startswith("mtp.")}
    named.setdefault("lm_head.weight", named["model.embeddings.weight"].clone())
    save_file(named, directory / "model.safetensors", {"format": "pt"})
    (directory / "config.json").write_text(text)


def make(name, config, seed, directory):
    """Writes one golden below `directory`."""
    rng = np.random.Generator(np.random.PCG64(seed))
    tensors = weights(config, rng)
    out = directory / name
    out.mkdir(parents=True)
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    (out / "config.json").write_text(text)
    facts = {"seed": seed, "torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    with tempfile.TemporaryDirectory() as scratch:
        scratch, models, choices = Path(scratch), {}, {}
        for stored, dtype in [("f32", torch.float32), ("bf16", torch.bfloat16)]:
            (out / stored).mkdir()
            held = {k: v.to(dtype) for k, v in tensors.items()}
            save_file(held, out / stored / "model.safetensors", {"format": "pt"})
            readable(held, text, scratch / stored)
            models[stored] = load(scratch / stored, torch.float32)
            choices[stored] = Choices(models[stored], config, held)
        prompts = prompts_for(list(choices.values()), config, rng)
        (out / "tokens.json").write_text(json.dumps(prompts, separators=(",", ":")) + "\n")
        for stored, model in models.items():
            logits = run(model, prompts)
            save_file({str(i): row for i, row in enumerate(logits)}, out / stored / "logits.safetensors")
            largest = max(row.abs().max().item() for row in logits)
            refuse_unless(1.0 < largest < 40.0, f"{name}: largest logit {largest}")
            if of_kind(model, "experts"):
                runs = [choices[stored].run([prompt]) for prompt in prompts]
                lead = min(leads.min().item() for _, _, leads, _ in runs)
                refuse_unless(lead > 0.99 * routing.LEAD, f"{name}: router lead {lead}")
                facts[f"{stored}_router_lead"] = lead
                if choices[stored].drafts:
                    rows = {str(i): drafted[0].contiguous() for i, (_, drafted, *_) in enumerate(runs)}
                    save_file(rows, out / stored / "mtp.safetensors")
            if stored == "bf16":
                facts["torch_bf16"] = distance(run(load(scratch / stored, torch.bfloat16), prompts), logits)
                continue
            exact = distance(run(load(scratch / stored, torch.float64), prompts), logits)
            refuse_unless(exact < 5e-5, f"{name}: ill-conditioned, f32 is {exact} from f64")
            apart = distance([decoded(model, prompts[-1])], logits[-1:])
            refuse_unless(apart < 5e-5, f"{name}: transformers' decoding is {apart} from its one pass")
            facts |= {"largest_logit": largest, "f32_from_f64": exact, "decoded_from_one_pass": apart}
            if of_kind(model, "q_proj"):
                facts["attention_entropy"] = mean = entropy(model, prompts[2])
                refuse_unless(0.3 < mean < 0.97, f"{name}: attention entropy {mean}")
            if choices[stored].drafts:
                facts["draft_layers_from_transformers"] = apart = layers_of_transformers(model, tensors, config)
                refuse_unless(apart < 1e-5, f"{name}: draft layers are {apart} from transformers' own")
            without = {}
            for part, context in ablations(model, config).items():
                with context:
                    without[part] = float(f"{distance(run(model, prompts[2:]), logits[2:]):.3g}")
            refuse_unless(distance(run(model, prompts[2:3]), logits[2:3]) == 0.0, f"{name}: a part was not put back")
            small = {part: moved for part, moved in without.items() if moved <= MOVED}
            refuse_unless(not small, f"{name}: leaving out moves the logits little: {small}")
            facts["without"] = without
    write_facts(facts, out / "golden.json")
