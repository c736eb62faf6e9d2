//! How many recurrent states stand in memory beside K/V blocks.

/// Numbers of states that fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct States {
    /// Sequences that may run at a time: each has one.
    pub sequences: usize,
    /// Saved ones.
    pub snapshots: usize,
}

impl States {
    /// All of them.
    pub fn count(self) -> u64 {
        (self.sequences + self.snapshots) as u64
    }
}

/// States that are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatesWanted {
    /// Sequences at a time; `None` is as many as a step takes, or as there is room for.
    pub sequences: Option<usize>,
    /// Snapshots; `None` is one a sequence, or as many as there is room for.
    pub snapshots: Option<usize>,
}

/// Room for states and K/V, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateRoom {
    /// Bytes of both together.
    pub bytes: u64,
    /// Bytes of one state.
    pub state: u64,
    /// K/V to leave room for before states are claimed that were not asked for.
    pub kv: u64,
    /// Whether less K/V will do: then at most half of the room is kept for it.
    pub shorter: bool,
}

impl StatesWanted {
    /// What there will be where steps take at most `most` sequences. What was asked for is not cut, whether
    /// there is room or not; of the rest at least one sequence is left.
    pub fn within(self, most: usize, room: StateRoom) -> States {
        let most = self.sequences.unwrap_or(most);
        let StateRoom { bytes, state, kv, shorter } = room;
        if state == 0 {
            return States { sequences: most, snapshots: 0 };
        }
        let kv = if shorter { kv.min(bytes / 2) } else { kv };
        let places = usize::try_from(bytes.saturating_sub(kv) / state).unwrap_or(usize::MAX);
        let fitting = self.snapshots.map_or(places / 2, |snapshots| places.saturating_sub(snapshots));
        let sequences = self.sequences.unwrap_or_else(|| fitting.clamp(1, most));
        let snapshots = self.snapshots.unwrap_or_else(|| sequences.min(places.saturating_sub(sequences)));
        States { sequences, snapshots }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every small case, against a search among all that would do.
    #[test]
    fn states_nobody_asked_for_leave_the_first_sequence_its_blocks() {
        let rooms = (0..60).flat_map(|bytes| {
            [(0, false), (13, false), (13, true), (40, true)].map(|(kv, shorter)| StateRoom {
                bytes,
                state: 4,
                kv,
                shorter,
            })
        });
        let counts = [None, Some(0), Some(1), Some(3)];
        for (room, sequences, snapshots) in rooms.flat_map(|room| {
            counts[..].iter().flat_map(move |snapshots| {
                [None, Some(1), Some(5)].map(|sequences| (room, sequences, *snapshots))
            })
        }) {
            let kv = if room.shorter { room.kv.min(room.bytes / 2) } else { room.kv };
            let fits = |sequences: usize, snapshots: usize| {
                room.state * (sequences + snapshots) as u64 + kv <= room.bytes
            };
            let most = (1..=6).rev().find(|&count| fits(count, snapshots.unwrap_or(count)));
            let running = sequences.unwrap_or(most.unwrap_or(1));
            let saved = (0..=running).rev().find(|&count| fits(running, count));
            let expected = States { sequences: running, snapshots: snapshots.unwrap_or(saved.unwrap_or(0)) };
            let wanted = StatesWanted { sequences, snapshots };
            assert_eq!(wanted.within(6, room), expected, "{wanted:?} {room:?}");
        }
    }

    #[test]
    fn a_model_without_state_has_nothing_to_cut() {
        let room = StateRoom { bytes: 0, state: 0, kv: 9, shorter: false };
        let wanted = StatesWanted { sequences: None, snapshots: Some(3) };
        assert_eq!(wanted.within(6, room), States { sequences: 6, snapshots: 0 });
    }
}
