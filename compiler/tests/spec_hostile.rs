//! Specs with damage of every kind: loaded or refused with a message, in bounded time, never a panic.

use monomorph_compiler::spec;
use monomorph_weights::hostile::damaged;
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long one load may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Targets whose files cover every feature: CPU and CUDA, dense and hybrid, drafts.
const TARGETS: [&str; 4] =
    ["cpu/smollm2-135m/q4_1", "h200/qwen3.5-35b/nvfp4", "h200/llama-3.2-1b/bf16", "gb10/qwen3-8b/fp8"];

const VALUES: [&str; 24] = [
    "0",
    "-1",
    "1",
    "3",
    "18446744073709551615",
    "9223372036854775807",
    "1e308",
    "-0.0",
    "nan",
    "inf",
    "\"\"",
    "\"a\"",
    "\"bf16\"",
    "[]",
    "[[]]",
    "[0]",
    "[\"attention\"]",
    "{}",
    "{ kind = \"moe\" }",
    "true",
    "1979-05-27",
    "\"../..\"",
    "\"\\u0000\"",
    "4294967296",
];

fn targets() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../targets")
}

/// Hardware, model and quantisation of a target.
fn files(target: &str) -> [String; 3] {
    let parts: Vec<&str> = target.split('/').collect();
    [
        format!("hardware/{}/HARDWARE.toml", parts[0]),
        format!("models/{}/MODEL.toml", parts[1]),
        format!("models/{}/{}.toml", parts[1], parts[2]),
    ]
}

#[derive(Clone, Debug)]
enum Edit {
    Value(prop::sample::Index, &'static str),
    Remove(prop::sample::Index),
    Repeat(prop::sample::Index),
    Swap(prop::sample::Index, prop::sample::Index),
    Bytes([u32; 3]),
}

fn edit() -> impl Strategy<Value = Edit> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        6 => (at(), prop::sample::select(VALUES.to_vec())).prop_map(|(at, value)| Edit::Value(at, value)),
        2 => at().prop_map(Edit::Remove),
        1 => at().prop_map(Edit::Repeat),
        1 => (at(), at()).prop_map(|(one, other)| Edit::Swap(one, other)),
        2 => any::<[u32; 3]>().prop_map(Edit::Bytes),
    ]
}

fn edited(text: &str, edits: &[Edit]) -> Vec<u8> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut bytes = Vec::new();
    for edit in edits {
        if lines.is_empty() {
            break;
        }
        let count = lines.len();
        match edit {
            Edit::Value(at, value) => {
                let said: Vec<usize> = (0..count).filter(|line| lines[*line].contains(" = ")).collect();
                if !said.is_empty() {
                    let line = &mut lines[*at.get(&said)];
                    let name = line.split(" = ").next().unwrap_or_default().to_owned();
                    *line = format!("{name} = {value}");
                }
            }
            Edit::Remove(at) => drop(lines.remove(at.index(count))),
            Edit::Repeat(at) => lines.push(lines[at.index(count)].clone()),
            Edit::Swap(one, other) => lines.swap(one.index(count), other.index(count)),
            Edit::Bytes(damage) => bytes.push(*damage),
        }
    }
    damaged(lines.join("\n").as_bytes(), &bytes)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_spec_is_loaded_or_refused(
        target in prop::sample::select(TARGETS.to_vec()), file in 0usize..3, edits in prop::collection::vec(edit(), 1..4),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let all = files(target);
        for name in &all {
            let to = directory.path().join(name);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            let text = fs::read_to_string(targets().join(name)).unwrap();
            let bytes = if *name == all[file] { edited(&text, &edits) } else { text.into_bytes() };
            fs::write(to, bytes).unwrap();
        }
        let began = Instant::now();
        let loaded = spec::load(&[directory.path().to_owned()], target);
        prop_assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
        if let Err(error) = loaded {
            prop_assert!(!error.to_string().is_empty());
        }
    }
}

#[test]
fn what_has_no_damage_is_loaded() {
    for target in TARGETS {
        spec::load(&[targets()], target).unwrap_or_else(|error| panic!("{error}"));
    }
}
