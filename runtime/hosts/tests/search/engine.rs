//! The head's engine, as small as it can be: three slots, a queue of two, and requests of three rows.

use monomorph_model::{BlockId, Output, SequenceStep, Slot, Step, Tokens};
use std::collections::VecDeque;

/// Slots of the world.
pub const SLOTS: usize = 3;
/// Requests that may wait.
const QUEUE: usize = 2;
/// Rows of a request: its prompt, and tokens after it.
const ROWS: usize = 2;
/// Tokens of a prompt, and of a block.
const PROMPT: usize = 2;
pub const BLOCK: usize = 2;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Sequence {
    request: usize,
    position: usize,
    submitted: usize,
    collected: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Engine {
    /// Requests that have not arrived.
    pub coming: usize,
    waiting: VecDeque<usize>,
    arrived: usize,
    slots: [Option<Sequence>; SLOTS],
    /// Steps in flight: command number and slots of the rows.
    pub steps: VecDeque<(u64, Vec<usize>)>,
    /// The command that collects the first of them, once it is sent.
    pub asked: Option<u64>,
    /// What this process itself sampled there.
    pub own: Option<u32>,
    /// Requests that were answered in full.
    pub answered: usize,
}

impl Engine {
    pub fn new(requests: usize) -> Engine {
        Engine {
            coming: requests,
            waiting: VecDeque::new(),
            arrived: 0,
            slots: [const { None }; SLOTS],
            steps: VecDeque::new(),
            asked: None,
            own: None,
            answered: 0,
        }
    }

    /// Whether another request may arrive.
    pub fn takes(&self) -> bool {
        self.coming > 0 && self.waiting.len() < QUEUE
    }

    /// A request arrives.
    pub fn arrive(&mut self) {
        self.coming -= 1;
        self.waiting.push_back(self.arrived);
        self.arrived += 1;
    }

    /// The steps that may be submitted now: one of all that can run, and where
    /// `alone` one of the last of them.
    pub fn steps_now(&self, alone: bool) -> Vec<(Engine, Step, Vec<usize>)> {
        if self.steps.len() == 2 || self.asked.is_some() {
            return Vec::new();
        }
        let mut admitted = self.clone();
        for slot in 0..SLOTS {
            if admitted.slots[slot].is_none()
                && let Some(request) = admitted.waiting.pop_front()
            {
                admitted.slots[slot] = Some(Sequence { request, position: 0, submitted: 0, collected: 0 });
            }
        }
        let ready = |slot: &usize| admitted.slots[*slot].as_ref().is_some_and(|one| one.submitted < ROWS);
        let all: Vec<usize> = (0..SLOTS).filter(ready).collect();
        let mut choices = vec![all.clone()];
        if alone && all.len() > 1 {
            choices.push(all[all.len() - 1..].to_vec());
        }
        choices.retain(|rows| !rows.is_empty());
        let step = |rows: Vec<usize>| {
            let mut engine = admitted.clone();
            let sequences = rows.iter().map(|slot| engine.row(*slot)).collect();
            (engine, Step { sequences, ..Step::default() }, rows)
        };
        choices.into_iter().map(step).collect()
    }

    fn row(&mut self, slot: usize) -> SequenceStep {
        let Some(sequence) = &mut self.slots[slot] else { panic!("slot {slot} is free") };
        let (position, begins) = (sequence.position, sequence.submitted == 0);
        let tokens = match begins {
            true => Tokens::Known(vec![sequence.request as u32 + 1; PROMPT]),
            false => Tokens::Sampled,
        };
        sequence.position += tokens.len();
        sequence.submitted += 1;
        let blocks = (0..sequence.position.div_ceil(BLOCK)).map(|at| BlockId((2 * slot + at) as u32));
        SequenceStep {
            slot: Slot(slot as u32),
            position,
            begins,
            tokens,
            drafts: 0,
            generated: !begins,
            following: None,
            blocks: blocks.collect(),
            output: Output::greedy(sequence.submitted as u64 - 1),
        }
    }

    /// The oldest step is collected: its rows' tokens go to their clients.
    pub fn collected(&mut self) {
        (self.asked, self.own) = (None, None);
        let Some((_, rows)) = self.steps.pop_front() else { return };
        for slot in rows {
            if let Some(sequence) = &mut self.slots[slot] {
                sequence.collected += 1;
                if sequence.collected == ROWS {
                    self.answered += 1;
                    self.slots[slot] = None;
                }
            }
        }
    }

    /// Whether there is nothing more to do, ever.
    pub fn is_done(&self) -> bool {
        self.coming == 0
            && self.waiting.is_empty()
            && self.steps.is_empty()
            && self.slots.iter().all(Option::is_none)
    }
}
