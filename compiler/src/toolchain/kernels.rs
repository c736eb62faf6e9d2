//! Compiles the kernels of many targets at once. Each distinct instantiation is compiled and inspected once,
//! in whatever targets and under whatever names it occurs. The builds of those targets would get the same
//! results.

use super::cubin::{self, KernelLimits, Usage};
pub use super::figures::STORE;
use super::figures::{Figures, Keys, Store};
use super::listed::Listed;
use super::nvcc::{Compiler, Run};
use super::{BuildError, fresh};
use crate::emit::cuda::Writer;
use crate::plan::Plan;
use crate::plan::cuda::Kernel;
use crate::spec::types::Cuda;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Most kernels of one source. Reading the headers takes about 0.5 s of a core, a few percent of the time for
/// this many kernels.
const MOST_OF_A_UNIT: usize = 24;
/// Fewest kernels of one source, except for the rest of a header's.
const LEAST_OF_A_UNIT: usize = 4;
/// How many registers what is compiled beside a kernel may give it or take from it.
const NEIGHBOURS: u32 = 2;

/// The kernels of targets, to be compiled.
pub struct Survey<'a> {
    compiler: &'a Compiler,
    /// Directory of the library.
    library: PathBuf,
    keys: Keys<'a>,
    builds: usize,
    modules: usize,
    instances: Vec<Instance>,
    /// Indices of instances by key.
    places: HashMap<String, usize>,
    uses: Vec<Use>,
}

/// A kernel regardless of its name.
struct Instance {
    key: String,
    /// Architecture without `sm_`.
    architecture: String,
    racecheck: bool,
    kernel: Kernel,
}

/// A kernel of a target.
struct Use {
    build: String,
    module: String,
    kernel: Kernel,
    limits: KernelLimits,
    instance: usize,
}

/// What a survey knows before it compiles anything.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// Directory with the figures of kernels compiled before. New ones are added.
    pub cache: &'a Path,
    /// The committed list, believed of kernels that the cache lacks. Figures of the cache and of kernels
    /// compiled now are compared with it.
    pub listed: &'a Listed,
    /// Whether a listed kernel of this digest is compiled nevertheless.
    pub again: fn(&str) -> bool,
    /// Believe neither.
    pub fresh: bool,
}

/// Index of an instance, and its figures or the reason it was refused.
type Compiled = (usize, Result<Figures, String>);

/// Results of a survey.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Builds of all targets, with their variants.
    pub targets: usize,
    /// Modules of those builds.
    pub modules: usize,
    /// Kernels of those modules.
    pub kernels: usize,
    /// Kernels that differ in more than their name.
    pub distinct: usize,
    /// Distinct kernels compiled by this run.
    pub compiled: usize,
    /// Distinct kernels found in the cache.
    pub cached: usize,
    /// Distinct kernels of which the list was believed.
    pub listed: usize,
    /// Wall seconds spent compiling.
    pub seconds: f64,
    /// Kernels by template and architecture.
    pub families: Vec<Family>,
    /// Resources of each kernel of each target, except refused ones.
    pub usages: Vec<KernelUsage>,
    /// Reasons why kernels must not ship, each with target, kernel, module and figure.
    pub defects: Vec<String>,
    /// Kernels that take other than the list says.
    pub differing: Vec<String>,
    /// Kernels that the list lacks.
    pub unlisted: Vec<String>,
    /// Digests in the list of no kernel of these targets.
    pub stale: Vec<String>,
    /// The list of exactly these kernels.
    #[serde(skip)]
    pub list: Listed,
}

/// A kernel of a target.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelUsage {
    /// The target and its build options.
    pub target: String,
    /// Name of the compiled module that holds the kernel.
    pub module: String,
    /// Its name in the module.
    pub kernel: String,
    /// Resources, from the assembler and the machine code.
    #[serde(flatten)]
    pub usage: Usage,
}

/// The kernels of a template on an architecture.
#[derive(Debug, PartialEq, Serialize)]
pub struct Family {
    /// Architecture, such as `sm_90a`.
    pub architecture: String,
    /// Kind of kernel: [`Signature::function`](crate::kernels::Signature::function).
    pub template: String,
    /// Kernels of all targets.
    pub kernels: usize,
    /// Distinct kernels.
    pub distinct: usize,
    /// Wall seconds of one core to compile those compiled now or before; listed ones count nothing.
    pub seconds: f64,
    /// Most registers per thread.
    pub registers: u32,
    /// Distinct kernels that spill or use local memory, which is allowed outside decode.
    pub spilling: usize,
}

/// Whether a kernel takes what its line says. The line is from a source with other kernels beside it, and by
/// these nvcc decides what it inlines: of 4,569 kernels three differed, by two registers.
fn alike(usage: &Usage, line: &Usage) -> bool {
    let near = usage.registers.abs_diff(line.registers) <= NEIGHBOURS;
    near && Usage { registers: line.registers, ..usage.clone() } == *line
}

impl<'a> Survey<'a> {
    /// An empty survey, for kernels of the library below `root`.
    pub fn new(root: &Path, compiler: &'a Compiler) -> Survey<'a> {
        let library = root.join("templates/cuda");
        Survey {
            compiler,
            keys: Keys::new(compiler, library.clone()),
            library,
            builds: 0,
            modules: 0,
            instances: Vec::new(),
            places: HashMap::new(),
            uses: Vec::new(),
        }
    }

    /// Adds all kernels of a CUDA target's plan; other plans have none.
    ///
    /// # Errors
    /// When a header cannot be read.
    pub fn add(&mut self, plan: &Plan) -> Result<(), BuildError> {
        let (Some(cuda), Some(card)) = (&plan.cuda, plan.target.hardware.cuda()) else { return Ok(()) };
        let (build, racecheck) = (plan.target.build(), plan.target.racecheck);
        let architecture = architecture(card);
        self.builds += 1;
        self.modules += cuda.modules.len();
        for module in &cuda.modules {
            for kernel in &module.kernels {
                let key = self.keys.of(architecture, racecheck, kernel)?;
                let instances = &mut self.instances;
                let instance = *self.places.entry(key).or_insert_with_key(|key| {
                    let (key, architecture) = (key.clone(), architecture.to_owned());
                    instances.push(Instance { key, architecture, racecheck, kernel: kernel.clone() });
                    instances.len() - 1
                });
                self.uses.push(Use {
                    build: build.clone(),
                    module: module.name.clone(),
                    kernel: kernel.clone(),
                    limits: limits(card),
                    instance,
                });
            }
        }
        Ok(())
    }

    /// Compiles on all cores what is not known, and inspects everything. Calls `progress` with the number of
    /// kernels done, their total, and the number compiled by this run. An interrupted run resumes from the
    /// cache.
    ///
    /// # Errors
    /// When a tool does not start or a file cannot be written. Defects of kernels are in the report.
    pub fn compile(
        &self,
        known: &Known,
        progress: &(dyn Fn(usize, usize, usize) + Sync),
    ) -> Result<Report, BuildError> {
        let start = Instant::now();
        let store = Store::new(known.cache);
        let cached = |key: &str| store.get(key).filter(|_| !known.fresh);
        let mut found: Vec<Option<Result<Figures, String>>> =
            self.instances.iter().map(|it| cached(&it.key).map(Ok)).collect();
        let cached = found.iter().flatten().count();
        for (found, Instance { key, .. }) in found.iter_mut().zip(&self.instances) {
            if found.is_none() && !known.fresh && !(known.again)(key) {
                let usage = known.listed.get(key).cloned();
                *found = usage.map(|usage| Ok(Figures { usage, seconds: 0.0 }));
            }
        }
        let listed = found.iter().flatten().count() - cached;
        let mut missing: Vec<usize> = (0..found.len()).filter(|at| found[*at].is_none()).collect();
        let group = |at: &usize| {
            let Instance { architecture, racecheck, kernel, .. } = &self.instances[*at];
            (architecture, *racecheck, kernel.signature.header)
        };
        missing.sort_by_key(group);
        let groups: Vec<usize> = missing.chunk_by(|a, b| group(a) == group(b)).map(<[usize]>::len).collect();
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        let units = units(&groups, workers);
        let (next, done, made) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || -> Result<(), String> {
            let writer = Writer::new();
            while let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
                let members = &missing[unit.clone()];
                // On failure, leave no work to the other threads.
                let results = self.unit(&writer, known.cache, members).and_then(|results| {
                    for (at, result) in &results {
                        if let Ok(figures) = result {
                            store.put(&self.instances[*at].key, figures)?;
                        }
                    }
                    Ok(results)
                });
                let results = results.map_err(|error| {
                    next.store(units.len(), Ordering::Relaxed);
                    error.to_string()
                })?;
                made.lock().expect("no worker panics").extend(results);
                let before = done.fetch_add(members.len(), Ordering::Relaxed);
                progress(before + members.len(), missing.len(), members.len());
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..workers.min(units.len())).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|it| it.join().expect("no worker panics"))
        })
        .map_err(BuildError::Tool)?;
        for (at, result) in made.into_inner().expect("no worker panics") {
            found[at] = Some(result);
        }
        let found: Vec<Result<Figures, String>> =
            found.into_iter().map(|it| it.expect("every unit was compiled")).collect();
        let list = self.list(&found);
        let lines: Vec<Option<&Usage>> = self.instances.iter().map(|it| known.listed.get(&it.key)).collect();
        Ok(Report {
            targets: self.builds,
            modules: self.modules,
            kernels: self.uses.len(),
            distinct: self.instances.len(),
            compiled: missing.len(),
            cached,
            listed,
            seconds: start.elapsed().as_secs_f64(),
            families: self.families(&found),
            usages: self.usages(&found),
            defects: self.defects(&found),
            differing: self.differing(&found, &lines),
            unlisted: self.unlisted(&lines),
            stale: known.listed.without(&list),
            list,
        })
    }

    /// Compiles instances of one header in one source. If nvcc refuses it, compiles each half separately,
    /// down to the instances at fault.
    fn unit(&self, writer: &Writer, cache: &Path, members: &[usize]) -> Result<Vec<Compiled>, BuildError> {
        let name = |at: usize| format!("k{at}");
        let first = &self.instances[members[0]];
        let named = |at: &usize| Kernel { name: name(*at), ..self.instances[*at].kernel.clone() };
        let kernels: Vec<Kernel> = members.iter().map(named).collect();
        let text = writer.module(&["Kernels of several targets.".to_owned()], first.racecheck, &kernels);
        let directory = fresh(&cache.join("unit"));
        let (source, cubin) = (directory.join("unit.cu"), directory.join("unit.cubin"));
        super::write_if_changed(&source, text.as_bytes())?;
        let run = self.compiler.run(&first.architecture, &self.library, &source, &cubin);
        std::fs::remove_dir_all(&directory).map_err(|error| BuildError::Io(directory.clone(), error))?;
        match run? {
            Run::Made { seconds, kernels } => {
                let seconds = seconds / members.len() as f64;
                let figures = |at: &usize| match kernels.get(&name(*at)) {
                    Some(usage) => (*at, Ok(Figures { usage: usage.clone(), seconds })),
                    None => (*at, Err("nvcc left it out of the cubin".to_owned())),
                };
                Ok(members.iter().map(figures).collect())
            }
            Run::Refused(words) if members.len() == 1 => {
                let source = source.display().to_string();
                Ok(vec![(
                    members[0],
                    Err(format!("nvcc refuses it:\n{}", words.replace(&source, "unit.cu"))),
                )])
            }
            Run::Refused(_) => {
                let (left, right) = members.split_at(members.len() / 2);
                let mut results = self.unit(writer, cache, left)?;
                results.extend(self.unit(writer, cache, right)?);
                Ok(results)
            }
        }
    }

    /// The list of all kernels. A refused one takes nothing: its line is needed once nvcc takes it.
    fn list(&self, found: &[Result<Figures, String>]) -> Listed {
        let mut list = Listed::new(self.compiler);
        for (Instance { key, .. }, found) in self.instances.iter().zip(found) {
            let usage = found.as_ref().map(|it| it.usage.clone()).unwrap_or_default();
            list.add(key, &usage);
        }
        list
    }

    /// Kernels whose figures are not those of their lines.
    fn differing(&self, found: &[Result<Figures, String>], lines: &[Option<&Usage>]) -> Vec<String> {
        let differs = |(at, (found, line)): (usize, (&Result<Figures, String>, &Option<&Usage>))| {
            let (usage, line) = (&found.as_ref().ok()?.usage, (*line)?);
            (!alike(usage, line))
                .then(|| format!("{}: the list says {line:?}, and it has {usage:?}", self.name(at)))
        };
        found.iter().zip(lines).enumerate().filter_map(differs).collect()
    }

    /// Kernels without lines.
    fn unlisted(&self, lines: &[Option<&Usage>]) -> Vec<String> {
        (0..lines.len()).filter(|at| lines[*at].is_none()).map(|at| self.name(at)).collect()
    }

    /// The first target, module and name of an instance.
    fn name(&self, instance: usize) -> String {
        let first = self.uses.iter().find(|it| it.instance == instance).expect("an instance is used");
        format!("{}: kernel `{}` of `{}`", first.build, first.kernel.name, first.module)
    }

    fn usages(&self, found: &[Result<Figures, String>]) -> Vec<KernelUsage> {
        let usage = |it: &Use| {
            Some(KernelUsage {
                target: it.build.clone(),
                module: it.module.clone(),
                kernel: it.kernel.name.clone(),
                usage: found[it.instance].as_ref().ok()?.usage.clone(),
            })
        };
        self.uses.iter().filter_map(usage).collect()
    }

    /// Every kernel that must not ship, in the order of the targets.
    fn defects(&self, found: &[Result<Figures, String>]) -> Vec<String> {
        let mut defects = Vec::new();
        let mut said = vec![false; found.len()];
        for Use { build, module, kernel, limits, instance } in &self.uses {
            match &found[*instance] {
                Ok(figures) => {
                    let defects_of = cubin::defects(module, kernel, &figures.usage, limits);
                    defects.extend(defects_of.into_iter().map(|defect| format!("{build}: {defect}")));
                }
                Err(words) => {
                    // A compiler's message is printed once, however many targets it affects.
                    let first = words.lines().next().unwrap_or_default();
                    let words = if said[*instance] { first.trim_end_matches(':') } else { words.as_str() };
                    said[*instance] = true;
                    defects.push(format!("{build}: kernel `{}` of `{module}`: {words}", kernel.name));
                }
            }
        }
        defects
    }

    fn families(&self, found: &[Result<Figures, String>]) -> Vec<Family> {
        let mut families: BTreeMap<(&str, &str), Family> = BTreeMap::new();
        for (instance, figures) in self.instances.iter().zip(found) {
            let key = (instance.architecture.as_str(), instance.kernel.function());
            let family = families.entry(key).or_insert_with(|| Family {
                architecture: format!("sm_{}", instance.architecture),
                template: instance.kernel.function().to_owned(),
                kernels: 0,
                distinct: 0,
                seconds: 0.0,
                registers: 0,
                spilling: 0,
            });
            family.distinct += 1;
            if let Ok(Figures { usage, seconds }) = figures {
                family.seconds += seconds;
                family.registers = family.registers.max(usage.registers);
                let memory = usage.spill_stores + usage.spill_loads + usage.stack + usage.local;
                family.spilling += usize::from(memory > 0);
            }
        }
        for it in &self.uses {
            let Instance { architecture, kernel, .. } = &self.instances[it.instance];
            let family = families.get_mut(&(architecture.as_str(), kernel.function()));
            family.expect("every instance has a family").kernels += 1;
        }
        families.into_values().collect()
    }
}

/// Splits groups of these sizes into units of one group each. Units are large, because each reads its group's
/// headers again, and small towards the end, so that no worker is left alone with the last ones.
fn units(groups: &[usize], workers: usize) -> Vec<Range<usize>> {
    let mut left: usize = groups.iter().sum();
    let (mut units, mut at) = (Vec::new(), 0);
    for group in groups {
        let end = at + group;
        while at < end {
            let fair = left / (4 * workers);
            let size = fair.clamp(LEAST_OF_A_UNIT, MOST_OF_A_UNIT).min(end - at);
            units.push(at..at + size);
            at += size;
            left -= size;
        }
    }
    units
}

/// A card's architecture without `sm_`.
pub(super) fn architecture(card: &Cuda) -> &str {
    card.architecture.trim_start_matches("sm_")
}

/// Limits of a card for one kernel.
pub(super) fn limits(card: &Cuda) -> KernelLimits {
    KernelLimits {
        registers_per_thread: card.registers_per_thread,
        registers_per_sm: 65_536,
        shared_per_block: card.shared_per_block,
    }
}

/// The report as text.
pub fn text(report: &Report) -> String {
    let mut lines = vec![format!(
        "{:<8} {:<24} {:>8} {:>9} {:>9} {:>10} {:>9}",
        "", "template", "kernels", "distinct", "seconds", "registers", "spilling"
    )];
    lines.extend(report.families.iter().map(|it| {
        let Family { architecture, template, kernels, distinct, seconds, registers, spilling } = it;
        format!(
            "{architecture:<8} {template:<24} {kernels:>8} {distinct:>9} {seconds:>9.1} {registers:>10} {spilling:>9}"
        )
    }));
    lines.extend(report.defects.iter().cloned());
    lines.push(summary(report));
    lines.join("\n") + "\n"
}

/// The report as one line.
pub fn summary(report: &Report) -> String {
    let Report { targets, modules, kernels, distinct, compiled, cached, listed, seconds, defects, .. } =
        report;
    format!(
        "{targets} targets, {modules} modules, {kernels} kernels, {distinct} distinct: {compiled} compiled, {cached} cached and \
         {listed} listed in {seconds:.0} s, {} defects",
        defects.len()
    )
}

#[cfg(test)]
mod tests {
    use super::{LEAST_OF_A_UNIT, MOST_OF_A_UNIT, alike, units};
    use crate::toolchain::cubin::Usage;

    #[test]
    fn neighbours_change_two_registers_and_nothing_else() {
        let line = Usage { registers: 74, barriers: 16, ..Usage::default() };
        for (registers, near) in [(71, false), (72, true), (74, true), (76, true), (77, false)] {
            assert_eq!(alike(&Usage { registers, ..line.clone() }, &line), near, "{registers}");
        }
        for other in [
            Usage { spill_stores: 4, ..line.clone() },
            Usage { spill_loads: 4, ..line.clone() },
            Usage { stack: 8, ..line.clone() },
            Usage { local: 8, ..line.clone() },
            Usage { static_shared: 16, ..line.clone() },
            Usage { barriers: 15, ..line.clone() },
        ] {
            assert!(!alike(&other, &line), "{other:?}");
        }
    }

    #[test]
    fn units_are_of_one_group_cover_all_and_end_small() {
        for (groups, workers) in [(vec![1300, 7, 250, 1], 2), (vec![3], 16), (vec![], 2), (vec![400; 3], 16)]
        {
            let units = units(&groups, workers);
            let bounds: Vec<usize> =
                groups.iter().scan(0, |at, it| Some(std::mem::replace(at, *at + it))).collect();
            let mut at = 0;
            for unit in &units {
                assert_eq!(unit.start, at, "{groups:?}: nothing is left out");
                at = unit.end;
                assert!(unit.len() <= MOST_OF_A_UNIT && !unit.is_empty());
                assert!(
                    bounds.iter().all(|it| *it <= unit.start || *it >= unit.end),
                    "{unit:?} is of one group"
                );
            }
            assert_eq!(at, groups.iter().sum::<usize>());
            assert!(units.last().is_none_or(|it| it.len() <= LEAST_OF_A_UNIT));
        }
    }
}
