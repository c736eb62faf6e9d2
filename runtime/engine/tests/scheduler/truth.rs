//! Reference restatement of the scheduler's guarantees.

use crate::world::Sequence;
use monomorph_engine::scheduler::{AGE_TURN, CLIENTS, Candidate, Policy, QUANTUM};
use std::collections::BTreeMap;

/// The stated bound: steps within which a request is answered, given the number of older ones in the system.
pub(crate) fn bound(older: usize, running: usize, context: usize) -> usize {
    (older + 1) * (running + AGE_TURN) * context
}

/// The oldest is first, the others by priority and age.
pub(crate) fn check_rank(running: &[Sequence]) {
    let Some((first, others)) = running.split_first() else { return };
    assert!(others.iter().all(|one| one.number > first.number), "the oldest is not first: {running:?}");
    let sorted = |pair: &[Sequence]| {
        let [a, b] = [&pair[0], &pair[1]];
        a.request.priority < b.request.priority
            || (a.request.priority == b.request.priority && a.number < b.number)
    };
    assert!(others.windows(2).all(sorted), "not in order: {running:?}");
}

/// Virtual token counters that forget no client.
#[derive(Default)]
pub(crate) struct Counters {
    served: BTreeMap<u64, u64>,
    /// The last count of the least served waiting client: no client is treated as served less.
    least: u64,
    /// Admissions since one went by age.
    since: usize,
}

impl Counters {
    fn of(&self, client: u64) -> u64 {
        self.served.get(&client).copied().unwrap_or(0).max(self.least)
    }

    pub(crate) fn serve(&mut self, client: u64, tokens: u64) {
        let served = self.of(client) + tokens;
        self.served.insert(client, served);
    }

    /// Compares the scheduler's view of waiting clients with the counters.
    pub(crate) fn check(&mut self, candidates: &[Candidate]) {
        match candidates.iter().map(|one| self.of(one.client)).min() {
            None => self.served.values_mut().for_each(|served| *served = 0),
            Some(least) => self.least = least,
        }
        // Clients forgotten because there are too many are not compared.
        for one in candidates.iter().filter(|_| self.served.len() < CLIENTS) {
            assert_eq!(one.ahead, self.of(one.client) - self.least, "{one:?} of {:?}", self.served);
        }
    }

    /// The waiting request at `at` may be admitted: it is the oldest and its turn by age, or no other has a
    /// better claim.
    pub(crate) fn check_turn(&mut self, waiting: &[Sequence], at: usize, policy: Policy) {
        self.since += 1;
        if self.since == AGE_TURN {
            self.since = 0;
            assert_eq!(at, 0, "a turn by age goes to another than the oldest: {waiting:?}");
            return;
        }
        let rounds = |one: &Sequence| (self.of(one.request.client) - self.least) / QUANTUM;
        if self.served.len() >= CLIENTS {
            return;
        }
        let chosen = &waiting[at];
        for other in waiting {
            let (a, b) = (chosen.request.priority, other.request.priority);
            assert!(a <= b, "{chosen:?} is before {other:?}, whose priority is lower");
            if a < b {
                continue;
            }
            let (a, b) = (rounds(chosen), rounds(other));
            assert!(a <= b, "{chosen:?} is before {other:?}, whose client was served less");
            if a < b {
                continue;
            }
            let [a, b] = [chosen, other].map(|one| match policy {
                Policy::Fifo => (0, one.number),
                Policy::Slai => (one.candidate(0).prompt, one.number),
            });
            assert!(a <= b, "{chosen:?} is before {other:?}");
        }
    }
}
