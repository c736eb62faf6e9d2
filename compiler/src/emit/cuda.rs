//! `cuda/<module>.cu`: the kernels of each program as instantiations of the library in `templates/cuda`. The
//! library is copied to `cuda/lib`, so that the directory compiles by itself.

use super::File;
use crate::kernels::{FIGURES, Signature};
use crate::plan::Plan;
use crate::plan::cuda::{Constant, CudaPlan, Kernel, Module, Program};
use crate::report::cuda::program_table;
use std::collections::BTreeMap;
use std::path::Path;
use tera::{Context, Tera};

const MODULE: &str = include_str!("../../../templates/cuda/module.tera");
const KERNEL: &str = include_str!("../../../templates/cuda/kernel.tera");

/// Widest line of emitted lists, not counting its last name.
const MOST_COLUMNS: usize = 100;

/// Emits the modules of a CUDA plan.
pub fn modules(plan: &Plan, cuda: &CudaPlan) -> Vec<File> {
    let writer = Writer::new();
    let file = |module: &Module| File {
        path: Path::new("cuda").join(&module.name).with_extension("cu"),
        text: writer.module(&documentation(plan, cuda, module), plan.target.racecheck, &module.kernels),
    };
    cuda.modules.iter().map(file).collect()
}

/// Emits `src/arguments.rs`: a struct of arguments for each kind of kernel that programs launch.
pub fn arguments(plan: &Plan, cuda: &CudaPlan) -> String {
    let launches = cuda.programs.iter().flat_map(Program::launches);
    let signatures: BTreeMap<&str, &Signature> = launches
        .map(|launch| cuda.kernel(launch.kernel).signature)
        .map(|signature| (signature.arguments, signature))
        .collect();
    let structs = signatures.values().map(|Signature { arguments, function, header, parameters, .. }| {
        let mut lines =
            vec![format!("    /// Of `{function}` (lib/{header})."), format!("    {arguments} {{")];
        let mut line = String::new();
        for parameter in *parameters {
            if line.len() + parameter.name.len() > MOST_COLUMNS {
                lines.push(std::mem::take(&mut line));
            }
            let space = if line.is_empty() { "        " } else { " " };
            line += &format!("{space}{},", parameter.name);
        }
        lines.extend([line, "    }\n".to_owned()]);
        lines.join("\n")
    });
    format!(
        "// Written by `cargo xtask build`: change the spec or the compiler, not this file.\n\n\
         //! What the kernels of `{}` are handed.\n\n\
         monomorph_device::arguments! {{\n{}}}\n",
        plan.target.build(),
        structs.collect::<String>()
    )
}

/// The header comment of a module.
fn documentation(plan: &Plan, cuda: &CudaPlan, module: &Module) -> Vec<String> {
    let program = cuda.programs.iter().find(|program| program.name == module.name);
    match program {
        Some(program) => program_table(plan, cuda, program),
        None if module.name == "fill" => {
            vec![format!("Dummy weights of `{}`: one kernel a format.", plan.target.name())]
        }
        None => vec![format!(
            "Kernels of `{}`, cut in ways that are measured against each other.",
            plan.target.name()
        )],
    }
}

/// Renders modules from `templates/cuda/module.tera`.
pub struct Writer(Tera);

impl Default for Writer {
    fn default() -> Writer {
        Writer::new()
    }
}

impl Writer {
    /// Parses the templates.
    pub fn new() -> Writer {
        let mut tera = Tera::default();
        for (name, text) in [("module", MODULE), ("kernel", KERNEL)] {
            tera.add_raw_template(name, text).expect("the templates are part of the compiler");
        }
        Writer(tera)
    }

    /// A `.cu` file of these kernels, below the lines of `documentation`. The names of the kernels differ.
    pub fn module(&self, documentation: &[String], racecheck: bool, kernels: &[Kernel]) -> String {
        let mut headers: Vec<&str> = Vec::new();
        for header in kernels.iter().map(|kernel| kernel.signature.header) {
            if !headers.contains(&header) {
                headers.push(header);
            }
        }
        let mut context = Context::new();
        let comments = documentation.iter().map(|line| format!("// {line}").trim_end().to_owned());
        context.insert("documentation", &comments.collect::<Vec<_>>());
        context.insert("racecheck", &racecheck);
        context.insert("headers", &headers);
        context.insert("kernels", &kernels.iter().map(|it| self.kernel(it)).collect::<Vec<_>>());
        self.0.render("module", &context).expect("every name of the template is in the context")
    }

    /// One kernel: its constants, the checks that C++ agrees with the plan, and its wrapper.
    fn kernel(&self, kernel: &Kernel) -> String {
        let Signature { function, config, parameters, declarations, checks, body, .. } = kernel.signature;
        let name = config_name(&kernel.name);
        let filled = |text: &str| fill(text, kernel, &name);
        let handed: Vec<&str> = parameters.iter().map(|it| it.name).collect();
        let body = match *body {
            "" => format!("{function}<{name}>({});", handed.join(", ")),
            body => filled(body),
        };
        let mut context = Context::new();
        context.insert("has_config", config);
        context.insert("config", &name);
        let members = kernel.constants.iter().map(|(name, constant)| member(name, constant));
        context.insert("members", &members.collect::<Vec<_>>());
        context.insert("declarations", &filled(declarations));
        let checks = checks.iter().map(|(condition, message)| (filled(condition), *message));
        let figures = kernel.figures.iter();
        let figures = figures.map(|(figure, wanted)| (filled(&format!("{figure} == {wanted}")), FIGURES));
        context.insert("checks", &checks.chain(figures).collect::<Vec<_>>());
        context.insert("threads", &kernel.block);
        context.insert("resident", &kernel.resident);
        context.insert("cluster", &kernel.cluster);
        context.insert("name", &kernel.name);
        let declared = parameters.iter().map(|it| format!("{} {}", filled(it.kind), it.name));
        context.insert("parameters", &declared.collect::<Vec<_>>());
        context.insert("body", &body);
        self.0.render("kernel", &context).expect("every name of the template is in the context")
    }
}

/// Replaces the names in braces in a signature's text.
fn fill(text: &str, kernel: &Kernel, config: &str) -> String {
    let Kernel { block, cluster, shared, .. } = kernel;
    let mut text = text
        .replace("{config}", config)
        .replace("{block}", &block.to_string())
        .replace("{cluster}", &cluster.to_string())
        .replace("{shared}", &shared.to_string());
    for (name, constant) in &kernel.constants {
        if let Constant::Value(value) = constant {
            text = text.replace(&format!("{{{name}}}"), value);
        }
    }
    text
}

/// Turns `ffn_gate_up` into `FfnGateUpConfig`.
fn config_name(kernel: &str) -> String {
    let words = kernel.split('_').filter(|word| !word.is_empty());
    words.map(|word| word[..1].to_uppercase() + &word[1..]).collect::<String>() + "Config"
}

fn member(name: &str, constant: &Constant) -> String {
    let value = match constant {
        Constant::Integer(number) => number.to_string(),
        Constant::Float(number) => format!("{number:?}f"),
        Constant::Flag(flag) => flag.to_string(),
        Constant::Value(text) => text.clone(),
        Constant::Type(text) => return format!("using {name} = {text};"),
    };
    format!("static constexpr {} {name} = {value};", constant.kind())
}
