//! Device memory: planned before the first byte of weights is read, claimed once, handed out in order.

use super::driver::Claim;
use super::fault::Fault;
use super::gpu::Gpu;
use super::kv_offload::{self, Blocks, Disk, KvOffload};
use super::pointer::{Cache, Pointer};
use super::states::{Places, State};
use super::static_scales::StaticScales;
use super::wire;
use crate::kv_offload::Layout;
use monomorph_abi::packed::ALIGNMENT;
use monomorph_model::{
    KvScales, LoadError, LoadOptions, ModelSpec, SlidingNeeds, SlidingRoom, SlidingSpec, StateRoom, States,
    StatesWanted, VisionSpec,
};
use monomorph_world::Seat;
use std::num::NonZero;

/// Left to the driver for graphs, kernels and bookkeeping. An estimate: graphs of a few hundred kernels take
/// a few MiB each.
const DRIVER_BYTES: u64 = 192 << 20;

/// Bytes that a stack needs, by purpose, as counted by its build.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// Packed weights.
    pub weights: u64,
    /// Recurrent state of one sequence.
    pub state: u64,
    /// Activations of the largest step.
    pub activations: u64,
    /// Scratch memory of kernels.
    pub scratch: u64,
    /// One position of all rotary tables.
    pub rotary_position: u64,
    /// Alignment gaps between all of these, at most, and what is in front of K/V blocks.
    pub gaps: u64,
}

/// The bytes to claim for each purpose, and the number of K/V blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MemoryPlan {
    weights: u64,
    states: States,
    /// Recurrent state of one sequence or snapshot.
    state_bytes: u64,
    activations: u64,
    scratch: u64,
    rotary: u64,
    tables: u64,
    /// Staging area for blocks on disk.
    staging: u64,
    blocks: usize,
    block_bytes: u64,
    /// Blocks of layers with a sliding window, beside these.
    sliding: SlidingRoom,
}

impl MemoryPlan {
    fn kv(&self) -> u64 {
        self.blocks as u64 * self.block_bytes + self.sliding.bytes(self.blocks as u64)
    }

    /// Blocks of layers with a sliding window.
    fn sliding(&self) -> usize {
        usize::try_from(self.sliding.blocks(self.blocks as u64)).unwrap_or(usize::MAX)
    }

    /// How many blocks so many bytes hold. A model that keeps no K/V has room for any number.
    fn fitting(&self, bytes: u64) -> usize {
        let blocks = match self.block_bytes + self.sliding.block {
            0 => u64::MAX,
            _ => self.sliding.beside(self.block_bytes, bytes),
        };
        usize::try_from(blocks).unwrap_or(usize::MAX)
    }

    /// A sentence about the blocks of layers with a sliding window; empty if there are none.
    fn sliding_text(&self) -> String {
        match self.sliding() {
            0 => String::new(),
            blocks => format!(", and {blocks} blocks of layers with a sliding window"),
        }
    }

    fn state(&self) -> u64 {
        self.states.count() * self.state_bytes
    }

    fn fixed(&self) -> u64 {
        self.weights
            + self.state()
            + self.activations
            + self.scratch
            + self.rotary
            + self.tables
            + self.staging
    }

    fn total(&self) -> u64 {
        self.fixed() + self.kv()
    }

    /// A sentence about the staging area; empty if there is none.
    fn staging_text(&self) -> String {
        match self.staging {
            0 => String::new(),
            staging => format!("staging of blocks on disk {}, ", size(staging)),
        }
    }

    /// A sentence about recurrent state; empty if there is none.
    fn state_text(&self) -> String {
        match self.state() {
            0 => String::new(),
            state => format!("state {} ({} of {} each), ", size(state), self.whose(), size(self.state_bytes)),
        }
    }

    /// Names the sequences and snapshots that have states.
    fn whose(&self) -> String {
        let States { sequences, snapshots } = self.states;
        match snapshots {
            0 => format!("{sequences} sequences"),
            _ => format!("{sequences} sequences and {snapshots} snapshots"),
        }
    }
}

/// Input to the memory planner besides the stack's needs.
#[derive(Clone, Copy, Debug)]
struct Request {
    block_tokens: usize,
    block_bytes: u64,
    /// Most sequences in a step.
    step_sequences: usize,
    states: StatesWanted,
    context: usize,
    /// Whether a shorter context would do.
    shorter: bool,
    blocks: Option<usize>,
    /// What sequences take of the blocks of layers with a sliding window.
    sliding: SlidingNeeds,
    /// With K/V offload: bytes of the staging area, and the blocks that a sequence needs on the device.
    offload: Option<(u64, usize)>,
}

/// Splits `limit` bytes.
///
/// Where a shorter context would do, the context is as long as there is room for. Counts of running sequences
/// and snapshots that were not asked for are as large as leaves that room.
///
/// # Errors
/// When the weights and one sequence, or the blocks asked for, do not fit; the error says what would fit.
fn plan(needs: &Needs, tables: u64, request: Request, limit: u64) -> Result<MemoryPlan, LoadError> {
    let one_sequence = request.context.div_ceil(request.block_tokens);
    let mut plan = MemoryPlan {
        weights: needs.weights,
        states: States { sequences: 0, snapshots: 0 },
        state_bytes: needs.state,
        activations: needs.activations,
        scratch: needs.scratch + needs.gaps,
        rotary: needs.rotary_position * request.context as u64,
        tables,
        staging: request.offload.map_or(0, |(staging, _)| staging),
        blocks: 0,
        block_bytes: request.block_bytes,
        sliding: SlidingRoom::default(),
    };
    let (shorter, offloads) = (request.shorter && request.blocks.is_none(), request.offload.is_some());
    let first = match (request.blocks, request.offload) {
        (Some(blocks), _) => blocks,
        (None, Some((_, needed))) => needed,
        (None, None) => one_sequence,
    };
    plan.states = request.states.within(
        request.step_sequences,
        StateRoom {
            bytes: limit.saturating_sub(plan.fixed()),
            state: needs.state,
            kv: first as u64 * request.block_bytes + request.sliding.room(1, offloads).bytes(first as u64),
            shorter: shorter && !offloads,
        },
    );
    plan.sliding = request.sliding.room(plan.states.sequences, offloads);
    let room = limit.checked_sub(plan.fixed()).map_or(0, |left| plan.fitting(left));
    let short = |what: String, plan: MemoryPlan, fits| LoadError::Memory {
        what,
        needed: plan.total(),
        available: limit,
        fits: Some(fits),
    };
    if let Some((staging, needed)) = request.offload {
        plan.blocks = needed;
        if room < needed {
            let fits = format!(
                "{room} blocks would fit; {staging} bytes are to stage what is on disk, less for a smaller file (--high-speed-swap-space)"
            );
            return Err(short(format!("a sequence's {needed} K/V blocks beside the weights"), plan, fits));
        }
    }
    plan.blocks = one_sequence;
    if !offloads && room < if shorter { 1 } else { one_sequence } {
        let fits = match room * request.block_tokens {
            0 => {
                let state = match plan.state() {
                    0 => String::new(),
                    state => format!(" ({state} of them the state of {})", plan.whose()),
                };
                format!("not even the {} bytes that are no K/V{state} leave room for a block", plan.fixed())
            }
            tokens => format!("a sequence of {tokens} tokens would fit (--context {tokens})"),
        };
        return Err(short(
            format!("one sequence of {} tokens beside the weights", request.context),
            plan,
            fits,
        ));
    }
    plan.blocks = match request.blocks {
        // Blocks beyond what all sequences of a step can use would never be used.
        None => room.min(one_sequence * request.step_sequences),
        Some(blocks) => {
            plan.blocks = blocks;
            if blocks > room {
                let fits = format!("{room} blocks would fit (--blocks {room})");
                return Err(short(format!("a cache of {blocks} K/V blocks beside the weights"), plan, fits));
            }
            blocks
        }
    };
    Ok(plan)
}

/// Bytes of a card that are free, and that may be used, from the driver's `(free, total)`. On a card that
/// shares the host's memory, `host` is the host's available memory and the part of it that must stay free:
/// memory that caches files counts as free there, and the guard protects the same memory.
fn limit((free, total): (u64, u64), host: Option<(u64, u64)>, fraction: f64) -> (u64, u64) {
    let (free, guard) = match host {
        Some((available, guard)) => (free.max(available).min(total), guard),
        None => (free, 0),
    };
    let ceiling = (total as f64 * fraction) as u64;
    (free, ceiling.min(free.saturating_sub(guard)).saturating_sub(DRIVER_BYTES))
}

/// The arena: all the device memory that a model uses.
#[derive(Debug)]
pub struct Memory {
    claim: Claim,
    // Outlives the claim.
    gpu: Gpu,
    next: u64,
    blocks: usize,
    /// Blocks of layers with a sliding window.
    sliding: usize,
    context: usize,
    places: Places,
    /// The blocks of each part, by its number; empty if the stack has no attention.
    parts: Vec<Blocks>,
    /// The static scales of each cache that has some.
    scales: Vec<StaticScales>,
    disk: Option<Disk>,
}

impl Memory {
    /// Plans the memory, reports the plan, claims it and zeroes it. Each entry of `parts` is the bytes of a
    /// part of a K/V block, with the numbers of all parts of that size. There is one part per layer that
    /// attends, but for those with a `sliding` window, numbered in the order in which they run. All ranks
    /// claim as many blocks and states as the one with the least room for them.
    ///
    /// # Errors
    /// When the card does not hold it: the error says what is needed, what is available, and what would fit.
    pub fn claim(
        gpu: &Gpu,
        spec: &ModelSpec,
        options: &LoadOptions,
        needs: &Needs,
        parts: &[(usize, &[usize])],
        (sliding, vision): (Option<SlidingSpec>, Option<VisionSpec>),
        seat: Seat,
    ) -> Result<Memory, LoadError> {
        let layout = options.offload.as_ref().map(|offload| Layout::new(offload, parts, 0)).transpose()?;
        options.guard.check(0)?;
        let (free, total) = gpu.memory()?;
        let host = gpu.is_integrated().then(|| ((options.guard.available)(), options.guard.bytes));
        let (free, limit) = limit((free, total), host, options.memory_fraction);
        let request = Request {
            block_tokens: spec.block_tokens,
            block_bytes: spec.block_bytes as u64,
            step_sequences: spec.step_sequences,
            states: options.states,
            context: options.context,
            shorter: options.shorter,
            blocks: options.blocks,
            sliding: sliding.map_or(SlidingNeeds::default(), |it| it.needs(spec, options.context)),
            offload: options.offload.as_ref().zip(layout.as_ref()).map(|(options, layout)| {
                let staging = kv_offload::area_bytes(layout).next_multiple_of(ALIGNMENT);
                (staging, options.resident.map_or(1, NonZero::get))
            }),
        };
        let mut plan =
            plan(needs, wire::device_bytes(spec, sliding, vision, options.context), request, limit)?;
        let say = options.report;
        let which =
            if seat.ordinals().len() > 1 { format!("GPU {}, ", gpu.ordinal()) } else { String::new() };
        say(format_args!(
            "{which}{}: {} of memory, {} free; {} may be used ({} of it, or what others leave)",
            gpu.name(),
            size(total),
            size(free),
            size(limit + DRIVER_BYTES),
            options.memory_fraction,
        ));
        let States { sequences, snapshots } = plan.states;
        [plan.blocks, plan.states.sequences, plan.states.snapshots] =
            seat.least("memory", [plan.blocks, sequences, snapshots])?;
        plan.sliding = request.sliding.room(plan.states.sequences, request.offload.is_some());
        // The rest is the same on all ranks.
        let all = |line: std::fmt::Arguments| match seat.ordinals().len() {
            1 => say(format_args!("  {line}")),
            ranks if seat.rank() == 0 => say(format_args!("  on each of {ranks} GPUs: {line}")),
            _ => {}
        };
        all(format_args!(
            "weights {}, {}K/V {} ({} blocks of {} tokens: {} tokens{}), {}activations {}, kernels' scratch {}, \
             rotary tables {}, step tables {}, graphs and driver about {}",
            size(plan.weights),
            plan.state_text(),
            size(plan.kv()),
            plan.blocks,
            spec.block_tokens,
            plan.blocks * spec.block_tokens,
            plan.sliding_text(),
            plan.staging_text(),
            size(plan.activations),
            size(plan.scratch),
            size(plan.rotary),
            size(plan.tables),
            size(DRIVER_BYTES),
        ));
        let (sequences, most) = (plan.states.sequences, spec.step_sequences);
        if options.states.sequences.is_none() && sequences < most {
            all(format_args!("the states of {most} sequences have no room: {sequences} run at a time"));
        }
        let tokens = plan.blocks * spec.block_tokens;
        if layout.is_none() && tokens < options.context {
            all(format_args!("a sequence of {} tokens has no room: {tokens} are the most", options.context));
        }
        let disk = options.offload.as_ref().zip(layout);
        let disk = disk.map(|(options, layout)| Disk::open(options, layout, say)).transpose()?;
        let claim = Claim::new(plan.total())?;
        // SAFETY: exactly the claimed range. Zeroing it means that kernels never read uninitialised bytes.
        unsafe { gpu.stream().clear(claim.start, claim.bytes) }?;
        gpu.stream().wait()?;
        Ok(Memory {
            claim,
            gpu: gpu.clone(),
            next: 0,
            blocks: plan.blocks,
            sliding: plan.sliding(),
            context: options.context,
            places: Places::new(plan.states),
            parts: Vec::new(),
            scales: Vec::new(),
            disk,
        })
    }

    /// Hands out the next `bytes`, aligned to 256.
    ///
    /// # Errors
    /// When the stack asks for more than its stated needs.
    pub fn take(&mut self, bytes: u64) -> Result<Pointer, Fault> {
        let (start, end) = (self.next, self.next + bytes.next_multiple_of(ALIGNMENT));
        if self.next + bytes > self.claim.bytes {
            return Err(Fault::new(format!(
                "{bytes} bytes after {start} are beyond the {} that were planned",
                self.claim.bytes
            )));
        }
        self.next = end;
        Ok(Pointer(self.claim.start + start))
    }

    /// The K/V blocks of the layers whose part numbers are `parts`, with `bytes` per block and layer.
    ///
    /// # Errors
    /// See [`Memory::take`].
    pub fn cache(&mut self, parts: &[usize], bytes: u64) -> Result<Cache, Fault> {
        self.cache_behind(0, parts, bytes)
    }

    /// The same, with `ahead` bytes in front of the first block of each layer.
    ///
    /// # Errors
    /// See [`Memory::take`].
    pub fn cache_behind(&mut self, ahead: u64, parts: &[usize], bytes: u64) -> Result<Cache, Fault> {
        let layers = parts.len();
        let cache = self.layers(ahead, layers, bytes * self.blocks as u64)?;
        self.places.push_blocks(cache, bytes, layers, self.blocks);
        for (layer, part) in parts.iter().enumerate() {
            let most = self.parts.len().max(part + 1);
            self.parts.resize(most, Blocks { start: Pointer::NULL, bytes: 0 });
            self.parts[*part] = Blocks { start: cache.layer(layer), bytes };
        }
        Ok(cache)
    }

    /// The K/V blocks of so many layers with a sliding window, with `bytes` per block and layer. None of them
    /// is on disk.
    ///
    /// # Errors
    /// See [`Memory::take`].
    pub fn sliding_cache(&mut self, layers: usize, bytes: u64) -> Result<Cache, Fault> {
        self.sliding_cache_behind(0, layers, bytes)
    }

    /// The same, with `ahead` bytes in front of the first block of each layer.
    ///
    /// # Errors
    /// See [`Memory::take`].
    pub fn sliding_cache_behind(&mut self, ahead: u64, layers: usize, bytes: u64) -> Result<Cache, Fault> {
        let cache = self.layers(ahead, layers, bytes * self.sliding as u64)?;
        self.places.push_sliding(cache, bytes, layers, self.sliding);
        Ok(cache)
    }

    /// So many layers, each with `bytes` bytes of blocks behind `ahead` others.
    fn layers(&mut self, ahead: u64, layers: usize, bytes: u64) -> Result<Cache, Fault> {
        let layer_bytes = ahead + bytes;
        Ok(Cache { start: self.take(layer_bytes * layers as u64)?.offset(ahead), layer_bytes })
    }

    /// The staging of blocks on disk, if there is K/V offload, for steps whose block tables have up to
    /// `table` bytes. Called after all caches have been taken.
    ///
    /// # Errors
    /// See [`Memory::take`].
    pub(crate) fn offload(&mut self, table: usize) -> Result<Option<KvOffload>, Fault> {
        let Some(disk) = self.disk.take() else { return Ok(None) };
        let area = self.take(kv_offload::area_bytes(disk.layout()))?;
        KvOffload::new(disk, &self.parts, area, self.blocks, table).map(Some)
    }

    /// The recurrent state of `layers` layers, for every slot and snapshot: part `i` has `bytes[i]` bytes in
    /// a layer.
    ///
    /// # Errors
    /// See [`Memory::take`].
    pub fn state<const PARTS: usize>(
        &mut self,
        layers: usize,
        bytes: [u64; PARTS],
    ) -> Result<State<PARTS>, Fault> {
        let mut parts = [Cache { start: Pointer::NULL, layer_bytes: 0 }; PARTS];
        for (part, bytes) in parts.iter_mut().zip(bytes) {
            let layer_bytes = bytes * self.places.count();
            *part = Cache { start: self.take(layer_bytes * layers as u64)?, layer_bytes };
            self.places.push(*part, bytes, layers);
        }
        Ok(State { parts })
    }

    /// Adds the static scales of a cache.
    pub(super) fn push_scales(&mut self, scales: StaticScales) {
        self.scales.push(scales);
    }

    /// Begins to measure what sets static scales. No step is in flight.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn measure(&self) -> Result<(), Fault> {
        self.scales.iter().try_for_each(|scales| scales.measure(self.gpu.stream()))
    }

    /// Ends that, and sets the static scales that are no checkpoint's by what was measured.
    ///
    /// # Errors
    /// When something was not finite, or the device fails.
    pub(super) fn set_scales(&self) -> Result<KvScales, String> {
        let mut set = KvScales::default();
        self.scales.iter().try_for_each(|scales| scales.set(self.gpu.stream(), &mut set))?;
        Ok(set)
    }

    /// Addresses of the states and K/V blocks of all bodies taken so far.
    pub(crate) fn places(&self) -> &Places {
        &self.places
    }

    /// Sequences and snapshots whose recurrent state was claimed.
    pub fn states(&self) -> States {
        self.places.states
    }

    /// K/V blocks claimed.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// K/V blocks of layers with a sliding window.
    pub fn sliding(&self) -> usize {
        self.sliding
    }

    /// Longest sequence, in tokens.
    pub fn context(&self) -> usize {
        self.context
    }
}

/// A human-readable number of bytes.
fn size(bytes: u64) -> String {
    match bytes {
        0..0x10_0000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDS: Needs =
        Needs { weights: 1000, state: 0, activations: 200, scratch: 90, rotary_position: 1, gaps: 10 };

    fn request(blocks: Option<usize>) -> Request {
        Request {
            block_tokens: 16,
            block_bytes: 10,
            step_sequences: 4,
            states: StatesWanted { sequences: None, snapshots: Some(0) },
            context: 100,
            shorter: false,
            blocks,
            sliding: SlidingNeeds::default(),
            offload: None,
        }
    }

    #[test]
    fn a_card_in_the_machines_own_memory_leaves_what_is_to_stay_free() {
        const GIB: u64 = 1 << 30;
        let usable = |driver, host, fraction| {
            let (free, limit) = limit(driver, host, fraction);
            (free / GIB, (limit + DRIVER_BYTES) / GIB)
        };
        // A discrete card: the host's memory is separate.
        assert_eq!(usable((100 * GIB, 140 * GIB), None, 1.0), (100, 100));
        assert_eq!(usable((100 * GIB, 140 * GIB), None, 0.5), (100, 70));
        // An integrated one: the driver counts cached files as used memory.
        assert_eq!(usable((20 * GIB, 120 * GIB), Some((100 * GIB, 0)), 1.0), (100, 100));
        assert_eq!(usable((20 * GIB, 120 * GIB), Some((100 * GIB, 4 * GIB)), 1.0), (100, 96));
        assert_eq!(usable((20 * GIB, 120 * GIB), Some((100 * GIB, 4 * GIB)), 0.5), (100, 60));
        assert_eq!(usable((20 * GIB, 120 * GIB), Some((100 * GIB, 200 * GIB)), 1.0), (100, 0));
    }

    #[test]
    fn blocks_take_what_is_left_and_no_more_than_is_of_use() {
        // 1,450 bytes are fixed; a sequence is 7 blocks.
        let blocks = |limit, asked| plan(&NEEDS, 50, request(asked), limit).map(|plan| plan.blocks);
        assert_eq!(blocks(1450 + 75, None).ok(), Some(7));
        assert_eq!(blocks(1450 + 159, None).ok(), Some(15));
        assert_eq!(blocks(1_000_000, None).ok(), Some(28));
        assert_eq!(blocks(1_000_000, Some(1000)).ok(), Some(1000));
    }

    #[test]
    fn a_sequence_that_nobody_asked_for_is_as_long_as_there_is_room() {
        let blocks = |limit, shorter| {
            plan(&NEEDS, 50, Request { shorter, ..request(None) }, limit).map(|plan| plan.blocks)
        };
        assert_eq!(blocks(1450 + 69, true).ok(), Some(6));
        assert_eq!(blocks(1450 + 10, true).ok(), Some(1));
        assert_eq!(blocks(1450 + 159, true).ok(), Some(15));
        assert!(blocks(1450 + 9, true).expect_err("no block").to_string().contains("not even"));
        assert!(blocks(1450 + 69, false).is_err());
    }

    #[test]
    fn a_model_without_keys_and_values_has_as_many_blocks_as_its_sequences_use() {
        let needs = Needs { state: 20, ..NEEDS };
        let planned = |sequences, limit| {
            let states = StatesWanted { sequences, snapshots: Some(0) };
            let request = Request { block_bytes: 0, states, ..request(None) };
            plan(&needs, 50, request, limit).map(|it| (it.state(), it.blocks))
        };
        assert_eq!(planned(None, 1450 + 80).ok(), Some((80, 28)));
        assert_eq!(planned(None, 1450 + 79).ok(), Some((60, 28)));
        let error = planned(Some(4), 1450 + 79).expect_err("too little").to_string();
        assert!(error.contains("not even the 1530 bytes"), "{error}");
    }

    #[test]
    fn every_sequence_of_a_step_has_its_state_before_blocks_take_the_rest() {
        let needs = Needs { state: 20, ..NEEDS };
        // 4 sequences of 20 bytes beside the 1,450 that are fixed.
        let planned = plan(&needs, 50, request(None), 1450 + 80 + 159).expect("room");
        assert_eq!((planned.state(), planned.blocks), (80, 15));
        assert!(planned.total() <= 1450 + 80 + 159);
        assert_eq!(planned.state_text(), "state 0.1 KiB (4 sequences of 0.0 KiB each), ");
        // So does every snapshot.
        let asked =
            |sequences, snapshots| Request { states: StatesWanted { sequences, snapshots }, ..request(None) };
        let planned = plan(&needs, 50, asked(None, Some(3)), 1450 + 140 + 159).expect("room");
        assert_eq!((planned.state(), planned.blocks), (140, 15));
        assert!(planned.state_text().contains("4 sequences and 3 snapshots of"));
        let error = plan(&needs, 50, asked(Some(4), Some(0)), 1450 + 80).expect_err("no block").to_string();
        assert!(
            error.contains("1530 bytes that are no K/V (80 of them the state of 4 sequences)"),
            "{error}"
        );
        let stateless = plan(&NEEDS, 50, request(None), 1450).expect_err("no block").to_string();
        assert!(stateless.contains("1450 bytes that are no K/V leave"), "{stateless}");
    }

    #[test]
    fn states_that_nobody_asked_for_leave_room_for_a_sequence() {
        let needs = Needs { state: 20, ..NEEDS };
        let planned = |limit, request: Request| {
            plan(&needs, 50, request, limit)
                .map(|plan| (plan.states.sequences, plan.states.snapshots, plan.blocks))
        };
        let free = Request { states: StatesWanted::default(), ..request(None) };
        // A sequence is 7 blocks of 10 bytes; two states for each that runs.
        assert_eq!(planned(1450 + 70 + 160, free).ok(), Some((4, 4, 7)));
        assert_eq!(planned(1450 + 70 + 159, free).ok(), Some((3, 3, 10)));
        assert_eq!(planned(1450 + 70 + 39, free).ok(), Some((1, 0, 8)));
        assert!(planned(1450 + 70 + 19, free).is_err());
        // Blocks that were asked for come first.
        assert_eq!(planned(1450 + 120 + 80, Request { blocks: Some(12), ..free }).ok(), Some((2, 2, 12)));
        assert_eq!(
            planned(
                1450 + 500,
                Request { states: StatesWanted { sequences: Some(2), snapshots: None }, ..free }
            )
            .ok(),
            Some((2, 2, 28))
        );
        // A default context takes no more than half of the room from the number of sequences.
        assert_eq!(planned(1450 + 100, Request { shorter: true, ..free }).ok(), Some((1, 1, 6)));
    }

    #[test]
    fn what_does_not_fit_says_what_would() {
        let error = |limit, asked| plan(&NEEDS, 50, request(asked), limit).expect_err("short").to_string();
        assert_eq!(
            error(1450 + 69, None),
            "one sequence of 100 tokens beside the weights needs 1520 bytes, and 1519 are available; a sequence of 96 \
             tokens would fit (--context 96)"
        );
        let asked = error(1450 + 75, Some(8));
        assert!(asked.contains("8 K/V blocks") && asked.contains("--blocks 7"), "{asked}");
        assert!(error(1000, None).contains("not even the 1450 bytes"));
    }

    #[test]
    fn layers_with_a_window_take_what_sequences_hold_and_no_more() {
        // Most blocks are 4 sequences' and a step's: 18 of 5 bytes.
        let sliding = SlidingNeeds { block: 5, sequence: 4, step: 2 };
        let request = Request { sliding, ..request(None) };
        let planned = |limit, request| plan(&NEEDS, 50, request, limit).expect("room");
        let blocks = |it: &MemoryPlan| (it.blocks, it.sliding());
        // As many of either as long as the others are short.
        let short = planned(1450 + 10 * 15 + 14, request);
        assert_eq!((blocks(&short), short.kv()), ((10, 10), 150));
        let long = planned(1450 + 18 * 5 + 259, request);
        assert_eq!((blocks(&long), long.total()), ((25, 18), 1450 + 18 * 5 + 250));
        assert_eq!(long.sliding_text(), ", and 18 blocks of layers with a sliding window");
        // One sequence at a time holds fewer.
        let states = StatesWanted { sequences: Some(1), snapshots: Some(0) };
        assert_eq!(blocks(&planned(1450 + 6 * 5 + 250, Request { states, ..request })), (25, 6));
        let error = plan(&NEEDS, 50, request, 1450 + 104).expect_err("short").to_string();
        assert!(error.contains("needs 1555 bytes") && error.contains("--context 96"), "{error}");
        // With blocks on disk all are there, however few the others.
        let offload = Request { offload: Some((300, 3)), ..request };
        let planned = planned(1450 + 300 + 18 * 5 + 59, offload);
        assert_eq!((blocks(&planned), planned.total()), ((5, 18), 1450 + 300 + 18 * 5 + 50));
        let without = Request { sliding: SlidingNeeds::default(), ..request };
        assert_eq!(plan(&NEEDS, 50, without, 10_000).expect("room").sliding_text(), "");
    }

    #[test]
    fn staging_is_counted_and_a_sequence_need_not_fit() {
        let offload = |blocks, needed| Request { offload: Some((300, needed)), ..request(blocks) };
        let planned = plan(&NEEDS, 50, offload(None, 3), 1450 + 300 + 59).expect("room");
        assert_eq!((planned.staging, planned.blocks), (300, 5));
        assert!(planned.total() <= 1450 + 300 + 59);
        assert_eq!(planned.staging_text(), "staging of blocks on disk 0.3 KiB, ");
        assert_eq!(plan(&NEEDS, 50, request(None), 10_000).expect("room").staging_text(), "");
        let error = |blocks, needed| {
            let short = plan(&NEEDS, 50, offload(blocks, needed), 1450 + 300 + 59).expect_err("short");
            short.to_string()
        };
        let words = error(None, 6);
        assert!(words.contains("6 K/V blocks") && words.contains("5 blocks would fit; 300 bytes"), "{words}");
        assert!(error(Some(6), 3).contains("--blocks 5"));
    }
}
