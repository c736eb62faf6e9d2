//! What is computed, exactly, and nothing about how.
//!
//! A graph is a few *bodies* (the embedding, one per kind of layer, the head) and a schedule that runs them
//! over the layers. Inside a body, ops read and write *values*: matrices of f32 with a symbolic number of
//! rows (tokens in the step, or rows whose logits are wanted) and a known width.
//!
//! A model with a draft head has a second, smaller schedule: [`Graph::draft`].
//!
//! Invariants: nodes stand in topological order; every value has one producer; a body reads at most the
//! residual stream of its predecessor, and its last value is what it hands on.

mod build;
mod op;

pub use build::build;
pub(crate) use build::{BodyBuilder, Builder};
pub use op::{Op, RotaryFrequencies};

use crate::spec::types::{Compute, FileTensor, Scales, TensorClass};
use monomorph_formats::Format;

/// Index into [`Graph::weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WeightId(pub usize);

/// Index into [`Body::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub usize);

/// Index into [`Body::nodes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub usize);

/// Index into [`Graph::bodies`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BodyId(pub usize);

/// A whole forward pass.
#[derive(Clone, Debug)]
pub struct Graph {
    /// Tensors by symbolic name, those of the draft head included.
    pub weights: Vec<Weight>,
    /// The distinct pieces.
    pub bodies: Vec<Body>,
    /// The pieces in execution order.
    pub schedule: Vec<Run>,
    /// Of the last body: the hidden states after the final norm, which its logits are made of.
    pub hidden: ValueId,
    /// The draft head, where the checkpoint has one.
    pub draft: Option<DraftGraph>,
}

/// The forward pass of a draft head, over the weights of the graph it stands in.
///
/// Its first body is handed hidden states `h` after the final norm, a row a token, and looks up the embedding
/// of the token *after* each; row `t` of its logits is about the token after that. Its positions are those of
/// the rows, from 0, and its layer, the one with index 0, has keys and values of its own, rotated at these
/// positions.
#[derive(Clone, Debug)]
pub struct DraftGraph {
    /// The distinct pieces, by [`Run::body`] of its own schedule.
    pub bodies: Vec<Body>,
    /// The pieces in execution order.
    pub schedule: Vec<Run>,
    /// Of its last body: what stands for `h` where it goes on from its own drafts.
    pub hidden: ValueId,
}

/// A tensor of the model. One whose name contains `{layer}` exists once a layer, one with `{expert}` once an
/// expert.
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    /// The model's name for it.
    pub name: String,
    /// Which line of the precision contract it falls under.
    pub class: TensorClass,
    /// Outputs (or the length of a vector).
    pub rows: usize,
    /// Inputs; 1 for a vector.
    pub columns: usize,
    /// How many experts have one each, where its name contains `{expert}`.
    pub experts: Option<usize>,
    /// What holds it in the checkpoint.
    pub file: FileTensor,
    /// The shape of that, outermost dimension first.
    pub file_shape: Vec<usize>,
    /// As the checkpoint stores it.
    pub stored: Format,
    /// What operands are rounded to before a product with it.
    pub compute: Compute,
    /// The scales its codes are multiplied by, where they stand in tensors of their own.
    pub scales: Option<Scales>,
}

impl Weight {
    /// Elements of one instance, of one expert.
    pub fn elements(&self) -> usize {
        self.rows * self.columns
    }

    /// Stored bytes of one instance, of one expert, scales beside it not counted.
    pub fn bytes(&self) -> usize {
        self.stored.bytes(self.elements()).expect("the spec checks that rows fill whole blocks")
    }
}

/// One execution of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Which.
    pub body: BodyId,
    /// The layer whose weights and cache it uses; `None` outside the layers.
    pub layer: Option<usize>,
}

/// A piece of the forward pass.
#[derive(Clone, Debug)]
pub struct Body {
    /// `embed`, `head`, or the mixer's name; of a draft head these after `draft_`.
    pub name: String,
    /// Everything ops read and write; a value no node writes is an input.
    pub values: Vec<Value>,
    /// Ops in execution order.
    pub nodes: Vec<Node>,
    /// The residual stream handed in, if any; hidden states where a draft begins.
    pub input: Option<ValueId>,
    /// What is handed on.
    pub output: ValueId,
}

/// A matrix of f32 activations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Unique in its body.
    pub name: String,
    /// Number of rows.
    pub rows: Rows,
    /// Columns.
    pub width: usize,
}

/// A symbolic number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// One a token of the step.
    Tokens,
    /// One a token whose logits are wanted.
    Outputs,
    /// So many a token, side by side: one for each expert it is given to.
    Slots(usize),
}

/// An op with its operands.
#[derive(Clone, Debug)]
pub struct Node {
    /// What is computed.
    pub op: Op,
    /// Operands in the op's order.
    pub inputs: Vec<ValueId>,
    /// Result.
    pub output: ValueId,
}

impl Body {
    /// The node that writes a value; `None` for the body's input.
    pub fn producer(&self, value: ValueId) -> Option<NodeId> {
        self.nodes.iter().position(|node| node.output == value).map(NodeId)
    }

    /// The nodes that read a value.
    pub fn consumers(&self, value: ValueId) -> impl Iterator<Item = NodeId> + '_ {
        let reads = move |node: &&Node| node.inputs.contains(&value);
        self.nodes.iter().enumerate().filter(move |(_, node)| reads(node)).map(|(i, _)| NodeId(i))
    }
}

impl Graph {
    /// How many layers run this body (1 for a body outside the layers).
    pub fn runs(&self, body: BodyId) -> usize {
        self.schedule.iter().filter(|run| run.body == body).count()
    }

    /// The symbolic weight's name in one layer.
    pub fn weight_name(&self, weight: WeightId, layer: Option<usize>) -> String {
        instance(&self.weights[weight.0].name, layer)
    }
}

/// Puts a layer's index into a symbolic name.
pub fn instance(name: &str, layer: Option<usize>) -> String {
    match layer {
        Some(layer) => name.replace("{layer}", &layer.to_string()),
        None => name.to_owned(),
    }
}

impl Graph {
    /// The head width of a projection (or of its bias) whose output a rotary op turns, through a norm
    /// or not; `None` for other weights. Files that permute q and k permute these.
    pub fn rotary_head_dim(&self, weight: WeightId) -> Option<usize> {
        let drafts = self.draft.iter().flat_map(|draft| &draft.bodies);
        self.bodies.iter().chain(drafts).find_map(|body| {
            let linear = body
                .nodes
                .iter()
                .find(|node| matches!(node.op, Op::Linear { .. }) && node.op.weights().contains(&weight))?;
            let mut reached = linear.output;
            loop {
                let next = body.consumers(reached).map(|id| &body.nodes[id.0]).next()?;
                match next.op {
                    Op::Rotary { head_dim, .. } => return Some(head_dim),
                    Op::RmsNorm { .. } => reached = next.output,
                    _ => return None,
                }
            }
        })
    }
}

/// Where model row `row` of a q or k projection stands in a file with interleaved rotary rows.
pub fn file_row(row: usize, head_dim: usize) -> usize {
    let (head, within) = (row / head_dim, row % head_dim);
    let (pair, half) = (within % (head_dim / 2), within / (head_dim / 2));
    head * head_dim + 2 * pair + half
}
