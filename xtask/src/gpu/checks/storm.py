"""A thousand clients that mostly hang up: streams and whole answers, constrained or not, with prompts that begin alike. Afterwards every
block is free again, nobody runs or waits, and the server answers as before. Each rank has carried out the same steps and exchanges."""

import json
import random
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor

from .serving import Server

REQUESTS = 1000
CLIENTS = 48
# Of the whole storm; a server that is slower than this is not asked the rest, and fails.
SECONDS = 60
# Until blocks of those that hung up last are back.
BACK_SECONDS = 5
DOCUMENTS, DOCUMENT = 6, 160
# Every so many requests, one whose answer is known stays to its end.
KNOWN_EVERY, KNOWN = 9, 8
FORMATS = [{"guided_regex": "([a-z]|[0-9]){1,200}"}, {"guided_json": {"type": "array", "minItems": 40, "items": {"type": "integer"}}}]


def known(case, documents):
    """Requests that are asked before, in and after the storm."""
    lots = random.Random(3)
    for number in range(KNOWN):
        own = [lots.randrange(case["vocabulary"]) for _ in range(1 + 29 * number)]
        sampling = {"temperature": 0.8, "seed": number} if number % 2 else {"temperature": 0}
        prompt = documents[number % DOCUMENTS][: 40 * (number % 4)] + own
        yield {"prompt": prompt, "max_tokens": 24, "ignore_eos": True, "logprobs": 1, **sampling}


def request(case, documents, number):
    """A request, and when its client leaves: after so many seconds, after so many bytes of the answer, or never."""
    lots = random.Random(1000 + number)
    shared = lots.choice([0, 40, 90, DOCUMENT])
    own = [lots.randrange(case["vocabulary"]) for _ in range(lots.choice([3, 30, 120]))]
    body = {"prompt": lots.choice(documents)[:shared] + own, "max_tokens": lots.choice([8, 60, 200]), "stream": lots.random() < 0.6}
    body |= lots.choice([{"temperature": 0}, {"temperature": 0.9, "seed": number}, {"temperature": 0.7, "frequency_penalty": 0.4}])
    body |= lots.choice(FORMATS) if number % 4 == 2 else {"ignore_eos": True}
    leaves = lots.choice([("seconds", lots.uniform(0, 0.01)), ("seconds", lots.uniform(0.01, 0.5)), ("bytes", lots.randrange(1, 6000)), None])
    return body, leaves


def hang_up(port, body, leaves):
    """Asks, and goes when it is time; whether the answer came to its end, and with which status."""
    text = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as stream:
        stream.sendall(head.encode() + text)
        if leaves and leaves[0] == "seconds":
            time.sleep(leaves[1])
            return None
        found = b""
        while leaves is None or len(found) < leaves[1]:
            some = stream.recv(4096)
            if not some:
                return int(found.split()[1]) if found else 0
            found += some
    return None


def answer(server, body):
    choice = server.complete(**body)["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"]


def counts(server):
    stats = json.loads(server.get("/health"))["stats"]
    return {name: stats[name] for name in ("running", "waiting", "free_blocks", "total_blocks")}


def of_ranks(server, name):
    """A counter's value of each rank, by rank; empty of a server that names none."""
    found = re.findall(rf'^{re.escape(name)}{{[^}}]*rank="(\d+)"[^}}]*}} (\S+)', server.get("/metrics"), re.MULTILINE)
    return {int(rank): float(value) for rank, value in found}


def storm(context, case):
    """Passed, what was seen, and the figures."""
    lots = random.Random(7)
    documents = [[lots.randrange(case["vocabulary"]) for _ in range(DOCUMENT)] for _ in range(DOCUMENTS)]
    command = [context.path(case["server"]), "serve", "--weights", context.path(case["weights"]), "--memory-fraction", "0.3"]
    command += ["--kv-tokens", case.get("kv_tokens", 16_384), "--max-waiting", REQUESTS, *case.get("flags", [])]
    total = case.get("requests", REQUESTS)
    wrong = []
    with Server(command) as server:
        asked = list(known(case, documents))
        expected = [answer(server, body) for body in asked]
        before, began = counts(server), time.time()

        def client(number):
            if time.time() - began > SECONDS:
                return "late"
            if number % KNOWN_EVERY == 0:
                at = number // KNOWN_EVERY % KNOWN
                return "right" if answer(server, asked[at]) == expected[at] else "other"
            status = hang_up(server.port, *request(case, documents, number))
            return "left" if status is None else f"status {status}"

        with ThreadPoolExecutor(CLIENTS) as pool:
            outcomes = list(pool.map(client, range(total)))
        seconds, passed_at = time.time() - began, time.time()
        after = counts(server)
        while after != before and time.time() - passed_at < BACK_SECONDS:
            time.sleep(0.02)
            after = counts(server)
        if after != before:
            wrong.append(f"{BACK_SECONDS} s later {after}, and before {before}")
        if [answer(server, body) for body in asked] != expected:
            wrong.append("answers are others than before")
        failed = json.loads(server.get("/health"))["stats"]["failed"]
        # A step that nobody waits for any more may still be under way on one rank.
        time.sleep(0.1)
        ranks = {name: of_ranks(server, f"monomorph:rank_{name}_total") for name in ("steps", "exchanges", "sent_bytes")}
        status = server.stop()
    tally = {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))}
    unexpected = set(tally) - {"left", "right", "status 200"}
    if unexpected or failed or status != 0:
        wrong.append(f"outcomes {sorted(unexpected)}, {failed} failed, exit status {status}")
    if tally.get("left", 0) < total // 3 or tally.get("right", 0) < total // (2 * KNOWN_EVERY):
        wrong.append("too few left, or too few were answered, for this to show anything")
    for name, values in ranks.items():
        if sorted(values) != list(range(case["ranks"])) or len(set(values.values())) != 1 or not min(values.values()):
            if case["ranks"] > 1:
                wrong.append(f"{name} of ranks: {values}")
    words = f"{total} requests in {seconds:.1f} s: {', '.join(f'{count} {what}' for what, count in tally.items())}; {after}"
    if case["ranks"] > 1:
        words += "; " + ", ".join(f"{name} {'/'.join(f'{value:.0f}' for value in values.values())}" for name, values in ranks.items())
    return not wrong, "; ".join([words, *wrong]), {"seconds": round(seconds, 1)}


def run(context):
    # One at a time: each has a bound on its time.
    jobs, context.jobs = context.jobs, 1
    context.all("storm", context.manifest["storm"], lambda case: storm(context, case))
    context.jobs = jobs
