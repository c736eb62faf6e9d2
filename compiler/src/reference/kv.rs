//! Keys and values as attention reads them, after they were stored.

use crate::graph::{Graph, Op, instance};
use crate::spec::types::Quant;
use monomorph_formats::cached::{Cached, Codec, stored};
use monomorph_weights::{Checkpoint, WeightsError};
use std::collections::BTreeMap;

/// What is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    /// Keys, or what is key and value at once.
    Keys,
    /// Values, each at its token.
    Values,
}

/// A checkpoint's static scales: one a head, by layer, of what is stored as [`Cached::Fp8`].
pub(super) struct StaticScales(BTreeMap<(usize, Side), Vec<f32>>);

impl StaticScales {
    /// Reads those that the layers of a graph take.
    ///
    /// # Errors
    /// When one is missing, or is no scale.
    ///
    /// # Panics
    /// If a graph that is cut takes some: no backend of several ranks stores codes.
    pub(super) fn read(graph: &Graph, quant: &Quant, checkpoint: &Checkpoint) -> Result<Self, WeightsError> {
        let mut scales = BTreeMap::new();
        let Some(names) = quant.fp8_scales() else { return Ok(StaticScales(scales)) };
        assert_eq!(graph.ranks, 1, "ranks share out no static scales");
        for run in &graph.schedule {
            let Some(layer) = run.layer else { continue };
            let kept = graph.bodies[run.body.0].nodes.iter().find_map(|node| match &node.op {
                Op::Block(op) => op.kv(),
                _ => None,
            });
            let Some((heads, formats)) = kept else { continue };
            let (keys, values) = (&names.keys, &names.values);
            let sides = [(Side::Keys, formats.keys, keys), (Side::Values, formats.values, values)];
            for (side, _, name) in sides.into_iter().filter(|(_, format, _)| *format == Cached::Fp8) {
                let name = instance(name, Some(layer));
                scales.insert((layer, side), checkpoint.static_scales(&name, heads)?);
            }
        }
        Ok(StaticScales(scales))
    }

    /// What is read back of vectors of `width`, one head after the other of each token, after they were
    /// stored: by a layer of the model, or by one that no checkpoint has scales for.
    pub(super) fn stored(
        &self,
        (layer, side): (Option<usize>, Side),
        format: Cached,
        width: usize,
        vectors: &[f32],
    ) -> Vec<f32> {
        let Some(scales) = layer.and_then(|layer| self.0.get(&(layer, side))) else {
            return stored(Codec::unscaled(format), width, vectors);
        };
        let each = vectors.chunks_exact(width).zip(scales.iter().cycle());
        each.flat_map(|(vector, scale)| {
            let codec = Codec::new(format, *scale).expect("it was read as a scale of fp8");
            stored(codec, width, vector)
        })
        .collect()
    }
}
