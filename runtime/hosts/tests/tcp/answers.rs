//! A world answers as its model does alone, and ends when asked to.

use crate::support::*;
use monomorph_engine::scripted::{
    Drafting, Pipelined, Recurrent, Script, Scripted, Shape, Small, Verifying, Windowed,
};
use monomorph_engine::{
    EngineError, EngineOptions, Event, OffloadShare, PrefixOptions, Request, Stats, SwapOptions, start,
};
use monomorph_hosts::Ended;
use monomorph_model::{
    BlockId, Model, OffloadRoom, Output, RowOutput, SequenceStep, Slot, Step, Tokens as Fed,
};
use monomorph_sampling::{Sampling, TokenBias, TokenMask};
use std::time::{Duration, Instant};

type Two = Pipelined<Small, 2>;

/// The same requests to a model alone and to a world of three of it, whose workers have more blocks.
fn same<S: Shape>(script: &Script, options: &EngineOptions, head_first: bool, count: usize) -> Stats {
    let requests = requests(count);
    let (alone, _) = answers(Scripted::<S>::new(script.clone()), options.clone(), &requests);
    let more = |blocks| Script { blocks: script.blocks + blocks, ..script.clone() };
    let (lead, workers, _) = world::<S>([script.clone(), more(7), more(0)], head_first);
    assert_eq!((lead.blocks(), lead.sequences()), (script.blocks, S::SPEC.step_sequences));
    let (together, stats) = answers(lead, options.clone(), &requests);
    assert_eq!(together, alone);
    for worker in &workers {
        assert_eq!(ended(worker), Ended::Stopped);
    }
    stats
}

fn roomy(blocks: usize) -> (Script, EngineOptions) {
    (Script { blocks, right_drafts: 0.7, ..Script::default() }, EngineOptions::new(blocks, 4096, 256))
}

pub fn with_two_steps_in_flight() {
    let (script, options) = roomy(256);
    same::<Two>(&script, &options, true, 48);
    same::<Two>(&script, &options, false, 48);
}

pub fn crowded() {
    let (script, options) = roomy(14);
    assert!(same::<Two>(&script, &options, true, 32).preemptions > 0);
}

pub fn with_drafts() {
    let (script, options) = roomy(40);
    assert!(same::<Drafting<Small, 2>>(&script, &options, true, 32).drafts_accepted > 0);
    same::<Verifying<Small, 3>>(&script, &options, false, 32);
}

pub fn swapped() {
    let (script, options) = roomy(14);
    let swap = SwapOptions { host_bytes: 64 << 20, always: true, ..SwapOptions::default() };
    let prefix = PrefixOptions { enabled: false, ..PrefixOptions::default() };
    let options = EngineOptions { swap, prefix, ..options };
    assert!(same::<Two>(&script, &options, true, 32).swap.bytes_back > 0);
    assert!(same::<Recurrent<Two>>(&script, &options, false, 32).swap.bytes_back > 0);
}

/// Blocks of layers with a sliding window are given back, and sequences that have some are swapped.
pub fn with_a_sliding_window() {
    let (script, options) = roomy(14);
    let script = Script { sliding: 14, ..script };
    let swap = SwapOptions { host_bytes: 64 << 20, always: true, ..SwapOptions::default() };
    let options = EngineOptions { swap, ..options };
    assert!(same::<Windowed<Two, 24>>(&script, &options, true, 32).swap.bytes_back > 0);
    same::<Windowed<Two, 24>>(&script, &options, false, 32);
}

pub fn with_blocks_on_disk() {
    let room = OffloadRoom { places: 60, group: 2 };
    let script = Script { blocks: 12, offload: Some(room), ..Script::default() };
    let offload = Some(OffloadShare { room, resident: 6 });
    let options = EngineOptions { offload, ..EngineOptions::new(12, 4096, 256) };
    assert!(same::<Two>(&script, &options, true, 12).blocks_offloaded > 0);
}

/// What only some requests have, call by call: masks, biases, and sampling that follows.
pub fn masked() {
    let (lead, workers, _) = world::<Two>([(); 3].map(|()| Script::default()), true);
    let (mut lead, mut alone) = (lead, Scripted::<Two>::new(Script::default()));
    let vocabulary = Small::SPEC.vocabulary;
    let mask = TokenMask::of(vocabulary, (0..vocabulary as u32).filter(|id| id % 1000 == 7 || *id > 40_000));
    let sample = |masks: Vec<TokenMask>, biases: Vec<TokenBias>| Output::Sample {
        sampling: Sampling { temperature: 1.0, seed: 5, ..Sampling::default() },
        draw: 0,
        history: Vec::new(),
        biases: if biases.is_empty() { Vec::new() } else { vec![biases.into()] },
        masks,
    };
    let row = |slot, output| SequenceStep {
        slot: Slot(slot),
        position: 0,
        begins: true,
        tokens: Fed::Known(vec![9, slot, 4]),
        drafts: 0,
        generated: false,
        following: None,
        blocks: vec![BlockId(slot)],
        output,
    };
    let bias = vec![TokenBias { id: 12, bias: 80.5 }];
    let step = Step {
        sequences: vec![
            row(0, sample(vec![mask.clone()], vec![])),
            row(1, Output::None),
            row(2, sample(vec![], bias.clone())),
        ],
        ..Step::default()
    };
    let mut both = |step: &Step, later: Option<&Step>| {
        let tickets = (lead.submit(step), alone.submit(step));
        if let Some(later) = later {
            lead.sample(later);
            alone.sample(later);
        }
        let (here, there) = (lead.collect(tickets.0), alone.collect(tickets.1));
        let ids = |rows: &[RowOutput]| -> Vec<Option<u32>> {
            let id = |row: &RowOutput| match row {
                RowOutput::Sampled(sampled) => Some(sampled.id),
                _ => None,
            };
            rows.iter().map(id).collect()
        };
        assert_eq!(ids(&here.rows), ids(&there.rows));
        ids(&here.rows)
    };
    let ids = both(&step, None);
    assert!(mask.allows(ids[0].unwrap()) && ids[2] == Some(12), "{ids:?}");
    let empty = Step { sampling_follows: true, ..step.clone() };
    let bare = |row: &SequenceStep| SequenceStep {
        slot: Slot(row.slot.0 + 3),
        blocks: vec![BlockId(row.slot.0 + 3)],
        output: if matches!(row.output, Output::None) { Output::None } else { sample(vec![], vec![]) },
        ..row.clone()
    };
    let empty = Step { sequences: empty.sequences.iter().map(bare).collect(), ..empty };
    let mut later = empty.clone();
    later.sequences[0].output = sample(vec![mask.clone()], bias);
    let ids = both(&empty, Some(&later));
    assert!(mask.allows(ids[0].unwrap()), "{ids:?}");
    drop(lead);
    workers.iter().for_each(|worker| assert_eq!(ended(worker), Ended::Stopped));
}

/// A worker whose arithmetic goes wrong is found at its first token, and no client gets one from there on.
pub fn of_another_opinion() {
    let (lead, workers, controls) = world::<Two>([(); 3].map(|()| Script::default()), true);
    let engine = start(lead, EngineOptions::new(256, 4096, 16)).unwrap();
    assert!(matches!(answer(engine.submit(Request::new(vec![5; 9], 20)).unwrap()).1, Event::Finished(_)));
    controls[2].poison(monomorph_engine::scripted::Poison::WrongTokens);
    let (ids, end) = answer(engine.submit(Request::new(vec![6; 9], 20)).unwrap());
    assert!(ids.is_empty(), "{ids:?}");
    match end {
        Event::Failed(EngineError::Fault(why)) => {
            assert!(
                why.contains("rank 2 answers command") && why.contains("otherwise than the head"),
                "{why}"
            );
        }
        end => panic!("{end:?}"),
    }
    for worker in &workers {
        let ended = ended(worker);
        assert!(matches!(&ended, Ended::Broken(why) if why.contains("rank 2 answers command")), "{ended:?}");
    }
}

/// A worker whose device hangs lives on and says so; the deadline of a step ends all.
pub fn of_a_device_that_hangs() {
    let (lead, workers, controls) = world::<Two>([(); 3].map(|()| Script::default()), true);
    let engine = start(lead, EngineOptions::new(256, 4096, 16)).unwrap();
    controls[1].hold();
    let began = Instant::now();
    let (_, end) = answer(engine.submit(Request::new(vec![5; 9], 20)).unwrap());
    let took = began.elapsed();
    let late = |why: &str| why.contains("rank 1 has not answered a command for 3 s");
    assert!(matches!(&end, Event::Failed(EngineError::Fault(why)) if late(why)), "{end:?}");
    assert!((DEADLINES.step..DEADLINES.step + Duration::from_secs(2)).contains(&took), "{took:?}");
    assert!(matches!(ended(&workers[1]), Ended::Broken(why) if late(&why)));
    controls[1].release();
    assert!(matches!(ended(&workers[0]), Ended::Broken(why) if late(&why)));
}

/// A head whose own model panics takes its workers along, who know why.
pub fn of_a_head_that_panics() {
    let (lead, workers, controls) = world::<Two>([(); 3].map(|()| Script::default()), true);
    let engine = start(lead, EngineOptions::new(256, 4096, 16)).unwrap();
    controls[0].panic_next();
    let (_, end) = answer(engine.submit(Request::new(vec![5; 9], 20)).unwrap());
    assert!(matches!(&end, Event::Failed(EngineError::Fault(why)) if why.contains("commanded to panic")));
    for worker in &workers {
        let ended = ended(worker);
        assert!(
            matches!(&ended, Ended::Broken(why) if why.contains("the head's model panicked")),
            "{ended:?}"
        );
    }
}

/// So does a worker's.
pub fn of_a_worker_that_panics() {
    let (lead, workers, controls) = world::<Two>([(); 3].map(|()| Script::default()), true);
    let engine = start(lead, EngineOptions::new(256, 4096, 16)).unwrap();
    controls[1].panic_next();
    let (_, end) = answer(engine.submit(Request::new(vec![5; 9], 20)).unwrap());
    let why = "rank 1 ended: its thread panicked";
    assert!(matches!(&end, Event::Failed(EngineError::Fault(it)) if it.contains(why)), "{end:?}");
    assert!(matches!(ended(&workers[1]), Ended::Broken(it) if it.contains(why)));
}
