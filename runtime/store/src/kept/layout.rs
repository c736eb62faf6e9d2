//! How the index of kept pages stands in its file: a header, then an entry for each page. Plain bytes,
//! without a disk.
//!
//! Each entry has a checksum of its own, over the header's too: an entry that was torn, or is of another
//! file, is none, and its neighbours stay what they are.
//!
//! Planted, one at a time, and caught by the tests here: an entry's checksum without the header's; an entry
//! of another slot; a header whose checksum is not compared; another layout taken; a key that is too long;
//! the kind not written; a slot more than there is room for; the index left out of the limit. Planted and not
//! seen: values that only the other identity names, passed over.

use crate::worker::checksum;

/// Version of all that is in both files, pages excepted.
const LAYOUT: u32 = 2;
const MAGIC: &[u8; 16] = b"monomorph kept\n\0";
/// Bytes of the header; its last eight are a checksum of the others.
pub(crate) const HEADER_BYTES: usize = 4096;
/// Bytes of an entry in front of its key.
const ENTRY_HEAD: usize = 44;

/// What pages depend on, by name: who has other values cannot use them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity(pub Vec<(String, String)>);

impl Identity {
    /// The text in a header; `None` where it does not fit.
    fn text(&self) -> Option<String> {
        let text: String = self.0.iter().map(|(name, value)| format!("{name}\t{value}\n")).collect();
        (text.len() <= HEADER_BYTES - 40).then_some(text)
    }

    fn of_text(text: &str) -> Identity {
        let pair =
            |line: &str| line.split_once('\t').map(|(name, value)| (name.to_owned(), value.to_owned()));
        Identity(text.lines().filter_map(pair).collect())
    }

    /// The first thing in which another identity differs, in words.
    pub(crate) fn difference(&self, other: &Identity) -> Option<String> {
        let of = |it: &Identity, name: &str| it.0.iter().find(|one| one.0 == name).map(|one| one.1.clone());
        let names = self.0.iter().chain(&other.0).map(|(name, _)| name);
        names.into_iter().find_map(|name| {
            let (ours, theirs) = (of(self, name), of(other, name));
            let value = |it: Option<String>| it.unwrap_or_else(|| "none".to_owned());
            (ours != theirs)
                .then(|| format!("they are of another {name} ({}; this is {})", value(theirs), value(ours)))
        })
    }
}

/// A page that is kept, and what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptEntry {
    /// Its number, at least 1.
    pub id: u64,
    /// The number of the page that it goes on from.
    pub parent: Option<u64>,
    /// Its place in the file.
    pub slot: u32,
    /// The checksum of its bytes.
    pub sum: u64,
    /// What kind of page it is, in the caller's numbers.
    pub kind: u32,
    /// What it is found by.
    pub key: Vec<u32>,
}

/// The sizes of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Bytes that a page has in its file and in memory.
    pub page_bytes: usize,
    /// Most words of a key.
    pub key_words: usize,
}

impl Layout {
    /// How long an entry is: its head and room for the longest key.
    pub const fn entry_bytes(&self) -> usize {
        ENTRY_HEAD + self.key_words * size_of::<u32>()
    }

    /// Where a page's entry begins.
    pub fn place(&self, slot: u32) -> u64 {
        HEADER_BYTES as u64 + u64::from(slot) * self.entry_bytes() as u64
    }

    /// Pages of which index and pages take no more than so many bytes.
    pub fn slots(&self, bytes: u64) -> u32 {
        let each = (self.page_bytes + self.entry_bytes()) as u64;
        u32::try_from(bytes.saturating_sub(HEADER_BYTES as u64) / each).unwrap_or(u32::MAX)
    }

    /// The header of an index; `None` where the identity is too long.
    pub fn header(&self, identity: &Identity) -> Option<Vec<u8>> {
        let text = identity.text()?;
        let mut bytes = MAGIC.to_vec();
        for number in [LAYOUT, self.page_bytes as u32, self.key_words as u32, text.len() as u32] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(text.as_bytes());
        bytes.resize(HEADER_BYTES - 8, 0);
        bytes.extend(checksum(&bytes).to_le_bytes());
        Some(bytes)
    }

    /// What keeps an index with this header from being used by one with these sizes and this identity.
    pub fn refusal(&self, header: &[u8], identity: &Identity) -> Option<String> {
        let damaged = || Some("their index is damaged".to_owned());
        let Some((body, sum)) = header.split_last_chunk::<8>() else { return damaged() };
        if header.len() != HEADER_BYTES || !body.starts_with(MAGIC) || checksum(body).to_le_bytes() != *sum {
            return damaged();
        }
        let number = |at: usize| u32_at(body, MAGIC.len() + 4 * at) as usize;
        if number(0) != LAYOUT as usize {
            return Some(format!("their layout is {}, and this is {LAYOUT}", number(0)));
        }
        let start = MAGIC.len() + 16;
        let text = body[start..].get(..number(3)).and_then(|text| str::from_utf8(text).ok());
        let Some(text) = text else { return damaged() };
        identity.difference(&Identity::of_text(text)).or_else(|| {
            let same = (number(1), number(2)) == (self.page_bytes, self.key_words);
            (!same).then(|| "their pages have another size".to_owned())
        })
    }

    /// The bytes of an entry in an index with this header; `None` where its key is too long.
    pub fn entry(&self, header: &[u8], entry: &KeptEntry) -> Option<Vec<u8>> {
        if entry.key.len() > self.key_words || entry.id == 0 {
            return None;
        }
        let mut bytes = vec![0; 8];
        for number in [entry.id, entry.parent.unwrap_or(0), entry.sum] {
            bytes.extend(number.to_le_bytes());
        }
        for number in [entry.slot, entry.key.len() as u32, entry.kind].iter().chain(&entry.key) {
            bytes.extend(number.to_le_bytes());
        }
        bytes.resize(self.entry_bytes(), 0);
        let sum = entry_sum(header, &bytes);
        bytes[..8].copy_from_slice(&sum.to_le_bytes());
        Some(bytes)
    }

    /// The entry of a slot in these bytes; `None` where there is none. An error is one that is damaged.
    pub fn read(&self, header: &[u8], slot: u32, bytes: &[u8]) -> Result<Option<KeptEntry>, ()> {
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        if bytes.len() != self.entry_bytes() || u64_at(bytes, 0) != entry_sum(header, bytes) {
            return Err(());
        }
        let length = u32_at(bytes, 36) as usize;
        let key = bytes[ENTRY_HEAD..].as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
        let parent = u64_at(bytes, 16);
        let entry = KeptEntry {
            id: u64_at(bytes, 8),
            parent: (parent > 0).then_some(parent),
            slot: u32_at(bytes, 32),
            sum: u64_at(bytes, 24),
            kind: u32_at(bytes, 40),
            key: key.take(length).collect(),
        };
        if entry.slot == slot && entry.id > 0 && entry.key.len() == length {
            Ok(Some(entry))
        } else {
            Err(())
        }
    }
}

/// The checksum of an entry, which is that of its header too.
fn entry_sum(header: &[u8], entry: &[u8]) -> u64 {
    checksum(&[&header[header.len().saturating_sub(8)..], entry.get(8..).unwrap_or_default()].concat())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |chunk| u32::from_le_bytes(*chunk))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout { page_bytes: 4096, key_words: 20 };

    fn identity(weights: &str) -> Identity {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        Identity(vec![pair("target", "cpu/a/b"), pair("weights", weights)])
    }

    fn entry(slot: u32) -> KeptEntry {
        let key = (0..4 + 8 * (slot % 3)).map(|word| word * 77 + slot).collect();
        let (id, parent) = (5 + u64::from(slot), (slot > 0).then_some(4));
        KeptEntry { id, parent, slot, sum: 9 << 40, kind: slot % 2, key }
    }

    #[test]
    fn an_entry_comes_back_and_with_any_bit_flipped_it_does_not() {
        let header = LAYOUT.header(&identity("x")).expect("it fits");
        for slot in 0..4 {
            let bytes = LAYOUT.entry(&header, &entry(slot)).expect("its key fits");
            assert_eq!(bytes.len(), LAYOUT.entry_bytes());
            assert_eq!(LAYOUT.read(&header, slot, &bytes), Ok(Some(entry(slot))));
            assert_eq!(LAYOUT.read(&header, slot + 1, &bytes), Err(()), "of another slot");
            let other = LAYOUT.header(&identity("y")).expect("it fits");
            assert_eq!(LAYOUT.read(&other, slot, &bytes), Err(()), "of another index");
            for bit in 0..8 * bytes.len() {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(LAYOUT.read(&header, slot, &damaged), Err(()), "bit {bit}");
            }
            // Torn: what was written before is zeros, or another entry.
            for before in [vec![0; bytes.len()], LAYOUT.entry(&header, &entry(slot + 4)).expect("it fits")] {
                for torn in 0..bytes.len() {
                    let mixed = [&bytes[..torn], &before[torn..]].concat();
                    let read = LAYOUT.read(&header, slot, &mixed);
                    let whole = mixed == bytes || mixed.iter().all(|byte| *byte == 0);
                    assert!(read == Err(()) || whole, "torn at {torn}: {read:?}");
                }
            }
        }
        let long = KeptEntry { key: vec![1; 21], ..entry(0) };
        assert_eq!(LAYOUT.entry(&header, &long), None);
        assert_eq!(LAYOUT.read(&header, 0, &vec![0; LAYOUT.entry_bytes()]), Ok(None));
    }

    #[test]
    fn an_index_of_something_else_is_refused_with_what_differs() {
        let header = LAYOUT.header(&identity("x")).expect("it fits");
        assert_eq!(LAYOUT.refusal(&header, &identity("x")), None);
        let said = |it: Option<String>| it.expect("it is refused");
        assert_eq!(
            said(LAYOUT.refusal(&header, &identity("y"))),
            "they are of another weights (x; this is y)"
        );
        let more = Identity([identity("x").0, vec![("kv".to_owned(), "fp8".to_owned())]].concat());
        assert_eq!(said(LAYOUT.refusal(&header, &more)), "they are of another kv (none; this is fp8)");
        let mut earlier = header.clone();
        earlier[MAGIC.len()] = 1;
        let (body, sum) = earlier.split_last_chunk_mut::<8>().expect("a header");
        *sum = checksum(body).to_le_bytes();
        assert_eq!(
            said(LAYOUT.refusal(&earlier, &identity("x"))),
            "their layout is 1, and this is 2",
            "of a build before states were kept"
        );
        let larger = Layout { page_bytes: 8192, ..LAYOUT };
        assert_eq!(said(larger.refusal(&header, &identity("x"))), "their pages have another size");
        for bit in 0..8 * header.len() {
            let mut damaged = header.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(said(LAYOUT.refusal(&damaged, &identity("x"))), "their index is damaged", "bit {bit}");
        }
        for length in [0, 7, 100, HEADER_BYTES - 1] {
            assert_eq!(said(LAYOUT.refusal(&header[..length], &identity("x"))), "their index is damaged");
        }
    }

    #[test]
    fn index_and_pages_take_no_more_than_they_may() {
        for bytes in [0, 4096, 100_000, 10_000_000] {
            let slots = LAYOUT.slots(bytes);
            let taken = |slots: u32| LAYOUT.place(slots) + u64::from(slots) * 4096;
            assert!(taken(slots) <= bytes.max(HEADER_BYTES as u64) && taken(slots + 1) > bytes, "{bytes}");
        }
    }
}
