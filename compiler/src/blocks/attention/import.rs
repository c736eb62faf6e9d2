//! Keys of a Hugging Face config, and tensor names of its checkpoints.

use super::spec::Attention;
use crate::blocks::Placed;
use crate::import::dimensions::{head_dim, kv_heads};
use crate::import::families::Family;
use crate::import::keys::{Findings, Keys};
use crate::import::names::{LayerTensor, rows, whole};
use crate::import::rotary;
use crate::spec::types::{FileTensor, Norm};

pub(crate) fn read(
    family: &Family,
    keys: &mut Keys,
    found: &mut Findings,
    (hidden, context, norm): (Option<usize>, Option<usize>, Option<Norm>),
) -> Option<Attention> {
    let heads = keys.count(found, "num_attention_heads", family.heads);
    let kv_heads = kv_heads(family, keys, found, heads);
    let head_dim = head_dim(family, keys, found, hidden, heads);
    let bias = keys.flag(found, "attention_bias", false);
    let rotary = rotary::read(keys, found, head_dim, context, family.turned);
    let bias = bias?;
    Some(Attention {
        heads: heads?,
        kv_heads: kv_heads?,
        head_dim: head_dim?,
        rotary: Some(rotary?),
        qk_norm: if family.qk_norm { Some(norm?) } else { None },
        norm_rows: false,
        v_norm: None,
        keys_as_values: false,
        scale: None,
        window: None,
        qkv_bias: bias,
        output_bias: bias,
        gate: family.hybrid.is_some(),
    })
}

impl Placed for Attention {
    /// Finds a tensor in the checkpoint.
    fn place(&self, tensor: &LayerTensor) -> Option<FileTensor> {
        let ["attention", part] = *tensor.stem else { return None };
        let (module, kind) = (tensor.modules.attention, tensor.kind);
        Some(match part {
            norm @ ("q_norm" | "k_norm") => whole(format!("{module}.{norm}.weight")),
            projection @ ("q" | "gate") if self.gate => {
                // Each head's query is followed by its gate.
                let (wide, first) = (self.head_dim, usize::from(projection == "gate"));
                rows(format!("{module}.q_proj.{kind}"), first * wide, wide, 2 * wide)
            }
            projection => whole(format!("{module}.{projection}_proj.{kind}")),
        })
    }
}
