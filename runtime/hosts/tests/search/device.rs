//! A rank's device as far as the order of things goes: steps run in their order, and each adds up, in one of
//! two inboxes, what all ranks push there.

use std::collections::VecDeque;

/// Ranks of the world.
pub const RANKS: usize = 3;

/// What a rank pushes in an exchange: which of its exchanges this is, and a digest of the step it runs.
type Pushed = (u64, u64);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Device {
    /// Digests of the steps submitted and not done.
    pub steps: VecDeque<u64>,
    /// Whether the first of them has pushed.
    pub pushed: bool,
    /// Exchanges done.
    pub exchanges: u64,
    /// What lies in the two inboxes, by rank.
    pub inboxes: [[Option<Pushed>; RANKS]; 2],
    /// Results that nobody collected.
    pub done: VecDeque<u32>,
}

impl Device {
    /// The inbox of the exchange that is next.
    fn turn(&self) -> usize {
        (self.exchanges % 2) as usize
    }

    /// What it pushes now, if it may.
    pub fn pushes(&self) -> Option<(usize, Pushed)> {
        let step = self.steps.front().filter(|_| !self.pushed)?;
        Some((self.turn(), (self.exchanges, *step)))
    }

    /// Takes what another rank pushed.
    pub fn take(&mut self, from: usize, turn: usize, pushed: Pushed) -> Result<(), String> {
        match self.inboxes[turn][from].replace(pushed) {
            None => Ok(()),
            Some(old) => Err(format!("a buffer is overwritten while it is read: {old:?} by {pushed:?}")),
        }
    }

    /// Whether all have pushed, so that the step is done; one that is `hasty` does not look.
    pub fn finishes(&self, hasty: bool) -> bool {
        self.pushed && (hasty || self.inboxes[self.turn()].iter().all(Option::is_some))
    }

    /// Ends the step. What it samples follows from what was added.
    pub fn finish(&mut self) -> Result<(), String> {
        let turn = self.turn();
        let Some(step) = self.steps.pop_front() else { return Err("no step runs".to_owned()) };
        let due = Some((self.exchanges, step));
        if let Some(found) = self.inboxes[turn].iter().find(|found| **found != due) {
            let what = match found {
                Some((exchange, _)) if *exchange == self.exchanges => {
                    "unequal order: ranks add different steps"
                }
                _ => "a stale buffer is added",
            };
            return Err(format!("{what}: {found:?} where {due:?} is due"));
        }
        self.inboxes[turn] = [None; RANKS];
        (self.pushed, self.exchanges) = (false, self.exchanges + 1);
        self.done.push_back((step % 1000) as u32);
        Ok(())
    }
}
