//! The files beside the weights: config.json, which records the quantisation, and the tokenizer's files.

use super::jobs::Job;
use monomorph_formats::{FP8_BLOCK, NVFP4_BLOCK, ScaleForm};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::Path;

/// The config.json of the new checkpoint, from the old one's at `path`; `None` where there is none.
///
/// # Errors
/// When the old one is unreadable or already quantised, or when no release has a format like the new one.
pub fn config(jobs: &[Job], path: Option<&Path>) -> Result<Option<String>, String> {
    let quantisation = quantisation(jobs)?;
    let Some(path) = path else { return Ok(None) };
    let fault = |what: String| format!("{}: {what}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| fault(error.to_string()))?;
    let mut config: Map<String, Value> =
        serde_json::from_str(&text).map_err(|error| fault(format!("is not a JSON object: {error}")))?;
    if config.contains_key("quantization_config") {
        return Err(fault("has a `quantization_config`: these weights are quantised already".to_owned()));
    }
    config.extend(quantisation.map(|it| ("quantization_config".to_owned(), it)));
    Ok(Some(format!("{:#}\n", Value::Object(config))))
}

/// `quantization_config` as releases in that format have it; `None` if nothing is quantised. Activations are
/// not quantised: there are no scales for them.
fn quantisation(jobs: &[Job]) -> Result<Option<Value>, String> {
    let form = |job: &Job| job.scales.as_ref().map(|scales| scales.form);
    let forms: BTreeSet<ScaleForm> = jobs.iter().filter_map(form).collect();
    let left: Vec<&str> =
        jobs.iter().filter(|job| job.linear && job.scales.is_none()).map(Job::module).collect();
    let weights = json!({ "num_bits": 4, "type": "float", "group_size": NVFP4_BLOCK, "dynamic": false });
    let producer = json!({ "name": "monomorph", "version": env!("CARGO_PKG_VERSION") });
    let config = match forms.into_iter().collect::<Vec<_>>()[..] {
        [] => return Ok(None),
        [ScaleForm::Tensor] => json!({
            "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "modules_to_not_convert": left,
        }),
        [ScaleForm::Block128] => json!({
            "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
            "weight_block_size": [FP8_BLOCK, FP8_BLOCK], "modules_to_not_convert": left,
        }),
        [ScaleForm::Modelopt] => json!({
            "quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "producer": producer,
            "config_groups": { "group_0": { "weights": weights, "targets": ["Linear"] } }, "ignore": left,
        }),
        [ScaleForm::CompressedTensors] => {
            let mut weights = weights;
            weights["strategy"] = json!("tensor_group");
            weights["symmetric"] = json!(true);
            json!({
                "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
                "quantization_status": "compressed",
                "config_groups": {
                    "group_0": { "weights": weights, "input_activations": null, "targets": ["Linear"] },
                },
                "ignore": left,
            })
        }
        [ScaleForm::Tensor, ScaleForm::Modelopt] => {
            let layers = jobs.iter().filter_map(|job| {
                let how = match form(job)? {
                    ScaleForm::Tensor => json!({ "quant_algo": "FP8" }),
                    _ => json!({ "quant_algo": "W4A16_NVFP4", "group_size": NVFP4_BLOCK }),
                };
                Some((job.module().to_owned(), how))
            });
            json!({
                "quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "producer": producer,
                "quantized_layers": layers.collect::<Map<_, _>>(), "ignore": left,
            })
        }
        ref several => {
            let names: Vec<&str> = several.iter().map(|form| form.name()).collect();
            return Err(format!(
                "no config.json says that a checkpoint has scales of {}",
                names.join(" and ")
            ));
        }
    };
    Ok(Some(config))
}

/// Copies the files beside the weights other than weights, their index and configs; returns their names.
pub fn copy_side_files(from: Option<&Path>, to: &Path) -> Result<Vec<String>, String> {
    let Some(from) = from else { return Ok(Vec::new()) };
    let fault = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(from).map_err(|error| fault(from, error))? {
        let path = entry.map_err(|error| fault(from, error))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let text = [".json", ".jinja", ".txt", ".model"].iter().any(|end| name.ends_with(end));
        let ours = name == "config.json" || name.ends_with(".index.json");
        if path.is_file() && !ours && (text || name.starts_with("LICENSE")) {
            std::fs::copy(&path, to.join(name)).map_err(|error| fault(&path, error))?;
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}
