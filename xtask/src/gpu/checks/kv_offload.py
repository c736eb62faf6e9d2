"""Sequences longer than their share of the card, their oldest keys and values on disk: equal to the bit to what the same server answers
with everything on the card, made-up weights and all; and how fast. Not among what runs by itself: it wants a fast disk under --out."""

import random
import tempfile
import time

from .serving import Server

MOST = 32_768  # tokens of the longest sequence
TOKENS = 32  # of an answer
SECONDS = 900


def ask(server, prompt, tokens):
    """The choice, and how long it took."""
    began = time.time()
    answer = server.complete(prompt, SECONDS, max_tokens=tokens, temperature=0, logprobs=2, ignore_eos=True)
    choice = answer["choices"][0]
    return {"text": choice["text"], "logprobs": choice["logprobs"]}, time.time() - began


def answers(command, prompts):
    """Of each prompt the choice, the seconds to its first token, and the tokens a second behind that; and what the server said."""
    found = []
    with Server(command, ready_seconds=SECONDS) as server:
        for prompt in prompts:
            _, first = ask(server, prompt, 1)
            choice, whole = ask(server, prompt, TOKENS)
            found.append((choice, first, (TOKENS - 1) / max(whole - first, 1e-9)))
        sent = server.counts().get("monomorph:kv_blocks_offloaded_total", 0.0)
    return found, sent, [line.strip() for line in server.output.splitlines() if "staging" in line or "on disk" in line]


def check(context, case):
    longest = min(MOST, case["context"])
    piece = max(longest // 16, 16)
    rand = random.Random(4)
    prompts = [[rand.randrange(32) for _ in range(length)] for length in (longest // 3, longest - TOKENS - 16)]
    common = [context.path(case["server"]), "serve", "--weights", "dummy", "--context", longest, "--memory-fraction", "0.8"]
    # Prefill chunks end alike with and without, so that the same kernels see the same rows.
    common += ["--prefix-cache", "off", "--prefill-tokens", piece, "--request-timeout", "0"]
    whole, _, _ = answers([*common, "--kv-tokens", longest + 64], prompts)
    with tempfile.TemporaryDirectory(dir=context.out) as directory:
        # An eighth of the longest sequence stays, of a card that holds a quarter.
        offload = ["--kv-tokens", longest // 4, "--high-speed-swap", directory]
        found, sent, said = answers([*common, *offload], prompts)
    words, equal = [], sent > 0
    for prompt, (expected, first, rate), (choice, disk_first, disk_rate) in zip(prompts, whole, found):
        same = choice == expected
        equal = equal and same
        words.append(
            f"{len(prompt)} tokens {'equal' if same else 'DIFFER'}, first token after {disk_first:.2f} s ({first:.2f} s), {disk_rate:.1f} tok/s ({rate:.1f})"
        )
        context.keep({
            "target": case["target"], "name": f"{len(prompt)} tokens, most on disk", "rate": disk_rate, "unit": "tok/s", "limit": rate,
            "first_seconds": disk_first, "first_seconds_resident": first, "blocks_sent": sent,
        })
    context.add("kv_offload", case["target"], equal, f"{'; '.join(words)}; {sent:.0f} blocks sent; {' | '.join(said)}")


def run(context):
    for case in context.manifest["benches"]:
        if context.wanted(case["target"]):
            try:
                check(context, case)
            except Exception as error:
                context.add("kv_offload", case["target"], False, f"not run: {error!r}")
