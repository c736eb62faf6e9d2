//! State shared by the forward thread and the handles: health and counters.

use crate::latencies::Latencies;
use crate::request::FinishReason;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Whether the engine answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It takes requests.
    Running,
    /// It finishes accepted requests and refuses new ones.
    Draining,
    /// It was drained, or its last handle was dropped.
    Stopped,
    /// Its answers are wrong, so it stopped; the message says how that is known.
    Poisoned(String),
    /// The forward thread failed; the message says how.
    Dead(String),
}

/// Steps in the window of [`Stats::long_step`].
const STEPS: usize = 64;
/// Answers in the window of [`Stats::departures_per_second`].
const DEPARTURES: usize = 64;

impl Health {
    fn is_over(&self) -> bool {
        matches!(self, Health::Stopped | Health::Poisoned(_) | Health::Dead(_))
    }
}

/// Swapping: counters, and the memory in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwapStats {
    /// Pre-empted sequences that were copied out.
    pub out: u64,
    /// Sequences that resumed from a copy.
    pub back: u64,
    /// Bytes copied out.
    pub bytes_out: u64,
    /// Bytes copied back.
    pub bytes_back: u64,
    /// Time that copying out took; no step ran meanwhile.
    pub time_out: Duration,
    /// Time that copying back took.
    pub time_back: Duration,
    /// Bytes written to disk.
    pub bytes_written: u64,
    /// Bytes read from disk.
    pub bytes_read: u64,
    /// Copies that could not be written to disk and stayed in memory, or could not be read back, so that
    /// their sequences were prefilled again.
    pub failures: u64,
    /// Bytes of the host's memory that hold copies.
    pub host_bytes: u64,
    /// Bytes on disk that hold copies.
    pub disk_bytes: u64,
}

/// Prefixes that are kept in files: counters, and how many there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptStats {
    /// Blocks in the files, those that are being written included.
    pub blocks: usize,
    /// Snapshots of recurrent states in the files, likewise.
    pub snapshots: usize,
    /// Pages that the files have room for; 0 where nothing is kept. A block takes one, a snapshot several.
    pub capacity: usize,
    /// Blocks that an earlier process left and this one may use.
    pub at_start: usize,
    /// Snapshots, likewise.
    pub snapshots_at_start: usize,
    /// Tokens whose blocks came back from the files.
    pub tokens_back: u64,
    /// Snapshots that came back from them.
    pub snapshots_back: u64,
    /// Bytes written to the files.
    pub bytes_written: u64,
    /// Bytes read from them.
    pub bytes_read: u64,
    /// Pages that could not be written, or were not what had been written.
    pub failures: u64,
}

/// Counters at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Requests without blocks: not admitted yet, or pre-empted.
    pub waiting: usize,
    /// Sequences that are being answered.
    pub running: usize,
    /// Free K/V blocks; those of an ended answer are freed when no step in flight holds them.
    pub free_blocks: usize,
    /// How many of them hold cached prefixes.
    pub cached_blocks: usize,
    /// Snapshots of recurrent state that are kept.
    pub snapshots: usize,
    /// All K/V blocks.
    pub total_blocks: usize,
    /// Tokens a sequence may have, prompt and answer together.
    pub context: usize,
    /// Forward steps completed.
    pub steps: u64,
    /// Tokens fed before a first token could be sampled, those fed again after pre-emption included.
    pub tokens_prefilled: u64,
    /// Prefill chunks that did not end their prompt.
    pub prefill_chunks: u64,
    /// Tokens of sequences when they were admitted, which the cache was asked for.
    pub tokens_asked: u64,
    /// Of these, tokens that were found in the cache and not prefilled.
    pub tokens_cached: u64,
    /// Blocks of earlier sequences that were given to others.
    pub blocks_evicted: u64,
    /// Snapshots evicted for others or with their blocks.
    pub snapshots_evicted: u64,
    /// Images that the vision tower has seen.
    pub images_seen: u64,
    /// Passes in which it saw them, each over one or over several.
    pub image_passes: u64,
    /// Images that were to be fed and had their rows already.
    pub images_found: u64,
    /// Blocks written to disk because sequences had more than their share.
    pub blocks_offloaded: u64,
    /// Free offload slots.
    pub free_offload_places: usize,
    /// Tokens sampled for an answer; those of discarded rows do not count.
    pub tokens_generated: u64,
    /// Times that a sequence's drafts were fed to be verified.
    pub drafts: u64,
    /// Drafts fed to be verified.
    pub drafts_verified: u64,
    /// How many of them were accepted, those behind the end of an answer included.
    pub drafts_accepted: u64,
    /// Sequences that lost their blocks to others, and were copied out or prefilled again.
    pub preemptions: u64,
    /// Swapping of pre-empted sequences.
    pub swap: SwapStats,
    /// Prefixes that are kept in files.
    pub kept: KeptStats,
    /// Steps with prefill reduced to meet [`crate::ScheduleOptions::tbt`].
    pub prompts_cut: u64,
    /// Tokens later than [`crate::ScheduleOptions::tbt`] after the previous one.
    pub late_tokens: u64,
    /// Tokens of prompts whose answers have begun, each counted once.
    pub prompt_tokens: u64,
    /// Answers that ended by a stop id, by a stop string or by length.
    pub finished: u64,
    /// How many of them did not end by length.
    pub stopped: u64,
    /// Answers whose client disconnected or cancelled.
    pub cancelled: u64,
    /// Answers that the engine could not finish.
    pub failed: u64,
    /// Answers that ended per second, recently; `None` before the second has.
    pub departures_per_second: Option<f64>,
    /// The second longest of the last 64 steps, which a single stall does not change. Zero before the second.
    pub long_step: Duration,
    /// Time since the forward thread last made progress; `None` while it sleeps. Between two steps that is
    /// next to nothing, so it is the age of a step that hangs.
    pub in_turn: Option<Duration>,
    /// Time since the last step ended; `None` before the first.
    pub last_step: Option<Duration>,
    /// How long the oldest step in flight has taken so far; `None` between steps.
    pub in_step: Option<Duration>,
    /// Sum over all steps of the time from submission, or from the output of the step before if that came
    /// later, to output.
    pub device_time: Duration,
    /// Sum over all steps of the time the forward thread took to plan them and to hand out their tokens. With
    /// more than one step in flight the device works meanwhile.
    pub host_time: Duration,
}

/// The counters that the forward thread writes, with moments in place of ages.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub stats: Stats,
    /// Sequences waiting again after pre-emption.
    pub preempted: usize,
    pub step_began: Option<Instant>,
    pub step_ended: Option<Instant>,
    /// The forward thread's last sign of life; `None` while it sleeps.
    pub awake: Option<Instant>,
    departures: VecDeque<Instant>,
    step_times: VecDeque<Duration>,
}

impl Counters {
    /// Counts an answer that ended.
    pub fn ended(&mut self, reason: FinishReason, now: Instant) {
        match reason {
            FinishReason::Cancelled => self.stats.cancelled += 1,
            FinishReason::Length => self.stats.finished += 1,
            FinishReason::Stop { .. } | FinishReason::Satisfied => {
                self.stats.finished += 1;
                self.stats.stopped += 1;
            }
        }
        if self.departures.len() == DEPARTURES {
            self.departures.pop_front();
        }
        self.departures.push_back(now);
    }

    /// Counts a step and its duration.
    pub fn stepped(&mut self, time: Duration) {
        self.stats.steps += 1;
        self.stats.device_time += time;
        if self.step_times.len() == STEPS {
            self.step_times.pop_front();
        }
        self.step_times.push_back(time);
    }

    /// See [`Stats::long_step`].
    fn long_step(&self) -> Duration {
        let (mut longest, mut second) = (Duration::ZERO, Duration::ZERO);
        for &time in &self.step_times {
            second = second.max(time.min(longest));
            longest = longest.max(time);
        }
        second
    }

    /// Answers that ended per second, recently. The time since the last one counts too.
    fn departures_per_second(&self) -> Option<f64> {
        let intervals = self.departures.len().checked_sub(1).filter(|&count| count > 0)?;
        let seconds = self.departures.front()?.elapsed().as_secs_f64();
        Some(intervals as f64 / seconds.max(1e-6))
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    counters: Mutex<Counters>,
    /// Requests submitted and not yet admitted. Apart from the counters, because clients write it.
    queued: AtomicUsize,
    pub latencies: Arc<Latencies>,
    health: watch::Sender<Health>,
    over: (Mutex<bool>, Condvar),
}

/// One place in the queue, returned when dropped, wherever the request ends.
#[derive(Debug)]
pub(crate) struct QueuePlace(Arc<Shared>);

impl QueuePlace {
    /// Takes a place.
    ///
    /// # Errors
    /// With the number waiting, when that is `limit` or more.
    pub fn take(shared: &Arc<Shared>, limit: usize) -> Result<QueuePlace, usize> {
        let more = |waiting: usize| (waiting < limit).then_some(waiting + 1);
        shared.queued.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)?;
        Ok(QueuePlace(Arc::clone(shared)))
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        self.0.queued.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared {
    pub fn new(total_blocks: usize, context: usize) -> Shared {
        let stats = Stats { free_blocks: total_blocks, total_blocks, context, ..Stats::default() };
        Shared {
            counters: Mutex::new(Counters { stats, ..Counters::default() }),
            queued: AtomicUsize::new(0),
            latencies: Arc::default(),
            health: watch::Sender::new(Health::Running),
            over: (Mutex::new(false), Condvar::new()),
        }
    }

    /// Counters for the forward thread to update.
    pub fn counters(&self) -> MutexGuard<'_, Counters> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the forward thread sleeps from now on, or works.
    pub fn sleeps(&self, sleeps: bool) {
        self.counters().awake = (!sleeps).then(Instant::now);
    }

    pub fn stats(&self) -> Stats {
        let counters = self.counters();
        Stats {
            waiting: self.queued.load(Ordering::Relaxed) + counters.preempted,
            last_step: counters.step_ended.map(|moment| moment.elapsed()),
            long_step: counters.long_step(),
            in_turn: counters.awake.map(|moment| moment.elapsed()),
            departures_per_second: counters.departures_per_second(),
            in_step: counters.step_began.map(|moment| moment.elapsed()),
            ..counters.stats.clone()
        }
    }

    pub fn health(&self) -> Health {
        self.health.borrow().clone()
    }

    /// Moves on to `health`; a terminal state stays.
    pub fn set_health(&self, health: Health) {
        let over = health.is_over();
        self.health.send_if_modified(|now| {
            let moves = !now.is_over() && *now != health;
            if moves {
                *now = health;
            }
            moves
        });
        if over {
            *self.over.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
            self.over.1.notify_all();
        }
    }

    pub async fn stopped(&self) {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.health.subscribe().wait_for(Health::is_over).await;
    }

    pub fn wait_stopped(&self) {
        let over = self.over.0.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.over.1.wait_while(over, |over| !*over).unwrap_or_else(PoisonError::into_inner));
    }
}
