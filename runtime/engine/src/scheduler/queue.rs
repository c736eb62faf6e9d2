//! Which of the waiting requests is next: a pure decision on plain values.

use monomorph_cache::Content;
use std::collections::HashMap;

/// One admission in so many goes to the request that has waited longest, whatever the policy.
pub const AGE_TURN: usize = 8;
/// Most steps for which a request that could be admitted is held back because another computes the beginning
/// of its prompt.
pub const HOLDS: usize = 128;
/// Tokens of service by which clients may differ and still be treated alike.
pub const QUANTUM: u64 = 2048;
/// Most clients whose service is remembered. If there are more while requests wait, the half that was served
/// least starts from zero.
pub const CLIENTS: usize = 4096;
/// Weight of a generated token, where a prompt's token weighs one: as in the paper that [`Clients`] names.
pub const GENERATED: u64 = 2;

/// The order of requests with the same priority whose clients had about the same service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// First in, first out.
    #[default]
    Fifo,
    /// The shortest prompt first; prefill waits where an answer's next token would be late otherwise.
    Slai,
}

impl Policy {
    /// The name that `--schedule` takes.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Fifo => "fifo",
            Policy::Slai => "slai",
        }
    }
}

/// What the order looks at in a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Whether it goes before all others.
    pub front: bool,
    /// Lower is earlier.
    pub priority: i64,
    /// The client, by number.
    pub client: u64,
    /// Its client's [`Clients::ahead`].
    pub ahead: u64,
    /// Tokens to feed before its first token comes.
    pub prompt: usize,
    /// Whether its client was already charged for them.
    pub paid: bool,
    /// Whether it has had its turn.
    pub taken: bool,
}

/// Counts admissions, to know when one goes by age.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turns(usize);

impl Turns {
    /// Notes an admission, of one that goes before all others or not.
    pub fn took(&mut self, front: bool) {
        if !front {
            self.0 = (self.0 + 1) % AGE_TURN;
        }
    }

    fn by_age(self) -> bool {
        self.0 == AGE_TURN - 1
    }
}

/// Picks the next of `candidates`, which are in the order of their arrival; `None` when all were picked.
/// Records the turn, and counts what it will be fed as service to its client.
///
/// First those that go before all others. Then, in one turn of [`AGE_TURN`], the one that arrived first; in
/// the other turns the lowest priority, among equals the client that is the fewest [`QUANTUM`]s ahead, and of
/// its requests the first or, by policy, the shortest.
pub fn pick(candidates: &mut [Candidate], policy: Policy, turns: &mut Turns) -> Option<usize> {
    let left = || candidates.iter().enumerate().filter(|(_, one)| !one.taken);
    let rank = |&(at, one): &(usize, &Candidate)| {
        let length = match policy {
            Policy::Fifo => 0,
            Policy::Slai => one.prompt,
        };
        (!one.front, one.priority, one.ahead / QUANTUM, length, at)
    };
    let (best, chosen) = left().min_by_key(rank)?;
    let at = if turns.by_age() && !chosen.front { left().next()?.0 } else { best };
    let Candidate { front, client, prompt, paid, .. } = candidates[at];
    candidates[at].taken = true;
    turns.took(front);
    if !front && !paid {
        for one in candidates.iter_mut().filter(|one| one.client == client) {
            one.ahead += prompt as u64;
        }
    }
    Some(at)
}

/// Whether a sequence with the tokens `known`, whose first `left` are cached, will soon cache more of
/// `prompt` than the `found` tokens: a request that waits for it need not compute them. Matches end at
/// multiples of `granule`, before the prompt's end.
pub fn comes(prompt: Content<'_>, found: usize, known: Content<'_>, left: usize, granule: usize) -> bool {
    let next = (found.max(left) / granule + 1) * granule;
    next < prompt.len() && next <= known.len() && prompt.begins_like(&known, next)
}

/// Tokens of service by client: the virtual token counters of Sheng et al., "Fairness in Serving Large
/// Language Models" (OSDI 2024).
///
/// A client that arrives, or returns, starts at the count of the least served that waits: idle time earns no
/// credit. When no request waits all counts are dropped, since no service was taken from anyone.
#[derive(Debug, Default)]
pub struct Clients {
    served: HashMap<u64, u64>,
    /// The count of the least served client that waited last.
    floor: u64,
}

impl Clients {
    /// Counts tokens of service to a client.
    pub fn serve(&mut self, client: u64, tokens: u64) {
        let floor = self.floor;
        let served = self.served.entry(client).or_insert(floor);
        *served = (*served).max(floor) + tokens;
    }

    /// Tokens of service by which a client is ahead of the least served waiting one.
    pub fn ahead(&self, client: u64) -> u64 {
        self.served.get(&client).map_or(0, |served| served.saturating_sub(self.floor))
    }

    /// Takes the clients that wait now, and forgets those that are not ahead of them.
    pub fn settle(&mut self, waiting: impl Iterator<Item = u64>) {
        match waiting.map(|client| self.ahead(client)).min() {
            None => self.served.clear(),
            Some(0) => {}
            Some(least) => self.lift(self.floor + least),
        }
        if self.served.len() > CLIENTS {
            let mut served: Vec<u64> = self.served.values().copied().collect();
            let (_, &mut median, _) = served.select_nth_unstable(CLIENTS / 2);
            self.lift(median);
        }
    }

    fn lift(&mut self, floor: u64) {
        self.floor = self.floor.max(floor);
        self.served.retain(|_, served| *served > floor);
    }

    /// How many clients are remembered.
    pub fn len(&self) -> usize {
        self.served.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.served.is_empty()
    }
}
