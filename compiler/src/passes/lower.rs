//! Turns a group of ops into a phase: the matching rule picks the phase, and finds fields and buffers by its
//! names for values. A rule, the group it matched and what its lowering sees name each other, so all of them
//! stand here.

use super::{PassError, pass_error};
use crate::blocks::PhaseKind;
use crate::graph::{Body, NodeId, Op, ValueId};
use crate::plan::{BufferId, FieldId, Packing};
use std::collections::BTreeMap;

/// A fusion rule: the ops that become a phase, the layout of their weights and results, and the phase.
#[derive(Debug)]
pub struct Fusion {
    /// Name in errors.
    pub name: &'static str,
    /// The pattern of ops.
    pub pattern: &'static str,
    /// Products of the pattern that share a matrix.
    pub matrices: &'static [(&'static [&'static str], Packing)],
    /// Values of the pattern that share a buffer, unless all of its results do.
    pub buffers: &'static [&'static [&'static str]],
    /// Builds the phase.
    pub lower: fn(&Lowering) -> Result<PhaseKind, PassError>,
}

/// The nodes that one rule matched.
#[derive(Clone, Debug)]
pub struct Group {
    /// The rule that matched.
    pub fusion: &'static Fusion,
    /// The nodes, in the order of the rule's terms.
    pub nodes: Vec<NodeId>,
    /// Values by the names they have in the rule.
    pub values: BTreeMap<String, ValueId>,
    /// Values kept for others although the group reads them itself.
    pub kept: Vec<ValueId>,
}

impl Group {
    /// The value that the rule calls `name`.
    ///
    /// # Panics
    /// If the rule has no such name: lowering and rule disagree.
    pub fn value(&self, name: &str) -> ValueId {
        *self
            .values
            .get(name)
            .unwrap_or_else(|| panic!("rule `{}` names no value `{name}`", self.fusion.name))
    }
}

/// The fields that one group reads, under its rule's names for values.
#[derive(Clone, Debug, Default)]
pub struct Uses {
    /// Weights of norms.
    pub norms: BTreeMap<String, FieldId>,
    /// The matrix that holds a product.
    pub matrices: BTreeMap<String, FieldId>,
    /// Under the name of a gate, or of gate and up in one: the matrix of up, where it is not the gate's.
    pub ups: BTreeMap<String, FieldId>,
    /// The bias of a product, or of all products of a matrix.
    pub biases: BTreeMap<String, FieldId>,
    /// Fields that a block's op reads besides matrices, in its order.
    pub own: BTreeMap<String, Vec<FieldId>>,
}

/// A range of a buffer's columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Buffer that holds the value.
    pub buffer: BufferId,
    /// First column.
    pub column: usize,
}

/// A product and where its results go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SideProduct {
    /// One or more matrices of one format stacked.
    pub matrix: FieldId,
    /// Biases of all of them.
    pub bias: Option<FieldId>,
    /// Where its results go.
    pub out: BufferId,
    /// The column of the first of them.
    pub column: usize,
}

/// One group about to become a phase.
#[derive(Debug)]
pub struct Lowering<'a> {
    /// The body it belongs to.
    pub body: &'a Body,
    pub(super) group: &'a Group,
    pub(super) uses: &'a Uses,
    pub(super) slices: &'a BTreeMap<ValueId, Slice>,
    /// The norm before the model's head.
    pub final_norm: Option<FieldId>,
    /// Whether only draft passes run the body.
    pub in_draft: bool,
}

impl Lowering<'_> {
    /// Lowers the group.
    pub(super) fn kind(&self) -> Result<PhaseKind, PassError> {
        let kind = (self.group.fusion.lower)(self)?;
        let fields = kind.fields();
        let (rule, body) = (self.group.fusion.name, &self.body.name);
        if self.uses.biases.values().any(|bias| !fields.contains(bias)) {
            return Err(pass_error!(
                "a product of `{rule}` in `{body}` has a bias, which its phase does not add"
            ));
        }
        let mut matrices = self.uses.matrices.iter().chain(&self.uses.ups);
        match matrices.find(|(_, matrix)| !fields.contains(matrix)) {
            None => Ok(kind),
            Some((value, _)) => Err(pass_error!(
                "`{value}` of `{rule}` in `{body}` is stored unlike what stands beside it; its phase takes one format"
            )),
        }
    }

    /// The op that computes a value.
    ///
    /// # Panics
    /// Here and below, if the rule has no such value, or the value is of another kind: rule and lowering
    /// disagree.
    pub fn op(&self, value: &str) -> &Op {
        let producer = self.body.producer(self.group.value(value)).expect("a value of the pattern");
        &self.body.nodes[producer.0].op
    }

    /// The op that computes a value, if the rule has such a value.
    pub fn given(&self, value: &str) -> Option<&Op> {
        self.group.values.contains_key(value).then(|| self.op(value))
    }

    /// The weight of the norm that computes a value.
    pub fn norm(&self, value: &str) -> FieldId {
        self.uses.norms[value]
    }

    /// The matrix that holds a product.
    pub fn matrix(&self, value: &str) -> FieldId {
        self.uses.matrices[value]
    }

    /// The matrix of up, where it is another than that of `gate`, or of gate and up in one.
    pub fn up(&self, gate: &str) -> Option<FieldId> {
        self.uses.ups.get(gate).copied()
    }

    /// The matrices of the rule's products, in its order, each with where its first product goes.
    pub fn products(&self) -> Vec<SideProduct> {
        let values = self.group.fusion.matrices.iter().flat_map(|(values, _)| values.iter());
        let mut products: Vec<SideProduct> = Vec::new();
        for value in values {
            let (matrix, Slice { buffer: out, column }) = (self.matrix(value), self.slice(value));
            if products.last().is_none_or(|last| last.matrix != matrix) {
                products.push(SideProduct { matrix, bias: self.bias(value), out, column });
            }
        }
        products
    }

    /// The bias of a product, or of all products of its matrix.
    pub fn bias(&self, value: &str) -> Option<FieldId> {
        self.uses.biases.get(value).copied()
    }

    /// The block's op that computes a value.
    pub fn block_op<'a, T>(&'a self, value: &str) -> &'a T
    where
        &'a T: TryFrom<&'a Op>,
    {
        self.op(value).try_into().ok().expect("the op that the rule says")
    }

    /// Fields that the op reads besides matrices, in its order.
    pub fn own<const N: usize>(&self, value: &str) -> [FieldId; N] {
        self.uses.own[value][..].try_into().expect("as many as the op has")
    }

    /// All fields that the op of a value reads besides matrices.
    pub fn all_own(&self, value: &str) -> Vec<FieldId> {
        self.uses.own[value].clone()
    }

    /// The buffer columns of a value.
    pub fn slice(&self, value: &str) -> Slice {
        self.slices[&self.group.value(value)]
    }

    /// The buffer that starts with a value.
    ///
    /// # Errors
    /// When the value does not start a buffer.
    pub fn whole(&self, value: &str) -> Result<BufferId, PassError> {
        let slice = self.slice(value);
        if slice.column != 0 {
            return Err(pass_error!("`{value}` of `{}` does not begin its buffer", self.body.name));
        }
        Ok(slice.buffer)
    }
}
