"""Makes one golden of the hybrid or mixture-of-experts families, or refuses to."""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText
from transformers.cache_utils import DynamicCache

import mtp
import routing
from ablations import ablations, rule
from common import Bf16Cache, F16Cache, distance, entropy, load, run, write_facts
from hybrid_catalogue import split
from hybrid_weights import Layout, stacked, weights

LENGTHS = [1, 7, 67, 131]
# The last prompt is the second followed by this many greedy tokens.
STEPS = 200
MOVED = 0.05


def readable(file, config, scratch, layout):
    """A directory that transformers reads: config beside weights, and Qwen3.5's experts stacked."""
    tensors = load_file(file)
    scratch.mkdir()
    staged = stacked(tensors) if layout.family in ("qwen3_5_moe", "qwen3_vl_moe") else tensors
    save_file(staged, scratch / "model.safetensors", {"format": "pt"})
    (scratch / "config.json").write_text(json.dumps(config))
    return tensors


class Text(torch.nn.Module):
    """The text part of a multimodal model, for which transformers has no class."""

    def __init__(self, whole):
        super().__init__()
        self.config, self.model, self.lm_head = whole.config.text_config, whole.model.language_model, whole.lm_head

    def forward(self, tokens, **keys):
        output = self.model(tokens, **keys)
        output.logits = self.lm_head(output.last_hidden_state)
        return output


def load_text(directory, dtype, layout):
    if layout.family == "qwen3_vl_moe":
        return Text(load(directory, dtype, AutoModelForImageTextToText))
    return load(directory, dtype)


@torch.inference_mode()
def decoded(model, tokens):
    """Logits of a prompt fed one token at a time with transformers' cache: the recurrent form of a linear layer."""
    cache = DynamicCache(config=model.config)
    rows = [model(torch.tensor([[token]]), past_key_values=cache, use_cache=True).logits[0] for token in tokens]
    return torch.cat(rows).float()


@torch.inference_mode()
def layer_of_transformers(model, tensors, layout):
    """The distance of our draft layer from transformers' own decoder layer with the same weights."""
    position = layout.kinds.index("full_attention")
    theirs = type(model.model.layers[position])(model.config, position).eval()
    prefix = "mtp.layers.0."
    named = {k.removeprefix(prefix): v.float() for k, v in stacked(tensors).items() if k.startswith(prefix)}
    theirs.load_state_dict(named)
    x = torch.randn(1, 40, layout.text["hidden_size"], generator=torch.Generator().manual_seed(1))
    angles = model.model.rotary_emb(x, torch.arange(40)[None])
    mask = torch.full((40, 40), -torch.inf).triu(1)[None, None]
    expected = theirs(x, position_embeddings=angles, attention_mask=mask)
    expected = expected[0] if isinstance(expected, tuple) else expected
    return distance([mtp.layer(tensors, x, layout.text)[0][0]], [expected[0]])


def refuse_unless(holds, what):
    if not holds:
        raise SystemExit(f"refused: {what}")


def condition(name, model, layout, files, prompts, logits):
    """Summarises an f32 golden; refuses a bad one."""
    mean = entropy(model, prompts[2])
    refuse_unless(0.3 < mean < 0.97, f"{name}: attention entropy {mean}")
    exact = load_text(files, torch.float64, layout)
    if "linear_attention" in layout.kinds:
        with rule(exact):
            exact = distance(run(exact, prompts), logits)
    else:
        exact = distance(run(exact, prompts), logits)
    refuse_unless(exact < 5e-5, f"{name}: ill-conditioned, f32 is {exact} from f64")
    apart = distance([decoded(model, prompts[-1])], logits[-1:])
    refuse_unless(apart < 5e-5, f"{name}: transformers' decoding is {apart} from its one pass")
    facts = {"attention_entropy": mean, "f32_from_f64": exact, "decoded_from_one_pass": apart}
    without = {}
    for part, context in ablations(model, layout).items():
        with context:
            without[part] = float(f"{distance(run(model, prompts[2:4]), logits[2:4]):.3g}")
    refuse_unless(distance(run(model, prompts[2:3]), logits[2:3]) == 0.0, f"{name}: a part was not put back")
    small = {part: moved for part, moved in without.items() if moved <= MOVED}
    refuse_unless(not small, f"{name}: leaving out moves the logits little: {small}")
    return facts | {"without": without}


def make(name, entry, seed, directory):
    """Writes one golden below `directory`."""
    config, options = split(entry)
    layout, seed = Layout(config), options["seed"] or seed
    rng = np.random.Generator(np.random.PCG64(seed))
    tensors = weights(config, rng, **options)
    out = directory / name
    out.mkdir(parents=True)
    (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    facts = {"seed": seed, "torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        models = {}
        for stored, dtype in [("f32", torch.float32), ("bf16", torch.bfloat16)]:
            (out / stored).mkdir()
            file = out / stored / "model.safetensors"
            kept = {k for k in tensors if options["stored_f32"] and k.endswith(("A_log", "linear_attn.norm.weight"))}
            save_file({k: v if k in kept else v.to(dtype) for k, v in tensors.items()}, file, {"format": "pt"})
            held = readable(file, config, scratch / stored, layout)
            models[stored] = routing.Model(load_text(scratch / stored, torch.float32, layout), layout, held)
        both = list(models.values())
        prompts = [routing.prompt(both, rng, length) for length in LENGTHS]
        prompts.append(routing.continuation(both, prompts[1], STEPS))
        (out / "tokens.json").write_text(json.dumps(prompts, separators=(",", ":")) + "\n")
        facts["distinct_greedy_tokens"] = len(set(prompts[-1][LENGTHS[1] :]))
        for stored, both in models.items():
            model, files = both.model, scratch / stored
            logits = run(model, prompts)
            save_file({str(i): row for i, row in enumerate(logits)}, out / stored / "logits.safetensors")
            largest = max(row.abs().max().item() for row in logits)
            refuse_unless(1.0 < largest < 40.0, f"{name}: largest logit {largest}")
            runs = [both.run([prompt]) for prompt in prompts]
            for what, k, wanted in (("router_lead", 2, routing.LEAD), ("delta_output", 3, routing.FLOOR)):
                least = min(of[k].min().item() for of in runs)
                refuse_unless(least > 0.99 * wanted, f"{name}: {what} {least}")
                if least < torch.inf:
                    facts[f"{stored}_{what}"] = least
            if both.drafts:
                rows = {str(i): drafted[0].contiguous() for i, (_, drafted, *_) in enumerate(runs)}
                save_file(rows, out / stored / "mtp.safetensors")
            if stored == "f32":
                facts |= {"largest_logit": largest} | condition(name, model, layout, files, prompts, logits)
                if layout.multimodal:
                    whole = load(files, torch.float32, AutoModelForImageTextToText)
                    apart = distance(run(whole, prompts), logits)
                    refuse_unless(apart < 1e-6, f"{name}: {apart} from the whole model with its vision tower")
                if both.drafts:
                    facts["draft_layer_from_transformers"] = layer_of_transformers(model, both.tensors, layout)
                    refuse_unless(facts["draft_layer_from_transformers"] < 1e-5, f"{name}: draft layer")
            else:
                facts["f16_cache"] = distance(run(model, prompts, F16Cache), logits)
                facts["bf16_cache"] = distance(run(model, prompts, Bf16Cache), logits)
                facts["torch_bf16"] = distance(run(load_text(files, torch.bfloat16, layout), prompts), logits)
    write_facts(facts, out / "golden.json")
