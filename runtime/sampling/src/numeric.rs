//! Passes over a row of logits, written so that the compiler vectorises them and that they round the same on
//! every machine.

/// Independent accumulators: enough to fill vector registers, and a fixed number, so that sums round the same
/// everywhere.
const LANES: usize = 16;

/// The largest value, ignoring NaN; minus infinity if there is none.
pub(crate) fn largest(values: &[f32]) -> f32 {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            // Not `f32::max`, whose NaN handling costs an instruction; a comparison with NaN is false.
            *lane = if value > *lane { value } else { *lane };
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |best, &value| if value > best { value } else { best })
}

/// Whether every logit is finite: neither NaN nor infinite.
pub fn is_finite(logits: &[f32]) -> bool {
    // No early exit, so that it vectorises: the row was just written and is in cache.
    logits.iter().fold(true, |finite, logit| finite & (logit.abs() <= f32::MAX))
}

/// The id of the largest logit, the smallest among equals; NaN counts as minus infinity.
pub(crate) fn argmax(logits: &[f32]) -> u32 {
    let best = largest(logits);
    if best == f32::NEG_INFINITY {
        return 0;
    }
    // A block at a time: a test of the whole block vectorises, a search with an early exit does not.
    const BLOCK: usize = 64;
    let block = logits
        .chunks(BLOCK)
        .position(|block| block.iter().fold(false, |found, &value| found | (value == best)))
        .unwrap_or(0);
    let within = logits[block * BLOCK..].iter().position(|&value| value == best).unwrap_or(0);
    (block * BLOCK + within) as u32
}

/// The sum in f64, in a fixed order.
pub(crate) fn sum(values: &[f32]) -> f64 {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut lanes = [0.0f64; LANES];
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(value);
        }
    }
    lanes.iter().copied().chain(rest.iter().map(|&value| f64::from(value))).sum()
}

/// The weight of a logit relative to the largest: `exp((logit - largest) * inverse_temperature)`, 1 for the
/// largest itself (even if it is infinite), 0 for NaN.
pub(crate) fn weight(logit: f32, largest: f32, inverse_temperature: f32) -> f32 {
    let relative = exp_nonpositive((logit - largest) * inverse_temperature);
    if logit == largest { 1.0 } else { relative }
}

/// e^x for x <= 0, within 2 units in the last place; 0 for NaN and below -87, where f32 nears its smallest
/// normal number.
fn exp_nonpositive(x: f32) -> f32 {
    // Cody and Waite: x = n ln 2 + r with |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds to an integer in the low
    // bits of the mantissa, identically on every machine and without a call.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let clamped = if x >= -87.0 { x } else { -87.0 };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * LN_2_HIGH) - n * LN_2_LOW;
    // Cephes' minimax polynomial.
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let mantissa = (p * r * r + r) + 1.0;
    // n is in -126..=0, so the biased exponent remains that of a normal number.
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    if x >= -87.0 { mantissa * f32::from_bits(exponent) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_is_close() {
        assert_eq!(exp_nonpositive(0.0), 1.0);
        assert_eq!(exp_nonpositive(-88.0), 0.0);
        assert_eq!(exp_nonpositive(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp_nonpositive(f32::NAN), 0.0);
        for step in 0..87_000 {
            let x = -(step as f32) / 1000.0;
            let exact = f64::from(x).exp();
            let error = ((f64::from(exp_nonpositive(x)) - exact) / exact).abs();
            assert!(error < 2.4e-7, "exp({x}) is off by {error}");
        }
    }

    #[test]
    fn one_logit_that_is_no_number_is_seen_wherever_it_stands() {
        assert!(is_finite(&[]) && is_finite(&[f32::MAX, f32::MIN, -0.0, f32::MIN_POSITIVE]));
        for length in [1, 15, 16, 17, 1000] {
            for at in 0..length {
                for poison in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut row = vec![-1.0; length];
                    row[at] = poison;
                    assert!(!is_finite(&row), "{poison} at {at} of {length}");
                }
            }
        }
    }

    #[test]
    fn largest_and_argmax() {
        assert_eq!(argmax(&[]), 0);
        assert_eq!(argmax(&[f32::NAN, f32::NEG_INFINITY]), 0);
        assert_eq!(argmax(&[f32::NAN, -3.0, -2.0, -2.0]), 2);
        assert_eq!(argmax(&[0.0, f32::INFINITY, f32::INFINITY]), 1);
        for length in [1, 15, 16, 17, 63, 64, 65, 1000] {
            for at in 0..length {
                let mut row = vec![-1.0; length];
                row[at] = 1.0;
                assert_eq!(argmax(&row), at as u32);
            }
        }
    }
}
