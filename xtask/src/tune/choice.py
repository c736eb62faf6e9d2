"""From times to figures: which variants stay, and the tuning file that says so."""

# Of the phase's own time, what a variant must save in the whole program; of the program's, what is more than
# noise.
PHASE_GAIN = 0.02
PROGRAM_GAIN = 0.003
# Variants that may fail in turns before a search ends; how much slower than the best a variant may be to be
# tried again.
FAILURES = 3
HOPE = 0.02


def enough(saved, phase, program):
    """Whether milliseconds saved in a program are worth a figure; `phase` are those the phase takes in it, alone."""
    return saved > PHASE_GAIN * phase and saved > PROGRAM_GAIN * program


def choose(variants, shares, base, first, alone, measure, in_turns):
    """Variants to keep, by phase. `variants` are (phase, variant), `shares` a phase's milliseconds in the program, `base` and `first` the program's
    with the defaults and with each variant in one phase; `alone` is what each takes by itself; `measure(kept)` is the program's time.

    Phases depend on their neighbours. So two searches are made, from the defaults and from what is quickest alone, and the better end is the choice."""
    ends = []
    for start in ({}, quickest(variants, alone)):
        if start or not ends:
            times = list(first) if not start else [measure(joined(start, *it)) for it in variants]
            ends.append(search(variants, shares, start, base if not start else measure(start), times, measure, in_turns))
    if len(ends) == 1 or ends[0] == ends[1]:
        return ends[0]
    times = in_turns(*ends)
    return ends[times.index(min(times))]


def quickest(variants, alone):
    """What is quickest alone, of each phase."""
    best = {}
    for (phase, variant), time in zip(variants, alone):
        if phase not in best or time < best[phase][0]:
            best[phase] = (time, variant)
    return {phase: variant for phase, (_, variant) in best.items() if variant["settings"]}


def search(variants, shares, kept, base, times, measure, in_turns):
    """One variant joins at a time, the best in the program with those kept before, and only if `in_turns(before, after)` finds the gain too."""
    first = list(times)
    while True:
        order = sorted(range(len(variants)), key=lambda at: times[at])
        taken, failures = None, 0
        for at in order:
            phase, variant = variants[at]
            if times[at] >= base or failures == FAILURES:
                break
            if not enough(base - times[at], shares[phase], base):
                continue
            before, after = in_turns(kept, joined(kept, phase, variant))
            if enough(before - after, shares[phase], before):
                taken = joined(kept, phase, variant)
                break
            failures += 1
        if taken is None:
            return kept
        kept, base = taken, after
        hopeful = [at for at in order if first[at] < (1 + HOPE) * min(first)]
        times = [float("inf")] * len(variants)
        for at in hopeful:
            phase, variant = variants[at]
            times[at] = measure(joined(kept, phase, variant))


def joined(kept, phase, variant):
    """A choice with one phase's variant; the defaults need no entry."""
    others = {name: it for name, it in kept.items() if name != phase}
    return {**others, phase: variant} if variant["settings"] else others


def toml(results):
    """The tuning file, or None where the defaults stay everywhere. `results`: card, date, command, and programs, each with name, bucket, what it
    measured, milliseconds before and after, one for each context, and phases: name, settings, microseconds of one run alone before and after."""
    tables, notes = [], []
    for program in results["programs"]:
        what = f"# {program['name']}, {program['what']}: {figures(program['before'])} ms with the defaults"
        if not program["phases"]:
            notes.append(f"{what}, which stay.")
            continue
        notes.append(f"{what}, {figures(program['after'])} ms with these figures.")
        for phase in program["phases"]:
            tables.append("")
            tables.append(f"[phase.{phase['phase']}.{program['bucket']}] # alone {phase['after']:.2f} us, {phase['before']:.2f} with the defaults")
            tables += [f"{key} = {value}" for key, value in sorted(phase["settings"].items())]
    if not tables:
        return None
    head = ["# Measured by tune.py: every launch of a step, all layers, in order.", *notes, "", "[measured]"]
    head += [f"{key} = {quoted(results[key])}" for key in ("card", "date", "command")]
    return "\n".join(head + tables) + "\n"


def figures(times):
    return ", ".join(f"{time:.4f}" for time in times)


def quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
