//! Whether tokens come in time by the wall clock: a long answer beside endless prompts.
//!
//! Planted, and caught here: a scheduler that ignores deadlines; a loop that does not report how long a token
//! is due; one that does not record step times.

use crate::support::*;
use monomorph_engine::scripted::Script;
use monomorph_engine::{EngineOptions, Policy, Request, ScheduleOptions, Stats};
use std::time::Duration;

at_both_depths!(prompts_leave_tokens_in_time);

/// A step full of prompts takes 63 ms and one of an eighth of them 15, where 40 are allowed.
fn stats<const STEPS: usize>(policy: Policy) -> Stats {
    let (step_time, token_time) = (Duration::from_millis(7), Duration::from_micros(875));
    let script = Script { step_time, token_time, ..Script::default() };
    let schedule = ScheduleOptions { policy, tbt: Duration::from_millis(40), prefill_tokens: 0 };
    let options = EngineOptions { schedule, ..EngineOptions::new(256, 4096, 64) };
    let (engine, _) = engine::<STEPS>(script, options);
    let mut long = engine.submit(Request::new(vec![5], 30)).unwrap();
    long.blocking_recv();
    let prompts: Vec<_> = (6..12).map(|id| engine.submit(Request::new(vec![id; 600], 1)).unwrap()).collect();
    assert_eq!(answer(long).0.len(), 29);
    let stats = engine.stats();
    drop(prompts);
    println!(
        "{}: {} late, {} cut, {} steps",
        policy.name(),
        stats.late_tokens,
        stats.prompts_cut,
        stats.steps
    );
    stats
}

fn prompts_leave_tokens_in_time<const STEPS: usize>() {
    let (fifo, slai) = (stats::<STEPS>(Policy::Fifo), stats::<STEPS>(Policy::Slai));
    assert!(fifo.late_tokens > 20, "steps are full of prompts: {fifo:?}");
    assert_eq!(fifo.prompts_cut, 0);
    // Other work on the machine delays a token now and then, too.
    assert!(slai.late_tokens < fifo.late_tokens / 2, "{slai:?}");
    assert!(slai.prompts_cut > 10, "{slai:?}");
}
