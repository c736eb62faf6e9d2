"""A server of several GPUs beside one of a single GPU, of the same checkpoint: greedy tokens are equal, or differ first where both are nearly
as likely, and log-probabilities are close up to there. Then the same server with a prefix cache, with sequences that are swapped, and
with blocks on disk: to the bit what it answers alone, for it is batch-invariant. Servers that draft may differ at ties.
Planted answers in xtask/tests/alike.py say what passes."""

import json
import tempfile
from concurrent.futures import ThreadPoolExecutor

from .serving import Server

# Side by side, answers of so many take more blocks than there are where sequences are swapped.
TOKENS = 160
CLIENTS = 12
PIECES = ["--prefill-tokens", 64]
# Lengths of prompts: a token, around the ends of tiles and chunks, and longer than a step.
LENGTHS = [1, 2, 15, 16, 17, 63, 64, 65, 130, 250, 257, 400, 700, 1100]
# Nats between the two likeliest tokens, up to which their order may depend on how sums are cut, and
# between two servers' log-probabilities of one token: 0.015 and 0.11 were measured.
TIE, APART = 0.1, 0.2
# Where two experts are nearly as good for a token, rounding decides between them, and probabilities jump:
# in few answers, also on one GPU. Rows of drafts are rounded otherwise than single ones.
FLIPPED, JUMP = 2, 0.5


def prompts(case):
    most = case["context"] - TOKENS - 8
    for number, length in enumerate(case.get("lengths", LENGTHS)):
        yield [(7 + number * 31 + at * (at + number + 5)) % case["vocabulary"] for at in range(min(length, most))]


def ask(server, prompt):
    """Tokens, their log-probabilities, and those of the likeliest five at each."""
    answer = server.complete(prompt, max_tokens=TOKENS, temperature=0, ignore_eos=True, logprobs=5)
    found = answer["choices"][0]["logprobs"]
    return found["tokens"], found["token_logprobs"], found["top_logprobs"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def difference(expected, found):
    """The first token that differs with what it lacked of being chosen (`None` where none does), and the largest distance of
    log-probabilities before."""
    apart = 0.0
    for at, (one, other) in enumerate(zip(expected[0], found[0], strict=True)):
        if one != other:
            return (at, expected[1][at] - expected[2][at].get(other, float("-inf"))), apart
        apart = max(apart, abs(expected[1][at] - found[1][at]))
    return None, apart


def alike(expected, found, jumps):
    """Whether answers differ at ties only, and in words how they do. With `jumps`, of servers that draft or have experts, a few may
    differ by more."""
    pairs = [difference(*pair) for pair in zip(expected, found, strict=True)]
    firsts = {number: first for number, (first, _) in enumerate(pairs) if first}
    apart = max(apart for _, apart in pairs)
    ties = ", ".join(f"prompt {number} at {at} by {margin:.4f}" for number, (at, margin) in firsts.items())
    words = f"{len(pairs) - len(firsts)} of {len(pairs)} equal, log-probabilities at most {apart:.1e} apart" + (f"; others differ first: {ties}" if ties else "")
    margins = [margin for _, margin in firsts.values()]
    if jumps:
        passed = apart <= JUMP and all(margin <= JUMP for margin in margins) and sum(margin > TIE for margin in margins) <= FLIPPED
    else:
        passed = apart <= APART and all(margin <= TIE for margin in margins)
    return passed, words


def same(expected, found):
    """Whether answers are the same to the bit."""
    other = [number for number, pair in enumerate(zip(expected, found, strict=True)) if pair[0][:3] != pair[1][:3]]
    return not other, f"{len(expected) - len(other)} of {len(expected)} equal to the bit" + (f", not {other}" if other else "")


class Ways:
    """Ways to serve one checkpoint."""

    def __init__(self, context, case, weights):
        self.context, self.case, self.weights, self.prompts = context, case, weights, list(prompts(case))
        self.longest = max(map(len, self.prompts)) + TOKENS + 8

    def serve(self, server, *flags, cache="off"):
        command = [self.context.path(server), "serve", "--weights", self.context.path(self.weights)]
        return Server([*command, "--context", self.longest, "--prefix-cache", cache, *self.case["flags"], *flags])

    def alone(self, server, *flags, cache="off", twice=False):
        with self.serve(server, *flags, cache=cache) as server:
            found = [ask(server, prompt) for prompt in self.prompts]
            return [ask(server, prompt) for prompt in self.prompts] if twice else found, server.counts()

    def together(self, server, *flags):
        with self.serve(server, *flags) as server, ThreadPoolExecutor(CLIENTS) as pool:
            return list(pool.map(lambda prompt: ask(server, prompt), self.prompts)), server.counts()


def check(context, case):
    """Yields (name, passed, words) of each way."""
    for weights in case["weights"]:
        kind = weights.rsplit("/", 1)[-1]
        ways = Ways(context, case, weights)
        roomy = ["--kv-tokens", ways.longest * CLIENTS]
        one, _ = ways.alone(case["one"], *roomy)
        several, _ = ways.alone(case["several"], *roomy)
        yield f"{kind}, beside one GPU", *alike(one, several, case["experts"])

        together, _ = ways.together(case["several"], *roomy)
        yield f"{kind}, side by side", *same(several, together)

        again, _ = ways.alone(case["several"], *roomy, cache="on", twice=True)
        cached = sum(answer[3] for answer in again)
        passed, words = same(several, again)
        yield f"{kind}, from a prefix cache", passed and cached > 0, f"{words}, {cached} tokens from the cache"

        swap = ["--swap-space", case["swap_gb"], "--swap-when", "always"]
        swapped, found = ways.together(case["several"], "--kv-tokens", ways.longest + 256, *swap)
        out, back = (found[f"monomorph:swapped_{way}_total"] for way in ("out", "in"))
        passed, words = same(several, swapped)
        yield f"{kind}, swapped", passed and out > 0 and back > 0, f"{words}, {out:.0f} copied out, {back:.0f} back"

        # Prompts are cut alike with and without, so that the same kernels see the same rows.
        cut, _ = ways.alone(case["several"], *roomy, *PIECES)
        with tempfile.TemporaryDirectory(dir=context.out) as directory:
            offload = ["--kv-tokens", ways.longest * 2 // 3, "--high-speed-swap", directory]
            offloaded, found = ways.alone(case["several"], *offload, *PIECES)
        sent = found["monomorph:kv_blocks_offloaded_total"]
        passed, words = same(cut, offloaded)
        yield f"{kind}, blocks on disk", passed and sent > 0, f"{words}, {sent:.0f} blocks sent"

        for name, servers in case["drafting"].items():
            for way, ask_all in (("alone", ways.alone), ("side by side", ways.together)):
                (single, _), (drafted, found) = (ask_all(servers[which], *roomy) for which in ("one", "several"))
                verified, held = (found[f"vllm:spec_decode_num_{which}_tokens_total"] for which in ("draft", "accepted"))
                passed, words = alike(one, drafted, True)
                # Look-up finds nothing where nothing repeats.
                drafts = verified > 0 or (name == "lookup" and kind != "repeating")
                yield f"{kind}, drafts by {name}, {way}", passed and drafts, f"{words}; of {verified:.0f} drafts {held:.0f} held"
                yield f"{kind}, drafts by {name}, {way}, of one GPU", *alike(one, single, True)


def run(context):
    for case in context.manifest["ranks"]:
        if not context.wanted(case["name"]):
            continue
        try:
            for name, passed, words in check(context, case):
                context.add("ranks", f"{case['name']}, {name}", passed, words)
        except Exception as error:
            context.add("ranks", case["name"], False, f"not run: {error!r}")
