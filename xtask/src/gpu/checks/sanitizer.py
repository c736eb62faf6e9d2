"""compute-sanitizer: memcheck and racecheck (for which kernels are built so that it can follow them) over programs of tests/cuda, and over a
short service with changing batches, on servers with made-up weights (racecheck: without HTTP)."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor

from .common import cuda_tool, execute, tail
from .programs import command
from .serving import Server

READY_SECONDS = 180
STREAMS = 10
PROGRAM_SECONDS = 400
STEPS_SECONDS = 300


def run(context):
    programs = [it for it in context.manifest["programs"] if it["tool"] is not None]
    # racecheck takes longest.
    programs.sort(key=lambda it: it["tool"] != "racecheck")
    context.all("sanitizer", programs, lambda it: watch(context, it))
    for case in context.manifest["sanitized"]:
        name = f"{case['name']} {case['tool']}"
        if context.wanted(name):
            start = time.time()
            passed, detail = (serve if case["tool"] == "memcheck" else steps)(context, case)
            context.add("sanitizer", name, passed, detail, seconds=round(time.time() - start, 1))


def watch(context, program):
    """A program under its tool, which must find nothing and let it pass."""
    tool = program["tool"]
    status, output, seconds = execute([*wrapper(tool), *command(context, program)], PROGRAM_SECONDS)
    said = findings(output)
    # memcheck counts errors, racecheck errors and warnings.
    nothing = "(0 errors, 0 warnings)" if tool == "racecheck" else "ERROR SUMMARY: 0 errors"
    clean = status == 0 and bool(said) and nothing in said[-1]
    return clean, f"status {status}: {' | '.join(said[-3:]) or tail(output)}", {"seconds": round(seconds, 1)}


def wrapper(kind):
    """The words that put a program under the tool."""
    # Calls that the driver refuses are answers to questions here (how many parameters has a kernel), not
    # accesses.
    return [cuda_tool("compute-sanitizer"), "--tool", kind, "--error-exitcode", "9", "--print-limit", "5", "--report-api-errors", "no"]


def steps(context, case):
    """Five lists of tokens side by side: prompts of nine together, then 32 to 40 steps, in which one list after the other ends. Without HTTP and
    sampling: under racecheck a step takes seconds."""
    lists, logits = context.out / "racecheck.json", context.out / "racecheck.safetensors"
    lists.write_text(json.dumps([[(7 * number + at) % case["vocabulary"] for at in range(41 + 2 * number)] for number in range(5)]))
    options = ["--decode", "--weights", "dummy", "--memory-fraction", "0.05", "--prompt", "9", "--together", "--tokens", lists, "--out", logits]
    command = [*wrapper(case["tool"]), context.path(case["server"]), "logits", *options]
    status, output, seconds = execute(command, STEPS_SECONDS)
    logits.unlink(missing_ok=True)
    said = findings(output)
    clean = status == 0 and bool(said) and "(0 errors, 0 warnings)" in said[-1]
    detail = f"status {status}, 5 prompts of 9 and 40 steps in {seconds:.0f} s; {' | '.join(said[-3:])}"
    return clean, detail if clean else f"{detail}; {tail(output)}"


def serve(context, case):
    command = [context.path(case["server"]), "serve", "--weights", "dummy", "--memory-fraction", "0.05"]
    server = Server(command, wrapper(case["tool"]), READY_SECONDS)
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
    tokens = sum(answer["usage"]["completion_tokens"] for answer in answers)
    detail = f"status {status}, {tokens} tokens; {' '.join(summary) or tail(server.output)}"
    if not clean:
        detail += " | " + " | ".join(findings(server.output)[:6])
    return status == 0 and clean, detail


def findings(output):
    """What the tool says besides call stacks."""
    said = (line.removeprefix("=========").strip() for line in output.splitlines() if line.startswith("========="))
    return [line for line in said if line and "Frame" not in line]
