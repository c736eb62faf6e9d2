//! What a profiling build knows of the steps whose phases it times.

pub use monomorph_abi::PhaseWork;

/// The steps whose phases are timed.
#[derive(Clone, Copy, Debug)]
pub struct ProfileSpec {
    /// How time is taken.
    pub clock: PhaseClock,
    /// Bytes a second that the hardware's memory moves.
    pub bandwidth: f64,
    /// What each row of times is taken of: phases, or kernels.
    pub names: &'static [&'static str],
    /// Decode steps by sequences, then prompts by tokens.
    pub steps: &'static [ProfiledStep],
}

/// How time is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseClock {
    /// On the first thread, from one barrier between phases to the next.
    Barriers,
    /// On the device, before and behind each launch: these run one by one, in one stream.
    Events,
}

/// A step whose phases are timed.
#[derive(Clone, Copy, Debug)]
pub struct ProfiledStep {
    /// What it runs.
    pub kind: ProfiledKind,
    /// Its phases as they run, those of layers of one kind once.
    pub phases: &'static [ProfiledPhase],
}

/// What a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfiledKind {
    /// A token of each of up to so many sequences.
    Decode(usize),
    /// A prompt of so many tokens.
    Prompt(usize),
}

/// A phase of a step.
#[derive(Clone, Copy, Debug)]
pub struct ProfiledPhase {
    /// Name of its body in the plan.
    pub body: &'static str,
    /// Its name; of what samples, its kernel's.
    pub name: &'static str,
    /// Name of its kind.
    pub kind: &'static str,
    /// How often the step runs it.
    pub times: usize,
    /// Its rows of times, one for each of its launches; a single one where phases have no launches.
    pub rows: &'static [usize],
    /// What it does each time.
    pub work: PhaseWork,
}

/// A row of times.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TimedRow {
    /// How often it was timed.
    pub count: u64,
    /// Seconds in all.
    pub seconds: f64,
}
