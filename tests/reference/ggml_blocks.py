"""Blocks of ggml's formats, and the values that the `gguf` package decodes them to.

Writes runtime/formats/tests/ggml_blocks.txt: a line for each format, its name, blocks in hex, and f32 in hex,
little endian. The codes and the scales within blocks are every pattern of bits; the f16 scales are numbers of
a weight's size, of both signs.

    python tests/reference/ggml_blocks.py
"""

import pathlib

import gguf
import numpy as np

# Name, and where the f16 scales of a block begin.
FORMATS = {
    "q4_0": [0],
    "q4_1": [0, 2],
    "q5_0": [0],
    "q5_1": [0, 2],
    "q8_0": [0],
    "q4_k": [0, 2],
    "q5_k": [0, 2],
    "q6_k": [208],
    "q2_k": [80, 82],
    "q3_k": [108],
    "iq4_nl": [0],
    "iq4_xs": [0],
}

random = np.random.default_rng(25)
lines = []
for name, scales in FORMATS.items():
    kind = gguf.GGMLQuantizationType[name.upper()]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, ((512 // elements) or 1, size), dtype=np.uint8)
    for at in scales:
        numbers = random.uniform(-0.1, 0.1, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = numbers.view(np.uint8).reshape(-1, 2)
    values = gguf.quants.dequantize(blocks, kind).astype("<f4")
    lines.append(f"{name} {blocks.tobytes().hex()} {values.tobytes().hex()}\n")
target = pathlib.Path(__file__).parents[2] / "runtime/formats/tests/ggml_blocks.txt"
target.write_text("".join(lines))
