//! Checkpoint formats of the hybrid and mixture-of-experts families, from configs and from files.

mod families;

use families::{loaded, moe_text, next, place, read, target, text, wrapped};
use monomorph_compiler::import::Seen;
use monomorph_compiler::spec;
use monomorph_compiler::spec::types::*;
use monomorph_formats::Format;
use monomorph_weights::Checkpoint;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Formats by class, and exceptions.
fn stored(target: &Target) -> BTreeMap<String, &'static str> {
    let stored = &target.quant.stored;
    let classes = stored.classes.iter().map(|(class, format)| (class.name().to_owned(), format.name()));
    classes.chain(stored.tensors.iter().map(|(name, format)| (name.clone(), format.name()))).collect()
}

fn expected(formats: &[(&str, &'static str)]) -> BTreeMap<String, &'static str> {
    formats.iter().map(|(name, format)| ((*name).to_owned(), *format)).collect()
}

#[test]
fn quantised_releases_come_in_their_forms() {
    // Qwen's block scales: every size is a multiple of 128.
    let wide = json!({ "hidden_size": 128, "head_dim": 128, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "moe_intermediate_size": 128, "shared_expert_intermediate_size": 128 });
    let kept: Vec<String> =
        ["linear_attn.in_proj_a", "linear_attn.in_proj_b", "mlp.gate", "mlp.shared_expert_gate"]
            .iter()
            .flat_map(|module| {
                (0..8).map(move |layer| format!("model.language_model.layers.{layer}.{module}"))
            })
            .chain(
                [
                    "lm_head",
                    "model.visual",
                    "mtp.fc",
                    "mtp.layers.0.mlp.gate",
                    "mtp.layers.0.mlp.shared_expert_gate",
                ]
                .map(str::to_owned),
            )
            .collect();
    let fp8 = json!({ "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
        "weight_block_size": [128, 128], "modules_to_not_convert": kept });
    let it = target(&wrapped(&moe_text(wide), json!({ "quantization_config": fp8 })), "fp8");
    let codes = "fp8-e4m3";
    let formats = [
        ("embedding", "bf16"),
        ("attention", codes),
        ("delta-net", codes),
        ("delta-gates", "bf16"),
        ("router", "bf16"),
        ("experts", codes),
        ("shared", codes),
        ("head", "bf16"),
        ("draft", codes),
        ("draft.fc", "bf16"),
        ("norm", "bf16"),
    ];
    assert_eq!(stored(&it), expected(&formats));
    let scales = ClassScales { form: ScaleForm::Block128, format: Format::Bf16 };
    assert_eq!(it.quant.scales.classes[&TensorClass::Experts], scales);
    let expert = "model.language_model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight".to_owned();
    assert_eq!(place(&it, "layers.{layer}.ffn.experts.{expert}.gate"), (expert, None), "not stacked");

    // NVIDIA's Next: single tensors differ from their class.
    let modelopt = json!({ "quant_method": "modelopt", "quant_algo": "NVFP4", "producer": {}, "ignore": ["lm_head",
        "*.q_proj", "*.k_proj", "*.v_proj", "*.in_proj_qkvz", "*.in_proj_ba", "*.mlp.gate", "*.shared_expert_gate",
        "mtp*"] });
    let it = target(&next(json!({ "quantization_config": modelopt })), "nvfp4");
    let formats = [
        ("embedding", "bf16"),
        ("attention", "bf16"),
        ("delta-net", "bf16"),
        ("delta-gates", "bf16"),
        ("router", "bf16"),
        ("experts", "nvfp4"),
        ("shared", "nvfp4"),
        ("head", "bf16"),
        ("norm", "bf16"),
        ("layers.{layer}.attention.o", "nvfp4"),
        ("layers.{layer}.delta.o", "nvfp4"),
    ];
    assert_eq!(stored(&it), expected(&formats));
    let unused = &it.quant.checkpoint.unused;
    for name in ["mlp.experts.{expert}.up_proj.input_scale", "self_attn.k_proj.k_scale"] {
        assert!(unused.contains(&format!("model.layers.{{layer}}.{name}")), "{unused:?}");
    }

    // Two code formats, by module.
    let mut layers = serde_json::Map::new();
    for layer in 0..8 {
        let prefix = format!("model.language_model.layers.{layer}");
        layers.insert(
            format!("{prefix}.mlp.experts"),
            json!({ "quant_algo": "W4A16_NVFP4", "group_size": 16 }),
        );
        for module in ["linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.out_proj"] {
            layers.insert(format!("{prefix}.{module}"), json!({ "quant_algo": "FP8" }));
        }
    }
    let mixed =
        json!({ "quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers });
    let it = target(&wrapped(&moe_text(json!({})), json!({ "quantization_config": mixed })), "fp8");
    assert_eq!(
        (stored(&it)["delta-net"], stored(&it)["experts"], stored(&it)["shared"]),
        (codes, "nvfp4", "bf16")
    );
    assert_eq!(it.quant.scales.classes[&TensorClass::DeltaNet].form, ScaleForm::Tensor);

    // compressed-tensors, and its names.
    let group = json!({ "group_0": { "targets": ["Linear"],
        "weights": { "num_bits": 4, "type": "float", "group_size": 16 } } });
    let packed = json!({ "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
        "config_groups": group, "ignore": ["lm_head", "re:.*linear_attn.*", "re:visual.*"] });
    let it = target(&wrapped(&text(json!({})), json!({ "quantization_config": packed })), "nvfp4");
    assert_eq!(
        (stored(&it)["delta-net"], stored(&it)["attention"], stored(&it)["ffn"]),
        ("bf16", "nvfp4", "nvfp4")
    );
    let packed = "model.language_model.layers.{layer}.self_attn.q_proj.weight_packed".to_owned();
    assert_eq!(place(&it, "layers.{layer}.attention.gate"), (packed, Some([32, 64, 64])));
    assert_eq!(it.quant.scales.classes[&TensorClass::Ffn].form, ScaleForm::CompressedTensors);
}

/// A safetensors file of zeros that holds these tensors.
fn file_of(path: &Path, tensors: &BTreeMap<String, (&'static str, Vec<usize>)>) {
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, (dtype, shape)) in tensors {
        let bytes = shape.iter().product::<usize>() * if *dtype == "F32" { 4 } else { 2 };
        header.insert(
            name.clone(),
            json!({ "dtype": dtype, "shape": shape, "data_offsets": [end, end + bytes] }),
        );
        end += bytes;
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + end, 0);
    fs::write(path, file).unwrap();
}

/// Names and shapes of the tensors in a target's checkpoint, and their formats.
fn tensors_of(target: &Target) -> BTreeMap<String, (Format, Vec<usize>)> {
    let mut tensors = BTreeMap::new();
    for decl in spec::stored_tensors(&target.model, &target.quant) {
        let file = &target.quant.checkpoint.names[&decl.base()];
        let stored = target.quant.stored.of(decl.class, &decl.name).expect("the loader checked");
        let experts = if file.name.contains("{expert}") { decl.experts.unwrap() } else { 1 };
        for layer in decl.layers.clone().unwrap_or(vec![0]) {
            for expert in 0..experts {
                let name = file.name.replace("{layer}", &layer.to_string());
                let name = name.replace("{expert}", &expert.to_string());
                tensors.insert(name, (stored, decl.file_shape(file)));
            }
        }
    }
    tensors
}

#[test]
fn goldens_hold_what_their_imports_say() {
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/goldens");
    let mut imported = 0;
    for golden in fs::read_dir(goldens).unwrap().map(|it| it.unwrap().path()) {
        let config: Value = serde_json::from_slice(&fs::read(golden.join("config.json")).unwrap()).unwrap();
        for quant in ["f32", "bf16"] {
            let (files, name) = (golden.join(quant), golden.join(quant).display().to_string());
            let seen = Seen::read(&files).unwrap();
            let target = loaded(&config, quant, &seen);
            let expected = tensors_of(&target);
            let checkpoint = Checkpoint::open(&files).unwrap();
            for (tensor, (format, shape)) in &expected {
                checkpoint.expect(tensor, shape, *format).unwrap_or_else(|error| panic!("{name}: {error}"));
            }
            let towers = || target.quant.checkpoint.unused.iter().filter_map(|it| it.strip_suffix('*'));
            for surplus in checkpoint.tensors().map(|it| it.name).filter(|it| !expected.contains_key(*it)) {
                assert!(towers().any(|tower| surplus.starts_with(tower)), "{name}: {surplus}");
            }
            imported += 1;
        }
    }
    assert!(imported >= 20, "{imported} imported");
}

#[test]
fn the_checkpoint_itself_says_what_it_is() {
    let config = moe_text(json!({}));
    let stacked = target(&config, "bf16");
    let gate = ("model.layers.{layer}.mlp.experts.gate_up_proj".to_owned(), Some([0, 32, 64]));
    assert_eq!(place(&stacked, "layers.{layer}.ffn.experts.{expert}.gate"), gate);
    let down = ("model.layers.{layer}.mlp.experts.down_proj".to_owned(), Some([0, 64, 64]));
    assert_eq!(place(&stacked, "layers.{layer}.ffn.experts.{expert}.down"), down);

    // The index alone gives names.
    let dir = tempfile::tempdir().unwrap();
    let one = "model.layers.0.mlp.experts.0.gate_proj.weight";
    let index = json!({ "metadata": {}, "weight_map": { one: "model-00001-of-00002.safetensors" } });
    fs::write(dir.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    let seen = Seen::read(dir.path()).unwrap();
    assert_eq!(read(&config, &seen).unwrap().quants.len(), 2);
    let single = loaded(&config, "bf16", &seen);
    let gate = "model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight".to_owned();
    assert_eq!(place(&single, "layers.{layer}.ffn.experts.{expert}.gate"), (gate, None));

    // Files give formats too: vectors in f32, the same in every layer.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let mut tensors: Tensors =
        tensors_of(&stacked).into_iter().map(|(name, (_, shape))| (name, ("BF16", shape))).collect();
    let decays: Vec<String> = tensors.keys().filter(|name| name.ends_with("A_log")).cloned().collect();
    assert_eq!(decays.len(), 6);
    for name in &decays {
        tensors.get_mut(name).unwrap().0 = "F32";
    }
    file_of(&path, &tensors);
    let seen = Seen::read(dir.path()).unwrap();
    let quants = read(&config, &seen).unwrap().quants;
    assert_eq!(quants.iter().map(|(file, _)| file.as_str()).collect::<Vec<_>>(), ["bf16.toml"]);
    let exceptions = loaded(&config, "bf16", &seen).quant.stored.tensors;
    assert_eq!(exceptions, [("layers.{layer}.delta.a_log".to_owned(), Format::F32)].into());

    let differs = with_one(&tensors, &decays[2], Some("BF16"));
    file_of(&path, &differs);
    let seen = Seen::read(dir.path()).unwrap();
    let exceptions = loaded(&config, "bf16", &seen).quant.stored.tensors;
    assert_eq!(exceptions["layers.{2}.delta.a_log"], Format::Bf16);

    let problem = |tensors: &BTreeMap<String, _>| {
        file_of(&path, tensors);
        let problems = read(&config, &Seen::read(dir.path()).unwrap()).expect_err("refused").problems;
        let [problem] = &problems[..] else { panic!("{problems:?}") };
        problem.clone()
    };
    let missing = with_one(&tensors, "model.norm.weight", None);
    assert_eq!(problem(&missing), "the checkpoint has no \"model.norm.weight\"");
}

type Tensors = BTreeMap<String, (&'static str, Vec<usize>)>;

/// The same with one tensor in another dtype, or without it.
fn with_one(tensors: &Tensors, name: &str, dtype: Option<&'static str>) -> Tensors {
    let mut tensors = tensors.clone();
    let (_, shape) = tensors.remove(name).expect("it is there");
    if let Some(dtype) = dtype {
        tensors.insert(name.to_owned(), (dtype, shape));
    }
    tensors
}

#[test]
fn static_scales_of_keys_and_values_are_found_in_the_forms_of_tools() {
    let config = moe_text(json!({}));
    let plain = target(&config, "bf16");
    assert_eq!(plain.quant.kv_scales, None);
    let tensors: Tensors =
        tensors_of(&plain).into_iter().map(|(name, (_, shape))| (name, ("BF16", shape))).collect();
    let dir = tempfile::tempdir().unwrap();
    for [keys, values] in [
        ["k_proj.k_scale", "v_proj.v_scale"],
        ["k_scale", "v_scale"],
        ["attn.k_scale", "attn.v_scale"],
        ["kv_scale", "kv_scale"],
    ] {
        let mut scaled = tensors.clone();
        for end in [keys, values] {
            scaled.insert(format!("model.layers.3.self_attn.{end}"), ("F32", vec![1]));
        }
        file_of(&dir.path().join("model.safetensors"), &scaled);
        let it = loaded(&config, "bf16", &Seen::read(dir.path()).unwrap());
        let name = |end: &str| format!("model.layers.{{layer}}.self_attn.{end}");
        assert_eq!(it.quant.kv_scales, Some(KvScaleNames { keys: name(keys), values: name(values) }));
        // Its keys and values are floats as it stands.
        assert_eq!(it.quant.fp8_scales(), None);
    }
}
