"""What the groups share: where things are, how servers are run, how results are kept and printed."""

import os
import shutil
import subprocess
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

# Lines of a failed program's output that are kept.
TAIL = 12
# Runs under gdb of what died of a signal.
AGAIN = 20


class Missing(Exception):
    """Something that was not carried along."""


class Context:
    """The manifest, the store, and what was found."""

    def __init__(self, manifest, store, out, match, jobs, repeat=1):
        self.manifest, self.store, self.out, self.match, self.jobs = manifest, store, out, match, jobs
        self.repeat = repeat
        self.checks, self.benches = [], []

    def path(self, name):
        """A file or directory of the store."""
        path = self.store / name
        if not path.exists():
            raise Missing(f"{name} is in no part that was carried")
        return path

    def wanted(self, name):
        return self.match in name

    def add(self, group, name, passed, detail, **figures):
        """Keeps a result and says it at once."""
        self.checks.append({"group": group, "name": name, "passed": bool(passed), "detail": detail, **figures})
        print(f"{'ok  ' if passed else 'FAIL'} {group} {name}: {detail}", flush=True)

    def keep(self, bench):
        """Keeps a figure and says it at once."""
        self.benches.append(bench)
        print(figure(bench), flush=True)

    def all(self, group, cases, check, jobs=None):
        """Runs `check(case)` for cases with a name, several at a time; it returns (passed, detail, figures)."""

        def one(case):
            try:
                return check(case)
            except Missing as missing:
                return False, f"not run: {missing}", {}
            except Exception as error:
                return False, f"broke: {error!r}", {}

        cases = [case for case in cases if self.wanted(case["name"])]
        with ThreadPoolExecutor(jobs or self.jobs) as pool:
            running = {pool.submit(one, case): case["name"] for case in cases}
            # As they end, so that a run which is cut short has said what it knew.
            for done in as_completed(running):
                passed, detail, figures = done.result()
                self.add(group, running[done], passed, detail, **figures)


def cuda_tool(name):
    """A program of the CUDA toolkit."""
    found = shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")
    if found is None:
        raise Missing(f"{name} is not on this machine")
    return found


def unpack(here, store, manifest):
    """Unpacks the parts beside this file, and joins files that were cut; the names of the parts."""
    arrived = []
    for part in sorted(here.glob("part-*.tar*")):
        with tarfile.open(part) as archive:
            archive.extractall(store, filter="data")
        arrived.append(part.name)
    for name, pieces in manifest["cut"].items():
        whole, paths = store / name, [store / piece for piece in pieces]
        if not all(path.exists() for path in paths):
            continue
        with open(whole, "wb") as out:
            for path in paths:
                out.write(path.read_bytes())
                path.unlink()
    for name in manifest["executables"]:
        if (store / name).exists():
            os.chmod(store / name, 0o755)
    return arrived


def execute(command, seconds, environment=None):
    """Runs a command: exit status (124 when it took too long), output, seconds."""
    start = time.time()
    command = [str(word) for word in command]
    environment = {**os.environ, **(environment or {})}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=seconds, env=environment, errors="replace", text=True,
        )
        where = backtrace(command, seconds, environment) if done.returncode < 0 else ""
        return done.returncode, done.stdout + where, time.time() - start
    except subprocess.TimeoutExpired as late:
        output = late.stdout or b""
        output = output.decode(errors="replace") if isinstance(output, bytes) else output
        return 124, f"{output}\nstill running after {seconds} s", time.time() - start


def backtrace(command, seconds, environment):
    """Where a command that died of a signal dies again under gdb, if that is here: the stacks of all threads, its own last."""
    if not shutil.which("gdb"):
        return "\nno gdb to say where"
    debugger = ["gdb", "-batch", "-ex", "run", "-ex", "thread apply all backtrace 8", "-ex", "backtrace 10", "--args"]
    for _ in range(AGAIN):
        try:
            done = subprocess.run(
                [*debugger, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                timeout=seconds, env=environment, errors="replace", text=True,
            )
        except subprocess.TimeoutExpired:
            return "\nit hangs under gdb"
        if "received signal" in done.stdout:
            return "\n" + done.stdout
    return f"\n{AGAIN} runs under gdb ended well"


def tail(output, lines=TAIL):
    """The last lines of an output, as one line."""
    return " | ".join(line.strip() for line in output.strip().splitlines()[-lines:])


def card():
    """Name and driver of the card."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, stdout=subprocess.PIPE, text=True, timeout=30)
        return "; ".join(line.strip() for line in done.stdout.splitlines()) or "no card"
    except OSError:
        return "no card"


def figure(bench):
    """A bench's line."""
    share = f"{100 * bench['rate'] / bench['limit']:5.1f} % of {bench['limit']:9.1f}" if bench.get("limit") else ""
    if bench.get("floor"):
        share = f"floor {bench['floor']:.2f}"
    return f"{bench['target']:<30} {bench['name']:<38} {bench['rate']:10.1f} {bench['unit']:<6} {share}"


def table(results):
    """What was found, for a terminal: every bench, every failure, and a count of what passed."""
    lines = [figure(bench) for bench in results["benches"]]
    groups = {}
    for check in results["checks"]:
        groups.setdefault(check["group"], []).append(check["passed"])
    lines += [f"{group:<12} {sum(passed)} of {len(passed)} passed" for group, passed in groups.items()]
    lines += [f"FAILED {it['group']} {it['name']}: {it['detail']}" for it in results["checks"] if not it["passed"]]
    return "\n".join(lines)
