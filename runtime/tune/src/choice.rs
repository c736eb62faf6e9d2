//! From times to figures: which variants stay, and the tuning file that says so.

use crate::manifest::Settings;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// What a variant must save in the whole program, of the phase's own time.
const PHASE_GAIN: f64 = 0.02;
/// What it must save of the program's time: less is noise.
const PROGRAM_GAIN: f64 = 0.003;
/// Variants that may fail in turns before a search ends.
const FAILURES: usize = 3;
/// How much slower than the best a variant may be to be tried again.
const HOPE: f64 = 0.02;

/// The variant of each phase that has another than its default, by number.
pub type Kept = BTreeMap<String, usize>;

/// A variant and what was measured of it.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Phase that it is a variant of.
    pub phase: String,
    /// Its number among the phase's; 0 is the default.
    pub variant: usize,
    /// Milliseconds of the program with it in its phase alone.
    pub program: f64,
    /// Time of the phase by itself.
    pub alone: f64,
}

/// Takes times of whole programs; errors end a search.
pub trait Clock {
    /// What can go wrong.
    type Error;

    /// Milliseconds of the program.
    ///
    /// # Errors
    /// When it cannot be run.
    fn measure(&mut self, kept: &Kept) -> Result<f64, Self::Error>;

    /// Milliseconds of two choices, run in turns.
    ///
    /// # Errors
    /// When one cannot be run.
    fn in_turns(&mut self, before: &Kept, after: &Kept) -> Result<[f64; 2], Self::Error>;
}

/// Variants to keep. `shares` are the milliseconds of each phase in the program, `base` those of the program
/// with all defaults.
///
/// Phases depend on their neighbours. So two searches are made, from the defaults and from what is quickest
/// alone, and the better end is the choice.
///
/// # Errors
/// Those of the clock.
pub fn choose<C: Clock>(
    candidates: &[Candidate],
    shares: &BTreeMap<String, f64>,
    base: f64,
    clock: &mut C,
) -> Result<Kept, C::Error> {
    let first = candidates.iter().map(|it| it.program).collect();
    let plain = search(candidates, shares, Kept::new(), base, first, clock)?;
    let start = quickest(candidates);
    if start.is_empty() {
        return Ok(plain);
    }
    let base = clock.measure(&start)?;
    let times = candidates.iter().map(|it| clock.measure(&joined(&start, it))).collect::<Result<_, _>>()?;
    let other = search(candidates, shares, start, base, times, clock)?;
    if plain == other {
        return Ok(plain);
    }
    let [of_plain, of_other] = clock.in_turns(&plain, &other)?;
    Ok(if of_plain <= of_other { plain } else { other })
}

/// The variant of each phase that is quickest alone.
fn quickest(candidates: &[Candidate]) -> Kept {
    let mut best: BTreeMap<&str, &Candidate> = BTreeMap::new();
    for it in candidates {
        let known = best.entry(&it.phase).or_insert(it);
        if it.alone < known.alone {
            *known = it;
        }
    }
    let others = best.into_values().filter(|it| it.variant > 0);
    others.map(|it| (it.phase.clone(), it.variant)).collect()
}

/// One variant joins at a time: the best in the program with those kept before, if the gain shows in turns
/// too.
fn search<C: Clock>(
    candidates: &[Candidate],
    shares: &BTreeMap<String, f64>,
    mut kept: Kept,
    mut base: f64,
    mut times: Vec<f64>,
    clock: &mut C,
) -> Result<Kept, C::Error> {
    let first = times.clone();
    let best = first.iter().copied().fold(f64::INFINITY, f64::min);
    let enough =
        |saved: f64, phase: f64, program: f64| saved > PHASE_GAIN * phase && saved > PROGRAM_GAIN * program;
    loop {
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        order.sort_by(|a, b| times[*a].total_cmp(&times[*b]));
        let (mut taken, mut failures) = (None, 0);
        for at in &order {
            if times[*at] >= base || failures == FAILURES {
                break;
            }
            let share = shares[&candidates[*at].phase];
            if !enough(base - times[*at], share, base) {
                continue;
            }
            let with = joined(&kept, &candidates[*at]);
            let [before, after] = clock.in_turns(&kept, &with)?;
            if enough(before - after, share, before) {
                taken = Some((with, after));
                break;
            }
            failures += 1;
        }
        let Some(found) = taken else { return Ok(kept) };
        (kept, base) = found;
        for (at, candidate) in candidates.iter().enumerate() {
            times[at] = match first[at] < (1.0 + HOPE) * best {
                true => clock.measure(&joined(&kept, candidate))?,
                false => f64::INFINITY,
            };
        }
    }
}

/// A choice with one phase's variant. Defaults have no entry.
fn joined(kept: &Kept, candidate: &Candidate) -> Kept {
    let mut with = kept.clone();
    match candidate.variant {
        0 => drop(with.remove(&candidate.phase)),
        variant => drop(with.insert(candidate.phase.clone(), variant)),
    }
    with
}

/// What was measured of a target.
#[derive(Debug, Serialize)]
pub struct Results {
    /// The card's name.
    pub card: String,
    /// The day, as `2026-11-24`.
    pub date: String,
    /// The command that compiled the variants.
    pub command: String,
    /// What was found, by program.
    pub programs: Vec<ProgramResult>,
}

/// What was measured of a program.
#[derive(Debug, Serialize)]
pub struct ProgramResult {
    /// Name of the program.
    pub name: String,
    /// Its bucket in the tuning file.
    pub bucket: String,
    /// Rows and contexts.
    pub what: String,
    /// Milliseconds by context, with the defaults.
    pub before: Vec<f64>,
    /// The same with what is kept.
    pub after: Vec<f64>,
    /// What is kept.
    pub phases: Vec<PhaseResult>,
    /// Every variant.
    pub rows: Vec<Row>,
}

/// A variant that is kept.
#[derive(Debug, Serialize)]
pub struct PhaseResult {
    /// Phase that it is a variant of.
    pub phase: String,
    /// Its knobs.
    pub settings: Settings,
    /// Microseconds of a run alone, with the default.
    pub before: f64,
    /// The same with the variant.
    pub after: f64,
}

/// A variant that was measured or refused.
#[derive(Debug, Serialize)]
pub struct Row {
    /// Phase that it is a variant of.
    pub phase: String,
    /// Its knobs.
    pub settings: Settings,
    /// Why it is not to be used.
    pub refused: Option<String>,
    /// Microseconds alone.
    pub alone: f64,
    /// Milliseconds of the program with it.
    pub program: f64,
}

/// The table of a program.
pub fn table(program: &ProgramResult) -> String {
    let ProgramResult { name, what, before, after, phases, rows, .. } = program;
    let mut out = format!("{name}, {what}: defaults {} ms, kept {} ms\n", figures(before), figures(after));
    for row in rows {
        let settings: Vec<String> =
            row.settings.iter().map(|(key, value)| format!("{key} {value}")).collect();
        let settings = if settings.is_empty() { "defaults".to_owned() } else { settings.join(", ") };
        let figures = match &row.refused {
            Some(why) => why.clone(),
            None => format!("{:9.3} us {:9.4} ms", row.alone, row.program),
        };
        let kept = phases.iter().any(|it| it.phase == row.phase && it.settings == row.settings);
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "  {:<16} {settings:<66} {figures}{}",
            row.phase,
            if kept { "  <- kept" } else { "" }
        );
    }
    out
}

/// The tuning file, or `None` where the defaults stay everywhere.
pub fn tuning_file(results: &Results) -> Option<String> {
    let (mut notes, mut tables) = (String::new(), String::new());
    // Writing to a string cannot fail.
    for program in &results.programs {
        let ProgramResult { name, bucket, what, before, after, phases, .. } = program;
        let _ = write!(notes, "# {name}, {what}: {} ms with the defaults, ", figures(before));
        match phases.is_empty() {
            true => notes.push_str("which stay.\n"),
            false => drop(writeln!(notes, "{} ms with these figures.", figures(after))),
        }
        for PhaseResult { phase, settings, before, after } in phases {
            let _ = writeln!(
                tables,
                "\n[phase.{phase}.{bucket}] # alone {after:.2} us, {before:.2} with the defaults"
            );
            for (key, value) in settings {
                let _ = writeln!(tables, "{key} = {value}");
            }
        }
    }
    let said = [("card", &results.card), ("date", &results.date), ("command", &results.command)];
    let said = said.map(|(key, value)| format!("{key} = {}\n", toml::Value::String(value.clone()))).concat();
    (!tables.is_empty()).then(|| {
        format!("# Measured by `tune`: every launch of a step, all layers, in order.\n{notes}\n[measured]\n{said}{tables}")
    })
}

fn figures(times: &[f64]) -> String {
    times.iter().map(|time| format!("{time:.4}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two phases whose quicker variants help only together, and a third whose variant is noise.
    struct Pair;

    impl Clock for Pair {
        type Error = ();

        fn measure(&mut self, kept: &Kept) -> Result<f64, ()> {
            let both = ["up", "down"].iter().filter(|phase| kept.contains_key(**phase)).count();
            Ok([2.0, 2.02, 1.8][both] - if kept.contains_key("head") { 0.001 } else { 0.0 })
        }

        fn in_turns(&mut self, before: &Kept, after: &Kept) -> Result<[f64; 2], ()> {
            Ok([self.measure(before)?, self.measure(after)?])
        }
    }

    fn chosen(alone: [f64; 6]) -> Vec<String> {
        let places = ["up", "up", "down", "down", "head", "head"];
        let candidates: Vec<Candidate> = (0..6)
            .map(|at| {
                let (phase, variant) = (places[at].to_owned(), at % 2);
                let candidate = Candidate { phase, variant, program: 0.0, alone: alone[at] };
                let program = Pair.measure(&joined(&Kept::new(), &candidate)).unwrap();
                Candidate { program, ..candidate }
            })
            .collect();
        let shares = [("up", 1.0), ("down", 0.5), ("head", 0.2)].map(|(phase, ms)| (phase.to_owned(), ms));
        choose(&candidates, &shares.into(), 2.0, &mut Pair).unwrap().into_keys().collect()
    }

    #[test]
    fn variants_that_help_together_are_found() {
        assert_eq!(chosen([9.0, 8.0, 5.0, 4.0, 3.0, 3.0]), ["down", "up"]);
        assert!(chosen([8.0, 9.0, 4.0, 5.0, 3.0, 3.0]).is_empty());
    }
}
