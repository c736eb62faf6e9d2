"""Where a step's time goes: every launch by itself, under ncu. Times are of launches that do not overlap; in a running server the next
one begins before the last has ended, so that they add up to more than a step takes."""

import csv

from .common import execute, tail

SECONDS = 150
BATCHES = [1, 8, 32, 128]
# Loading and prompts come first, then 64 steps that decode.
SKIPPED, LAUNCHES = 5000, 1400


def run(context):
    for case in context.manifest["benches"]:
        for batch in BATCHES:
            name = f"{case['target']} batch {batch}"
            if not context.wanted(name):
                continue
            if case["ranks"] > 1:
                # It runs one kernel at a time, and one that waits for another GPU's would never end.
                context.add("launches", name, False, "ncu cannot run the kernels of several GPUs side by side: measure a server of one")
                continue
            profile(context, case, batch, name)


def profile(context, case, batch, name):
    """Launches of the last step that is seen whole."""
    listing = context.out / f"launches-{case['target'].replace('/', '-')}-{batch}.csv"
    server = [context.path(case["server"]), "bench", "--weights", "dummy", "--json", "--repeat", 1, "--prompt-tokens", 16]
    server += ["--depth", 2, "--generate", 64, "--batch", batch, "--streams", 0]
    command = ["ncu", "--metrics", "gpu__time_duration.sum,dram__bytes_read.sum", "--clock-control", "none", "--cache-control", "none"]
    command += ["--graph-profiling", "node", "--csv", "--log-file", listing, "--launch-skip", SKIPPED, "--launch-count", LAUNCHES]
    status, output, seconds = execute(command + server, SECONDS)
    steps = whole_steps(listing) if listing.exists() else []
    if not steps:
        context.add("launches", name, False, f"status {status}, no step seen whole: {tail(output)}")
        return
    print(f"-- {name}")
    print(table(steps[-1]), flush=True)
    context.add("launches", name, True, f"{seconds:.0f} s")


def whole_steps(listing):
    """Launches between one that embeds and one that samples, both included: (name, grid, block, ns, bytes read)."""
    with open(listing, newline="") as file:
        rows = list(csv.DictReader(line for line in file if line.startswith('"')))
    launches = {}
    for row in rows:
        launch = launches.setdefault(int(row["ID"]), {"name": row["Kernel Name"], "grid": row["Grid Size"], "block": row["Block Size"]})
        launch[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
    steps, step = [], None
    for number in sorted(launches):
        launch = launches[number]
        if launch["name"].startswith("embed"):
            step = []
        if step is not None:
            step.append(launch)
            if launch["name"].startswith("sample"):
                steps.append(step)
                step = None
    return steps


def table(step):
    kinds = {}
    for launch in step:
        kind = kinds.setdefault((launch["name"], launch["grid"], launch["block"]), [0, 0.0, 0.0])
        kind[0] += 1
        kind[1] += launch["gpu__time_duration.sum"]
        kind[2] += launch.get("dram__bytes_read.sum", 0.0)
    lines = [f"{len(step)} launches, {sum(kind[1] for kind in kinds.values()) / 1e3:.1f} us one after another"]
    for (name, grid, block), (count, nanoseconds, moved) in kinds.items():
        lines.append(
            f"{name:44} {grid:>14} {block:>13} x{count:3} {nanoseconds / count / 1e3:8.2f} us {moved / count / 1e6:8.2f} MB read"
            f" {moved / nanoseconds / 1e3:6.2f} TB/s {nanoseconds / 1e3:9.1f} us in all"
        )
    return "\n".join(lines)
