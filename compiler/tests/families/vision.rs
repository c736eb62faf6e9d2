//! Vision towers in multimodal configs, and what of them is left out.

use crate::families::{read, text, with, wrapped};
use monomorph_compiler::import::{Imported, Seen};
use serde_json::{Value, json};
use std::fs;

fn tower(changes: Value) -> Value {
    let base = json!({
        "deepstack_visual_indexes": [], "depth": 3, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 72,
        "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 100, "model_type": "qwen3_5",
        "num_heads": 2, "num_position_embeddings": 49, "out_hidden_size": 64, "patch_size": 4,
        "spatial_merge_size": 2, "temporal_patch_size": 2
    });
    with(base, changes)
}

fn imported(tower: &Value, seen: &Seen) -> Imported {
    let config = wrapped(&text(json!({})), json!({ "vision_config": tower }));
    read(&config, seen).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_tower_is_drafted_beside_the_text_part() {
    let imported = imported(&tower(json!({})), &Seen::default());
    let vision = imported.vision_toml.unwrap();
    for line in [
        "family = \"qwen\"",
        "positions = 7 # entries of a side of the table, which is resampled",
        "mrope = [2, 1, 1] # frequencies of the text that turn by time, height and width",
        "tokens = { image = 120, start = 123, end = 122 }",
        "stored = \"bf16\"",
        "compute = \"f16\"",
        "\"vision.patch\" = \"model.visual.patch_embed.proj.weight\"",
        "\"vision.layers.{layer}.attention.k.bias\" = { tensor = \"model.visual.blocks.{layer}.attn.qkv.bias\", \
         rows = [72, 144], of = 216 }",
    ] {
        assert!(vision.lines().any(|it| it == line), "{line:?}:\n{vision}");
    }
    assert!(!vision.contains("deepstack"), "{vision}");
    let note = "# The vision tower stands in VISION.toml: `--vision on` builds it.";
    assert!(imported.model_toml.lines().any(|line| line == note), "{}", imported.model_toml);
}

#[test]
fn a_tower_that_is_not_known_is_left_out_and_says_why() {
    for (changes, why) in [
        (json!({ "hidden_act": "silu" }), "`vision_config.hidden_act` = \"silu\": only tanh GELU is known"),
        (json!({ "window_size": 112 }), "`vision_config.window_size` = 112: not a known key"),
        (
            json!({ "temporal_patch_size": 1 }),
            "`vision_config.temporal_patch_size` = 1: a patch has two frames",
        ),
        (
            json!({ "out_hidden_size": 63 }),
            "`vision_config.out_hidden_size` is 63, and the text model is 64 wide",
        ),
        (json!({ "num_position_embeddings": 48 }), "is 48: the table of positions is a square"),
        (json!({ "num_heads": 4 }), "`vision.hidden` = 72 makes no 4 heads of whole pairs"),
        (json!({ "deepstack_visual_indexes": [1, 0] }), "`vision.deepstack` does not ascend"),
    ] {
        let imported = imported(&tower(changes), &Seen::default());
        assert_eq!(imported.vision_toml, None, "{why}");
        let note =
            imported.model_toml.lines().find(|line| line.starts_with("# The vision tower is left out: "));
        assert!(note.is_some_and(|note| note.contains(why)), "{why}: {}", imported.model_toml);
    }
}

#[test]
fn a_tower_that_the_checkpoint_lacks_is_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let index =
        json!({ "weight_map": { "model.language_model.norm.weight": "model-00001-of-00001.safetensors" } });
    fs::write(directory.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    let seen = Seen::read(directory.path()).unwrap();
    let imported = imported(&tower(json!({})), &seen);
    assert_eq!(imported.vision_toml, None);
    let note =
        "# The vision tower is left out: the checkpoint has no \"model.visual.patch_embed.proj.weight\".";
    assert!(imported.model_toml.lines().any(|line| line == note), "{}", imported.model_toml);
}
