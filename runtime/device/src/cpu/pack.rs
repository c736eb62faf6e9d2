//! How a group of a key or value, as [`monomorph_formats::cached`] encodes it, is put into a block: the other
//! direction of [`super::kept`].
//!
//! Lanes write keys of tokens side by side, so no byte of codes belongs to two tokens.

use monomorph_abi::kv::Layout;
use monomorph_formats::cached::{Cached, GROUP, Group};

/// What `put` writes of a group of a key: `group` is from dimension `first` on and has `len` elements, the
/// token is at `slot` of the block. `put` takes a byte of the head's keys and what belongs there.
#[inline(always)]
pub(super) fn key(
    layout: &Layout,
    (slot, first, len): (usize, usize, usize),
    group: &Group,
    mut put: impl FnMut(usize, &[u8]),
) {
    let (format, tokens, codes) = (layout.formats.keys, layout.tokens, &group.codes[..len]);
    match format.code_bits() {
        4 => {
            for (at, pair) in codes.as_chunks::<2>().0.iter().enumerate() {
                put((first / 2 + at) * tokens + slot, &[(pair[0] | pair[1] << 4) as u8]);
            }
        }
        3 => {
            for (at, eight) in codes.as_chunks::<8>().0.iter().enumerate() {
                let mut planes = [0; 3];
                for (d, code) in eight.iter().enumerate() {
                    planes[d / 4] |= (code & 3) << (d % 4 * 2);
                    planes[2] |= code >> 2 << d;
                }
                for (plane, byte) in planes.into_iter().enumerate() {
                    put(((first / 8 + at) * 3 + plane) * tokens + slot, &[byte as u8]);
                }
            }
        }
        _ => {
            let (size, bytes) = whole(format);
            for (at, code) in codes.iter().enumerate() {
                put(((first + at) * tokens + slot) * size, &bytes(*code)[..size]);
            }
        }
    }
    if let Some((size, bytes)) = scale(format, group) {
        put(layout.key_codes() + (first / GROUP * tokens + slot) * size, &bytes[..size]);
    }
}

/// What `put` writes of the tail of the key at `slot` of the block; it takes a byte of the head's keys.
#[inline(always)]
pub(super) fn tail(layout: &Layout, slot: usize, tail: &[f32], mut put: impl FnMut(usize, &[u8])) {
    for (d, value) in tail.iter().enumerate() {
        let bytes = half::bf16::from_f32(*value).to_ne_bytes();
        put(layout.key_tails() + (d * layout.tokens + slot) * bytes.len(), &bytes);
    }
}

/// As [`key`], of a value; `put` takes a byte of the head's values.
#[inline(always)]
pub(super) fn value(
    layout: &Layout,
    (slot, first, len): (usize, usize, usize),
    group: &Group,
    mut put: impl FnMut(usize, &[u8]),
) {
    let (format, codes) = (layout.formats.values, &group.codes[..len]);
    let from = slot * layout.value_stride + first;
    match format.code_bits() {
        4 => {
            let mut words = [0u32; 2];
            for (at, code) in codes.iter().enumerate() {
                words[at % 2] |= code << (at / 2 * 4);
            }
            put(from / 2, words.map(u32::to_le_bytes).as_flattened());
        }
        3 => {
            let (mut magnitudes, mut signs) = (0u32, 0u16);
            for (at, code) in codes.iter().enumerate() {
                magnitudes |= (code & 3) << (2 * at);
                signs |= ((code >> 2) as u16) << at;
            }
            put(from * 3 / 8, &magnitudes.to_le_bytes());
            put(from * 3 / 8 + 4, &signs.to_le_bytes());
        }
        _ => {
            let (size, bytes) = whole(format);
            for (at, code) in codes.iter().enumerate() {
                put((from + at) * size, &bytes(*code)[..size]);
            }
        }
    }
    if let Some((size, bytes)) = scale(format, group) {
        let groups = layout.value_stride / GROUP;
        put(layout.value_codes() + (slot * groups + first / GROUP) * size, &bytes[..size]);
    }
}

/// Bytes of a code that has whole ones, and which.
#[inline(always)]
fn whole(format: Cached) -> (usize, fn(u32) -> [u8; 4]) {
    match format.code_bits() {
        32 => (4, u32::to_ne_bytes),
        16 => (2, |code| {
            let [low, high] = (code as u16).to_ne_bytes();
            [low, high, 0, 0]
        }),
        _ => (1, |code| [code as u8, 0, 0, 0]),
    }
}

/// Bytes of a group's scale, and which, where the format has one.
#[inline(always)]
fn scale(format: Cached, group: &Group) -> Option<(usize, [u8; 2])> {
    match format.scales()?.block_bytes() {
        2 => Some((2, group.scale.to_ne_bytes())),
        size => Some((size, [group.scale as u8, 0])),
    }
}
