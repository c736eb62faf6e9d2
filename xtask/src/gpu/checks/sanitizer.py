"""compute-sanitizer's memcheck over a short service with changing batches, on servers with made-up weights.

Its racecheck runs over the programs of tests/cuda, built so that it can follow them (programs.py)."""

import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

from .common import Missing, tail
from .serving import Server

READY_SECONDS = 180
STREAMS = 10


def run(context):
    for case in context.manifest["sanitized"]:
        name = f"{case['name']} memcheck"
        if context.wanted(name):
            start = time.time()
            passed, detail = sanitize(context, case)
            context.add("sanitizer", name, passed, detail, seconds=round(time.time() - start, 1))


def wrapper(kind):
    """The words that put a program under the tool."""
    tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if tool is None:
        raise Missing("compute-sanitizer is not on this machine")
    # Calls that the driver refuses are answers to questions here (how many parameters has a kernel), not accesses.
    return [tool, "--tool", kind, "--error-exitcode", "9", "--print-limit", "5", "--report-api-errors", "no"]


def sanitize(context, case):
    command = [context.path(case["server"]), "serve", "--weights", "dummy", "--memory-fraction", "0.05"]
    server = Server(command, wrapper("memcheck"), READY_SECONDS)
    try:
        with server:

            def ask(number):
                # One after the other they begin, and they end at different lengths: batches grow and shrink.
                time.sleep(0.2 * number)
                prompt = [(7 * number + at) % case["vocabulary"] for at in range(1 + min(3 * number, case["context"] // 4))]
                most = min(6 + 5 * number, case["context"] // 2)
                return server.complete(prompt, 240, max_tokens=most, temperature=0.7, seed=number)

            with ThreadPoolExecutor(STREAMS) as pool:
                answers = list(pool.map(ask, range(STREAMS)))
            status = server.stop(240)
    except Exception as error:
        return False, f"{error!r}: {' | '.join(findings(server.output)[:6])}: {tail(server.output)}"
    summary = [line for line in server.output.splitlines() if "SUMMARY" in line]
    clean = bool(summary) and all(re.search(r"\b0 (errors|hazards)\b", line) for line in summary)
    tokens = sum(usage["completion_tokens"] for _, usage, _ in answers)
    detail = f"status {status}, {tokens} tokens; {' '.join(summary) or tail(server.output)}"
    if not clean:
        detail += " | " + " | ".join(findings(server.output)[:6])
    return status == 0 and clean, detail


def findings(output):
    """What the tool says besides call stacks."""
    said = (line.removeprefix("=========").strip() for line in output.splitlines() if line.startswith("========="))
    return [line for line in said if line and "Frame" not in line]
