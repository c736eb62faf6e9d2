//! The limit of open files, checked and raised before it can be hit.

use crate::process::out;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open files beside connections: terminals, event queues, weights being read, a dump, a swap file.
const OWN: u64 = 40;
/// Fewest connections that make a server.
const FEWEST: u64 = 8;

/// What to do about the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    /// The limit is high enough.
    Enough,
    /// It can be raised to this many files, which is enough.
    Raise(u64),
    /// It can only be this: some connections will wait.
    Few(u64),
    /// It can only be this: too few to serve.
    None(u64),
}

fn decide(limit: Rlimit, connections: u64) -> Claim {
    let wanted = OWN.saturating_add(connections);
    match (limit.current, limit.maximum) {
        (None, _) => Claim::Enough,
        (Some(current), _) if current >= wanted => Claim::Enough,
        (_, None) => Claim::Raise(wanted),
        (_, Some(maximum)) if maximum >= wanted => Claim::Raise(wanted),
        (_, Some(maximum)) if maximum < OWN + FEWEST.min(connections) => Claim::None(maximum),
        (_, Some(maximum)) => Claim::Few(maximum),
    }
}

/// Raises the limit for so many connections, as far as the system allows.
///
/// # Errors
/// When even a few connections would not fit.
pub(crate) fn claim(connections: usize) -> Result<(), String> {
    let (limit, connections) = (getrlimit(Resource::Nofile), connections as u64);
    let claim = decide(limit, connections);
    let most = match claim {
        Claim::Enough => return Ok(()),
        Claim::Raise(most) | Claim::Few(most) => {
            let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit });
            if raised.is_err() { limit.current.unwrap_or(most) } else { most }
        }
        Claim::None(most) => most,
    };
    let wanted = OWN.saturating_add(connections);
    if most < OWN + FEWEST.min(connections) {
        return Err(format!(
            "this process may have {most} files open, and a server with --max-connections {connections} wants {wanted}: \
             raise the limit (`ulimit -n {wanted}`)"
        ));
    }
    if most < wanted {
        out::say(format_args!(
            "warning: this process may have {most} files open, which is enough for {} of --max-connections {connections}: others wait; \
             raise the limit (`ulimit -n {wanted}`)",
            most - OWN
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_enough_raised_short_or_none() {
        let limit = |current, maximum| Rlimit { current, maximum };
        for (current, maximum, connections, wanted) in [
            (None, None, 1024, Claim::Enough),
            (Some(OWN + 1024), None, 1024, Claim::Enough),
            (Some(OWN + 1023), None, 1024, Claim::Raise(OWN + 1024)),
            (Some(8), Some(1 << 20), 1024, Claim::Raise(OWN + 1024)),
            (Some(8), Some(OWN + 1024), 1024, Claim::Raise(OWN + 1024)),
            (Some(8), Some(OWN + 1023), 1024, Claim::Few(OWN + 1023)),
            (Some(8), Some(OWN + FEWEST), 1024, Claim::Few(OWN + FEWEST)),
            (Some(8), Some(OWN + FEWEST - 1), 1024, Claim::None(OWN + FEWEST - 1)),
            (Some(8), Some(8), 1024, Claim::None(8)),
            (Some(OWN + 1), Some(OWN + 1), 1, Claim::Enough),
            (Some(OWN), Some(OWN), 1, Claim::None(OWN)),
        ] {
            assert_eq!(decide(limit(current, maximum), connections), wanted, "{current:?} {maximum:?}");
        }
    }
}
