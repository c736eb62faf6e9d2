"""Checks and measures CUDA servers on the machine that has the card: nothing but python3 and numpy is needed there.

    python3 target/gpu/run.py [--only GROUP,GROUP] [--match TEXT] [--store DIR] [--out DIR]

`cargo xtask gpu` gathers what this reads: manifest.json and part-*.tar* beside this file. Parts that are here are unpacked into the
store; what lies there from an earlier run is used too, so that parts may come one by one. Prints a table, writes results.json,
and fails unless everything asked for was run and passed.
"""

import argparse
import datetime
import importlib
import json
import shlex
import sys
import time
import traceback
from pathlib import Path

from checks.common import Context, Missing, card, table, unpack

# The module of each group under checks, and its function. Imported when it is asked for: only logits needs
# numpy.
GROUPS = {
    "compile": ("compile", "run"),
    "programs": ("programs", "run"),
    "logits": ("logits", "run"),
    "images": ("images", "run"),
    "joins": ("joins", "run"),
    "tokens": ("tokens", "run"),
    "serving": ("serving", "run"),
    "ranks": ("ranks", "run"),
    "storm": ("storm", "run"),
    "engine": ("engine", "run"),
    "sanitizer": ("sanitizer", "run"),
    "hosts": ("hosts", "run"),
    "benches": ("benches", "run"),
    "profiles": ("profiles", "run"),
    "kv_offload": ("kv_offload", "run"),
    "instruments": ("programs", "measure"),
    "launches": ("launches", "run"),
}


def main():
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    everything = ",".join(name for name in GROUPS if name not in ("launches", "kv_offload"))
    parser.add_argument("--only", default=everything, help="groups of checks: " + ", ".join(GROUPS) + "; or unpack")
    parser.add_argument("--match", default="", help="only checks whose name contains this")
    parser.add_argument("--store", type=Path, default=here / "store", help="where parts are unpacked")
    parser.add_argument("--out", type=Path, default=here, help="where results.json goes")
    parser.add_argument("--jobs", type=int, default=6, help="servers run side by side where only answers matter")
    parser.add_argument("--repeat", type=int, default=1, help="times each golden is run, for what fails now and then")
    arguments = parser.parse_args()
    names = [name for name in arguments.only.split(",") if name]
    unknown = [name for name in names if name not in GROUPS and name != "unpack"]
    if unknown:
        parser.error(f"no group {', '.join(unknown)}")

    manifest = json.loads((here / "manifest.json").read_text())
    arrived = unpack(here, arguments.store, manifest)
    print(f"unpacked {arrived or 'nothing'} into {arguments.store}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    context = Context(manifest, arguments.store, arguments.out, arguments.match, arguments.jobs, arguments.repeat)
    began = time.time()
    for name in names:
        if name == "unpack":
            continue
        start = time.time()
        try:
            module, function = GROUPS[name]
            getattr(importlib.import_module(f"checks.{module}"), function)(context)
        except Missing as missing:
            context.add(name, name, False, f"not run: {missing}")
        except Exception as error:
            # One group that breaks must not take the others' results along.
            traceback.print_exc()
            context.add(name, name, False, f"broke: {error!r}")
        print(f"== {name}: {time.time() - start:.0f} s", flush=True)

    results = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "card": card(),
        "commit": manifest["commit"],
        "command": shlex.join(["python3", *sys.argv]),
        "seconds": round(time.time() - began, 1),
        "checks": context.checks,
        "benches": context.benches,
    }
    (arguments.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))
    failed = [check for check in context.checks if not check["passed"]]
    print(f"{len(context.checks) - len(failed)} passed, {len(failed)} failed; {results['card']}, {results['date']}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
