//! Drafters of blocks: what their configs become, and what is refused by name.
//!
//! Planted, and caught: sliding layers that see the whole block where the config says nothing; a successor's
//! architecture, and a CUDA device, that are not refused.

use monomorph_compiler::import::import_drafter;
use monomorph_compiler::spec::types::{
    BuildOptions, Compute, DFLASH_FILE, DflashLayer, DraftMethod, DraftOption, Target,
};
use monomorph_compiler::{import, spec};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

const BLOCK: DraftOption = DraftOption {
    method: DraftMethod::Dflash { window: None },
    drafts: 0,
    vocabulary: None,
    forced_acceptance: None,
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace").to_owned()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join("tests/fixtures").join(path)).expect("it is committed")
}

fn config() -> Map<String, Value> {
    serde_json::from_str(&read("drafters/dflash-quarters/config.json")).expect("it is an object")
}

/// MODEL.toml and f32.toml of the drafter's model.
fn model() -> (String, String) {
    let imported = import::import(&read("goldens/qwen35-quarters/config.json"), "it", Compute::F32, &seen());
    let imported = imported.unwrap_or_else(|error| panic!("{error}"));
    let quant = imported.quants.iter().find(|(file, _)| file == "f32.toml").expect("it has this spec");
    (imported.model_toml, quant.1.clone())
}

fn seen() -> import::Seen {
    import::Seen::default()
}

fn drafted(config: &Map<String, Value>) -> Result<String, String> {
    let config = Value::Object(config.clone()).to_string();
    import_drafter(&config, "it", &model().0, Compute::F32, &seen()).map_err(|error| error.to_string())
}

/// A targets directory with the model and this DFLASH.toml.
fn load(dflash: &str, hardware: &str, options: Option<DraftOption>) -> Result<Target, String> {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    let directory = targets.path().join("models/it");
    std::fs::create_dir_all(&directory).expect("it is writable");
    let (model, quant) = model();
    for (file, text) in [("MODEL.toml", &*model), ("f32.toml", &quant), (DFLASH_FILE, dflash)] {
        std::fs::write(directory.join(file), text).expect("it is writable");
    }
    let search = [targets.path().to_owned(), root().join("targets")];
    let options = BuildOptions { draft: options, ..BuildOptions::default() };
    spec::load_with(&search, &format!("{hardware}/it/f32"), &options).map_err(|error| error.to_string())
}

#[test]
fn a_published_config_becomes_the_drafter_that_it_says() {
    let text = drafted(&config()).expect("it is a drafter's");
    let target = load(&text, "cpu", Some(BLOCK)).unwrap_or_else(|error| panic!("{error}"));
    let it = target.drafter().expect("it drafts so");
    let slides = DflashLayer { whole: false, window: Some(6) };
    let full = DflashLayer { whole: true, window: None };
    assert_eq!(it.layers, [slides, full, slides]);
    assert_eq!((it.block, it.mask, &it.taps[..], it.width), (6, 41, &[0, 2, 4][..], 26));
    assert_eq!((it.attention.heads, it.attention.kv_heads, it.attention.head_dim), (4, 2, 10));
    assert_eq!(it.names["dflash.layers.{layer}.ffn.gate"].name, "dflash.layers.{layer}.mlp.gate_proj.weight");
    assert_eq!(
        it.names["dflash.layers.{layer}.mixer.norm"].name,
        "dflash.layers.{layer}.input_layernorm.weight"
    );
    // As many drafts as the block has rows for, and not more.
    assert_eq!((target.drafts(), target.build()), (5, "cpu/it/f32+dflash5".to_owned()));
    let window = DraftMethod::Dflash { window: Some(4) };
    let fewer = DraftOption { method: window, drafts: 2, ..BLOCK };
    let target = load(&text, "cpu", Some(fewer)).unwrap_or_else(|error| panic!("{error}"));
    let within = |whole: bool| DflashLayer { whole, window: Some(4) };
    let layers = &target.drafter().expect("it drafts so").layers;
    assert_eq!(layers[..], [within(false), within(true), within(false)]);
    assert_eq!(target.build(), "cpu/it/f32+dflash2-window-4");
    assert!(target.specs.iter().any(|file| file.name.ends_with(DFLASH_FILE)), "{:?}", target.specs);
    // A plain build knows nothing of it.
    let plain = load(&text, "cpu", None).unwrap_or_else(|error| panic!("{error}"));
    assert!(plain.drafter().is_none() && plain.specs.len() + 1 == target.specs.len());
}

#[test]
fn what_is_no_such_drafter_is_refused_by_name() {
    let change = |key: &str, value: Value| {
        let mut config = config();
        match key.split_once('.') {
            Some((outer, key)) => drop(config[outer].as_object_mut().unwrap().insert(key.to_owned(), value)),
            None => drop(config.insert(key.to_owned(), value)),
        }
        drafted(&config).expect_err(key)
    };
    let cases = [
        ("architectures", json!(["DFlash2DraftModel"]), "its convolutions and its selector are not known"),
        ("architectures", json!(["LlamaForCausalLM"]), "only [\"DFlashDraftModel\"] is a DFlash drafter"),
        ("speculators_model_type", json!("dflash"), "an export of the speculators library"),
        ("dflash_config", json!(3), "`target_layer_ids` and `mask_token_id` is wanted"),
        (
            "dflash_config.target_layer_ids",
            json!([1, 5]),
            "ascending layers of the model are wanted, of 0 to 4",
        ),
        ("dflash_config.target_layer_ids", json!([2, 1]), "ascending layers"),
        ("dflash_config.target_layer_ids", json!([]), "ascending layers"),
        ("dflash_config.mask_token_id", json!(43), "0 to 42, ids of the model, are wanted"),
        ("dflash_config.use_swa", json!(true), "`dflash_config.use_swa` = true: not a known key"),
        ("hidden_size", json!(46), "another model's, 45 is the width"),
        ("vocab_size", json!(44), "another model's, 43 is the vocabulary"),
        ("attention_bias", json!(true), "layers of drafters have no biases"),
        ("layer_types", json!(["full_attention"]), "of every layer is wanted"),
        ("layer_types", json!(["linear_attention", "full_attention", "full_attention"]), "of every layer"),
        ("sliding_window", Value::Null, "`sliding_window` is missing"),
        ("block_size", json!(0), "a whole number of at least 1"),
        ("block_size", json!(1), "dflash.block"),
        ("head_dim", Value::Null, "`head_dim` is missing"),
        ("is_causal", json!(1), "`true` or `false` is wanted"),
        ("convolution", json!(4), "`convolution` = 4: not a known key of a DFlash drafter"),
    ];
    for (key, value, said) in cases {
        let error = change(key, value.clone());
        assert!(error.contains(said), "{key} = {value}: {error}");
    }
}

#[test]
fn what_says_of_all_layers_whether_they_are_causal_goes_before_their_types() {
    let layers = |changes: &[(&str, Value)]| {
        let mut config = config();
        for (key, value) in changes {
            match key.split_once('.') {
                Some((outer, key)) => {
                    drop(config[outer].as_object_mut().unwrap().insert(key.to_owned(), value.clone()));
                }
                None => drop(config.insert((*key).to_owned(), value.clone())),
            }
        }
        let text = drafted(&config).expect("it is a drafter's");
        let target = load(&text, "cpu", Some(BLOCK)).unwrap_or_else(|error| panic!("{error}"));
        target
            .drafter()
            .expect("it drafts so")
            .layers
            .iter()
            .map(|it| (it.whole, it.window))
            .collect::<Vec<_>>()
    };
    let of = |slides: bool, full: bool| [(slides, Some(6)), (full, None), (slides, Some(6))];
    assert_eq!(layers(&[]), of(false, true));
    assert_eq!(
        layers(&[("use_sliding_window", json!(false)), ("max_window_layers", json!(0))]),
        of(false, true)
    );
    assert_eq!(layers(&[("dflash_config.causal", json!(false))]), of(true, true));
    assert_eq!(
        layers(&[("dflash_config.causal", json!(false)), ("is_causal", json!(true))]),
        of(false, false)
    );
    assert_eq!(layers(&[("layer_types", Value::Null)]), [(true, None); 3]);
}

#[test]
fn mistakes_in_the_file_are_named() {
    let text = drafted(&config()).expect("it is a drafter's");
    let cases = [
        ("block = 6", "block = 1", "dflash.block"),
        ("mask = 41", "mask = 43", "dflash.mask"),
        ("taps = [0, 2, 4]", "taps = [0, 4, 2]", "`dflash.taps` does not ascend"),
        ("taps = [0, 2, 4]", "taps = [0, 2, 5]", "dflash.taps"),
        ("layers = [\"before_6\"", "layers = [\"befor_6\"", "did you mean \"before_6\"?"),
        (
            "\"whole\", \"before_6\"]",
            "\"before_6\", \"before_6\"]",
            "no layer is of the kind `[dflash.layer.whole]`",
        ),
        ("sees = \"block\"", "sees = \"all\"", "dflash.layer.whole.sees"),
        ("stored = \"bf16\"", "stored = \"q4_1\"", "dflash.stored"),
        ("dims = 10", "dims = 8", "does not turn all 10 dimensions"),
        ("kv_heads = 2\n", "kv_heads = 2\ngate = \"sigmoid\"\n", "gate"),
        ("kv_heads = 2\n", "kv_heads = 2\nwindow = 4\n", "window"),
        ("width = 26", "widht = 26", "did you mean `width`?"),
    ];
    for (from, to, said) in cases {
        assert!(text.contains(from), "{from}");
        let error = load(&text.replacen(from, to, 1), "cpu", None).expect_err(to);
        assert!(error.contains(said) && error.contains(DFLASH_FILE), "{to}: {error}");
    }
}

#[test]
fn builds_that_cannot_draft_so_are_refused_by_name() {
    let text = drafted(&config()).expect("it is a drafter's");
    let windowed =
        |window: usize| DraftOption { method: DraftMethod::Dflash { window: Some(window) }, ..BLOCK };
    let cases = [
        ("h200", BLOCK, "the CUDA backend has no passes of blocks"),
        ("cpu", DraftOption { drafts: 6, ..BLOCK }, "1 to 5 with `--draft dflash`"),
        ("cpu", windowed(0), "`--draft-window` is 0"),
        ("cpu", windowed(513), "`--draft-window` is 513"),
        ("cpu", DraftOption { vocabulary: Some(44), ..BLOCK }, "`--draft-vocabulary` is 44"),
        ("cpu", DraftOption { forced_acceptance: Some(2.0), ..BLOCK }, "`--forced-acceptance` is 2"),
    ];
    for (hardware, option, said) in cases {
        let error = load(&text, hardware, Some(option)).expect_err(said);
        assert!(error.contains(said), "{error}");
    }
    // Of a GGUF file, and without a drafter.
    let options = BuildOptions { draft: Some(BLOCK), ..BuildOptions::default() };
    let error =
        spec::load_with(&[root().join("targets")], "cpu/smollm2-135m/q4_1", &options).expect_err("none");
    let error = error.to_string();
    assert!(error.contains("has no DFLASH.toml") && error.contains("is a GGUF file"), "{error}");
}
