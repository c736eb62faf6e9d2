//! Numbers in schemas: what is written under them is valid, read to the last digit, or they are refused by
//! name.
//!
//! Validators read numbers as doubles, or in 64 bits. What stands here beyond that is compared digit by
//! digit.

use crate::support::{END, Random, draw, grammars, next, text};
use monomorph_grammar::Source;
use serde_json::Value;

/// Numbers that bounds and constants are made of, as they are written.
const NUMBERS: [&str; 46] = [
    "0",
    "-0",
    "1",
    "-1",
    "1.0",
    "2",
    "3.5",
    "-3.5",
    "0.5",
    "0.25",
    "0.1",
    "-0.1",
    "0.3",
    "9",
    "10",
    "99",
    "100",
    "101",
    "1e2",
    "1.5e3",
    "12345",
    "-12345",
    "0.001",
    "1e-7",
    "1e-15",
    "2.5e-9",
    "123456789.125",
    "-1e10",
    "4294967295",
    "4294967296",
    "9007199254740991",
    "9007199254740992",
    "9007199254740993",
    "-9007199254740993",
    "9007199254740994",
    "10000000000000001",
    "100000000000000000",
    "123456789012345678",
    "9223372036854775807",
    "-9223372036854775808",
    "10000000000000000001",
    "18446744073709551615",
    "20000000000000000001",
    "1e300",
    "0.1234567890123456",
    "1e-300",
];

/// A number that a text says: its digits, and where the point stands behind the first; without zeros around
/// them.
fn decimal(written: &str) -> (bool, Vec<u8>, i64) {
    let (negative, written) = written.strip_prefix('-').map_or((false, written), |rest| (true, rest));
    let (mantissa, exponent) = written.split_once(['e', 'E']).unwrap_or((written, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let zeros = digits.len() - digits.trim_start_matches('0').len();
    let point = whole.len() as i64 + exponent.parse::<i64>().expect("an exponent") - zeros as i64;
    let digits = digits.trim_matches('0').as_bytes().to_vec();
    if digits.is_empty() { (false, digits, 0) } else { (negative, digits, point) }
}

/// How one compares to another, exactly.
fn compare(one: &str, other: &str) -> std::cmp::Ordering {
    let ((minus, digits, point), (other_minus, other_digits, other_point)) = (decimal(one), decimal(other));
    let sign = |minus: bool, digits: &[u8]| i32::from(!digits.is_empty()) * if minus { -1 } else { 1 };
    let signs = sign(minus, &digits).cmp(&sign(other_minus, &other_digits));
    let magnitudes = (point, &digits).cmp(&(other_point, &other_digits));
    signs.then(if minus { magnitudes.reverse() } else { magnitudes })
}

/// Whether a text is whole.
fn is_whole(written: &str) -> bool {
    let (_, digits, point) = decimal(written);
    digits.len() as i64 <= point || digits.is_empty()
}

/// Whether a number is what keywords ask for, exactly.
fn fits(schema: &[(&str, &str)], written: &str) -> bool {
    schema.iter().all(|(keyword, value)| match *keyword {
        "type" => *value != "\"integer\"" || is_whole(written),
        "const" => compare(written, value).is_eq(),
        "minimum" => compare(written, value).is_ge(),
        "maximum" => compare(written, value).is_le(),
        "exclusiveMinimum" => compare(written, value).is_gt(),
        "exclusiveMaximum" => compare(written, value).is_lt(),
        other => unreachable!("{other}"),
    })
}

#[test]
fn what_is_written_is_within_its_bounds_to_the_last_digit() {
    let (mut taken, mut refused, mut wrong) = (0, 0, Vec::new());
    for seed in 1..1500u64 {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let number = |random: &mut Random| NUMBERS[random.below(NUMBERS.len())];
        let mut said = vec![("type", ["\"integer\"", "\"number\""][random.below(2)])];
        match random.below(4) {
            0 => said.push(("const", number(&mut random))),
            _ => {
                let least = ["minimum", "exclusiveMinimum"][random.below(2)];
                let most = ["maximum", "exclusiveMaximum"][random.below(2)];
                let (one, other) = (number(&mut random), number(&mut random));
                let (low, high) = if compare(one, other).is_le() { (one, other) } else { (other, one) };
                match random.below(3) {
                    0 => said.push((least, low)),
                    1 => said.push((most, high)),
                    _ => said.extend([(least, low), (most, high)]),
                }
            }
        }
        let members: Vec<String> =
            said.iter().map(|(keyword, value)| format!("\"{keyword}\": {value}")).collect();
        let schema: Value = serde_json::from_str(&format!("{{{}}}", members.join(", "))).expect("a schema");
        let constraint = match grammars().compile(&Source::JsonSchema(schema.clone())) {
            Ok(constraint) => constraint,
            Err(error) => {
                refused += 1;
                // Where nothing fits, there is no keyword to blame.
                if error.path.is_empty() && !error.message.contains("no answer") {
                    wrong.push(format!("{schema}: {error}"));
                }
                continue;
            }
        };
        taken += 1;
        for _ in 0..4 {
            let answer = text(&draw(&mut constraint.clone(), &mut random));
            if !fits(&said, &answer) {
                wrong.push(format!("{schema}: {answer}"));
            }
        }
        // What stands at the bounds and near them, where it may be written.
        for near in NUMBERS {
            let mut way = constraint.clone();
            let allowed =
                near.bytes().all(|byte| next(&mut way).allows(byte.into()) && way.take(byte.into()).is_ok());
            if allowed && next(&mut way).allows(END) && !fits(&said, near) {
                wrong.push(format!("{schema} allows {near}"));
            }
        }
    }
    println!("{taken} taken, {refused} refused");
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong[..wrong.len().min(40)].join("\n"));
}
