//! Random walks of the loop itself, turn by turn on one thread: requests come, are cancelled or forgotten and
//! end by stop id or length between any two turns, at every depth of the pipeline and with every number of
//! drafts.
//!
//! Most prompts begin as earlier ones and their answers did, so that they go on from what these left; the
//! scripted model reads its context from the blocks that it is given. Planted, one at a time, and caught
//! here: blocks that become known when the step that fills them is submitted, and not collected (the model
//! sees one in two steps in flight); a pre-emption that counts on blocks that an older sequence shares
//! ("planned, but"); a step that forgets to restore a state (the sequence begins without); a state saved
//! behind the step in place of before it (it is of another position); a copy that is done again by the step
//! after (it goes to a slot that goes on); a prompt that is scored behind what another left, and one that was
//! pre-empted and takes what it is told again for new. Of images: prefixes found by their ids alone; rows
//! counted from where a chunk begins; answers turned by their index; an image fed before it is seen; a chunk
//! that ends within an image that is fed whole; places that those who leave keep.

mod pictures;

use super::Forward;
use crate::handle::prepare;
use crate::scripted::images::shifted;
use crate::scripted::{
    Drafting, Invariant, Pipelined, Recurrent, Script, Scripted, Shape, Skipping, Tight, Tokens, Verifying,
    Windowed, allowed, leaning,
};
use crate::{EngineOptions, Event, FinishReason, Generation, OffloadShare, Policy, PrefixOptions};
use crate::{Request, ScheduleOptions, SlidingPool, Stats, SubmitError, SwapOptions};
use monomorph_cache::{Block, Share, SlidingBlock};
use monomorph_grammar::{Constraint, Grammars, Source, Thinking, Token};
use monomorph_model::{ModelSpec, OffloadRoom, VisionSpec};
use monomorph_sampling::{Dry, Sampled, Sampling, TokenBias, TokenMask, score};
use pictures::{Given, Written, given, with_images};
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// The model's stop id turns up about once in this many tokens.
const KINDS: u64 = 24;
/// Prompts and answers that others begin like.
const SPOKEN: usize = 5;
/// Places for snapshots, of models with recurrent state, and tokens between two of them.
const ROOMY: usize = 96;
const SNAPSHOTS: usize = 6;
const INTERVAL: usize = 10;
/// Turns of each walk: the defects above are seen within some hundreds.
const TURNS: usize = 2_000;
const TURNS_OFFLOAD: usize = 1_500;

/// xorshift64 (Marsaglia 2003): the walk is the same on every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 24) % bound
    }
}

/// Tokens that follow from the context alone, a stop id now and then.
fn tokens() -> Tokens {
    Tokens::Function(Arc::new(|context, draw| {
        let hash = context.iter().fold(draw, |hash, &id| {
            (hash ^ u64::from(id)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
        });
        (hash % KINDS) as u32
    }))
}

/// Tokens that mostly follow from the one before, so that much of what was said comes again, and now and then
/// from all: what is looked up sometimes holds.
fn repeating() -> Tokens {
    Tokens::Function(Arc::new(|context, draw| {
        let Tokens::Function(any) = tokens() else { unreachable!("it is one") };
        let any = any(context, draw);
        let last = u64::from(*context.last().expect("a prompt has tokens"));
        if any < KINDS as u32 / 6 { any } else { ((5 * last + 3) % KINDS) as u32 }
    }))
}

/// Tokens are letters, and the model's stop id ends answers.
static GRAMMARS: LazyLock<Grammars> = LazyLock::new(|| {
    let letters: Vec<[u8; 1]> = (b'a'..).take(KINDS as usize).map(|letter| [letter]).collect();
    let ends = Tight::SPEC.protocol.stop_ids;
    let token = |id: u32| {
        let bytes = letters.get(id as usize)?;
        Some(Token { bytes, special: ends.contains(&id) })
    };
    Grammars::new(Tight::SPEC.vocabulary, token, ends).unwrap()
});

/// What this matches.
fn of(regex: &str) -> Constraint {
    GRAMMARS.compile(&Source::Regex(regex.to_owned())).unwrap()
}

/// Constraints of answers in a walk.
static CONSTRAINTS: LazyLock<Vec<Constraint>> = LazyLock::new(|| {
    let tags = GRAMMARS.tags(&[5], &[7, 8]);
    let thinking = |opened, budget| Thinking::new(&tags, opened, budget);
    vec![
        of("([abd-x]{1,4}[d-h]){1,6}"),
        of("[d-m]{3,20}"),
        of("(de|fgh|[i-x]){1,12}"),
        of("([abd-x])+"),
        of("[d-m]{3,20}").after(thinking(true, Some(6))),
        of("([abd-x]{1,3}[d-h]){1,6}").after(thinking(false, Some(9))),
        GRAMMARS.thinking(thinking(true, Some(7))),
        GRAMMARS.thinking(thinking(false, Some(2))),
    ]
});

/// The tokens that a model of such a spec says in a walk.
fn spoken_by(spec: &ModelSpec) -> Tokens {
    if spec.drafts() > spec.drafted() { repeating() } else { tokens() }
}

/// The answer to a lone request without drafts, in a context of `most` tokens, and how it ends. What a model
/// keeps of its prompt are `cells`.
fn lone(tokens: &Tokens, request: &Request, cells: &[u32], most: usize) -> (Vec<u32>, FinishReason) {
    let spec = Tight::SPEC;
    let mut context = request.prompt.clone();
    let (mut cells, shift) = (cells.to_vec(), request.images.shift);
    let most = request.max_tokens.min(most - request.prompt.len());
    let (mut constraint, mut masks) = (request.constraint.clone(), Vec::new());
    let ends = !request.ignore_eos || constraint.is_some();
    for draw in 0..most as u64 {
        if let Some(constraint) = &mut constraint {
            constraint.masks(&[], &mut masks).unwrap();
        }
        let said = tokens.next(&cells, &request.sampling, draw, spec);
        let id = allowed(leaning(said, &request.biases.after(&context)), masks.first(), spec);
        if request.stop_ids.contains(&id) || (ends && spec.protocol.stop_ids.contains(&id)) {
            return (context.split_off(request.prompt.len()), FinishReason::Stop { id });
        }
        if let Some(constraint) = &mut constraint {
            constraint.take(id).unwrap();
        }
        context.push(id);
        cells.push(if shift == 0 { id } else { shifted(id, shift) });
    }
    (context.split_off(request.prompt.len()), FinishReason::Length)
}

/// The prompt log-probabilities of a lone request, if it asks for them: the scripted token has a logit of 1,
/// all others 0.
fn scores(tokens: &Tokens, request: &Request, cells: &[u32]) -> VecDeque<Sampled> {
    let Some(top) = request.prompt_logprobs else { return VecDeque::new() };
    let spec = Tight::SPEC;
    let score_at = |at: usize| {
        let said = tokens.next(&cells[..at], &Sampling::default(), 0, spec);
        let mut logits = vec![0.0; spec.vocabulary];
        logits[said as usize] = 1.0;
        score(&mut logits, request.prompt[at], top)
    };
    (1..request.prompt.len()).map(score_at).collect()
}

/// A client that checks its events against the expected ones.
struct Client {
    generation: Generation,
    answer: Vec<u32>,
    reason: FinishReason,
    heard: usize,
    /// Expected log-probabilities of the prompt, which come first, if any.
    scores: VecDeque<Sampled>,
    cancelled: bool,
}

impl Client {
    /// Receives the pending events; true after the last.
    fn listen(&mut self) -> bool {
        while let Some(event) = self.generation.try_recv() {
            match event {
                Event::Prompt(scores) => {
                    assert!(!scores.is_empty() && self.heard == 0, "nothing, or behind what it is of");
                    for score in scores {
                        assert_eq!(self.scores.pop_front(), Some(score));
                    }
                }
                Event::Token(sampled) => {
                    assert!(self.scores.is_empty(), "an answer before its prompt");
                    assert_eq!(self.answer.get(self.heard), Some(&sampled.id), "token {}", self.heard);
                    self.heard += 1;
                }
                Event::Finished(end) if self.cancelled && end.reason == FinishReason::Cancelled => {
                    return true;
                }
                Event::Finished(end) => {
                    assert!(self.scores.is_empty(), "an end before what was asked of the prompt");
                    assert_eq!((end.reason, self.heard), (self.reason, self.answer.len()));
                    return true;
                }
                Event::Failed(error) => panic!("{error}"),
            }
        }
        false
    }
}

/// Prompts and answers so far, for others to begin like them.
type Spoken = Vec<Written>;

/// A request, what a model should keep of its prompt, and how the walk writes that.
fn request(
    random: &mut Random,
    most: usize,
    spoken: &Spoken,
    vision: Option<&VisionSpec>,
) -> (Request, Vec<u32>, Written) {
    // Mostly short, so that many run at once; sometimes as long as there is room.
    let bound = if random.below(6) == 0 { most as u64 - 1 } else { 12 };
    let mut prompt: Vec<u32> = (0..1 + random.below(bound)).map(|_| random.below(KINDS) as u32).collect();
    if !spoken.is_empty() && random.below(5) > 0 {
        let earlier = &spoken[random.below(spoken.len() as u64) as usize];
        let alike = &earlier[..random.below(earlier.len() as u64 + 1) as usize];
        prompt.splice(..0, alike.iter().copied());
        prompt.truncate(most - 1);
    }
    if let Some(vision) = vision {
        prompt = with_images(random, &prompt, most - 1, vision);
    }
    let Given { ids, images, cells } = given(&prompt, vision);
    let mut request = Request { images, ..Request::new(ids, 1 + random.below(30) as usize) };
    request.ignore_eos = random.below(3) == 0;
    (request.client, request.priority) = (random.below(3), random.below(5) as i64 / 2 - 1);
    request.sampling.presence_penalty = if random.below(4) == 0 { 0.5 } else { 0.0 };
    if random.below(3) == 0 {
        let at = random.below(CONSTRAINTS.len() as u64) as usize;
        request.constraint = Some(CONSTRAINTS[at].clone());
    }
    if random.below(4) == 0 {
        // What is said has 50: one of these is no matter, one is always said, one never.
        let ids: BTreeSet<u32> = (0..random.below(3)).map(|_| random.below(KINDS) as u32).collect();
        let bias = |id| TokenBias { id, bias: [30.0, 60.0, -100.0][random.below(3) as usize] };
        request.biases.fixed = ids.into_iter().map(bias).collect();
    }
    if random.below(5) == 0 {
        request.biases.dry = Some(Dry {
            multiplier: 40.0,
            base: 1.5,
            allowed: 1 + random.below(3) as usize,
            window: [8, usize::MAX][random.below(2) as usize],
            breakers: TokenMask::of(KINDS as usize, (0..random.below(2)).map(|_| random.below(KINDS) as u32)),
        });
    }
    if random.below(8) == 0 {
        request.prompt_logprobs = Some(random.below(3) as u8);
        request.max_tokens *= random.below(3).min(1) as usize;
    }
    if vision.is_some_and(|it| it.whole_spans) && !request.images.images.is_empty() {
        // These are refused.
        request.prompt_logprobs = None;
        request.max_tokens = request.max_tokens.max(1);
    }
    (request, cells, prompt)
}

/// No block is shared but by those that begin alike, no slot is held twice, and none of either is lost.
fn balance(forward: &Forward, blocks: usize, snapshots: usize, offload: Option<OffloadShare>) {
    let running = forward.batch.iter().map(|one| (&one.lease, one.slot));
    let leaving = forward.pipeline.leaving().map(|(lease, slot)| (lease, Some(slot)));
    let held: Vec<_> = running.chain(leaving).collect();
    let (mut free, mut known) = (0, 0);
    for block in (0..blocks as u32).map(Block) {
        let holders = held.iter().filter(|(lease, _)| lease.blocks().contains(&block)).count();
        let uses = forward.memory.cache().uses(block).unwrap() as usize;
        assert!(uses == holders || uses == holders + 1, "{block:?} is used {uses} times and held {holders}");
        assert!(holders < 2 || uses > holders, "{block:?} is shared, and nobody knows what it holds");
        free += usize::from(uses == 0);
        known += uses - holders;
    }
    assert_eq!(known, forward.memory.cache().indexed());
    assert_eq!(forward.memory.cache().available(), free + forward.memory.cache().cached());
    let promised = forward.pipeline.rows_in_flight().filter(|row| row.save.is_some()).count();
    assert_eq!(
        forward.memory.cache().free_places() + forward.memory.cache().snapshots() + promised,
        snapshots
    );
    for window in (0..forward.memory.cache().sliding_capacity() as u32).map(SlidingBlock) {
        let holders = held.iter().filter(|(lease, _)| lease.sliding().1.contains(&window)).count();
        let uses = forward.memory.cache().sliding_uses(window).unwrap() as usize;
        assert!(uses == holders || uses == holders + 1, "{window:?} is used {uses} times and held {holders}");
        assert!(holders < 2 || uses > holders, "{window:?} is shared, and nobody knows what it holds");
    }
    assert!(forward.queue.iter().is_sorted_by_key(|one| one.number), "those that wait stand by age");
    if let Some(OffloadShare { room, resident }) = offload {
        let on_disk: usize = held.iter().map(|(lease, _)| lease.offloaded_blocks() / room.group).sum();
        assert_eq!(forward.memory.cache().free_offload_places() + on_disk, room.places);
        assert!(held.iter().all(|(lease, _)| lease.blocks().len() <= resident), "more than its share");
    }
    let used = forward.batch.iter().flat_map(|one| one.images.used()).collect::<HashSet<_>>();
    assert_eq!(used.len(), forward.tower.places().in_use(), "places of images");
    let slots: HashSet<_> = held
        .iter()
        .filter_map(|(_, slot)| *slot)
        .chain(forward.memory.free_slots().iter().copied())
        .collect();
    assert_eq!(slots.len(), forward.most_running());
    assert_eq!(held.len() + forward.memory.free_slots().len(), slots.len(), "a slot is held twice");
}

/// One walk; the counters at its end, and how often a sequence that was over held blocks.
pub(super) fn walk<S: Shape>(
    swap: &SwapOptions,
    seed: u64,
    turns: usize,
    blocks: usize,
    right_drafts: f64,
    enabled: bool,
    offload: Option<OffloadShare>,
) -> (Stats, usize) {
    let snapshots = if S::SPEC.state_bytes > 0 && enabled { SNAPSHOTS } else { 0 };
    let prefix = PrefixOptions { enabled, snapshots, snapshot_interval: INTERVAL };
    // All that a step takes, or two: where blocks are never short and nothing is swapped.
    let few = swap.host_bytes == 0 && blocks == ROOMY;
    let sequences = if few { 2 } else { usize::MAX };
    let schedule = ScheduleOptions {
        policy: if seed.is_multiple_of(2) { Policy::Slai } else { Policy::Fifo },
        // Every deadline is missed, or none is: what a step takes must not decide what a walk does.
        tbt: if seed.is_multiple_of(4) { Duration::MAX } else { Duration::ZERO },
        prefill_tokens: [0, 24, 9, 0][seed as usize % 4],
    };
    // As few blocks of layers with a sliding window as will do, some more, or so many that others are short
    // first.
    let sliding = S::SLIDING.map(|spec| {
        let it = spec.of(S::SPEC);
        let least = it.most(S::SPEC.context, S::SPEC.reach()) + it.fed(S::SPEC.step_tokens);
        let blocks = [least, least + 7, least.max(blocks)][blocks % 3];
        SlidingPool { spec, blocks }
    });
    let options = EngineOptions {
        prefix,
        schedule,
        sliding,
        vision: S::VISION,
        offload,
        swap: swap.clone(),
        sequences,
        ..EngineOptions::new(blocks, Tight::SPEC.context, 12)
    };
    let (engine, mut forward) = prepare(S::SPEC, options).unwrap();
    if seed.is_multiple_of(3) {
        // A step has room for more logits than that of all its tokens.
        forward.planner.limits_mut().scored_tokens = S::SPEC.chunk_alignment().max(5);
    }
    let tokens = spoken_by(S::SPEC);
    let room = offload.map(|share| share.room);
    let script = Script {
        tokens: tokens.clone(),
        blocks,
        sliding: sliding.map_or(0, |pool| pool.blocks),
        sequences,
        snapshots,
        offload: room,
        right_drafts,
        ..Script::default()
    };
    let mut model = Scripted::<S>::new(script);
    let mut random = Random(seed);
    let mut clients: Vec<Client> = Vec::new();
    let mut spoken = Spoken::new();
    let mut left = 0;
    let mut turn = 0;
    while turn < turns || forward.has_work() || engine.stats().waiting > 0 {
        // Bursts and lulls, so that the engine runs full and runs dry.
        if turn < turns && random.below(if turn / 200 % 2 == 0 { 2 } else { 9 }) == 0 {
            let vision = S::VISION;
            let (request, cells, written) = request(&mut random, engine.context(), &spoken, vision.as_ref());
            let (answer, reason) = lone(&tokens, &request, &cells, engine.context());
            let scores = scores(&tokens, &request, &cells);
            if spoken.len() == SPOKEN {
                spoken.swap_remove(random.below(SPOKEN as u64) as usize);
            }
            spoken.push(written.iter().chain(&answer).copied().collect());
            match engine.submit(request) {
                Ok(generation) => {
                    let (heard, cancelled) = (0, false);
                    clients.push(Client { generation, answer, reason, heard, scores, cancelled });
                }
                Err(SubmitError::QueueFull { .. }) => {}
                Err(other) => panic!("{other}"),
            }
        }
        if !clients.is_empty() && random.below(8) == 0 {
            let at = random.below(clients.len() as u64) as usize;
            if random.below(2) == 0 {
                drop(clients.swap_remove(at));
            } else {
                clients[at].generation.cancel();
                clients[at].cancelled = true;
            }
        }
        forward.take_arrivals();
        forward.sweep().unwrap();
        if forward.has_work() {
            forward.turn(&mut model).unwrap();
        }
        balance(&forward, blocks, snapshots, offload);
        assert!(forward.batch.len() <= sequences, "more run than may");
        // A turn is shorter than a disk takes: now and then the disk is done first.
        while forward.images.under_way() && random.below(3) > 0 {
            forward.images.wait(Duration::from_secs(20));
        }
        assert!(forward.pipeline.len() < S::STEPS_IN_FLIGHT, "a turn leaves room for the next step");
        left += usize::from(forward.pipeline.leaving().next().is_some());
        clients.retain_mut(|client| !client.listen());
        turn += 1;
        assert!(turn < 4 * turns, "the walk does not end");
    }
    assert!(clients.is_empty(), "{} clients were not told the end", clients.len());
    assert_eq!(
        (forward.memory.cache().available(), forward.memory.free_slots().len()),
        (blocks, forward.most_running())
    );
    assert_eq!(forward.memory.cache().free_offload_places(), offload.map_or(0, |share| share.room.places));
    assert_eq!(
        forward.memory.cache().sliding_available(),
        sliding.map_or(0, |pool| pool.blocks),
        "blocks behind windows are lost"
    );
    assert!(forward.images.is_empty(), "a page of a copy is lost");
    assert_eq!(forward.tower.places().in_use(), 0, "a place of an image is lost");
    engine.drain(Duration::ZERO);
    assert!(!forward.wait_for_work().unwrap());
    (engine.stats(), left)
}

/// Walks with and without a cache, which answer the same: each answer is its lone one.
fn walks<S: Shape>() {
    let cached = walks_with::<S>(true);
    let stats = walks_with::<S>(false);
    // Images make prompts longer than pools of so few blocks keep.
    let part = if S::VISION.is_some() { 16 } else { 8 };
    assert!(cached.tokens_cached > cached.tokens_prefilled / part, "prompts are found: {cached:?}");
    assert!(cached.blocks_evicted > 300, "blocks are short: {cached:?}");
    assert_eq!(cached.snapshots_evicted > 300, S::SPEC.state_bytes > 0, "{cached:?}");
    assert_eq!((stats.tokens_cached, stats.blocks_evicted, stats.snapshots_evicted), (0, 0, 0), "{stats:?}");
}

/// Walks in pools from just enough for one to enough for all.
fn walks_with<S: Shape>(enabled: bool) -> Stats {
    let (mut stats, mut left) = (Stats::default(), 0);
    let worlds = [(16, 0.5), (17, 0.9), (20, 0.1), (26, 0.9), (40, 0.1), (ROOMY, 0.5)];
    for (seed, (blocks, right_drafts)) in (1..).zip(worlds) {
        let swap = SwapOptions::default();
        let (one, leaving) = walk::<S>(&swap, seed * 0x9E37_79B9, TURNS, blocks, right_drafts, enabled, None);
        stats.steps += one.steps;
        stats.preemptions += one.preemptions;
        stats.finished += one.finished;
        stats.cancelled += one.cancelled;
        stats.tokens_prefilled += one.tokens_prefilled;
        stats.tokens_cached += one.tokens_cached;
        stats.blocks_evicted += one.blocks_evicted;
        stats.snapshots_evicted += one.snapshots_evicted;
        stats.tokens_generated += one.tokens_generated;
        stats.drafts_verified += one.drafts_verified;
        stats.drafts_accepted += one.drafts_accepted;
        stats.images_seen += one.images_seen;
        stats.image_passes += one.image_passes;
        stats.images_found += one.images_found;
        left += leaving;
    }
    let (steps, drafts) = (S::STEPS_IN_FLIGHT, S::SPEC.drafts());
    println!("{steps} in flight, {drafts} drafts: {left} turns with blocks of ended sequences; {stats:?}");
    assert!(stats.preemptions > 20 && stats.finished > 300 && stats.cancelled > 150, "{stats:?}");
    let shared = stats.images_seen - stats.image_passes;
    let seen = [stats.images_seen, stats.images_found, 3 * shared].map(|images| images > 100);
    assert_eq!(seen, [S::VISION.is_some(); 3], "seen, found again, and together: {stats:?}");
    assert_eq!(left > 30, steps > 1, "only a step in flight keeps blocks of sequences that are over");
    if drafts > 0 {
        let (verified, accepted) = (stats.drafts_verified, stats.drafts_accepted);
        // What is looked up is not found after every token.
        let rarely = if S::SPEC.drafted() > 0 { 4 } else { 16 };
        assert!(verified > stats.tokens_generated / rarely, "drafts are fed: {stats:?}");
        assert!(verified / 8 < accepted && accepted < verified * 7 / 8, "some hold, some do not: {stats:?}");
    }
    stats
}

/// Steps that four answers of forty tokens take which begin one after the other.
fn steps_of(change: impl Fn(&mut Request)) -> u64 {
    let options = EngineOptions::new(ROOMY, Tight::SPEC.context, 12);
    let (engine, mut forward) = prepare(Tight::SPEC, options).unwrap();
    let script = Script { tokens: tokens(), blocks: ROOMY, ..Script::default() };
    let mut model = Scripted::<Pipelined<Tight, 2>>::new(script);
    let mut generations = Vec::new();
    for begins in 0..4 {
        let mut request = Request::new(vec![begins + 1], 40);
        request.ignore_eos = true;
        change(&mut request);
        generations.push(engine.submit(request).unwrap());
        for _ in 0..3 {
            forward.take_arrivals();
            forward.turn(&mut model).unwrap();
        }
    }
    while forward.has_work() {
        forward.turn(&mut model).unwrap();
    }
    let stats = engine.stats();
    assert_eq!((stats.finished, stats.tokens_generated), (4, 160));
    stats.steps
}

#[test]
fn answers_whose_tokens_the_host_sees_first_share_every_step() {
    let free = steps_of(|_| {});
    let penalised = steps_of(|request| request.sampling.presence_penalty = 0.5);
    let masked = steps_of(|request| request.constraint = Some(of("[a-x]{50}")));
    let mixed = steps_of(|request| match request.prompt[0] {
        1 => request.sampling.presence_penalty = 0.5,
        2 => {}
        _ => request.constraint = Some(of("[a-x]{50}")),
    });
    assert_eq!([penalised, masked, mixed], [free; 3], "steps");
}

#[test]
fn every_answer_is_its_lone_one_with_one_step_in_flight() {
    walks::<Tight>();
}

#[test]
fn every_answer_is_its_lone_one_with_two_steps_in_flight() {
    walks::<Pipelined<Tight, 2>>();
}

#[test]
fn every_answer_is_its_lone_one_with_three_steps_in_flight() {
    walks::<Pipelined<Tight, 3>>();
}

#[test]
fn every_answer_is_its_lone_one_where_answers_are_decoded_again() {
    walks::<Pipelined<Invariant<Tight, 8>, 2>>();
}

#[test]
fn every_answer_is_its_lone_plain_one_with_one_draft() {
    walks::<Drafting<Tight, 1>>();
}

#[test]
fn every_answer_is_its_lone_plain_one_with_two_drafts() {
    walks::<Drafting<Tight, 2>>();
}

#[test]
fn every_answer_is_its_lone_plain_one_with_three_drafts() {
    walks::<Drafting<Tight, 3>>();
}

#[test]
fn every_answer_of_a_model_with_state_is_its_lone_one() {
    walks::<Recurrent<Tight>>();
}

#[test]
fn every_answer_of_a_model_with_state_is_its_lone_one_with_two_steps_in_flight() {
    walks::<Pipelined<Recurrent<Tight>, 2>>();
}

#[test]
fn every_answer_of_a_model_with_state_is_its_lone_one_with_three_steps_in_flight() {
    walks::<Pipelined<Recurrent<Tight>, 3>>();
}

#[test]
fn every_answer_of_a_model_with_state_is_its_lone_plain_one_with_two_drafts() {
    walks::<Drafting<Recurrent<Tight>, 2>>();
}

#[test]
fn every_answer_of_a_batch_invariant_model_with_state_is_its_lone_one() {
    walks::<Pipelined<Recurrent<Invariant<Tight, 8>>, 2>>();
}

/// Walks in which no sequence holds more than a few blocks on the device, and the rest is on disk: of pools
/// that hold less than one sequence, with shares from the smallest, and with places on disk for one sequence
/// or for all.
fn walks_offload<S: Shape>() {
    let mut sent = 0;
    let whole_steps = |group| Share::least(group, 4, S::SPEC.step_tokens, S::SPEC.reach());
    // With the least share chunks are cut to it and nothing is found; with more, cached prefixes are found.
    for (seed, (group, kept, places, enabled)) in
        (1..).zip([(1, 0, 16, true), (2, 0, 8, true), (2, 3, 40, true), (3, 5, 30, false), (1, 4, 96, true)])
    {
        let room = OffloadRoom { places, group };
        let resident = if kept > 0 { whole_steps(group) + kept } else { OffloadShare::least(S::SPEC, room) };
        let offload = Some(OffloadShare { room, resident });
        let (stats, _) = walk::<S>(
            &SwapOptions::default(),
            seed * 0x9E37_79B9,
            TURNS_OFFLOAD,
            resident + 2 * (places / 16),
            0.5,
            enabled,
            offload,
        );
        println!("groups of {group}, {resident} resident, {places} places: {stats:?}");
        assert!(stats.finished > 40, "{stats:?}");
        assert_eq!(stats.tokens_cached > 0, enabled && kept > 0, "{stats:?}");
        sent += stats.blocks_offloaded;
    }
    assert!(sent > 1_000, "{sent}");
}

#[test]
fn every_answer_is_its_lone_one_with_blocks_on_disk() {
    walks_offload::<Tight>();
}

#[test]
fn every_answer_is_its_lone_one_with_blocks_on_disk_and_two_steps_in_flight() {
    walks_offload::<Pipelined<Tight, 2>>();
}

#[test]
fn every_answer_is_its_lone_plain_one_with_blocks_on_disk_and_two_drafts() {
    walks_offload::<Drafting<Tight, 2>>();
}

#[test]
fn every_answer_of_a_model_with_state_is_its_lone_one_with_blocks_on_disk() {
    walks_offload::<Pipelined<Recurrent<Tight>, 2>>();
}

#[test]
fn every_answer_is_its_lone_plain_one_with_blocks_on_disk_and_two_drafts_looked_up() {
    walks_offload::<Verifying<Tight, 2>>();
}

#[test]
fn every_answer_is_its_lone_plain_one_with_a_draft_of_the_model_itself() {
    walks::<Skipping<Tight, 1>>();
}

#[test]
fn every_answer_of_a_model_with_state_is_its_lone_plain_one_with_two_drafts_of_its_own() {
    walks::<Skipping<Recurrent<Tight>, 2>>();
}

#[test]
fn every_answer_is_its_lone_plain_one_with_blocks_on_disk_and_two_drafts_of_the_model_itself() {
    walks_offload::<Skipping<Tight, 2>>();
}

#[test]
fn every_answer_is_its_lone_plain_one_with_one_draft_looked_up() {
    walks::<Verifying<Tight, 1>>();
}

#[test]
fn every_answer_is_its_lone_plain_one_with_three_drafts_looked_up() {
    walks::<Verifying<Tight, 3>>();
}

#[test]
fn every_answer_of_a_model_with_state_is_its_lone_plain_one_with_two_drafts_looked_up() {
    walks::<Verifying<Recurrent<Tight>, 2>>();
}

#[test]
fn every_answer_of_a_model_with_a_window_is_its_lone_one() {
    walks::<Windowed<Tight, 9>>();
}

#[test]
fn every_answer_of_a_model_with_a_window_is_its_lone_one_with_two_steps_in_flight() {
    walks::<Pipelined<Windowed<Tight, 6>, 2>>();
}

#[test]
fn every_answer_of_a_model_with_a_window_is_its_lone_one_with_three_steps_in_flight() {
    walks::<Pipelined<Windowed<Tight, 1>, 3>>();
}

#[test]
fn every_answer_of_a_batch_invariant_model_with_a_window_is_its_lone_one() {
    walks::<Pipelined<Windowed<Invariant<Tight, 8>, 13>, 2>>();
}

#[test]
fn every_answer_of_a_model_with_a_window_is_its_lone_plain_one_with_two_drafts() {
    walks::<Drafting<Windowed<Tight, 7>, 2>>();
}

#[test]
fn every_answer_of_a_model_with_a_window_is_its_lone_plain_one_with_a_draft_of_its_own() {
    walks::<Skipping<Windowed<Tight, 5>, 1>>();
}

#[test]
fn every_answer_of_a_model_with_a_window_is_its_lone_plain_one_with_three_drafts_looked_up() {
    walks::<Verifying<Windowed<Tight, 9>, 3>>();
}

#[test]
fn every_answer_of_a_model_with_a_window_and_state_is_its_lone_one_with_two_steps_in_flight() {
    walks::<Pipelined<Recurrent<Windowed<Tight, 9>>, 2>>();
}

#[test]
fn every_answer_of_a_model_with_a_window_is_its_lone_one_with_blocks_on_disk() {
    walks_offload::<Pipelined<Windowed<Tight, 9>, 2>>();
}
