//! Head and workers over real connections, in threads and as processes, around scripted models.
//!
//! This binary is both: run with `head` or `worker` as its first argument it *is* one.

mod answers;
mod killed;
mod meeting;
mod shares;
mod support;
mod tampered;

use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [verb, rest @ ..] = &arguments[..]
        && matches!(verb.as_str(), "head" | "worker")
    {
        return killed::main(verb, rest);
    }
    let tests: &[(&str, fn())] = &[
        ("answers::with_two_steps_in_flight_are_those_of_a_model_alone", answers::with_two_steps_in_flight),
        ("answers::with_too_few_blocks_are_those_of_a_model_alone", answers::crowded),
        ("answers::with_drafts_are_those_of_a_model_alone", answers::with_drafts),
        ("answers::of_swapped_sequences_are_those_of_a_model_alone", answers::swapped),
        ("answers::with_a_sliding_window_are_those_of_a_model_alone", answers::with_a_sliding_window),
        ("answers::with_blocks_on_disk_are_those_of_a_model_alone", answers::with_blocks_on_disk),
        ("answers::with_masks_and_biases_are_those_of_a_model_alone", answers::masked),
        ("answers::of_a_rank_of_another_opinion_reach_nobody", answers::of_another_opinion),
        ("answers::of_a_device_that_hangs_end_with_a_deadline", answers::of_a_device_that_hangs),
        ("answers::of_a_head_that_panics_end_everywhere", answers::of_a_head_that_panics),
        ("answers::of_a_worker_that_panics_end_everywhere", answers::of_a_worker_that_panics),
        ("meeting::strangers_are_turned_away_and_the_head_waits_on", meeting::strangers),
        ("meeting::a_head_without_the_token_is_refused", meeting::impostor),
        ("meeting::what_must_be_equal_is_refused_by_name", meeting::unequal),
        ("meeting::nobody_waits_for_ever", meeting::nobody),
        ("meeting::a_wrong_sum_names_the_rank", meeting::failing),
        ("shares::of_blocks_and_states_come_back_in_order", shares::come_back),
        ("tampered::commands_in_another_order_are_refused", tampered::swapped),
        ("tampered::commands_that_are_missing_are_noticed", tampered::skipped),
        ("tampered::ids_that_were_changed_reach_nobody", tampered::changed),
        ("killed::at_any_moment_a_worker_takes_all_along", killed::at_any_moment),
        ("killed::a_head_takes_its_workers_along", killed::head),
        ("killed::silence_is_a_death", killed::silence),
    ];
    let trials = tests.iter().map(|&(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}
