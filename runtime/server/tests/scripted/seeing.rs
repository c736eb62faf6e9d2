//! The scripted model with a vision tower. `[[seen]]` answers with the prompt as the model has it: its text,
//! with each image as the number of its rows and a hash of their pixels and positions; and behind it a hash
//! of all tokens and positions.

use super::{Bytes, Loaded, Reply, checkpoint_of};
use monomorph_engine::scripted::images::id_of;
use monomorph_engine::scripted::{Pipelined, Shape};
use monomorph_model::{ImageTokens, ModelSpec, VisionFamily, VisionSpec};
use std::path::Path;

/// Run as this, a binary has the model.
pub const NAME: &str = "echo-sees";

/// Control tokens around images, from id 259 on, and the one in place of one.
const CONTROLS: [&str; 3] = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>"];
/// Id of `<|image_pad|>`.
pub const IMAGE: u32 = 261;

/// The dimensions of [`Sees`].
pub struct Seeing;

impl Shape for Seeing {
    const SPEC: &'static ModelSpec = &ModelSpec {
        target: "cpu/sees/none",
        model: "sees",
        specs: &[],
        commit: None,
        vocabulary: 259 + CONTROLS.len(),
        context: 8192,
        step_tokens: 512,
        ..*Bytes::SPEC
    };
    const VISION: Option<VisionSpec> = Some(VisionSpec {
        family: VisionFamily::Qwen,
        patch: 2,
        frames: 2,
        merge: 2,
        values: 24,
        taps: 0,
        grid_positions: true,
        whole_spans: false,
        tokens: ImageTokens { image: IMAGE, start: Some(259), end: Some(260), row_end: None },
        most_patches: 256,
        pass_images: 2,
        layers: 2,
        step_patches: 64,
        slots: 3,
    });
}

/// The model.
pub type Sees = Loaded<Pipelined<Seeing, 2>>;

/// Whether a row of an image stands at a position of the model's memory.
fn is_row(cell: u32) -> bool {
    cell >> 31 == 1
}

/// What a prompt is to the model: its text, and what it sees.
pub fn seen(prompt: &[u32]) -> Reply {
    let mut said = Vec::new();
    for run in prompt.chunk_by(|a, b| is_row(*a) == is_row(*b)) {
        if is_row(run[0]) {
            said.extend(format!("<{} {:08x}>", run.len(), hash(run)).bytes());
        } else {
            said.extend(run.iter().filter_map(|cell| u8::try_from(id_of(*cell)).ok()));
        }
    }
    said.extend(format!("= {:08x}", hash(prompt)).bytes());
    Reply::Text(said)
}

/// A hash of what positions of the model's memory hold.
pub fn hash(cells: &[u32]) -> u32 {
    cells.iter().fold(0x811C_9DC5, |hash, cell| (hash ^ cell).wrapping_mul(0x0100_0193))
}

/// Writes a checkpoint directory whose template writes images where they stand among texts.
pub fn write_seeing_checkpoint(directory: &Path) -> std::io::Result<()> {
    checkpoint_of(directory, &CONTROLS, TEMPLATE)
}

const TEMPLATE: &str = r"
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' }}
{%- if message.content is string %}{{ message.content }}
{%- else %}
{%- for part in message.content %}
{%- if part.type == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- else %}{{ part.text }}{% endif %}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
