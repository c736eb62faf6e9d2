#!/usr/bin/env python3
"""Tiny random multimodal checkpoints, and what transformers computes of images and of prompts with images.

    python make_vision_goldens.py            rewrites tests/fixtures/towers
    python make_vision_goldens.py NAME...    rewrites these only
    python make_vision_goldens.py --check    recomputes everything and compares with what is committed

For every golden NAME:

    NAME/config.json               as a model of that family would ship it
    NAME/cases.json                for every case: tokens, grids of its images (frames, rows and columns of
                                   patches), and where a position has three axes, these and the shift of a later token
    NAME/f32/model.safetensors     weights, f32
    NAME/f32/expected.safetensors  of case i, f32: pixels (`i.pixels`), rows after each part of the tower
                                   (`i.embedded`, `i.placed`, `i.block.L`, `i.deepstack.K`, `i.rows`), and `i.logits`
    NAME/golden.json               how the golden was made and how well conditioned it is

Rows of patches stand in merge order: merge block by merge block. Pixels are normal numbers, not pictures: what a
processor does has tests of its own. Everything is computed in f32, with eager attention, on one thread.
"""

import argparse
import contextlib
import copy
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForImageTextToText

import hybrid_weights
from ablations import changed, hooked
from common import check, distance, load, replace, write_facts
from families import gemma4, mistral4
from hybrid import readable, refuse_unless
from hybrid_catalogue import attention, common, delta, experts, kinds, multimodal, old_rope, qwen3_vl, qwen35, rope

HERE = Path(__file__).resolve().parent
GOLDENS = HERE.parent / "fixtures" / "towers"
MOVED = 0.05
# Grids of cases in merge blocks: one token; tall; wide; two of unequal size.
CASES = [[(1, 1)], [(3, 1)], [(1, 4)], [(2, 3), (3, 2)]]


class Family:
    """A family of towers: how its config looks, what it is fed, and where its parts are."""

    # Pixels of a side of a patch, patches of a side of a merge block, frames.
    patch, merge, frames = 4, 2, 1
    axes = False
    cases = CASES

    def __init__(self, config):
        self.config, self.image = config, config.get("image_token_id", config.get("image_token_index"))

    def tower(self, model):
        return model.model.vision_tower

    def weights(self, rng):
        raise NotImplementedError

    def span(self, rows, columns):
        """Ids of an image of so many tokens a side, as a prompt has them."""
        return [self.image] * (rows * columns)

    def own_ids(self):
        """Ids that no text has."""
        return {self.image}

    def raster(self, grids):
        """For every patch in merge order its place among those in raster order."""
        order, first = [], 0
        for frames, rows, columns in grids:
            for _ in range(frames):
                for top in range(0, rows, self.merge):
                    for left in range(0, columns, self.merge):
                        order += [
                            first + (top + r) * columns + left + c for r in range(self.merge) for c in range(self.merge)
                        ]
                first += rows * columns
        return order


class Qwen(Family):
    frames, axes = 2, True

    def tower(self, model):
        return model.model.visual

    def weights(self, rng):
        options = {"per_expert": "num_experts" in self.config["text_config"]}
        return hybrid_weights.weights(self.config, rng, **options)

    def span(self, rows, columns):
        start, end = self.config["vision_start_token_id"], self.config["vision_end_token_id"]
        return [start, *super().span(rows, columns), end]

    def own_ids(self):
        return {self.config[f"{name}_token_id"] for name in ("image", "video", "vision_start", "vision_end")}

    def fed(self, pixels, grids, tokens):
        kinds = [[1 if token == self.image else 0 for token in tokens]]
        return {
            "pixel_values": pixels,
            "image_grid_thw": torch.tensor(grids),
            "mm_token_type_ids": torch.tensor(kinds),
        }

    def watched(self, model):
        tower = self.tower(model)
        return {
            "embedded": tower.patch_embed,
            "placed": (tower.blocks[0],),
            **{f"block.{i}": block for i, block in enumerate(tower.blocks)},
            **{f"deepstack.{i}": it for i, it in enumerate(getattr(tower, "deepstack_merger_list", []))},
            "rows": tower.merger,
        }

    def rows_of(self, rows, grids):
        return rows

    def ablations(self, model, fed):
        tower, text = self.tower(model), model.model.language_model
        found = {
            "positions": changed([tower.pos_embed.weight], torch.zeros_like),
            "rotary": changed([tower.rotary_pos_emb.inv_freq], torch.zeros_like),
            "axes": text_positions(model),
        }
        if getattr(tower, "deepstack_merger_list", None):
            found["deepstack"] = hooked(list(tower.deepstack_merger_list), lambda *given: 0 * given[-1])
        return found


class Gemma(Family):
    merge = 3

    def weights(self, rng):
        return gemma4.weights(self.config, rng)

    def span(self, rows, columns):
        return [self.config["boi_token_id"], *super().span(rows, columns), self.config["eoi_token_id"]]

    def own_ids(self):
        return {value for name, value in self.config.items() if name.endswith("_token_id") and isinstance(value, int)}

    def fed(self, pixels, grids, tokens):
        most, first = max(rows * columns for _, rows, columns in grids), 0
        padded = torch.zeros(len(grids), most, pixels.shape[-1])
        at = -torch.ones(len(grids), most, 2, dtype=torch.long)
        for image, (_, rows, columns) in enumerate(grids):
            count = rows * columns
            # The model takes colours from 0 to 1.
            padded[image, :count] = (pixels[first : first + count] + 1) / 2
            order = self.raster([(1, rows, columns)])
            at[image, :count] = torch.tensor([[place % columns, place // columns] for place in order])
            first += count
        kinds = [[1 if token == self.image else 0 for token in tokens]]
        return {"pixel_values": padded, "image_position_ids": at, "mm_token_type_ids": torch.tensor(kinds)}

    def watched(self, model):
        tower = self.tower(model)
        return {
            "embedded": tower.patch_embedder.input_proj,
            "placed": tower.patch_embedder,
            **{f"block.{i}": layer for i, layer in enumerate(tower.encoder.layers)},
            "rows": model.model.embed_vision,
        }

    def rows_of(self, rows, grids):
        """The rows of all images without padding; they are in merge order already."""
        if rows.dim() == 2:
            return rows
        counts = [r * c for _, r, c in grids]
        if rows.shape[0] != len(grids):
            return rows.flatten(0, 1)
        return torch.cat([of[:count] for of, count in zip(rows, counts)])

    def ablations(self, model, fed):
        tower = self.tower(model)
        return {
            "positions": changed([tower.patch_embedder.position_embedding_table], torch.zeros_like),
            "rotary": changed([tower.encoder.rotary_emb.inv_freq], torch.zeros_like),
            "standardise": changed([tower.std_bias], torch.zeros_like),
            "bidirectional": without(fed, "mm_token_type_ids"),
        }


class Pixtral(Family):
    # transformers fails on an image of one token alone.
    cases = [[(1, 2)], *CASES[1:]]

    def weights(self, rng):
        return mistral4.weights(self.config, rng)

    def span(self, rows, columns):
        row = [self.image] * columns
        return [*([*row, 12] * rows)[:-1], 13]

    def own_ids(self):
        return {self.image, 12, 13}

    def fed(self, pixels, grids, tokens):
        side, sizes, images, first = self.patch, [], [], 0
        for _, rows, columns in grids:
            order = torch.tensor(self.raster([(1, rows, columns)]))
            raster = torch.empty(rows * columns, pixels.shape[-1])
            raster[order] = pixels[first : first + rows * columns]
            image = raster.reshape(rows, columns, 3, side, side).permute(2, 0, 3, 1, 4)
            images.append(image.reshape(3, rows * side, columns * side))
            sizes.append([rows * side, columns * side])
            first += rows * columns
        height, width = (max(size[axis] for size in sizes) for axis in (0, 1))
        padded = torch.zeros(len(images), 3, height, width)
        for at, image in enumerate(images):
            padded[at, :, : image.shape[1], : image.shape[2]] = image
        return {"pixel_values": padded, "image_sizes": torch.tensor(sizes)}

    def watched(self, model):
        tower = self.tower(model)
        return {
            "placed": tower.ln_pre,
            **{f"block.{i}": layer for i, layer in enumerate(tower.transformer.layers)},
            "rows": model.model.multi_modal_projector,
        }

    def rows_of(self, rows, grids):
        rows = rows.flatten(0, -2)
        patches = sum(r * c for _, r, c in grids)
        return rows[torch.tensor(self.raster(grids))] if len(rows) == patches else rows

    def ablations(self, model, fed):
        return {"rotary": changed([self.tower(model).patch_positional_embedding.inv_freq], torch.zeros_like)}


@contextlib.contextmanager
def without(fed, name):
    """Leaves an argument out."""
    kept = fed.pop(name)
    yield
    fed[name] = kept


@contextlib.contextmanager
def text_positions(model):
    """Positions of all tokens as if there were no images."""
    whole = model.model.compute_3d_position_ids
    model.model.compute_3d_position_ids = lambda *_, **__: None
    yield
    model.model.compute_3d_position_ids = whole


def qwen_vision(text, **keys):
    return {
        "vision_config": {
            "deepstack_visual_indexes": [],
            "depth": 3,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 72,
            "in_channels": 3,
            "initializer_range": 0.02,
            "intermediate_size": 86,
            "model_type": text["model_type"].removesuffix("_text"),
            "num_heads": 2,
            "num_position_embeddings": 49,
            "out_hidden_size": text["hidden_size"],
            "patch_size": 4,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        }
        | keys
    }


def catalogue():
    dense = qwen35(
        common(34, 4, 61),
        attention(4, 2, 16),
        delta(2, 4, 12, 6),
        rope(1000000.0, sections=[2, 1, 1], partial_rotary_factor=0.5),
        kinds("LFLF"),
        eos_token_id=2,
        intermediate_size=46,
        tie_word_embeddings=True,
    )
    vl = qwen3_vl(
        common(38, 3, 67),
        attention(3, 1, 20),
        experts(5, 2, 13),
        old_rope(5000000, [4, 3, 3]),
        decoder_sparse_step=1,
        intermediate_size=44,
    )
    gemma = gemma4.multimodal(gemma4.text("SFSF", 44, 320, 8, 3, 1, 12, 24, 28))
    gemma["vision_config"] = {
        "attention_bias": False,
        "head_dim": 36,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 72,
        "intermediate_size": 86,
        "model_type": "gemma4_vision",
        "num_attention_heads": 2,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "patch_size": 4,
        "pooling_kernel_size": 3,
        "position_embedding_size": 14,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 100.0, "rope_type": "default"},
        "standardize": True,
        "use_clipped_linears": False,
    }
    pixtral = mistral4.multimodal(mistral4.text(3, 68, 83, 5, (12, 8, 20, 36, 28), (24, 4, 20, 1), rope={}))
    pixtral["vision_config"] = {
        "attention_dropout": 0.0,
        "head_dim": 36,
        "hidden_act": "silu",
        "hidden_size": 72,
        "image_size": 64,
        "intermediate_size": 86,
        "model_type": "pixtral",
        "num_attention_heads": 2,
        "num_channels": 3,
        "num_hidden_layers": 3,
        "patch_size": 4,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    }
    return {
        # Hybrid text, two of four pairs turn by time; a table of 7 by 7; heads of 36: a quarter is odd.
        "qwen35": Qwen(multimodal(dense, tied=True) | qwen_vision(dense)),
        # Two taps, experts, mRoPE over whole heads.
        "qwen3-vl": Qwen(multimodal(vl, tied=True) | qwen_vision(vl, deepstack_visual_indexes=[0, 2])),
        # Images longer and shorter than the window; rows standardised.
        "gemma4": Gemma(gemma),
        # Rows of images end with tokens of text; latent attention.
        "pixtral": Pixtral(pixtral),
    }


def of_tower(name):
    return name.startswith(("model.visual.", "model.vision_tower.", "model.embed_vision.", "vision_tower.", "multi_modal_projector."))


def weights(family, rng):
    """Text weights as other goldens have them, and a tower in which every part shows."""
    tensors = {name: x for name, x in family.weights(rng).items() if not of_tower(name)}
    # It writes into what it is given.
    config = AutoConfig.for_model(**copy.deepcopy(family.config))
    with torch.device("meta"):
        shapes = AutoModelForImageTextToText.from_config(config).state_dict()
    for name, shape in sorted((name, list(x.shape)) for name, x in shapes.items()):
        if isinstance(family, Pixtral):
            name = name.removeprefix("model.")
        if not of_tower(name):
            continue
        if len(shape) == 1:
            mean = 1.0 if name.endswith(("weight", "std_scale")) else 0.0
            values = mean + 0.2 * rng.standard_normal(shape)
        elif name.endswith(("pos_embed.weight", "position_embedding_table")):
            values = 0.6 * rng.standard_normal(shape)
        else:
            values = 1.2 * rng.standard_normal(shape) / np.prod(shape[1:]) ** 0.5
        tensors[name] = torch.from_numpy(np.asarray(values, dtype=np.float32))
    return tensors


def loaded(family, tensors, directory, dtype=torch.float32):
    directory.mkdir()
    if isinstance(family, Qwen):
        save_file(tensors, directory / "held.safetensors", {"format": "pt"})
        layout = hybrid_weights.Layout(family.config)
        readable(directory / "held.safetensors", family.config, directory / "it", layout)
        directory = directory / "it"
    else:
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})
        (directory / "config.json").write_text(json.dumps(family.config))
    model = load(directory, dtype, AutoModelForImageTextToText)
    if isinstance(family, Gemma):
        # The factor of embeddings is bf16, as in releases, whatever weights are stored in.
        scale = model.model.language_model.embed_tokens.embed_scale
        scale.copy_(scale.bfloat16())
    return model


def prompt(family, rng, case):
    """Text, images, and text: the first case begins with an image, the last ends with one."""
    text = sorted(set(range(3, family.config["text_config"]["vocab_size"])) - family.own_ids())
    words = lambda least: rng.choice(text, int(rng.integers(least, least + 6))).tolist()
    tokens = [] if case == 0 else words(2)
    for size in family.cases[case]:
        tokens += [*family.span(*size), *words(1)]
    if case < len(family.cases) - 1:
        return tokens + words(4)
    # Without the words behind the last image.
    ends = max(at for at, token in enumerate(tokens) if token in family.own_ids()) + 1
    return tokens[:ends]


@torch.inference_mode()
def run(model, family, case):
    """Every row that the tower computes, and the logits."""
    seen, hooks = {}, []

    def record(name):
        def hook(_, __, out):
            out = out[0] if isinstance(out, tuple) else getattr(out, "last_hidden_state", out)
            seen[name] = family.rows_of(out.float(), case["grids"]).contiguous().clone()

        return hook

    def record_input(name):
        def hook(_, given):
            seen[name] = family.rows_of(given[0].float(), case["grids"]).contiguous().clone()

        return hook

    for name, module in family.watched(model).items():
        if isinstance(module, tuple):
            hooks.append(module[0].register_forward_pre_hook(record_input(name)))
        else:
            hooks.append(module.register_forward_hook(record(name)))
    fed = {name: x.to(model.dtype) if x.is_floating_point() else x for name, x in case["fed"].items()}
    seen["logits"] = model(torch.tensor([case["tokens"]]), use_cache=False, **fed).logits[0].float().contiguous()
    for hook in hooks:
        hook.remove()
    return seen


def axes(model, family, case):
    """Positions of all tokens by transformers, and the shift of later ones."""
    kinds = torch.tensor([[1 if token == family.image else 0 for token in case["tokens"]]])
    tokens, grids = torch.tensor([case["tokens"]]), torch.tensor(case["grids"])
    positions, shift = model.model.get_rope_index(tokens, mm_token_type_ids=kinds, image_grid_thw=grids)
    return positions[:, 0].T.tolist(), int(shift.item())


def make(name, family, seed, directory):
    """Writes one golden below `directory`."""
    rng = np.random.Generator(np.random.PCG64(seed))
    tensors = weights(family, rng)
    out = directory / name
    (out / "f32").mkdir(parents=True)
    (out / "config.json").write_text(json.dumps(family.config, indent=2, sort_keys=True) + "\n")
    save_file(tensors, out / "f32" / "model.safetensors", {"format": "pt"})
    facts = {"seed": seed, "torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        model = loaded(family, tensors, scratch / "f32")
        exact = loaded(family, {k: v.double() for k, v in tensors.items()}, scratch / "f64", torch.float64)
        cases, expected, apart, moved = [], {}, {}, {}
        for index, images in enumerate(family.cases):
            grids = [(1, rows * family.merge, columns * family.merge) for rows, columns in images]
            patches = sum(rows * columns for _, rows, columns in grids)
            values = 3 * family.frames * family.patch**2
            pixels = torch.from_numpy(rng.standard_normal((patches, values)).astype(np.float32))
            case = {"tokens": prompt(family, rng, index), "grids": grids}
            case["fed"] = family.fed(pixels, grids, case["tokens"])
            rows = run(model, family, case)
            expected |= {f"{index}.{what}": x for what, x in ({"pixels": pixels} | rows).items()}
            for what, x in run(exact, family, case).items():
                apart[what] = max(apart.get(what, 0.0), distance([rows[what]], [x]))
            kept = {key: case[key] for key in ("tokens", "grids")}
            if family.axes:
                kept["positions"], kept["shift"] = axes(model, family, case)
            cases.append(kept)
            zero = hooked([family.watched(model)["rows"]], lambda *given: 0 * given[-1])
            for part, context in ({"images": zero} | family.ablations(model, case["fed"])).items():
                with context:
                    now = run(model, family, case)["logits"]
                moved[part] = max(moved.get(part, 0.0), distance([now], [rows["logits"]]))
            again = run(model, family, case)["logits"]
            refuse_unless(torch.equal(again, rows["logits"]), f"{name}: a part was not put back")
    worst = max(apart.values())
    refuse_unless(worst < 5e-5, f"{name}: ill-conditioned, f32 is {apart} from f64")
    small = {part: by for part, by in moved.items() if by <= MOVED}
    refuse_unless(not small, f"{name}: leaving out moves the logits little: {small}")
    largest = max(x.abs().max().item() for what, x in expected.items() if what.endswith("logits"))
    refuse_unless(1.0 < largest < 60.0, f"{name}: largest logit {largest}")
    save_file(expected, out / "f32" / "expected.safetensors")
    (out / "cases.json").write_text(json.dumps(cases, separators=(",", ":")) + "\n")
    facts |= {"largest_logit": largest, "f32_from_f64": worst}
    facts["without"] = {part: float(f"{by:.3g}") for part, by in moved.items()}
    write_facts(facts, out / "golden.json")


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--check", action="store_true", help="compare with the committed goldens, write nothing")
    arguments.add_argument("names", nargs="*", help="goldens to make; all of them when none is named")
    arguments = arguments.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    differences = []
    for seed, (name, family) in enumerate(catalogue().items(), start=1):
        if arguments.names and name not in arguments.names:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            scratch = Path(scratch)
            make(name, family, seed, scratch)
            if arguments.check:
                differences += check(scratch / name, GOLDENS / name)
            else:
                replace(scratch / name, GOLDENS / name)
    print("\n".join(differences) or "goldens are as committed" if arguments.check else "")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
