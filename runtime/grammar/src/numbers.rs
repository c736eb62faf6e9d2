//! Numbers in schemas. The library computes in doubles: numbers that these do not represent exactly are
//! rejected, never rounded.

use serde_json::{Number, Value};

/// Every integer up to this one is exact as a double.
const WHOLE: i128 = 1 << 53;
/// Larger integers that are exact as doubles are accepted below this one: the library counts in 64 bits and
/// in decimal digits.
const DIGITS: i128 = 1_000_000_000_000_000_000;
/// Most digits of a decimal that survives parsing and printing exactly.
const SIGNIFICANT: usize = 15;
/// Most decimal places of a bound and of `multipleOf`: each adds a part to an expression.
const PLACES: usize = 60;
const MULTIPLE_PLACES: u32 = 15;
/// Counts that no answer reaches.
const ENDLESS: u64 = 1 << 31;

/// The requirement on numbers, for errors.
const EXACT: &str = "must be a number that is kept exactly: at most 9007199254740992 (2^53) in magnitude, \
                     and of at most 15 digits where it has a fraction";

/// A number in the form that the library keeps exactly.
///
/// # Errors
/// When it cannot be kept exactly.
pub(crate) fn exact(number: &Number) -> Result<Number, String> {
    let refused = || format!("{EXACT}; it is {number}");
    if let Some(whole) = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from)) {
        let kept = whole.abs() <= WHOLE || (whole as f64 as i128 == whole && whole.abs() < DIGITS);
        return if kept { Ok(number.clone()) } else { Err(refused()) };
    }
    let double = number.as_f64().filter(|it| it.is_finite()).ok_or_else(refused)?;
    // An integer of more than 64 bits is parsed as a double, too, and loses digits.
    if double.abs() > WHOLE as f64 {
        return Err(refused());
    }
    if double.fract() == 0.0 {
        return Ok(Number::from(double as i64));
    }
    if digits(double).0.len() > SIGNIFICANT { Err(refused()) } else { Ok(number.clone()) }
}

/// The decimal digits of a double, without sign and outer zeros, and how many of them follow the point.
fn digits(double: f64) -> (String, usize) {
    let written = double.abs().to_string();
    let (whole, fraction) = written.split_once('.').unwrap_or((&written, ""));
    let all = format!("{whole}{fraction}");
    (all.trim_matches('0').to_owned(), fraction.len())
}

/// A constant with all its numbers exact.
///
/// # Errors
/// The path within it of a number that cannot be kept exactly, and why.
pub(crate) fn constant(value: &Value) -> Result<Value, (String, String)> {
    Ok(match value {
        Value::Number(number) => exact(number).map_err(|why| (String::new(), why))?.into(),
        Value::Array(items) => {
            let item = |(at, item)| constant(item).map_err(|(path, why)| (format!("[{at}]{path}"), why));
            Value::Array(items.iter().enumerate().map(item).collect::<Result<_, _>>()?)
        }
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| match constant(value) {
                Ok(value) => Ok((name.clone(), value)),
                Err((path, why)) => Err((format!(".{name}{path}"), why)),
            };
            Value::Object(members.iter().map(member).collect::<Result<_, _>>()?)
        }
        other => other.clone(),
    })
}

/// A bound of numbers. The library handles an exclusive one by counting on from it by one.
///
/// # Errors
/// When it is not a number, or cannot be kept exactly.
pub(crate) fn bound(value: &Value, exclusive: bool) -> Result<Number, String> {
    let Value::Number(number) = value else {
        let older = match value {
            Value::Bool(_) => "; the boolean of older drafts is written as the bound itself here",
            _ => "",
        };
        return Err(format!("must be a number, and is {}{older}", kind(value)));
    };
    let kept = exact(number)?;
    let double = kept.as_f64().unwrap_or_default();
    if exclusive && double.abs() >= WHOLE as f64 {
        return Err(format!("must be less than 9007199254740992 (2^53) in magnitude, and is {number}"));
    }
    if digits(double).1 > PLACES {
        return Err(format!("must have at most {PLACES} places behind the point, and is {number}"));
    }
    Ok(kept)
}

/// An exclusive bound as an inclusive one: the library treats a whole exclusive bound as inclusive if the
/// other bound is less than one away. From zero the next bound is 1e-15, because numbers with more than 15
/// decimal places are not generated.
pub(crate) fn inclusive(bound: &Number, least: bool) -> Option<Number> {
    let double = bound.as_f64()?;
    let towards = if least { double } else { -double };
    let above = if towards == 0.0 { 1e-15 } else { towards.next_up() };
    (towards >= 0.0 && double.fract() == 0.0).then(|| Number::from_f64(if least { above } else { -above }))?
}

/// A divisor of numbers (`multipleOf`): `coefficient * 10^-places`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Multiple {
    coefficient: u32,
    places: u32,
}

impl Multiple {
    /// The least common multiple, if it can be kept exactly.
    pub(crate) fn with(self, other: Multiple) -> Option<Multiple> {
        let places = self.places.max(other.places);
        let scaled = |it: Multiple| u128::from(it.coefficient) * 10u128.pow(places - it.places);
        let (mut a, mut b) = (scaled(self), scaled(other));
        let product = a * b;
        if product > u32::MAX.into() {
            return None;
        }
        while b > 0 {
            (a, b) = (b, a % b);
        }
        Some(Multiple { coefficient: u32::try_from(product / a).ok()?, places })
    }
}

/// The value of `multipleOf`.
///
/// # Errors
/// When it is not a positive number, or the library cannot keep it exactly.
pub(crate) fn multiple(value: &Value) -> Result<(Number, Multiple), String> {
    let Value::Number(number) = value else {
        return Err(format!("must be a number above zero, and is {}", kind(value)));
    };
    if number.as_f64().is_none_or(|it| it <= 0.0) {
        return Err(format!("must be a number above zero, and is {number}"));
    }
    let refused = || {
        let most = u32::MAX;
        format!(
            "must have digits of at most {most} in all, as 250 or 0.01, and is {number}, which is not kept exactly"
        )
    };
    let kept = exact(number).map_err(|_| refused())?;
    let double = kept.as_f64().ok_or_else(refused)?;
    let (_, places) = digits(double);
    let places =
        u32::try_from(places).ok().filter(|places| *places <= MULTIPLE_PLACES).ok_or_else(refused)?;
    let written = double.to_string().replacen('.', "", 1);
    let coefficient = written.parse().map_err(|_| refused())?;
    // The library multiplies by ten until no fraction is left, which for some numbers never happens.
    let (mut read, mut times) = (double, 0);
    while read.fract() != 0.0 && times <= MULTIPLE_PLACES {
        (read, times) = (read * 10.0, times + 1);
    }
    if read != f64::from(coefficient) {
        return Err(refused());
    }
    Ok((kept, Multiple { coefficient, places }))
}

/// A length, or a count of items or names.
///
/// # Errors
/// When it is not a count.
pub(crate) fn count(value: &Value) -> Result<u64, String> {
    let whole = match value {
        Value::Number(number) => exact(number).ok().and_then(|it| it.as_u64()).or_else(|| number.as_u64()),
        _ => None,
    };
    whole.ok_or_else(|| match value {
        // More than any answer has.
        Value::Number(number) => format!(
            "must be a whole number of at most 9007199254740992 (2^53), and not below zero; it is {number}"
        ),
        other => format!("must be a whole number, and is {}", kind(other)),
    })
}

/// Whether no answer reaches a count.
pub(crate) fn is_endless(count: u64) -> bool {
    count >= ENDLESS
}

/// The kind of a value, with its article.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn number(text: &str) -> Number {
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn numbers_are_kept_to_the_last_digit_or_refused() {
        for (text, kept) in [
            ("0", Some("0")),
            ("-7", Some("-7")),
            ("9007199254740992", Some("9007199254740992")),
            ("-9007199254740992", Some("-9007199254740992")),
            ("9007199254740993", None),
            ("-9007199254740993", None),
            // Larger ones that a double has.
            ("9007199254740994", Some("9007199254740994")),
            ("-100000000000000000", Some("-100000000000000000")),
            ("999999999999999872", Some("999999999999999872")),
            ("999999999999999871", None),
            ("1000000000000000000", None),
            ("-1000000000000000000", None),
            ("18446744073709551615", None),
            ("20000000000000000000", None),
            // Whole ones with a point are written without.
            ("1.0", Some("1")),
            ("-3.0", Some("-3")),
            ("9007199254740992.0", Some("9007199254740992")),
            ("9007199254740994.0", None),
            ("1e300", None),
            ("-1e300", None),
            ("1.5", Some("1.5")),
            ("0.123456789012345", Some("0.123456789012345")),
            ("0.1234567890123456", None),
            ("1234567890.12345", Some("1234567890.12345")),
            ("1e-300", Some("1e-300")),
        ] {
            let found = exact(&number(text)).ok().map(|it| it.to_string());
            assert_eq!(found.as_deref(), kept, "{text}");
        }
    }

    #[test]
    fn digits_are_those_between_outer_zeros_and_places_those_behind_the_point() {
        for (double, expected, places) in
            [(0.001, "1", 3), (-120.5, "1205", 1), (100.0, "1", 0), (10.25, "1025", 2), (0.0, "", 0)]
        {
            assert_eq!(digits(double), (expected.to_owned(), places), "{double}");
        }
    }

    #[test]
    fn bounds_can_be_counted_on_from() {
        let of = |value: Value, exclusive| bound(&value, exclusive);
        let whole = 9_007_199_254_740_992_i64;
        assert_eq!(of(json!(whole), false), Ok(whole.into()));
        assert!(of(json!(whole), true).is_err() && of(json!(-whole), true).is_err());
        assert_eq!(of(json!(1 - whole), true), Ok((1 - whole).into()));
        assert!(of(json!(1e-60), false).is_ok());
        assert!(of(json!(1e-61), false).is_err_and(|why| why.contains("at most 60 places")));
        assert!(of(json!(1.000_000_1), true).is_ok());
        assert_eq!(of(json!("5"), false), Err("must be a number, and is a string".to_owned()));
        assert!(
            of(json!(true), true).is_err_and(|why| why.contains("a boolean; the boolean of older drafts"))
        );
    }

    #[test]
    fn a_whole_bound_that_is_not_met_becomes_the_next_number() {
        for (text, least, expected) in [
            ("0", true, Some(1e-15)),
            ("0", false, Some(-1e-15)),
            ("3", true, Some(3f64.next_up())),
            ("-3", false, Some(-(3f64.next_up()))),
            // Only towards zero the library counts on by itself.
            ("-3", true, None),
            ("3", false, None),
            ("0.5", true, None),
            ("-0.5", false, None),
        ] {
            assert_eq!(
                inclusive(&number(text), least).and_then(|it| it.as_f64()),
                expected,
                "{text} {least}"
            );
        }
    }

    #[test]
    fn multiples_have_their_least_common_one() {
        let of = |coefficient, places| Multiple { coefficient, places };
        for (one, other, both) in [
            (of(6, 0), of(4, 0), Some(of(12, 0))),
            (of(7, 0), of(7, 0), Some(of(7, 0))),
            (of(25, 2), of(1, 1), Some(of(50, 2))),
            (of(1, 1), of(25, 2), Some(of(50, 2))),
            (of(3, 0), of(5, 1), Some(of(30, 1))),
            (of(65535, 0), of(65537, 0), Some(of(u32::MAX, 0))),
            (of(65536, 0), of(65536, 0), None),
            (of(1, 15), of(1, 0), None),
        ] {
            assert_eq!(one.with(other), both, "{one:?} {other:?}");
        }
    }

    #[test]
    fn divisors_are_digits_and_places() {
        for (value, coefficient, places) in [
            (json!(1), 1, 0),
            (json!(250), 250, 0),
            (json!(2.0), 2, 0),
            (json!(2.5), 25, 1),
            (json!(0.01), 1, 2),
            (json!(12.125), 12_125, 3),
            (json!(u32::MAX), u32::MAX, 0),
            (json!(0.001), 1, 3),
        ] {
            let found = multiple(&value).map(|(_, found)| found);
            assert_eq!(found, Ok(Multiple { coefficient, places }), "{value}");
        }
        for (value, why) in [
            (json!("1"), "must be a number above zero, and is a string"),
            (json!(0), "above zero, and is 0"),
            (json!(-1), "above zero, and is -1"),
            (json!(4_294_967_296_u64), "not kept exactly"),
            (json!(0.57), "not kept exactly"),
            (json!(1e-15), "not kept exactly"),
            (json!(1e-16), "not kept exactly"),
            (json!(1e300), "not kept exactly"),
        ] {
            let found = multiple(&value).expect_err(why);
            assert!(found.contains(why), "{value}: {found}");
        }
    }

    #[test]
    fn counts_are_whole_and_some_no_answer_reaches() {
        assert_eq!(count(&json!(5)), Ok(5));
        assert_eq!(count(&json!(5.0)), Ok(5));
        assert_eq!(count(&json!(u64::MAX)), Ok(u64::MAX));
        for bad in [json!(-1), json!(1.5), json!(-1.0), json!(1e300)] {
            assert!(count(&bad).is_err_and(|why| why.contains("not below zero")), "{bad}");
        }
        assert_eq!(count(&json!(null)), Err("must be a whole number, and is null".to_owned()));
        assert!(is_endless(1 << 31) && !is_endless((1 << 31) - 1));
    }

    #[test]
    fn a_constant_is_refused_at_the_number_that_is_not_kept() {
        let value = json!([1.0, {"a": "b", "c": [null, 2.5]}, true]);
        assert_eq!(constant(&value), Ok(json!([1, {"a": "b", "c": [null, 2.5]}, true])));
        let path = |value: Value| constant(&value).expect_err("one is not kept").0;
        assert_eq!(path(json!(1e300)), "");
        assert_eq!(path(json!([1, {"a": 2, "b": [3, 1e300]}])), "[1].b[1]");
    }

    #[test]
    fn kinds_have_their_articles() {
        let all = [json!(null), json!(true), json!(1), json!("a"), json!([]), json!({})];
        let kinds = ["null", "a boolean", "a number", "a string", "an array", "an object"];
        assert_eq!(all.each_ref().map(kind), kinds);
    }
}
