//! Assigns a buffer to every value that leaves its group. Fused products lie side by side, the residual
//! stream stays in place, and values of equal shape share a buffer if they are never live at the same time.

use super::fuse::Fused;
use super::lower::{Group, Slice};
use super::{PassError, pass_error};
use crate::graph::{Body, Graph, NodeId, Op, Rows, Value, ValueId};
use crate::plan::{BlockPlan, Buffer, BufferId, TowerPlan};
use std::collections::BTreeMap;

/// Buffers, and the slices of each body's values.
#[derive(Clone, Debug)]
pub struct Assignment {
    /// All buffers; the first is the residual stream.
    pub buffers: Vec<Buffer>,
    /// One map per body.
    pub slices: Vec<BTreeMap<ValueId, Slice>>,
    /// Buffers that hold one kind of value, ever.
    alone: Vec<BufferId>,
}

/// The buffer that bodies pass on.
const RESIDUAL: BufferId = BufferId(0);

/// What a body takes and passes on.
#[derive(Clone, Copy)]
struct Stream {
    /// The buffer of its input, if it has one.
    input: BufferId,
    /// The residual stream, which no other value of the body may overwrite.
    residual: BufferId,
    /// Whether it passes nothing on.
    last: bool,
}

/// Assigns buffers.
///
/// # Errors
/// When a body does not keep the residual stream in place.
pub fn assign(
    graph: &Graph,
    fused: &Fused,
    block: Option<&BlockPlan>,
    tower: Option<&TowerPlan>,
) -> Result<Assignment, PassError> {
    let width = graph.bodies[0].values[graph.bodies[0].output.0].width;
    let residual = Buffer { name: "residual".to_owned(), rows: Rows::Tokens, width };
    let mut assignment = Assignment { buffers: vec![residual], slices: Vec::new(), alone: Vec::new() };
    // What a drafter of blocks takes of the model is there until the model's logits have been sampled.
    let taps = block.map(|block| (block.first.0, assignment.taps(graph, block.first.0)));
    // The heads of the model and of the draft, which pass nothing on.
    let behind = tower.map_or(graph.bodies.len(), |tower| tower.first.0);
    let heads = [graph.schedule.last().map(|run| run.body.0), behind.checked_sub(1)];
    let of_tower = tower.map(|tower| (tower.first.0, assignment.streams(graph, tower.first.0)));
    for (index, (body, groups)) in graph.bodies.iter().zip(&fused.bodies).enumerate() {
        let stream = match of_tower {
            Some((first, [pixels, residual])) if index >= first => Stream {
                input: if index == first { pixels } else { residual },
                residual,
                // What merges patches.
                last: body.values[body.output.0].rows != Rows::Patches,
            },
            _ if taps.is_some_and(|(first, _)| index == first) => {
                Stream { input: taps.map_or(RESIDUAL, |(_, taps)| taps), residual: RESIDUAL, last: false }
            }
            _ => Stream { input: RESIDUAL, residual: RESIDUAL, last: heads.contains(&Some(index)) },
        };
        let slices = assignment.body(body, groups, stream)?;
        assignment.slices.push(slices);
    }
    Ok(assignment)
}

impl Assignment {
    /// The buffers of a tower's pixels and of its residual stream, whose first body is `first`.
    fn streams(&mut self, graph: &Graph, first: usize) -> [BufferId; 2] {
        let body = &graph.bodies[first];
        let input = body.input.expect("a tower takes pixels");
        [(input, "pixels"), (body.output, "tower_residual")].map(|(value, name)| {
            let Value { rows, width, .. } = body.values[value.0];
            self.buffers.push(Buffer { name: name.to_owned(), rows, width });
            BufferId(self.buffers.len() - 1)
        })
    }

    /// The buffer of the residual streams that the body `first` of a drafter takes, which nothing else uses.
    fn taps(&mut self, graph: &Graph, first: usize) -> BufferId {
        let body = &graph.bodies[first];
        let input = body.input.expect("a drafter takes residual streams");
        let Value { rows, width, .. } = body.values[input.0];
        self.buffers.push(Buffer { name: "dflash_taps".to_owned(), rows, width });
        let id = BufferId(self.buffers.len() - 1);
        self.alone.push(id);
        id
    }

    fn body(
        &mut self,
        body: &Body,
        groups: &[Group],
        Stream { input, residual: stream, last }: Stream,
    ) -> Result<BTreeMap<ValueId, Slice>, PassError> {
        let mut slices = BTreeMap::new();
        slices.extend(body.input.map(|value| (value, Slice { buffer: input, column: 0 })));
        for (at, group) in groups.iter().enumerate() {
            let outputs = outputs(body, group);
            if group.values.contains_key("residual") {
                for kept in &group.kept {
                    let busy: Vec<BufferId> = slices.values().map(|slice| slice.buffer).collect();
                    let buffer = self.buffer(body, &[*kept], &busy);
                    slices.insert(*kept, Slice { buffer, column: 0 });
                }
                let (residual, out) = (group.value("residual"), group.value("out"));
                if used_after(body, groups, at, residual) {
                    let name = &body.values[residual.0].name;
                    return Err(pass_error!(
                        "`{name}` of `{}` is read after it was added to in place",
                        body.name
                    ));
                }
                slices.insert(out, slices[&residual]);
                continue;
            }
            let hands_on = outputs == [body.output] && !last;
            for outputs in side_by_side(group, outputs) {
                let buffer = if hands_on {
                    stream
                } else if outputs.iter().any(|value| is_alone(body, *value)) {
                    self.alone(body, &outputs)
                } else {
                    let busy = slices.iter().filter(|(value, _)| {
                        used_after(body, groups, at, **value)
                            || reads(body, group, **value)
                            || group.kept.contains(value)
                    });
                    let mut busy: Vec<BufferId> = busy.map(|(_, slice)| slice.buffer).collect();
                    busy.push(stream);
                    self.buffer(body, &outputs, &busy)
                };
                let mut column = 0;
                for value in outputs {
                    slices.insert(value, Slice { buffer, column });
                    column += body.values[value.0].width;
                }
            }
        }
        let end = slices[&body.output].buffer;
        if !last && end != stream {
            return Err(pass_error!("body `{}` does not hand on the residual stream", body.name));
        }
        Ok(slices)
    }

    /// The buffer of values that share theirs with no others: that of an earlier body, or a new one. In one
    /// body they follow each other.
    fn alone(&mut self, body: &Body, values: &[ValueId]) -> BufferId {
        let Value { rows, width, .. } = body.values[values[0].0];
        let known = self.alone.iter().find(|id| {
            let buffer = &self.buffers[id.0];
            (buffer.rows, buffer.width) == (rows, width) && buffer.name == "partial_sums"
        });
        if let Some(known) = known {
            return *known;
        }
        self.buffers.push(Buffer { name: "partial_sums".to_owned(), rows, width });
        let id = BufferId(self.buffers.len() - 1);
        self.alone.push(id);
        id
    }

    /// A buffer for these values side by side: a free one of that shape, or a new one.
    fn buffer(&mut self, body: &Body, values: &[ValueId], busy: &[BufferId]) -> BufferId {
        let rows = body.values[values[0].0].rows;
        let width = values.iter().map(|value| body.values[value.0].width).sum();
        let fits = |(i, buffer): (usize, &Buffer)| {
            let free = !busy.contains(&BufferId(i)) && !self.alone.contains(&BufferId(i));
            buffer.rows == rows && buffer.width == width && free
        };
        if let Some(free) = self.buffers.iter().enumerate().position(fits) {
            return BufferId(free);
        }
        let name = values.iter().map(|value| body.values[value.0].name.as_str()).collect::<Vec<_>>().concat();
        let taken = self.buffers.iter().any(|buffer| buffer.name == name);
        let name = if taken { format!("{}_{name}", body.name.replace('-', "_")) } else { name };
        self.buffers.push(Buffer { name, rows, width });
        BufferId(self.buffers.len() - 1)
    }
}

/// The values that leave a group, in the graph's order.
fn outputs(body: &Body, group: &Group) -> Vec<ValueId> {
    let mut outputs: Vec<ValueId> = group
        .nodes
        .iter()
        .map(|id| body.nodes[id.0].output)
        .filter(|value| {
            group.kept.contains(value) || !body.consumers(*value).any(|user| group.nodes.contains(&user))
        })
        .collect();
    outputs.sort();
    outputs
}

/// A group's outputs; those that its rule groups together share a buffer.
fn side_by_side(group: &Group, outputs: Vec<ValueId>) -> Vec<Vec<ValueId>> {
    if group.fusion.buffers.is_empty() {
        return vec![outputs];
    }
    let together = |names: &&[&str]| {
        let values: Vec<ValueId> = names.iter().filter_map(|name| group.values.get(*name).copied()).collect();
        outputs.iter().copied().filter(|value| values.contains(value)).collect()
    };
    group.fusion.buffers.iter().map(together).collect()
}

/// Whether the buffer of a value holds nothing else.
fn is_alone(body: &Body, value: ValueId) -> bool {
    let producer = body.producer(value).map(|id| &body.nodes[id.0].op);
    matches!(producer, Some(Op::Block(op)) if op.alone())
}

fn reads(body: &Body, group: &Group, value: ValueId) -> bool {
    group.nodes.iter().any(|NodeId(id)| body.nodes[*id].inputs.contains(&value))
}

fn used_after(body: &Body, groups: &[Group], at: usize, value: ValueId) -> bool {
    body.output == value || groups[at + 1..].iter().any(|group| reads(body, group, value))
}
