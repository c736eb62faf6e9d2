//! Straightforward decoding and encoding: the definition of each format.

use crate::{Format, IntegerBlock, e2m1_to_f32, e4m3_to_f32, f32_to_e2m1, f32_to_e4m3};
use half::{bf16, f16};

/// Decodes `bytes` into `out`; codes with companion scales are not scaled.
///
/// # Panics
/// If `bytes` is not exactly the size that `out.len()` elements take in `format`.
pub fn decode(format: Format, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(Some(bytes.len()), format.bytes(out.len()), "{format} bytes and elements disagree");
    let blocks = bytes.chunks_exact(format.block_bytes()).zip(out.chunks_exact_mut(format.block_elements()));
    for (block, out) in blocks {
        match format {
            Format::F32 => out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
            Format::Bf16 => out[0] = bf16::from_le_bytes([block[0], block[1]]).to_f32(),
            Format::F16 => out[0] = f16_at(block, 0),
            Format::Q8_0 => {
                let d = f16_at(block, 0);
                for (out, q) in out.iter_mut().zip(&block[2..]) {
                    *out = d * f32::from(*q as i8);
                }
            }
            Format::Q4_1 => {
                let (d, m) = (f16_at(block, 0), f16_at(block, 2));
                for (i, q) in block[4..].iter().enumerate() {
                    out[i] = d * f32::from(q & 0x0f) + m;
                    out[i + 16] = d * f32::from(q >> 4) + m;
                }
            }
            Format::Q4_0
            | Format::Q5_0
            | Format::Q5_1
            | Format::Q2K
            | Format::Q3K
            | Format::Q4K
            | Format::Q5K
            | Format::Q6K
            | Format::Iq4Nl
            | Format::Iq4Xs => {
                let form = format.integers().expect("a format of small integers");
                IntegerBlock::new(format, block).decode(form, out);
            }
            Format::Fp8E4m3 => out[0] = e4m3_to_f32(block[0]),
            Format::Nvfp4 => {
                for (pair, out) in block.iter().zip(out.chunks_exact_mut(2)) {
                    (out[0], out[1]) = (e2m1_to_f32(*pair), e2m1_to_f32(*pair >> 4));
                }
            }
        }
    }
}

/// Encodes `values`, rounding to nearest (ties to even if the format is a float). For codes with companion
/// scales, values must have been divided by them.
///
/// # Panics
/// If `values` do not fill whole blocks.
pub fn encode(format: Format, values: &[f32]) -> Vec<u8> {
    let bytes = format
        .bytes(values.len())
        .unwrap_or_else(|| panic!("{} values do not fill {format} blocks", values.len()));
    let mut out = Vec::with_capacity(bytes);
    for block in values.chunks_exact(format.block_elements()) {
        match format {
            Format::F32 => out.extend(block[0].to_le_bytes()),
            Format::Bf16 => out.extend(bf16::from_f32(block[0]).to_le_bytes()),
            Format::F16 => out.extend(f16::from_f32(block[0]).to_le_bytes()),
            Format::Q8_0 => {
                let largest = block.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                let d = f16::from_f32(largest / 127.0);
                out.extend(d.to_le_bytes());
                out.extend(block.iter().map(|v| nearest(*v, d.to_f32(), -127.0, 127.0) as i8 as u8));
            }
            Format::Q4_1 => {
                let (low, high) = block.iter().fold((f32::MAX, f32::MIN), |(l, h), v| (l.min(*v), h.max(*v)));
                let (d, m) = (f16::from_f32((high - low) / 15.0), f16::from_f32(low));
                out.extend(d.to_le_bytes());
                out.extend(m.to_le_bytes());
                let code = |v: f32| nearest(v - m.to_f32(), d.to_f32(), 0.0, 15.0) as u8;
                out.extend((0..16).map(|i| code(block[i]) | code(block[i + 16]) << 4));
            }
            Format::Q4_0
            | Format::Q5_0
            | Format::Q5_1
            | Format::Q2K
            | Format::Q3K
            | Format::Q4K
            | Format::Q5K
            | Format::Q6K
            | Format::Iq4Nl
            | Format::Iq4Xs => {
                out.extend(IntegerBlock::encode(format, block));
            }
            Format::Fp8E4m3 => out.push(f32_to_e4m3(block[0])),
            Format::Nvfp4 => {
                out.extend(
                    block.chunks_exact(2).map(|pair| f32_to_e2m1(pair[0]) | f32_to_e2m1(pair[1]) << 4),
                );
            }
        }
    }
    out
}

fn f16_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn nearest(value: f32, step: f32, low: f32, high: f32) -> f32 {
    if step == 0.0 { 0.0f32.clamp(low, high) } else { (value / step).round_ties_even().clamp(low, high) }
}
