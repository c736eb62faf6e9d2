//! Checkpoints of goldens with a tower that a server can be asked about images with: tests make up tokenizer,
//! chat template, and what the model's processor does.

use super::imported;
use monomorph_compiler::spec::types::{Target, Vision, VisionFamily};
use monomorph_vision::{Family, Levels, VisionSpec};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;

/// The character whose token is 0.
const FIRST: char = '!';

/// What transformers' processor of such a model does.
///
/// # Panics
/// If the tower lacks an id that its family has.
#[allow(clippy::excessive_precision, reason = "as published")]
pub fn processor(vision: &Vision) -> VisionSpec {
    let image = vision.tokens.image;
    let (levels, family) = match vision.family {
        VisionFamily::Qwen { .. } => (
            Levels::Normalised { mean: [0.5; 3], deviation: [0.5; 3] },
            Family::Qwen { least_pixels: 65_536, most_pixels: 16_777_216, most_ratio: 200, frames: 2, image },
        ),
        VisionFamily::Gemma { .. } => (
            Levels::Signed,
            Family::Gemma {
                tokens: 280,
                budgets: &[70, 140, 280, 560, 1120],
                begin: vision.tokens.start.expect("an id"),
                image,
                end: vision.tokens.end.expect("an id"),
            },
        ),
        VisionFamily::Pixtral { .. } => (
            Levels::Normalised {
                mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
                deviation: [0.268_629_54, 0.261_302_58, 0.275_777_11],
            },
            Family::Pixtral {
                longest: 1540,
                image,
                row_end: vision.tokens.row_end.expect("an id"),
                end: vision.tokens.end.expect("an id"),
            },
        ),
    };
    VisionSpec { patch: vision.patch as u32, merge: vision.merge as u32, levels, family }
}

/// Copies a golden's weights, with a tokenizer of one character a token, of longer words behind the
/// printable ones, and of names where the ids are those of images.
///
/// # Panics
/// If the target has no tower, or the directory is not writable.
pub fn write(golden: &str, target: &Target, directory: &Path) {
    let ids = target.tower.as_ref().expect("it has a tower").tokens;
    let named = [(Some(ids.image), "image"), (ids.start, "start"), (ids.end, "end"), (ids.row_end, "row")];
    let named: Vec<(u32, String)> =
        named.into_iter().filter_map(|(id, name)| Some((id?, format!("<|{name}|>")))).collect();
    let text = |id: u32| match char::from_u32(u32::from(FIRST) + id).filter(|it| *it <= '~') {
        Some(character) => character.to_string(),
        None => format!("word{id}"),
    };
    let token = |id: u32| match named.iter().find(|(other, _)| *other == id) {
        Some((_, name)) => name.clone(),
        None => text(id),
    };
    let vocabulary: Map<String, Value> =
        (0..target.model.vocabulary as u32).map(|id| (token(id), id.into())).collect();
    let added = named.iter().map(|(id, name)| {
        json!({
            "id": id, "content": name, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false,
        })
    });
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null, "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary, "merges": [],
        },
    });
    let image: String =
        placeholder(target.tower.as_ref().expect("it has one")).into_iter().map(token).collect();
    let template = format!(
        "{{%- for message in messages %}}{{%- if message.content is string %}}{{{{ message.content }}}}{{%- else %}}\
         {{%- for part in message.content %}}\
         {{%- if part.type == 'image' %}}{{{{ '{image}' }}}}{{%- else %}}{{{{ part.text }}}}{{%- endif %}}\
         {{%- endfor %}}{{%- endif %}}{{%- endfor %}}"
    );
    let config = json!({"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template});
    let write = |file: &str, text: String| fs::write(directory.join(file), text).expect("it is writable");
    write("tokenizer.json", tokenizer.to_string());
    write("tokenizer_config.json", config.to_string());
    let file = "model.safetensors";
    fs::copy(imported::directory(golden).join("f32").join(file), directory.join(file))
        .expect("it is writable");
}

/// The tokens that such a checkpoint's tokenizer makes of a text of printable characters.
pub fn tokens(text: &str) -> impl Iterator<Item = u32> {
    text.chars().map(|character| u32::from(character) - u32::from(FIRST))
}

/// The tokens that its template writes for an image: of Qwen with what stands around it, which of the others
/// belongs to the image.
///
/// # Panics
/// If the tower lacks an id that its family has.
pub fn placeholder(vision: &Vision) -> Vec<u32> {
    let ids = vision.tokens;
    match vision.family {
        VisionFamily::Qwen { .. } => vec![ids.start.expect("an id"), ids.image, ids.end.expect("an id")],
        VisionFamily::Gemma { .. } | VisionFamily::Pixtral { .. } => vec![ids.image],
    }
}
