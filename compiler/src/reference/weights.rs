//! Every weight as f32: the exact values of the stored format.

use crate::graph::{Graph, Weight, WeightId, file_row, instance};
use crate::spec::types::{CheckpointSpec, RotaryRows};
use monomorph_weights::{Checkpoint, WeightsError};

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

    /// One instance of a weight: `[rows, columns]` of every expert, or of the only one.
    pub(super) fn read(&mut self, id: WeightId, layer: Option<usize>) -> Result<Vec<Vec<f32>>, WeightsError> {
        let graph = self.graph;
        let weight = &graph.weights[id.0];
        let stacked = weight.file.stacks_experts(&weight.name);
        let head_dim = graph.rotary_head_dim(id).filter(|_| self.spec.rotary_rows == RotaryRows::Interleaved);
        let experts = (0..weight.experts.unwrap_or(1)).map(|expert| {
            let name = instance(&weight.file.name, layer).replace("{expert}", &expert.to_string());
            let values = self.tensor(weight, &name, layer, expert)?;
            let row = |row: usize| {
                let row = head_dim.map_or(row, |head_dim| file_row(row, head_dim));
                weight.file.file_row(row, stacked.then_some(expert))
            };
            let rows = (0..weight.rows).flat_map(|it| &values[row(it) * weight.columns..][..weight.columns]);
            Ok(rows.copied().collect())
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
                scales.form.apply(&mut values, weight.columns, &decoded);
            }
            self.last = Some((name.to_owned(), values));
        }
        Ok(self.last.as_ref().map_or(&[], |(_, values)| values))
    }
}
