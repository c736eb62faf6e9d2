//! Deadlines in a clock of the test's own: they end what stands still, and nothing that moves or is idle.

use monomorph_hosts::{
    Answer, Call, Deadlines, Done, Effect, Ended, Head, Hello, Message, Room, Stage, StepCall, Task, Worker,
};
use std::time::Duration;

const ROOM: Room = Room { blocks: 8, sliding: 0, sequences: 2, snapshots: 0, places: 0, group: 0 };

/// A head and a worker whose messages arrive at once, and whose tasks are done when the test says so.
struct Pair {
    now: Duration,
    head: Head,
    worker: Worker,
    /// Tasks begun: of the head, of the worker.
    begun: [Vec<Task>; 2],
    /// Messages that arrived at the worker, and at the head.
    arrived: [Vec<Message>; 2],
    ended: [Option<Ended>; 2],
}

impl Pair {
    fn new() -> Pair {
        let hello = Hello { ranks: 2, ..Hello::default() };
        let mut head = Head::new(hello.clone(), Deadlines::default());
        head.start(Duration::ZERO);
        head.arrived(Duration::ZERO, 1).unwrap();
        let worker = Worker::new(Duration::ZERO, hello, Deadlines::default());
        let mut pair = Pair {
            now: Duration::ZERO,
            head,
            worker,
            begun: [Vec::new(), Vec::new()],
            arrived: [Vec::new(), Vec::new()],
            ended: [None, None],
        };
        pair.relay();
        pair
    }

    fn relay(&mut self) {
        loop {
            let effects = [self.head.effects(), self.worker.effects()];
            if effects.iter().all(Vec::is_empty) {
                return;
            }
            for (from, effects) in effects.into_iter().enumerate() {
                for effect in effects {
                    match effect {
                        Effect::Send(_, message) | Effect::SendAll(message) => {
                            self.arrived[from].push(message.clone());
                            match from {
                                0 => self.worker.heard(self.now, message),
                                _ => self.head.heard(self.now, 1, message),
                            }
                        }
                        Effect::Begin(task) => self.begun[from].push(task),
                        Effect::End(ended) => self.ended[from] = Some(ended),
                        Effect::Carry(..) | Effect::Say(_) => {}
                    }
                }
            }
        }
    }

    /// Lets so many seconds pass in tenths; `each` is told every one.
    fn pass(&mut self, seconds: u64, mut each: impl FnMut(&mut Pair)) {
        for _ in 0..10 * seconds {
            self.now += Duration::from_millis(100);
            each(self);
            self.head.tick(self.now);
            self.worker.tick(self.now);
            self.relay();
        }
    }

    fn done(&mut self, ranks: &[usize], done: &Done) {
        for rank in ranks {
            match rank {
                0 => self.head.done(self.now, done.clone()),
                _ => self.worker.done(self.now, done.clone()),
            }
            self.relay();
        }
    }

    /// As far as loading.
    fn loading() -> Pair {
        let mut pair = Pair::new();
        pair.done(&[0, 1], &Done::Plan(ROOM));
        assert_eq!((pair.head.stage(), pair.worker.stage()), (Stage::Loading, Stage::Loading));
        pair
    }

    /// As far as serving.
    fn serving() -> Pair {
        let mut pair = Pair::loading();
        pair.done(&[0, 1], &Done::Load(ROOM));
        pair.done(&[0], &Done::Identify(vec![1]));
        for done in [Done::Join, Done::Sum(3), Done::Record, Done::Canary(vec![4])] {
            pair.done(&[0, 1], &done);
        }
        assert_eq!((pair.head.stage(), pair.worker.stage()), (Stage::Serving, Stage::Serving));
        pair
    }

    /// The reason why both ended, before they served or while they did.
    fn why(&self) -> (String, bool) {
        match &self.ended {
            [Some(Ended::Refused(why)), Some(Ended::Refused(_))] => (why.clone(), false),
            [Some(Ended::Broken(why)), Some(Ended::Broken(_))] => (why.clone(), true),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn all_tasks_of_a_start_are_done_in_order() {
    let pair = Pair::serving();
    let join = Task::Join(vec![1]);
    let all = [Task::Plan, Task::Load(ROOM), join, Task::Sum, Task::Record, Task::Canary, Task::Serve(ROOM)];
    assert_eq!(pair.begun[1], all);
    assert_eq!(pair.begun[0].len(), all.len() + 1, "the head names the collective, too");
}

#[test]
fn loading_takes_as_long_as_bytes_advance() {
    let mut pair = Pair::loading();
    let mut bytes = 0;
    // A byte a minute, alternating; an hour of it.
    pair.pass(3600, |pair| {
        bytes += 1;
        pair.head.loaded(pair.now, bytes / 600);
        pair.worker.loaded(pair.now, bytes / 600, 1 << 40);
    });
    assert_eq!(pair.ended, [None, None]);
    let told = pair.arrived[1].iter().filter(|it| matches!(it, Message::Progress(..))).count();
    assert!((50..=60).contains(&told), "{told} messages of progress");
    // Only the worker's stand still now.
    pair.pass(119, |pair| pair.head.loaded(pair.now, bytes + pair.now.as_secs()));
    assert_eq!(pair.ended, [None, None]);
    pair.pass(62, |pair| pair.head.loaded(pair.now, bytes + pair.now.as_secs()));
    assert_eq!(pair.why(), ("rank 1 has loaded nothing more for 120 s".to_owned(), false));
}

#[test]
fn a_head_that_loads_nothing_ends_itself() {
    let mut pair = Pair::loading();
    pair.done(&[1], &Done::Load(ROOM));
    pair.pass(130, |_| ());
    assert_eq!(pair.why(), ("rank 0 has loaded nothing more for 120 s".to_owned(), false));
}

#[test]
fn who_does_not_join_is_named() {
    let mut pair = Pair::loading();
    pair.done(&[0, 1], &Done::Load(ROOM));
    pair.done(&[0], &Done::Identify(vec![1]));
    pair.done(&[0], &Done::Join);
    pair.pass(119, |_| ());
    assert_eq!(pair.ended, [None, None]);
    pair.pass(2, |_| ());
    assert_eq!(pair.why(), ("rank 1 has not joined the collective for 120 s".to_owned(), false));
}

#[test]
fn an_idle_world_lives_on_heartbeats() {
    let mut pair = Pair::serving();
    let before = [0, 1].map(|side: usize| pair.arrived[side].len());
    pair.pass(3600, |_| ());
    assert_eq!(pair.ended, [None, None]);
    for (side, before) in before.into_iter().enumerate() {
        assert_eq!(pair.arrived[side].len() - before, 3600, "one a second");
    }
    // Steps in flight that nobody asks for are no reason either: the host may be slow.
    pair.head.command(pair.now, Call::Submit(StepCall::default())).unwrap();
    pair.pass(3600, |_| ());
    assert_eq!(pair.ended, [None, None]);
}

#[test]
fn a_command_is_answered_in_time_or_breaks_the_world() {
    for (slow, why) in [(1, "rank 1 has not answered a command for 10 s"), (0, "rank 0 has not answered")] {
        let mut pair = Pair::serving();
        let step = pair.head.command(pair.now, Call::Submit(StepCall::default())).unwrap();
        let asked = pair.head.command(pair.now, Call::Collect(step)).unwrap();
        pair.relay();
        match slow {
            1 => pair.head.carried(asked, Answer::Collected(vec![])),
            _ => pair.worker.carried(pair.now, asked, Answer::Collected(vec![])),
        }
        pair.pass(9, |_| ());
        assert_eq!(pair.ended, [None, None]);
        pair.pass(2, |_| ());
        let (said, serving) = pair.why();
        assert!(said.starts_with(why) && serving, "{said}");
    }
}

#[test]
fn a_third_step_is_a_bug_that_the_head_finds() {
    let mut pair = Pair::serving();
    for _ in 0..2 {
        pair.head.command(pair.now, Call::Submit(StepCall::default())).unwrap();
    }
    assert_eq!(pair.head.command(pair.now, Call::Submit(StepCall::default())), None);
    pair.relay();
    assert!(pair.why().0.contains("a step while 2 are in flight"));
}

#[test]
fn silence_ends_either_side() {
    let deadlines = Deadlines::default();
    let mut pair = Pair::serving();
    let late = pair.now + deadlines.silence + Duration::from_millis(1);
    pair.head.tick(late);
    pair.worker.tick(late);
    let ends = [pair.head.effects(), pair.worker.effects()].map(|effects| effects.last().cloned());
    for (end, who) in ends.into_iter().zip(["rank 1", "the head"]) {
        let expected = format!("{who} has said nothing for 4 s");
        assert_eq!(end, Some(Effect::End(Ended::Broken(expected))));
    }
}
