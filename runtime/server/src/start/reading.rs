//! What is said of how weights were read.

use crate::process::out;
use monomorph_weights::WeightsRead;
use serde_json::{Value, json};
use std::time::Duration;

/// A line about a load that took so long, packing included; nothing of weights that were not read.
pub(crate) fn describe(reading: &WeightsRead, took: Duration) -> Option<String> {
    let WeightsRead { direct, cached, plain, why_plain } = reading;
    let bytes = reading.bytes();
    if bytes == 0 {
        return None;
    }
    let speed = bytes as f64 / 1e9 / took.as_secs_f64().max(1e-3);
    let how = match why_plain {
        Some(why) if *direct + *cached == 0 => format!("through the system's cache: {why}"),
        why => {
            let short = why.as_ref().map_or(String::new(), |why| format!("; not all directly: {why}"));
            format!(
                "{} directly, {} of what the system had cached, {} of small tensors{short}",
                out::bytes(*direct),
                out::bytes(*cached),
                out::bytes(*plain)
            )
        }
    };
    let seconds = took.as_secs_f64();
    Some(format!("weights: {} read and packed in {seconds:.2} s ({speed:.2} GB/s), {how}", out::bytes(bytes)))
}

/// The same as `/info` has it.
pub(crate) fn facts(reading: &WeightsRead) -> Value {
    let WeightsRead { direct, cached, plain, why_plain } = reading;
    json!({
        "direct_bytes": direct, "cached_bytes": cached, "plain_bytes": plain, "why_plain": why_plain,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// To be caught: the reason left out where some bytes were read directly.
    #[test]
    fn a_reason_is_said_whenever_there_is_one() {
        let second = Duration::from_secs(2);
        let why_plain = Some("no io_uring here".to_owned());
        assert_eq!(describe(&WeightsRead::default(), second), None);
        let plain =
            WeightsRead { plain: 3_000_000_000, why_plain: why_plain.clone(), ..WeightsRead::default() };
        let words = describe(&plain, second).expect("something was read");
        assert!(words.ends_with("(1.50 GB/s), through the system's cache: no io_uring here"), "{words}");
        let fallen = WeightsRead { direct: 1_000_000_000, why_plain, ..WeightsRead::default() };
        let words = describe(&fallen, second).expect("something was read");
        assert!(words.contains("1.00 GB directly") && words.contains("no io_uring here"), "{words}");
        let direct = WeightsRead { direct: 1, cached: 2, plain: 3, why_plain: None };
        assert_eq!(facts(&direct)["cached_bytes"], 2);
        assert_eq!(facts(&plain)["why_plain"], "no io_uring here");
    }
}
