"""Every program of tests/cuda: it must pass, and with its planted defect it must fail."""

from .common import execute, tail

SECONDS = 150
# The experts' bench walks over many shapes.
MEASURE_SECONDS = 300


def measure(context):
    """Programs that only measure: what they print goes to instruments.txt."""
    with open(context.out / "instruments.txt", "w") as out:
        for program in context.manifest["instruments"]:
            if context.wanted(program["name"]):
                status, output, seconds = execute(command(context, program), MEASURE_SECONDS)
                out.write(f"== {program['name']}\n{output}\n")
                context.add("instruments", program["name"], status == 0, f"status {status}, {seconds:.0f} s")


def command(context, program):
    """The words that start it; those that begin with @ are files of the store."""
    words = [context.path(word[1:]) if word.startswith("@") else word for word in program["arguments"]]
    return [context.path(program["file"]), *words]


def run(context):
    def check(program):
        status, output, seconds = execute(command(context, program), SECONDS)
        if program["planted"]:
            # 2 is a call that failed, not a difference that was seen.
            passed = status not in (0, 2, 124) and status > 0
            return passed, f"status {status} with a planted defect", {"seconds": round(seconds, 1)}
        detail = tail(output, 1) if status == 0 else f"status {status}: {tail(output)}"
        return status == 0, detail, {"seconds": round(seconds, 1)}

    # One at a time: they check results and print times.
    context.all("programs", [it for it in context.manifest["programs"] if it["tool"] is None], check, jobs=1)
