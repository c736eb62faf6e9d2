//! A worker's side of the protocol, as a machine without input or output.

use crate::call::{Answer, Call};
use crate::deadlines::Deadlines;
use crate::ended::Ended;
use crate::head::MOST_STEPS;
use crate::hello::Hello;
use crate::message::{Done, Effect, Message, Stage, Task};
use std::time::Duration;

/// A process that carries out what the head says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Worker {
    hello: Hello,
    deadlines: Deadlines,
    stage: Stage,
    /// Whether the task of this stage is being done.
    busy: bool,
    heard: Duration,
    said: Duration,
    /// Bytes loaded that the head was told of.
    told: u64,
    /// The number of the last command.
    commands: u64,
    /// Commands that are to be answered, oldest first, and which the head waits for.
    asked: Option<u64>,
    /// Steps submitted and not collected.
    steps: usize,
    effects: Vec<Effect>,
}

impl Worker {
    /// A worker that has reached its head, and says what it is.
    pub fn new(now: Duration, hello: Hello, deadlines: Deadlines) -> Worker {
        let effects = vec![Effect::Send(0, Message::Hello(hello.clone()))];
        Worker {
            hello,
            deadlines,
            stage: Stage::Greeting,
            busy: false,
            heard: now,
            said: now,
            told: 0,
            commands: 0,
            asked: None,
            steps: 0,
            effects,
        }
    }

    /// Where this process is.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Takes what there is to do.
    pub fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// The head said something.
    pub fn heard(&mut self, now: Duration, message: Message) {
        if self.stage == Stage::Ended {
            return;
        }
        self.heard = now;
        match message {
            Message::Hello(hello) => {
                if let Some(difference) = self.hello.difference(&hello, "the head") {
                    self.fail(difference);
                }
            }
            Message::Do(task) => {
                let stage = task.stage();
                if self.busy || stage <= self.stage || task == Task::Identify {
                    return self.fail(format!("the head said what was not due: {task:?}"));
                }
                self.stage = stage;
                self.busy = !matches!(task, Task::Serve(_));
                self.effects.push(Effect::Begin(task));
            }
            Message::Command(number, call) => match self.undue(number, &call) {
                Some(why) => self.fail(why),
                None => {
                    self.commands = number;
                    self.asked = call.is_answered().then_some(number);
                    match call {
                        Call::Submit(_) => self.steps += 1,
                        Call::Collect(_) => self.steps -= 1,
                        _ => {}
                    }
                    self.effects.push(Effect::Carry(number, call));
                }
            },
            Message::Heartbeat => {}
            Message::End(Some(why)) => {
                let why = format!("the head ended: {why}");
                let serving = self.stage == Stage::Serving;
                self.end(None, if serving { Ended::Broken(why) } else { Ended::Refused(why) });
            }
            Message::End(None) => self.end(None, Ended::Stopped),
            Message::Done(_) | Message::Progress(..) | Message::Answer(..) => {
                self.fail(format!("the head said what was not due: {message:.80?}"));
            }
        }
    }

    /// Why a command is refused.
    fn undue(&self, number: u64, call: &Call) -> Option<String> {
        let due = self.commands + 1;
        if self.stage != Stage::Serving {
            return Some("the head commands before all are ready".to_owned());
        }
        if number != due {
            return Some(format!("the head gives command {number}, and {due} is due"));
        }
        if let Some(asked) = self.asked {
            return Some(format!("the head gives another command before {asked} is answered"));
        }
        match call {
            Call::Submit(_) if self.steps >= MOST_STEPS => {
                Some(format!("the head submits a step while {MOST_STEPS} are in flight"))
            }
            Call::Collect(step) if self.steps == 0 => {
                Some(format!("the head collects step {step}, and none is in flight"))
            }
            _ => None,
        }
    }

    /// The connection broke.
    pub fn lost(&mut self, why: &str) {
        self.fail(format!("the head is gone: {why}"));
    }

    /// This process did its task.
    pub fn done(&mut self, now: Duration, done: Done) {
        if self.stage == Stage::Ended {
            return;
        }
        if !self.busy || done.stage() != self.stage {
            return self.fail(format!("a task was done that was not due: {done:?}"));
        }
        self.busy = false;
        self.say(now, Message::Done(done));
    }

    /// This process has loaded so many bytes of `total`.
    pub fn loaded(&mut self, now: Duration, bytes: u64, total: u64) {
        let due = now.saturating_sub(self.said) >= self.deadlines.heartbeat;
        if self.stage == Stage::Loading && bytes > self.told && due {
            self.told = bytes;
            self.say(now, Message::Progress(bytes, total));
        }
    }

    /// This process carried a command out that is answered.
    pub fn carried(&mut self, now: Duration, number: u64, answer: Answer) {
        if self.stage == Stage::Ended {
            return;
        }
        if self.asked != Some(number) {
            return self.fail(format!("command {number} was carried out, and was not due"));
        }
        self.asked = None;
        self.say(now, Message::Answer(number, answer));
    }

    /// This process cannot go on.
    pub fn fail(&mut self, why: String) {
        let serving = self.stage == Stage::Serving;
        self.end(Some(why.clone()), if serving { Ended::Broken(why) } else { Ended::Refused(why) });
    }

    /// This process was asked to stop.
    pub fn stop(&mut self) {
        self.end(Some("it was asked to stop".to_owned()), Ended::Stopped);
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
        if now.saturating_sub(self.heard) > silence {
            self.fail(format!("the head has said nothing for {} s", silence.as_secs_f32()));
        }
    }

    fn say(&mut self, now: Duration, message: Message) {
        self.said = now;
        self.effects.push(Effect::Send(0, message));
    }

    fn end(&mut self, tell: Option<String>, ended: Ended) {
        if self.stage == Stage::Ended {
            return;
        }
        self.stage = Stage::Ended;
        self.effects.extend(tell.map(|why| Effect::Send(0, Message::End(Some(why)))));
        self.effects.push(Effect::End(ended));
    }
}
