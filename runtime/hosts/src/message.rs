//! What the processes of a world say to each other once they know each other.

use crate::call::{Answer, Call};
use crate::hello::{Hello, Room};

/// A message between head and worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// Both ways, first: what must be equal.
    Hello(Hello),
    /// Head to worker: the next task of a start.
    Do(Task),
    /// Worker to head: the task is done.
    Done(Done),
    /// Worker to head: bytes loaded so far, and bytes to load.
    Progress(u64, u64),
    /// Head to worker: a call, and which one it is. They count from 1.
    Command(u64, Call),
    /// Worker to head: the answer to that command.
    Answer(u64, Answer),
    /// Both ways: nothing else was said for a while.
    Heartbeat,
    /// Both ways, last: the world ends, for this reason, or because the head was asked to stop.
    End(Option<String>),
}

/// Tasks of a start, in their order. All processes do each at the same time; the next begins when all have
/// done it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// Plan memory, without claiming any.
    Plan,
    /// Claim memory for no more than this and load the weights.
    Load(Room),
    /// The head alone: name the collective that all then join.
    Identify,
    /// Join the collective of this name.
    Join(Vec<u8>),
    /// Add up a value that is known: 2 to the power of each rank.
    Sum,
    /// Record the programs.
    Record,
    /// Answer a question.
    Canary,
    /// Carry commands out, in so much memory, which all have.
    Serve(Room),
}

/// A task that a process has done, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Done {
    /// Memory is planned: there is room for so much.
    Plan(Room),
    /// The weights are loaded, and so much memory is claimed.
    Load(Room),
    /// The name of the collective.
    Identify(Vec<u8>),
    /// The collective is joined.
    Join,
    /// What was added up.
    Sum(u64),
    /// The programs are recorded.
    Record,
    /// The answer's ids.
    Canary(Vec<u32>),
}

/// Which task, without what it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Not all workers have arrived, or not all have said what they are.
    Greeting,
    /// [`Task::Plan`].
    Planning,
    /// [`Task::Load`].
    Loading,
    /// [`Task::Identify`].
    Identifying,
    /// [`Task::Join`].
    Joining,
    /// [`Task::Sum`].
    Summing,
    /// [`Task::Record`].
    Recording,
    /// [`Task::Canary`].
    Canary,
    /// [`Task::Serve`].
    Serving,
    /// The world is over.
    Ended,
}

impl Stage {
    /// What a process has not done that keeps a world here.
    pub(crate) fn missing(self) -> &'static str {
        match self {
            Stage::Greeting => "has not said what it is",
            Stage::Planning => "has not planned its memory",
            Stage::Loading => "has loaded nothing more",
            Stage::Identifying => "has not named the collective",
            Stage::Joining => "has not joined the collective",
            Stage::Summing => "has not added up the known value",
            Stage::Recording => "has not recorded its programs",
            Stage::Canary => "has not answered the canary",
            Stage::Serving => "has not answered a command",
            Stage::Ended => "has not ended",
        }
    }
}

impl Task {
    /// The stage of a world that does this.
    pub fn stage(&self) -> Stage {
        match self {
            Task::Plan => Stage::Planning,
            Task::Load(_) => Stage::Loading,
            Task::Identify => Stage::Identifying,
            Task::Join(_) => Stage::Joining,
            Task::Sum => Stage::Summing,
            Task::Record => Stage::Recording,
            Task::Canary => Stage::Canary,
            Task::Serve(_) => Stage::Serving,
        }
    }
}

impl Done {
    /// The stage whose task this is.
    pub fn stage(&self) -> Stage {
        match self {
            Done::Plan(_) => Stage::Planning,
            Done::Load(_) => Stage::Loading,
            Done::Identify(_) => Stage::Identifying,
            Done::Join => Stage::Joining,
            Done::Sum(_) => Stage::Summing,
            Done::Record => Stage::Recording,
            Done::Canary(_) => Stage::Canary,
        }
    }
}

/// What a process does that its machine decided.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Send a message to this rank.
    Send(u32, Message),
    /// Send it to all that are here.
    SendAll(Message),
    /// Do a task, and say when it is done.
    Begin(Task),
    /// Carry the call out that the command of this number is.
    Carry(u64, Call),
    /// Tell the user.
    Say(String),
    /// End: break all connections, tell clients, leave.
    End(crate::ended::Ended),
}
