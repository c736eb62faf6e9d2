//! Snapshots of recurrent states in parts, each a page of the files: one that is written, and one that comes
//! back. Both are whole in memory, so that the device is asked once for each.

use monomorph_cache::KeptId;
use std::ops::Range;

/// A snapshot that is being written.
#[derive(Debug)]
pub(super) struct Leaving {
    parts: Vec<KeptId>,
    /// How many of them are being written.
    begun: usize,
    bytes: Vec<u8>,
}

impl Leaving {
    /// One of these bytes, no part of which is being written.
    pub fn new(parts: Vec<KeptId>, bytes: Vec<u8>) -> Leaving {
        Leaving { parts, begun: 0, bytes }
    }

    /// The number of its first part.
    pub fn first(&self) -> Option<KeptId> {
        self.parts.first().copied()
    }

    /// The part to write next, with its bytes in pages of `page_bytes`; `None` when all are being written.
    pub fn next(&self, page_bytes: usize) -> Option<(KeptId, &[u8])> {
        let id = *self.parts.get(self.begun)?;
        Some((id, &self.bytes[part(self.begun, page_bytes, self.bytes.len())]))
    }

    /// The next part is being written.
    pub fn begin(&mut self) {
        self.begun += 1;
    }
}

/// A snapshot that comes back.
#[derive(Debug)]
pub(super) struct Arriving {
    parts: Vec<KeptId>,
    /// How many of them are being read or were.
    begun: usize,
    /// Which of them are there.
    there: Vec<bool>,
    bytes: Vec<u8>,
}

impl Arriving {
    /// One of so many bytes, no part of which is being read. A model without states has one of no parts.
    pub fn new(parts: Vec<KeptId>, bytes: usize) -> Arriving {
        let bytes = if parts.is_empty() { 0 } else { bytes };
        Arriving { there: vec![false; parts.len()], begun: 0, bytes: vec![0; bytes], parts }
    }

    /// The part to read next; from now on it is being read. `None` when all are.
    pub fn next(&mut self) -> Option<KeptId> {
        let id = self.parts.get(self.begun).copied();
        self.begun += usize::from(id.is_some());
        id
    }

    /// Takes the page of a part; false where this is none of its parts.
    pub fn take(&mut self, id: KeptId, page: &[u8]) -> bool {
        let Some(at) = self.parts.iter().position(|one| *one == id) else { return false };
        let range = part(at, page.len(), self.bytes.len());
        let bytes = range.len();
        self.bytes[range].copy_from_slice(&page[..bytes]);
        self.there[at] = true;
        true
    }

    /// Whether this is one of its parts.
    pub fn has(&self, id: KeptId) -> bool {
        self.parts.contains(&id)
    }

    /// Whether all parts are there.
    pub fn is_whole(&self) -> bool {
        self.there.iter().all(|there| *there)
    }

    /// The state, of a model that has some.
    pub fn bytes(&self) -> Option<&[u8]> {
        (!self.parts.is_empty()).then_some(&self.bytes)
    }
}

/// Where a part stands in a state of `bytes` bytes.
fn part(at: usize, page_bytes: usize, bytes: usize) -> Range<usize> {
    let start = (at * page_bytes).min(bytes);
    start..(start + page_bytes).min(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Planted, and caught here: parts one byte too short; all parts in the places of the first two; a state
    /// taken for whole when its last part is there.
    #[test]
    fn a_state_comes_back_from_its_parts_in_any_order() {
        for bytes in [1_usize, 7, 8, 9, 16, 23] {
            let state: Vec<u8> = (0..bytes as u8).map(|byte| byte + 1).collect();
            let parts: Vec<KeptId> = (5..).take(bytes.div_ceil(8)).map(KeptId).collect();
            let mut leaving = Leaving::new(parts.clone(), state.clone());
            let mut pages = Vec::new();
            while let Some((id, part)) = leaving.next(8) {
                let mut page = part.to_vec();
                page.resize(8, 0xee);
                pages.push((id, page));
                leaving.begin();
            }
            assert_eq!(pages.iter().map(|(id, _)| *id).collect::<Vec<_>>(), parts);
            for turn in 0..pages.len() {
                let mut arriving = Arriving::new(parts.clone(), bytes);
                assert!(std::iter::from_fn(|| arriving.next()).eq(parts.iter().copied()));
                pages.rotate_left(usize::from(turn > 0));
                for (id, page) in &pages {
                    assert!(!arriving.is_whole() && arriving.has(*id));
                    assert!(arriving.take(*id, page) && !arriving.take(KeptId(99), page));
                }
                assert!(arriving.is_whole());
                assert_eq!(arriving.bytes(), Some(&state[..]), "{bytes} bytes, turn {turn}");
            }
        }
        let none = Arriving::new(Vec::new(), 9);
        assert!(none.is_whole() && none.bytes().is_none());
    }
}
