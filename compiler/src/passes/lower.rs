//! Turns a group of ops into a phase: the matching rule picks the phase, and finds fields and buffers by its
//! names for values.

use super::fuse::Group;
use super::layout::Uses;
use super::memory::Slice;
use super::{PassError, pass_error};
use crate::blocks::PhaseKind;
use crate::graph::{Body, Op, ValueId};
use crate::plan::{BufferId, FieldId};
use std::collections::BTreeMap;

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
        if self.uses.biases.values().all(|bias| fields.contains(bias)) {
            return Ok(kind);
        }
        let (rule, body) = (self.group.fusion.name, &self.body.name);
        Err(pass_error!("a product of `{rule}` in `{body}` has a bias, which its phase does not add"))
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

    /// The weight of the norm that computes a value.
    pub fn norm(&self, value: &str) -> FieldId {
        self.uses.norms[value]
    }

    /// The matrix that holds a product.
    pub fn matrix(&self, value: &str) -> FieldId {
        self.uses.matrices[value]
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
