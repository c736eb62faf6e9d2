//! `spec.rs`: the build's constants.

use super::{float, number};
use crate::plan::{FieldKind, Plan};
use crate::spec::draft_tensors;
use crate::spec::types::{
    DraftMethod, Drafting, ImageTokens, KvScaleNames, Provenance, Source, SpecFile, TensorClass, Vision,
    VisionFamily,
};
use monomorph_formats::Format;
use monomorph_formats::cached::Cached;
use proc_macro2::{Literal, TokenStream};
use quote::quote;
use std::collections::{BTreeMap, BTreeSet};

/// The `SPEC` constant.
pub fn spec(plan: &Plan, features: &[String]) -> TokenStream {
    let target = &plan.target;
    let (model, quant) = (&target.model, &target.quant);
    let (name, model_name, hardware) = (target.name(), &model.name, &target.hardware.name);
    let numbers = [
        model.hidden,
        model.layers,
        model.vocabulary,
        model.context,
        quant.kv_block,
        plan.memory.kv_block as usize,
        plan.buckets.tokens,
        plan.buckets.sequences,
    ]
    .map(number);
    let [hidden, layers, vocabulary, context, block_tokens, block_bytes, step_tokens, step_sequences] =
        numbers;
    let cuda = cuda(plan);
    let [kv_exact_layers, kv_elements] = [plan.kv_exact_layers(), plan.kv_elements()].map(number);
    let [keys, values] = [quant.kv_formats.keys, quant.kv_formats.values].map(cached);
    let of_tower = target.tower.as_ref().filter(|_| plan.tower.is_some());
    let of_tower = of_tower.map(|it| (TensorClass::Vision.name(), it.stored, it.compute));
    let of_drafter = target.drafter().map(|it| (TensorClass::Draft.name(), it.stored, it.compute));
    let formats = quant.formats(plan.draft_layer().is_some()).into_iter().chain(of_tower).chain(of_drafter);
    let formats = formats.map(|(class, stored, compute)| {
        let (stored, compute) = (format(stored), compute.name());
        quote!(ClassFormat { class: #class, stored: #stored, compute: #compute })
    });
    let tensors = tensors(plan).into_iter().map(|(tensor, layers)| {
        let Tensor { name, shape, format: stored, experts } = tensor;
        let (layers, experts) = (layers.into_iter().map(number), number(experts));
        let (shape, stored) = (shape.into_iter().map(number), format(stored));
        quote! {
            TensorSpec {
                name: #name, layers: &[#(#layers),*], experts: #experts, shape: &[#(#shape),*], format: #stored,
            }
        }
    });
    let draft_names = if plan.draft_layer().is_some() { BTreeSet::new() } else { draft_names(plan) };
    // Static scales that no format of this build takes are as good as unused.
    let (kv_scales, no_scales) = match (quant.fp8_scales(), &quant.kv_scales) {
        (Some(KvScaleNames { keys, values }), _) => {
            (quote!(Some(KvScaleSpec { names: [#keys, #values] })), BTreeSet::new())
        }
        (None, of_checkpoint) => {
            let names = of_checkpoint.iter().flat_map(|it| [it.keys.clone(), it.values.clone()]);
            (quote!(None), names.collect())
        }
    };
    let unused = quant.checkpoint.unused.iter().cloned().chain(no_scales).chain(draft_names);
    let files = quant
        .checkpoint
        .sources
        .iter()
        .flat_map(Source::digests)
        .map(|(name, sha256)| quote!(FileSpec { name: #name, sha256: #sha256 }));
    let canaries = quant.checkpoint.canaries.iter().map(|canary| {
        let ids = |ids: &[u32]| ids.iter().map(|id| Literal::u32_unsuffixed(*id)).collect::<Vec<_>>();
        let (prompt, answer, margin) = (ids(&canary.prompt), ids(&canary.answer), float(canary.margin));
        quote!(CanarySpec { prompt: &[#(#prompt),*], answer: &[#(#answer),*], margin: #margin })
    });
    let specs = target
        .specs
        .iter()
        .map(|SpecFile { name, sha256 }| quote!(FileSpec { name: #name, sha256: #sha256 }));
    let kv_scales_type = quant.fp8_scales().map(|_| quote!(KvScaleSpec,));
    let canary_type = (!quant.checkpoint.canaries.is_empty()).then(|| quote!(CanarySpec,));
    let draft = draft(plan);
    let weight_bytes = Literal::u64_unsuffixed(plan.memory.weights);
    let scratch_bytes = Literal::u64_unsuffixed(plan.memory.scratch);
    let state_bytes = Literal::u64_unsuffixed(plan.memory.state);
    let stop_ids = model.protocol.stop_ids.iter().map(|id| Literal::u32_unsuffixed(*id));
    let chat_template = match &model.protocol.chat_template {
        Some(template) => quote!(Some(#template)),
        None => quote!(None),
    };
    let [tools, reasoning] = [model.protocol.tools, model.protocol.reasoning].map(|format| match format {
        Some(name) => quote!(Some(#name)),
        None => quote!(None),
    });
    let sampling = model.sampling.iter().map(|preset| {
        let name = &preset.name;
        let [temperature, top_p, min_p, repetition_penalty] =
            [preset.temperature, preset.top_p, preset.min_p, preset.repetition_penalty].map(float);
        let top_k = Literal::u32_unsuffixed(preset.top_k);
        quote!(SamplingPreset {
            name: #name,
            temperature: #temperature,
            top_p: #top_p,
            top_k: #top_k,
            min_p: #min_p,
            repetition_penalty: #repetition_penalty,
        })
    });
    // Whole tokens per second: further digits would only make the text of every build differ.
    let [limit_decode, predicted_decode, limit_prefill, predicted_prefill] =
        plan.prediction.rates().map(|rate| Literal::f64_unsuffixed(rate.round()));
    let copy_bandwidth = Literal::f64_unsuffixed(plan.target.hardware.copy_bandwidth);
    let invariant = batch_invariant(plan);
    let invariant_type = target.batch_invariant.map(|_| quote!(BatchInvariantSpec,));
    let draft_type = plan.target.draft.map(|_| quote!(DraftSpec, Drafter,));
    let cuda_type = plan.target.hardware.cuda().map(|_| quote!(CudaSpec,));
    let vision = vision(plan);
    let vision_types = vision.as_ref().map(|_| quote!(ImageTokens, VisionFamily, VisionSpec,));
    quote! {
        use monomorph_formats::Format;
        use monomorph_formats::cached::{Cached, KvFormats};
        use monomorph_model::{
            #invariant_type #canary_type ClassFormat, #cuda_type #draft_type Figures, FileSpec, HardwareSpec, #kv_scales_type ModelSpec, Protocol, SamplingPreset, TensorSpec, #vision_types
        };

        /// Everything the rest of the server may ask for.
        pub static SPEC: ModelSpec = ModelSpec {
            target: #name,
            model: #model_name,
            specs: &[#(#specs),*],
            commit: option_env!("MONOMORPH_COMMIT"),
            hardware: HardwareSpec { name: #hardware, features: &[#(#features),*], cuda: #cuda },
            hidden: #hidden,
            layers: #layers,
            vocabulary: #vocabulary,
            context: #context,
            block_tokens: #block_tokens,
            block_bytes: #block_bytes,
            state_bytes: #state_bytes,
            step_tokens: #step_tokens,
            step_sequences: #step_sequences,
            kv_formats: KvFormats { keys: #keys, values: #values },
            kv_exact_layers: #kv_exact_layers,
            kv_scales: #kv_scales,
            kv_elements: #kv_elements,
            formats: &[#(#formats),*],
            tensors: &[#(#tensors),*],
            unused: &[#(#unused),*],
            files: &[#(#files),*],
            canaries: &[#(#canaries),*],
            weight_bytes: #weight_bytes,
            scratch_bytes: #scratch_bytes,
            protocol: Protocol {
                stop_ids: &[#(#stop_ids),*],
                chat_template: #chat_template,
                tools: #tools,
                reasoning: #reasoning,
            },
            sampling: &[#(#sampling),*],
            figures: Figures {
                limit_decode: #limit_decode,
                limit_prefill: #limit_prefill,
                predicted_decode: #predicted_decode,
                predicted_prefill: #predicted_prefill,
                copy_bandwidth: #copy_bandwidth,
            },
            draft: #draft,
            batch_invariant: #invariant,
        };

        #vision
    }
}

/// The `VISION` constant of a build with a tower.
fn vision(plan: &Plan) -> Option<TokenStream> {
    let tower = plan.tower.as_ref()?;
    let it = plan.target.tower.as_ref()?;
    let Vision { patch, merge, tokens: ImageTokens { image, start, end, row_end }, .. } = *it;
    let family = match it.family {
        VisionFamily::Qwen { .. } => quote!(Qwen),
        VisionFamily::Gemma { .. } => quote!(Gemma),
        VisionFamily::Pixtral { .. } => quote!(Pixtral),
    };
    let whole_spans = plan.target.model.mixers.keys().any(|mixer| it.is_bidirectional(mixer));
    let grid_positions = it.mrope().is_some();
    let sizes =
        [patch, it.frames(), merge, it.values(), tower.branches.len(), tower.most_patches, tower.slots];
    let [patch, frames, merge, values, taps, most_patches, slots] = sizes.map(number);
    let [pass_images, layers, step_patches] =
        [tower.pass_images, tower.depth(), tower.step_patches].map(number);
    let image = Literal::u32_unsuffixed(image);
    let [start, end, row_end] = [start, end, row_end].map(|id| match id.map(Literal::u32_unsuffixed) {
        None => quote!(None),
        Some(id) => quote!(Some(#id)),
    });
    Some(quote! {
        /// The vision tower.
        pub const VISION: VisionSpec = VisionSpec {
            family: VisionFamily::#family,
            patch: #patch,
            frames: #frames,
            merge: #merge,
            values: #values,
            taps: #taps,
            grid_positions: #grid_positions,
            whole_spans: #whole_spans,
            tokens: ImageTokens { image: #image, start: #start, end: #end, row_end: #row_end },
            most_patches: #most_patches,
            pass_images: #pass_images,
            layers: #layers,
            step_patches: #step_patches,
            slots: #slots,
        };
    })
}

/// The GPU a stack is compiled for.
fn cuda(plan: &Plan) -> TokenStream {
    let Some(cuda) = plan.target.hardware.cuda() else { return quote!(None) };
    let architecture = &cuda.architecture;
    let (major, minor) = cuda.capability;
    let [major, minor] = [major, minor].map(Literal::u32_unsuffixed);
    let tuning = match plan.target.tuning.as_ref().map(|tuning| &tuning.provenance) {
        Some(Provenance::Measured { file, card, date, .. }) => {
            format!("measured on {card}, {date} ({})", file.display())
        }
        Some(Provenance::Defaults) | None => "the hardware's defaults, not measured".to_owned(),
    };
    let multiprocessors = Literal::u32_unsuffixed(cuda.multiprocessors);
    quote!(Some(CudaSpec {
        architecture: #architecture,
        capability: (#major, #minor),
        multiprocessors: #multiprocessors,
        tuning: #tuning,
    }))
}

/// Every tensor of the checkpoint that the stack loads, with its layers. Parts of several fields may be rows
/// of one tensor, and layers may store what they name alike in other formats or shapes.
fn tensors(plan: &Plan) -> BTreeMap<Tensor, BTreeSet<usize>> {
    let mut tensors: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for field in &plan.fields {
        let stored = match field.kind {
            FieldKind::Matrix { format, .. }
            | FieldKind::Vector { format, .. }
            | FieldKind::Convolution { format, .. }
            | FieldKind::Heads { format, .. }
            | FieldKind::Norm { format, .. } => format,
        };
        let layers = field.owner.map_or(&[][..], |body| &plan.bodies[body.0].layers);
        for part in &field.parts {
            let companions = part.scales.iter().flat_map(|scales| &scales.companions);
            let companions = companions.map(|it| (&it.name, &it.shape, it.format));
            for (name, shape, format) in companions.chain([(&part.file.name, &part.file_shape, stored)]) {
                let experts =
                    part.all_experts(plan.target.ranks).filter(|_| name.contains("{expert}")).unwrap_or(0);
                let tensor = Tensor { name: name.clone(), shape: shape.clone(), format, experts };
                tensors.entry(tensor).or_default().extend(layers);
            }
        }
    }
    tensors
}

/// The drafting parameters of the stack.
fn draft(plan: &Plan) -> TokenStream {
    let Some(draft) = plan.target.draft else { return quote!(None) };
    let Drafting { method, drafts, vocabulary, forced_acceptance } = draft;
    let drafter = match method {
        DraftMethod::Mtp => quote!(Head),
        DraftMethod::Layers => quote!(Layers),
        DraftMethod::Ngram => quote!(Caller),
        DraftMethod::Dflash { window } => {
            let rows = number(1 + drafts);
            let window = window.map(number).map_or(quote!(None), |window| quote!(Some(#window)));
            quote!(Block { rows: #rows, window: #window })
        }
    };
    let (method, drafts, vocabulary) = (method.name(), number(drafts), number(vocabulary));
    let forced = match forced_acceptance.map(Literal::f64_unsuffixed) {
        None => quote!(None),
        Some(rate) => quote!(Some(#rate)),
    };
    quote! {
        Some(DraftSpec {
            method: #method, drafter: Drafter::#drafter, drafts: #drafts, vocabulary: #vocabulary,
            forced_acceptance: #forced,
        })
    }
}

/// The chunk alignment of a batch-invariant stack.
fn batch_invariant(plan: &Plan) -> TokenStream {
    let Some((cuda, _)) = plan.cuda.as_ref().zip(plan.target.batch_invariant) else { return quote!(None) };
    let chunk_alignment = number(cuda.chunk_alignment);
    quote!(Some(BatchInvariantSpec { chunk_alignment: #chunk_alignment }))
}

/// The tensors of the draft head, which a build that does not draft leaves in the checkpoint. If their names
/// share a prefix that no other tensor has, the prefix stands for all of them, in whatever form they are
/// stored.
fn draft_names(plan: &Plan) -> BTreeSet<String> {
    let (model, quant) = (&plan.target.model, &plan.target.quant);
    let drafts = draft_tensors(model).into_iter().filter(|_| quant.has_draft());
    let names = drafts.flat_map(|decl| {
        let file = &quant.checkpoint.names[&decl.base()];
        let scales = quant.scales_of(decl.class, &decl.name).zip(decl.columns);
        let scales = scales.map(|(scales, columns)| scales.of(&file.name, decl.rows, columns).companions);
        let companions = scales.into_iter().flatten().map(|it| it.name);
        companions.chain([file.name.clone()]).collect::<Vec<_>>()
    });
    let names: BTreeSet<String> = names.collect();
    let (Some(first), Some(last)) = (names.first(), names.last()) else { return names };
    // The common prefix of the first and last sorted name is common to all.
    let alike = first.chars().zip(last.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a);
    let common: String = alike.collect();
    let common = common.rsplit_once('.').map_or("", |(stem, _)| stem);
    let begins = |tensor: &Tensor| tensor.name.starts_with(&format!("{common}."));
    if common.is_empty() || tensors(plan).keys().any(begins) {
        return names;
    }
    [format!("{common}.*")].into()
}

/// The contents of a `TensorSpec` but for its layers, in the order in which they are emitted.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Tensor {
    name: String,
    shape: Vec<usize>,
    format: Format,
    experts: usize,
}

/// The path of a format.
pub fn format(format: Format) -> TokenStream {
    let name = super::format_ident!("{}", variant(format));
    quote!(Format::#name)
}

/// A format of cached keys or values.
fn cached(format: Cached) -> TokenStream {
    let name = super::format_ident!("{}", format!("{format:?}"));
    quote!(Cached::#name)
}

/// The Rust name of a format, which is also the name of its marker type.
pub fn variant(format: Format) -> &'static str {
    match format {
        Format::F32 => "F32",
        Format::Bf16 => "Bf16",
        Format::F16 => "F16",
        Format::Q8_0 => "Q8_0",
        Format::Q4_1 => "Q4_1",
        Format::Q4_0 => "Q4_0",
        Format::Q5_0 => "Q5_0",
        Format::Q5_1 => "Q5_1",
        Format::Q4K => "Q4K",
        Format::Q5K => "Q5K",
        Format::Q6K => "Q6K",
        Format::Q2K => "Q2K",
        Format::Q3K => "Q3K",
        Format::Iq4Nl => "Iq4Nl",
        Format::Iq4Xs => "Iq4Xs",
        Format::Fp8E4m3 => "Fp8E4m3",
        Format::Nvfp4 => "Nvfp4",
    }
}
