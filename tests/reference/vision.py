#!/usr/bin/env python3
"""Small images, and what transformers' processors, torchvision and Pillow make of them.

    python vision.py            rewrites tests/fixtures/vision
    python vision.py --check    recomputes everything and compares with what is committed

    images/NAME       inputs
    decoded/NAME.png  what Pillow decodes from images/NAME: turned as EXIF says, laid on white, RGB
    resized/NAME.png  u8 after a processor's resize, where the file is small
    cases.json        a line a case: input, rule, size, grid, digests (SHA-256) of the u8 and of the f32 rows
    sizes.json        for each rule: [width, height] -> [width, height, tokens] after resize, null if refused
    positions.json    Qwen's three-axis positions and their delta

Rows are those that a tower takes: of Pixtral, whose processor leaves cutting to a convolution, the inputs of
that convolution. Random numbers come from numpy's PCG64, which gives the same stream on every machine.
"""

import argparse
import hashlib
import io
import json
import struct
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from transformers.models.gemma4.image_processing_gemma4 import (
    Gemma4ImageProcessor,
    get_aspect_ratio_preserving_size,
)
from transformers.models.pixtral.image_processing_pixtral import (
    PixtralImageProcessor,
    get_resize_output_image_size,
)
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor, smart_resize

HERE = Path(__file__).resolve().parent
FIXTURES = HERE.parent / "fixtures" / "vision"

# The published limits, and smaller ones whose rows are few.
RULES = {
    "qwen": {"family": "qwen", "least": 65536, "most": 16777216},
    "qwen-small": {"family": "qwen", "least": 4096, "most": 24576},
    "qwen-narrow": {"family": "qwen", "least": 200704, "most": 262144},
    "gemma": {"family": "gemma", "tokens": 280},
    "gemma-70": {"family": "gemma", "tokens": 70},
    "gemma-1120": {"family": "gemma", "tokens": 1120},
    "pixtral": {"family": "pixtral", "longest": 1540},
    "pixtral-small": {"family": "pixtral", "longest": 140},
}
MOST_PNG_BYTES = 40_000


def png(samples, color, depth, more=b""):
    """A PNG of any depth and colour type, which Pillow cannot write: samples [h, w, channels]."""
    height, width = samples.shape[:2]
    rows = samples.astype(">u2" if depth == 16 else np.uint8).reshape(height, -1)
    raw = b"".join(b"\0" + row.tobytes() for row in rows)
    chunk = lambda kind, data: (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    )
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + more + body


def noise(seed, width, height, channels=3):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)


def scene(width, height, channels=3):
    """Slopes, waves and hard edges, which clamp on both ends when they are enlarged."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [127 + 120 * np.sin(x / (3.0 + c) + y / (11.0 - 2 * c)) for c in range(channels)]
    image = np.clip(np.stack(waves, -1) + (x * 60 // max(width, 1))[..., None], 0, 255)
    image[(x // 9 + y // 7) % 5 == 0] = 255
    image[(x // 5 + y // 13) % 7 == 0] = 0
    return image.astype(np.uint8)


def encoded(image, kind, **more):
    out = io.BytesIO()
    image.save(out, kind, **more)
    return out.getvalue()


def inputs():
    """Every input by name: the PNGs that are resized, and files of all formats that are decoded."""
    rgb = lambda array: Image.fromarray(array)
    plain = lambda array: encoded(rgb(array), "PNG", optimize=True)
    files = {
        "odd.png": plain(scene(53, 37)),
        "one-wide.png": plain(noise(1, 1, 90)),
        "one-high.png": plain(noise(2, 90, 1)),
        "tall.png": plain(scene(20, 300)),
        "wide.png": plain(scene(310, 24)),
        "tiny.png": plain(noise(3, 9, 7)),
        "pixel.png": plain(noise(4, 1, 1)),
        "exact.png": plain(scene(96, 64)),
        "noise.png": plain(noise(5, 203, 121)),
        "strip.png": plain(scene(1600, 30)),
        "photo.png": plain(scene(300, 201)),
    }
    small = scene(97, 61)
    wide = np.random.default_rng(6).integers(0, 65536, (9, 14, 4), np.uint16)
    files |= {
        "gray.png": plain(small[..., 0]),
        "gray-alpha.png": encoded(Image.fromarray(noise(7, 16, 16, 2), "LA"), "PNG"),
        "rgba.png": plain(np.concatenate([scene(40, 30), noise(8, 40, 30, 1)], -1)),
        "palette.png": encoded(rgb(small).quantize(17), "PNG", transparency=3),
        "bits.png": encoded(rgb(small[..., 0]).convert("1"), "PNG"),
        "interlaced.png": interlaced(),
        "gray-16.png": png(wide[..., :1], 0, 16),
        "rgb-16.png": png(wide[..., :3], 2, 16),
        "exif.png": encoded(rgb(small), "PNG", exif=orientation(6)),
        "colour-444.jpg": encoded(rgb(small), "JPEG", quality=90, subsampling=0),
        "colour-420.jpg": encoded(rgb(small), "JPEG", quality=75, subsampling=2),
        "colour-422.jpg": encoded(rgb(small), "JPEG", quality=75, subsampling=1),
        "progressive.jpg": encoded(rgb(small), "JPEG", quality=80, subsampling=2, progressive=True),
        "gray.jpg": encoded(rgb(small[..., 0]), "JPEG", quality=85),
        "cmyk.jpg": encoded(rgb(small).convert("CMYK"), "JPEG", quality=90, subsampling=0),
        "lossless.webp": encoded(rgb(np.concatenate([scene(40, 30), noise(9, 40, 30, 1)], -1)), "WEBP", lossless=True, exact=True),
        "lossy.webp": encoded(rgb(small), "WEBP", quality=80),
        "moving.webp": encoded(
            rgb(scene(30, 20)), "WEBP", save_all=True, lossless=True, append_images=[rgb(scene(30, 20)[::-1])]
        ),
        "still.gif": encoded(rgb(small).quantize(40), "GIF", interlace=1),
        "clear.gif": encoded(rgb(small).quantize(40), "GIF", transparency=5, interlace=0),
        "moving.gif": encoded(
            rgb(scene(30, 20)).quantize(30),
            "GIF",
            save_all=True,
            append_images=[rgb(scene(30, 20)[::-1]).quantize(30)],
        ),
    }
    for turn in range(1, 9):
        files[f"turned-{turn}.jpg"] = encoded(
            rgb(scene(24, 17)), "JPEG", quality=95, subsampling=0, exif=orientation(turn)
        )
    return files


def orientation(value):
    exif = Image.Exif()
    exif[0x0112] = value
    return exif


def interlaced():
    """Adam7, which Pillow reads and does not write."""
    image = scene(21, 19)
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    raw = b"".join(
        b"\0" + row.tobytes() for x, y, dx, dy in passes for row in image[y::dy, x::dx] if row.size
    )
    chunk = lambda kind, data: (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    )
    header = struct.pack(">IIBBBBB", 21, 19, 8, 2, 0, 0, 1)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(raw, 9))
        + chunk(b"IEND", b"")
    )


def decoded(data):
    """As transformers loads an image, but for transparency, which it drops and which is laid on white here."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if image.mode in ("I;16", "I"):
        image = Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGB", image.size, (255, 255, 255))
        white.paste(image, (0, 0), image)
        return white
    return image.convert("RGB")


def processor(rule):
    if rule["family"] == "qwen":
        return Qwen2VLImageProcessor(
            size={"shortest_edge": rule["least"], "longest_edge": rule["most"]},
            patch_size=16,
            image_mean=[0.5] * 3,
            image_std=[0.5] * 3,
        )
    if rule["family"] == "gemma":
        return Gemma4ImageProcessor(max_soft_tokens=rule["tokens"])
    return PixtralImageProcessor(size={"longest_edge": rule["longest"]}, patch_size={"height": 28, "width": 28})


def resized(rule, image):
    """The u8 that a processor makes before it rescales: [height, width, 3]."""
    seen = []
    made = processor(rule)
    plain = made.rescale_and_normalize

    def spy(images, *rest):
        seen.append(images.reshape(-1, *images.shape[-2:]))
        return plain(images, *rest)

    made.rescale_and_normalize = spy
    values = made(image, return_tensors="pt")
    assert len(seen) == 1 and seen[0].dtype == torch.uint8
    return seen[0].permute(1, 2, 0).contiguous().numpy(), values


def case(name, rule_name, files, scratch):
    rule = RULES[rule_name]
    u8, values = resized(rule, decoded(files[name]))
    height, width = u8.shape[:2]
    pixels = values["pixel_values"]
    if rule["family"] == "qwen":
        rows, patch = pixels, 16
        tokens = len(rows) // 4
        assert values["image_grid_thw"].tolist() == [[1, height // 16, width // 16]]
    elif rule["family"] == "gemma":
        patch = 16
        rows = pixels[0, : height // 16 * (width // 16)]
        tokens = int(values["num_soft_tokens_per_image"][0])
    else:
        patch = 14
        rows = pixels[0].reshape(3, height // 14, 14, width // 14, 14).permute(1, 3, 0, 2, 4)
        rows = rows.reshape(-1, 3 * 14 * 14)
        tokens = height // 28 * (width // 28 + 1)
    rows = rows.to(torch.float32).contiguous().numpy().astype("<f4")
    file = encoded(Image.fromarray(u8), "PNG", optimize=True)
    stem = f"{rule_name}-{name}"
    if len(file) <= MOST_PNG_BYTES:
        (scratch / "resized" / stem).write_bytes(file)
    digest = lambda array: hashlib.sha256(array.tobytes()).hexdigest()
    return {
        "image": name,
        "rule": rule_name,
        "size": [width, height],
        "grid": [height // patch, width // patch],
        "tokens": tokens,
        "u8": digest(u8),
        "rows": digest(rows),
        "first": [float(x) for x in rows[0, :4]],
        "last": [float(x) for x in rows[-1, -4:]],
    }


CASES = {
    "qwen-small": ["odd", "one-wide", "one-high", "tall", "wide", "tiny", "pixel", "exact", "noise"],
    "qwen": ["photo", "tiny"],
    "gemma-70": ["odd", "one-wide", "tall", "noise", "photo"],
    "gemma": ["photo", "pixel"],
    "pixtral-small": ["odd", "one-wide", "one-high", "tall", "wide", "tiny", "pixel", "exact", "noise"],
    "pixtral": ["photo", "strip"],
}


def size(rule, width, height):
    """[width, height, tokens] after resize; None where the reference refuses or leaves nothing."""
    try:
        if rule["family"] == "qwen":
            h, w = smart_resize(height, width, 32, rule["least"], rule["most"])
            tokens = h * w // 1024
        elif rule["family"] == "gemma":
            h, w = get_aspect_ratio_preserving_size(height, width, 16, rule["tokens"] * 9, 3)
            tokens = h * w // 2304
        else:
            h, w = get_resize_output_image_size(np.empty((1, height, width)), rule["longest"], 28, "channels_first")
            tokens = h // 28 * (w // 28 + 1)
    except ValueError:
        return None
    return [w, h, tokens] if h * w else None


def sizes():
    random = np.random.default_rng(10)
    asked = [(1, 1), (1, 200), (200, 1), (1, 201), (3, 600), (3, 601), (3840, 2160), (2160, 3840), (80, 80)]
    asked += [(448, 448), (1024, 1024), (4096, 4096), (8192, 8192), (1540, 1540), (1541, 1), (9000, 47)]
    # Odd multiples of half a unit are rounded to even ones.
    asked += [(16 * int(a), 16 * int(b)) for a, b in random.integers(1, 160, (60, 2)) | 1]
    asked += [(24 * int(a), 24 * int(b)) for a, b in random.integers(1, 80, (20, 2)) | 1]
    asked += [(14 * int(a), 14 * int(b)) for a, b in random.integers(1, 160, (20, 2))]
    asked += [(int(a), int(b)) for a, b in np.exp(random.uniform(0, np.log(9000), (140, 2))).astype(int)]
    asked += [(int(a), int(b)) for a, b in random.integers(200, 2200, (60, 2))]
    return {
        name: {**rule, "sizes": [[w, h, size(rule, w, h)] for w, h in asked]} for name, rule in RULES.items()
    }


def positions():
    from transformers import AutoConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5Model

    made = []
    shell = type(
        "Shell",
        (),
        {
            "config": AutoConfig.for_model("qwen3_5"),
            "get_vision_position_ids": Qwen3_5Model.get_vision_position_ids,
        },
    )()
    # Texts and grids alternate. Images that touch are one to transformers; templates write ids around each.
    for parts in [
        [3, (4, 6), 2],
        [0, (2, 2), 1],
        [5, (4, 6), 4, (10, 2), 2],
        [1, (2, 18), 1, (8, 4), 2, (2, 2), 7],
        [2, (6, 6), 0],
        [9],
    ]:
        kinds, grids = [], []
        for part in parts:
            if isinstance(part, int):
                kinds += [0] * part
            else:
                kinds += [1] * (part[0] * part[1] // 4)
                grids.append([1, *part])
        there, delta = Qwen3_5Model.get_rope_index(
            shell,
            torch.zeros(1, len(kinds), dtype=torch.long),
            torch.tensor([kinds]),
            image_grid_thw=torch.tensor(grids) if grids else None,
        )
        rows = there[:, 0].T.tolist()
        made.append({"parts": parts, "positions": rows, "delta": int(delta.item())})
    return made


def make(scratch):
    for folder in ("images", "decoded", "resized"):
        (scratch / folder).mkdir()
    files = inputs()
    for name, data in files.items():
        (scratch / "images" / name).write_bytes(data)
        decoded(data).save(scratch / "decoded" / f"{name}.png", optimize=True)
    line = lambda value: json.dumps(value, separators=(",", ":"))
    cases = [case(f"{name}.png", rule, files, scratch) for rule, names in CASES.items() for name in names]
    (scratch / "cases.json").write_text("[\n" + ",\n".join(map(line, cases)) + "\n]\n")
    tables = [f"{line(name)}:{line(table)}" for name, table in sizes().items()]
    (scratch / "sizes.json").write_text("{\n" + ",\n".join(tables) + "\n}\n")
    (scratch / "positions.json").write_text("[\n" + ",\n".join(map(line, positions())) + "\n]\n")


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--check", action="store_true", help="compare with what is committed, write nothing")
    arguments = arguments.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        make(scratch)
        made = {str(p.relative_to(scratch)): p.read_bytes() for p in sorted(scratch.rglob("*")) if p.is_file()}
    found = {str(p.relative_to(FIXTURES)): p for p in sorted(FIXTURES.rglob("*")) if p.is_file()}
    if not arguments.check:
        for path in found.values():
            path.unlink()
        for name, data in made.items():
            (FIXTURES / name).parent.mkdir(parents=True, exist_ok=True)
            (FIXTURES / name).write_bytes(data)
        return 0
    wrong = [f"{name}: only in one place" for name in sorted(made.keys() ^ found.keys())]
    wrong += [f"{name}: differs" for name in made.keys() & found.keys() if found[name].read_bytes() != made[name]]
    print("\n".join(wrong) or "as committed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
