//! Checks that a target can take images as a build asks.

use super::VISION_FILE;
use super::diagnostic::{Diagnostic, Diagnostics, Sink};
use super::memory::{kv_block_bytes, weight_bytes};
use super::types::{Container, Target};
use std::ops::RangeInclusive;
use std::path::Path;

/// Patches that a build may have an image take: 4,096 x 4,096 pixels in patches of 16 are the most that the
/// processors of shipped models leave.
const IMAGE_PATCHES: RangeInclusive<usize> = 64..=65_536;

/// `target`, built to take images of up to so many patches, or of as many as its backend takes by default.
///
/// # Errors
/// When an image cannot have so many patches, nothing describes a vision tower of its model, its checkpoint
/// cannot hold one, or the tower does not fit into memory as well.
pub fn with_vision(mut target: Target, patches: Option<usize>) -> Result<Target, Diagnostics> {
    let sink = Sink::default();
    let (model, quant) = (&target.model, &target.quant);
    let directory = Path::new("models").join(&model.name);
    let refuse = |file: &Path, message: String, help: &str| {
        sink.push(Diagnostic::outside(file, message, help.to_owned()));
    };
    if let Some(patches) = patches.filter(|patches| !IMAGE_PATCHES.contains(patches)) {
        let (least, most) = (IMAGE_PATCHES.start(), IMAGE_PATCHES.end());
        let help = format!("{least} to {most} patches of an image can be taken");
        refuse(Path::new("--image-patches"), format!("images of {patches} patches"), &help);
    }
    let Some(vision) = &target.tower else {
        let message = format!("{} has no {VISION_FILE}, and `--vision on` was given", directory.display());
        refuse(&directory, message, "build it without: that file describes a tower, if the model has one");
        return sink.finish(None);
    };
    if quant.checkpoint.container == Container::Gguf {
        let file = directory.join(format!("{}.toml", quant.name));
        let message =
            format!("the checkpoint of {} is a GGUF file, and `--vision on` was given", target.name());
        refuse(&file, message, "a tower is read from safetensors: take a checkpoint of those");
    }
    let of_tower = vision.tensors(model.hidden).into_iter().map(|tensor| {
        let elements = tensor.rows * tensor.columns.unwrap_or(1) * tensor.instances();
        (elements * vision.stored.block_bytes()) as u128
    });
    let needed = weight_bytes(model, quant, false)
        + kv_block_bytes(model, quant, &target.hardware.kind, false)
        + of_tower.sum::<u128>();
    if needed.div_ceil(target.ranks as u128) > u128::from(target.hardware.memory_bytes) {
        let message = format!("{} does not fit the memory with its vision tower", target.name());
        let help =
            format!("it needs {needed} bytes at least, and there are {}", target.hardware.memory_bytes);
        refuse(Path::new("--vision"), message, &help);
    }
    target.specs.push(vision.file.clone());
    (target.vision, target.image_patches) = (true, patches);
    sink.finish(Some(target))
}

/// A target without its tower that is asked for images of so many patches.
///
/// # Errors
/// Always.
pub(super) fn without_vision(_: Target, patches: usize) -> Result<Target, Diagnostics> {
    let sink = Sink::default();
    let message = format!("images of {patches} patches, and this build takes no images");
    let option = Path::new("--image-patches");
    sink.push(Diagnostic::outside(option, message, "add `--vision on`".to_owned()));
    sink.finish(None)
}
