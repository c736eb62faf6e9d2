//! GGUF files imported as they stand, and what the interpreter and stacks make of them.

use crate::goldens::Golden;
use crate::logits::{Logits, read};
use crate::{root, server};
use monomorph_compiler::graph::{self, Graph};
use monomorph_compiler::import::{ImportError, Imported, Seen, import_gguf};
use monomorph_compiler::reference::{Cache, Interpreter, Logits as Which};
use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{Compute, Target};
use monomorph_weights::Checkpoint;
use monomorph_weights::test_support::GgufWriter;
use std::path::Path;

/// Writes `directory/NAME.gguf` and imports it; floats compute in f32.
///
/// # Errors
/// Those of the import.
///
/// # Panics
/// Here and below, if a file cannot be written or read.
pub fn imported(file: &GgufWriter, name: &str, directory: &Path) -> Result<Imported, ImportError> {
    let path = directory.join(format!("{name}.gguf"));
    std::fs::write(&path, file.finish()).expect("a temporary directory is writable");
    let checkpoint = Checkpoint::open(&path).unwrap_or_else(|error| panic!("{error}"));
    import_gguf(&checkpoint, name, Compute::F32, &Seen::of(&checkpoint))
}

/// The target of this name, in `directory` or the project's own.
pub fn loaded(name: &str, directory: &Path) -> Target {
    let search = [directory.to_owned(), root().join("targets")];
    spec::load(&search, name).unwrap_or_else(|error| panic!("{error}"))
}

/// The target of a golden's own import, in f32.
pub fn plain(golden: &Golden, directory: &Path) -> Target {
    golden.import_into(directory, Compute::F32);
    loaded(&format!("cpu/{}/f32", golden.name), directory)
}

/// The target of a file's import for a CPU, whose model is called after the golden and `gguf`.
pub fn own(golden: &Golden, imported: &Imported, directory: &Path) -> Target {
    let name = format!("{}-gguf", golden.name);
    let models = directory.join("models").join(&name);
    std::fs::create_dir_all(&models).expect("a temporary directory is writable");
    std::fs::write(models.join("MODEL.toml"), &imported.model_toml).expect("it is writable");
    let (file, quant) = &imported.quants[0];
    std::fs::write(models.join(file), quant).expect("it is writable");
    loaded(&format!("cpu/{name}/{}", file.trim_end_matches(".toml")), directory)
}

/// The interpreter's logits of all prompts; behind them those of drafts, where there is a draft head.
pub fn logits(target: &Target, weights: &Path, prompts: &[Vec<u32>]) -> Logits {
    let graph = graph::build(&target.model, &target.quant);
    logits_of(&graph, target, weights, prompts)
}

/// The same of a graph of the target.
pub fn logits_of(graph: &Graph, target: &Target, weights: &Path, prompts: &[Vec<u32>]) -> Logits {
    let checkpoint = Checkpoint::open(weights).unwrap_or_else(|error| panic!("{error}"));
    let interpreter = Interpreter::new(graph, &target.quant, &checkpoint).expect("its tensors fit");
    let whole = |prompt: &Vec<u32>| interpreter.forward(prompt, &mut Cache::default(), Which::All);
    let drafted = |prompt: &Vec<u32>| {
        let states = interpreter.forward_with_hidden(prompt, &mut Cache::default(), Which::All).hidden;
        let given = &states[..(prompt.len() - 1) * target.model.hidden];
        interpreter.draft(given, &prompt[1..], &mut Cache::default(), Which::All).logits
    };
    let pairs = prompts.iter().filter(|prompt| target.quant.has_draft() && prompt.len() > 1);
    prompts.iter().map(whole).chain(pairs.map(drafted)).collect()
}

/// The logits of a stack of the golden's prompts, without those of drafts.
pub fn served(binary: &Path, weights: &Path, golden: &Golden, directory: &Path) -> Logits {
    let (tokens, out) = (golden.directory.join("tokens.json"), directory.join("out.safetensors"));
    let [weights, tokens, to] = [weights, &tokens, &out].map(|path| path.to_str().expect("paths are UTF-8"));
    server::verb(binary, &["--weights", weights, "--tokens", tokens, "--out", to]);
    read(&out)
}
