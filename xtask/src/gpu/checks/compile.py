"""Compiles the programs whose sources were carried instead of themselves, all processors at once."""

import os

from .common import cuda_tool, execute, tail

SECONDS = 400


def run(context):
    programs = context.manifest["programs"] + context.manifest["instruments"]
    builds = {it["file"]: {**it["compile"], "name": it["file"]} for it in programs if "compile" in it}
    if not builds:
        return
    compiler = cuda_tool("nvcc")
    said = execute([compiler, "--version"], SECONDS)[1]

    def build(case):
        if f"release {case['nvcc']}," not in said:
            return False, f"nvcc {case['nvcc']} is wanted; {compiler} says {tail(said, 2)}", {}
        to = context.store / case["name"]
        to.parent.mkdir(parents=True, exist_ok=True)
        source = context.path(case["source"])
        includes = [word for name in ("tests", "templates", "printed") for word in ("-I", context.path("sources") / name)]
        status, output, seconds = execute([compiler, *case["options"], *includes, "-o", to, source], SECONDS)
        return status == 0, f"{seconds:.0f} s" if status == 0 else tail(output), {"seconds": round(seconds, 1)}

    context.all("compile", list(builds.values()), build, jobs=os.cpu_count())
