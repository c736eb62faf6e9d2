//! The exact computation, with nothing about how it is carried out.
//!
//! A graph is a few *bodies* (the embedding, one per kind of layer, the head) and a schedule that runs them
//! over the layers. Inside a body, ops read and write *values*: f32 matrices with a symbolic number of rows
//! (tokens in the step, or rows that need logits) and a known width.
//!
//! A model with a draft head has a second, smaller schedule: [`Graph::draft`]. A graph that takes images has
//! a third one, of the tower that makes rows of them: [`Graph::vision`]. A drafter of blocks has two:
//! [`Graph::dflash`].
//!
//! Invariants: nodes are in topological order; every value has one producer; a body reads no value of its
//! predecessor but the residual stream, and passes on its last value.

mod build;
mod op;

pub(crate) use build::{BodyBuilder, Builder};
pub use build::{build, build_with_dflash, build_with_vision};
pub use op::{Op, PositionAxis, RotaryFrequencies};

use crate::spec::types::{Compute, FileTensor, Scales, TensorClass};
use monomorph_abi::cut::{self, Segment};
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
    /// Tensors by symbolic name, including those of the draft head.
    pub weights: Vec<Weight>,
    /// The distinct bodies.
    pub bodies: Vec<Body>,
    /// The bodies in execution order.
    pub schedule: Vec<Run>,
    /// Value of the last body: the hidden states after the final norm, from which its logits are computed.
    pub hidden: ValueId,
    /// The draft head, if the checkpoint has one.
    pub draft: Option<DraftGraph>,
    /// The vision tower, if the graph was built with one.
    pub vision: Option<VisionGraph>,
    /// The drafter of blocks, if the graph was built with one.
    pub dflash: Option<DflashGraph>,
    /// Ranks that run it together; 1 unless [`shard`](crate::passes::shard) has cut it. Widths and shapes are
    /// those of one rank.
    pub ranks: usize,
}

/// The forward pass of a draft head, over the weights of its graph.
///
/// Its first body takes hidden states `h` after the final norm, one row per token, and looks up the embedding
/// of the token *after* each. Row `t` of its logits predicts the token after that. Its positions are those of
/// the rows, from 0. Its layers are one body, index 0, with keys and values of its own at these positions.
#[derive(Clone, Debug)]
pub struct DraftGraph {
    /// The distinct bodies, indexed by [`Run::body`] of its own schedule.
    pub bodies: Vec<Body>,
    /// The bodies in execution order.
    pub schedule: Vec<Run>,
    /// Value of its last body: takes the place of `h` when it continues from its own drafts.
    pub hidden: ValueId,
}

/// A drafter of blocks over the weights of its graph, with a cache of its own at the model's positions.
///
/// `context` runs over tokens that the model was fed: its first body takes their residual streams behind the
/// taps, side by side; keys and values of each are appended to the cache, and its output is of no use.
/// `block` runs over rows whose ids are the token sampled last and masks; its layers attend to the cache
/// before them and to each other, and what they append is to be dropped. Row `j` of its logits is about the
/// token at the row's own position.
#[derive(Clone, Debug)]
pub struct DflashGraph {
    /// Layers of the model behind which it reads the residual stream, ascending.
    pub taps: Vec<usize>,
    /// The id of all rows of a block but the first.
    pub mask: u32,
    /// The distinct bodies, indexed by [`Run::body`] of its own schedules.
    pub bodies: Vec<Body>,
    /// What is run for tokens that the model was fed.
    pub context: Vec<Run>,
    /// The pass that drafts.
    pub block: Vec<Run>,
}

/// The forward pass of a vision tower, over the weights of its graph.
///
/// Its first body takes rows of pixels, one per patch; its last gives a row per token of an image, as wide as
/// the text model's residual stream.
#[derive(Clone, Debug)]
pub struct VisionGraph {
    /// The distinct bodies, indexed by [`Run::body`] of its own schedule.
    pub bodies: Vec<Body>,
    /// The bodies in execution order.
    pub schedule: Vec<Run>,
    /// What further runs make of rows in between, in the order of their results.
    pub branches: Vec<Branch>,
}

/// A run whose result leaves the schedule, which goes on as if it had not been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// The layer of the tower whose rows it takes.
    pub after: usize,
    /// What it runs; its layer counts branches.
    pub run: Run,
}

/// A tensor of the model. A name with `{layer}` stands for one tensor per layer, one with `{expert}` for one
/// per expert.
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    /// The model's name for it.
    pub name: String,
    /// The line of the precision contract that applies to it.
    pub class: TensorClass,
    /// Outputs, or the length of a vector.
    pub rows: usize,
    /// Inputs; 1 for a vector.
    pub columns: usize,
    /// Number of experts that have one each, if the name contains `{expert}`; of a cut weight, a rank's.
    pub experts: Option<usize>,
    /// The tensor in the checkpoint.
    pub file: FileTensor,
    /// Shape of that tensor, outermost dimension first.
    pub file_shape: Vec<usize>,
    /// Format in the checkpoint.
    pub stored: Format,
    /// Compute format, to which operands are rounded before a product with it.
    pub compute: Compute,
    /// Scales of its codes, if they are tensors of their own.
    pub scales: Option<Scales>,
    /// Whether the file holds `-exp(x)` of every number `x`.
    pub negative_rates: bool,
    /// The part of the tensor that a rank holds; `rows` and `columns` are those of the part.
    pub cut: RankPart,
}

/// The part of a tensor that a rank holds. Segments cover the tensor's first rows, or all its columns; of
/// experts a rank holds as many as any other, one after another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankPart {
    /// How its rows are shared out; empty if every rank holds all of them.
    pub rows: Vec<Segment>,
    /// How its columns are.
    pub columns: Vec<Segment>,
    /// Whether it holds its share of the experts, each whole.
    pub experts: bool,
    /// Whether only the first rank holds the values and the others hold zeros: a bias of a product that is
    /// summed over the ranks.
    pub first_rank_only: bool,
}

impl RankPart {
    /// Rows shared out by these segments.
    pub fn rows(segments: impl Into<Vec<Segment>>) -> RankPart {
        RankPart { rows: segments.into(), ..RankPart::default() }
    }

    /// Columns shared out by these segments.
    pub fn columns(segments: impl Into<Vec<Segment>>) -> RankPart {
        RankPart { columns: segments.into(), ..RankPart::default() }
    }

    /// A share of the experts.
    pub fn experts() -> RankPart {
        RankPart { experts: true, ..RankPart::default() }
    }

    /// Whether every rank holds the whole tensor.
    pub fn is_whole(&self) -> bool {
        *self == RankPart::default()
    }
}

impl Weight {
    /// Elements of one instance, and of one expert.
    pub fn elements(&self) -> usize {
        self.rows * self.columns
    }

    /// Columns of the checkpoint's tensor, of which a rank may hold some.
    pub fn file_columns(&self) -> usize {
        match &self.cut.columns[..] {
            [] => self.columns,
            cut => cut::whole(cut),
        }
    }

    /// Stored bytes of one instance, and of one expert, without the scales beside it.
    pub fn bytes(&self) -> usize {
        self.stored.bytes(self.elements()).expect("the spec checks that rows fill whole blocks")
    }
}

/// One execution of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The body executed.
    pub body: BodyId,
    /// The layer whose weights and cache it uses; `None` outside the layers.
    pub layer: Option<usize>,
}

/// A piece of the forward pass.
#[derive(Clone, Debug)]
pub struct Body {
    /// `embed`, `head`, or the mixer's name; in a draft head, with the prefix `draft_`.
    pub name: String,
    /// All values that ops read and write; a value without a producer is an input.
    pub values: Vec<Value>,
    /// Ops in execution order.
    pub nodes: Vec<Node>,
    /// The incoming residual stream, if any; at the start of a draft, the hidden states.
    pub input: Option<ValueId>,
    /// The value passed on.
    pub output: ValueId,
}

/// A matrix of f32 activations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Name, unique in its body.
    pub name: String,
    /// Number of rows.
    pub rows: Rows,
    /// Columns of a row.
    pub width: usize,
}

/// A symbolic number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// One per token of the step.
    Tokens,
    /// One per token that needs logits.
    Outputs,
    /// This many per token, side by side: one for each expert chosen.
    Slots(usize),
    /// One per patch of the images that a tower is run over.
    Patches,
    /// One per token that stands for a part of these images.
    ImageTokens,
}

/// An op with its operands.
#[derive(Clone, Debug)]
pub struct Node {
    /// What the node computes.
    pub op: Op,
    /// Operands in the op's order.
    pub inputs: Vec<ValueId>,
    /// The value it writes.
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
    /// Number of layers that run this body; 1 for a body outside the layers.
    pub fn runs(&self, body: BodyId) -> usize {
        self.schedule.iter().filter(|run| run.body == body).count()
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
    /// The head width of a projection, or of its bias, whose output a rotary op rotates, directly or after a
    /// norm; `None` for other weights. Files that permute q and k permute these.
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

/// The row in a file with interleaved rotary rows that holds model row `row` of a q or k projection.
pub fn file_row(row: usize, head_dim: usize) -> usize {
    let (head, within) = (row / head_dim, row % head_dim);
    let (pair, half) = (within % (head_dim / 2), within / (head_dim / 2));
    head * head_dim + 2 * pair + half
}
