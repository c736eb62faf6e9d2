"""Sequences that join and leave batches of batch-invariant servers: each equal to its lone run, ids and log-probabilities to the bit."""

import json
import tempfile
from pathlib import Path

from .common import execute, tail

SECONDS = 280
LEAST = 10_000  # tokens of each way to join


# Of a server that drafts with the model's own layers, and one without drafts: products of more rows round
# otherwise, and what is nearly as likely takes another's place. Plain builds differ from themselves in 4 to
# 17 of 160, by who is beside a sequence.
DIFFERENT = 0.15


def generate(context, case, server, tokens, *flags):
    """The answers of each prompt, as ids with log-probabilities; and what was said of the steps."""
    command = [context.path(server), "generate", "--weights", context.path(case["weights"]), "--ignore-eos", "--temperature", "0"]
    command += ["--logprobs", "--max-tokens", case["tokens"], "--memory-fraction", "0.1", "--tokens", tokens, *flags]
    status, output, _ = execute(command, SECONDS)
    if status != 0:
        raise RuntimeError(f"status {status}: {tail(output)}")
    lines = output.splitlines()
    said = next(line for line in lines if "pre-empted" in line)
    return json.loads(next(line for line in reversed(lines) if line.startswith("[["))), said


def drafted(context, case):
    """A server that drafts with the model's own layers, alone and together, beside one that does not."""
    words, passed = [], True
    room = ["--context", case["longest"], "--kv-tokens", case["sequences"] * (case["longest"] + 16)]
    with tempfile.TemporaryDirectory() as directory:
        tokens = Path(directory) / "tokens.json"
        tokens.write_text(json.dumps(case["prompts"]))
        plain, _ = generate(context, case, case["plain"], tokens, *room, "--one-by-one")
        for name, flags in {"alone": ["--one-by-one"], "joined": []}.items():
            found, _ = generate(context, case, case["drafting"], tokens, *room, *flags)
            ids = lambda answers: [[token[0] for token in answer] for answer in answers]
            differing = sum(one != other for one, other in zip(ids(plain), ids(found), strict=True))
            passed = passed and differing <= DIFFERENT * len(plain)
            words.append(f"{name}: {len(plain) - differing} of {len(plain)} equal those without drafts")
    return passed, "; ".join(words), {}


def run(context):
    def check(case):
        # Room for all that run at once, and so little that some are pre-empted.
        longest, tight = case["longest"], case["tight"]
        roomy = case["sequences"] * (longest + 16)
        answers, said = {}, {}
        with tempfile.TemporaryDirectory() as directory:
            tokens = Path(directory) / "tokens.json"
            tokens.write_text(json.dumps(case["prompts"]))
            ways = {"alone": ["--one-by-one", "--kv-tokens", roomy], "joined": ["--kv-tokens", roomy], "pre-empted": ["--kv-tokens", tight]}
            for name, flags in ways.items():
                flags = ["--context", longest, *flags]
                answers[name], said[name] = generate(context, case, case["server"], tokens, *flags)
        # A run without pre-emptions shows less than it claims.
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
    drafting = [{**case, "name": f"{case['name']} drafts"} for case in context.manifest["joins"] if "drafting" in case]
    context.all("joins", drafting, lambda case: drafted(context, case))
