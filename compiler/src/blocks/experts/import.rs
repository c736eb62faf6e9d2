//! Keys of a Hugging Face config, and tensor names of its checkpoints.

use super::spec::{Experts, Router, SharedExpert};
use crate::blocks::Placed;
use crate::import::draft::ExpertNames;
use crate::import::families::Mixture;
use crate::import::keys::{Findings, Keys};
use crate::import::names::{LayerTensor, rows, whole};
use crate::spec::types::{Activation, FileTensor};
use serde_json::{Value, json};

/// Which layers have a dense block instead of experts: those listed, and those whose number, counted from 1,
/// is no multiple of the sparse step. None in families without dense layers.
pub(crate) fn dense_layers(
    family: Mixture,
    keys: &mut Keys,
    found: &mut Findings,
    layers: usize,
) -> Option<Vec<bool>> {
    if !family.dense_layers {
        let every = "all layers of this family have experts";
        keys.only(found, "mlp_only_layers", &[json!([]), Value::Null], every);
        keys.only(found, "decoder_sparse_step", &[json!(1)], every);
        return Some(vec![false; layers]);
    }
    let step = keys.count(found, "decoder_sparse_step", 1)?;
    let index = |value: &Value| value.as_u64().and_then(|it| usize::try_from(it).ok());
    let listed = match keys.given("mlp_only_layers") {
        None => Some(Vec::new()),
        Some(value) => value.as_array().and_then(|list| list.iter().map(index).collect::<Option<Vec<_>>>()),
    };
    let Some(listed) = listed.filter(|listed| listed.iter().all(|layer| *layer < layers)) else {
        found
            .problems
            .push(format!("`{}` is no list of layers below {layers}", keys.path("mlp_only_layers")));
        return None;
    };
    Some((0..layers).map(|layer| listed.contains(&layer) || !(layer + 1).is_multiple_of(step)).collect())
}

/// Experts that a token passes through: no more than there are.
pub(crate) fn active(
    keys: &mut Keys,
    found: &mut Findings,
    default: usize,
    experts: Option<usize>,
) -> Option<usize> {
    let key = "num_experts_per_tok";
    let active = keys.count(found, key, default);
    if let (Some(experts), Some(active)) = (experts, active)
        && active > experts
    {
        let path = keys.path(key);
        found.problems.push(format!("`{path}` = {active} is more than the {experts} experts"));
    }
    active
}

pub(crate) fn read(
    family: Mixture,
    keys: &mut Keys,
    found: &mut Findings,
    activation: Option<Activation>,
) -> Option<Experts> {
    // This is the width of dense blocks, so it is unused without any.
    keys.harmless(&["intermediate_size", "output_router_logits", "router_aux_loss_coef"]);
    let experts = count(family, keys, found);
    let active = active(keys, found, family.active, experts);
    let width = keys.count(found, "moe_intermediate_size", family.width);
    let shared = match family.shared {
        Some(width) => keys.count(found, "shared_expert_intermediate_size", width).map(Some),
        None => Some(None),
    };
    let renormalise = match family.renormalise {
        Some(default) => {
            let renormalise = keys.flag(found, "norm_topk_prob", default);
            if keys.get("norm_topk_prob").is_none() {
                found.defaulted.push(keys.path("norm_topk_prob"));
            }
            renormalise
        }
        None => {
            let why = "this family always divides by the sum";
            keys.only(found, "norm_topk_prob", &[json!(true), Value::Null], why);
            Some(true)
        }
    };
    Some(Experts {
        experts: experts?,
        active: active?,
        width: width?,
        gated: true,
        latent: None,
        activation: activation?,
        router: Router::Softmax { renormalise: renormalise? },
        router_norm: None,
        expert_scales: false,
        shared: shared?.map(|width| SharedExpert { width, gate: true }),
        branch_norms: None,
    })
}

/// Reads `num_experts`, which one family also calls `num_local_experts`.
fn count(family: Mixture, keys: &mut Keys, found: &mut Findings) -> Option<usize> {
    if family.shared.is_some() {
        return keys.count(found, "num_experts", family.experts);
    }
    match (keys.get("num_experts"), keys.get("num_local_experts")) {
        (Some(one), Some(other)) if one != other => {
            let (key, alias) = (keys.path("num_experts"), keys.path("num_local_experts"));
            found
                .problems
                .push(format!("`{key}` = {one} and `{alias}` = {other} are one setting and differ"));
            None
        }
        (None, Some(_)) => keys.count(found, "num_local_experts", family.experts),
        _ => keys.count(found, "num_experts", family.experts),
    }
}

impl Placed for Experts {
    /// Finds a tensor in the checkpoint.
    fn place(&self, tensor: &LayerTensor) -> Option<FileTensor> {
        let (wide, hidden) = (self.width, tensor.hidden);
        let ExpertNames { correction, shared, latent, norms, .. } = tensor.modules.experts;
        let ExpertNames { router, router_norm, scales, stacked, apart, .. } = tensor.modules.experts;
        Some(match tensor.stem {
            ["ffn", "router"] => whole(format!("{router}.weight")),
            ["ffn", "router", "correction"] => whole(correction.to_owned()),
            ["ffn", "router", "norm"] => whole(router_norm.to_owned()),
            ["ffn", "router", "scales"] => whole(scales.to_owned()),
            ["ffn", "routed", "norm"] => whole(norms[0].to_owned()),
            ["ffn", "routed", "post_norm"] => whole(norms[1].to_owned()),
            ["ffn", "shared", "post_norm"] => whole(norms[2].to_owned()),
            ["ffn", "latent", side] => whole(format!("{}.weight", latent[usize::from(*side == "out")])),
            ["ffn", "experts", _, part] if tensor.stacked => match *part {
                "gate" => rows(format!("{stacked}.gate_up_proj"), 0, wide, 2 * wide),
                "up" => rows(format!("{stacked}.gate_up_proj"), wide, wide, 2 * wide),
                _ => rows(format!("{stacked}.down_proj"), 0, hidden, hidden),
            },
            ["ffn", "experts", _, part] => {
                whole(format!("{apart}.{{expert}}.{}.weight", tensor.modules.part(part)?))
            }
            ["ffn", "shared", "scale"] => whole(format!("{shared}_gate.weight")),
            ["ffn", "shared", part] => whole(format!("{shared}.{}.weight", tensor.modules.part(part)?)),
            _ => return None,
        })
    }
}
