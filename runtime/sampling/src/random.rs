//! The random stream: Philox4x32-10, a counter-based generator that needs no state, so any device computes
//! any draw on its own (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).

const ROUNDS: usize = 10;
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Number `draw` of the random stream of `seed`: uniform in `[0, 1)`, a multiple of 2^-53.
///
/// The key is the seed (low word first), the counter `[draw low, draw high, 0, 0]`. The first two output
/// words are the high and the low half of 64 bits whose upper 53 are the result.
pub fn uniform(seed: u64, draw: u64) -> f64 {
    let words = philox([draw as u32, (draw >> 32) as u32, 0, 0], [seed as u32, (seed >> 32) as u32]);
    let bits = u64::from(words[0]) << 32 | u64::from(words[1]);
    (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let first = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let second = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers published with Random123.
    #[test]
    fn known_answers() {
        let answers = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, expected) in answers {
            assert_eq!(philox(counter, key), expected);
        }
    }

    #[test]
    fn draws_and_seeds_beyond_a_word_are_others() {
        let of = |draw| uniform(7, draw);
        assert!(of(1 << 32) != of(0) && of(1 << 33) != of(1 << 32));
        let of = |seed| uniform(seed, 7);
        assert!(of(1 << 32) != of(0) && of(1 << 33) != of(1 << 32));
    }

    #[test]
    fn uniform_is_in_range_and_spread() {
        let mut buckets = [0u32; 16];
        for draw in 0..16_000 {
            let value = uniform(7, draw);
            assert!((0.0..1.0).contains(&value));
            buckets[(value * 16.0) as usize] += 1;
        }
        // 15 degrees of freedom: 99.9 % of chi-squared values lie below 37.7.
        let chi: f64 = buckets.iter().map(|&n| (f64::from(n) - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi < 37.7, "chi-squared {chi}");
    }
}
