//! Numbers of made-up weights: of the right formats, and of a size that keeps activations finite. Any bytes
//! of a tensor can be had without those before them.

use monomorph_formats::{Format, encode, f32_to_e4m3};

/// Elements that are made together, of formats whose blocks are small.
const TOGETHER: usize = 64;

/// Most bytes that are made together.
const MOST: usize = 4 * TOGETHER;

/// Where a block of a GGUF format has its f16 scale, its largest code times its largest scale of a sub-block,
/// and how many scales its f16 minimum is, which follows the scale, so that elements are about as often
/// negative as positive.
const fn block(format: Format) -> Option<(usize, f32, Option<f32>)> {
    match format {
        Format::F32 | Format::Bf16 | Format::F16 | Format::Fp8E4m3 | Format::Nvfp4 => None,
        Format::Q8_0 | Format::Iq4Nl => Some((0, 127.0, None)),
        Format::Q4_0 => Some((0, 8.0, None)),
        Format::Q4_1 => Some((0, 8.0, Some(-7.5))),
        Format::Q5_0 => Some((0, 16.0, None)),
        Format::Q5_1 => Some((0, 16.0, Some(-15.5))),
        Format::Q2K => Some((80, 15.0 * 3.0, Some(1.5))),
        Format::Q3K => Some((108, 32.0 * 4.0, None)),
        Format::Q4K => Some((0, 63.0 * 15.0, Some(7.5))),
        Format::Q5K => Some((0, 63.0 * 31.0, Some(15.5))),
        Format::Q6K => Some((208, 128.0 * 32.0, None)),
        Format::Iq4Xs => Some((0, 32.0 * 127.0, None)),
    }
}

/// The numbers of a tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MadeUp {
    seed: u64,
    format: Format,
    /// Their mean, and how far from it they are at most.
    mean: f32,
    reach: f32,
}

impl MadeUp {
    /// Equal seeds give equal numbers. A matrix multiplies so that what it gives is as large as what it gets;
    /// vectors are about 1, and scalars are.
    pub(crate) fn new(seed: u64, shape: &[usize], format: Format) -> MadeUp {
        let (mean, reach) = match shape {
            [] | [1] => (1.0, 0.0),
            [_] => (1.0, 0.5),
            [.., columns] => (0.0, (3.0 / (*columns).max(1) as f32).sqrt()),
        };
        MadeUp { seed, format, mean, reach }
    }

    /// Fills `out` with the tensor's bytes from `start` on.
    pub(crate) fn fill(&self, start: usize, mut out: &mut [u8]) {
        let elements = self.format.block_elements().max(TOGETHER);
        let each = self.format.bytes(elements).unwrap_or(self.format.block_bytes());
        let (mut index, mut skip) = (start / each, start % each);
        let mut made = [0; MOST];
        while !out.is_empty() {
            let made = &mut made[..each];
            self.make(index as u64, made);
            let (now, later) = out.split_at_mut(out.len().min(each - skip));
            now.copy_from_slice(&made[skip..][..now.len()]);
            (out, index, skip) = (later, index + 1, 0);
        }
    }

    /// Makes the elements of place `index` that are made together.
    fn make(&self, index: u64, out: &mut [u8]) {
        let mut state = self.seed ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        match self.format {
            Format::F32 | Format::Bf16 | Format::F16 => {
                let number =
                    |_| self.mean + self.reach * ((next(&mut state) >> 40) as f32 / 8_388_608.0 - 1.0);
                let numbers: [f32; TOGETHER] = std::array::from_fn(number);
                out.copy_from_slice(&encode(self.format, &numbers));
            }
            // Weights, or the scales of groups of 4-bit codes, which are 3 on average.
            Format::Fp8E4m3 => {
                let least = f32_to_e4m3(0.006);
                for out in out.chunks_mut(8) {
                    for (out, random) in out.iter_mut().zip(next(&mut state).to_le_bytes()) {
                        *out = (random & 0x80) | (least + (random & 3));
                    }
                }
            }
            _ => {
                for out in out.chunks_mut(8) {
                    out.copy_from_slice(&next(&mut state).to_le_bytes()[..out.len()]);
                }
                self.scale(out);
            }
        }
    }

    /// Writes the scales into blocks of random codes.
    fn scale(&self, out: &mut [u8]) {
        let Some((at, largest, minimum)) = block(self.format) else { return };
        let scale = self.reach.max(self.mean) / largest;
        let halves = encode(Format::F16, &[scale, minimum.unwrap_or(0.0) * scale]);
        let halves = if minimum.is_some() { &halves[..] } else { &halves[..2] };
        for block in out.chunks_exact_mut(self.format.block_bytes()) {
            block[at..at + halves.len()].copy_from_slice(halves);
        }
    }
}

/// The next of random numbers (splitmix64).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_formats::decode;

    #[test]
    fn numbers_of_every_format_are_finite_and_of_a_matrix_s_size() {
        const SHAPE: [usize; 2] = [8, 768];
        for format in Format::ALL {
            let elements = SHAPE.iter().product();
            let mut bytes = vec![0; format.bytes(elements).unwrap()];
            let made_up = MadeUp::new(7, &SHAPE, format);
            made_up.fill(0, &mut bytes);
            assert!(format.is_finite(&bytes), "{format}");
            for range in [0..bytes.len() - 1, 1..3, 77..900, 300..301] {
                let mut some = vec![0; range.len()];
                made_up.fill(range.start, &mut some);
                assert_eq!(some, bytes[range.clone()], "{format}: {range:?}");
            }
            if format.has_companions() {
                continue;
            }
            let mut values = vec![0.0; elements];
            decode(format, &bytes, &mut values);
            let mean = values.iter().sum::<f32>() / elements as f32;
            let deviation = (values.iter().map(|it| it * it).sum::<f32>() / elements as f32).sqrt();
            let wanted = 1.0 / (SHAPE[1] as f32).sqrt();
            assert!(mean.abs() < 0.2 * wanted, "{format}: {mean}");
            assert!((0.2..1.5).contains(&(deviation / wanted)), "{format}: {deviation} of {wanted}");
        }
    }

    #[test]
    fn vectors_are_about_one_and_scalars_are() {
        let values = |shape: &[usize]| {
            let mut bytes = [0; 64];
            MadeUp::new(1, shape, Format::F32).fill(0, &mut bytes);
            let mut values = [0.0; 16];
            decode(Format::F32, &bytes, &mut values);
            values
        };
        assert!(values(&[16]).iter().all(|it| (0.5..1.5).contains(it)));
        assert_eq!([values(&[]), values(&[1])], [[1.0; 16]; 2]);
    }
}
