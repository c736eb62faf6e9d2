//! Rates of a decay, which files of llama.cpp hold in place of their logarithms.

/// Replaces every number `-exp(x)` by `x`.
///
/// # Errors
/// Says which number is none such: all are below zero.
pub fn logarithms_of_rates(values: &mut [f32]) -> Result<(), String> {
    for value in values {
        if !(value.is_finite() && *value <= 0.0) {
            return Err(format!("{value} is no rate of a decay: these are below 0"));
        }
        *value = f64::from(-*value).ln() as f32;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_becomes_its_logarithm_again() {
        let logarithms = [-9.5, -0.25, 0.0, 1.0, 2.75];
        let mut values = logarithms.map(|x: f32| -x.exp());
        assert_eq!(logarithms_of_rates(&mut values), Ok(()));
        for (found, expected) in values.into_iter().zip(logarithms) {
            assert!((found - expected).abs() <= 1e-6, "{found} {expected}");
        }
    }

    #[test]
    fn what_is_no_rate_is_named() {
        for wrong in [0.5, f32::NAN, f32::NEG_INFINITY] {
            let refused = logarithms_of_rates(&mut [-1.0, wrong]).expect_err("it grows, or is no number");
            assert!(refused.starts_with(&wrong.to_string()), "{refused}");
        }
    }
}
