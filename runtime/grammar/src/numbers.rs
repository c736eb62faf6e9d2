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
    if times != places || read != f64::from(coefficient) {
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
