"""The time of each kernel beside its bytes and its limit, as profiling builds take them: a table a target."""

import json

from .common import execute, tail

SECONDS = 400
DEPTH = 128


def run(context):
    for case in context.manifest["profiles"]:
        if context.wanted(case["name"]):
            try:
                profile(context, case)
            except Exception as error:
                context.add("profiles", case["name"], False, f"not run: {error!r}")


def profile(context, case):
    command = [context.path(case["server"]), "profile", "--weights", "dummy", "--json", "--depth", DEPTH]
    for flag in ("batch", "prompt_tokens"):
        command += ["--" + flag.replace("_", "-"), ",".join(map(str, case[flag]))]
    status, output, seconds = execute(command, SECONDS)
    line = next((line for line in reversed(output.splitlines()) if line.startswith("{")), None)
    if status != 0 or line is None:
        context.add("profiles", case["name"], False, f"status {status}: {tail(output)}")
        return
    found, listing = json.loads(line), table(json.loads(line))
    place = context.out / f"profile-{case['name'].replace('/', '-')}"
    place.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    place.with_suffix(".md").write_text(listing)
    print(listing, flush=True)
    context.add("profiles", case["name"], True, f"{seconds:.0f} s")


def table(found):
    """A line a kernel, of all layers of one kind; bytes and limit are its phase's, and stand with the phase's first kernel."""
    lines = [f"# {found['target']}, weights: {found['weights']}", ""]
    lines += ["Launches alone, one by one in one stream: their sum is more than a step's.", ""]
    for step in found["steps"]:
        decodes = f"{step.get('sequences')} sequences, a token each after {step.get('context', 0):.0f}"
        what = f"a prompt of {step['prompt_tokens']}" if "prompt_tokens" in step else decodes
        lines += [f"## {what}", ""]
        lines += [
            f"{step['step_microseconds']:.1f} us a step, {step['phases_microseconds']:.1f} all launches, "
            f"{step['predicted_microseconds']:.1f} predicted, {step['limit_microseconds']:.1f} at the limit", "",
        ]
        lines += ["| kernel | phase | times | us each | us | bytes of the phase | GB/s | of limit | us predicted |", "|---|---|---|---|---|---|---|---|---|"]
        for phase in step["phases"]:
            figures = f"{phase['bytes']:.0f} | {phase['gb_per_second']:.0f} | {100 * phase['of_limit']:.0f} % | {phase['predicted_microseconds']:.1f}"
            for launch in phase["launches"]:
                times, took = phase["times"], launch["microseconds"]
                name = f"{phase['body']}.{phase['phase']}"
                lines.append(f"| {launch['kernel']} | {name} | {times} | {took / times:.2f} | {took:.1f} | {figures} |")
                figures = " | | |"
        lines.append("")
    return "\n".join(lines) + "\n"
