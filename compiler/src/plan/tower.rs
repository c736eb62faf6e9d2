//! The vision tower of a target that takes images.

use super::{BufferId, Structure};
use crate::graph::BodyId;
use crate::spec::types::Vision;
use monomorph_abi::images::PASS_IMAGES;

/// Most patches of a pass on a CPU where a build does not say: 1024 x 1024 pixels in patches of 16. Attention
/// to all of an image takes seconds there, and what a pass works in a tenth of a megabyte a patch.
const MOST_PATCHES: usize = 4096;

/// The same on a CUDA device: 2048 x 1024 pixels.
const MOST_ON_CARDS: usize = 8192;

/// Patches of a pass that is one step, which other sequences wait for: some tenths of a second on a CPU.
const STEP_PATCHES: usize = 256;

/// The same on a CUDA device: 20 ms of an H200.
const STEP_ON_CARDS: usize = 4096;

/// Patches of programs that take fewer, on a CUDA device: tiles for thousands of them leave most
/// multiprocessors idle. Pictures of 512 x 512 and of 1024 x 1024 pixels in patches of 16.
const SHORTER: [usize; 2] = [1024, 4096];

/// Images whose rows are kept, beside those of steps that wait: as many as a prompt usually has.
const SLOTS: usize = 8;

/// The schedule of a tower, whose bodies follow the model's. A pass takes the patches of an image, or
/// of several small ones, and leaves a row for each token of an image in a slot, followed by those of each
/// branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TowerPlan {
    /// The first of its bodies; all behind it are its own.
    pub first: BodyId,
    /// Execution order: body, and layer if it has one.
    pub schedule: Vec<(BodyId, Option<usize>)>,
    /// What further runs make of rows in between, in the order of their results: the layer behind which they
    /// run, and their body.
    pub branches: Vec<(usize, BodyId)>,
    /// Most patches of a pass.
    pub most_patches: usize,
    /// Most images of a pass: one on a CPU, whose cores one image keeps busy.
    pub pass_images: usize,
    /// Patches of a pass that is one step.
    pub step_patches: usize,
    /// Patches of each program of a CUDA device, ascending: the last takes most.
    pub buckets: Vec<usize>,
    /// Patches that become one token.
    pub merged: usize,
    /// Images whose rows are kept.
    pub slots: usize,
}

impl TowerPlan {
    /// The plan of a tower with these bodies and this schedule, whose passes take as many patches as the
    /// build asked for. A pass takes whole tokens.
    pub(crate) fn new(
        vision: &Vision,
        on_card: bool,
        asked: Option<usize>,
        first: BodyId,
        schedule: Vec<(BodyId, Option<usize>)>,
        branches: Vec<(usize, BodyId)>,
    ) -> TowerPlan {
        let merged = vision.merged();
        let whole = |patches: usize| (patches / merged).max(1) * merged;
        let most_patches = whole(asked.unwrap_or(if on_card { MOST_ON_CARDS } else { MOST_PATCHES }));
        let step_patches = if on_card { STEP_ON_CARDS } else { STEP_PATCHES };
        let shorter = || SHORTER.map(whole).into_iter().filter(|patches| *patches < most_patches);
        let buckets = if on_card { shorter().chain([most_patches]).collect() } else { Vec::new() };
        let pass_images = if on_card { PASS_IMAGES.min(SLOTS) } else { 1 };
        TowerPlan {
            first,
            schedule,
            branches,
            most_patches,
            pass_images,
            step_patches,
            buckets,
            merged,
            slots: SLOTS,
        }
    }

    /// Has a body more before its own.
    pub(crate) fn make_room(&mut self) {
        let schedule = self.schedule.iter_mut().map(|(body, _)| body);
        let branches = self.branches.iter_mut().map(|(_, body)| body);
        [&mut self.first].into_iter().chain(schedule).chain(branches).for_each(|body| body.0 += 1);
    }

    /// The layers that run a body, in order; of a branch's, branches.
    pub fn layers(&self, body: BodyId) -> Vec<usize> {
        let layers = self.schedule.iter().filter(|(of, _)| *of == body).filter_map(|(_, layer)| *layer);
        let taps = self.branches.iter().enumerate().filter(|(_, (_, of))| *of == body).map(|(tap, _)| tap);
        layers.chain(taps).collect()
    }

    /// Its layers.
    pub fn depth(&self) -> usize {
        self.schedule.iter().filter(|(_, layer)| layer.is_some()).count()
    }

    /// Most tokens of an image.
    pub fn most_tokens(&self) -> usize {
        self.most_patches / self.merged
    }

    /// Most patches of a side of an image of blocks of `merge` a side.
    pub fn most_side(&self, merge: usize) -> usize {
        self.most_patches / merge
    }

    /// Rows that are kept: of each slot those of its tokens, then those of each branch.
    pub fn kept_rows(&self) -> usize {
        self.slots * (1 + self.branches.len()) * self.most_tokens()
    }
}

impl<P: AsRef<super::LoweredPhase>> Structure<P> {
    /// Whether a body is the tower's.
    pub fn in_tower(&self, body: BodyId) -> bool {
        self.tower.as_ref().is_some_and(|tower| body >= tower.first)
    }

    /// The buffers of a tower's pixels, and of the rows that a body of it gives.
    ///
    /// # Panics
    /// If there is no tower.
    pub fn pixels(&self) -> BufferId {
        let first = self.tower.as_ref().expect("a plan with a tower").first;
        let phase = self.bodies[first.0].phases.first().expect("a tower begins with its patches").as_ref();
        phase.kind.buffers().0[0]
    }
}
