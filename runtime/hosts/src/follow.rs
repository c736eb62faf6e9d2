//! A worker: it reaches its head, goes through the start, and carries commands out until the end.

use crate::call::{Answer, Call};
use crate::duties::{Duties, Share, perform};
use crate::ended::Ended;
use crate::hello::Hello;
use crate::hub::{Hub, Leaving, Machine};
use crate::lead::{answer, limits};
use crate::meet;
use crate::message::{Effect, Message, Task};
use crate::offload::local_blocks;
use crate::options::{MOST_RANKS, Options, most_bytes};
use crate::slots::{Slots, model_place};
use crate::worker::Worker;
use monomorph_model::{BlockId, Model, OffloadSlot, SlidingId, Step, Ticket};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Machine for Worker {
    fn effects(&mut self) -> Vec<Effect> {
        Worker::effects(self)
    }

    fn heard(&mut self, now: Duration, _: u32, message: Message) {
        Worker::heard(self, now, message);
    }

    fn lost(&mut self, _: u32, why: &str) {
        Worker::lost(self, why);
    }

    fn loaded(&mut self, now: Duration, bytes: u64, total: u64) {
        Worker::loaded(self, now, bytes, total);
    }

    fn tick(&mut self, now: Duration) {
        Worker::tick(self, now);
    }

    fn fail(&mut self, why: String) {
        Worker::fail(self, why);
    }
}

/// Follows the head at `head` (`HOST:PORT`) as `rank` until the world ends, and says how it did.
pub fn follow<D: Duties>(head: &str, rank: u32, hello: Hello, options: &Options, duties: D) -> Ended {
    let ranks = hello.ranks;
    if ranks > MOST_RANKS || !(1..ranks).contains(&rank) {
        let most = ranks.saturating_sub(1);
        return Ended::Refused(format!(
            "--rank {rank} of --world-size {ranks}: a worker's is from 1 to {most}, and a world has at most {MOST_RANKS}"
        ));
    }
    let Options { token, deadlines, say, .. } = options;
    let dialled = meet::dial(head, rank, token, deadlines.gather, deadlines.challenge, say);
    let stream = match dialled {
        Ok(stream) => stream,
        Err(why) => return Ended::Refused(why),
    };
    let (began, most) = (Instant::now(), most_bytes(D::Model::SPEC));
    let worker = Worker::new(Duration::ZERO, hello, *deadlines);
    let hub = Hub::new(worker, began, most, deadlines.silence, Arc::clone(say), Arc::clone(&options.on_end));
    let leaving = Leaving::new(&hub);
    let connected = hub
        .connect(0, stream, |_, _| Ok(()))
        .and_then(|()| hub.tick(deadlines.heartbeat, Arc::clone(&options.loaded)));
    if let Err(why) = connected {
        hub.tell(|worker, _| worker.fail(why));
    }
    let ended = run(&hub, rank as usize, ranks as usize, options, duties);
    drop(leaving);
    ended
}

fn run<D: Duties>(hub: &Hub<Worker>, rank: usize, ranks: usize, options: &Options, mut duties: D) -> Ended {
    let mut model = None;
    let mut following = loop {
        match hub.local() {
            Err(ended) => return ended,
            Ok(Effect::Begin(Task::Serve(room))) => match model.take() {
                Some(model) => {
                    let limits = limits::<D::Model>(room);
                    let (agreed, slots, share) = (limits.blocks, Slots::new(limits), options.share);
                    let (step, tickets) = (Step::default(), VecDeque::new());
                    break Follower { model, slots, step, tickets, agreed, share, rank, ranks };
                }
                None => {
                    hub.tell(|worker, _| worker.fail("it is to serve, and has loaded nothing".to_owned()))
                }
            },
            Ok(Effect::Begin(task)) => match perform(&mut duties, &mut model, &task) {
                Ok(done) => hub.tell(|worker, now| worker.done(now, done)),
                Err(why) => hub.tell(|worker, _| worker.fail(why)),
            },
            Ok(_) => {}
        }
    };
    loop {
        match hub.local() {
            Err(ended) => return ended,
            Ok(Effect::Carry(number, call)) => match following.carry(call) {
                Ok(Some(answer)) => hub.tell(|worker, now| worker.carried(now, number, answer)),
                Ok(None) => {}
                Err(why) => hub.tell(|worker, _| worker.fail(format!("command {number} is refused: {why}"))),
            },
            Ok(_) => {}
        }
    }
}

/// A worker's model, and what it holds of the steps it was sent.
struct Follower<M> {
    model: M,
    slots: Slots,
    /// The step submitted last, which may be sampled in later.
    step: Step,
    tickets: VecDeque<Ticket>,
    /// Blocks on the device that all agreed on.
    agreed: usize,
    share: Share,
    rank: usize,
    ranks: usize,
}

impl<M: Model> Follower<M> {
    /// Carries a call out. Returns what is answered, if something is.
    ///
    /// # Errors
    /// When it does not follow what came before, or is out of range.
    fn carry(&mut self, call: Call) -> Result<Option<Answer>, String> {
        let own = self.model.blocks();
        match call {
            Call::Submit(step) => {
                self.step = self.slots.receive(&step)?;
                let step = local_blocks(&self.step, self.agreed, own);
                let ticket = self.model.submit(step.as_ref().unwrap_or(&self.step));
                self.tickets.push_back(ticket);
            }
            Call::Sample(rows) => {
                if !std::mem::replace(&mut self.step.sampling_follows, false) {
                    return Err("no step waits for its sampling".to_owned());
                }
                self.slots.receive_sampling(&rows, &mut self.step)?;
                self.step.sampling_follows = true;
                let step = local_blocks(&self.step, self.agreed, own);
                self.model.sample(step.as_ref().unwrap_or(&self.step));
                self.step.sampling_follows = false;
            }
            Call::Collect(step) => {
                let ticket = self.tickets.pop_front().ok_or(format!("step {step} is not in flight"))?;
                let answer = answer(&self.model.collect(ticket));
                self.slots.collected(&answer);
                return Ok(Some(answer));
            }
            Call::Offload { blocks, to } => {
                blocks.iter().try_for_each(|block| self.slots.check_block(*block))?;
                let blocks: Vec<BlockId> = blocks.into_iter().map(BlockId).collect();
                return Ok(Some(Answer::Offloaded(self.model.offload_blocks(&blocks, OffloadSlot(to)))));
            }
            Call::ReadBlock(block) => {
                self.slots.check_block(block)?;
                let bytes = M::SPEC.block_bytes;
                return Ok(Some(self.read(bytes, |model, into| model.read_block(BlockId(block), into))));
            }
            Call::WriteBlock(block, bytes) => {
                self.slots.check_block(block)?;
                let part = self.part(&bytes, M::SPEC.block_bytes)?;
                self.model.write_block(BlockId(block), part);
            }
            Call::ReadSliding(block) => {
                let bytes = self.sliding_bytes(block)?;
                return Ok(Some(self.read(bytes, |model, into| model.read_sliding(SlidingId(block), into))));
            }
            Call::WriteSliding(block, bytes) => {
                let part = self.part(&bytes, self.sliding_bytes(block)?)?;
                self.model.write_sliding(SlidingId(block), part);
            }
            Call::ReadState(place) => {
                self.slots.check_place(place)?;
                let bytes = M::SPEC.state_bytes as usize;
                let place = model_place(place);
                return Ok(Some(self.read(bytes, |model, into| model.read_state(place, into))));
            }
            Call::WriteState(place, bytes) => {
                self.slots.check_place(place)?;
                let part = self.part(&bytes, M::SPEC.state_bytes as usize)?;
                self.model.write_state(model_place(place), part);
            }
        }
        Ok(None)
    }

    /// Bytes of this block of layers with a sliding window, over all processes.
    fn sliding_bytes(&self, block: u32) -> Result<usize, String> {
        self.slots.check_sliding(block)?;
        Ok(M::SLIDING.map_or(0, |layers| layers.block_bytes))
    }

    /// Reads this process's part of so many bytes.
    fn read(&mut self, bytes: usize, read: impl FnOnce(&mut M, &mut [u8])) -> Answer {
        let mut into = vec![0; self.share.range(bytes, self.rank, self.ranks).len()];
        read(&mut self.model, &mut into);
        Answer::Bytes(into)
    }

    /// This process's part of what is written.
    fn part<'a>(&self, bytes: &'a [u8], due: usize) -> Result<&'a [u8], String> {
        if bytes.len() != due {
            return Err(format!("{} bytes are written where there are {due}", bytes.len()));
        }
        Ok(&bytes[self.share.range(due, self.rank, self.ranks)])
    }
}
