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

/// The natural logarithm of a positive, normal number, within 1e-15 of the larger of it and 1: from
/// additions, multiplications and divisions alone, the same on every machine.
pub(crate) fn ln(x: f64) -> f64 {
    // x = 2^exponent * mantissa with the mantissa within a factor of sqrt 2 of 1.
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i32 - 1023;
    let mut mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    // ln m = 2 artanh t = 2 (t + t^3 / 3 + t^5 / 5 + ...) with |t| < 0.1716: the first term left out is below
    // 2e-18.
    let t = (mantissa - 1.0) / (mantissa + 1.0);
    let square = t * t;
    let mut sum = 0.0;
    for odd in (1..=21).rev().step_by(2) {
        sum = sum * square + 1.0 / f64::from(odd);
    }
    f64::from(exponent) * std::f64::consts::LN_2 + 2.0 * t * sum
}

/// `base` to the power of `exponent`, for a base from 0 to 1 and an exponent of at least 0; 0 to the power of
/// 0 is 1.
pub(crate) fn power(base: f32, exponent: f32) -> f32 {
    if exponent == 0.0 || base >= 1.0 {
        return 1.0;
    }
    if base < f32::MIN_POSITIVE {
        return 0.0;
    }
    exp_nonpositive((f64::from(exponent) * ln(f64::from(base))) as f32)
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
    fn logarithms_and_powers_are_close() {
        for at in 0..40_000 {
            // From 1e-300 to 1e300, and near 1.
            for x in [(f64::from(at - 20_000) * 0.034).exp(), 1.0 + f64::from(at - 20_000) * 1e-5] {
                let (found, exact) = (ln(x), x.ln());
                assert!((found - exact).abs() <= 1e-15 * exact.abs().max(1.0), "ln({x}) is not {found}");
            }
        }
        assert_eq!((ln(1.0), ln(2.0)), (0.0, std::f64::consts::LN_2));
        for (base, exponent) in [(0.5f32, 2.0f32), (0.25, 0.5), (0.9, 7.5), (1e-3, 3.0), (0.7, 1.0)] {
            let exact = f64::from(base).powf(f64::from(exponent));
            assert!((f64::from(power(base, exponent)) / exact - 1.0).abs() < 5e-6, "{base}^{exponent}");
        }
        assert_eq!([power(0.0, 0.0), power(0.0, 2.0), power(1.0, 9.0)], [1.0, 0.0, 1.0]);
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

    /// Below the smallest normal number a base counts as 0.
    #[test]
    fn powers_of_the_smallest_bases() {
        assert_eq!([power(0.0, 0.01), power(1e-40, 0.01)], [0.0; 2]);
        let smallest = f64::from(f32::MIN_POSITIVE).powf(0.01);
        assert!((f64::from(power(f32::MIN_POSITIVE, 0.01)) - smallest).abs() < 1e-6);
    }

    #[test]
    fn largest_and_argmax() {
        assert_eq!(argmax(&[]), 0);
        assert_eq!(argmax(&[f32::NAN, f32::NEG_INFINITY]), 0);
        assert_eq!(argmax(&[f32::NAN, -3.0, -2.0, -2.0]), 2);
        assert_eq!(argmax(&[0.0, f32::INFINITY, f32::INFINITY]), 1);
        // The first of many alike, whatever is behind them.
        assert_eq!(argmax(&[[5.0; 64], [-5.0; 64]].concat()), 0);
        for length in [1, 15, 16, 17, 63, 64, 65, 1000] {
            for at in 0..length {
                let mut row = vec![-1.0; length];
                row[at] = 1.0;
                assert_eq!(argmax(&row), at as u32);
            }
        }
    }
}
