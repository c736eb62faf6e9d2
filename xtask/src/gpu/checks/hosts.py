"""Servers of several processes with a GPU each, over NCCL on loopback: answers of one process, to the bit; and processes that are killed."""

import http.client
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from .common import Missing, execute, tail

SECONDS = 120
# All of it: kills go on until their number is reached, or until then.
BUDGET = 250
KILLS = 50
SEED = 19
# How long a client may wait for the end of its answer once a process is gone, and a process may take to end.
PATIENCE = 5
# Every so many rounds it is the head that is killed.
HEAD_EVERY = 5
CLIENTS = 4
ALWAYS = {"prompt": list(range(1, 60)), "max_tokens": 24, "temperature": 0, "ignore_eos": True, "logprobs": 1}
# NVLink multicast stays off, and NCCL finds its peers over loopback.
ENVIRONMENT = {"NCCL_NVLS_ENABLE": "0", "NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "WARN"}


def nccl():
    """The library that PyTorch brings, or the system's."""
    places = [Path(place) for place in sys.path if place]
    places += [Path(place) for place in os.environ.get("LD_LIBRARY_PATH", "").split(":") if place]
    done = subprocess.run(
        ["python3", "-c", "import site, sys; print(*site.getsitepackages(), *sys.path, sep=chr(10))"], stdout=subprocess.PIPE, text=True
    )
    places += [Path(line) for line in done.stdout.splitlines() if line]
    names = ["nvidia/nccl/lib/libnccl.so.2", "torch/lib/libnccl.so.2", "libnccl.so.2"]
    places += [Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/local/cuda/lib64")]
    for place in places:
        for name in names:
            if (place / name).exists():
                return place / name
    raise Missing("libnccl.so.2 stands in no site-packages, beside PyTorch or of the system")


def port(taken=None):
    """A port that nobody listens on, and that is not meant for another."""
    while True:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            found = free.getsockname()[1]
        if found != taken:
            return found


class World:
    """A secret and a port for so many processes, of which one needs neither; those that were started are gone at the end of a `with`."""

    def __init__(self, processes):
        self.count, self.started = processes, []
        self.directory = tempfile.TemporaryDirectory()
        self.token = Path(self.directory.name) / "token"
        self.token.touch(mode=0o600)
        self.token.write_text(secrets.token_hex(16))

    def __enter__(self):
        self.port = port()
        return self

    def __exit__(self, *_):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.directory.cleanup()

    def flags(self, rank):
        if self.count == 1:
            return []
        words = ["--world-size", self.count, "--rank", rank, "--gpu-ordinals", rank, "--master-addr", "127.0.0.1"]
        return [*words, "--master-port", self.port, "--token-file", self.token, "--nccl", nccl()]

    def begin(self, command, rank):
        """A process of a rank; what it says is in a file."""
        log = open(Path(self.directory.name) / f"log-{len(self.started)}", "w+")
        process = subprocess.Popen(
            [str(word) for word in (*command, *self.flags(rank))], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            env={**os.environ, **ENVIRONMENT},
        )
        process.log = log
        self.started.append(process)
        return process

    def execute(self, command, seconds):
        """Runs a verb that ends by itself; what the head said, and what the others did if they failed."""
        others = [self.begin(command, rank) for rank in range(1, self.count)]
        status, output, took = execute([*command, *self.flags(0)], seconds, ENVIRONMENT)
        for other in others:
            try:
                other.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                return 124, f"{output}\na worker did not end: {tail(said(other))}", took
            if other.returncode != status:
                return status or 1, f"{output}\na worker ended with {other.returncode}: {tail(said(other))}", took
        return status, output, took


def said(process):
    process.log.flush()
    process.log.seek(0)
    return process.log.read()


class Serving:
    """Head and workers that serve; `command` is without flags of the world."""

    def __init__(self, world, command):
        self.port = port(world.port)
        began = time.time()
        self.workers = [world.begin(command, rank) for rank in range(1, world.count)]
        self.head = world.begin([*command, "--port", self.port], 0)
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    break
            except OSError:
                ended = [process for process in (self.head, *self.workers) if process.poll() is not None]
                if ended or time.time() - began > SECONDS:
                    raise RuntimeError("; ".join(tail(said(process)) for process in (self.head, *self.workers))) from None
                time.sleep(0.02)
        self.ready = time.time() - began

    def ask(self, body):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=SECONDS) as response:
            return json.loads(response.read())["choices"][0]


def logits(context, count, case):
    """Whether several processes compute the bits that one does."""
    weights, tokens = context.path(case["weights"]), context.path(case["tokens"])
    words = []
    for name, flags in (("prefill", []), ("decode", ["--decode"]), ("together", ["--together", "--decode", "--prompt", "5"])):
        with tempfile.TemporaryDirectory() as directory, World(count) as world:
            outs = [Path(directory) / name for name in ("one", "several")]
            shared = ["--weights", weights, "--tokens", tokens, "--memory-fraction", "0.1", *flags]
            status, output, _ = execute([context.path(case["server"]), "logits", *shared, "--out", outs[0]], SECONDS)
            if status != 0:
                return False, f"one process, {name}: status {status}: {tail(output)}", {}
            status, output, seconds = world.execute([context.path(case["several"]), "logits", *shared, "--out", outs[1]], SECONDS)
            if status != 0:
                return False, f"{count} processes, {name}: status {status}: {tail(output)}", {}
            if outs[0].read_bytes() != outs[1].read_bytes():
                return False, f"{name}: {count} processes compute other bits than one", {}
            words.append(f"{name} {seconds:.1f} s")
    return True, f"the bits of one process; {', '.join(words)}", {}


def stream(serving, outcome, number, tokens):
    """A long answer, read until its end: when that came and what it was."""
    body = {**ALWAYS, "prompt": [1 + number, *ALWAYS["prompt"]], "max_tokens": tokens, "stream": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{serving.port}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as response:
            lines = [line for line in response if line.strip()]
        outcome[number] = (time.time(), "told" if any(b'"error"' in line for line in lines) else "cut")
    except (OSError, http.client.HTTPException) as error:
        outcome[number] = (time.time(), f"cut ({error!r:.60})")


def kill(serving, victim, after, tokens):
    """Kills a process while clients read; the seconds until the last of them knew, and until all processes had ended with their codes."""
    outcome = {}
    clients = [threading.Thread(target=stream, args=(serving, outcome, number, tokens), daemon=True) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    time.sleep(after)
    busy = CLIENTS - len(outcome)
    victim.send_signal(signal.SIGKILL)
    killed = time.time()
    others = [process for process in (serving.head, *serving.workers) if process is not victim]
    for client in clients:
        client.join(max(0, killed + 3 * PATIENCE - time.time()))
    late = max([ended - killed for ended, _ in outcome.values()], default=0.0) if len(outcome) == CLIENTS else float("inf")
    for process in others:
        try:
            process.wait(max(0.1, killed + 2 * PATIENCE - time.time()))
        except subprocess.TimeoutExpired:
            pass
    codes = [process.poll() for process in others]
    return {"late": late, "ended": time.time() - killed, "codes": codes, "busy": busy, "told": [how for _, how in outcome.values()]}


def killed(context, count, case, until):
    weights = context.path(case["weights"]) if "weights" in case else "dummy"
    command = [context.path(case["several"]), "serve", "--weights", weights, *case["flags"]]
    with World(1) as alone:
        one = Serving(alone, [context.path(case["server"]), *command[1:]])
        expected = one.ask(ALWAYS)
        one.head.terminate()
        one.head.wait(SECONDS)
    rng = random.Random(SEED)
    rounds, starts, wrong = [], [], []
    while len(rounds) < KILLS and time.time() < until:
        with World(count) as world:
            serving = Serving(world, command)
            starts.append(serving.ready)
            answer = serving.ask(ALWAYS)
            if (answer["text"], answer["logprobs"]) != (expected["text"], expected["logprobs"]):
                return False, f"round {len(rounds)}: another answer than one process's: {answer!r:.300} is not {expected!r:.300}", {}
            head = len(rounds) % HEAD_EVERY == HEAD_EVERY - 1
            victim = serving.head if head else rng.choice(serving.workers)
            found = kill(serving, victim, rng.uniform(0.0, 0.8), case["tokens"])
            rounds.append(found)
            if found["late"] > PATIENCE or any(code != 4 for code in found["codes"]):
                logs = "; ".join(tail(said(process), 4) for process in (serving.head, *serving.workers))
                wrong.append(f"round {len(rounds)} ({'head' if head else 'worker'} killed): {found}: {logs}")
    told = [how for found in rounds for how in found["told"]]
    words = (
        f"{len(rounds)} kills; ready after {min(starts):.1f} to {max(starts):.1f} s; {sum(found['busy'] for found in rounds)} answers cut, the last "
        f"client knew after {max(found['late'] for found in rounds):.2f} s, all had ended after {max(found['ended'] for found in rounds):.2f} s; "
        f"told why {told.count('told')} of {len(told)}"
    )
    words += "" if len(rounds) >= KILLS else f"; there was time for no more, and {KILLS} were asked for"
    return not wrong and bool(rounds), words + "".join(f"\n  {line}" for line in wrong[:3]), {"rounds": rounds, "starts": starts}


def run(context):
    began = time.time()
    hosts = context.manifest["hosts"]
    if not hosts:
        return
    count = hosts["processes"]
    print(f"NCCL: {nccl()}", flush=True)
    # One after another: they share the cards.
    for case in hosts["goldens"]:
        if context.wanted(case["name"]):
            try:
                context.add("hosts", case["name"], *logits(context, count, case)[:2])
            except (Missing, RuntimeError, OSError) as error:
                context.add("hosts", case["name"], False, f"broke: {error!r}")
    case = hosts["killed"]
    if context.wanted(case["name"]):
        try:
            passed, words, figures = killed(context, count, case, began + BUDGET)
            context.add("hosts", case["name"], passed, words, **figures)
        except (Missing, RuntimeError, OSError) as error:
            context.add("hosts", case["name"], False, f"broke: {error!r}")
