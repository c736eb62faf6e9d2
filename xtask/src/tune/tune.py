"""Measures the variants that `cargo xtask tune` gathered, on the machine that has the card: python3 and numpy are all it needs.

    python3 target/tune/tune.py TARGET [TARGET ...] [--out DIR] [--dry]

Every variant of every phase is checked against the default's results, timed alone (all layers' weights in turn, more copies where the
second-level cache would hold them) and in the whole program, where it stands in for the default in every layer. What makes the program quicker
is written to DIR, as hardware_model_quant.toml, for targets/tuning/hardware/model/quant.toml.
"""

import argparse
import datetime
import json
import statistics
import sys
import time
from pathlib import Path

import numpy

import choice
import driver
import dry
from memory import Memory, Weights, areas

RUNS, TURNS = 7, 15
# Most difference between the results of two variants, relative to their norm.
TOLERANCE = 1e-2
# Values of a result that are compared, in runs of 64.
COMPARED = 1 << 23
# Splits of a context that suit short ones only can cost four fifths of the speed at long ones: they are
# chosen where such a one is measured too.
LONG = 4096


class Bench:
    """One program with its variants."""

    def __init__(self, manifest, device, weights, shared, kernels, program, options):
        self.manifest, self.device, self.kernels, self.program = manifest, device, kernels, program
        self.contexts = options.contexts if program["decode"] else [options.tokens]
        self.memories = [Memory(manifest, device, weights, shared, program, context) for context in self.contexts]
        # Phases alone, and results.
        self.memory = self.memories[len(self.memories) // 2]
        contexts = ", ".join(map(str, self.contexts))
        self.what = f"{program['rows']} rows after {contexts} tokens each" if program["decode"] else f"{contexts} tokens"

    def launches(self, body, chosen):
        """A body's launches with the chosen variants in the defaults' place."""
        found, placed = [], set()
        for entry in self.program["bodies"][body]:
            place = (body, entry["phase"])
            if place not in chosen:
                found.append((entry["phase"], entry["launch"]))
            elif place not in placed:
                placed.add(place)
                found += [(entry["phase"], launch) for launch in chosen[place]]
        return found

    def places(self, choice_of):
        """{phase: variant} as {(body, phase): launches}."""
        found = {}
        for unit in self.program["units"]:
            if unit["phase"] in choice_of:
                launches = choice_of[unit["phase"]]["launches"]
                found.update({tuple(place): launches[at] for at, place in enumerate(unit["places"])})
        return found

    def call(self, launch, layer):
        return self.memory.call(self.kernels, launch, layer)

    def chain(self, memory, choice_of):
        """The whole program."""
        chosen, calls = self.places(choice_of), []
        for at, (body, layer) in enumerate(self.manifest["schedule"]):
            following = memory.following(at)
            calls += [memory.call(self.kernels, launch, layer, following) for _, launch in self.launches(body, chosen)]
        calls += [memory.call(self.kernels, launch, 0) for launch in self.program["tail"]]
        return self.device.record(calls, self.program["decode"])

    def whole(self, choice_of):
        """Milliseconds of the program, mean of the contexts."""
        times = []
        for memory in self.memories:
            graph = self.chain(memory, choice_of)
            times.append(self.timed(graph))
            self.device.forget(graph)
        return statistics.fmean(times)

    def alone(self, unit, variant):
        """A phase in every layer, nothing between: the graph, and how often it runs."""
        calls, runs = [], 0
        for at, (body, _) in enumerate(unit["places"]):
            launches = variant["launches"][at]
            layers = max(1, self.manifest["bodies"][body]["layers"])
            copies = [layers]
            for kind, *of in (argument for launch in launches for argument in launch["arguments"]):
                if kind == "cache":
                    copies.append(len(self.memory.caches[of[0]]))
                if kind == "field":
                    copies.append(self.memory.weights.copies[of[0]])
            count = max(copies) if self.program["decode"] else layers
            runs += count
            calls += [self.call(launch, layer) for layer in range(count) for launch in launches]
        return self.device.record(calls, self.program["decode"]), runs

    def timed(self, graph):
        self.device.time(graph)
        return statistics.median(self.device.time(graph) for _ in range(RUNS))

    def in_turns(self, before, after):
        """Milliseconds of two choices, run alternately: a list of contexts each."""
        columns = []
        for memory in self.memories:
            graphs = [self.chain(memory, before), self.chain(memory, after)]
            times = [[self.device.time(graph) for graph in graphs] for _ in range(TURNS + 1)][1:]
            columns.append([statistics.median(column) for column in zip(*times)])
            for graph in graphs:
                self.device.forget(graph)
        return [list(times) for times in zip(*columns)]

    def result(self, unit, variant):
        """What a variant leaves in the first layer, everything before it being the defaults' work."""
        body, phase = unit["places"][0]
        self.memory.forget()
        for at, layer in self.manifest["schedule"]:
            entries = self.program["bodies"][at]
            before = [entry["launch"] for entry in entries if at != body or entry["phase"] < phase]
            for launch in before:
                self.device.launch(*self.call(launch, layer), False)
            if at == body:
                break
        # Results stand last, but for the routing, which stands behind the products of what it chose.
        kind, name = [it for it in variant["launches"][0][-1]["arguments"] if it != ["buffer", "routing"]][-1]
        address, size = self.memory.areas[name]
        if not unit["in_place"]:
            # Not a number, so that what is not written is seen.
            self.device.set(address, size, 0xFF)
        for launch in variant["launches"][0]:
            self.device.launch(*self.call(launch, layer), False)
        data = self.device.download(address, size)
        # Runs at odd distances, so that all rows and columns come into it.
        values = data.view(numpy.float32)
        return values[: len(values) // 64 * 64].reshape(-1, 64)[:: -(-values.size // COMPARED) | 1].copy()

    def refusal(self, unit, variant, expected):
        """Why a variant is not to be used; None for one that is."""
        for launch in (launch for place in variant["launches"] for launch in place):
            defects = self.manifest["kernels"][launch["kernel"]]["defects"]
            if defects:
                return defects[0]
        got = self.result(unit, variant)
        if expected is None:
            expected = got
        written = ~numpy.isnan(expected)
        if not written.any() or (written != ~numpy.isnan(got)).any():
            return "it leaves values unwritten, or none is a number"
        difference = numpy.linalg.norm((got - expected)[written].astype(numpy.float64))
        norm = numpy.linalg.norm(expected[written].astype(numpy.float64))
        return None if difference <= TOLERANCE * norm else f"its results differ by {difference / max(norm, 1e-30):.1e}"

    def measure(self):
        """Every variant, then the choice."""
        rows, shares, variants, times = [], {}, [], []
        base = self.whole({})
        for unit in self.program["units"]:
            phase, default = unit["phase"], unit["variants"][0]
            if max(self.contexts) < LONG and any("attention_splits" in it["settings"] for it in unit["variants"]):
                print(f"  {phase}: splits of the context are not tuned without a context of {LONG} tokens")
                continue
            why = self.refusal(unit, default, None)
            if why:
                raise RuntimeError(f"{phase} as the defaults cut it: {why}")
            expected = self.result(unit, default)
            for variant in unit["variants"]:
                row = {"phase": phase, "settings": variant["settings"], "why": self.refusal(unit, variant, expected)}
                rows.append(row)
                if row["why"]:
                    continue
                graph, runs = self.alone(unit, variant)
                row["us"] = 1e3 * self.timed(graph) / runs
                self.device.forget(graph)
                layers = sum(max(1, self.manifest["bodies"][body]["layers"]) for body, _ in unit["places"])
                shares.setdefault(phase, row["us"] * layers / 1e3)
                row["ms"] = self.whole({phase: variant})
                variants.append((phase, variant))
                times.append(row["ms"])
        mean_in_turns = lambda *choices: [statistics.fmean(it) for it in self.in_turns(*choices)]
        by_itself = [row["us"] for row in rows if not row["why"]]
        kept = choice.choose(variants, shares, base, times, by_itself, self.whole, mean_in_turns)
        before, after = self.in_turns({}, kept)
        if statistics.fmean(after) >= statistics.fmean(before):
            kept = {}
        alone = lambda phase, settings: next(it["us"] for it in rows if (it["phase"], it["settings"]) == (phase, settings))
        phases = [
            {"phase": phase, "settings": it["settings"], "before": alone(phase, {}), "after": alone(phase, it["settings"])}
            for phase, it in kept.items()
        ]
        return {
            "name": self.program["name"], "bucket": self.program["bucket"], "what": self.what,
            "before": before, "after": after, "phases": phases, "rows": rows,
        }


def table(program):
    name = f"{program['name']}, {program['what']}"
    lines = [f"{name}: defaults {choice.figures(program['before'])} ms, kept {choice.figures(program['after'])} ms"]
    for row in program["rows"]:
        settings = ", ".join(f"{key} {value}" for key, value in row["settings"].items()) or "defaults"
        figures = row["why"] or f"{row['us']:9.3f} us {row['ms']:9.4f} ms"
        chosen = any(it["phase"] == row["phase"] and it["settings"] == row["settings"] for it in program["phases"])
        lines.append(f"  {row['phase']:<16} {settings:<66} {figures}{'  <- kept' if chosen else ''}")
    return "\n".join(lines)


def tune(target, here, device, options):
    directory = here / target
    manifest = json.loads((directory / "manifest.json").read_text())
    known = {}

    def kernel(at):
        if at not in known:
            it = manifest["kernels"][at]
            if it["defects"]:
                raise RuntimeError(f"{it['name']}: {it['defects'][0]}")
            path = directory / (it["module"] + ".cubin")
            known[at] = device.kernel(path, it["name"], it["block"], it["shared"], it["shared_part"])
        return known[at]

    weights, shared = Weights(manifest, device, kernel), areas(manifest, device)
    programs = []
    for program in manifest["programs"]:
        began = time.time()
        programs.append(Bench(manifest, device, weights, shared, kernel, program, options).measure())
        print(table(programs[-1]), flush=True)
        for unit in program["units"]:
            for refused in unit["refused"]:
                print(f"  {unit['phase']}: not planned with {refused['settings']}: {refused['why']}")
        print(f"  {time.time() - began:.1f} s", flush=True)
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    results = {"card": device.card, "date": date, "command": manifest["command"], "programs": programs}
    text = choice.toml(results)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / (target.replace("/", "_") + ".json")).write_text(json.dumps(results, indent=1))
    if text is None:
        print(f"{target}: the defaults stay")
        return
    path = options.out / (target.replace("/", "_") + ".toml")
    path.write_text(text)
    print(f"{path}:\n{text}")


def main():
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("targets", nargs="+", metavar="TARGET", help="hardware/model/quant")
    parser.add_argument("--out", type=Path, default=here, help="where figures go")
    contexts = "tokens cached of each sequence in decode: the mean counts, and phases alone are timed with the middle one"
    parser.add_argument("--contexts", type=lambda text: [int(it) for it in text.split(",")], default=[128, 1024, 4096], help=contexts)
    parser.add_argument("--tokens", type=int, default=2048, help="tokens of the prompt in prefill")
    parser.add_argument("--dry", action="store_true", help="check everything, with a device that is none")
    options = parser.parse_args()
    for target in options.targets:
        # A device each: what the last target allocated would not fit beside the next one's.
        device = dry.Device() if options.dry else driver.Device()
        tune(target, here, device, options)
        device.release()


if __name__ == "__main__":
    sys.exit(main())
