"""What the engine promises, on a card with made-up weights: sequences that make room go on with their bits, drafts that are looked up
change no answer, a context that nobody asked for is as long as there is room, and so many sequences run as there is room for the states of."""

import json
import random
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor

from .common import execute, tail
from .serving import Server

REQUESTS = 48
CLIENTS = 16
# A server whose memory is cut is tried with parts of the card's in steps of this, from nothing on.
LITTLE = 0.0005
# States that there is room for beside the blocks, where fewer sequences run than a step takes: each has one,
# and a snapshot.
STATES = 10


def requests(case, repeats=1):
    """Prompts of random ids, some with a part that comes again, and some that begin as an earlier one; by lot and not."""
    lots = random.Random(case["name"])
    asked = []
    for number in range(REQUESTS):
        shortest, longest = case["prompts"]
        prompt = [lots.randrange(case["vocabulary"]) for _ in range(lots.randrange(shortest, longest) // repeats)] * repeats
        if number % 5 == 4:
            prompt = asked[number - 1 - lots.randrange(4)]["prompt"][: shortest // 2] + prompt
        temperature = 0.8 if number % 2 else 0
        asked.append({
            "prompt": prompt, "max_tokens": 64 + 37 * (number % 11), "temperature": temperature, "seed": number,
            "logprobs": 1, "ignore_eos": True,
        })
    return asked


def ask(server, body):
    """Tokens and their log-probabilities, as the server wrote them."""
    choice = server.complete(**body)["choices"][0]
    return choice["text"], choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"]


def alone_and_together(servers, asked):
    """The answers of each of two servers, of the first to one request after another, of the second to many at once, and its counters."""
    first, second = servers
    with Server(first) as server:
        alone = [ask(server, body) for body in asked]
    with Server(second) as server:
        with ThreadPoolExecutor(CLIENTS) as pool:
            together = list(pool.map(lambda body: ask(server, body), asked))
        return alone, together, server.counts()


def equal(alone, together):
    """How many are, and where the others differ first."""
    firsts = {
        number: next((at for at, two in enumerate(zip(*pair[0][1:], *pair[1][1:])) if two[:2] != two[2:]), -1)
        for number, pair in enumerate(zip(alone, together, strict=True)) if pair[0] != pair[1]
    }
    others = f", the others differ first at {firsts}" if firsts else ""
    return not firsts, f"{len(alone) - len(firsts)} of {len(alone)} equal their lone runs{others}"


def run(context):
    checks = {"swapped": swapped, "looked up": looked_up, "cut": cut, "fewer": fewer}
    for case in context.manifest["engine"]:
        name = f"{case['name']} {case['check']}"
        if not context.wanted(name):
            continue
        try:
            passed, detail = checks[case["check"]](context, case)
        except Exception as error:
            passed, detail = False, f"not run: {error!r}"
        context.add("engine", name, passed, detail)


def serve(context, server, *flags):
    return [context.path(server), "serve", "--weights", "dummy", *map(str, flags)]


def swapped(context, case):
    """Blocks for few of those that run, copies in memory for few of those that wait, the others on disk."""
    asked = requests(case)
    longest = case["prompts"][1] * 2 + 512
    with tempfile.TemporaryDirectory() as directory:
        flags = ["--context", longest, "--prefix-cache", "off"]
        swap = ["--swap-space", case["space"], "--swap-dir", directory, "--swap-disk", 16, "--swap-when", "always"]
        commands = [
            serve(context, case["server"], *flags, "--kv-tokens", longest * CLIENTS),
            serve(context, case["server"], *flags, "--kv-tokens", case["tight"], *swap),
        ]
        alone, together, found = alone_and_together(commands, asked)
    passed, words = equal(alone, together)
    number = lambda name: found[f"monomorph:{name}_total"]
    out, back, failures = number("swapped_out"), number("swapped_in"), number("swap_failures")
    rates = [number(f"swap_{way}_bytes") / max(number(f"swap_{way}_seconds"), 1e-9) / 1e9 for way in ("out", "in")]
    words += f"; {found['vllm:num_preemptions_total']:.0f} pre-empted, {out:.0f} copied out ({rates[0]:.1f} GB/s), {back:.0f} back ({rates[1]:.1f} GB/s)"
    words += f", {number('swap_disk_written_bytes') / 1e6:.0f} MB written to disk, {number('swap_disk_read_bytes') / 1e6:.0f} MB read, {failures:.0f} failures"
    return passed and out > 0 and back > 0 and failures == 0, words


def looked_up(context, case):
    """A server that looks drafts up beside one that has none, alone and with others."""
    asked = requests(case, repeats=4)
    flags = ["--context", 2048]
    plain, drafting = serve(context, case["plain"], *flags), serve(context, case["server"], *flags)
    lone, crowded, found = alone_and_together([plain, drafting], asked)
    with Server(drafting) as server:
        drafted = [ask(server, body) for body in asked]
    alone, together = equal(lone, drafted), equal(lone, crowded)
    verified, held = (found[f"vllm:spec_decode_num_{which}_tokens_total"] for which in ("draft", "accepted"))
    words = f"alone {alone[1]}; together {together[1]}; of {verified:.0f} drafts {held:.0f} held, {found['monomorph:steps_total']:.0f} steps"
    return alone[0] and together[0] and verified > 0 and 0 < held < verified, words


def cut(context, case):
    """The least memory that a server starts with: a context shorter than was planned for, and an answer."""
    said = ""
    for part in range(1, 40):
        command = serve(context, case["server"], "--memory-fraction", round(part * LITTLE, 4))
        try:
            with Server(command) as server:
                length = json.loads(server.get("/health"))["stats"]["context"]
                text, tokens, _ = ask(server, {"prompt": [1, 2, 3], "max_tokens": 8, "logprobs": 1, "ignore_eos": True})
                line = next((line.strip() for line in server.output.splitlines() if "are the most" in line), "")
            return bool(line) and 0 < length < case["longest"] and len(tokens) == 8, f"{line}; refused before with: {said}"
        except RuntimeError as error:
            said = tail(str(error), 1)
    return False, f"it never started: {said}"


def fewer(context, case):
    """Blocks that leave room for few states: as many sequences run as have one, and everybody is answered as alone."""
    common = serve(context, case["server"], "--context", case["prompts"][1] * 2 + 512)
    facts = json.loads(execute([common[0], "info", "--json"], 60)[1])
    _, output, _ = execute([*common, "--blocks", 10**8, "--sequences", 1, "--snapshots", 0], 120)
    room = re.search(r"--blocks (\d+)\)", output)
    if room is None:
        return False, f"no refusal of too many blocks: {tail(output)}"
    blocks = int(room[1]) - (STATES - 1) * facts["state_bytes"] // facts["block_bytes"] - 1
    crowded = [*common, "--blocks", blocks]
    alone, together, _ = alone_and_together([[*common, "--sequences", 1], crowded], requests(case))
    with Server(crowded) as server:
        engine = json.loads(server.get("/info"))["engine"]
        line = next((line.strip() for line in server.output.splitlines() if "run at a time" in line), "")
    passed, words = equal(alone, together)
    counts = (engine["sequences"], engine["snapshots"])
    return passed and bool(line) and counts == (STATES // 2, STATES // 2), f"{words}; {counts[0]} sequences, {counts[1]} snapshots; {line}"
