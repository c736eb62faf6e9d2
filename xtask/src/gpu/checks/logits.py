"""Logits of every golden server, prefill and decode, against the interpreter's, and of those as stored against transformers'."""

import json
import tempfile
from pathlib import Path

import numpy

from .common import execute, tail

SECONDS = 120
# The interpreter itself is so far from transformers, and more.
LEAST = 3e-4


def read(path):
    """The f32 tensors of a safetensors file by name."""
    data = Path(path).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        assert entry["dtype"] == "F32", (path, name, entry["dtype"])
        begin, end = entry["data_offsets"]
        values = numpy.frombuffer(data, numpy.float32, (end - begin) // 4, 8 + size + begin)
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def distance(found, expected, bounds, least=0.0):
    """The largest difference in any row relative to the largest magnitude of the expected row, and the same relative to the row's bound,
    which is `least` at least; infinite for what is no number."""
    assert sorted(found) == sorted(expected) == sorted(bounds), "other prompts than expected"
    worst = of_bound = 0.0
    for name, rows in expected.items():
        apart = numpy.abs(found[name].astype(numpy.float64) - rows)
        if not numpy.isfinite(apart).all():
            return float("inf"), float("inf")
        apart = apart.max(axis=1) / numpy.abs(rows).max(axis=1)
        worst, of_bound = max(worst, float(apart.max())), max(of_bound, float((apart / numpy.maximum(bounds[name][:, 0], least)).max()))
    return worst, of_bound


def run(context):
    def check(case):
        server, weights = context.path(case["server"]), context.path(case["weights"])
        expected, bounds = (read(context.path(case[name])) for name in ("expected", "bounds"))
        golden = read(context.path(case["golden"])) if case["golden"] else None
        apart, of_bound, from_golden, golden_of_bound = {}, 0.0, {}, 0.0
        for mode, flags in (("prefill", []), ("decode", ["--decode"])) * context.repeat:
            with tempfile.TemporaryDirectory() as directory:
                out = Path(directory) / "logits.safetensors"
                command = [server, "logits", "--weights", weights, "--tokens", context.path(case["tokens"]), "--out", out]
                status, output, _ = execute([*command, *flags, "--memory-fraction", "0.1"], SECONDS)
                if status != 0:
                    return False, f"{mode}: status {status}: {tail(output)}", {}
                found = read(out)
                apart[mode], mine = distance(found, expected, bounds)
                of_bound = max(of_bound, mine)
                if golden:
                    from_golden[mode], mine = distance(found, golden, bounds, LEAST)
                    golden_of_bound = max(golden_of_bound, mine)
        words = ", ".join(f"{mode} {value:.1e}" for mode, value in apart.items())
        # Where rounding alone moves a row by more than the bound, its own is wider (tests/src/rounding.rs).
        wider = sum(int((rows > 1.01 * case["bound"]).sum()) for rows in bounds.values())
        words += f", bound {case['bound']:.0e}" + (f", {wider} rows wider; at most {of_bound:.2f} of a row's" if wider else "")
        if golden:
            words += "; from transformers " + ", ".join(f"{mode} {value:.1e}" for mode, value in from_golden.items())
            words += f", at most {golden_of_bound:.2f} of a row's bound"
        right = of_bound <= 1 and golden_of_bound <= 1
        return right, words, {"apart": apart, "of_bound": of_bound, "from_transformers": from_golden}

    context.all("logits", context.manifest["goldens"], check)
