//! Checks that keys and values can be kept as a build asks.

use super::diagnostic::{Diagnostic, Diagnostics, Sink};
use super::fit::{KvMisfit, kv_misfit};
use super::types::Target;
use monomorph_formats::cached::KvFormats;
use std::path::Path;

/// `target`, built to keep keys and values in these formats instead of the quant spec's. Its canaries go: the
/// interpreter computed their answers with the spec's formats.
///
/// # Errors
/// When the model's heads cannot be kept so.
pub fn with_kv(mut target: Target, formats: KvFormats) -> Result<Target, Diagnostics> {
    let sink = Sink::default();
    if let Some(KvMisfit { message, help, .. }) =
        kv_misfit(formats, target.quant.kv_scales.is_some(), &target.model)
    {
        sink.push(Diagnostic::outside(Path::new("--kv"), message, help));
    }
    if formats != target.quant.kv_formats {
        target.quant.checkpoint.canaries.clear();
    }
    target.quant.kv_formats = formats;
    target.kv = Some(formats);
    sink.finish(Some(target))
}
