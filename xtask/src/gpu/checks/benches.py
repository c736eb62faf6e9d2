"""Speed beside the limit: bytes that must move over the card's bandwidth, or products over its rate."""

import json

from .common import execute, tail
from .hosts import World

SECONDS = 200


def decode_limit(costs, batch, kv_bytes):
    """Steps a second at the bandwidth, times the batch: weights are read once a step, those of the experts that the batch is expected to
    touch; each sequence's cache by itself, and its state read and written."""
    moved = costs["weight_bytes"][str(batch)] + batch * (kv_bytes + costs["state_bytes"])
    return batch * costs["bandwidth"] / moved, moved


def run(context):
    for case in context.manifest["benches"]:
        for measured in case["runs"]:
            name = f"{case['target']} {measured['name']}"
            if context.wanted(name):
                try:
                    bench(context, case, measured, name)
                except Exception as error:
                    context.add("benches", name, False, f"not run: {error!r}")


def bench(context, case, measured, name):
    depth, generate, prompt = measured["depth"], measured["generate"], measured["prompt"]
    weights = context.path(case["weights"]) if "weights" in case else "dummy"
    command = [context.path(case["server"]), "bench", "--weights", weights, "--json", "--repeat", measured["repeat"]]
    command += ["--depth", depth, "--generate", generate, "--prompt-tokens", prompt]
    command += ["--batch", ",".join(map(str, measured["batch"])), "--streams", ",".join(map(str, measured["streams"]))]
    if "images" in measured:
        command += ["--images", ",".join(measured["images"])]
    if case.get("processes", 1) > 1:
        with World(case["processes"]) as world:
            status, output, seconds = world.execute(command, SECONDS)
    else:
        status, output, seconds = execute(command, SECONDS)
    line = next((line for line in reversed(output.splitlines()) if line.startswith("{")), None)
    if status != 0 or line is None:
        context.add("benches", name, False, f"status {status}: {tail(output)}")
        return
    report, costs = json.loads(line), case["costs"]

    def keep(what, rate, unit, limit=None, **figures):
        context.keep({
            "target": case["target"], "name": what, "rate": rate, "unit": unit, "limit": limit,
            "command": " ".join(map(str, ["server", *command[1:]])), **figures,
        })

    for batch in report["batches"]:
        count, rate = batch["sequences"], batch["tokens_per_second"]
        limit, moved = decode_limit(costs, count, measured["kv_bytes"])
        keep(f"decode, batch {count}, after {depth}", rate, "tok/s", limit, bytes_a_step=moved, samples=batch["samples"])
    for streams in report["streams"]:
        count, rate = streams["streams"], streams["tokens_per_second"]
        limit, moved = decode_limit(costs, count, measured["kv_bytes"])
        keep(f"{count} streams, prompts of {depth} included", rate, "tok/s", limit, bytes_a_step=moved, samples=streams["samples"])
    for seen in report["images"]:
        size = seen["size"]
        keep(f"tower, {size}", seen["tower_ms"], "ms", samples=seen["samples"], patches=seen["patches"])
        for answers in seen["answers"]:
            what = f"{answers['images']} of {size}, prompt of {answers['tokens']}"
            for way, times in (("with images", answers["with_images"]), ("text alone", answers["text"])):
                keep(f"first token, {what}, {way}", times["first_token_ms"], "ms", samples=times["samples"])
                keep(f"a token after {what}, {way}", times["token_ms"], "ms")
    rate = report["ours"]["prefill"]
    keep(f"prefill of {prompt}", rate, "tok/s", measured["prefill_limit"], samples=report["samples"]["prefill"])
    if prompt <= 128:
        keep(f"first token after a prompt of {prompt}", 1e3 * prompt / rate, "ms", floor=1e3 * prompt / measured["prefill_limit"])
    else:
        keep("start to first token", report["start_to_first_token_ms"], "ms")
        keep("start to ready", report["start_to_ready_ms"], "ms")
    context.add("benches", name, True, f"{seconds:.0f} s")
