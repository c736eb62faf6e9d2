//! `cargo xtask quantize` end to end: its output is what the spec describes, decodes to what the tests' own
//! encoder stored, and computes nearly what the original does; bad sources are refused by name.

use monomorph_compiler::reference::{Cache, Interpreter, Logits as Which};
use monomorph_compiler::spec::types::{Compute, Container, Target};
use monomorph_compiler::{graph, spec};
use monomorph_formats::{Format, decode, encode};
use monomorph_tests::goldens::{Golden, synthetic};
use monomorph_tests::logits::Logits;
use monomorph_tests::requantise::{Storage, requantise};
use monomorph_tests::root;
use monomorph_weights::Checkpoint;
use monomorph_weights::test_support::{GgufWriter, Value};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value as Json, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A golden, and a source made of its f32 weights.
struct Bench {
    directory: TempDir,
    golden: Golden,
}

impl Bench {
    /// Partial blocks of 128 both ways, more rows than one band, and rows of whole blocks of 16.
    fn new() -> Bench {
        Bench::of(288, 416, 6)
    }

    fn of(hidden: usize, intermediate: usize, heads: usize) -> Bench {
        let directory = tempfile::tempdir().unwrap();
        let config = json!({
            "model_type": "qwen3", "vocab_size": 211, "hidden_size": hidden, "intermediate_size": intermediate,
            "num_hidden_layers": 2, "num_attention_heads": heads, "num_key_value_heads": 2, "head_dim": 32,
            "max_position_embeddings": 128,
        });
        let prompts = vec![(0..24).map(|i| i * 37 % 211).collect()];
        let golden = synthetic(directory.path(), "wide", &config, prompts);
        golden.import_into(&directory.path().join("targets"), Compute::F32);
        let source = golden.directory.join("f32");
        std::fs::copy(golden.directory.join("config.json"), source.join("config.json")).unwrap();
        std::fs::write(source.join("tokenizer.json"), "{}").unwrap();
        std::fs::write(source.join("pytorch_model.bin"), "weights once more").unwrap();
        Bench { directory, golden }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn source(&self) -> PathBuf {
        self.golden.directory.join("f32")
    }

    fn target(&self, quant: &str) -> Target {
        let search = [self.path("targets"), root().join("targets")];
        spec::load(&search, &format!("h200/wide/{quant}")).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Stores the golden as `storage` with the tests' own encoder, at `NAME/stored` and `NAME/means`; returns
    /// the name of its quant spec.
    fn oracle(&self, storage: &Storage) -> String {
        let plain = self.target("f32");
        let (targets, out) = (self.path("targets"), self.path(storage.name));
        requantise(&self.golden, &plain, storage, Compute::F32, Format::F32, &targets, &out)
    }

    fn run(&self, quant: &str, weights: &Path, out: &Path, more: &[&str]) -> Result<String, String> {
        let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
            .args(["quantize", "--target", &format!("h200/wide/{quant}"), "--targets-dir"])
            .arg(self.path("targets"))
            .arg("--weights")
            .arg(weights)
            .arg("--out")
            .arg(out)
            .args(more)
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    fn logits(&self, target: &Target, weights: &Path) -> Logits {
        let graph = graph::build(&target.model, &target.quant);
        let checkpoint = Checkpoint::open(weights).unwrap_or_else(|error| panic!("{error}"));
        let interpreter = Interpreter::new(&graph, &target.quant, &checkpoint);
        let interpreter = interpreter.unwrap_or_else(|error| panic!("{}: {error}", target.name()));
        let forward = |prompt: &Vec<u32>| interpreter.forward(prompt, &mut Cache::default(), Which::All);
        self.golden.prompts.iter().map(forward).collect()
    }

    /// A copy of the source with one tensor replaced by others.
    fn defect(&self, name: &str, defect: impl Fn(Tensor) -> Vec<Tensor>) -> PathBuf {
        let file = std::fs::read(self.source().join("model.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&file).unwrap();
        let mut tensors = Vec::new();
        for (tensor, view) in file.tensors() {
            let it = (tensor, view.shape().to_vec(), view.data().to_vec());
            tensors.extend(if it.0 == name { defect(it) } else { vec![it] });
        }
        let views = tensors
            .iter()
            .map(|(name, shape, bytes)| (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
        let out = self.path("defect.safetensors");
        std::fs::write(&out, safetensors::tensor::serialize(views, None).unwrap()).unwrap();
        out
    }
}

/// Name, shape, bytes.
type Tensor = (String, Vec<usize>, Vec<u8>);

/// Distance of logits, as a ratio of root mean squares.
fn apart(found: &Logits, expected: &Logits) -> f64 {
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
    let wide = |logits: &Logits| logits.concat().into_iter().map(f64::from).collect::<Vec<f64>>();
    let (found, expected) = (wide(found), wide(expected));
    let error = square(&mut found.iter().zip(&expected).map(|(a, b)| a - b));
    (error / square(&mut expected.into_iter())).sqrt()
}

/// Largest distance of the logits from those of the f32 weights. A product with weights of a relative error
/// `e` is off by `e` (rms: 1.6e-3 for bf16, whose half step is 2^-9 to 2^-8 of a value, 0.026 for fp8, 0.09
/// for nvfp4), and some fourteen of them follow one another: `e * sqrt(14)`. Twice this is allowed, because
/// attention to random keys adds to it.
fn bound(storage: &Storage) -> f64 {
    let error = match storage.matrices {
        Format::F32 => 0.0,
        Format::F16 => 2e-4,
        Format::Bf16 => 1.6e-3,
        Format::Fp8E4m3 => 0.026,
        _ => 0.09,
    };
    2.0 * error * 14f64.sqrt()
}

#[test]
fn every_storage_is_written_and_means_what_it_should() {
    let bench = Bench::new();
    let plain = bench.target("f32");
    let original = bench.logits(&plain, &bench.source());
    let storages = Storage::ALL.iter().filter(|it| it.container() == Container::Safetensors);
    let mut seen = 0;
    for storage in storages {
        let quant = bench.oracle(storage);
        let out = bench.path(&format!("made-{}", storage.name));
        // The output is split into three files.
        let said = bench.run(&quant, &bench.source(), &out, &["--shard-bytes", "1000000"]).unwrap();
        assert!(said.contains("copied: tokenizer.json\n"), "{said}");
        assert!(!out.join("pytorch_model.bin").exists());

        // Every tensor equals what the tests' own encoder stored.
        let expected = Checkpoint::open(&bench.path(storage.name).join("stored")).unwrap();
        let found = Checkpoint::open(&out).unwrap();
        assert_eq!(found.tensors().count(), expected.tensors().count());
        for tensor in expected.tensors() {
            let it = found.expect(tensor.name, tensor.shape, tensor.format);
            let it = it.unwrap_or_else(|error| panic!("{}: {error}", storage.name));
            let [it, tensor_bytes] = [it.bytes, tensor.bytes].map(|bytes| bytes.read().unwrap());
            assert!(it == tensor_bytes, "{}: other bytes of {}", storage.name, tensor.name);
        }

        let logits = bench.logits(&bench.target(&quant), &out);
        let means = bench.logits(&plain, &bench.path(storage.name).join("means"));
        assert!(logits == means, "{}: other values than the tests' encoder stored", storage.name);
        let apart = apart(&logits, &original);
        println!("{}: {apart:.1e}", storage.name);
        assert!(apart <= bound(storage), "{}: {apart:e}", storage.name);
        assert!(
            storage.matrices == Format::F32 || apart > bound(storage) / 8.0,
            "{}: {apart:e}",
            storage.name
        );

        let config: Json = serde_json::from_slice(&std::fs::read(out.join("config.json")).unwrap()).unwrap();
        assert_eq!(config["hidden_size"], 288);
        assert_eq!(config.get("quantization_config").is_some(), storage.scales.is_some(), "{}", storage.name);
        let errors = std::fs::read_to_string(out.join("quantization_errors.tsv")).unwrap();
        assert_eq!(errors.lines().count(), 1 + 3 + 2 * 11);
        seen += 1;
    }
    assert_eq!(seen, 7);
}

#[test]
fn shards_are_cut_where_asked_and_the_index_is_right() {
    let bench = Bench::new();
    let quant = bench.oracle(Storage::ALL.iter().find(|it| it.name == "nvfp4-modelopt").unwrap());
    let names = |out: &Path| -> Vec<String> {
        let files = std::fs::read_dir(out).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = files.filter(|name| name.contains("safetensors")).collect();
        names.sort();
        names
    };
    let one = bench.path("one");
    bench.run(&quant, &bench.source(), &one, &[]).unwrap();
    assert_eq!(names(&one), ["model.safetensors"]);
    let several = bench.path("several");
    bench.run(&quant, &bench.source(), &several, &["--shard-bytes", "200000"]).unwrap();
    let files = names(&several);
    assert!(files.len() > 4, "{files:?}");
    assert_eq!(files[0], format!("model-00001-of-{:05}.safetensors", files.len() - 1));
    let index = std::fs::read(several.join("model.safetensors.index.json")).unwrap();
    let index: Json = serde_json::from_slice(&index).unwrap();
    let mut total = 0;
    for file in files.iter().filter(|file| !file.ends_with(".json")) {
        let bytes = std::fs::read(several.join(file)).unwrap();
        let content = SafeTensors::deserialize(&bytes).unwrap();
        for (name, tensor) in content.tensors() {
            assert_eq!(index["weight_map"][&name], json!(file));
            total += tensor.data().len();
        }
    }
    assert_eq!(index["metadata"]["total_size"], json!(total));
    let (one, several) = (Checkpoint::open(&one).unwrap(), Checkpoint::open(&several).unwrap());
    for tensor in one.tensors() {
        let other = several.tensor(tensor.name).unwrap().bytes.read().unwrap();
        assert!(other == tensor.bytes.read().unwrap(), "{}", tensor.name);
    }

    let config: Json =
        serde_json::from_slice(&std::fs::read(bench.path("one/config.json")).unwrap()).unwrap();
    let said = &config["quantization_config"];
    assert_eq!((&said["quant_method"], &said["quant_algo"]), (&json!("modelopt"), &json!("W4A16_NVFP4")));
    // The embedding is not a linear layer.
    assert_eq!(said["ignore"], json!(["lm_head"]));
}

#[test]
fn what_is_wrong_with_the_source_is_named_and_nothing_is_written() {
    let bench = Bench::new();
    let quant = bench.oracle(Storage::ALL.iter().find(|it| it.name == "fp8-block128").unwrap());
    let refused = |source: &Path| {
        let error = bench.run(&quant, source, &bench.path("refused"), &[]).unwrap_err();
        assert!(!bench.path("refused").exists(), "{error}");
        let left = std::fs::read_dir(bench.directory.path()).unwrap();
        let left = left.filter(|it| it.as_ref().unwrap().file_name().to_string_lossy().starts_with(".quant"));
        assert_eq!(left.count(), 0, "{error}");
        error
    };
    let down = "model.layers.1.mlp.down_proj.weight";
    let missing = refused(&bench.defect(down, |_| vec![]));
    assert!(missing.contains(&format!("tensor `{down}` is missing")), "{missing}");
    let turned = refused(&bench.defect(down, |(name, _, bytes)| vec![(name, vec![416, 288], bytes)]));
    assert!(turned.contains(&format!("tensor `{down}` should be [288, 416] and is [416, 288]")), "{turned}");
    let surplus =
        refused(&bench.defect(down, |it| vec![("model.mystery.weight".to_owned(), vec![1], vec![0; 4]), it]));
    assert!(surplus.contains("`model.mystery.weight` (f32 [1])"), "{surplus}");
    // All problems are reported at once.
    let all = refused(&bench.defect(down, |it| vec![("model.mystery.weight".to_owned(), it.1, it.2)]));
    assert!(all.contains("is missing") && all.contains("model.mystery"), "{all}");
    for value in [f32::NAN, f32::INFINITY] {
        let broken = |(name, shape, mut bytes): Tensor| {
            bytes[4000..4004].copy_from_slice(&value.to_le_bytes());
            vec![(name, shape, bytes)]
        };
        let infinite = refused(&bench.defect(down, broken));
        assert!(
            infinite.contains(&format!("tensor `{down}` holds values that are not finite")),
            "{infinite}"
        );
    }
    // Refused: an output directory that exists, and a checkpoint that is quantised already.
    let done = bench.path("done");
    bench.run(&quant, &bench.source(), &done, &[]).unwrap();
    let again = bench.run(&quant, &bench.source(), &done, &[]).unwrap_err();
    assert!(again.contains("exists; nothing is overwritten"), "{again}");
    let twice = refused(&done);
    assert!(twice.contains("is fp8-e4m3; only f32, bf16 and f16 are quantised"), "{twice}");
    // Float weights beside a config that declares them quantised.
    let source = bench.source();
    std::fs::copy(done.join("config.json"), source.join("config.json")).unwrap();
    let claimed = refused(&source);
    assert!(claimed.contains("these weights are quantised already"), "{claimed}");
}

/// The source as a GGUF, with a table beside the model's tensors that its spec lists as unused.
fn gguf_source(bench: &Bench) -> PathBuf {
    let source = Checkpoint::open(&bench.source()).unwrap();
    let mut file = GgufWriter::new()
        .metadata("general.architecture", "qwen3")
        .metadata("general.file_type", Value::U32(0))
        .metadata("tokenizer.ggml.tokens", Value::Strs(vec!["a".to_owned(), String::new(), "é".to_owned()]))
        .metadata("tokenizer.ggml.scores", Value::F32s(vec![0.5, -1.0]))
        .metadata("tokenizer.ggml.add_bos_token", Value::Bool(true));
    for tensor in source.tensors() {
        file = file.tensor(tensor.name, tensor.shape, tensor.format, tensor.bytes.read().unwrap().to_vec());
    }
    let table: Vec<u8> = (0..16).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let file = file.tensor("rope_freqs.weight", &[16], Format::F32, table);
    let path = bench.path("source.gguf");
    std::fs::write(&path, file.finish()).unwrap();
    path
}

/// Every tensor is what the tests' own encoder stored, what the file says of the model is kept, and so is
/// what the model does not read.
#[test]
fn a_gguf_is_made_of_a_gguf() {
    // Blocks of 256 fill the rows of a narrower model with more heads.
    let bench_for = |storage: &Storage| match storage.name.contains("_k") || storage.name == "iq4" {
        true => Bench::of(256, 512, 8),
        false => Bench::new(),
    };
    let of_blocks = Storage::ALL.iter().filter(|it| it.container() == Container::Gguf);
    let storages: Vec<&Storage> = of_blocks.chain(&Storage::ON_CPUS).collect();
    assert_eq!(storages.len(), 6);
    for storage in storages {
        let bench = bench_for(storage);
        let (quant, source) = (bench.oracle(storage), gguf_source(&bench));
        let unknown = bench.run(&quant, &source, &bench.path("refused"), &[]).unwrap_err();
        assert!(unknown.contains("`rope_freqs.weight` (f32 [16])"), "{unknown}");
        let spec = bench.path(&format!("targets/models/wide/{quant}.toml"));
        let text = std::fs::read_to_string(&spec).unwrap();
        let unused = "container = \"gguf\"\nunused = [\"rope_freqs.weight\"]\n";
        std::fs::write(&spec, text.replacen("container = \"gguf\"\n", unused, 1)).unwrap();

        let out = bench.path("made");
        let said = bench.run(&quant, &source, &out, &[]).unwrap();
        let files: Vec<_> = std::fs::read_dir(&out).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(files.len(), 2, "{files:?}");
        assert!(said.ends_with("made/model.gguf\n"), "{said}");
        let expected = Checkpoint::open(&bench.path(storage.name).join("stored/model.gguf")).unwrap();
        let found = Checkpoint::open(&out.join("model.gguf")).unwrap();
        assert_eq!(found.tensors().count(), expected.tensors().count() + 1);
        for tensor in expected.tensors() {
            let it = found.expect(tensor.name, tensor.shape, tensor.format);
            let it = it.unwrap_or_else(|error| panic!("{}: {error}", storage.name));
            let [it, tensor_bytes] = [it.bytes, tensor.bytes].map(|bytes| bytes.read().unwrap());
            assert!(it == tensor_bytes, "{}: other bytes of {}", storage.name, tensor.name);
        }
        let table = found.expect("rope_freqs.weight", &[16], Format::F32).unwrap().bytes.read().unwrap();
        assert_eq!(table[4..8], 1f32.to_le_bytes());

        let source = Checkpoint::open(&source).unwrap();
        let [metadata, old] = [&found, &source].map(|it| it.gguf_metadata().unwrap().stored());
        let kept: Vec<_> = old.into_iter().filter(|(key, _)| *key != "general.file_type").collect();
        assert_eq!(metadata[..kept.len()], kept);
        let rest: Vec<&str> = metadata[kept.len()..].iter().map(|(key, _)| *key).collect();
        assert_eq!(rest, ["general.quantization_version"]);
        assert_eq!(found.gguf_metadata().unwrap().u32("general.quantization_version").unwrap(), Some(2));
    }
}

#[test]
fn a_gguf_is_made_of_nothing_else() {
    let bench = Bench::new();
    let gguf = bench.oracle(Storage::called("q8_0"));
    let refused = |quant: &str, source: &Path, more: &[&str]| {
        let error = bench.run(quant, source, &bench.path("refused"), more).unwrap_err();
        assert!(!bench.path("refused").exists(), "{error}");
        error
    };
    let source = refused(&gguf, &bench.source(), &[]);
    assert!(source.contains("is no GGUF file, and a GGUF is made from one"), "{source}");
    let cut = refused(&gguf, &gguf_source(&bench), &["--shard-bytes", "100000"]);
    assert!(cut.contains("--shard-bytes is of safetensors: a GGUF is written as one file"), "{cut}");
    // What is quantised is taken where that is asked for.
    let again = bench.path("again");
    let stored = bench.path("q8_0/stored/model.gguf");
    let other = bench.oracle(Storage::called("q4_1"));
    let twice = refused(&other, &stored, &[]);
    assert!(twice.contains("is q8_0 already; --requantize takes it as it is"), "{twice}");
    bench.run(&other, &stored, &again, &["--requantize"]).unwrap();
    let [made, stored] = [again.join("model.gguf"), stored].map(|path| Checkpoint::open(&path).unwrap());
    for tensor in stored.tensors() {
        let it = made.tensor(tensor.name).unwrap();
        let elements = tensor.shape.iter().product();
        let mut old = vec![0.0; elements];
        decode(tensor.format, &tensor.bytes.read().unwrap(), &mut old);
        assert_eq!(encode(it.format, &old), *it.bytes.read().unwrap(), "{}", tensor.name);
    }
    let mixed = refused(&gguf, &bench.source(), &["--from", "f32"]);
    let both = "what is read would be safetensors, by its spec, and what is written a GGUF file";
    assert!(mixed.contains(both), "{mixed}");
}
