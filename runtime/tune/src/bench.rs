//! Measures the variants of a program: each against the default's results, alone, and in the whole program.

use crate::Error;
use crate::choice::{self, Candidate, Clock, Kept, PhaseResult, ProgramResult, Row};
use crate::manifest::{Argument, Launch, Manifest, Program, Unit, Variant};
use crate::memory::{Areas, Kernels, Memory, Places, Weights, random_kv};
use monomorph_device::cuda::measure::{Call, Card, Recording};
use std::collections::BTreeMap;

/// Runs of a recording; their median counts.
const RUNS: usize = 7;
/// Runs of each of two that are compared.
const TURNS: usize = 15;
/// Most difference between the results of two variants, relative to their norm.
const TOLERANCE: f64 = 1e-2;
/// Values of a result that are compared, in runs of [`RUN`].
const COMPARED: usize = 1 << 23;
const RUN: usize = 64;
/// Splits of a context that suit short ones only can cost four fifths of the speed at long ones: they are
/// chosen where such a one is measured too.
const LONG: usize = 4096;

/// What is measured: contexts of decode steps, of which the mean counts, and the tokens of a prompt.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Tokens cached of each sequence.
    pub contexts: Vec<usize>,
    /// Tokens of the prompt.
    pub tokens: usize,
}

/// One target on a card.
pub(crate) struct Session<'a> {
    pub(crate) manifest: &'a Manifest,
    pub(crate) card: Card,
    pub(crate) kernels: Kernels<'a>,
    weights: Weights,
    areas: Areas,
    /// Random keys and values, which all caches repeat.
    chunk: u64,
}

impl<'a> Session<'a> {
    pub(crate) fn new(
        manifest: &'a Manifest,
        mut card: Card,
        mut kernels: Kernels<'a>,
    ) -> Result<Session<'a>, Error> {
        let weights = Weights::new(manifest, &mut card, &mut kernels)?;
        let areas = crate::memory::areas(manifest, &mut card)?;
        let chunk = card.uploaded(&random_kv(&manifest.kv.format)?)?;
        Ok(Session { manifest, card, kernels, weights, areas, chunk })
    }

    fn call(
        &mut self,
        memory: &Memory,
        launch: &Launch,
        layer: usize,
        following: [u64; 2],
    ) -> Result<Call, Error> {
        let Session { manifest, card, kernels, weights, areas, .. } = self;
        let places = Places { manifest, weights, areas };
        places.call((card, kernels), memory, launch, layer, following)
    }

    fn following(&self, memory: &Memory, at: usize) -> Result<[u64; 2], Error> {
        let Session { manifest, weights, areas, .. } = self;
        Places { manifest, weights, areas }.following(memory, at)
    }
}

/// One program of a target.
pub(crate) struct Bench<'s, 'a> {
    session: &'s mut Session<'a>,
    program: &'a Program,
    contexts: Vec<usize>,
    /// One a context.
    memories: Vec<Memory>,
}

impl<'s, 'a> Bench<'s, 'a> {
    pub(crate) fn new(
        session: &'s mut Session<'a>,
        program: &'a Program,
        workload: &Workload,
    ) -> Result<Bench<'s, 'a>, Error> {
        let contexts = if program.decode { workload.contexts.clone() } else { vec![workload.tokens] };
        let memories = contexts
            .iter()
            .map(|context| Memory::new(session.manifest, &mut session.card, session.chunk, program, *context))
            .collect::<Result<_, _>>()?;
        Ok(Bench { session, program, contexts, memories })
    }

    pub(crate) fn what(&self) -> String {
        let contexts: Vec<String> = self.contexts.iter().map(usize::to_string).collect();
        let contexts = contexts.join(", ");
        match self.program.decode {
            true => format!("{} rows after {contexts} tokens each", self.program.rows),
            false => format!("{contexts} tokens"),
        }
    }

    /// The memory that phases alone are measured with, and their results.
    fn middle(&self) -> usize {
        self.memories.len() / 2
    }

    fn unit(&self, phase: &str) -> &'a Unit {
        self.program.units.iter().find(|it| it.phase == phase).expect("a phase with variants")
    }

    /// The launches of a body with what is kept in the defaults' place.
    fn launches(&self, body: usize, kept: &Kept) -> Vec<&'a Launch> {
        let (mut found, mut placed) = (Vec::new(), Vec::new());
        for entry in &self.program.bodies[body] {
            let place = (body, entry.phase);
            let chosen = kept.iter().find_map(|(phase, variant)| {
                let unit = self.unit(phase);
                let at = unit.places.iter().position(|it| *it == place)?;
                Some(&unit.variants[*variant].launches[at])
            });
            match chosen {
                None => found.push(&entry.launch),
                Some(launches) if !placed.contains(&place) => {
                    placed.push(place);
                    found.extend(launches);
                }
                Some(_) => {}
            }
        }
        found
    }

    /// The whole program.
    pub(crate) fn chain(&mut self, at: usize, kept: &Kept) -> Result<Recording, Error> {
        let (mut calls, manifest) = (Vec::new(), self.session.manifest);
        for (place, (body, layer)) in manifest.schedule.iter().enumerate() {
            let following = self.session.following(&self.memories[at], place)?;
            for launch in self.launches(*body, kept) {
                calls.push(self.session.call(&self.memories[at], launch, *layer, following)?);
            }
        }
        for launch in &self.program.tail {
            calls.push(self.session.call(&self.memories[at], launch, 0, [0; 2])?);
        }
        Ok(self.session.card.record(&calls, self.program.decode)?)
    }

    /// A phase in every layer with nothing between, and how often it runs.
    fn alone(&mut self, unit: &Unit, variant: &Variant) -> Result<(Recording, usize), Error> {
        let (mut calls, mut runs, middle) = (Vec::new(), 0, self.middle());
        for (at, (body, _)) in unit.places.iter().enumerate() {
            let launches = &variant.launches[at];
            let layers = self.session.manifest.bodies[*body].layers.max(1);
            let copies = launches.iter().flat_map(|it| &it.arguments).map(|argument| match argument {
                Argument::Cache(body) => self.memories[middle].caches(*body),
                Argument::Field(field, _) => self.session.weights.copies(*field),
                _ => 0,
            });
            let count = if self.program.decode { copies.max().unwrap_or(0).max(layers) } else { layers };
            runs += count;
            for layer in 0..count {
                for launch in launches {
                    calls.push(self.session.call(&self.memories[middle], launch, layer, [0; 2])?);
                }
            }
        }
        Ok((self.session.card.record(&calls, self.program.decode)?, runs))
    }

    /// Milliseconds: the median of some runs behind a first.
    pub(crate) fn timed(&self, recording: &Recording) -> Result<f64, Error> {
        self.session.card.time(recording)?;
        let times: Result<Vec<f64>, _> = (0..RUNS).map(|_| self.session.card.time(recording)).collect();
        Ok(median(times?))
    }

    /// Milliseconds of two choices in turns, by context.
    fn columns(&mut self, before: &Kept, after: &Kept) -> Result<[Vec<f64>; 2], Error> {
        let mut columns = [Vec::new(), Vec::new()];
        for at in 0..self.memories.len() {
            let both = [self.chain(at, before)?, self.chain(at, after)?];
            let mut times = [Vec::new(), Vec::new()];
            for turn in 0..=TURNS {
                for (times, recording) in times.iter_mut().zip(&both) {
                    let time = self.session.card.time(recording)?;
                    // The first turn warms up.
                    if turn > 0 {
                        times.push(time);
                    }
                }
            }
            for (column, times) in columns.iter_mut().zip(times) {
                column.push(median(times));
            }
        }
        Ok(columns)
    }

    /// What a variant leaves in the first layer, behind the defaults' work.
    fn result(&mut self, unit: &Unit, variant: &Variant) -> Result<Vec<f32>, Error> {
        let ((body, phase), middle) = (unit.places[0], self.middle());
        self.memories[middle].forget(&self.session.card)?;
        let run = |bench: &mut Self, launch: &Launch, layer: usize| -> Result<(), Error> {
            let call = bench.session.call(&bench.memories[middle], launch, layer, [0; 2])?;
            Ok(bench.session.card.launch(&call, false)?)
        };
        for (at, layer) in &self.session.manifest.schedule {
            for entry in self.program.bodies[*at].iter().filter(|it| *at != body || it.phase < phase) {
                run(self, &entry.launch, *layer)?;
            }
            if *at == body {
                break;
            }
        }
        // Results stand last, but for the routing, which stands behind the products of what it chose.
        let last = variant.launches[0].last().ok_or("a variant launches nothing")?;
        let name = last.arguments.iter().rev().find_map(|it| match it {
            Argument::Buffer(name) | Argument::Scratch(name) if name != "routing" => Some(name),
            _ => None,
        });
        let (address, bytes) = self.session.areas[name.ok_or("a variant writes to no area")?];
        if !unit.in_place {
            // Not a number, so that what is not written shows.
            self.session.card.fill(address, bytes, 0xFF)?;
        }
        for launch in &variant.launches[0] {
            run(self, launch, 0)?;
        }
        let data = self.session.card.download(address, bytes)?;
        let values = data.chunks_exact(4).map(|it| f32::from_le_bytes([it[0], it[1], it[2], it[3]]));
        // Runs at odd distances, so that all rows and columns come into it.
        let step = data.len().div_ceil(4).div_ceil(COMPARED) | 1;
        Ok(values.enumerate().filter(|(at, _)| (at / RUN).is_multiple_of(step)).map(|it| it.1).collect())
    }

    /// Why a variant is not to be used; `None` for one that is. Without `expected` it is only asked for
    /// numbers.
    fn refusal(
        &mut self,
        unit: &Unit,
        variant: &Variant,
        expected: Option<&[f32]>,
    ) -> Result<Option<String>, Error> {
        let kernels = variant.launches.iter().flatten().map(|it| &self.session.manifest.kernels[it.kernel]);
        if let Some(defect) = kernels.flat_map(|it| &it.defects).next() {
            return Ok(Some(defect.clone()));
        }
        let got = self.result(unit, variant)?;
        Ok(differs(&got, expected.unwrap_or(&got)))
    }

    /// Measures every variant, then chooses.
    pub(crate) fn measure(mut self) -> Result<ProgramResult, Error> {
        let (mut rows, mut shares, mut candidates) = (Vec::new(), BTreeMap::new(), Vec::new());
        let base = Clock::measure(&mut self, &Kept::new())?;
        for unit in &self.program.units {
            let Unit { phase, variants, places, .. } = unit;
            let splits = variants.iter().any(|it| it.settings.contains_key("attention_splits"));
            if splits && self.contexts.iter().all(|context| *context < LONG) {
                println!("  {phase}: splits of the context are not tuned without a context of {LONG} tokens");
                continue;
            }
            if let Some(why) = self.refusal(unit, &variants[0], None)? {
                return Err(format!("{phase} as the defaults cut it: {why}").into());
            }
            let expected = self.result(unit, &variants[0])?;
            for (at, variant) in variants.iter().enumerate() {
                let refused = self.refusal(unit, variant, Some(&expected))?;
                let (phase, settings) = (phase.clone(), variant.settings.clone());
                let mut row = Row { phase, settings, refused, alone: 0.0, program: 0.0 };
                if row.refused.is_none() {
                    let (recording, runs) = self.alone(unit, variant)?;
                    row.alone = 1e3 * self.timed(&recording)? / runs as f64;
                    let bodies =
                        places.iter().map(|(body, _)| self.session.manifest.bodies[*body].layers.max(1));
                    let share = row.alone * bodies.sum::<usize>() as f64 / 1e3;
                    shares.entry(row.phase.clone()).or_insert(share);
                    let kept = if at > 0 { Kept::from([(row.phase.clone(), at)]) } else { Kept::new() };
                    row.program = Clock::measure(&mut self, &kept)?;
                    let (phase, alone, program) = (row.phase.clone(), row.alone, row.program);
                    candidates.push(Candidate { phase, variant: at, program, alone });
                }
                rows.push(row);
            }
        }
        let mut kept = choice::choose(&candidates, &shares, base, &mut self)?;
        let [before, mut after] = self.columns(&Kept::new(), &kept)?;
        if mean(&after) >= mean(&before) {
            kept.clear();
            after.clone_from(&before);
        }
        let alone = |phase: &str, variant: usize| {
            let found = candidates.iter().find(|it| it.phase == phase && it.variant == variant);
            found.map_or(f64::NAN, |it| it.alone)
        };
        let phases = kept.iter().map(|(phase, variant)| PhaseResult {
            phase: phase.clone(),
            settings: self.unit(phase).variants[*variant].settings.clone(),
            before: alone(phase, 0),
            after: alone(phase, *variant),
        });
        let (name, bucket) = (self.program.name.clone(), self.program.bucket.clone());
        Ok(ProgramResult { name, bucket, what: self.what(), before, after, phases: phases.collect(), rows })
    }
}

impl Clock for Bench<'_, '_> {
    type Error = Error;

    /// The mean of the contexts.
    fn measure(&mut self, kept: &Kept) -> Result<f64, Error> {
        let mut times = Vec::new();
        for at in 0..self.memories.len() {
            let recording = self.chain(at, kept)?;
            times.push(self.timed(&recording)?);
        }
        Ok(mean(&times))
    }

    fn in_turns(&mut self, before: &Kept, after: &Kept) -> Result<[f64; 2], Error> {
        Ok(self.columns(before, after)?.map(|times| mean(&times)))
    }
}

/// Why results are not those expected. Places that nothing writes are not numbers in both.
fn differs(got: &[f32], expected: &[f32]) -> Option<String> {
    let pairs = || got.iter().zip(expected);
    if expected.iter().all(|it| it.is_nan()) || pairs().any(|(got, it)| got.is_nan() != it.is_nan()) {
        return Some("it leaves values unwritten, or none is a number".to_owned());
    }
    let square = |it: f64| it * it;
    let written = || pairs().filter(|(_, it)| !it.is_nan());
    let difference = written().map(|(got, it)| square(f64::from(*got) - f64::from(*it))).sum::<f64>().sqrt();
    let norm = written().map(|(_, it)| square(f64::from(*it))).sum::<f64>().sqrt();
    // A difference that is no number is too large, too.
    let near = difference <= TOLERANCE * norm;
    (!near).then(|| format!("its results differ by {:.1e}", difference / norm.max(1e-30)))
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = values.len() / 2;
    if values.len().is_multiple_of(2) { (values[at - 1] + values[at]) / 2.0 } else { values[at] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_differ_by_value_and_by_what_is_not_written() {
        let expected = [1.0, f32::NAN, -2.0, 0.5];
        assert_eq!(differs(&expected, &expected), None);
        assert_eq!(differs(&[1.001, f32::NAN, -2.0, 0.5], &expected), None);
        assert!(differs(&[1.1, f32::NAN, -2.0, 0.5], &expected).unwrap().starts_with("its results differ"));
        assert!(differs(&[f32::INFINITY, f32::NAN, -2.0, 0.5], &expected).is_some());
        assert!(differs(&[1.0, 0.0, -2.0, 0.5], &expected).unwrap().contains("unwritten"));
        assert!(differs(&[f32::NAN; 4], &[f32::NAN; 4]).is_some());
    }
}
