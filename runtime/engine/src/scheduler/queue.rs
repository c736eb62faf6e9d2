//! Who of those that wait is next: a pure decision on plain values.

use std::collections::HashMap;

/// Of so many admissions one goes to whoever has waited longest, whatever the policy says of the others.
pub const AGE_TURN: usize = 8;
/// Most steps for which a request that could be admitted is held back because another computes the beginning
/// of its prompt.
pub const HOLDS: usize = 128;
/// Tokens of service by which clients may differ and still be treated alike.
pub const QUANTUM: u64 = 2048;
/// Most clients whose service is remembered. Where more come than that and somebody always waits, the half
/// that was served least starts anew.
pub const CLIENTS: usize = 4096;
/// What a generated token counts, where one of a prompt counts one: the weights of the paper that [`Clients`]
/// names.
pub const GENERATED: u64 = 2;

/// In which order requests are served that have the same priority and whose clients have had about the same
/// service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// First in, first out.
    #[default]
    Fifo,
    /// The shortest prompt first; and prompts wait where an answer's next token would be late otherwise.
    Slai,
}

impl Policy {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Fifo => "fifo",
            Policy::Slai => "slai",
        }
    }
}

/// One that waits, as far as its turn depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Whether it goes before all others.
    pub front: bool,
    /// Lower is earlier.
    pub priority: i64,
    /// Who asks.
    pub client: u64,
    /// What [`Clients::ahead`] says of its client.
    pub ahead: u64,
    /// Tokens to feed before its first token comes.
    pub prompt: usize,
    /// Whether its client has paid for them.
    pub paid: bool,
    /// Whether it has had its turn.
    pub taken: bool,
}

/// Counts admissions from one that went by age to the next.
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

/// Whose turn is next among `candidates`, which stand in the order of their arrival; `None` when all have had
/// theirs. Notes the turn, and counts as served to its client what it will be fed.
///
/// First whoever goes before all others. Then, in one turn of [`AGE_TURN`], whoever arrived first; in the
/// others the lowest priority, of these the clients that are the fewest [`QUANTUM`]s ahead, of their requests
/// the first or, by the policy, the shortest.
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

/// Whether somebody who has `known` tokens, and has left the first `left` of them in the cache, is about to
/// leave more of `prompt` there than the `found` first of its tokens: who waits for that need not compute it.
/// What is found ends at multiples of `granule`, and before the end.
pub fn comes(prompt: &[u32], found: usize, known: &[u32], left: usize, granule: usize) -> bool {
    let next = (found.max(left) / granule + 1) * granule;
    next < prompt.len() && next <= known.len() && prompt[..next] == known[..next]
}

/// Tokens of service by client: the virtual token counters of Sheng et al., "Fairness in Serving Large
/// Language Models" (OSDI 2024).
///
/// Whoever comes, or comes back, starts where the least served of those who wait stands: nobody saves service
/// up. Once nobody waits the past is forgotten, for what was served then was taken from nobody.
#[derive(Debug, Default)]
pub struct Clients {
    served: HashMap<u64, u64>,
    /// Where the least served of those who wait stood last.
    floor: u64,
}

impl Clients {
    /// Counts tokens of service to a client.
    pub fn serve(&mut self, client: u64, tokens: u64) {
        let floor = self.floor;
        let served = self.served.entry(client).or_insert(floor);
        *served = (*served).max(floor) + tokens;
    }

    /// By how many tokens of service a client is ahead of the least served of those who wait.
    pub fn ahead(&self, client: u64) -> u64 {
        self.served.get(&client).map_or(0, |served| served.saturating_sub(self.floor))
    }

    /// Looks at who waits now, and forgets whoever is not ahead of them.
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
