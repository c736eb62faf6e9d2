//! The server as a process of its own, over real connections, around the scripted model.
//!
//! This binary is both: run with a verb of the server as its first argument it *is* the server, of the model
//! that it is run as.

#[path = "http/access.rs"]
mod access;
#[path = "http/anthropic.rs"]
mod anthropic;
#[path = "http/calls.rs"]
mod calls;
#[path = "http/client.rs"]
mod client;
#[path = "http/clock.rs"]
mod clock;
#[path = "http/compaction.rs"]
mod compaction;
#[path = "http/corpora.rs"]
mod corpora;
#[path = "http/deltas.rs"]
mod deltas;
#[path = "http/drafts.rs"]
mod drafts;
#[path = "http/drains.rs"]
mod drains;
#[path = "http/dumps.rs"]
mod dumps;
#[path = "http/errors.rs"]
mod errors;
#[path = "http/faults.rs"]
mod faults;
#[path = "http/formats.rs"]
mod formats;
#[path = "http/fuzz.rs"]
mod fuzz;
#[path = "http/grammars.rs"]
mod grammars;
#[path = "http/growth.rs"]
mod growth;
#[path = "../../vision/tests/support/hostile.rs"]
mod hostile;
#[path = "http/images.rs"]
mod images;
#[path = "http/kept.rs"]
mod kept;
#[path = "http/lifecycle.rs"]
mod lifecycle;
#[path = "http/memory.rs"]
mod memory;
#[path = "http/process.rs"]
mod process;
#[path = "http/prompts.rs"]
mod prompts;
#[path = "http/ranks.rs"]
mod ranks;
#[path = "http/reasoning.rs"]
mod reasoning;
#[path = "http/refusals.rs"]
mod refusals;
#[path = "http/responses.rs"]
mod responses;
#[path = "http/sampled.rs"]
mod sampled;
mod scripted;
#[path = "http/storm.rs"]
mod storm;
#[path = "http/streams.rs"]
mod streams;
#[path = "http/supervised.rs"]
mod supervised;
#[path = "http/tokens.rs"]
mod tokens;
#[path = "http/tools.rs"]
mod tools;
#[path = "http/verbs.rs"]
mod verbs;
#[path = "http/watching.rs"]
mod watching;
#[path = "http/weights.rs"]
mod weights;
#[path = "http/worlds.rs"]
mod worlds;

use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;

fn main() -> ExitCode {
    let verb = std::env::args().nth(1).unwrap_or_default();
    // A server runs itself under its own name to try grammars, whatever its model.
    if verb == "try-grammars" {
        return monomorph_server::main::<scripted::Echo>();
    }
    let verbs =
        ["serve", "generate", "logits", "bench", "read", "info", "completions", "manual", "--version", "-V"];
    if verbs.contains(&verb.as_str()) {
        let name = std::env::args().next().unwrap_or_default();
        if let Some((tools, reasoning)) =
            name.strip_prefix(process::TALK).and_then(|formats| formats.split_once(':'))
        {
            return scripted::talk::main(scripted::talk::CONTEXT, tools, reasoning, std::env::args());
        }
        return match Some(name.as_str()) {
            Some(process::DRAFTS) => monomorph_server::main::<drafts::EchoDrafts>(),
            Some(process::KNOWN) => monomorph_server::main::<weights::EchoKnown>(),
            Some(process::OTHERS) => monomorph_server::main::<weights::EchoOthers>(),
            Some(process::RANKS) => monomorph_server::main::<ranks::EchoRanks>(),
            Some(scripted::seeing::NAME) => monomorph_server::main::<scripted::seeing::Sees>(),
            Some(process::FORCED) => monomorph_server::main::<drafts::EchoForced>(),
            _ => monomorph_server::main::<scripted::Echo>(),
        };
    }
    let tests: &[(&str, fn())] = &[
        ("worlds::of_three_processes_answer_as_one", worlds::answers),
        ("worlds::that_lose_one_end_and_start_again", worlds::deaths),
        ("worlds::that_differ_are_refused_by_name", worlds::refusals),
        ("ranks::are_ready_when_all_are", ranks::ready),
        ("ranks::that_do_not_load_are_named", ranks::broken),
        ("ranks::that_are_all_wrong_are_found_out", ranks::wrong),
        ("ranks::that_differ_end_the_process", ranks::differ),
        ("refusals::every_refusal_is_clear_and_leaves_the_server_serving", refusals::every_refusal),
        ("refusals::bodies_over_the_limit", refusals::bodies_over_the_limit),
        ("refusals::paths_and_methods", refusals::paths_and_methods),
        ("refusals::harmless_fields_are_taken", refusals::harmless_fields),
        ("sampled::biases_and_repetition_change_answers", sampled::biased),
        ("sampled::the_best_of_several_are_the_likeliest_a_token", sampled::best),
        ("sampled::temperatures_follow_the_entropy", sampled::adaptive),
        ("sampled::prompts_are_echoed", sampled::echoed),
        ("sampled::prompts_are_echoed_with_their_log_probabilities", sampled::scored),
        ("sampled::ids_are_told", sampled::ids),
        ("prompts::several_are_answered_as_each_is_alone", prompts::answers),
        ("prompts::several_are_answered_at_one_time", prompts::interleaved),
        ("prompts::who_hangs_up_takes_all_along", prompts::hang_ups),
        ("prompts::one_that_cannot_be_answered_is_named", prompts::refusals),
        ("prompts::what_stands_between_two_texts_is_filled_in", prompts::fill_in_between),
        ("errors::every_message_says_what_and_where_and_what_would_be_right", errors::table_of_refusals),
        ("refusals::full_queue", refusals::full_queue),
        ("formats::answers_are_held_to_them", formats::answers),
        ("formats::so_are_many_at_once", formats::at_once),
        ("formats::so_are_those_of_the_other_apis", formats::in_other_words),
        ("formats::so_is_what_follows_reasoning", formats::behind_reasoning),
        ("formats::what_is_not_followed_is_refused_by_name", formats::refusals),
        ("grammars::on_both_sides_of_every_bound", grammars::on_both_sides),
        ("grammars::that_killed_a_server_once", grammars::that_killed),
        ("grammars::are_kept_as_far_as_their_memory_goes", grammars::kept),
        ("grammars::have_so_long_to_compile", grammars::deadline),
        ("grammars::that_outgrow_their_bounds_are_at_fault", grammars::outgrown),
        ("grammars::nobody_waits_for_are_ended", grammars::ended),
        ("grammars::by_chance", grammars::by_chance),
        ("grammars::by_chance_for_ten_minutes", grammars::by_chance_for_ten_minutes),
        ("fuzz::damaged_bodies_are_answered", fuzz::bodies),
        ("fuzz::deep_bodies_are_answered", fuzz::depth),
        ("growth::texts_of_any_kind_and_length", growth::long_texts),
        ("growth::many_of_whatever_there_may_be_many_of", growth::many_of_them),
        ("growth::heads_and_queries_of_any_kind", growth::odd_heads),
        ("growth::responses_take_what_there_is_for_them", growth::kept_responses),
        ("images::are_seen_alike_through_every_api", images::every_api),
        ("images::are_known_by_what_is_in_them", images::known),
        ("images::take_as_many_tokens_as_is_asked_for", images::details),
        ("images::stand_in_results_of_tools_and_in_later_turns", images::conversations),
        ("images::that_find_no_memory_are_refused", images::memory),
        ("images::a_server_says_what_it_takes", images::facts),
        ("images::that_are_none_are_refused_by_name", images::refusals),
        ("images::hostile_files_are_refused_or_seen", images::hostile_files),
        ("images::bench_times_towers_and_answers", images::bench),
        ("access::every_route_wants_a_key_but_health_and_metrics", access::keys),
        ("access::keys_that_are_none_or_open_to_others_are_named", access::warnings),
        ("access::pages_of_other_origins_ask_if_they_may", access::origins),
        ("access::pages_of_elsewhere_are_refused", access::strangers),
        ("access::bodies_say_that_they_are_json", access::kinds),
        ("access::connections_are_so_many_and_no_more", access::connections),
        ("access::heads_are_bounded_and_refused_with_words", access::heads),
        ("streams::whole_answers", streams::whole_answers),
        ("streams::prefixes", streams::prefixes),
        ("streams::several_answers_to_one_prompt", streams::choices),
        ("streams::chat_events", streams::chat_events),
        ("streams::text_events", streams::text_events),
        ("streams::characters_stay_whole", streams::characters_stay_whole),
        ("streams::stop_strings", streams::stop_strings),
        ("streams::logprobs", streams::logprobs),
        ("streams::concurrent_requests", streams::concurrent_requests),
        ("lifecycle::vanished_clients_give_their_blocks_back", lifecycle::vanished_clients),
        ("memory::a_machine_with_too_little_is_told_so", memory::too_little),
        ("memory::fewer_sequences_run_where_that_is_asked", memory::few_sequences),
        ("memory::a_warm_up_prompt_is_found", memory::warm_up),
        ("dumps::every_request_and_answer_is_a_line", dumps::everything),
        ("dumps::a_file_that_cannot_be_written_is_refused", dumps::refused),
        ("dumps::a_full_disk_costs_lines_that_are_counted", dumps::full),
        ("dumps::so_does_one_without_any_room", dumps::none),
        ("drains::running_answers_are_finished", drains::drain_finishes),
        ("drains::the_deadline_cuts_endless_answers", drains::drain_deadline),
        ("drains::a_second_signal_leaves_at_once", drains::second_signal),
        ("drains::under_load_no_accepted_answer_is_lost", drains::under_load),
        ("drains::a_step_that_hangs_does_not_hold_them_up", drains::while_a_step_hangs),
        ("drains::a_thread_that_never_ends_does_not_either", drains::while_a_thread_never_ends),
        ("drains::nor_does_all_that_can_be_stuck", drains::while_everything_is_stuck),
        ("drains::other_signals_do_not_kill", drains::other_signals),
        ("drains::nohup_is_heeded", drains::nohup),
        ("faults::a_step_that_hangs_is_seen_and_may_come_back", faults::hang),
        ("faults::a_frozen_process_goes_on", faults::freeze),
        ("faults::a_killed_process_leaves_nobody_waiting", faults::kill),
        ("faults::wrong_answers_are_found_out", faults::poison),
        ("faults::a_dead_engine_is_reported", faults::dead_engine),
        ("faults::a_failed_device_ends_the_process", faults::device_fault),
        ("faults::answers_that_take_too_long_end", faults::request_timeout),
        ("supervised::servers_answer_again_soon_after_every_fault", supervised::every_fault),
        ("supervised::so_are_those_whose_answers_are_wrong", supervised::poison),
        ("supervised::they_do_after_a_hundred", supervised::a_hundred_faults),
        ("supervised::who_waits_is_told_to_ask_again", supervised::clients_are_told),
        ("supervised::one_that_is_silent_is_killed", supervised::silence),
        ("supervised::they_end_when_they_are_told_to", supervised::ends),
        ("supervised::a_start_that_fails_is_said_once", supervised::failed_starts),
        ("supervised::systemd_hears_what_it_asks_for", supervised::systemd),
        ("kept::prefixes_are_found_by_the_next_process", kept::restart),
        ("kept::so_is_what_killed_processes_wrote", kept::kills),
        ("kept::damage_costs_what_it_hits", kept::damage),
        ("kept::files_of_others_are_not_used", kept::others),
        ("kept::files_stay_within_their_size", kept::bounded),
        ("kept::a_supervised_server_finds_them_after_a_crash", kept::supervised),
        ("weights::known_answers_are_asked_for_first", weights::known),
        ("weights::other_answers_are_refused", weights::others),
        ("weights::digests_are_compared", weights::digests),
        ("weights::fast_loading_is_said_and_can_be_switched_off", weights::fast_load),
        ("weights::they_are_found_where_fetch_puts_them", weights::default_place),
        ("weights::they_are_had_by_the_name_of_a_repository", weights::of_a_hub),
        ("storm::a_thousand_hangups_leave_nothing_behind", storm::hangups),
        ("tokens::text_becomes_tokens_and_text_again", tokens::there_and_back),
        ("tokens::a_server_says_what_it_is", tokens::info),
        ("tokens::what_a_request_does_not_say_is_the_servers", tokens::defaults),
        ("corpora::answers_of_all_formats_are_alike_whole_and_streamed", corpora::answers),
        ("compaction::every_conversation_that_overflows_is_answered", compaction::overflowing),
        ("compaction::what_was_kept_is_found_in_the_prefix_cache", compaction::growing),
        ("compaction::a_request_may_ask_for_it_or_not", compaction::asked),
        ("tools::conversations_reach_the_template_and_come_back", tools::round_trip),
        ("tools::calls_are_as_many_as_are_wanted", tools::how_many),
        ("tools::several_answers_have_calls_of_their_own", tools::choices),
        ("tools::stop_strings_are_of_the_text", tools::stops),
        ("tools::what_is_no_tool_is_named", tools::refusals),
        ("calls::required_calls_are_calls_and_valid", calls::required),
        ("calls::what_is_called_in_free_text_is_held_to_its_schema", calls::auto),
        ("calls::beside_a_format_there_is_one_or_the_other", calls::beside_a_format),
        ("calls::so_they_are_in_the_other_apis", calls::in_other_words),
        ("calls::grammars_are_kept_for_the_next_turn", calls::kept),
        ("calls::what_is_not_held_to_is_told_or_refused", calls::refusals),
        ("anthropic::answers_are_alike_whole_and_streamed", anthropic::answers),
        ("anthropic::conversations_are_those_of_the_other_vendor", anthropic::conversations),
        ("anthropic::omitted_thinking_comes_back_in_its_signature", anthropic::omitted_thinking),
        ("anthropic::tools_are_loaded_where_a_result_refers_to_them", anthropic::deferred_tools),
        ("anthropic::old_results_and_reasoning_go_where_a_request_says", anthropic::edits),
        ("anthropic::refusals_are_in_its_words", anthropic::refusals),
        ("anthropic::streams_that_break_say_so", anthropic::broken_streams),
        ("responses::answers_are_alike_whole_and_streamed", responses::answers),
        ("responses::conversations_go_on_from_what_is_kept", responses::conversations),
        ("responses::that_nobody_waits_for_are_ended_by_their_ids", responses::background),
        ("responses::what_is_not_done_is_named", responses::refusals),
        ("reasoning::it_is_told_apart_and_counted", reasoning::apart),
        ("reasoning::it_is_switched", reasoning::switches),
        ("reasoning::forms_are_those_of_flags", reasoning::forms),
        ("reasoning::a_budget_closes_it", reasoning::budgets),
        ("watching::health_while_loading", watching::loading),
        ("watching::metrics", watching::metrics),
        ("watching::dashboards", watching::dashboards),
        ("watching::request_ids", watching::request_ids),
        ("watching::logs", watching::logs),
        ("lifecycle::made_up_weights_are_marked", lifecycle::dummy_weights),
        ("lifecycle::failed_starts_say_why", lifecycle::failed_starts),
        ("lifecycle::few_files_may_be_open", lifecycle::few_descriptors),
        ("lifecycle::models_health_and_page", lifecycle::models_health_and_page),
        ("verbs::generate_streams_to_stdout", verbs::generate),
        ("verbs::generate_takes_its_text_where_people_write_it", verbs::generate_text),
        ("verbs::logits_writes_safetensors", verbs::logits),
        ("verbs::logits_refuses_bad_lists", verbs::logits_refusals),
        ("verbs::bench_reports", verbs::bench),
        ("verbs::info_reports", verbs::info),
        ("verbs::version_tells_builds_apart", verbs::version),
        ("verbs::scripts_and_pages_know_the_command_line", verbs::manual),
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
        .with_ignored_flag(name.ends_with("_for_ten_minutes") || name.ends_with("_after_a_hundred"))
    };
    libtest_mimic::run(&Arguments::from_args(), tests.iter().map(trial).collect()).exit_code()
}
