//! Kernels of all variants, each once, and the cubins they are compiled to.

use super::trace;
use crate::paths;
use monomorph_compiler::emit;
use monomorph_compiler::plan::Plan;
use monomorph_compiler::plan::cuda::{CudaPlan, Kernel, Module, Regime};
use monomorph_compiler::spec::types::Cuda;
use monomorph_compiler::toolchain::cubin::{self, KernelLimits};
use monomorph_compiler::toolchain::modules;
use monomorph_compiler::toolchain::nvcc::{Compiler, Cubin};
use monomorph_tune::manifest;
use std::path::Path;

/// Kernels of one module: headers are read once a module, and modules are compiled side by side.
const KERNELS_A_MODULE: usize = 6;
/// Registers of a multiprocessor of every supported card.
const REGISTERS_PER_SM: u32 = 65_536;

/// A kernel and how its module is loaded.
#[derive(Clone, PartialEq)]
pub struct Wanted {
    pub kernel: Kernel,
    /// See [`Module::shared_part`].
    pub shared_part: Option<u32>,
}

impl Wanted {
    /// Equal for two that differ in name and program only.
    pub fn nameless(&self) -> Wanted {
        let kernel = Kernel { name: String::new(), decode: false, ..self.kernel.clone() };
        Wanted { kernel, ..*self }
    }
}

/// Kernels that some launch wants, without repetition.
#[derive(Default)]
pub struct Pool {
    kernels: Vec<Wanted>,
}

impl Pool {
    /// The place of a kernel, which is added if it is new.
    pub fn add(&mut self, wanted: &Wanted, regime: Regime) -> usize {
        let decode = regime == Regime::Decode;
        if let Some(at) = self.kernels.iter().position(|known| known.nameless() == wanted.nameless()) {
            self.kernels[at].kernel.decode |= decode;
            return at;
        }
        let name = format!("{}_{}", wanted.kernel.name, self.kernels.len());
        self.kernels.push(Wanted { kernel: Kernel { name, decode, ..wanted.kernel.clone() }, ..*wanted });
        self.kernels.len() - 1
    }

    /// Compiles everything to cubins below `directory`, with clocks in where `trace` says so. Each kernel as
    /// the manifest states it: `defects` says what keeps it from shipping, and there is no module where the
    /// compiler refuses it.
    ///
    /// # Errors
    /// When there is no compiler, or a file cannot be written.
    pub fn compile(
        &self,
        directory: &Path,
        plan: &Plan,
        card: &Cuda,
        trace: bool,
    ) -> Result<Vec<manifest::Kernel>, String> {
        let compiler = Compiler::find(&paths::root()).map_err(|error| error.to_string())?;
        modules::copy_library(&paths::root(), directory).map_err(|error| error.to_string())?;
        if trace {
            trace::library(directory)?;
        }
        // A kernel's number in the clocks' records is its place in its module.
        let instrument = |text: String| if trace { trace::module(&text) } else { text };
        let compile =
            |groups: &[Vec<usize>]| self.modules(&compiler, directory, plan, card, groups, instrument);
        // Neighbours are of one phase and one header, for the most part.
        let all: Vec<usize> = (0..self.kernels.len()).collect();
        let groups: Vec<Vec<usize>> = all.chunks(KERNELS_A_MODULE).map(<[usize]>::to_vec).collect();
        let mut entries = vec![manifest::Kernel::default(); all.len()];
        let mut take = |groups: &[Vec<usize>], cubins: Vec<Cubin>| {
            for (group, cubin) in groups.iter().zip(&cubins) {
                group.iter().for_each(|at| entries[*at] = self.entry(*at, cubin, card));
            }
        };
        match compile(&groups) {
            Ok(cubins) => take(&groups, cubins),
            // One kernel must not take the others along: those that compile are found one by one.
            Err(_) => {
                for group in groups {
                    match compile(std::slice::from_ref(&group)) {
                        Ok(cubins) => take(std::slice::from_ref(&group), cubins),
                        Err(_) => {
                            for at in group {
                                let alone = [vec![at]];
                                match compile(&alone) {
                                    Ok(cubins) => take(&alone, cubins),
                                    Err(why) => eprintln!("{}: {why}", self.kernels[at].kernel.name),
                                }
                            }
                        }
                    }
                }
            }
        }
        for (at, entry) in entries.iter_mut().enumerate().filter(|(_, entry)| entry.module.is_none()) {
            entry.name.clone_from(&self.kernels[at].kernel.name);
            entry.defects.push("nvcc refuses it".to_owned());
        }
        Ok(entries)
    }

    /// One module a group.
    fn modules(
        &self,
        compiler: &Compiler,
        directory: &Path,
        plan: &Plan,
        card: &Cuda,
        groups: &[Vec<usize>],
        instrument: impl Fn(String) -> String,
    ) -> Result<Vec<Cubin>, String> {
        let module = |group: &Vec<usize>| Module {
            name: format!("variants_{}_{}", group[0], group.len()),
            // Each kernel has its own, which the manifest says.
            shared_part: None,
            kernels: group.iter().map(|at| self.kernels[*at].kernel.clone()).collect(),
        };
        let cuda = CudaPlan { modules: groups.iter().map(module).collect(), ..CudaPlan::default() };
        for file in emit::cuda::modules(plan, &cuda) {
            super::write(&directory.join(file.path), instrument(file.text).as_bytes())?;
        }
        let names: Vec<String> = cuda.modules.iter().map(|module| module.name.clone()).collect();
        let architecture = card.architecture.trim_start_matches("sm_");
        let cache = paths::root().join("target/cubins");
        let cubins = compiler.compile(&cache, architecture, &directory.join("cuda"), &names);
        let cubins = cubins.map_err(|error| error.to_string())?;
        for cubin in &cubins {
            let code =
                std::fs::read(&cubin.path).map_err(|error| format!("{}: {error}", cubin.path.display()))?;
            super::write(&directory.join(&cubin.module).with_extension("cubin"), &code)?;
        }
        Ok(cubins)
    }

    fn entry(&self, at: usize, cubin: &Cubin, card: &Cuda) -> manifest::Kernel {
        let Wanted { kernel, shared_part } = &self.kernels[at];
        let limits = KernelLimits {
            registers_per_thread: card.registers_per_thread,
            registers_per_sm: REGISTERS_PER_SM,
            shared_per_block: card.shared_per_block,
        };
        let usage = cubin.made.kernels.get(&kernel.name);
        let defects = usage.map_or_else(
            || vec![format!("it is not in the cubin of `{}`", cubin.module)],
            |usage| cubin::defects(&cubin.module, kernel, usage, &limits),
        );
        manifest::Kernel {
            name: kernel.name.clone(),
            module: Some(cubin.module.clone()),
            block: kernel.block,
            shared: kernel.shared,
            shared_part: *shared_part,
            defects,
        }
    }
}
