"""Every program of tests/cuda: it must pass, and with its planted defect it must fail."""

from .common import execute, tail
from .sanitizer import findings, wrapper

SECONDS = 150


def measure(context):
    """Programs that only measure: what they print goes to instruments.txt."""
    with open(context.out / "instruments.txt", "w") as out:
        for program in context.manifest["instruments"]:
            if context.wanted(program["name"]):
                status, output, seconds = execute([context.path(program["file"]), *program["arguments"]], SECONDS)
                out.write(f"== {program['name']}\n{output}\n")
                context.add("instruments", program["name"], status == 0, f"status {status}, {seconds:.0f} s")


def run(context):
    def check(program):
        path = context.path(program["file"])
        arguments = [context.path(word[1:]) if word.startswith("@") else word for word in program["arguments"]]
        tool = wrapper("racecheck") if program["racecheck"] else []
        status, output, seconds = execute([*tool, path, *arguments], SECONDS)
        if tool:
            said = findings(output)
            clean = status == 0 and bool(said) and "(0 errors, 0 warnings)" in said[-1]
            return clean, f"status {status}: {' | '.join(said[-3:]) or tail(output)}", {"seconds": round(seconds, 1)}
        planted = program["planted"]
        if planted:
            # 2 is a call that failed, not a difference that was seen.
            passed = status not in (0, 2, 124) and status > 0
            return passed, f"status {status} with a planted defect", {"seconds": round(seconds, 1)}
        detail = tail(output, 1) if status == 0 else f"status {status}: {tail(output)}"
        return status == 0, detail, {"seconds": round(seconds, 1)}

    # One at a time: they check results and print times.
    jobs, context.jobs = context.jobs, 1
    context.all("programs", context.manifest["programs"], check)
    context.jobs = jobs
