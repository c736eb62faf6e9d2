//! A fixed team of threads that runs one closure on all of them, with barriers between its phases.

use std::cell::{Cell, UnsafeCell};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long an idle worker polls for work before it starts to yield between polls.
const SPIN: Duration = Duration::from_micros(30);
/// How long it polls altogether before it sleeps.
const WATCH: Duration = Duration::from_micros(1500);
/// Polls of a barrier before the lane yields: the lane it waits for may be descheduled.
const BARRIER_LOOKS: u32 = 4000;
/// How long a lane yields at a barrier before it sleeps between polls. A lane that waits longer waits for one
/// that another program keeps off its CPU, and only a CPU that is left idle takes that program over.
const YIELD: Duration = Duration::from_millis(1);
/// How long it sleeps each time.
const NAP: Duration = Duration::from_micros(50);

/// Threads that live as long as the team and run closures together, as one *lane* each.
///
/// The caller of [`Team::run`] is lane 0. The other lanes are the team's own threads, each pinned to a CPU if
/// there are enough.
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    running: Mutex<()>,
}

impl Team {
    /// A team of `threads` lanes (at least one), of which `threads - 1` are new threads.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn new(threads: usize) -> std::io::Result<Team> {
        let lanes = threads.max(1);
        let shared = Arc::new(Shared::new(lanes));
        let mut team = Team { shared: shared.clone(), workers: Vec::new(), running: Mutex::new(()) };
        let cpus = affinity::allowed();
        for index in 1..lanes {
            let shared = shared.clone();
            let cpu = (cpus.len() >= lanes).then(|| cpus[index]);
            let worker = std::thread::Builder::new().name(format!("lane-{index}")).spawn(move || {
                if let Some(cpu) = cpu {
                    affinity::pin(cpu);
                }
                work(&shared, index);
            })?;
            team.workers.push(worker);
        }
        Ok(team)
    }

    /// Number of lanes.
    pub fn lanes(&self) -> usize {
        self.shared.lanes
    }

    /// Pins the calling thread to the CPU reserved for lane 0, once per thread, if there are enough CPUs.
    /// Only for a thread that does little but call [`Team::run`]: threads it starts later inherit the
    /// restriction.
    pub fn pin_caller(&self) {
        thread_local!(static PINNED: Cell<bool> = const { Cell::new(false) });
        if PINNED.replace(true) {
            return;
        }
        let cpus = affinity::allowed();
        if cpus.len() >= self.lanes() && self.lanes() > 1 {
            affinity::pin(cpus[0]);
        }
    }

    /// Runs `job` on every lane at once and returns when all have finished. Calls from several threads take
    /// turns; a call from inside a job never returns.
    ///
    /// # Panics
    /// When the job panics on a lane: the others stop at their next barrier, and the panic is passed on.
    pub fn run<F: Fn(&Lane) + Sync>(&self, job: F) {
        let _turn = lock(&self.running);
        let shared = &*self.shared;
        shared.arrived.store(0, Ordering::Relaxed);
        shared.claimed.store(0, Ordering::Relaxed);
        shared.unfinished.store(shared.lanes - 1, Ordering::Relaxed);
        // SAFETY: no worker reads the job before the epoch changes below, and all have finished the previous
        // one, because this function waits for that.
        unsafe { *shared.job.get() = Some(Job::new(&job)) };
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        if shared.sleepers.load(Ordering::SeqCst) > 0 {
            let _guard = lock(&shared.sleep);
            shared.wake.notify_all();
        }
        shared.perform(0, |lane| job(lane));
        let mut wait = Wait::default();
        while shared.unfinished.load(Ordering::Acquire) > 0 {
            wait.pause();
        }
        if shared.failed.swap(false, Ordering::Relaxed)
            && let Some(Err(panic)) = lock(&shared.panic).take()
        {
            resume_unwind(panic);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        {
            let _guard = lock(&self.shared.sleep);
            self.shared.wake.notify_all();
        }
        for worker in self.workers.drain(..) {
            // Workers catch the panics of jobs, so the result carries no information.
            let _ = worker.join();
        }
    }
}

impl std::fmt::Debug for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Team").field("lanes", &self.lanes()).finish()
    }
}

/// One thread's part in a running job.
///
/// Phase functions take a lane, must be called by all lanes of a job in the same order with the same
/// arguments, and end with [`Lane::barrier`]. Debug builds check the order.
pub struct Lane<'a> {
    shared: &'a Shared,
    index: usize,
    generation: Cell<usize>,
}

impl Lane<'_> {
    /// This lane's index, below [`Lane::lanes`].
    pub fn index(&self) -> usize {
        self.index
    }

    /// Number of lanes of the team.
    pub fn lanes(&self) -> usize {
        self.shared.lanes
    }

    /// This lane's contiguous share of `count` items; the shares of all lanes differ by at most one item.
    #[inline]
    pub fn share(&self, count: usize) -> Range<usize> {
        let lanes = self.shared.lanes;
        let (each, more) = (count / lanes, count % lanes);
        let start = self.index * each + self.index.min(more);
        start..start + each + usize::from(self.index < more)
    }

    /// The next item that no lane has taken since the last barrier, counted from 0.
    #[inline]
    pub fn claim(&self) -> usize {
        self.shared.claimed.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits until every lane arrives. Writes before the barrier are visible to all lanes after it.
    ///
    /// # Panics
    /// When another lane panicked, and in debug builds when lanes wait in different places.
    #[track_caller]
    #[inline]
    pub fn barrier(&self) {
        let shared = self.shared;
        let generation = self.generation.get();
        if cfg!(debug_assertions) {
            let here: *const Location<'static> = Location::caller();
            shared.places[generation % 2][self.index].store(here.addr(), Ordering::Relaxed);
        }
        if shared.arrived.fetch_add(1, Ordering::AcqRel) + 1 == shared.lanes {
            shared.arrived.store(0, Ordering::Relaxed);
            shared.claimed.store(0, Ordering::Relaxed);
            shared.generation.store(generation.wrapping_add(1), Ordering::Release);
        } else {
            let mut wait = Wait::default();
            while shared.generation.load(Ordering::Acquire) == generation {
                if wait.looks % 64 == 63 {
                    shared.check();
                }
                wait.pause();
            }
        }
        self.generation.set(generation.wrapping_add(1));
        if cfg!(debug_assertions) {
            // A lane is at most one barrier ahead, so this half of the table is not reused before the next
            // but one.
            let places = &shared.places[generation % 2];
            let first = places[0].load(Ordering::Relaxed);
            assert!(
                places.iter().all(|place| place.load(Ordering::Relaxed) == first),
                "the lanes of a job called different phase functions"
            );
        }
    }
}

/// State shared by all lanes. Fields that lanes write at different times have their own cache lines.
struct Shared {
    lanes: usize,
    job: UnsafeCell<Option<Job>>,
    epoch: Line<AtomicUsize>,
    unfinished: Line<AtomicUsize>,
    arrived: Line<AtomicUsize>,
    generation: Line<AtomicUsize>,
    claimed: Line<AtomicUsize>,
    /// Where each lane waits, by the parity of the generation; debug builds only.
    places: [Vec<AtomicUsize>; 2],
    failed: AtomicBool,
    /// The first panic of a job.
    panic: Mutex<Option<std::thread::Result<()>>>,
    stop: AtomicBool,
    sleepers: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
}

// SAFETY: `job` alone is not Sync by itself; it is written by the holder of `Team::running` while no worker
// reads it (see `Team::run`), and read by workers after an acquiring load of the epoch.
unsafe impl Sync for Shared {}
// SAFETY: the job's pointers are used only while the closure they point to is kept alive by `Team::run`.
unsafe impl Send for Shared {}

#[repr(align(128))]
struct Line<T>(T);

impl<T> std::ops::Deref for Line<T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// A type-erased closure, so that the same threads run all jobs.
#[derive(Clone, Copy)]
struct Job {
    data: *const (),
    call: unsafe fn(*const (), &Lane),
}

impl Job {
    fn new<F: Fn(&Lane) + Sync>(job: &F) -> Job {
        /// # Safety
        /// `data` points to a live `F`.
        unsafe fn call<F: Fn(&Lane)>(data: *const (), lane: &Lane) {
            // SAFETY: the caller's promise.
            unsafe { (*data.cast::<F>())(lane) }
        }
        Job { data: std::ptr::from_ref(job).cast(), call: call::<F> }
    }
}

impl Shared {
    fn new(lanes: usize) -> Shared {
        let counter = || Line(AtomicUsize::new(0));
        let places = || (0..lanes).map(|_| AtomicUsize::new(0)).collect();
        Shared {
            lanes,
            job: UnsafeCell::new(None),
            epoch: counter(),
            unfinished: counter(),
            arrived: counter(),
            generation: counter(),
            claimed: counter(),
            places: [places(), places()],
            failed: AtomicBool::new(false),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    /// Runs a job as one lane; a panic is stored for the caller of [`Team::run`].
    fn perform(&self, index: usize, job: impl FnOnce(&Lane)) {
        let generation = Cell::new(self.generation.load(Ordering::Acquire));
        let lane = Lane { shared: self, index, generation };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(&lane)))
            && !panic.is::<Stopped>()
        {
            lock(&self.panic).get_or_insert(Err(panic));
            self.failed.store(true, Ordering::Release);
        }
    }

    /// Unwinds out of the job when another lane panicked.
    #[cold]
    fn check(&self) {
        if self.failed.load(Ordering::Acquire) {
            resume_unwind(Box::new(Stopped));
        }
    }
}

/// Unwinds a lane whose job failed elsewhere.
struct Stopped;

/// The body of a worker thread.
fn work(shared: &Shared, index: usize) {
    let mut seen = 0;
    loop {
        seen = await_epoch(shared, seen);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: the epoch changed, so the job is set, and it does not change until this worker reports
        // below.
        if let Some(Job { data, call }) = unsafe { *shared.job.get() } {
            // SAFETY: `Team::run` keeps the closure alive until every worker has reported.
            shared.perform(index, |lane| unsafe { call(data, lane) });
        }
        shared.unfinished.fetch_sub(1, Ordering::Release);
    }
}

/// Waits for the epoch to differ from `seen`: polls at first, then sleeps.
fn await_epoch(shared: &Shared, seen: usize) -> usize {
    let start = Instant::now();
    loop {
        for _ in 0..64 {
            let epoch = shared.epoch.load(Ordering::SeqCst);
            if epoch != seen {
                return epoch;
            }
            std::hint::spin_loop();
        }
        let idle = start.elapsed();
        if idle > WATCH {
            break;
        }
        if idle > SPIN {
            std::thread::yield_now();
        }
    }
    let mut guard = lock(&shared.sleep);
    // The caller of `Team::run` changes the epoch, then checks for sleepers; a worker does the reverse, so
    // that one of them sees the other.
    shared.sleepers.fetch_add(1, Ordering::SeqCst);
    loop {
        let epoch = shared.epoch.load(Ordering::SeqCst);
        if epoch != seen {
            shared.sleepers.fetch_sub(1, Ordering::SeqCst);
            return epoch;
        }
        guard = shared.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
    }
}

/// A lane's wait for the others.
#[derive(Default)]
struct Wait {
    looks: u32,
    yielding: Option<Instant>,
}

impl Wait {
    /// What is done between two polls.
    #[inline]
    fn pause(&mut self) {
        self.looks = self.looks.wrapping_add(1);
        if self.yielding.is_none() && self.looks < BARRIER_LOOKS {
            std::hint::spin_loop();
        } else {
            self.give_way();
        }
    }

    #[cold]
    fn give_way(&mut self) {
        if self.yielding.get_or_insert_with(Instant::now).elapsed() < YIELD {
            std::thread::yield_now();
        } else {
            std::thread::sleep(NAP);
        }
    }
}

/// Ignores poisoning: a panic cannot break an invariant of the guarded data.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(target_os = "linux")]
mod affinity {
    //! The CPUs that threads may run on.

    /// CPUs the process may use, in order; empty if the system does not say.
    pub(super) fn allowed() -> Vec<usize> {
        // SAFETY: an all-zero set is a valid, empty one, and the call writes no more than its size.
        let (set, rc) = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            let rc = libc::sched_getaffinity(libc::getpid(), size_of::<libc::cpu_set_t>(), &mut set);
            (set, rc)
        };
        if rc != 0 {
            return Vec::new();
        }
        // SAFETY: the index is below the set's size.
        (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect()
    }

    /// Pins the calling thread to one CPU. Best effort: a thread that could not be pinned still works.
    pub(super) fn pin(cpu: usize) {
        // SAFETY: `cpu` came from `allowed`, so it is below the set's size; the call only reads the set.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpu, &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod affinity {
    //! Systems that cannot pin threads.

    pub(super) fn allowed() -> Vec<usize> {
        Vec::new()
    }

    pub(super) fn pin(_: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lane_runs_and_shares_cover_all_items() {
        for lanes in 1..=5 {
            let team = Team::new(lanes).unwrap();
            let counts: Vec<AtomicUsize> = (0..17).map(|_| AtomicUsize::new(0)).collect();
            for _ in 0..50 {
                team.run(|lane| {
                    for item in lane.share(17) {
                        counts[item].fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 50));
        }
    }

    #[test]
    fn barriers_order_phases_and_reset_claims() {
        let team = Team::new(3).unwrap();
        let cells: Vec<AtomicUsize> = (0..8).map(|_| AtomicUsize::new(0)).collect();
        team.run(|lane| {
            for round in 1..=200 {
                loop {
                    let item = lane.claim();
                    if item >= cells.len() {
                        break;
                    }
                    cells[item].fetch_add(1, Ordering::Relaxed);
                }
                lane.barrier();
                assert!(cells.iter().all(|cell| cell.load(Ordering::Relaxed) == round));
                lane.barrier();
            }
        });
    }

    #[test]
    fn workers_wake_after_sleeping() {
        let team = Team::new(2).unwrap();
        for _ in 0..5 {
            std::thread::sleep(WATCH * 2);
            let ran = AtomicUsize::new(0);
            team.run(|_| {
                ran.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(ran.load(Ordering::Relaxed), 2);
        }
    }

    #[test]
    fn a_panic_on_any_lane_reaches_the_caller_and_the_team_lives_on() {
        let team = Team::new(2).unwrap();
        for culprit in 0..2 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                team.run(|lane| {
                    assert!(lane.index() != culprit, "planted");
                    lane.barrier();
                });
            }));
            assert!(result.unwrap_err().downcast_ref::<&str>().unwrap().contains("planted"));
            let ran = AtomicUsize::new(0);
            team.run(|lane| {
                lane.barrier();
                ran.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(ran.load(Ordering::Relaxed), 2);
        }
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "different phase functions")]
    fn different_phases_are_noticed() {
        let team = Team::new(2).unwrap();
        team.run(|lane| {
            if lane.index() == 0 {
                lane.barrier();
            }
            if lane.index() == 1 {
                lane.barrier();
            }
        });
    }
}
