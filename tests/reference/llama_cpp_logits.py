"""Compares llama.cpp's logits of GGUF files with the interpreter's, and names the files by their hashes.

    pip install -r requirements-llama-cpp.txt
    MONOMORPH_BLESS=1 cargo test -p monomorph-tests --test gguf_read
    python llama_cpp_logits.py ../../target/gguf-read

The test writes the files and the interpreter's logits there; this writes fixtures/gguf_read.json.
"""

import ctypes
import hashlib
import json
import pathlib
import sys

import llama_cpp as llama
import numpy as np


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def complain(level, text, _):
    if level >= 4:
        sys.stderr.write(text.decode(errors="replace"))


def logits(model, prompt, vocabulary):
    """Those of every token of a prompt, with keys and values in f32."""
    given = llama.llama_context_default_params()
    given.n_ctx = given.n_batch = given.n_ubatch = 512
    given.type_k = given.type_v = 0
    given.flash_attn_type = 0
    context = llama.llama_init_from_model(model, given)
    batch = llama.llama_batch_init(len(prompt), 0, 1)
    batch.n_tokens = len(prompt)
    for at, token in enumerate(prompt):
        batch.token[at], batch.pos[at] = token, at
        batch.n_seq_id[at], batch.seq_id[at][0], batch.logits[at] = 1, 0, 1
    if llama.llama_decode(context, batch) != 0:
        sys.exit("llama.cpp computes nothing")
    rows = [llama.llama_get_logits_ith(context, at) for at in range(len(prompt))]
    rows = np.stack([np.ctypeslib.as_array(row, shape=(vocabulary,)).copy() for row in rows])
    llama.llama_batch_free(batch)
    llama.llama_free(context)
    return rows


def apart(path):
    """The largest distance of a row, as a part of its length; None where llama.cpp does not load the file."""
    expected = json.loads(path.with_suffix(".json").read_text())
    params = llama.llama_model_default_params()
    params.n_gpu_layers = 0
    model = llama.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        return None
    worst = 0.0
    for prompt, wanted in zip(expected["prompts"], expected["logits"]):
        wanted = np.array(wanted).reshape(len(prompt), -1)
        distances = np.linalg.norm(logits(model, prompt, wanted.shape[1]) - wanted, axis=1)
        worst = max(worst, float((distances / np.linalg.norm(wanted, axis=1)).max()))
    llama.llama_model_free(model)
    return worst


llama.llama_log_set(complain, ctypes.c_void_p(0))
llama.llama_backend_init()
files = {}
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.gguf")):
    distance = apart(path)
    print(path.stem, distance)
    if distance is not None:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        files[path.stem] = {"apart": float(f"{distance:.1e}"), "sha256": digest}
lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(file)}" for name, file in files.items())
fixture = pathlib.Path(__file__).parent.parent / "fixtures/gguf_read.json"
fixture.write_text(f'{{\n"made by": "llama_cpp_logits.py with llama-cpp-python 0.3.36",\n"files": {{\n{lines}\n}}\n}}\n')
