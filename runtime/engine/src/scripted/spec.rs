//! Specifications of scripted models.

use monomorph_formats::Format;
use monomorph_formats::cached::{Cached, KvFormats};
use monomorph_model::{
    BatchInvariantSpec, ClassFormat, DraftSpec, Drafter, Figures, HardwareSpec, ImageTokens, ModelSpec,
    Protocol, SamplingPreset, SlidingSpec, VisionFamily, VisionSpec,
};
use std::marker::PhantomData;

/// The dimensions of a scripted model: a test that needs others than [`Small`]'s brings its own.
pub trait Shape: Send + 'static {
    /// What `Model::SPEC` will be.
    const SPEC: &'static ModelSpec;
    /// What `Model::STEPS_IN_FLIGHT` will be.
    const STEPS_IN_FLIGHT: usize = 1;
    /// What `Model::SLIDING` will be.
    const SLIDING: Option<SlidingSpec> = None;
    /// What `Model::VISION` will be.
    const VISION: Option<VisionSpec> = None;
}

/// Another shape, with up to `STEPS` steps in flight.
#[derive(Debug)]
pub struct Pipelined<S, const STEPS: usize>(PhantomData<fn() -> S>);

impl<S: Shape, const STEPS: usize> Shape for Pipelined<S, STEPS> {
    const SPEC: &'static ModelSpec = S::SPEC;
    const STEPS_IN_FLIGHT: usize = STEPS;
    const SLIDING: Option<SlidingSpec> = S::SLIDING;
    const VISION: Option<VisionSpec> = S::VISION;
}

/// Another shape, of a model that drafts `DRAFTS` tokens after every one sampled.
#[derive(Debug)]
pub struct Drafting<S, const DRAFTS: usize>(PhantomData<fn() -> S>);

impl<S: Shape, const DRAFTS: usize> Shape for Drafting<S, DRAFTS> {
    const SPEC: &'static ModelSpec = &ModelSpec {
        draft: Some(DraftSpec {
            method: "script",
            drafter: Drafter::Head,
            drafts: DRAFTS,
            vocabulary: S::SPEC.vocabulary,
            forced_acceptance: None,
        }),
        ..*S::SPEC
    };
    const SLIDING: Option<SlidingSpec> = S::SLIDING;
    const VISION: Option<VisionSpec> = S::VISION;
}

/// [`Drafting`] with layers of the model itself, whose passes write one position more.
#[derive(Debug)]
pub struct Skipping<S, const DRAFTS: usize>(PhantomData<fn() -> S>);

impl<S: Shape, const DRAFTS: usize> Shape for Skipping<S, DRAFTS> {
    const SPEC: &'static ModelSpec = &ModelSpec {
        draft: Some(DraftSpec {
            method: "skip",
            drafter: Drafter::Layers,
            drafts: DRAFTS,
            vocabulary: S::SPEC.vocabulary,
            forced_acceptance: None,
        }),
        ..*S::SPEC
    };
    const SLIDING: Option<SlidingSpec> = S::SLIDING;
    const VISION: Option<VisionSpec> = S::VISION;
}

/// Another shape, of a model that verifies `DRAFTS` drafts a sequence, which the engine makes.
#[derive(Debug)]
pub struct Verifying<S, const DRAFTS: usize>(PhantomData<fn() -> S>);

impl<S: Shape, const DRAFTS: usize> Shape for Verifying<S, DRAFTS> {
    const SPEC: &'static ModelSpec = &ModelSpec {
        draft: Some(DraftSpec {
            method: "lookup",
            drafter: Drafter::Caller,
            drafts: DRAFTS,
            vocabulary: S::SPEC.vocabulary,
            forced_acceptance: None,
        }),
        ..*S::SPEC
    };
    const SLIDING: Option<SlidingSpec> = S::SLIDING;
    const VISION: Option<VisionSpec> = S::VISION;
}

/// Another shape, of a batch-invariant model whose prefill chunks end at multiples of `CHUNK` tokens.
#[derive(Debug)]
pub struct Invariant<S, const CHUNK: usize>(PhantomData<fn() -> S>);

impl<S: Shape, const CHUNK: usize> Shape for Invariant<S, CHUNK> {
    const SPEC: &'static ModelSpec =
        &ModelSpec { batch_invariant: Some(BatchInvariantSpec { chunk_alignment: CHUNK }), ..*S::SPEC };
    const STEPS_IN_FLIGHT: usize = S::STEPS_IN_FLIGHT;
    const SLIDING: Option<SlidingSpec> = S::SLIDING;
    const VISION: Option<VisionSpec> = S::VISION;
}

/// Another shape, of a model that has recurrent state beside keys and values: the tokens that it was fed, and
/// how many.
#[derive(Debug)]
pub struct Recurrent<S>(PhantomData<fn() -> S>);

impl<S: Shape> Shape for Recurrent<S> {
    const SPEC: &'static ModelSpec = &ModelSpec { state_bytes: 4 * (1 + S::SPEC.context as u64), ..*S::SPEC };
    const STEPS_IN_FLIGHT: usize = S::STEPS_IN_FLIGHT;
    const SLIDING: Option<SlidingSpec> = S::SLIDING;
    const VISION: Option<VisionSpec> = S::VISION;
}

/// Another shape, of a model with layers that attend to the last `WINDOW` tokens only, beside those that
/// attend to all.
#[derive(Debug)]
pub struct Windowed<S, const WINDOW: usize>(PhantomData<fn() -> S>);

impl<S: Shape, const WINDOW: usize> Shape for Windowed<S, WINDOW> {
    const SPEC: &'static ModelSpec = S::SPEC;
    const STEPS_IN_FLIGHT: usize = S::STEPS_IN_FLIGHT;
    const SLIDING: Option<SlidingSpec> =
        Some(SlidingSpec { window: WINDOW, block_bytes: 4 * S::SPEC.block_tokens });
    const VISION: Option<VisionSpec> = S::VISION;
}

/// Another shape, of a model that takes images as a family does: those of [`QWEN`], [`GEMMA`] or [`PIXTRAL`].
#[derive(Debug)]
pub struct Seeing<S, const FAMILY: usize>(PhantomData<fn() -> S>);

/// Positions have three axes.
pub const QWEN: usize = 0;
/// The tokens of an image see each other.
pub const GEMMA: usize = 1;
/// Rows of an image end with a token of their own.
pub const PIXTRAL: usize = 2;

impl<S: Shape, const FAMILY: usize> Shape for Seeing<S, FAMILY> {
    const SPEC: &'static ModelSpec = S::SPEC;
    const STEPS_IN_FLIGHT: usize = S::STEPS_IN_FLIGHT;
    const SLIDING: Option<SlidingSpec> = S::SLIDING;
    const VISION: Option<VisionSpec> = Some(VisionSpec {
        family: [VisionFamily::Qwen, VisionFamily::Gemma, VisionFamily::Pixtral][FAMILY],
        patch: 1,
        frames: 1,
        merge: 1,
        values: 1,
        taps: 0,
        grid_positions: FAMILY == QWEN,
        whole_spans: FAMILY == GEMMA,
        tokens: ImageTokens {
            image: 40,
            start: None,
            end: None,
            row_end: if FAMILY == PIXTRAL { Some(41) } else { None },
        },
        most_patches: 12,
        pass_images: 2,
        layers: 3,
        step_patches: 7,
        slots: 3,
    });
}

/// A small model with the vocabulary and the stop id of SmolLM2, blocks of 16 and steps of 64 tokens, and at
/// most 16 sequences a step.
#[derive(Debug)]
pub struct Small;

impl Shape for Small {
    const SPEC: &'static ModelSpec = &SMALL;
}

/// [`Small`] with blocks of 4 and steps of 24 tokens, a context of 64, and at most 6 sequences a step: one in
/// which everything runs out often. Its vocabulary is small, so that logits are cheap.
#[derive(Debug)]
pub struct Tight;

impl Shape for Tight {
    const SPEC: &'static ModelSpec = &ModelSpec {
        block_tokens: 4,
        block_bytes: 4 * 4,
        vocabulary: 1000,
        step_tokens: 24,
        step_sequences: 6,
        context: 64,
        ..SMALL
    };
}

const SMALL: ModelSpec = ModelSpec {
    target: "cpu/scripted/none",
    model: "scripted",
    specs: &[],
    commit: None,
    hardware: HardwareSpec { name: "cpu", features: &[], cuda: None },
    hidden: 64,
    layers: 1,
    vocabulary: 49_152,
    context: 4096,
    block_tokens: 16,
    block_bytes: 16 * 4,
    state_bytes: 0,
    step_tokens: 64,
    step_sequences: 16,
    kv_formats: KvFormats::both(Cached::F32),
    kv_exact_layers: 0,
    kv_scales: None,
    kv_elements: 0,
    formats: &[ClassFormat { class: "none", stored: Format::F32, compute: "f32" }],
    tensors: &[],
    unused: &[],
    files: &[],
    canaries: &[],
    weight_bytes: 0,
    scratch_bytes: 0,
    protocol: Protocol { stop_ids: &[2], chat_template: None, tools: None, reasoning: None },
    sampling: &[SamplingPreset {
        name: "default",
        temperature: 0.0,
        top_p: 1.0,
        top_k: 0,
        min_p: 0.0,
        repetition_penalty: 1.0,
    }],
    figures: Figures {
        limit_decode: 0.0,
        limit_prefill: 0.0,
        predicted_decode: 0.0,
        predicted_prefill: 0.0,
        copy_bandwidth: 4e9,
    },
    draft: None,
    batch_invariant: None,
};
