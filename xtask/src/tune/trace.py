"""Where a decode step's time goes while it runs, launch by launch, on the machine that has the card.

    python3 target/tune/trace.py TARGET [--context TOKENS]

`cargo xtask tune --trace` gathers what this reads. A launch's time is from its blocks' coming past their wait to those of the next
launch; the clocks cost about 2 % of a step. `first` and `last`: until its first and last block end. `early`: how long its last
block had stood there before the wait was over, which is what it had to fetch weights ahead. `sm`: multiprocessors its blocks had, of
which one may have several: launches that are on half of the card show here.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

import numpy

import driver
import tune
from memory import Weights, areas

RECORD = numpy.dtype([("began", "u8"), ("waited", "u8"), ("ended", "u8"), ("sm", "u4"), ("reserved", "u4")])
# trace.cuh.
KERNELS, LAUNCHES, BLOCKS = 6, 96, 544
RECORDS, COUNTS = b"_ZN9monomorph13trace_recordsE", b"_ZN9monomorph14trace_launchesE"


def modules(device, manifest, directory):
    """The loaded modules that have clocks: path, and names of kernels, whose places are their numbers."""
    kernels = {}
    for it in (it for it in manifest["kernels"] if "module" in it):
        kernels.setdefault(directory / (it["module"] + ".cubin"), []).append(it["name"])
    timed = lambda names: any(not name.startswith("fill_") for name in names)
    return [(path, names) for path, names in kernels.items() if path in device.modules and timed(names)]


def launches(device, manifest, directory):
    """Every launch of the last run, in order: (name, its blocks' records)."""
    found = []
    for path, names in modules(device, manifest, directory):
        address, size = device.symbol(path, RECORDS)
        records = device.download(address, size).view(RECORD).reshape(KERNELS, LAUNCHES, BLOCKS)
        for kernel, name in enumerate(names):
            for launch in records[kernel]:
                blocks = launch[launch["began"] > 0]
                if len(blocks):
                    found.append((name, blocks.copy()))
    return sorted(found, key=lambda it: it[1]["waited"].max())


def clear(device, manifest, directory):
    for path, _ in modules(device, manifest, directory):
        for symbol in RECORDS, COUNTS:
            device.set(*device.symbol(path, symbol), 0)
    device.wait()


def summary(steps):
    """A line a kernel, of means over its launches."""
    kinds = {}
    for at, (name, blocks) in enumerate(steps):
        waited, ended = int(blocks["waited"].min()), blocks["ended"]
        following = int(steps[at + 1][1]["waited"].min()) if at + 1 < len(steps) else int(ended.max())
        times = [following - waited, int(ended.min()) - waited, int(ended.max()) - waited, waited - int(blocks["began"].max())]
        row = [time / 1e3 for time in times] + [len(set(blocks["sm"].tolist())), len(blocks)]
        kinds.setdefault(name, []).append(row)
    lines = [f"{'':44}     n    time   first    last   early     sm of blocks   in all"]
    for name, rows in kinds.items():
        mean = [statistics.fmean(column) for column in zip(*rows)]
        times = " ".join(f"{value:7.2f}" for value in mean[:4])
        lines.append(f"{name:44} {len(rows):5} {times} {mean[4]:6.1f} of {mean[5]:6.0f} {mean[0] * len(rows):8.1f} us")
    return "\n".join(lines)


def main():
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("target", help="hardware/model/quant")
    parser.add_argument("--context", type=int, default=128, help="tokens cached of each sequence")
    options = parser.parse_args()
    options.contexts, options.tokens = [options.context], 2048
    directory, device, known = here / options.target, driver.Device(), {}
    manifest = json.loads((directory / "manifest.json").read_text())
    if not manifest.get("trace"):
        parser.error(f"{options.target} was gathered without --trace")

    def kernel(at):
        if at not in known:
            it = manifest["kernels"][at]
            path = directory / (it["module"] + ".cubin")
            known[at] = device.kernel(path, it["name"], it["block"], it["shared"], it["shared_part"])
        return known[at]

    weights, shared = Weights(manifest, device, kernel), areas(manifest, device)
    for program in manifest["programs"]:
        bench = tune.Bench(manifest, device, weights, shared, kernel, program, options)
        graph = bench.chain(bench.memory, {})
        milliseconds = bench.timed(graph)
        clear(device, manifest, directory)
        device.time(graph)
        device.wait()
        print(f"{options.target} {program['name']}, {bench.what}: {milliseconds:.4f} ms with clocks")
        print(summary(launches(device, manifest, directory)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
