//! A position of a scripted model's memory: a token id in place of keys and values, and its bytes in copies.

/// The id of a position that was never written.
const UNWRITTEN: u32 = u32::MAX;

/// The bytes of a position.
pub(super) fn to_bytes(cell: Option<u32>) -> [u8; 4] {
    cell.unwrap_or(UNWRITTEN).to_le_bytes()
}

/// The position that has these bytes.
pub(super) fn from_bytes(bytes: [u8; 4]) -> Option<u32> {
    Some(u32::from_le_bytes(bytes)).filter(|id| *id != UNWRITTEN)
}
