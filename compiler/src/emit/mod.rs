//! Plan to text. An emitter decides nothing: the plan contains every number and name it writes.

pub(crate) mod call;
mod cpu;
mod cpu_draft;
mod cpu_tower;
pub mod cuda;
mod cuda_launch;
mod cuda_programs;
mod cuda_stack;
pub mod cuda_templates;
mod cuda_tower;
mod cuda_weights;
mod kv_offload;
mod layers;
mod manifest;
pub(crate) mod names;
mod profile;
mod spec;
mod weights;

use crate::plan::Plan;
use crate::report;
pub use manifest::manifest;
pub(crate) use spec::variant;

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use std::path::PathBuf;

/// A file of the generated crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Path relative to the crate.
    pub path: PathBuf,
    /// Its content.
    pub text: String,
}

/// Emits the crate of a planned target: a manifest, `main.rs`, the constants, the layer stack, and the source
/// of its kernels, if any. `features` are the CPU features the code is compiled with.
pub fn emit(plan: &Plan, features: &[String]) -> Vec<File> {
    let file = |path: &str, text| File { path: path.into(), text };
    let stack = match &plan.cuda {
        None => cpu::stack(plan),
        Some(_) => cuda_stack::stack(plan),
    };
    let mut files = vec![
        file("Cargo.toml", manifest(plan, &package_name(&plan.target))),
        file("src/main.rs", rust(&main_doc(plan), main(plan))),
        file("src/spec.rs", rust(&spec_doc(plan), spec::spec(plan, features))),
        file("src/stack.rs", rust(&stack_doc(plan), stack)),
    ];
    if plan.target.profile {
        files.push(file("src/profile.rs", rust(&profile_doc(plan), profile::table(plan))));
    }
    if let Some(cuda) = &plan.cuda {
        files.push(file("src/arguments.rs", cuda::arguments(plan, cuda)));
        files.extend(cuda::modules(plan, cuda));
    }
    files
}

/// Name of the generated package and its binary.
pub fn package_name(target: &crate::spec::types::Target) -> String {
    let name = format!("monomorph-{}", target.build().replace('/', "-"));
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' }).collect()
}

fn main(plan: &Plan) -> TokenStream {
    let arguments = plan.cuda.as_ref().map(|_| {
        quote!(
            mod arguments;
        )
    });
    let profile = plan.target.profile.then(|| {
        quote!(
            mod profile;
        )
    });
    quote! {
        #arguments
        #profile
        mod spec;
        mod stack;

        fn main() -> std::process::ExitCode {
            monomorph_server::main::<stack::Model>()
        }
    }
}

fn main_doc(plan: &Plan) -> String {
    format!("A server of `{}`.", plan.target.build())
}

fn spec_doc(plan: &Plan) -> String {
    format!("What the build of `{}` fixed.", plan.target.build())
}

fn profile_doc(plan: &Plan) -> String {
    format!("The phases of `{}` whose times are taken, and their work by its plan.", plan.target.build())
}

fn stack_doc(plan: &Plan) -> String {
    let report = report::report(plan);
    let tables = report.bodies.iter().map(|body| report::phase_table(body).join("\n"));
    let tables = tables.collect::<Vec<_>>().join("\n\n");
    format!(
        "The layer stack of `{}`.\n\nBytes and predicted microseconds of each phase, for one token after {} \
         others, and for a prompt of {}:\n\n```text\n{tables}\n```",
        plan.target.build(),
        crate::plan::Prediction::DECODE_CONTEXT,
        crate::plan::Prediction::PREFILL_TOKENS,
    )
}

/// Formats a file of items below its documentation.
fn rust(documentation: &str, items: TokenStream) -> String {
    let file = syn::parse2(items).expect("emitted items are Rust");
    let body = spaced(&prettyplease::unparse(&file));
    let header: String =
        documentation.lines().map(|line| format!("//! {line}").trim_end().to_owned() + "\n").collect();
    format!(
        "// Written by `cargo xtask build`: change the spec or the compiler, not this file.\n\n{header}\n{body}"
    )
}

/// Inserts an empty line between items, and between the functions of an implementation: the printer leaves
/// none.
fn spaced(code: &str) -> String {
    let mut out = String::with_capacity(code.len());
    let mut previous = "";
    let mut item = "";
    for line in code.lines() {
        let indent = line.len() - line.trim_start().len();
        let (before, now) = (previous.trim_start(), line.trim_start());
        let ends = before == "}" || before.ends_with(';');
        let word = now.split(' ').next().unwrap_or_default();
        let grouped = word == item && matches!(word, "use" | "mod");
        let begins = match indent {
            0 => ends && !grouped && !now.starts_with(['}', ']']),
            4 => (before == "}" && now.starts_with("///")) || (ends && now.starts_with("fn ")),
            _ => false,
        };
        if begins {
            out.push('\n');
        }
        if indent == 0 && !now.starts_with(['}', ']']) {
            item = word;
        }
        out.push_str(line);
        out.push('\n');
        previous = line;
    }
    out
}

/// Turns `sliding-window` into `SlidingWindowLayer`.
fn layer_type(body: &str) -> proc_macro2::Ident {
    let words = body.split(['-', '_']).map(|word| word[..1].to_uppercase() + &word[1..]);
    format_ident!("{}Layer", words.collect::<String>())
}

/// An integer literal without suffix.
pub fn number(value: usize) -> proc_macro2::Literal {
    proc_macro2::Literal::usize_unsuffixed(value)
}

/// A float literal that reads back as the same f32.
pub fn float(value: f32) -> proc_macro2::Literal {
    proc_macro2::Literal::f32_unsuffixed(value)
}
