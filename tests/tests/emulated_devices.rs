//! The emulated card with two devices (tests/emulated), before any server uses both: what their kernels tell
//! each other, in which order hosts may come, and what is refused.
//!
//! Planted, one at a time, and caught here: no demand for work that nobody waits for; a device that does not
//! give way; memory of other devices that is not guarded while kernels run.

use monomorph_tests::emulated::Devices;

/// Runs a check, which must end with this code and have said all of these words.
fn ends(devices: &Devices, check: &str, code: i32, words: &[&str]) {
    let output = devices.run(check);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{check}: {}\n{said}", output.status);
    for word in words {
        assert!(said.contains(word), "{check} says nothing of `{word}`:\n{said}");
    }
}

#[test]
fn kernels_of_two_devices_exchange_values_whoever_comes_first() {
    let devices = Devices::build();
    for check in [
        "values_are_exchanged_in_both_orders",
        "graphs_exchange",
        "launches_one_by_one_exchange",
        "who_asks_together_with_others_gives_way",
        "work_nobody_waits_for_is_done_for_a_peer",
        "a_peer_that_waits_for_another_stream_comes",
    ] {
        ends(&devices, check, 0, &[]);
    }
}

#[test]
fn streams_of_a_graph_that_do_not_wait_for_each_other_race() {
    let said = [
        "cuStreamEndCapture: the first stream has not waited for all that was launched beside it",
        "cuStreamWaitEvent: the event was recorded before the capture",
    ];
    ends(&Devices::build(), "a_race_within_a_graph_shows_in_one_of_two", 0, &said);
}

#[test]
fn memory_of_another_device_needs_a_right() {
    let devices = Devices::build();
    ends(&devices, "copies_need_rights", 0, &["device 0 has no right to memory of device 1"]);
    ends(&devices, "kernels_need_rights", 86, &["device 0, kernel exchange", "is memory of device 1"]);
}

#[test]
fn contexts_are_kept_apart() {
    let devices = Devices::build();
    let mixed = [
        "cuEventRecord: the event is device 0's and the stream device 1's",
        "cuLaunchKernelEx: the kernel is device 1's and the stream device 0's",
        "the context that the thread has entered device 0's",
        "cuGraphLaunch: the graph is device 0's and the stream device 1's",
        "the thread has entered no context",
    ];
    ends(&devices, "handles_of_two_contexts_are_not_mixed", 0, &mixed);
    ends(&devices, "each_device_has_its_own_memory", 0, &[]);
    ends(&devices, "a_released_context_takes_all_with_it", 0, &["of the stream, of device 0, was released"]);
}

#[test]
fn a_peer_that_never_comes_is_named() {
    let devices = Devices::build();
    let stuck =
        ["device 0: a stream has done 2 of 5 operations, and kernel exchange is stuck", "device 1: all"];
    ends(&devices, "a_peer_that_never_comes_is_reported", 86, &stuck);
    let together = ["device 1: a stream", "kernel exchange_together is stuck", "device 0: all"];
    ends(&devices, "it_is_reported_of_threads_that_ask_together", 86, &together);
    let trapped = ["device 0, kernel exchange", "a trap behind a flag for the host"];
    ends(&devices, "who_gives_up_by_the_clock_breaks_its_context", 0, &trapped);
}
