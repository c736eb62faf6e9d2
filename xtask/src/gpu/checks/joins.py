"""Sequences that join and leave batches of batch-invariant servers: each equal to its lone run, ids and log-probabilities to the bit."""

import json
import tempfile
from pathlib import Path

from .common import execute, tail

SECONDS = 280
LEAST = 10_000  # tokens of each way to join


def run(context):
    def check(case):
        # Room for all that run at once, and so little that some are pre-empted.
        longest, tight = case["longest"], case["tight"]
        roomy = case["sequences"] * (longest + 16)
        command = [context.path(case["server"]), "generate", "--weights", context.path(case["weights"]), "--ignore-eos", "--temperature", "0"]
        command += ["--logprobs", "--max-tokens", case["tokens"], "--context", longest, "--memory-fraction", "0.1"]
        answers, said = {}, {}
        with tempfile.TemporaryDirectory() as directory:
            tokens = Path(directory) / "tokens.json"
            tokens.write_text(json.dumps(case["prompts"]))
            ways = {"alone": ["--one-by-one", "--kv-tokens", roomy], "joined": ["--kv-tokens", roomy], "pre-empted": ["--kv-tokens", tight]}
            for name, flags in ways.items():
                status, output, _ = execute([*command, "--tokens", tokens, *flags], SECONDS)
                if status != 0:
                    return False, f"{name}: status {status}: {tail(output)}", {}
                answers[name] = json.loads(next(line for line in reversed(output.splitlines()) if line.startswith("[[")))
                said[name] = next(line for line in output.splitlines() if "pre-empted" in line)
        # A run that pre-empted nobody has shown less than it says.
        words, passed = [], " 0 sequences pre-empted" not in said["pre-empted"]
        for name in ("joined", "pre-empted"):
            pairs = list(zip(answers["alone"], answers[name], strict=True))
            firsts = [next(at for at, two in enumerate(zip(lone, found)) if two[0] != two[1]) for lone, found in pairs if lone != found]
            count = sum(len(found) for _, found in pairs)
            passed = passed and not firsts and count >= LEAST
            others = f", the others differ first at {firsts}" if firsts else ""
            words.append(f"{name}: {len(pairs) - len(firsts)} of {len(pairs)} equal their lone run, {count} tokens{others} ({said[name]})")
        return passed, "; ".join(words), {}

    context.all("joins", context.manifest["joins"], check)
