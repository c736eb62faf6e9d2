//! Covers every op of a graph with exactly one fusion rule.

use super::lower::Group;
use super::rules::Rule;
use super::{PassError, pass_error};
use crate::graph::{Body, Graph, NodeId, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// The graph's bodies as groups of fused nodes.
#[derive(Clone, Debug)]
pub struct Fused {
    /// One list per body, in which every group comes after those it reads from.
    pub bodies: Vec<Vec<Group>>,
}

/// Matches `rules` against `graph`.
///
/// # Errors
/// Names the op that no rule matches, or the two rules that match the same op.
pub fn fuse(graph: &Graph, rules: &[Rule]) -> Result<Fused, PassError> {
    Ok(Fused { bodies: graph.bodies.iter().map(|body| fuse_body(body, rules)).collect::<Result<_, _>>()? })
}

fn fuse_body(body: &Body, rules: &[Rule]) -> Result<Vec<Group>, PassError> {
    let mut groups: Vec<Group> = rules.iter().flat_map(|rule| matches(body, rule)).collect();
    for (id, node) in body.nodes.iter().enumerate() {
        let name =
            || format!("`{}` ({}) of body `{}`", body.values[node.output.0].name, node.op.name(), body.name);
        let covering: Vec<&Group> = groups.iter().filter(|group| group.nodes.contains(&NodeId(id))).collect();
        match covering[..] {
            [] => return Err(pass_error!("no fusion rule matches {}", name())),
            [_] => {}
            [a, b, ..] => {
                return Err(pass_error!(
                    "fusion rules `{}` and `{}` both match {}",
                    a.fusion.name,
                    b.fusion.name,
                    name()
                ));
            }
        }
    }
    // A group is ready once its last node is: nodes are in topological order.
    groups.sort_by_key(|group| group.nodes.iter().copied().max());
    for (at, group) in groups.iter().enumerate() {
        let read = group.nodes.iter().flat_map(|id| &body.nodes[id.0].inputs);
        let late = read.copied().find(|value| {
            let maker = body.producer(*value);
            maker.is_some_and(|maker| groups[at + 1..].iter().any(|later| later.nodes.contains(&maker)))
        });
        if let Some(value) = late {
            let (name, rule, body) = (&body.values[value.0].name, group.fusion.name, &body.name);
            return Err(pass_error!("`{rule}` of body `{body}` reads `{name}` before its group is complete"));
        }
    }
    Ok(groups)
}

/// All matches of a rule, one group per set of nodes. If operands are interchangeable (three products of the
/// same norm), names go to nodes in the graph's order.
fn matches(body: &Body, rule: &Rule) -> Vec<Group> {
    let mut found = Vec::new();
    extend(body, rule, &mut Vec::new(), &BTreeMap::new(), &mut found);
    let mut seen = BTreeSet::new();
    found.retain(|group| seen.insert(group.nodes.iter().copied().collect::<BTreeSet<_>>()));
    found
}

fn extend(
    body: &Body,
    rule: &Rule,
    nodes: &mut Vec<NodeId>,
    values: &BTreeMap<String, ValueId>,
    found: &mut Vec<Group>,
) {
    let Some(term) = rule.terms.get(nodes.len()) else {
        let kept: Vec<ValueId> = rule.kept.iter().map(|name| values[name]).collect();
        if closed(body, nodes, &kept) && origins_hold(body, rule, values) {
            let (nodes, values) = (nodes.clone(), values.clone());
            found.push(Group { fusion: rule.fusion, nodes, values, kept });
        }
        return;
    };
    for (id, node) in body.nodes.iter().enumerate() {
        let fits = node.op.name() == term.op && node.inputs.len() == term.operands.len();
        if !fits || nodes.contains(&NodeId(id)) {
            continue;
        }
        let mut bound = values.clone();
        let names = term.operands.iter().chain([&term.value]);
        let mut ids = node.inputs.iter().chain([&node.output]);
        let agrees = names.into_iter().all(|name| {
            let id = *ids.next().expect("as many values as names");
            *bound.entry(name.clone()).or_insert(id) == id
        });
        if agrees {
            nodes.push(NodeId(id));
            extend(body, rule, nodes, &bound, found);
            nodes.pop();
        }
    }
}

/// Whether nothing outside the group reads the values that the group reads itself, except those it keeps.
fn closed(body: &Body, nodes: &[NodeId], kept: &[ValueId]) -> bool {
    let outputs = nodes.iter().map(|id| body.nodes[id.0].output);
    outputs.filter(|output| !kept.contains(output)).all(|output| {
        let inside = body.consumers(output).filter(|user| nodes.contains(user)).count();
        let total = body.consumers(output).count() + usize::from(body.output == output);
        inside == 0 || inside == total
    })
}

fn origins_hold(body: &Body, rule: &Rule, values: &BTreeMap<String, ValueId>) -> bool {
    let made_by = |(value, op): &(String, String)| {
        let producer = values.get(value).and_then(|value| body.producer(*value));
        producer.is_some_and(|id| body.nodes[id.0].op.name() == op)
    };
    let read_by = |(value, op): &(String, String)| {
        let is_op = |reader: NodeId| body.nodes[reader.0].op.name() == op;
        values.get(value).is_some_and(|value| body.consumers(*value).all(is_op))
    };
    let made = rule.origins.iter().all(made_by) && !rule.others.iter().any(made_by);
    made && rule.readers.iter().all(read_by)
        && rule.handed_on.iter().all(|value| values.get(value) == Some(&body.output))
}
