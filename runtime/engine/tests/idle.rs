//! An engine with nothing to do uses no processor. In its own process, so that there is one forward thread.

#![cfg(target_os = "linux")]

use monomorph_engine::scripted::{Script, Scripted, Small};
use monomorph_engine::{EngineOptions, Request, start};
use std::time::{Duration, Instant};

/// Nanoseconds that the forward thread has run, as the kernel counts them.
fn forward_time() -> u64 {
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        let read = |file: &str| std::fs::read_to_string(task.join(file)).unwrap_or_default();
        if read("comm").trim() == "forward" {
            return read("schedstat").split(' ').next().unwrap().parse().unwrap();
        }
    }
    panic!("there is no forward thread");
}

#[test]
fn an_idle_engine_sleeps_and_wakes_at_once() {
    let options = EngineOptions::new(16, 100, 4);
    let engine = start(Scripted::<Small>::new(Script::default()), options).unwrap();
    let ask = || {
        let mut generation = engine.submit(Request::new(vec![5], 8)).unwrap();
        while generation.blocking_recv().is_some() {}
    };
    ask();
    let before = forward_time();
    assert!(before > 0);
    std::thread::sleep(Duration::from_millis(300));
    let idle = forward_time() - before;
    assert!(idle < 5_000_000, "{idle} ns of 300 ms while idle");
    ask();
    assert!(forward_time() > before);

    // The quickest of many wake-ups: other processes can only add, so there are more until one is quick.
    let wake = |_| {
        std::thread::sleep(Duration::from_millis(2));
        let asked = Instant::now();
        let mut generation = engine.submit(Request::new(vec![5], 1)).unwrap();
        generation.blocking_recv().unwrap();
        asked.elapsed()
    };
    let mut quickest = Duration::MAX;
    for round in 0..2000 {
        quickest = quickest.min(wake(round));
        if round >= 50 && quickest < Duration::from_millis(1) {
            break;
        }
    }
    println!("first token {quickest:?} after submission to a sleeping engine");
    assert!(quickest < Duration::from_millis(1), "{quickest:?}");
}
