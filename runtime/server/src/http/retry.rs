//! Estimates for `Retry-After`.

use std::num::NonZero;
use std::time::Instant;

/// Longest wait in seconds; longer estimates are unreliable.
const LONGEST: f64 = 60.0;

/// Seconds to wait after a shortage of host memory.
pub(crate) const SHORTAGE_SECONDS: NonZero<u32> = NonZero::new(5).unwrap();

/// Seconds until a queue of `waiting` requests is served at the recent rate of departures; 1 where that is
/// not known.
pub(crate) fn seconds(waiting: usize, departures_per_second: Option<f64>) -> NonZero<u32> {
    let estimate = departures_per_second.map_or(1.0, |rate| (waiting as f64 / rate).clamp(1.0, LONGEST));
    NonZero::new(estimate.ceil() as u32).unwrap_or(NonZero::<u32>::MIN)
}

/// Seconds until a moment, at least 1.
pub(crate) fn until(moment: Instant) -> NonZero<u32> {
    let left = moment.saturating_duration_since(Instant::now()).as_secs_f64().ceil();
    NonZero::new(left as u32).unwrap_or(NonZero::<u32>::MIN)
}

#[cfg(test)]
mod tests {
    use super::seconds;

    #[test]
    fn the_wait_is_that_of_the_queue() {
        for (waiting, rate, wait) in [
            (256, None, 1),
            (256, Some(1000.0), 1),
            (256, Some(10.0), 26),
            (256, Some(0.01), 60),
            (256, Some(0.0), 60),
            (0, Some(0.0), 1),
        ] {
            assert_eq!(seconds(waiting, rate).get(), wait, "{waiting} {rate:?}");
        }
    }
}
