//! `gpu_cases OUT HARDWARE [--tp N | --ep N]`: test cases for servers on a machine with a card and without
//! cargo; `cargo xtask gpu` runs it. Writes `OUT/targets/`, the specs of every golden;
//! `OUT/goldens/<golden>/<quant>/`, a checkpoint with `tokens.json`, the interpreter's
//! `expected.safetensors`, the rows' `bounds.safetensors` and, for a checkpoint as stored, transformers'
//! `golden.safetensors`; and `OUT/cases.json`, which lists them and gives the compiler's reason for every
//! combination that it refuses. For several ranks, the goldens have sizes that ranks can share.

use monomorph_compiler::reference::{Cache, Interpreter, Logits as Which};
use monomorph_compiler::spec::types::{BuildOptions, Compute, Ranks, Target};
use monomorph_compiler::{graph, passes, spec};
use monomorph_formats::Format;
use monomorph_tests::goldens::{Golden, on_cards, wide};
use monomorph_tests::logits::{Logits, read};
use monomorph_tests::requantise::{Storage, requantise};
use monomorph_tests::{root, rounding};
use monomorph_weights::Checkpoint;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Largest distance of logits from the interpreter's, relative to the row's largest. Exact targets compute in
/// f64 what the interpreter computes in f64; what remains is an occasional rounding that goes the other way.
const EXACT: f32 = 1e-4;
/// Targets that round operands to f16 as the interpreter does, and sum in f32. Rows that rounding moves by
/// more have bounds of their own.
const F16: f32 = 2e-2;

struct Cases {
    out: PathBuf,
    hardware: String,
    ranks: Ranks,
    cases: Vec<Value>,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (out, hardware, ranks) = match arguments.as_slice() {
        [out, hardware] => (out, hardware, Some(Ranks::tensor_parallel(1))),
        [out, hardware, flag, count] => (out, hardware, ranks(flag, count)),
        _ => (&String::new(), &String::new(), None),
    };
    let Some(ranks) = ranks else {
        eprintln!("usage: gpu_cases OUT HARDWARE [--tp N | --ep N]");
        std::process::exit(2);
    };
    let mut cases = Cases { out: out.into(), hardware: hardware.clone(), ranks, cases: Vec::new() };
    let goldens = on_cards();
    let larger = cases.out.join("for-ranks");
    for golden in &goldens {
        golden.import_into(&cases.targets(), Compute::F16);
        if ranks.count > 1 {
            let golden = golden.for_ranks(&larger);
            golden.import_into(&cases.targets(), Compute::F16);
            cases.add(&golden, "f32", &golden.directory.join("f32"));
        } else {
            for quant in ["f32", "bf16"] {
                cases.add(golden, quant, &golden.directory.join(quant));
            }
        }
    }
    // Every storage, on the first golden whose rows fill whole blocks of all of them.
    let whole = |golden: &Golden| {
        let plain = cases.target(golden, "f32").ok()?;
        Storage::ALL.iter().all(|storage| storage.fits(&plain)).then_some(plain)
    };
    let mut whole = goldens.iter().filter_map(|golden| Some((golden, whole(golden)?)));
    let (golden, plain) = whole.next().expect("one golden fits every storage");
    for storage in Storage::ALL.iter().filter(|storage| !["f32", "bf16"].contains(&storage.name)) {
        for (compute, kv) in
            [(Compute::F16, Format::Bf16), (Compute::F32, Format::F32), (Compute::Int8Block32, Format::F16)]
        {
            if storage.computes(compute) {
                let out = cases.out.join("stored").join(storage.name).join(compute.name());
                let quant = requantise(golden, &plain, storage, compute, kv, &cases.targets(), &out);
                cases.add(golden, &quant, &out.join("stored"));
            }
        }
    }
    // Products of codes by codes, whose rows are whole groups of columns.
    if ranks.count == 1 {
        let wide = wide(&cases.out.join("made-up"));
        wide.import_into(&cases.targets(), Compute::F16);
        if let Ok(plain) = cases.target(&wide, "f32") {
            for storage in Storage::ALL.iter().filter(|storage| storage.computes(Compute::Fp8)) {
                let out = cases.out.join("stored-wide").join(storage.name);
                let quant =
                    requantise(&wide, &plain, storage, Compute::Fp8, Format::Bf16, &cases.targets(), &out);
                cases.add(&wide, &quant, &out.join("stored"));
            }
        }
    }
    write(&cases.out.join("cases.json"), &serde_json::to_vec_pretty(&cases.cases).expect("it is JSON"));
}

/// What `--tp N` or `--ep N` asks for.
fn ranks(flag: &str, count: &str) -> Option<Ranks> {
    let all = [Ranks::tensor_parallel, Ranks::expert_parallel].map(|of| count.parse().map(of));
    all.into_iter().flatten().find(|ranks| ranks.flag() == flag)
}

impl Cases {
    fn targets(&self) -> PathBuf {
        self.out.join("targets")
    }

    fn target(&self, golden: &Golden, quant: &str) -> Result<Target, String> {
        let name = format!("{}/{}/{quant}", self.hardware, golden.name);
        let search = [self.targets(), root().join("targets")];
        let options = self.ranks.of(BuildOptions::default());
        spec::load_with(&search, &name, &options).map_err(|error| error.to_string())
    }

    /// Copies a checkpoint and writes the interpreter's results for it.
    fn add(&mut self, golden: &Golden, quant: &str, checkpoint: &Path) {
        let target = match self.target(golden, quant) {
            Ok(target) => target,
            Err(why) => {
                let name = format!("{}/{}/{quant}", self.hardware, golden.name);
                self.cases.push(json!({ "name": name, "refused": why }));
                return;
            }
        };
        let graph = graph::build(&target.model, &target.quant);
        if let Err(why) = passes::assemble::plan(&target, &graph) {
            self.cases.push(json!({ "name": target.name(), "refused": why.to_string() }));
            return;
        }
        let directory = Path::new("goldens").join(&golden.name).join(quant);
        let to = self.out.join(&directory);
        for entry in std::fs::read_dir(checkpoint).expect("a checkpoint is a directory") {
            let from = entry.expect("directory entries are readable").path();
            let name = from.file_name().expect("a file has a name");
            if from.is_file() && name != "logits.safetensors" {
                write(
                    &to.join("weights").join(name),
                    &std::fs::read(&from).expect("a checkpoint is readable"),
                );
            }
        }
        write(&to.join("tokens.json"), json!(golden.prompts).to_string().as_bytes());

        let weights = Checkpoint::open(checkpoint).unwrap_or_else(|error| panic!("{error}"));
        let interpreter = Interpreter::new(&graph, &target.quant, &weights);
        let interpreter = interpreter.unwrap_or_else(|error| panic!("{}: {error}", target.name()));
        let logits: Logits = golden
            .prompts
            .iter()
            .map(|prompt| interpreter.forward(prompt, &mut Cache::default(), Which::All))
            .collect();
        write_logits(&to.join("expected.safetensors"), &logits, target.model.vocabulary);
        let exact = target.quant.compute.classes.values().all(|compute| compute.is_exact());
        let bound = if exact { EXACT } else { F16 };
        let bounds = rounding::bounds(&target, checkpoint, &golden.prompts, &logits, bound);
        write_logits(&to.join("bounds.safetensors"), &bounds, 1);
        // For the checkpoint as stored, there are logits from transformers too.
        let golden = checkpoint.join("logits.safetensors");
        let golden = golden.is_file().then(|| read(&golden));
        if let Some(golden) = &golden {
            write_logits(&to.join("golden.safetensors"), golden, target.model.vocabulary);
        }
        self.cases.push(json!({
            "name": target.name(),
            "golden": golden.is_some(),
            "directory": directory,
            "vocabulary": target.model.vocabulary,
            "context": target.model.context,
            "bound": bound,
        }));
    }
}

fn write_logits(path: &Path, logits: &Logits, vocabulary: usize) {
    let bytes: Vec<Vec<u8>> =
        logits.iter().map(|rows| rows.iter().flat_map(|logit| logit.to_le_bytes()).collect()).collect();
    let views = bytes.iter().enumerate().map(|(index, bytes)| {
        let shape = vec![bytes.len() / 4 / vocabulary, vocabulary];
        (index.to_string(), TensorView::new(Dtype::F32, shape, bytes).expect("rows are whole"))
    });
    safetensors::serialize_to_file(views, None, path).expect("it is writable");
}

fn write(path: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(path.parent().expect("a file stands in a directory")).expect("it is writable");
    std::fs::write(path, bytes).expect("it is writable");
}
