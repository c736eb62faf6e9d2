//! A model without weights or device, for tests of the engine and of what stands on it.
//!
//! It samples what its [`Script`] says, as fast as the script says, and fails when [`Controls`] say so. It
//! keeps a memory of blocks that holds token ids in place of keys and values, and samples from the context
//! that it *reads* from that memory: a block handed out twice or a row written to the wrong place changes
//! tokens, and most such mistakes are noticed at once. Breaches of the step contract panic, which the engine
//! turns into a fault that names them.

mod cells;
mod controls;
mod drafting;
pub mod images;
mod memory;
mod rows;
mod spec;
mod windows;

pub use controls::{Breach, Controls, Poison};
pub use rows::{Next, Rows};
pub use spec::{
    Drafting, GEMMA, Invariant, PIXTRAL, Pipelined, QWEN, Recurrent, Seeing, Shape, Skipping, Small, Tight,
    Verifying, Windowed,
};

use controls::Fault;
use memory::Memory;
use monomorph_model::{
    BlockId, LoadError, LoadOptions, Model, ModelSpec, OffloadRoom, OffloadSlot, Output, Progress, Shown,
    SlidingId, SlidingSpec, VisionSpec,
};
use monomorph_model::{RowOutput, SequenceStep, Slot, StatePlace, States, Step, StepOutput, Ticket, Weights};
use monomorph_sampling::{Sampled, Sampling, TokenBias, TokenMask};
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a scripted model does.
#[derive(Clone, Debug)]
pub struct Script {
    /// Which tokens it samples.
    pub tokens: Tokens,
    /// K/V blocks it has; the engine's option must not name more.
    pub blocks: usize,
    /// Where it has layers with a sliding window: blocks of these.
    pub sliding: usize,
    /// Sequences that it has room for, unless a step takes fewer; the engine's option must not name more.
    pub sequences: usize,
    /// Where it has recurrent state: snapshots of it that it has room for; the engine's option must not name
    /// more.
    pub snapshots: usize,
    /// Places on disk that it has for groups of blocks, if any.
    pub offload: Option<OffloadRoom>,
    /// Where it drafts: the chance that a draft is the token which will be sampled, by a hash of what it
    /// comes after.
    pub right_drafts: f64,
    /// How long a step takes, whatever it carries.
    pub step_time: Duration,
    /// How much longer it takes for every token fed.
    pub token_time: Duration,
}

impl Default for Script {
    fn default() -> Script {
        Script {
            tokens: Tokens::Hash,
            blocks: 256,
            sliding: 256,
            sequences: usize::MAX,
            snapshots: 8,
            offload: None,
            right_drafts: 0.5,
            step_time: Duration::ZERO,
            token_time: Duration::ZERO,
        }
    }
}

/// A token from the context (prompt and answer so far) and from how many of it were generated.
pub type Chooser = Arc<dyn Fn(&[u32], u64) -> u32 + Send + Sync>;

/// How a scripted model chooses a token.
#[derive(Clone)]
pub enum Tokens {
    /// A hash of the context, of `draw` and, unless greedy, of the seed; never a stop id of the model.
    Hash,
    /// The id at `draw`; after the last, the model's first stop id (or 0 if it has none).
    Fixed(Vec<u32>),
    /// Anything that follows from the context and `draw`.
    Function(Chooser),
    /// The same, or a row of logits to draw from.
    Rows(Rows),
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Tokens::Hash => f.write_str("Hash"),
            Tokens::Fixed(ids) => f.debug_tuple("Fixed").field(ids).finish(),
            Tokens::Function(_) => f.write_str("Function"),
            Tokens::Rows(_) => f.write_str("Rows"),
        }
    }
}

impl Tokens {
    /// The token after `context`, of which `draw` tokens were generated, without biases and masks.
    pub fn next(&self, context: &[u32], sampling: &Sampling, draw: u64, spec: &ModelSpec) -> u32 {
        match self.said(context, sampling, draw, spec) {
            Next::Token(id) => id,
            Next::Logits(row) => rows::drawn(row, context, sampling, draw, &[], None).id,
        }
    }

    /// What the script says after `context`.
    fn said(&self, context: &[u32], sampling: &Sampling, draw: u64, spec: &ModelSpec) -> Next {
        Next::Token(match self {
            Tokens::Hash => {
                let seed = if sampling.temperature == 0.0 { 0 } else { sampling.seed };
                let words = context.iter().map(|&id| u64::from(id)).chain([seed, draw]);
                let mut hash = words.fold(0xCBF2_9CE4_8422_2325, mix);
                loop {
                    let id = ((hash >> 24) % spec.vocabulary as u64) as u32;
                    if !spec.protocol.stop_ids.contains(&id) {
                        break id;
                    }
                    hash = mix(hash, 1);
                }
            }
            Tokens::Fixed(ids) => {
                let stop = spec.protocol.stop_ids.first().copied().unwrap_or(0);
                usize::try_from(draw).ok().and_then(|at| ids.get(at)).copied().unwrap_or(stop)
            }
            Tokens::Function(function) => function(context, draw),
            Tokens::Rows(rows) => return rows(context, draw),
        })
    }
}

/// One round of a 64-bit hash (FNV-1a's multiply, then a fold of the high bits into the low).
fn mix(hash: u64, word: u64) -> u64 {
    let hash = (hash ^ word).wrapping_mul(0x0000_0100_0000_01B3).wrapping_add(0x9E37_79B9_7F4A_7C15);
    (hash ^ (hash >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

/// A step in flight.
#[derive(Debug)]
struct Pending {
    ticket: Ticket,
    output: StepOutput,
    /// Drafts that each row was fed.
    drafts: Vec<usize>,
    submitted: Instant,
    token_time: Duration,
}

/// The model.
#[derive(Debug)]
pub struct Scripted<S: Shape = Small> {
    script: Script,
    controls: Controls,
    memory: Memory,
    /// Steps submitted and not collected.
    pending: VecDeque<Pending>,
    /// Of the last of them, while it waits for what to sample by: slot, position and context of each row.
    told_later: Option<Vec<(Slot, usize, Vec<u32>)>>,
    next_ticket: u64,
    /// When the step collected last was done.
    idle_since: Option<Instant>,
    shape: PhantomData<fn() -> S>,
}

impl<S: Shape> Scripted<S> {
    /// A model that follows `script`.
    pub fn new(script: Script) -> Scripted<S> {
        Scripted {
            memory: Memory::new(S::SPEC, S::SLIDING.map(|it| (it, script.sliding)), S::VISION, &script),
            script,
            controls: Controls::default(),
            pending: VecDeque::new(),
            told_later: None,
            next_ticket: 0,
            idle_since: None,
            shape: PhantomData,
        }
    }

    /// A way to command it while an engine owns it.
    pub fn controls(&self) -> Controls {
        self.controls.clone()
    }

    /// The token after `context`, of which `draw` tokens were generated: the script's, unless biases or the
    /// mask have another, or something is wrong.
    fn next(
        &self,
        context: &[u32],
        sampling: &Sampling,
        draw: u64,
        biases: &[TokenBias],
        mask: Option<&TokenMask>,
    ) -> Sampled {
        let said = self.script.tokens.said(context, sampling, draw, S::SPEC);
        // What is said may be a command to say wrong tokens from here on.
        let poison = self.controls.poisoned();
        let vocabulary = S::SPEC.vocabulary;
        let wrong = |id: u32| (id + 1) % vocabulary as u32;
        let right = match said {
            Next::Token(said) => allowed(leaning(said, biases), mask, S::SPEC),
            Next::Logits(mut row) => {
                if poison == Some(Poison::NotANumber) {
                    row.fill(f32::NAN);
                }
                let drawn = rows::drawn(row, context, sampling, draw, biases, mask);
                let id = if poison == Some(Poison::WrongTokens) { wrong(drawn.id) } else { drawn.id };
                return Sampled { id, ..drawn };
            }
        };
        let id = match poison {
            None => right,
            Some(Poison::WrongTokens) => wrong(right),
            Some(Poison::NotANumber) => 0,
        };
        sampled(id, sampling, vocabulary, poison)
    }

    /// Begins a step of so many tokens, which will give this.
    fn begun(&mut self, output: StepOutput, drafts: Vec<usize>, tokens: usize) -> Ticket {
        assert!(self.pending.len() < S::STEPS_IN_FLIGHT, "{} steps in flight already", self.pending.len());
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        self.next_ticket += 1;
        self.controls.begin();
        let (ticket, submitted) = (Ticket(self.next_ticket), Instant::now());
        let token_time = self.script.token_time * tokens;
        self.pending.push_back(Pending { ticket, output, drafts, submitted, token_time });
        Ticket(self.next_ticket)
    }

    /// What one sequence gets that read this context.
    fn row(&mut self, sequence: &SequenceStep, context: &[u32]) -> RowOutput {
        match &sequence.output {
            Output::None => RowOutput::None,
            Output::Sample { sampling, draw, history, biases, masks } => {
                let known = context.len() - sequence.drafts;
                let ids = self.memory.ids(context);
                memory::check_history(&ids[..known], *draw, sampling, history);
                memory::check_biases(biases, sequence.drafts, S::SPEC);
                memory::check_masks(masks, &ids[known..], S::SPEC);
                self.sample_row(sequence, context, sampling, *draw, biases, masks)
            }
            Output::Logits => {
                let mut logits = vec![0.0; sequence.tokens.len() * S::SPEC.vocabulary];
                for (row, at) in (sequence.position..context.len()).enumerate() {
                    let greedy = Sampling::default();
                    let id = self.next(&context[..=at], &greedy, 0, &[], None).id;
                    logits[row * S::SPEC.vocabulary + id as usize] = 1.0;
                }
                RowOutput::Logits(logits)
            }
        }
    }
}

/// The largest of logits of which that of `said` is 50 and the others are 0, before their biases: the
/// smallest id among equals.
pub fn leaning(said: u32, biases: &[TokenBias]) -> u32 {
    let biased = |id: u32| biases.iter().any(|one| one.id == id);
    let others = biases.iter().map(|one| one.id).chain((0..).find(|id| !biased(*id)));
    let logit = |id: u32| {
        let bias = biases.iter().find(|one| one.id == id).map_or(0.0, |one| one.bias);
        bias + if id == said { 50.0 } else { 0.0 }
    };
    let larger = |a: u32, b: u32| {
        if logit(b) > logit(a) || (logit(b) == logit(a) && b < a) { b } else { a }
    };
    others.fold(said, larger)
}

/// A token, or where a mask does not allow it the next that it allows, token 0 behind the last.
pub fn allowed(id: u32, mask: Option<&TokenMask>, spec: &ModelSpec) -> u32 {
    let Some(mask) = mask else { return id };
    let from = |id: u32| {
        let first = id as usize / 32;
        let word = |(at, word): (usize, &u32)| {
            let word = if at == first { *word >> (id % 32) << (id % 32) } else { *word };
            (word != 0).then(|| 32 * at as u32 + word.trailing_zeros())
        };
        mask.words()
            .iter()
            .enumerate()
            .skip(first)
            .find_map(word)
            .filter(|id| (*id as usize) < spec.vocabulary)
    };
    from(id).or_else(|| from(0)).unwrap_or(id)
}

/// A sampled token with made-up log-probabilities where they are asked for.
fn sampled(id: u32, sampling: &Sampling, vocabulary: usize, poison: Option<Poison>) -> Sampled {
    let Some(count) = sampling.top_logprobs else {
        return Sampled { id, logprob: None, top: Vec::new() };
    };
    let likeliest = if poison == Some(Poison::NotANumber) { f32::NEG_INFINITY } else { -0.5 };
    let others = (0..u32::from(count).min(vocabulary as u32)).map(|place| {
        let other = (u64::from(id) + u64::from(place)) % vocabulary as u64;
        (other as u32, likeliest - place as f32)
    });
    Sampled { id, logprob: Some(likeliest), top: others.collect() }
}

impl<S: Shape> Model for Scripted<S> {
    const SPEC: &'static ModelSpec = S::SPEC;
    const STEPS_IN_FLIGHT: usize = S::STEPS_IN_FLIGHT;
    const SLIDING: Option<SlidingSpec> = S::SLIDING;
    const VISION: Option<VisionSpec> = S::VISION;
    // A device does; a processor, which has one step in flight and makes no drafts, does not.
    const SPLIT_SAMPLING: bool = S::STEPS_IN_FLIGHT > 1 || S::SPEC.drafted() > 0;

    fn load(_: &Weights, options: &LoadOptions, _: &Progress) -> Result<Self, LoadError> {
        let blocks = options.blocks_or_one_sequence(S::SPEC.block_tokens);
        let States { sequences, snapshots } = options.states(S::SPEC);
        Ok(Scripted::new(Script { blocks, sequences, snapshots, ..Script::default() }))
    }

    fn blocks(&self) -> usize {
        self.script.blocks
    }

    fn sliding_blocks(&self) -> usize {
        S::SLIDING.map_or(0, |_| self.script.sliding)
    }

    fn sequences(&self) -> usize {
        self.script.sequences.min(S::SPEC.step_sequences)
    }

    fn snapshots(&self) -> usize {
        if S::SPEC.state_bytes > 0 { self.script.snapshots } else { 0 }
    }

    fn offload(&self) -> Option<OffloadRoom> {
        self.script.offload
    }

    fn offload_blocks(&mut self, blocks: &[BlockId], to: OffloadSlot) -> Result<(), String> {
        self.memory.offload_blocks(blocks, to);
        match self.controls.writes_fail() {
            true => Err("the disk was told to fail".to_owned()),
            false => Ok(()),
        }
    }

    fn read_block(&mut self, block: BlockId, into: &mut [u8]) {
        self.memory.read_block(block, into);
    }

    fn write_block(&mut self, block: BlockId, from: &[u8]) {
        self.memory.write_block(block, from);
    }

    fn read_sliding(&mut self, block: SlidingId, into: &mut [u8]) {
        self.memory.read_sliding(block, into);
    }

    fn write_sliding(&mut self, block: SlidingId, from: &[u8]) {
        self.memory.write_sliding(block, from);
    }

    fn read_state(&mut self, place: StatePlace, into: &mut [u8]) {
        if !into.is_empty() {
            self.memory.read_state(place, into);
        }
    }

    fn write_state(&mut self, place: StatePlace, from: &[u8]) {
        if !from.is_empty() {
            self.memory.write_state(place, from);
        }
    }

    fn see(&mut self, images: &[Shown], layers: Range<usize>) -> Ticket {
        assert!(self.told_later.is_none(), "a step is not sampled in, and an image is seen");
        // Blocks that are copied must not be those of a step in flight, whatever it does.
        self.memory.begin(&[]);
        self.memory.see(images, layers);
        self.begun(StepOutput::default(), Vec::new(), 0)
    }

    fn submit(&mut self, step: &Step) -> Ticket {
        memory::check_step(step, S::SPEC, self.sequences());
        let images = step.images.len();
        assert!(images == 0 || S::VISION.is_some(), "images of a model without a vision tower");
        assert!([0, step.sequences.len()].contains(&images), "images of {images} sequences");
        let tables = if S::SLIDING.is_some() { step.sequences.len() } else { 0 };
        assert_eq!(step.sliding.len(), tables, "tables of layers with a sliding window");
        self.memory.begin(&step.offloaded);
        step.copies.iter().for_each(|copy| self.memory.copy(*copy));
        assert!(self.told_later.is_none(), "a step is not sampled in, and another is submitted");
        assert!(
            Self::SPLIT_SAMPLING || !step.sampling_follows,
            "sampling follows of a model that samples at once"
        );
        let mut rows = Vec::new();
        let mut read = Vec::new();
        for (at, sequence) in step.sequences.iter().enumerate() {
            let context = self.memory.feed(sequence, step.images.get(at));
            self.memory.feed_sliding(sequence, step.sliding.get(at), &context);
            if step.sampling_follows {
                rows.push(RowOutput::None);
                read.push((sequence.slot, sequence.position, context));
            } else {
                rows.push(self.row(sequence, &context));
            }
        }
        self.told_later = step.sampling_follows.then_some(read);
        if !step.offloaded.is_empty() && self.controls.read_fails() {
            for (row, sequence) in rows.iter_mut().zip(&step.sequences) {
                if sequence.blocks.iter().any(|block| block.0 as usize >= self.script.blocks) {
                    *row = RowOutput::Lost("the disk was told to fail".to_owned());
                }
            }
        }
        let tokens: usize = step.sequences.iter().map(|sequence| sequence.tokens.len()).sum();
        let drafts = step.sequences.iter().map(|sequence| sequence.drafts).collect();
        self.begun(StepOutput { rows }, drafts, tokens)
    }

    fn sample(&mut self, step: &Step) {
        let Some(read) = self.told_later.take() else { panic!("no step waits for what it samples by") };
        assert_eq!(read.len(), step.sequences.len(), "another step is sampled in than was submitted");
        let rows = step.sequences.iter().zip(read).map(|(sequence, (slot, position, context))| {
            assert_eq!((sequence.slot, sequence.position), (slot, position), "another row");
            self.row(sequence, &context)
        });
        let rows: Vec<RowOutput> = rows.collect();
        let last = self.pending.back_mut().expect("the step that waits is in flight");
        for (to, row) in last.output.rows.iter_mut().zip(rows) {
            if !matches!(to, RowOutput::Lost(_)) {
                *to = row;
            }
        }
    }

    fn collect(&mut self, ticket: Ticket) -> StepOutput {
        assert!(
            self.told_later.is_none() || self.pending.len() > 1,
            "a step is collected, and not sampled in"
        );
        let Some(Pending { ticket: next, mut output, drafts, submitted, token_time }) =
            self.pending.pop_front()
        else {
            panic!("{ticket:?} is not in flight");
        };
        assert_eq!(ticket, next, "tickets are collected in the order they were handed out");
        // As on a device: a step begins when it is there and the one before it is done.
        let began = self.idle_since.map_or(submitted, |since| since.max(submitted));
        let fault = self.controls.finish(began, self.script.step_time, token_time);
        self.idle_since = Some(Instant::now());
        self.memory.collect();
        match fault {
            Some(Fault::Panic) => panic!("commanded to panic"),
            Some(Fault::Device) => {
                let message = "the device was told to fail";
                monomorph_model::set_device_fault(message);
                std::panic::resume_unwind(Box::new(message.to_owned()))
            }
            Some(Fault::WrongOutput) => drop(output.rows.pop()),
            None => {}
        }
        self.controls.commit_breach(|breach| drafting::commit(breach, &mut output.rows, &drafts, S::SPEC));
        output
    }
}
