//! Every weight as f32: the exact values of the stored format.

use super::Instance;
use crate::graph::{Graph, RankPart, Weight, WeightId, file_row, instance};
use crate::spec::types::{CheckpointSpec, RotaryRows};
use monomorph_abi::cut::{Segment, whole_row};
use monomorph_formats::logarithms_of_rates;
use monomorph_weights::{Checkpoint, WeightsError};
use std::sync::Arc;

/// Reads whole tensors and keeps the last one, since several weights may be rows of it.
pub(super) struct Reader<'a> {
    graph: &'a Graph,
    spec: &'a CheckpointSpec,
    checkpoint: &'a Checkpoint,
    last: Option<(String, Vec<f32>)>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(graph: &'a Graph, spec: &'a CheckpointSpec, checkpoint: &'a Checkpoint) -> Reader<'a> {
        Reader { graph, spec, checkpoint, last: None }
    }

    /// One instance of a weight, by rank: `[rows, columns]` of every expert, or of the only one. Ranks that
    /// hold the whole weight share it.
    pub(super) fn read(&mut self, id: WeightId, layer: Option<usize>) -> Result<Vec<Instance>, WeightsError> {
        let ranks = self.graph.ranks;
        if self.graph.weights[id.0].cut.is_whole() {
            let whole = Arc::new(self.part(id, layer, 0)?);
            return Ok((0..ranks).map(|_| Arc::clone(&whole)).collect());
        }
        (0..ranks).map(|rank| self.part(id, layer, rank).map(Arc::new)).collect()
    }

    /// What a rank holds of an instance of a weight.
    fn part(
        &mut self,
        id: WeightId,
        layer: Option<usize>,
        rank: usize,
    ) -> Result<Vec<Vec<f32>>, WeightsError> {
        let graph = self.graph;
        let weight = &graph.weights[id.0];
        let RankPart { rows, columns, experts, first_rank_only } = &weight.cut;
        let of_rank = |segments: &[Segment], at: usize| match segments {
            [] => at,
            _ => whole_row(segments, rank, graph.ranks, at),
        };
        let width = weight.file_columns();
        let stacked = weight.file.stacks_experts(&weight.name);
        let head_dim = graph.rotary_head_dim(id).filter(|_| self.spec.rotary_rows == RotaryRows::Interleaved);
        let count = weight.experts.unwrap_or(1);
        let first = if *experts { rank * count } else { 0 };
        let experts = (first..first + count).map(|expert| {
            let name = instance(&weight.file.name, layer).replace("{expert}", &expert.to_string());
            let values = self.tensor(weight, &name, layer, expert)?;
            let row = |row: usize| {
                let row = of_rank(rows, row);
                let row = head_dim.map_or(row, |head_dim| file_row(row, head_dim));
                weight.file.file_row(row, stacked.then_some(expert))
            };
            if *first_rank_only && rank > 0 {
                return Ok(vec![0.0; weight.elements()]);
            }
            let mut part = Vec::with_capacity(weight.elements());
            for at in 0..weight.rows {
                let row = &values[row(at) * width..][..width];
                match columns[..] {
                    [] => part.extend_from_slice(row),
                    _ => part.extend((0..weight.columns).map(|column| row[of_rank(columns, column)])),
                }
            }
            Ok(part)
        });
        experts.collect()
    }

    /// All rows of a tensor of the checkpoint, with the scales beside it applied.
    fn tensor(
        &mut self,
        weight: &Weight,
        name: &str,
        layer: Option<usize>,
        expert: usize,
    ) -> Result<&[f32], WeightsError> {
        if self.last.as_ref().is_none_or(|(last, _)| last != name) {
            let tensor = self.checkpoint.expect(name, &weight.file_shape, weight.stored)?;
            let mut values = vec![0.0; weight.file_shape.iter().product()];
            monomorph_formats::decode(weight.stored, &tensor.bytes.read()?, &mut values);
            if let Some(scales) = &weight.scales {
                let decoded = scales.companions.iter().map(|it| {
                    let name = instance(&it.name, layer).replace("{expert}", &expert.to_string());
                    let tensor = self.checkpoint.expect(&name, &it.shape, it.format)?;
                    let mut values = vec![0.0; it.shape.iter().product()];
                    monomorph_formats::decode(it.format, &tensor.bytes.read()?, &mut values);
                    Ok(values)
                });
                let decoded = decoded.collect::<Result<Vec<_>, WeightsError>>()?;
                scales.form.apply(&mut values, weight.file_columns(), &decoded);
            }
            if weight.negative_rates {
                logarithms_of_rates(&mut values).map_err(|what| WeightsError::Mismatch {
                    path: self.checkpoint.path().to_owned(),
                    what: format!("tensor `{name}`: {what}"),
                })?;
            }
            self.last = Some((name.to_owned(), values));
        }
        Ok(self.last.as_ref().map_or(&[], |(_, values)| values))
    }
}
