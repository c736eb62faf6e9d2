//! `cuda/<module>.cu`: the kernels of each program as instantiations of the library under
//! `templates/cuda/lib`, which is copied beside them, so that the directory compiles by itself.

use super::File;
use crate::plan::Plan;
use crate::plan::cuda::{Constant, CudaPlan, Kernel, Module};
use crate::report::cuda::program_table;
use std::path::Path;
use tera::{Context, Tera};

/// Phase templates: name, the library header each instantiates, text.
macro_rules! templates {
    ($(($name:literal, $header:literal)),* $(,)?) => {
        [$(($name, $header, include_str!(concat!("../../../templates/cuda/phases/", $name, ".tera")))),*]
    };
}

const TEMPLATES: [(&str, &str, &str); 33] = templates![
    ("accept", "accept.cuh"),
    ("attention_decode", "attention_decode.cuh"),
    ("attention_exact", "attention_exact.cuh"),
    ("attention_prefill", "attention_prefill.cuh"),
    ("attention_prefill_wgmma", "attention_prefill_wgmma.cuh"),
    ("attention_write", "attention_write.cuh"),
    ("delta_chunks", "delta_chunks.cuh"),
    ("delta_decode", "delta_decode.cuh"),
    ("delta_gate", "delta_gate.cuh"),
    ("delta_plain", "delta_plain.cuh"),
    ("delta_prepare", "delta_prepare.cuh"),
    ("draft_embed", "draft_embed.cuh"),
    ("embed", "embed.cuh"),
    ("experts_batch_combine", "experts_batch_combine.cuh"),
    ("experts_stage", "experts_stage.cuh"),
    ("experts_gemm_mma", "experts_gemm_mma.cuh"),
    ("experts_gemm_wgmma", "experts_gemm_wgmma.cuh"),
    ("experts_place", "experts_sort.cuh"),
    ("experts_sort", "experts_sort.cuh"),
    ("experts_stream", "experts_stream.cuh"),
    ("experts_stream_down", "experts_stream_down.cuh"),
    ("experts_stream_up", "experts_stream_up.cuh"),
    ("fill_matrix", "fill.cuh"),
    ("fill_vector", "fill.cuh"),
    ("gemm_mma", "gemm_mma.cuh"),
    ("gemm_wgmma", "gemm_wgmma.cuh"),
    ("route", "route.cuh"),
    ("route_batch", "route_batch.cuh"),
    ("sample", "sample.cuh"),
    ("select", "select.cuh"),
    ("stage", "stage.cuh"),
    ("stream_beside", "stream.cuh"),
    ("stream_product", "stream.cuh"),
];

const MODULE: &str = include_str!("../../../templates/cuda/phases/module.tera");

/// The modules of a CUDA plan.
pub fn modules(plan: &Plan, cuda: &CudaPlan) -> Vec<File> {
    let writer = Writer::new();
    let file = |module: &Module| File {
        path: Path::new("cuda").join(&module.name).with_extension("cu"),
        text: writer.module(&documentation(plan, cuda, module), plan.target.racecheck, &module.kernels),
    };
    cuda.modules.iter().map(file).collect()
}

/// What stands at the top of a module.
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

/// The header under `templates/cuda/lib` that a kernel's template instantiates.
///
/// # Panics
/// If the kernel names a template that there is not: the launch pass makes no such kernel.
pub fn header(kernel: &Kernel) -> &'static str {
    let template = TEMPLATES.iter().find(|(name, ..)| *name == kernel.template);
    template.expect("the launch pass names templates").1
}

/// Writes kernels as the phase templates say.
pub struct Writer(Tera);

impl Default for Writer {
    fn default() -> Writer {
        Writer::new()
    }
}

impl Writer {
    /// Reads the templates.
    pub fn new() -> Writer {
        let mut tera = Tera::default();
        for (name, _, text) in TEMPLATES {
            tera.add_raw_template(name, text).expect("the templates are part of the compiler");
        }
        tera.add_raw_template("module", MODULE).expect("the templates are part of the compiler");
        Writer(tera)
    }

    /// A `.cu` file of these kernels, whose names differ, below lines of `documentation`.
    pub fn module(&self, documentation: &[String], racecheck: bool, kernels: &[Kernel]) -> String {
        let mut headers: Vec<&str> = Vec::new();
        for header in kernels.iter().map(header) {
            if !headers.contains(&header) {
                headers.push(header);
            }
        }
        let mut context = Context::new();
        let comments = documentation.iter().map(|line| format!("// {line}").trim_end().to_owned());
        context.insert("documentation", &comments.collect::<Vec<_>>());
        context.insert("racecheck", &racecheck);
        context.insert("headers", &headers);
        let kernels: Vec<String> = kernels.iter().map(|it| self.kernel(it)).collect();
        context.insert("kernels", &kernels);
        self.0.render("module", &context).expect("every name of the template is in the context")
    }

    fn kernel(&self, kernel: &Kernel) -> String {
        let mut context = Context::new();
        let cluster = if kernel.cluster > 1 {
            format!(" __cluster_dims__({}, 1, 1)", kernel.cluster)
        } else {
            String::new()
        };
        context
            .insert("bounds", &format!("__launch_bounds__({}, {}){cluster}", kernel.block, kernel.resident));
        context.insert("name", &kernel.name);
        context.insert("config", &config_name(&kernel.name));
        context.insert("block", &kernel.block);
        context.insert("shared", &kernel.shared);
        context.insert("cluster", &kernel.cluster);
        let members: Vec<String> =
            kernel.constants.iter().map(|(name, constant)| member(name, constant)).collect();
        context.insert("members", &members);
        for (name, constant) in &kernel.constants {
            if let Constant::Value(text) = constant {
                context.insert(*name, text);
            }
        }
        self.0.render(kernel.template, &context).expect("every name of the template is in the context")
    }
}

/// `attention_qkv` becomes `AttentionQkvConfig`.
fn config_name(kernel: &str) -> String {
    let words = kernel.split('_').filter(|word| !word.is_empty());
    words.map(|word| word[..1].to_uppercase() + &word[1..]).collect::<String>() + "Config"
}

fn member(name: &str, constant: &Constant) -> String {
    match constant {
        Constant::Integer(number) => format!("static constexpr int {name} = {number};"),
        Constant::Float(number) => format!("static constexpr float {name} = {number:?}f;"),
        Constant::Flag(flag) => format!("static constexpr bool {name} = {flag};"),
        Constant::Value(text) => {
            let kind = text.split_once("::").map_or("auto", |(kind, _)| kind);
            format!("static constexpr {kind} {name} = {text};")
        }
        Constant::Type(text) => format!("using {name} = {text};"),
    }
}
