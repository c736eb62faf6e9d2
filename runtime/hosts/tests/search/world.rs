//! Head, two workers, what is in flight between them, and all that may happen next.

use super::device::{Device, RANKS};
use super::engine::{BLOCK, Engine, SLOTS};
use super::shared::Shared;
use monomorph_hosts::{
    Answer, Call, Deadlines, Done, Effect, Ended, Head, Hello, Limits, Message, Room, RowAnswer, Slots,
    StepCall, Task, Worker,
};
use std::collections::VecDeque;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::time::Duration;

/// Time does not pass: a death is noticed by the connections that it closes.
const NOW: Duration = Duration::ZERO;

/// A mistake that is made on purpose, to see it caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    None,
    /// Rank 1 gets its second command before its first.
    Swapped,
    /// As that, and their numbers are swapped back.
    SwappedUnnoticed,
    /// Rank 1 does not get its second command.
    Skipped,
    /// As that, and later commands count as if there had been none.
    SkippedUnnoticed,
    /// Rank 1 reports another id than it sampled.
    OtherId,
    /// As that, and the head does not compare.
    OtherIdUnnoticed,
    /// A row that goes on reaches rank 1 for another slot.
    OtherSlot,
    /// As that, and the worker does not look.
    OtherSlotUnnoticed,
    /// Rank 1's device adds what is there without waiting for it.
    StaleBuffer,
    /// The head ignores connections that close.
    DeafHead,
}

/// Something on a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Wire {
    Says(Box<Message>),
    Closes,
}

/// A process. What is over is all alike, so that its past makes no other state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Process<M> {
    machine: Option<M>,
    /// Whether it is connected, or was.
    met: bool,
    slots: Slots,
    device: Device,
    /// Tasks and calls that its thread has not carried out.
    local: VecDeque<Effect>,
    /// Whether it said how it ended, or died before it could.
    over: Option<Over>,
    /// Slots that a sequence began in, by what this process was told.
    claimed: [bool; SLOTS],
    /// Digests of the calls that the head made and this process has not carried out.
    due: VecDeque<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Over {
    Ended(Ended),
    Died,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    head: Shared<Process<Head>>,
    workers: [Shared<Process<Worker>>; 2],
    to_worker: [VecDeque<Wire>; 2],
    to_head: [VecDeque<Wire>; 2],
    engine: Shared<Engine>,
    requests: usize,
    /// Whether steps may leave out sequences that could run.
    alone: bool,
    /// Deaths that may still happen.
    deaths: usize,
    stopped: bool,
    /// What workers said they sampled, and the head has not handed out.
    reported: [VecDeque<u32>; 2],
    /// What a planted mistake holds back, and how often it was made.
    held: Option<Message>,
    tampered: u64,
}

fn digest(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

fn room() -> Room {
    Room { blocks: 2 * SLOTS as u64, sliding: 0, sequences: SLOTS as u64, snapshots: 0, places: 0, group: 0 }
}

fn process<M>(machine: Option<M>) -> Process<M> {
    let limits = Limits {
        sequences: SLOTS,
        snapshots: 0,
        blocks: 2 * SLOTS,
        sliding: None,
        block_tokens: BLOCK,
        group: 0,
        vocabulary: 1000,
        step_sequences: SLOTS,
        step_tokens: 16,
    };
    Process {
        met: machine.is_some(),
        machine,
        slots: Slots::new(limits),
        device: Device::default(),
        local: VecDeque::new(),
        over: None,
        claimed: [false; SLOTS],
        due: VecDeque::new(),
    }
}

/// What comes of a task, as it should.
fn done(task: &Task) -> Option<Done> {
    Some(match task {
        Task::Plan => Done::Plan(room()),
        Task::Load(_) => Done::Load(room()),
        Task::Identify => Done::Identify(vec![9]),
        Task::Join(_) => Done::Join,
        Task::Sum => Done::Sum((1 << RANKS) - 1),
        Task::Record => Done::Record,
        Task::Canary => Done::Canary(vec![5]),
        Task::Serve(_) => return None,
    })
}

impl<M> Process<M> {
    fn is_over(&self) -> bool {
        self.over.is_some()
    }

    /// Checks that rows go on only where a sequence began.
    fn claim(&mut self, step: &StepCall) -> Result<(), String> {
        for row in &step.rows {
            let claimed = &mut self.claimed[row.slot as usize];
            *claimed |= row.begins;
            if !*claimed {
                return Err(format!("a row of slot {}, which nobody claimed", row.slot));
            }
        }
        Ok(())
    }

    /// Checks that a worker carries out what the head did, in its order.
    fn in_order(&mut self, call: &Call) -> Result<(), String> {
        match self.due.pop_front() {
            Some(due) if due == digest(call) => Ok(()),
            _ => Err("unequal order: a worker carries out another call than the head did".to_owned()),
        }
    }

    fn leave(&mut self, over: Over) {
        let met = self.met;
        *self = process(None);
        (self.over, self.met) = (Some(over), met);
    }
}

impl World {
    pub fn new(requests: usize, deaths: usize, alone: bool) -> World {
        let hello = Hello { ranks: RANKS as u32, ..Hello::default() };
        let mut head = Head::new(hello, Deadlines::default());
        head.start(NOW);
        World {
            head: Shared::new(process(Some(head))),
            workers: [Shared::new(process(None)), Shared::new(process(None))],
            to_worker: [VecDeque::new(), VecDeque::new()],
            to_head: [VecDeque::new(), VecDeque::new()],
            engine: Shared::new(Engine::new(requests)),
            requests,
            alone,
            deaths,
            stopped: false,
            reported: [VecDeque::new(), VecDeque::new()],
            held: None,
            tampered: 0,
        }
    }

    /// Whether a planted mistake was made on the way here.
    pub fn is_tampered(&self) -> bool {
        self.tampered > 0
    }

    /// How the living processes ended; fewer where some have not.
    pub fn endings(&self) -> Vec<&Ended> {
        let overs = [&self.head.over, &self.workers[0].over, &self.workers[1].over];
        overs
            .into_iter()
            .filter_map(|over| match over {
                Some(Over::Ended(ended)) => Some(ended),
                _ => None,
            })
            .collect()
    }

    /// Checks a world in which nothing can happen any more.
    pub fn check_end(&self) -> Result<(), String> {
        let overs = [&self.head.over, &self.workers[0].over, &self.workers[1].over];
        if overs.iter().any(|over| over.is_none()) {
            return Err(format!("a deadlock: {overs:?}"));
        }
        let died = overs.iter().any(|over| **over == Some(Over::Died));
        let stopped = |over: &&Option<Over>| **over == Some(Over::Ended(Ended::Stopped));
        if !died && !self.is_tampered() && !overs.iter().all(stopped) {
            return Err(format!("nobody died, and it ended otherwise than asked: {overs:?}"));
        }
        if stopped(&overs[0]) && self.engine.answered != self.requests {
            return Err(format!("it stopped with {} answers of {}", self.engine.answered, self.requests));
        }
        Ok(())
    }

    /// All worlds that one event leads to.
    ///
    /// # Errors
    /// When the event breaks a property.
    pub fn next(&self, defect: Defect) -> Result<Vec<World>, String> {
        let mut all = Vec::new();
        for at in 0..2 {
            self.arrive(at, defect, &mut all);
            self.deliver_to_worker(at, &mut all);
            self.deliver_to_head(at, defect, &mut all);
            self.task(at, &mut all);
        }
        self.head_tasks(defect, &mut all);
        self.serve(defect, &mut all)?;
        for rank in 0..RANKS {
            self.device(rank, defect, &mut all)?;
            self.die(rank, &mut all);
        }
        for next in &mut all {
            next.settle(defect)?;
        }
        if all.is_empty() && defect == Defect::Skipped && self.engine.asked.is_some() {
            all.push(self.later());
        }
        Ok(all)
    }

    /// Time passes, in which workers live and do not answer.
    fn later(&self) -> World {
        let (mut next, later) = (self.clone(), Deadlines::default().step + Duration::from_secs(1));
        next.tell_head(Defect::None, |head| {
            (1..RANKS as u32).for_each(|rank| head.heard(later, rank, Message::Heartbeat));
            head.tick(later);
        });
        next
    }

    /// What only one process sees happens at once: a command that has come and can be carried out, a step
    /// that is done and waited for. To do it later is what a slower connection or device does too.
    fn settle(&mut self, defect: Defect) -> Result<(), String> {
        while self.carry(0, defect)? || self.carry(1, defect)? || self.collect(defect)? {}
        Ok(())
    }

    /// A worker reaches the head and both have shown each other the token.
    fn arrive(&self, at: usize, defect: Defect, all: &mut Vec<World>) {
        let worker = &self.workers[at];
        if worker.met || worker.is_over() {
            return;
        }
        if self.head.is_over() {
            // Its own deadline ends a worker whose head is gone before they met.
            let mut next = self.clone();
            let why = "the head did not answer".to_owned();
            next.workers[at].leave(Over::Ended(Ended::Refused(why)));
            all.push(next);
            return;
        }
        let mut next = self.clone();
        let hello = Hello { ranks: RANKS as u32, ..Hello::default() };
        next.workers[at].machine = Some(Worker::new(NOW, hello, Deadlines::default()));
        next.workers[at].met = true;
        next.tell_head(defect, |head| head.arrived(NOW, at as u32 + 1).expect("it is not there"));
        next.worker_effects(at);
        all.push(next);
    }

    fn deliver_to_worker(&self, at: usize, all: &mut Vec<World>) {
        if self.workers[at].machine.is_none() || self.to_worker[at].is_empty() {
            return;
        }
        let mut next = self.clone();
        let Some(wire) = next.to_worker[at].pop_front() else { return };
        next.tell_worker(at, |worker| match wire {
            Wire::Says(message) => worker.heard(NOW, *message),
            Wire::Closes => worker.lost("closed"),
        });
        all.push(next);
    }

    fn deliver_to_head(&self, at: usize, defect: Defect, all: &mut Vec<World>) {
        if self.head.is_over() || self.to_head[at].is_empty() {
            return;
        }
        let mut next = self.clone();
        let Some(wire) = next.to_head[at].pop_front() else { return };
        let own = next.engine.own;
        next.tell_head(defect, |head| match wire {
            // A head that does not compare takes what it has itself for every rank's answer.
            Wire::Says(message) => {
                let message = match (*message, own.filter(|_| defect == Defect::OtherIdUnnoticed)) {
                    (Message::Answer(number, Answer::Collected(_)), Some(own)) => {
                        Message::Answer(number, Answer::Collected(vec![RowAnswer::Sampled(own)]))
                    }
                    (message, _) => message,
                };
                head.heard(NOW, at as u32 + 1, message);
            }
            Wire::Closes if defect == Defect::DeafHead => {}
            Wire::Closes => head.lost(at as u32 + 1, "closed"),
        });
        all.push(next);
    }

    /// A worker's thread does a task of the start.
    fn task(&self, at: usize, all: &mut Vec<World>) {
        let Some(Effect::Begin(task)) = self.workers[at].local.front() else { return };
        let mut next = self.clone();
        next.workers[at].local.pop_front();
        if let Some(done) = done(task) {
            next.tell_worker(at, |worker| worker.done(NOW, done));
        }
        all.push(next);
    }

    /// A worker's thread carries the next call out; false if there is none, or it waits for the device.
    fn carry(&mut self, at: usize, defect: Defect) -> Result<bool, String> {
        let worker = &self.workers[at];
        match worker.local.front() {
            Some(Effect::Carry(_, Call::Collect(_))) if worker.device.done.is_empty() => return Ok(false),
            Some(Effect::Carry(..)) => {}
            _ => return Ok(false),
        }
        let worker = &mut *self.workers[at];
        let Some(Effect::Carry(number, call)) = worker.local.pop_front() else { return Ok(false) };
        if let Call::Submit(step) = &call {
            let trusting = at == 0 && defect == Defect::OtherSlotUnnoticed;
            match worker.slots.receive(step) {
                Err(why) if !trusting => self.tell_worker(at, |worker| worker.fail(why)),
                _ => {
                    worker.claim(step)?;
                    worker.device.steps.push_back(digest(step));
                    worker.in_order(&call)?;
                }
            }
            return Ok(true);
        }
        worker.in_order(&call)?;
        let mut id = worker.device.done.pop_front().unwrap_or_default();
        if at == 0 && matches!(defect, Defect::OtherId | Defect::OtherIdUnnoticed) && self.tampered == 0 {
            (id, self.tampered) = (id + 1, 1);
        }
        let answer = Answer::Collected(vec![RowAnswer::Sampled(id)]);
        self.workers[at].slots.collected(&answer);
        self.reported[at].push_back(id);
        self.tell_worker(at, |worker| worker.carried(NOW, number, answer));
        Ok(true)
    }

    fn head_tasks(&self, defect: Defect, all: &mut Vec<World>) {
        if let Some(Effect::Begin(task)) = self.head.local.front()
            && let Some(done) = done(task)
        {
            let mut next = self.clone();
            next.head.local.pop_front();
            next.tell_head(defect, |head| head.done(NOW, done));
            all.push(next);
        }
    }

    /// What the head's engine may do.
    fn serve(&self, defect: Defect, all: &mut Vec<World>) -> Result<(), String> {
        let serving = matches!(self.head.local.front(), Some(Effect::Begin(Task::Serve(_))));
        if self.head.is_over() || !serving {
            return Ok(());
        }
        if self.engine.takes() {
            let mut next = self.clone();
            next.engine.arrive();
            all.push(next);
        }
        for (engine, step, rows) in self.engine.steps_now(self.alone) {
            let mut next = self.clone();
            next.engine = Shared::new(engine);
            let call = next.head.slots.send(&step)?;
            next.head.claim(&call)?;
            next.head.device.steps.push_back(digest(&call));
            let number = next.command(defect, Call::Submit(call));
            next.engine.steps.push_back((number, rows));
            all.push(next);
        }
        if self.engine.asked.is_none()
            && let Some((step, _)) = self.engine.steps.front()
        {
            let mut next = self.clone();
            next.engine.asked = Some(next.command(defect, Call::Collect(*step)));
            all.push(next);
        }
        if self.engine.is_done() {
            let mut next = self.clone();
            next.stopped = true;
            next.tell_head(defect, Head::stop);
            all.push(next);
        }
        Ok(())
    }

    /// The head waits for its device, then for its workers; false if it waits on.
    fn collect(&mut self, defect: Defect) -> Result<bool, String> {
        let Some(number) = self.engine.asked.filter(|_| !self.head.is_over()) else { return Ok(false) };
        let Some(id) = self.engine.own else {
            if self.head.device.done.is_empty() {
                return Ok(false);
            }
            let id = self.head.device.done.pop_front().unwrap_or_default();
            let answer = Answer::Collected(vec![RowAnswer::Sampled(id)]);
            self.head.slots.collected(&answer);
            self.engine.own = Some(id);
            self.tell_head(defect, |head| head.carried(number, answer));
            return Ok(true);
        };
        if self.reported.iter().any(VecDeque::is_empty) {
            return Ok(false);
        }
        let Some(answers) = self.head.machine.as_mut().and_then(|head| head.answers(number)) else {
            return Ok(false);
        };
        let sampled: Vec<Option<u32>> = self.reported.iter_mut().map(VecDeque::pop_front).collect();
        if answers.len() != 2 || sampled.iter().any(|other| *other != Some(id)) {
            return Err(format!("a client gets token {id}, and other ranks sampled {sampled:?}"));
        }
        self.engine.collected();
        Ok(true)
    }

    fn command(&mut self, defect: Defect, call: Call) -> u64 {
        let living = self.workers.iter_mut().filter(|worker| !worker.is_over());
        living.for_each(|worker| worker.due.push_back(digest(&call)));
        let mut number = None;
        self.tell_head(defect, |head| number = head.command(NOW, call));
        number.expect("the head serves")
    }

    fn device(&self, rank: usize, defect: Defect, all: &mut Vec<World>) -> Result<(), String> {
        let device = match rank.checked_sub(1) {
            None => &self.head.device,
            Some(at) => &self.workers[at].device,
        };
        let hasty = rank == 1 && defect == Defect::StaleBuffer;
        if let Some((turn, pushed)) = device.pushes() {
            let mut next = self.clone();
            next.device_of(rank).pushed = true;
            for to in 0..RANKS {
                next.device_of(to).take(rank, turn, pushed)?;
            }
            all.push(next);
        } else if device.finishes(hasty) {
            let mut next = self.clone();
            next.device_of(rank).finish()?;
            all.push(next);
        }
        Ok(())
    }

    fn device_of(&mut self, rank: usize) -> &mut Device {
        match rank.checked_sub(1) {
            None => &mut self.head.device,
            Some(at) => &mut self.workers[at].device,
        }
    }

    /// A process dies: what it sent still arrives, and then its connections close.
    fn die(&self, rank: usize, all: &mut Vec<World>) {
        if self.deaths == 0 {
            return;
        }
        let mut next = self.clone();
        next.deaths -= 1;
        match rank.checked_sub(1) {
            None if !next.head.is_over() => {
                next.head.leave(Over::Died);
                next.hang_up();
            }
            Some(at) if !next.workers[at].is_over() => {
                next.workers[at].leave(Over::Died);
                if next.workers[at].met {
                    next.to_head[at].push_back(Wire::Closes);
                } else {
                    // Nobody has met it: the head's deadline ends the wait.
                    next.tell_head(Defect::None, |head| head.fail("rank did not arrive".to_owned()));
                }
            }
            _ => return,
        }
        all.push(next);
    }

    /// The head is over: its connections close, and its engine answers nobody any more.
    fn hang_up(&mut self) {
        let answered = self.engine.answered;
        self.engine = Shared::new(Engine::new(0));
        self.engine.answered = answered;
        self.reported = [VecDeque::new(), VecDeque::new()];
        for at in 0..2 {
            self.to_head[at].clear();
            if self.workers[at].machine.is_some() {
                self.to_worker[at].push_back(Wire::Closes);
            }
        }
    }

    fn tell_worker(&mut self, at: usize, tell: impl FnOnce(&mut Worker)) {
        if self.workers[at].is_over() {
            return;
        }
        if let Some(worker) = &mut self.workers[at].machine {
            tell(worker);
            self.worker_effects(at);
        }
    }

    fn worker_effects(&mut self, at: usize) {
        let effects = self.workers[at].machine.as_mut().map(Worker::effects);
        for effect in effects.into_iter().flatten() {
            match effect {
                Effect::Send(_, message) => self.to_head[at].push_back(Wire::Says(Box::new(message))),
                Effect::End(ended) => {
                    self.workers[at].leave(Over::Ended(ended));
                    self.to_head[at].push_back(Wire::Closes);
                    self.to_worker[at].clear();
                }
                other => self.workers[at].local.push_back(other),
            }
        }
    }

    fn tell_head(&mut self, defect: Defect, tell: impl FnOnce(&mut Head)) {
        if self.head.is_over() {
            return;
        }
        let Some(head) = &mut self.head.machine else { return };
        tell(head);
        for effect in head.effects() {
            match effect {
                Effect::Send(rank, message) => self.send(defect, rank as usize - 1, message),
                Effect::SendAll(message) => (0..2).for_each(|at| self.send(defect, at, message.clone())),
                Effect::End(ended) => {
                    self.head.leave(Over::Ended(ended));
                    self.hang_up();
                }
                Effect::Say(_) => {}
                other => self.head.local.push_back(other),
            }
        }
    }

    /// Sends a message to a worker that is connected, unless a planted mistake does otherwise.
    fn send(&mut self, defect: Defect, at: usize, message: Message) {
        if self.workers[at].machine.is_none() || self.workers[at].is_over() {
            return;
        }
        let message = match (at, message) {
            (0, Message::Command(number, call)) => match self.tamper(defect, number, call) {
                Some(message) => message,
                None => return,
            },
            (_, message) => message,
        };
        self.to_worker[at].push_back(Wire::Says(Box::new(message)));
        if at == 0
            && self.tampered == 1
            && let Some(held) = self.held.take()
        {
            self.tampered = 2;
            self.to_worker[0].push_back(Wire::Says(Box::new(held)));
        }
    }

    /// The command that rank 1 gets in place of this one.
    fn tamper(&mut self, defect: Defect, number: u64, mut call: Call) -> Option<Message> {
        let unnoticed = matches!(defect, Defect::SwappedUnnoticed | Defect::SkippedUnnoticed);
        match defect {
            Defect::Swapped | Defect::SwappedUnnoticed if number == 1 => {
                self.held = Some(Message::Command(if unnoticed { 2 } else { 1 }, call));
                return None;
            }
            Defect::Swapped | Defect::SwappedUnnoticed if number == 2 => {
                self.tampered = 1;
                return Some(Message::Command(if unnoticed { 1 } else { 2 }, call));
            }
            Defect::Skipped | Defect::SkippedUnnoticed if number == 2 => {
                self.tampered = 2;
                return None;
            }
            Defect::SkippedUnnoticed if number > 2 => return Some(Message::Command(number - 1, call)),
            Defect::OtherSlot | Defect::OtherSlotUnnoticed if self.tampered == 0 => {
                if let Call::Submit(step) = &mut call
                    && let Some(row) = step.rows.iter_mut().find(|row| !row.begins)
                {
                    row.slot = (row.slot + 1) % SLOTS as u32;
                    self.tampered = 2;
                }
            }
            _ => {}
        }
        Some(Message::Command(number, call))
    }
}
