//! The head's side of the protocol, as a machine without input or output: it is told what happened and when,
//! and says what to do.

use crate::call::{Answer, Call};
use crate::deadlines::Deadlines;
use crate::ended::Ended;
use crate::hello::{Hello, Room};
use crate::message::{Done, Effect, Message, Stage, Task};
use std::collections::VecDeque;
use std::time::Duration;

/// Most steps in flight: further ahead, a rank could push into a buffer that another still reads.
pub const MOST_STEPS: usize = 2;

/// The process that serves. Ranks count from 1 here; the head is rank 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Head {
    hello: Hello,
    deadlines: Deadlines,
    stage: Stage,
    /// When this stage began, or the command that is being answered.
    since: Duration,
    /// When something was last sent to all.
    said: Duration,
    own: Progress,
    workers: Vec<Worker>,
    room: Option<Room>,
    /// The number of the last command.
    commands: u64,
    /// Steps submitted and not collected: the numbers of their commands.
    steps: VecDeque<u64>,
    /// The command that is being answered.
    asked: Option<Asked>,
    effects: Vec<Effect>,
}

/// How far a process has come with the task of this stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Progress {
    done: Option<Done>,
    loaded: u64,
    moved: Duration,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Worker {
    here: bool,
    greeted: bool,
    heard: Duration,
    progress: Progress,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Asked {
    number: u64,
    own: Option<Answer>,
    answers: Vec<Option<Answer>>,
}

impl Head {
    /// A head that waits for its workers: `hello.ranks` less itself.
    pub fn new(hello: Hello, deadlines: Deadlines) -> Head {
        let workers = vec![Worker::default(); (hello.ranks as usize).saturating_sub(1)];
        Head {
            hello,
            deadlines,
            stage: Stage::Greeting,
            since: Duration::ZERO,
            said: Duration::ZERO,
            own: Progress::default(),
            workers,
            room: None,
            commands: 0,
            steps: VecDeque::new(),
            asked: None,
            effects: Vec::new(),
        }
    }

    /// Where the world is.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// The memory that all have, once they have claimed it.
    pub fn room(&self) -> Option<Room> {
        self.room
    }

    /// Whether all workers have arrived.
    pub fn is_complete(&self) -> bool {
        self.workers.iter().all(|worker| worker.here)
    }

    /// Takes what there is to do.
    pub fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Begins, for a head without workers: it waits for nothing.
    pub fn start(&mut self, now: Duration) {
        (self.since, self.said) = (now, now);
        self.greet(now);
    }

    /// A worker that holds the token arrives.
    ///
    /// # Errors
    /// When there is no room for it; the world goes on without it.
    pub fn arrived(&mut self, now: Duration, rank: u32) -> Result<(), String> {
        let most = self.workers.len();
        let Some(worker) = (rank as usize).checked_sub(1).and_then(|at| self.workers.get_mut(at)) else {
            return Err(format!("--rank {rank} is none of a worker: they are 1 to {most}"));
        };
        if worker.here || self.stage != Stage::Greeting {
            return Err(format!("--rank {rank} is there already"));
        }
        (worker.here, worker.heard) = (true, now);
        self.effects.push(Effect::Say(format!("rank {rank} has arrived")));
        self.effects.push(Effect::Send(rank, Message::Hello(self.hello.clone())));
        Ok(())
    }

    /// A worker said something.
    pub fn heard(&mut self, now: Duration, rank: u32, message: Message) {
        if self.stage == Stage::Ended {
            return;
        }
        let Some(worker) = (rank as usize).checked_sub(1).and_then(|at| self.workers.get_mut(at)) else {
            return;
        };
        worker.heard = now;
        match message {
            Message::Hello(hello) => {
                if let Some(difference) = self.hello.difference(&hello, &format!("rank {rank}")) {
                    return self.fail(difference);
                }
                worker.greeted = true;
                self.greet(now);
            }
            Message::Progress(loaded, total) => {
                let progress = &mut worker.progress;
                if loaded > progress.loaded {
                    (progress.loaded, progress.moved) = (loaded, now);
                    self.effects
                        .push(Effect::Say(format!("rank {rank} has loaded {loaded} of {total} bytes")));
                }
            }
            Message::Done(done) if done.stage() == self.stage && worker.progress.done.is_none() => {
                worker.progress.done = Some(done);
                self.advance(now);
            }
            Message::Answer(number, answer) => {
                let asked = self.asked.as_mut().filter(|asked| asked.number == number);
                match asked.map(|asked| &mut asked.answers[rank as usize - 1]) {
                    Some(place @ None) => *place = Some(answer),
                    _ => {
                        return self
                            .fail(format!("rank {rank} answered command {number}, which was not due"));
                    }
                }
                self.compare();
            }
            Message::Heartbeat => {}
            Message::End(why) => {
                let why = why.unwrap_or_else(|| "it was asked to stop".to_owned());
                self.fail(format!("rank {rank} ended: {why}"));
            }
            Message::Done(_) | Message::Do(_) | Message::Command(..) => {
                self.fail(format!("rank {rank} said what was not due: {message:.80?}"));
            }
        }
    }

    /// A connection broke.
    pub fn lost(&mut self, rank: u32, why: &str) {
        self.fail(format!("rank {rank} is gone: {why}"));
    }

    /// This process did the task of this stage.
    pub fn done(&mut self, now: Duration, done: Done) {
        if self.stage == Stage::Ended {
            return;
        }
        if done.stage() != self.stage {
            return self.fail(format!("the head did what was not due: {done:?}"));
        }
        self.own.done = Some(done);
        self.advance(now);
    }

    /// This process has loaded so many bytes.
    pub fn loaded(&mut self, now: Duration, bytes: u64) {
        if bytes > self.own.loaded {
            (self.own.loaded, self.own.moved) = (bytes, now);
        }
    }

    /// This process cannot go on.
    pub fn fail(&mut self, why: String) {
        let serving = self.stage == Stage::Serving;
        self.end(Some(why.clone()), if serving { Ended::Broken(why) } else { Ended::Refused(why) });
    }

    /// This process was asked to stop.
    pub fn stop(&mut self) {
        self.end(None, Ended::Stopped);
    }

    /// Sends a call to all workers, as a command that this process carries out too; returns its number. None
    /// of a world that ended.
    pub fn command(&mut self, now: Duration, call: Call) -> Option<u64> {
        if self.stage == Stage::Ended {
            return None;
        }
        if let Some(wrong) = self.undue(&call) {
            self.fail(format!("the head's engine asked for what was not due: {wrong}"));
            return None;
        }
        self.commands += 1;
        let number = self.commands;
        match &call {
            Call::Submit(_) => self.steps.push_back(number),
            Call::Collect(_) => drop(self.steps.pop_front()),
            _ => {}
        }
        if call.is_answered() {
            let answers = vec![None; self.workers.len()];
            self.asked = Some(Asked { number, own: None, answers });
            self.since = now;
        }
        self.say(now, Message::Command(number, call));
        Some(number)
    }

    /// Why a call may not be made now.
    fn undue(&self, call: &Call) -> Option<String> {
        if self.stage != Stage::Serving {
            return Some("a command before all are ready".to_owned());
        }
        if let Some(asked) = &self.asked {
            return Some(format!("another command while {} is being answered", asked.number));
        }
        match call {
            Call::Submit(_) if self.steps.len() >= MOST_STEPS => {
                Some(format!("a step while {MOST_STEPS} are in flight"))
            }
            Call::Collect(step) if self.steps.front() != Some(step) => {
                Some(format!("step {step}, which is not the oldest in flight"))
            }
            _ => None,
        }
    }

    /// This process carried a command out that is answered.
    pub fn carried(&mut self, number: u64, answer: Answer) {
        if let Some(asked) = self.asked.as_mut().filter(|asked| asked.number == number) {
            asked.own = Some(answer);
            self.compare();
        }
    }

    /// The answers of all workers to a command, in the order of their ranks, once they are all there and
    /// agree with this process's own.
    pub fn answers(&mut self, number: u64) -> Option<Vec<Answer>> {
        let asked = self.asked.as_ref().filter(|it| it.number == number && it.own.is_some())?;
        let answers = asked.answers.iter().cloned().collect::<Option<_>>()?;
        self.asked = None;
        Some(answers)
    }

    /// Time passes.
    pub fn tick(&mut self, now: Duration) {
        if self.stage == Stage::Ended {
            return;
        }
        if now.saturating_sub(self.said) >= self.deadlines.heartbeat {
            self.say(now, Message::Heartbeat);
        }
        let silence = self.deadlines.silence;
        let silent = |worker: &Worker| worker.here && now.saturating_sub(worker.heard) > silence;
        if let Some(at) = self.workers.iter().position(silent) {
            return self.fail(format!("rank {} has said nothing for {} s", at + 1, silence.as_secs_f32()));
        }
        if let Some((rank, limit)) = self.late(now) {
            let (what, limit) = (self.stage.missing(), limit.as_secs_f32());
            self.fail(format!("rank {rank} {what} for {limit} s"));
        }
    }

    /// A rank that exceeds a deadline, the head's included, and which.
    fn late(&self, now: Duration) -> Option<(usize, Duration)> {
        let Deadlines { gather, stage, stall, step, .. } = self.deadlines;
        let after = |since: Duration, limit: Duration| now.saturating_sub(since) > limit;
        let ranks = || std::iter::once(&self.own).chain(self.workers.iter().map(|worker| &worker.progress));
        let idle = || ranks().position(|progress| progress.done.is_none());
        match self.stage {
            Stage::Greeting if after(self.since, gather) => {
                let missing = self.workers.iter().position(|worker| !worker.greeted);
                missing.map(|at| (at + 1, gather))
            }
            Stage::Loading => {
                let stuck = |one: &Progress| one.done.is_none() && after(one.moved.max(self.since), stall);
                ranks().position(stuck).map(|rank| (rank, stall))
            }
            Stage::Serving => {
                let asked = self.asked.as_ref().filter(|_| after(self.since, step))?;
                let missing = asked.answers.iter().position(Option::is_none).map_or(0, |at| at + 1);
                Some((missing, step))
            }
            Stage::Greeting | Stage::Ended => None,
            _ if after(self.since, stage) => idle().map(|rank| (rank, stage)),
            _ => None,
        }
    }

    /// Begins the start once all have said what they are.
    fn greet(&mut self, now: Duration) {
        if self.stage == Stage::Greeting && self.workers.iter().all(|worker| worker.greeted) {
            self.begin(now, Task::Plan);
        }
    }

    /// Begins the next task once all have done this one.
    fn advance(&mut self, now: Duration) {
        let alone = self.stage == Stage::Identifying;
        let others = self.workers.iter().map(|worker| worker.progress.done.as_ref());
        let mut done = Vec::new();
        for one in
            std::iter::once(self.own.done.as_ref()).chain(others.take(if alone { 0 } else { usize::MAX }))
        {
            let Some(one) = one else { return };
            done.push(one.clone());
        }
        match self.next(&done) {
            Ok(task) => self.begin(now, task),
            Err(why) => self.fail(why),
        }
    }

    /// The task after what all have done, the head first.
    ///
    /// # Errors
    /// When what came of it is wrong.
    fn next(&mut self, done: &[Done]) -> Result<Task, String> {
        match &done[0] {
            Done::Plan(_) => Ok(Task::Load(least(done)?)),
            Done::Load(_) => {
                self.room = Some(least(done)?);
                Ok(Task::Identify)
            }
            Done::Identify(name) => Ok(Task::Join(name.clone())),
            Done::Join => Ok(Task::Sum),
            Done::Sum(_) => {
                let right = (1u64 << done.len()) - 1;
                for (rank, done) in done.iter().enumerate() {
                    let Done::Sum(sum) = done else { continue };
                    let lacking: Vec<String> = (0..64)
                        .filter(|bit| (sum ^ right) >> bit & 1 == 1)
                        .map(|bit| bit.to_string())
                        .collect();
                    if !lacking.is_empty() {
                        let (all, ranks) = (right, lacking.join(", "));
                        return Err(format!(
                            "rank {rank} adds the known value up to {sum}, and {all} is right: what differs is of rank {ranks}"
                        ));
                    }
                }
                Ok(Task::Record)
            }
            Done::Record => Ok(Task::Canary),
            Done::Canary(ids) => match done.iter().position(|one| *one != done[0]) {
                None => self.room.map(Task::Serve).ok_or("nothing is loaded".to_owned()),
                Some(rank) => {
                    let Done::Canary(other) = &done[rank] else { return Err("no canary".to_owned()) };
                    Err(format!("rank {rank} answers the canary with {other:?}, and the head with {ids:?}"))
                }
            },
        }
    }

    fn begin(&mut self, now: Duration, task: Task) {
        self.stage = task.stage();
        self.since = now;
        self.own.done = None;
        self.workers.iter_mut().for_each(|worker| worker.progress.done = None);
        if task != Task::Identify {
            self.say(now, Message::Do(task.clone()));
        }
        self.effects.push(Effect::Begin(task));
    }

    fn say(&mut self, now: Duration, message: Message) {
        self.said = now;
        self.effects.push(Effect::SendAll(message));
    }

    /// Ends the world if an answer differs from this process's own.
    fn compare(&mut self) {
        let Some(Asked { number, own: Some(own), answers }) = &self.asked else { return };
        let differs = |answer: &Answer| match (own, answer) {
            (Answer::Collected(own), Answer::Collected(answer)) => own != answer,
            (Answer::Offloaded(_), Answer::Offloaded(_)) | (Answer::Bytes(_), Answer::Bytes(_)) => false,
            _ => true,
        };
        let wrong = answers.iter().position(|answer| answer.as_ref().is_some_and(differs));
        if let Some(at) = wrong {
            let (rank, number, answer) = (at + 1, *number, answers[at].clone());
            let difference = answer.map_or(String::new(), |answer| difference(own, &answer));
            self.fail(format!("rank {rank} answers command {number} otherwise than the head: {difference}"));
        }
    }

    fn end(&mut self, why: Option<String>, ended: Ended) {
        if self.stage == Stage::Ended {
            return;
        }
        self.stage = Stage::Ended;
        (self.asked, self.steps) = (None, VecDeque::new());
        self.effects.push(Effect::SendAll(Message::End(why)));
        self.effects.push(Effect::End(ended));
    }
}

/// The least room that all have planned or claimed.
fn least(done: &[Done]) -> Result<Room, String> {
    let rooms = done.iter().filter_map(|done| match done {
        Done::Plan(room) | Done::Load(room) => Some(*room),
        _ => None,
    });
    let room = rooms.reduce(Room::least).filter(|room| room.blocks > 0 && room.sequences > 0);
    room.ok_or("there is no memory that all ranks have for one block and one sequence".to_owned())
}

/// Where two answers differ.
fn difference(own: &Answer, answer: &Answer) -> String {
    match (own, answer) {
        (Answer::Collected(own), Answer::Collected(answer)) if own.len() == answer.len() => {
            let mut rows = own.iter().zip(answer).enumerate();
            let first = rows.find(|(_, (own, answer))| own != answer);
            first
                .map_or(String::new(), |(row, (own, answer))| format!("row {row} is {answer:?}, not {own:?}"))
        }
        (Answer::Collected(own), Answer::Collected(answer)) => {
            format!("it has {} rows, not {}", answer.len(), own.len())
        }
        _ => format!("it is {answer:.40?}, not {own:.40?}"),
    }
}
