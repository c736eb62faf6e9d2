//! State that the layers of a body keep from step to step, by the kind of memory that holds it.

use super::{LoweredPhase, PlanBody, Structure};
use crate::graph::RotaryFrequencies;
use crate::spec::types::{HardwareKind, Target};
use monomorph_abi::kv::Layout;
use monomorph_abi::state::{CpuState, Recurrence};
use monomorph_formats::cached::KvFormats;

/// State that a layer keeps of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// Keys and values of its tokens, in blocks, in these formats.
    Blocks(KvHeads, KvFormats),
    /// Recurrent state, which every token changes.
    State(State),
}

/// Keys and values that a layer keeps of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvHeads {
    /// Key and value heads.
    pub heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Width of latents: the leading part of a key that is its value too, which is not stored besides. `None`
    /// of heads with values of their own.
    pub latent: Option<usize>,
    /// Positions that a token attends to at most, its own among them, of layers that give back the blocks
    /// behind these. `None` of layers that keep all blocks of a sequence.
    pub window: Option<usize>,
}

impl KvHeads {
    /// Layout of a block of so many tokens in a layer's cache.
    pub fn layout(self, hardware: &HardwareKind, tokens: usize, formats: KvFormats) -> Layout {
        let layout = match hardware {
            HardwareKind::Cpu(_) => Layout::cpu,
            HardwareKind::Cuda(_) => Layout::cuda,
        };
        let layout = layout(self.heads, self.head_dim, tokens, formats);
        match self.latent {
            None => layout,
            Some(latent) => layout.of_latents(latent),
        }
    }

    /// Elements of a token's keys and values.
    pub fn elements(self) -> usize {
        self.heads * self.head_dim * (1 + usize::from(self.latent.is_none()))
    }
}

/// The recurrent state of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Const parameters of the CPU backend's state type.
    pub parameters: Vec<usize>,
    /// Its parts on the target: one on a CPU; on a CUDA device several, each in memory of its own.
    pub parts: Vec<StatePart>,
}

/// A part of the state of a sequence in one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatePart {
    /// Name in launches.
    pub name: &'static str,
    /// Size in bytes.
    pub bytes: usize,
}

impl State {
    /// A state of one matrix per head and a window of convolution inputs; on a CUDA device, of the parts
    /// given as name and bytes.
    pub fn new(kept: &Recurrence, target: &Target, cuda: &[(&'static str, usize)]) -> State {
        let drafts = target.drafts();
        let on_cpu = [("state", CpuState::new(kept, drafts).bytes())];
        let parts = match target.hardware.kind {
            HardwareKind::Cpu(_) => &on_cpu,
            HardwareKind::Cuda(_) => cuda,
        };
        let mut parameters = vec![kept.heads, kept.rows, kept.columns, kept.channels, kept.taps];
        parameters.extend((drafts > 0).then_some(drafts));
        let parts = parts.iter().map(|(name, bytes)| StatePart { name, bytes: *bytes }).collect();
        State { parameters, parts }
    }

    /// Bytes of all parts.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes).sum()
    }
}

impl<P: AsRef<LoweredPhase>> PlanBody<P> {
    /// State its layers keep of a sequence, if any.
    pub fn keeps(&self, target: &Target) -> Option<Keeps> {
        self.phases.iter().find_map(|phase| phase.as_ref().kind.keeps(target))
    }

    /// Rotary frequencies of its layers' heads, if any.
    pub fn frequencies(&self) -> Option<&RotaryFrequencies> {
        self.phases.iter().find_map(|phase| phase.as_ref().kind.kind().frequencies())
    }
}

impl<P: AsRef<LoweredPhase>> Structure<P> {
    /// Heads of the K/V cache that layers of a body keep, if any.
    pub fn kv_heads(&self, body: &PlanBody<P>) -> Option<KvHeads> {
        match body.keeps(&self.target) {
            Some(Keeps::Blocks(heads, _)) => Some(heads),
            _ => None,
        }
    }

    /// Formats of the keys and values that layers of a body keep, if any.
    pub fn kv_formats(&self, body: &PlanBody<P>) -> Option<KvFormats> {
        match body.keeps(&self.target) {
            Some(Keeps::Blocks(_, formats)) => Some(formats),
            _ => None,
        }
    }

    /// Layout of a block in the cache that layers of a body keep, if any.
    pub fn kv_layout(&self, body: &PlanBody<P>) -> Option<Layout> {
        let Target { hardware, quant, .. } = &self.target;
        Some(self.kv_heads(body)?.layout(&hardware.kind, quant.kv_block, self.kv_formats(body)?))
    }

    /// Recurrent state that layers of a body keep of a sequence, if any.
    pub fn state(&self, body: &PlanBody<P>) -> Option<State> {
        match body.keeps(&self.target) {
            Some(Keeps::State(state)) => Some(state),
            _ => None,
        }
    }

    /// Bytes of a K/V block over all layers that keep all blocks of a sequence, including the draft head's.
    pub fn kv_block_bytes(&self) -> u64 {
        self.of_layers(|body| if self.window(body).is_some() { 0 } else { self.block_bytes(body) })
    }

    /// Elements of a token's keys and values over all layers that keep all blocks of a sequence, including
    /// the draft head's.
    pub fn kv_elements(&self) -> usize {
        let each = |body: &PlanBody<P>| {
            let heads = self.kv_heads(body).filter(|heads| heads.window.is_none());
            heads.map_or(0, KvHeads::elements)
        };
        self.of_layers(each) as usize
    }

    /// How many layers keep keys and values in other formats than the quant spec's: exact ones.
    pub fn kv_exact_layers(&self) -> usize {
        let exact = |body: &&PlanBody<P>| {
            self.kv_formats(body).is_some_and(|formats| formats != self.target.quant.kv_formats)
        };
        self.bodies.iter().filter(exact).map(|body| body.layers.len()).sum()
    }

    /// The layers that give back the blocks behind a window, if there are some: the longest of their windows,
    /// and the bytes of a block over all of them.
    pub fn sliding(&self) -> Option<(usize, u64)> {
        let window = self.bodies.iter().filter_map(|body| self.window(body)).max()?;
        let bytes =
            self.of_layers(|body| if self.window(body).is_some() { self.block_bytes(body) } else { 0 });
        Some((window, bytes))
    }

    /// The window behind which layers of a body give back blocks, if they do.
    pub fn window(&self, body: &PlanBody<P>) -> Option<usize> {
        self.kv_heads(body)?.window
    }

    /// Bytes of a K/V block in a layer of a body; 0 where it keeps none.
    fn block_bytes(&self, body: &PlanBody<P>) -> usize {
        self.kv_layout(body).map_or(0, |layout| layout.block_bytes())
    }

    /// Bytes of recurrent state of a sequence over all layers.
    pub fn state_bytes(&self) -> u64 {
        self.of_layers(|body| self.state(body).map_or(0, |state| state.bytes()))
    }

    /// Sums `each` over all layers.
    fn of_layers(&self, each: impl Fn(&PlanBody<P>) -> usize) -> u64 {
        let layers = self.bodies.iter().map(|body| (body, body.layers.len()));
        let draft = self.draft_layer().map(|body| (body, 1));
        layers.chain(draft).map(|(body, layers)| (each(body) * layers) as u64).sum()
    }
}
