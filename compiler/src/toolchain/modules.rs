//! Compiles the emitted `cuda/` directory to `cubins/`, inspects every kernel, and refuses those that must
//! not ship.

use super::cubin::{self, Usage};
use super::figures::{Figures, Keys, STORE, Store};
use super::kernels::{architecture, limits};
use super::nvcc::{Compiler, Cubin};
use super::{BuildError, write_if_changed};
use crate::plan::Plan;
use crate::plan::cuda::CudaPlan;
use crate::spec::types::Cuda;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Contents of `cubins/report.json`.
#[derive(Debug, Serialize)]
pub struct CubinReport {
    /// Name of the target, `hardware/model/quant`.
    pub target: String,
    /// Architecture, such as `sm_90a`.
    pub architecture: String,
    /// Results of each module.
    pub modules: Vec<ModuleReport>,
}

/// One cubin.
#[derive(Debug, Serialize)]
pub struct ModuleReport {
    /// File stem.
    pub name: String,
    /// Bytes of machine code.
    pub bytes: u64,
    /// Wall seconds of its compilation.
    pub compile_seconds: f64,
    /// Kernels in the order of the source.
    pub kernels: Vec<KernelReport>,
}

/// One kernel of a module.
#[derive(Debug, Serialize)]
pub struct KernelReport {
    /// Name, unique in its module.
    pub name: String,
    /// Threads per block.
    pub block: u32,
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
    /// Resources, from the assembler and the machine code.
    #[serde(flatten)]
    pub usage: Usage,
}

/// Copies the library's headers beside the emitted modules, with their folders.
///
/// # Errors
/// When a file cannot be read or written.
pub fn copy_library(root: &Path, directory: &Path) -> Result<(), BuildError> {
    let (library, copy) = (root.join("templates/cuda"), directory.join("cuda/lib"));
    let names = headers(&library)?;
    for name in &names {
        let path = library.join(name);
        let text = std::fs::read(&path).map_err(|error| BuildError::Io(path, error))?;
        write_if_changed(&copy.join(name), &text)?;
    }
    // Headers that only an earlier build copied.
    for name in headers(&copy)?.difference(&names) {
        let path = copy.join(name);
        std::fs::remove_file(&path).map_err(|error| BuildError::Io(path, error))?;
    }
    Ok(())
}

/// The headers of a library, by their include paths.
///
/// # Errors
/// When a directory cannot be read.
pub fn headers(library: &Path) -> Result<BTreeSet<PathBuf>, BuildError> {
    let (mut open, mut names) = (vec![library.to_owned()], BTreeSet::new());
    while let Some(directory) = open.pop() {
        let io = |error| BuildError::Io(directory.clone(), error);
        for entry in std::fs::read_dir(&directory).map_err(io)? {
            let path = entry.map_err(io)?.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "cuh") {
                names.insert(path.strip_prefix(library).expect("it stands there").to_owned());
            }
        }
    }
    Ok(names)
}

/// Compiles the modules of a written crate to `cubins/<module>.cubin` and `cubins/report.json`.
///
/// # Errors
/// When there is no compiler, the compiler refuses a module, a decode kernel spills, or a kernel needs more
/// than the card has.
pub fn compile(root: &Path, directory: &Path, plan: &Plan) -> Result<CubinReport, BuildError> {
    let (Some(cuda), Some(card)) = (&plan.cuda, plan.target.hardware.cuda()) else {
        unreachable!("the caller builds a CUDA target")
    };
    let compiler = Compiler::find(root)?;
    let names: Vec<String> = cuda.modules.iter().map(|module| module.name.clone()).collect();
    refuse(root, &compiler, directory, plan)?;
    let cubins =
        compiler.compile(&root.join("target/cubins"), architecture(card), &directory.join("cuda"), &names)?;
    let modules = inspect(cuda, card, &cubins)?;
    for cubin in &cubins {
        let code = std::fs::read(&cubin.path).map_err(|error| BuildError::Io(cubin.path.clone(), error))?;
        write_if_changed(&directory.join("cubins").join(&cubin.module).with_extension("cubin"), &code)?;
    }
    let report = CubinReport { target: plan.target.name(), architecture: card.architecture.clone(), modules };
    let text = serde_json::to_string_pretty(&report).expect("numbers and names");
    write_if_changed(&directory.join("cubins/report.json"), text.as_bytes())?;
    Ok(report)
}

/// Fails the build on a kernel that a survey of any target ([`super::kernels`]) found unfit, before minutes
/// of compiling the others.
fn refuse(root: &Path, compiler: &Compiler, directory: &Path, plan: &Plan) -> Result<(), BuildError> {
    let (mut keys, store) = (Keys::new(compiler, directory.join("cuda/lib")), Store::new(&root.join(STORE)));
    let (cuda, card) = plan.cuda.as_ref().zip(plan.target.hardware.cuda()).expect("a CUDA target");
    let mut defects = Vec::new();
    for module in &cuda.modules {
        for kernel in &module.kernels {
            let key = keys.of(architecture(card), plan.target.racecheck, kernel)?;
            let defects_of =
                |figures: &Figures| cubin::defects(&module.name, kernel, &figures.usage, &limits(card));
            defects.extend(store.get(&key).iter().flat_map(defects_of));
        }
    }
    if defects.is_empty() { Ok(()) } else { Err(BuildError::Tool(defects.join("\n"))) }
}

/// Figures by kernel, or else every defect.
fn inspect(cuda: &CudaPlan, card: &Cuda, cubins: &[Cubin]) -> Result<Vec<ModuleReport>, BuildError> {
    let limits = limits(card);
    let mut defects = Vec::new();
    let mut modules = Vec::new();
    for (module, cubin) in cuda.modules.iter().zip(cubins) {
        let mut kernels = Vec::new();
        for kernel in &module.kernels {
            let Some(usage) = cubin.made.kernels.get(&kernel.name) else {
                defects.push(format!("kernel `{}` is not in the cubin of `{}`", kernel.name, module.name));
                continue;
            };
            defects.extend(cubin::defects(&module.name, kernel, usage, &limits));
            kernels.push(KernelReport {
                name: kernel.name.clone(),
                block: kernel.block,
                dynamic_shared: kernel.shared,
                usage: usage.clone(),
            });
        }
        modules.push(ModuleReport {
            name: module.name.clone(),
            bytes: cubin.made.bytes,
            compile_seconds: cubin.made.seconds,
            kernels,
        });
    }
    if defects.is_empty() { Ok(modules) } else { Err(BuildError::Tool(defects.join("\n"))) }
}

/// The report as a table.
pub fn text(report: &CubinReport) -> String {
    let mut lines = vec![format!(
        "{:<36} {:>6} {:>9} {:>9} {:>9} {:>6} {:>6} {:>8}",
        format!("kernel ({})", report.architecture),
        "block",
        "registers",
        "static B",
        "dynamic B",
        "spill",
        "local",
        "barriers"
    )];
    for module in &report.modules {
        let ModuleReport { name, bytes, compile_seconds, kernels } = module;
        lines.push(format!("{name}: {bytes} bytes, compiled in {compile_seconds:.1} s"));
        lines.extend(kernels.iter().map(|kernel| {
            let usage = &kernel.usage;
            format!(
                "  {:<34} {:>6} {:>9} {:>9} {:>9} {:>6} {:>6} {:>8}",
                kernel.name,
                kernel.block,
                usage.registers,
                usage.static_shared,
                kernel.dynamic_shared,
                usage.spill_stores + usage.spill_loads,
                usage.stack.max(usage.local),
                usage.barriers
            )
        }));
    }
    lines.join("\n") + "\n"
}
