//! The server as a process of its own, over real connections, around the scripted model.
//!
//! This binary is both: run with a verb of the server as its first argument it *is* the server, of the model that it is
//! run as.

#[path = "http/client.rs"]
mod client;
#[path = "http/drafts.rs"]
mod drafts;
#[path = "http/lifecycle.rs"]
mod lifecycle;
#[path = "http/process.rs"]
mod process;
#[path = "http/refusals.rs"]
mod refusals;
mod scripted;
#[path = "http/streams.rs"]
mod streams;
#[path = "http/verbs.rs"]
mod verbs;

use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;

fn main() -> ExitCode {
    let verb = std::env::args().nth(1).unwrap_or_default();
    if ["serve", "generate", "logits", "bench", "info"].contains(&verb.as_str()) {
        return match std::env::args().next().as_deref() {
            Some(process::DRAFTS) => monomorph_server::main::<drafts::EchoDrafts>(),
            Some(process::FORCED) => monomorph_server::main::<drafts::EchoForced>(),
            _ => monomorph_server::main::<scripted::Echo>(),
        };
    }
    let tests: &[(&str, fn())] = &[
        ("refusals::every_refusal_is_clear_and_leaves_the_server_serving", refusals::every_refusal),
        ("refusals::bodies_over_the_limit", refusals::bodies_over_the_limit),
        ("refusals::paths_and_methods", refusals::paths_and_methods),
        ("refusals::harmless_fields_are_taken", refusals::harmless_fields),
        ("refusals::full_queue", refusals::full_queue),
        ("streams::whole_answers", streams::whole_answers),
        ("streams::prefixes", streams::prefixes),
        ("streams::chat_events", streams::chat_events),
        ("streams::text_events", streams::text_events),
        ("streams::characters_stay_whole", streams::characters_stay_whole),
        ("streams::stop_strings", streams::stop_strings),
        ("streams::logprobs", streams::logprobs),
        ("streams::concurrent_requests", streams::concurrent_requests),
        ("lifecycle::vanished_clients_give_their_blocks_back", lifecycle::vanished_clients),
        ("lifecycle::drain_finishes_running_answers", lifecycle::drain_finishes),
        ("lifecycle::drain_deadline_cuts_endless_answers", lifecycle::drain_deadline),
        ("lifecycle::second_signal_leaves_at_once", lifecycle::second_signal),
        ("lifecycle::a_dead_engine_is_reported", lifecycle::dead_engine),
        ("lifecycle::a_failed_device_ends_the_process", lifecycle::device_fault),
        ("lifecycle::made_up_weights_are_marked", lifecycle::dummy_weights),
        ("lifecycle::failed_starts_say_why", lifecycle::failed_starts),
        ("lifecycle::models_health_and_page", lifecycle::models_health_and_page),
        ("verbs::generate_streams_to_stdout", verbs::generate),
        ("verbs::logits_writes_safetensors", verbs::logits),
        ("verbs::logits_refuses_bad_lists", verbs::logits_refusals),
        ("verbs::bench_reports", verbs::bench),
        ("verbs::info_reports", verbs::info),
        ("drafts::answers_are_those_without_drafts", drafts::answers),
        ("drafts::the_context_leaves_room_for_drafts", drafts::context),
        ("drafts::bench_reports_accepted_drafts", drafts::bench),
        ("drafts::forced_acceptance_is_marked", drafts::forced),
    ];
    let trial = |&(name, test): &(&str, fn())| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    libtest_mimic::run(&Arguments::from_args(), tests.iter().map(trial).collect()).exit_code()
}
