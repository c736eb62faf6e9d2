"""Greedy continuations against the interpreter's: of real weights, or of random ones that several GPUs can share."""

import json
import tempfile
from pathlib import Path

from .common import Missing, execute, tail

SECONDS = 120


def run(context):
    case = context.manifest.get("served")
    if case is None:
        raise Missing("no server with weights was gathered")
    steps = len(case["ids"][0])
    with tempfile.TemporaryDirectory() as directory:
        tokens = Path(directory) / "tokens.json"
        tokens.write_text(json.dumps(case["prompts"]))
        command = [context.path(case["server"]), "generate", "--weights", context.path(case["weights"]), "--tokens", tokens]
        status, output, seconds = execute(
            [*command, "--max-tokens", steps, "--temperature", "0", "--ignore-eos"], SECONDS
        )
    if status != 0:
        context.add("tokens", case["name"], False, f"status {status}: {tail(output)}")
        return
    # What is said beside the answer goes to standard error, which is here too.
    answer = next(line for line in reversed(output.splitlines()) if line.startswith("[["))
    for name, found, ids, margins in zip(case["names"], json.loads(answer), case["ids"], case["margins"]):
        differs = next((at for at, pair in enumerate(zip(found, ids)) if pair[0] != pair[1]), None)
        if differs is None:
            passed, detail = len(found) == steps, f"{len(found)} tokens equal the interpreter's"
        else:
            lead = margins[differs]
            passed, detail = lead <= case["tie"], f"differs at {differs}, where the interpreter leads by {lead}"
        context.add("tokens", name, passed, detail, seconds=round(seconds, 1))
