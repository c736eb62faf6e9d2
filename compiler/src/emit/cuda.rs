//! `cuda/<module>.cu`: the kernels of each program as instantiations of the library under `templates/cuda/lib`, which is
//! copied beside them, so that the directory compiles by itself.

use super::File;
use crate::plan::cuda::{Constant, CudaPlan, Extent, Kernel, Module, Program, Regime};
use crate::plan::{Cost, Phase, Plan, Prediction};
use std::path::Path;
use tera::{Context, Tera};

/// Phase templates: name, the library header each instantiates, text.
macro_rules! templates {
    ($(($name:literal, $header:literal)),* $(,)?) => {
        [$(($name, $header, include_str!(concat!("../../../templates/cuda/phases/", $name, ".tera")))),*]
    };
}

const TEMPLATES: [(&str, &str, &str); 13] = templates![
    ("attention_decode", "attention_decode.cuh"),
    ("attention_exact", "attention_exact.cuh"),
    ("attention_prefill", "attention_prefill.cuh"),
    ("attention_write", "attention_write.cuh"),
    ("embed", "embed.cuh"),
    ("fill_matrix", "fill.cuh"),
    ("fill_vector", "fill.cuh"),
    ("gemm_mma", "gemm_mma.cuh"),
    ("gemm_wgmma", "gemm_wgmma.cuh"),
    ("sample", "sample.cuh"),
    ("select", "select.cuh"),
    ("stage", "stage.cuh"),
    ("stream_product", "stream.cuh"),
];

const MODULE: &str = include_str!("../../../templates/cuda/phases/module.tera");

/// The modules of a CUDA plan.
pub fn modules(plan: &Plan, cuda: &CudaPlan) -> Vec<File> {
    let mut tera = Tera::default();
    for (name, _, text) in TEMPLATES {
        tera.add_raw_template(name, text).expect("the templates are part of the compiler");
    }
    tera.add_raw_template("module", MODULE).expect("the templates are part of the compiler");
    let file = |module: &Module| File {
        path: Path::new("cuda").join(&module.name).with_extension("cu"),
        text: self::module(&tera, plan, cuda, module),
    };
    cuda.modules.iter().map(file).collect()
}

fn module(tera: &Tera, plan: &Plan, cuda: &CudaPlan, module: &Module) -> String {
    let mut headers: Vec<&str> = Vec::new();
    for kernel in &module.kernels {
        let (_, header, _) =
            TEMPLATES.iter().find(|(name, ..)| *name == kernel.template).expect("the launch pass names templates");
        if !headers.contains(header) {
            headers.push(header);
        }
    }
    let program = cuda.programs.iter().find(|program| program.name == module.name);
    let documentation = match program {
        Some(program) => program_table(plan, cuda, program),
        None => vec![format!("Dummy weights of `{}`: one kernel a format.", plan.target.name())],
    };
    let mut context = Context::new();
    let comments = documentation.iter().map(|line| format!("// {line}").trim_end().to_owned());
    context.insert("documentation", &comments.collect::<Vec<_>>());
    context.insert("max_sequences", &plan.buckets.sequences);
    context.insert("headers", &headers);
    let kernels: Vec<String> = module.kernels.iter().map(|it| kernel(tera, it)).collect();
    context.insert("kernels", &kernels);
    tera.render("module", &context).expect("every name of the template is in the context")
}

fn kernel(tera: &Tera, kernel: &Kernel) -> String {
    let mut context = Context::new();
    let cluster =
        if kernel.cluster > 1 { format!(" __cluster_dims__({}, 1, 1)", kernel.cluster) } else { String::new() };
    context.insert("bounds", &format!("__launch_bounds__({}, {}){cluster}", kernel.block, kernel.resident));
    context.insert("name", &kernel.name);
    context.insert("config", &config_name(&kernel.name));
    context.insert("block", &kernel.block);
    context.insert("shared", &kernel.shared);
    context.insert("cluster", &kernel.cluster);
    let members: Vec<String> = kernel.constants.iter().map(|(name, constant)| member(name, constant)).collect();
    context.insert("members", &members);
    for (name, constant) in &kernel.constants {
        if let Constant::Value(text) = constant {
            context.insert(*name, text);
        }
    }
    tera.render(kernel.template, &context).expect("every name of the template is in the context")
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

/// What a program launches, in which geometry, over which bytes, and how long that should take.
pub fn program_table(plan: &Plan, cuda: &CudaPlan, program: &Program) -> Vec<String> {
    let hardware = &plan.target.hardware;
    let mut lines = vec![format!("Program `{}` of `{}`: {}", program.name, plan.target.name(), purpose(program))];
    lines.push(String::new());
    lines.push(format!(
        "{:<34} {:<18} {:>6} {:>8} {:>8} | {:>12} {:>9} {:>9} {:>8}",
        "kernel (module of another program)", "grid", "block", "cluster", "shared B", "weights B", "K/V B", "acts B", "us"
    ));
    for (body, launches) in plan.bodies.iter().zip(&program.bodies).filter(|(_, launches)| !launches.is_empty()) {
        let layers = if body.layers.is_empty() { String::new() } else { format!(", {} layers", body.layers.len()) };
        lines.push(format!("{}{layers}", body.name));
        let mut previous = None;
        for launch in launches {
            let cost = body.phases.get(launch.phase).map(|phase| cost(phase, program));
            // The phase's figures stand with its first launch.
            let figures = cost.filter(|_| previous.replace(launch.phase) != Some(launch.phase)).map(|cost| {
                format!(
                    "{:>12.0} {:>9.0} {:>9.0} {:>8.2}",
                    cost.weight_bytes,
                    cost.kv_bytes,
                    cost.activation_bytes,
                    1e6 * cost.predicted(hardware)
                )
            });
            lines.push(format!("  {} | {}", launch_columns(cuda, program, launch), figures.unwrap_or_default()));
        }
    }
    for launch in &program.tail {
        lines.push(format!("  {} |", launch_columns(cuda, program, launch)));
    }
    lines.push(String::new());
    lines.push(
        "Shared memory is the dynamic part; the map of each kind stands in its header, and registers in cubins/report.json."
            .to_owned(),
    );
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}

fn purpose(program: &Program) -> String {
    let (rows, context) = (program.rows, Prediction::DECODE_CONTEXT);
    match program.regime {
        Regime::Decode => format!("one token each of up to {rows} sequences, figures for {rows} after {context} tokens each"),
        Regime::Prefill => {
            format!("up to {rows} tokens of any sequences, figures for one prompt of {}", Prediction::PREFILL_TOKENS)
        }
        Regime::Head => format!("logits and sampling of up to {rows} rows after a prefill, figures for one row"),
    }
}

/// A phase's work in a program.
fn cost(phase: &Phase, program: &Program) -> Cost {
    match program.regime {
        Regime::Decode => phase.decode.of_rows(program.rows),
        Regime::Prefill | Regime::Head => phase.prefill,
    }
}

fn launch_columns(cuda: &CudaPlan, program: &Program, launch: &crate::plan::cuda::Launch) -> String {
    let kernel = cuda.kernel(launch.kernel);
    let module = &cuda.modules[launch.kernel.0].name;
    let name = if *module == program.name { kernel.name.clone() } else { format!("{} ({module})", kernel.name) };
    let grid = launch.grid.map(extent).join(" x ");
    format!("{name:<32} {grid:<18} {:>6} {:>8} {:>8}", kernel.block, kernel.cluster, kernel.shared)
}

fn extent(extent: Extent) -> String {
    let of = |what: &str, each: u32| if each == 1 { what.to_owned() } else { format!("{what}/{each}") };
    match extent {
        Extent::Fixed(blocks) => blocks.to_string(),
        Extent::Tokens(each) => of("T", each),
        Extent::Sequences(each) => of("S", each),
        Extent::Outputs(each) => of("O", each),
    }
}
