"""Sequences that join and leave batches of batch-invariant servers: each equal to its lone run, ids and log-probabilities to the bit."""

import json
import tempfile
from pathlib import Path

from .common import execute, tail

SECONDS = 280
PROMPTS, LONGEST, TOKENS = 160, 200, 63
# Of K/V: enough for all that run at once, and so little that some are pre-empted.
ROOMY, TIGHT = 16_384, 1_024


def prompts(vocabulary, context):
    """Token ids that differ from prompt to prompt; lengths from 1 to LONGEST, the shortest and those at the ends of pieces among them."""
    longest = min(LONGEST, context - TOKENS)
    lengths = [1, 2, 63, 64, 65, 127, 128, 129, longest] + [1 + at * 37 % longest for at in range(PROMPTS)]
    fits = [length for length in lengths if length <= longest][:PROMPTS]
    return [[(7 + number * 31 + at * (at + number + 5)) % vocabulary for at in range(length)] for number, length in enumerate(fits)]


def run(context):
    def check(case):
        lists = prompts(case["vocabulary"], case["context"])
        with tempfile.TemporaryDirectory() as directory:
            tokens = Path(directory) / "tokens.json"
            tokens.write_text(json.dumps(lists))
            command = [context.path(case["server"]), "generate", "--weights", context.path(case["weights"]), "--tokens", tokens]
            command += ["--ignore-eos", "--temperature", "0", "--max-tokens", TOKENS, "--logprobs", "--memory-fraction", "0.1"]
            answers, said = {}, {}
            for name, flags in {
                "alone": ["--one-by-one", "--kv-tokens", ROOMY],
                "joined": ["--kv-tokens", ROOMY],
                "pre-empted": ["--kv-tokens", TIGHT],
            }.items():
                status, output, _ = execute([*command, *flags], SECONDS)
                if status != 0:
                    return False, f"{name}: status {status}: {tail(output)}", {}
                answers[name] = json.loads(next(line for line in reversed(output.splitlines()) if line.startswith("[[")))
                said[name] = next(line for line in output.splitlines() if "pre-empted" in line)
        words, passed = [], True
        for name in ("joined", "pre-empted"):
            pairs = list(zip(answers["alone"], answers[name], strict=True))
            equal = sum(lone == found for lone, found in pairs)
            firsts = [next(at for at, two in enumerate(zip(lone, found)) if two[0] != two[1]) for lone, found in pairs if lone != found]
            count = sum(len(found) for _, found in pairs)
            passed = passed and equal == len(pairs) and count >= 10_000
            others = f", the others differ first at {firsts}" if firsts else ""
            words.append(f"{name}: {equal} of {len(pairs)} sequences, {count} tokens, equal their lone run{others} ({said[name]})")
        # A run that pre-empted nobody or cut no prompt has shown less than it says.
        passed = passed and " 0 sequences pre-empted" not in said["pre-empted"]
        return passed, "; ".join(words), {}

    context.all("joins", context.manifest["joins"], check)
