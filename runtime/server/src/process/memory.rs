//! Host memory: how much of it a server may take, the plan of its use, and the guard against running out.

use crate::process::out;
use monomorph_abi::serve::PROCESS_BYTES;
use monomorph_model::{ModelSpec, SlidingRoom, SlidingSpec, StateRoom, States, StatesWanted};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use sysinfo::{MemoryRefreshKind, RefreshKind, System};

/// How long a reading of host memory stays valid.
const FRESH: Duration = Duration::from_millis(500);
/// The default guard: this part of host memory, up to so many bytes.
const GUARD_PART: u64 = 16;
const GUARD_MOST: u64 = 4096 << 20;

/// Memory of the machine, or of the control group this process is confined to, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    /// All of it.
    pub(crate) total: u64,
    /// What can be allocated without the system killing a process; cached files count as free.
    pub(crate) available: u64,
}

impl Host {
    /// As it is now.
    pub(crate) fn read() -> Host {
        let kind = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
        let system = System::new_with_specifics(kind);
        let whole = Host { total: system.total_memory(), available: system.available_memory() };
        // Without open files nothing is known of the machine, and the library must not be asked about control
        // groups.
        match (whole.total > 0).then(|| system.cgroup_limits()).flatten() {
            // The group's file cache can be reclaimed.
            Some(limits) => whole.within(limits.total_memory, limits.total_memory.saturating_sub(limits.rss)),
            None => whole,
        }
    }

    fn within(self, total: u64, free: u64) -> Host {
        Host { total: self.total.min(total), available: self.available.min(free) }
    }
}

/// Flags of the guard.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct GuardArgs {
    /// Megabytes of the machine's memory that stay free: a server that would take them does not load, and one
    /// that runs answers new requests 503 while others have taken them; 0 is no guard [default: a sixteenth
    /// of the memory, at most 4096].
    #[arg(long, value_name = "MB")]
    pub memory_guard: Option<u64>,
}

impl GuardArgs {
    /// In bytes.
    pub(crate) fn bytes(self, host: Host) -> u64 {
        self.memory_guard.map_or((host.total / GUARD_PART).min(GUARD_MOST), |mb| mb.saturating_mul(1 << 20))
    }
}

/// Checks that a server whose model is in GPU memory fits into host memory, with so many bytes of swap space
/// and so many for images.
///
/// # Errors
/// When the guard would be violated.
pub(crate) fn beside_device(host: Host, guard: u64, swap: u64, images: u64) -> Result<(), String> {
    let takes = PROCESS_BYTES.saturating_add(swap).saturating_add(images);
    if guard == 0 || host.available.saturating_sub(guard) >= takes {
        return Ok(());
    }
    let for_images = match images {
        0 => String::new(),
        images => format!(" and {} images", out::bytes(images)),
    };
    Err(format!(
        "this machine has {} of memory left, {} are to stay free (--memory-guard), and the server takes {} beside the GPU's, {} of them \
         swap space{for_images}",
        out::bytes(host.available),
        out::bytes(guard),
        out::bytes(takes),
        out::bytes(swap),
    ))
}

/// Memory of a server whose model is in host memory, K/V aside, and the room for that. In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostBudget {
    host: Host,
    guard: u64,
    /// In memory of this process, or mapped.
    weights: u64,
    /// Whether they are pages of a file, which all who map it share.
    mapped: bool,
    /// Recurrent states of running sequences, and snapshots.
    state: u64,
    /// Swap space.
    swap: u64,
    scratch: u64,
    /// Bytes of a K/V block.
    block: u64,
    /// K/V blocks of layers with a sliding window.
    sliding: SlidingRoom,
    /// Most of `host.available` that may be taken.
    limit: u64,
}

impl HostBudget {
    /// For a stack without states, and so many bytes of swap space. At most `fraction` of host memory is
    /// used.
    pub(crate) fn new(spec: &ModelSpec, swap: u64, host: Host, fraction: f64, guard: u64) -> HostBudget {
        let ceiling = (host.total as f64 * fraction) as u64;
        HostBudget {
            host,
            guard,
            weights: spec.weight_bytes,
            mapped: false,
            state: 0,
            swap,
            scratch: spec.scratch_bytes,
            block: spec.block_bytes as u64,
            sliding: SlidingRoom::default(),
            limit: ceiling.min(host.available.saturating_sub(guard)),
        }
    }

    /// The same with weights that are mapped from a file of so many bytes. Room is left for its pages,
    /// without which every token waits for the disk; they count as free memory in `host`, so that a second
    /// server of the same file leaves the same room and not as much again.
    pub(crate) fn mapping(self, bytes: u64) -> HostBudget {
        HostBudget { weights: bytes, mapped: true, ..self }
    }

    /// The same with so many more bytes of scratch.
    pub(crate) fn beside(self, bytes: u64) -> HostBudget {
        HostBudget { scratch: self.scratch + bytes, ..self }
    }

    /// The same with layers that have a sliding window, for so many sequences at a time of up to `context`
    /// tokens. Sequences may have more blocks than there are in memory where they `offload`.
    pub(crate) fn with_sliding(
        self,
        spec: &ModelSpec,
        sliding: Option<SlidingSpec>,
        sequences: usize,
        context: usize,
        offloads: bool,
    ) -> HostBudget {
        let Some(it) = sliding else { return self };
        HostBudget { sliding: it.needs(spec, context).room(sequences, offloads), ..self }
    }

    /// The same with the states that are wanted, as far as so many blocks come before them, or where those
    /// are `shorter` if need be, half of the room.
    pub(crate) fn with_states(
        self,
        spec: &ModelSpec,
        wanted: StatesWanted,
        blocks: usize,
        shorter: bool,
    ) -> (HostBudget, States) {
        let bytes = self.limit.saturating_sub(self.fixed());
        let (state, kv) = (spec.state_bytes, self.kv(blocks));
        let states = wanted.within(spec.step_sequences, StateRoom { bytes, state, kv, shorter });
        (HostBudget { state: state * states.count(), ..self }, states)
    }

    fn fixed(&self) -> u64 {
        self.weights + self.state + self.swap + self.scratch + PROCESS_BYTES
    }

    /// K/V blocks that fit.
    pub(crate) fn blocks(&self) -> usize {
        let bytes = self.limit.saturating_sub(self.fixed());
        usize::try_from(self.sliding.beside(self.block, bytes)).unwrap_or(usize::MAX)
    }

    /// Why no more fit.
    pub(crate) fn why(&self) -> String {
        format!(
            "{} of {} are free, {} stay so (--memory-guard), and weights, state, swap space and scratch take {}",
            out::bytes(self.host.available),
            out::bytes(self.host.total),
            out::bytes(self.guard),
            out::bytes(self.fixed())
        )
    }

    /// Most memory that the server uses with so many blocks.
    pub(crate) fn total(&self, blocks: usize) -> u64 {
        self.fixed().saturating_add(self.kv(blocks))
    }

    /// Memory of so many K/V blocks, and of those of layers with a sliding window beside them.
    fn kv(&self, blocks: usize) -> u64 {
        (blocks as u64).saturating_mul(self.block).saturating_add(self.sliding.bytes(blocks as u64))
    }

    /// Prints the plan before memory is claimed.
    pub(crate) fn print(&self, spec: &ModelSpec, blocks: usize, print: fn(std::fmt::Arguments)) {
        let state = match self.state {
            0 => String::new(),
            state => format!(", state {}", out::bytes(state)),
        };
        let swap = match self.swap {
            0 => String::new(),
            swap => format!(", swap space {}", out::bytes(swap)),
        };
        let weights = out::bytes(self.weights);
        let (taken, weights, pages) = match self.mapped {
            false => (self.total(blocks), format!("weights {weights}"), String::new()),
            true => (
                self.total(blocks) - self.weights,
                "no weights".to_owned(),
                format!("; {weights} of weights are pages of their file, which all servers of it share"),
            ),
        };
        print(format_args!(
            "memory: {} of {} free, at most {} will be taken: {weights}{state}{swap}, K/V {} ({} tokens), scratch {}, the process {}{pages}",
            out::bytes(self.host.available),
            out::bytes(self.host.total),
            out::bytes(taken),
            out::bytes(self.kv(blocks)),
            blocks * spec.block_tokens,
            out::bytes(self.scratch),
            out::bytes(PROCESS_BYTES),
        ));
    }
}

/// Watches host memory while a server runs.
#[derive(Debug)]
pub(crate) struct Guard {
    bytes: u64,
    last: Mutex<Option<(Instant, Host)>>,
}

impl Guard {
    /// A guard that keeps so many bytes free; 0 disables it.
    pub(crate) fn new(bytes: u64) -> Guard {
        Guard { bytes, last: Mutex::new(None) }
    }

    /// The shortage, if less memory is free than the guard demands.
    pub(crate) fn shortage(&self) -> Option<String> {
        if self.bytes == 0 {
            return None;
        }
        let mut last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let now = Instant::now();
        let host = match *last {
            Some((then, host)) if now - then < FRESH => host,
            _ => {
                let host = Host::read();
                *last = Some((now, host));
                host
            }
        };
        (host.available < self.bytes).then(|| {
            format!(
                "this machine has {} of memory left, and {} are to stay free",
                out::bytes(host.available),
                out::bytes(self.bytes)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_engine::scripted::{Scripted, Small};
    use monomorph_model::Model;

    const GIB: u64 = 1 << 30;

    fn room(available: u64, guard: u64, fraction: f64) -> HostBudget {
        let host = Host { total: 16 * GIB, available };
        let limit = ((16.0 * GIB as f64 * fraction) as u64).min(available.saturating_sub(guard));
        let (sliding, state) = (SlidingRoom::default(), 0);
        HostBudget {
            host,
            guard,
            weights: GIB,
            mapped: false,
            state,
            swap: 0,
            scratch: GIB / 4,
            block: 1 << 20,
            sliding,
            limit,
        }
    }

    #[test]
    fn blocks_take_what_is_free_less_the_guard_and_never_more_than_the_fraction() {
        let fixed = GIB + GIB / 4 + PROCESS_BYTES;
        let blocks = |bytes: u64| ((bytes - fixed) >> 20) as usize;
        assert_eq!(room(8 * GIB, GIB, 0.9).blocks(), blocks(7 * GIB));
        assert_eq!(room(16 * GIB, 0, 0.25).blocks(), blocks(4 * GIB));
        assert_eq!(room(GIB, GIB, 0.9).blocks(), 0);
        let some = room(8 * GIB, GIB, 0.9);
        assert!(some.total(some.blocks()) <= 7 * GIB && some.total(some.blocks() + 1) > 7 * GIB);
    }

    #[test]
    fn mapped_weights_leave_room_for_their_pages() {
        let all = room(8 * GIB, GIB, 0.9);
        assert_eq!(all.mapping(GIB).blocks(), all.blocks());
        assert_eq!(all.mapping(2 * GIB).blocks(), all.blocks() - 1024);
    }

    #[test]
    fn layers_with_a_window_take_what_sequences_can_hold_and_no_more() {
        let spec = Scripted::<Small>::SPEC;
        let sliding = Some(SlidingSpec { window: 64, block_bytes: 2 << 20 });
        let room = room(8 * GIB, GIB, 0.9).with_sliding(spec, sliding, 16, 4096, false);
        // Of blocks of 16 tokens and steps of 64.
        let most = 16 * (64 / 16 + 2) + 64 / 16;
        assert_eq!(room.sliding, SlidingRoom { block: 2 << 20, most, all: false });
        let alone = HostBudget { sliding: SlidingRoom::default(), ..room };
        assert_eq!(room.total(1000), alone.total(1000) + most * (2 << 20));
        assert_eq!(room.total(10), alone.total(10) + 10 * (2 << 20));
        assert!(room.total(room.blocks()) <= 7 * GIB && room.total(room.blocks() + 1) > 7 * GIB);
    }

    #[test]
    fn states_that_nobody_asked_for_leave_half_of_the_room() {
        let spec = ModelSpec { state_bytes: 64 << 20, step_sequences: 16, ..*Scripted::<Small>::SPEC };
        let fixed = GIB + GIB / 4 + PROCESS_BYTES;
        let states = |bytes, wanted, blocks, shorter| {
            let (room, states) = room(fixed + bytes, 0, 1.0).with_states(&spec, wanted, blocks, shorter);
            assert_eq!(room.state, states.count() * spec.state_bytes);
            assert!(room.blocks() >= blocks || shorter);
            (states.sequences, states.snapshots)
        };
        let free = StatesWanted::default();
        assert_eq!(states(4 * GIB, free, 512, false), (16, 16));
        // Half a GiB of blocks, and half a GiB of states.
        assert_eq!(states(GIB, free, 512, false), (4, 4));
        assert_eq!(states(GIB, free, 8192, true), (4, 4));
        let asked = StatesWanted { sequences: Some(6), snapshots: None };
        assert_eq!(states(GIB, asked, 512, false), (6, 2));
    }

    #[test]
    fn the_guard_holds_beside_a_gpu() {
        let host = Host { total: 16 * GIB, available: 4 * GIB };
        assert_eq!(beside_device(host, GIB, 2 * GIB, 0), Ok(()));
        assert_eq!(beside_device(host, 0, 64 * GIB, GIB), Ok(()), "no guard");
        for (guard, swap) in [(GIB, 3 * GIB), (4 * GIB, 0), (u64::MAX, 0), (GIB, u64::MAX)] {
            let short = beside_device(host, guard, swap, 0).expect_err("too little stays free");
            assert!(short.contains("--memory-guard") && short.contains("4.29 GB"), "{short}");
        }
        let short = beside_device(host, GIB, 2 * GIB, GIB).expect_err("images take it");
        assert!(short.contains("1.07 GB images"), "{short}");
    }

    #[test]
    fn the_guard_nobody_asked_for_is_a_part_of_the_machine() {
        let host = |total| Host { total, available: total };
        let guard = |mb, total| GuardArgs { memory_guard: mb }.bytes(host(total));
        assert_eq!(guard(None, 8 * GIB), GIB / 2);
        assert_eq!(guard(None, 512 * GIB), 4 * GIB);
        assert_eq!(guard(Some(7), 8 * GIB), 7 << 20);
        assert_eq!(guard(Some(0), 8 * GIB), 0);
    }

    #[test]
    fn a_control_group_bounds_what_the_machine_has() {
        let host = Host { total: 16 * GIB, available: 10 * GIB };
        assert_eq!(host.within(4 * GIB, 3 * GIB), Host { total: 4 * GIB, available: 3 * GIB });
        assert_eq!(host.within(u64::MAX, u64::MAX), host);
    }

    #[test]
    fn a_machine_with_less_than_the_guard_is_short() {
        assert_eq!(Guard::new(0).shortage(), None);
        assert_eq!(Guard::new(1).shortage(), None);
        let short = Guard::new(u64::MAX).shortage().expect("no machine has so much");
        assert!(short.contains("are to stay free"), "{short}");
    }
}
