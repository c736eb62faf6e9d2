//! Names of the model's tensors in a family's checkpoints.

use super::draft::{Draft, Modules, Projections};
use crate::spec::types::{DRAFT_PREFIX, FileTensor, RowView};
use crate::spec::{LAYER_PREFIX, TensorDecl};

/// The place of a tensor of the model in a checkpoint, under the name of its unquantised form. Experts are
/// `stacked`, or have one tensor each.
///
/// # Panics
/// For a tensor that no draft has.
pub(super) fn place(draft: &Draft, stacked: bool, decl: &TensorDecl) -> FileTensor {
    let (prefix, of_draft) = (draft.naming.prefix, &draft.naming.draft);
    match decl.name.as_str() {
        "embedding" => whole(format!("{prefix}{}", draft.naming.embedding)),
        "norm" => whole(format!("{prefix}{}", draft.naming.norm)),
        "head" => whole(draft.naming.head.to_owned()),
        "draft.fc" => whole(of_draft.fc.to_owned()),
        "draft.embedding_norm" => whole(of_draft.embedding_norm.to_owned()),
        "draft.hidden_norm" => whole(of_draft.hidden_norm.to_owned()),
        "draft.norm" => whole(of_draft.norm.to_owned()),
        name => {
            let (part, place) = match name.strip_prefix(DRAFT_PREFIX) {
                Some(part) if part.starts_with("ffn.") => (part, of_draft.ffn.to_owned()),
                Some(part) => (part, of_draft.mixer.to_owned()),
                None => {
                    let part = name.strip_prefix(LAYER_PREFIX).expect("all others are of layers");
                    (part, format!("{prefix}{LAYER_PREFIX}"))
                }
            };
            let FileTensor { name, view } = in_layer(draft, stacked, part);
            FileTensor { name: format!("{place}{name}"), view }
        }
    }
}

fn in_layer(draft: &Draft, stacked: bool, part: &str) -> FileTensor {
    let (stem, kind) = part.strip_suffix(".bias").map_or((part, "weight"), |stem| (stem, "bias"));
    let stem: Vec<&str> = stem.split('.').collect();
    match stem[..] {
        ["mixer", "norm"] => return whole(draft.naming.mixer_norm.to_owned()),
        ["ffn", "norm"] => return whole(draft.naming.ffn_norm.to_owned()),
        // Only one family has these.
        ["mixer", "post_norm"] => return whole("post_attention_layernorm.weight".to_owned()),
        ["ffn", "post_norm"] => return whole("post_feedforward_layernorm.weight".to_owned()),
        ["scale"] => return whole("layer_scalar".to_owned()),
        _ => {}
    }
    let tensor = LayerTensor {
        stem: &stem,
        kind,
        projections: draft.naming.projections,
        stacked,
        modules: &draft.naming.modules,
        hidden: draft.hidden,
    };
    let mixer = draft.mixers.iter().find_map(|(_, mixer)| mixer.place(&tensor));
    let others = || draft.others.iter().map(|(_, other)| other);
    let ffn = || std::iter::once(&draft.ffn).chain(others()).find_map(|ffn| ffn.place(&tensor));
    mixer.or_else(ffn).unwrap_or_else(|| unreachable!("{part:?} is of no known family"))
}

/// A tensor of a layer, and the family's naming.
pub(crate) struct LayerTensor<'a> {
    /// Parts of its name, without `bias`.
    pub(crate) stem: &'a [&'a str],
    /// `weight` or `bias`.
    pub(crate) kind: &'a str,
    /// As in [`super::draft::Naming`].
    pub(crate) projections: Projections,
    /// Whether the experts of a layer are stacked in two tensors.
    pub(crate) stacked: bool,
    /// Names of the layer's modules.
    pub(crate) modules: &'a Modules,
    /// Width of the residual stream.
    pub(crate) hidden: usize,
}

/// A whole tensor.
pub(crate) fn whole(name: String) -> FileTensor {
    FileTensor { name, view: None }
}

/// `take` of every `of` rows, from row `first` on.
pub(crate) fn rows(name: String, first: usize, take: usize, of: usize) -> FileTensor {
    FileTensor { name, view: Some(RowView { first, take, of }) }
}
