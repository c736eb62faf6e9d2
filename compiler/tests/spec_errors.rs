//! Mistakes planted in sound specs, with the rendered errors as goldens.
//!
//! `bad-specs/base` is a targets directory without a mistake. `bad-specs/<case>.toml` names a target and
//! edits to its files; `bad-specs/<case>.txt` is the loader's error. `MONOMORPH_BLESS=1` rewrites the goldens
//! instead of comparing them.

use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{Knobs, Provenance};
use std::fs;
use std::path::{Path, PathBuf};

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    target: String,
    #[serde(default)]
    edit: Vec<Edit>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Edit {
    file: String,
    replace: String,
    with: String,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad-specs")
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.path() {
            path if path.is_dir() => copy(&path, &to),
            path => assert!(fs::copy(path, to).unwrap() > 0),
        }
    }
}

fn cases() -> Vec<(String, Case)> {
    let mut cases: Vec<_> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            let case = toml::from_str(&fs::read_to_string(&path).unwrap());
            (name.clone(), case.unwrap_or_else(|error| panic!("{name}: {error}")))
        })
        .collect();
    cases.sort_by(|(a, _), (b, _)| a.cmp(b));
    cases
}

/// The base with the edits of a case.
fn planted(name: &str, case: &Case) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    copy(&folder().join("base"), dir.path());
    for Edit { file, replace, with } in &case.edit {
        let path = dir.path().join(file);
        let text = fs::read_to_string(&path).unwrap();
        // An edit that matches nothing, or two places, plants a different mistake than intended.
        assert_eq!(text.matches(replace.as_str()).count(), 1, "{name}: {replace:?} in {file}");
        fs::write(&path, text.replace(replace.as_str(), with)).unwrap();
    }
    dir
}

#[test]
fn the_base_is_sound() {
    for target in ["box/tied/q4_1", "box/open/bf16", "card/open/fp8", "card/tied/q4_1", "card/mixed/bf16"] {
        spec::load(&[folder().join("base")], target).unwrap_or_else(|errors| panic!("{target}:\n{errors}"));
    }
}

#[test]
fn planted_mistakes_are_reported_as_in_the_goldens() {
    let bless = std::env::var_os("MONOMORPH_BLESS").is_some_and(|value| value == "1");
    let mut wrong = Vec::new();
    let cases = cases();
    assert!(cases.len() >= 25, "only {} cases", cases.len());
    for (name, case) in cases {
        let dir = planted(&name, &case);
        let found = match spec::load(&[dir.path().to_owned()], &case.target) {
            Ok(_) => {
                wrong.push(format!("{name}: loaded, its mistake unseen"));
                continue;
            }
            Err(errors) => errors.render(false),
        };
        let golden = folder().join(format!("{name}.txt"));
        if bless {
            fs::write(&golden, found).unwrap();
            continue;
        }
        let expected = fs::read_to_string(&golden).unwrap_or_default();
        if found != expected {
            wrong.push(format!("{name}: expected\n{expected}\nfound\n{found}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_mistake_inside_a_file_has_its_line_and_a_remedy() {
    for (name, case) in cases() {
        let dir = planted(&name, &case);
        let errors = spec::load(&[dir.path().to_owned()], &case.target).expect_err(&name);
        for error in errors.list() {
            assert!(!error.help.is_empty() && !error.message.is_empty(), "{name}: {error:?}");
            let inside = dir.path().join(&error.file).is_file();
            assert_eq!(error.line.is_some(), inside, "{name}: {error:?}");
        }
    }
}

#[test]
fn no_cut_of_a_spec_panics() {
    // A truncated file is refused or, rarely, still sound; neither may panic.
    let dir = tempfile::tempdir().unwrap();
    copy(&folder().join("base"), dir.path());
    for (target, file) in [
        ("box/tied/q4_1", "hardware/box/HARDWARE.toml"),
        ("box/tied/q4_1", "models/tied/MODEL.toml"),
        ("box/tied/q4_1", "models/tied/q4_1.toml"),
        ("card/open/fp8", "hardware/card/HARDWARE.toml"),
        ("card/open/fp8", "tuning/card/open/fp8.toml"),
        ("card/mixed/bf16", "models/mixed/VISION.toml"),
    ] {
        let path = dir.path().join(file);
        let text = fs::read_to_string(&path).unwrap();
        // Most of a tower's file is names, a line like another.
        let step = if text.len() > 2000 { 7 } else { 1 };
        for end in (0..text.len()).step_by(step) {
            fs::write(&path, &text[..end]).unwrap();
            if let Err(errors) = spec::load(&[dir.path().to_owned()], target) {
                assert!(!errors.render(false).is_empty());
            }
        }
        fs::write(&path, &text).unwrap();
        spec::load(&[dir.path().to_owned()], target).unwrap();
    }
}

#[test]
fn tuning_files_stand_over_the_defaults() {
    let target = spec::load(&[folder().join("base")], "card/open/fp8").unwrap();
    let tuning = target.tuning.unwrap();
    let settings = |phase, bucket| {
        let Knobs { stream_rows, blocks_per_multiprocessor, ring_stages, stage_bytes, gemm_rows, .. } =
            tuning.of(phase, bucket);
        [stream_rows, blocks_per_multiprocessor, ring_stages, stage_bytes, gemm_rows]
    };
    assert_eq!(settings("attention_o", Some(1)), [8, 2, 3, 16_384, 256]);
    assert_eq!(settings("ffn_down", Some(1)), [8, 1, 4, 8192, 256]);
    assert_eq!(settings("ffn_down", Some(2)), [8, 2, 4, 16_384, 256]);
    assert_eq!(settings("head", None), [8, 2, 3, 16_384, 128]);
    assert_eq!(settings("head", Some(1)), [8, 2, 3, 16_384, 256]);
    let measured = Provenance::Measured {
        file: "tuning/card/open/fp8.toml".into(),
        card: "a card".to_owned(),
        date: "2026-01-31".to_owned(),
        command: "a command".to_owned(),
    };
    assert_eq!(tuning.provenance, measured);
    assert_eq!(tuning.unknown_phase(["ffn_down", "head"].into_iter()), None);
    let wrong = tuning.unknown_phase(["ffn_dawn", "head"].into_iter()).unwrap();
    assert_eq!(
        wrong,
        "tuning/card/open/fp8.toml:8: the plan has no phase `ffn_down`; did you mean `ffn_dawn`?"
    );
}
