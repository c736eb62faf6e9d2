//! Several scripted ranks as one model.

mod scripted;

use monomorph_model::{
    BlockId, FeatureSlot, Grid, LoadError, Model, OffloadRoom, OffloadSlot, Output, Patches, RowOutput,
    SequenceStep, Shown, SlidingId, Slot, StatePlace, Step, Ticket, Tokens, device_fault,
};
use monomorph_world::World;
use scripted::{BLOCK, Defect, RANKS, SLIDING, SLIDING_BLOCKS, SPEC, STATE, Scenario, Scripted};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a fault may take to be noticed.
const BOUND: Duration = Duration::from_secs(5);

fn step(number: u32, rows: usize) -> Step {
    let row = |row: usize| SequenceStep {
        slot: Slot(row as u32),
        position: number as usize,
        begins: false,
        tokens: Tokens::Known(vec![number]),
        drafts: 0,
        generated: false,
        following: None,
        blocks: vec![BlockId(row as u32)],
        output: Output::greedy(u64::from(number)),
    };
    Step { sequences: (0..rows).map(row).collect(), ..Step::default() }
}

/// All kinds of calls, with two steps in flight; the rows of each step.
fn session(world: &mut World<Scripted>, steps: u32) -> Vec<Vec<RowOutput>> {
    let mut outputs = Vec::new();
    let mut block: Vec<u8> = (0..(RANKS * BLOCK) as u8).collect();
    let mut state: Vec<u8> = (100..100 + (RANKS * STATE) as u8).collect();
    world.write_block(BlockId(3), &block);
    world.write_state(StatePlace::Slot(Slot(1)), &state);
    assert_eq!(world.submit(&step(0, 6)), Ticket(1));
    for number in 1..steps {
        world.submit(&step(number, 6));
        world.sample(&step(number, 6));
        outputs.push(world.collect(Ticket(u64::from(number))).rows);
    }
    outputs.push(world.collect(Ticket(u64::from(steps))).rows);
    block.fill(0);
    state.fill(0);
    world.read_block(BlockId(3), &mut block);
    world.read_state(StatePlace::Slot(Slot(1)), &mut state);
    assert!(block.iter().copied().eq(0..(RANKS * BLOCK) as u8), "{block:?}");
    assert!(state.iter().copied().eq(100..100 + (RANKS * STATE) as u8), "{state:?}");
    let sliding: Vec<u8> = (50..50 + (RANKS * SLIDING) as u8).collect();
    let mut read = vec![0; sliding.len()];
    world.write_sliding(SlidingId(2), &sliding);
    world.read_sliding(SlidingId(2), &mut read);
    assert_eq!(read, sliding);
    assert_eq!(world.offload_blocks(&[BlockId(1), BlockId(2)], OffloadSlot(4)), Ok(()));
    outputs
}

/// Layers of the tower over an image, as a step.
#[test]
fn every_rank_sees_an_image_between_steps() {
    let (scenario, mut world) = Scenario { polls: true, ..Scenario::new(None) }.world();
    let pixels = [0.5, 0.25];
    let patches = Patches { pixels: &pixels, grid: Grid { frames: 1, rows: 2, columns: 1 } };
    let images = [Shown { patches, slot: FeatureSlot(3) }];
    assert_eq!(world.submit(&step(0, 2)), Ticket(1));
    assert_eq!(world.see(&images, 0..2), Ticket(2));
    assert_eq!(world.collect(Ticket(1)).rows.len(), 2);
    assert_eq!(world.see(&images, 2..3), Ticket(3));
    assert!(world.collect(Ticket(2)).rows.is_empty() && world.collect(Ticket(3)).rows.is_empty());
    let log = scenario.log.lock().unwrap();
    assert!(
        log[0][1].contains("[0.5, 0.25]") && log[0][1].ends_with("FeatureSlot(3) }] 0..2"),
        "{:?}",
        log[0]
    );
    assert!(log.iter().all(|of_rank| *of_rank == log[0]));
}

/// What the unwinding of `work` says, and that it came in time.
fn fault(work: impl FnOnce()) -> String {
    let begun = Instant::now();
    let panic = catch_unwind(AssertUnwindSafe(work)).expect_err("a fault");
    assert!(begun.elapsed() < BOUND, "{:?}", begun.elapsed());
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).expect("words")
}

#[test]
fn all_ranks_are_given_the_same_calls_in_the_same_order() {
    let (scenario, mut world) = Scenario { delay: 400, polls: true, ..Scenario::new(None) }.world();
    let outputs = session(&mut world, 60);
    for meter in world.meters() {
        let counts = meter.read();
        assert_eq!(counts.steps, 60, "{counts:?}");
        assert!(!counts.launching.is_zero() && !counts.waiting.is_zero(), "{counts:?}");
    }
    assert_eq!(world.meters().len(), RANKS);
    let log = scenario.log.lock().unwrap();
    assert_eq!(log[0].len(), 60 + 59 + 60 + 7);
    assert!(log.iter().all(|of_rank| *of_rank == log[0]));
    let RowOutput::Sampled(first) = &outputs[0][0] else { panic!("{:?}", outputs[0]) };
    let RowOutput::Sampled(last) = &outputs[59][0] else { panic!("{:?}", outputs[59]) };
    assert!(first.id != last.id && outputs.iter().all(|rows| rows.len() == 6));
}

#[test]
fn sizes_are_those_of_all_ranks_and_threads_end_with_the_world() {
    let spec = World::<Scripted>::SPEC;
    assert_eq!((spec.block_bytes, spec.state_bytes), (RANKS * BLOCK, (RANKS * STATE) as u64));
    assert_eq!(World::<Scripted>::SLIDING.expect("a window").block_bytes, RANKS * SLIDING);
    assert_eq!((spec.weight_bytes, spec.scratch_bytes), (300, 60));
    assert_eq!((spec.hidden, spec.vocabulary), (SPEC.hidden, SPEC.vocabulary));
    assert_eq!((World::<Scripted>::RANKS, World::<Scripted>::STEPS_IN_FLIGHT), (RANKS, 2));
    let (scenario, world) = Scenario::new(None).world();
    for options in scenario.loads.lock().unwrap().iter() {
        let bytes = options.offload.as_ref().map(|offload| offload.bytes);
        assert_eq!((options.threads, bytes), (2, Some(100)), "a rank's part");
    }
    drop(world);
    assert_eq!(*scenario.dropped.lock().unwrap(), RANKS);
}

#[test]
fn what_all_ranks_have_room_for_is_agreed_on() {
    let rooms = [[9, 3, 2], [8, 5, 1], [11, 4, 7]];
    let (_, world) = Scenario { rooms, ..Scenario::new(None) }.world();
    assert_eq!((world.blocks(), world.sequences(), world.snapshots()), (8, 3, 1));
    assert_eq!(world.sliding_blocks(), SLIDING_BLOCKS);
    assert_eq!(world.offload(), Some(OffloadRoom { places: 5, group: 2 }));
    let (_, world) = Scenario::new(Some((1, Defect::Claims))).load();
    let words = world.err().expect("they do not agree").to_string();
    assert!(
        words.contains("rank 1 has room for (9, 5, 4, 2") && words.contains("rank 0 for (8, 5, 4, 2"),
        "{words}"
    );
}

#[test]
fn the_error_of_a_rank_that_does_not_load_is_the_one_reported() {
    for rank in 0..RANKS {
        let (scenario, world) = Scenario::new(Some((rank, Defect::DoesNotLoad))).load();
        let error = world.err().expect("a rank does not load");
        assert_eq!(error.to_string(), format!("rank {rank} (GPU {}): it is planted", [5, 0, 2][rank]));
        let LoadError::Rank { error, .. } = error else { panic!("{error:?}") };
        assert!(matches!(*error, LoadError::Hardware(_)));
        assert_eq!(*scenario.dropped.lock().unwrap(), 0);
        let (_, world) = Scenario::new(Some((rank, Defect::PanicsInLoad))).load();
        let words = world.err().expect("a rank panics").to_string();
        assert!(
            words.starts_with(&format!("rank {rank} (GPU ")) && words.ends_with("planted while loading"),
            "{words}"
        );
    }
}

/// A server says that it is ready behind its model's `load`.
#[test]
fn nothing_is_loaded_before_every_rank_is() {
    for rank in 0..RANKS {
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock().expect("nobody panics");
        let planted = Some((rank, Defect::LoadsLate(Arc::clone(&gate))));
        let loading = std::thread::spawn(|| Scenario::new(planted).load().1.map(drop));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!loading.is_finished(), "rank {rank} is not ready");
        drop(closed);
        loading.join().expect("no panic").expect("every rank loads");
    }
}

#[test]
fn gpus_are_as_many_as_ranks_and_each_another() {
    for ordinals in [vec![0, 1], vec![0, 1, 2, 3], vec![0, 1, 0]] {
        let options = monomorph_model::LoadOptions { ordinals, ..scripted::options(0) };
        let words = options.ordinals(RANKS).expect_err("not for three").to_string();
        assert!(words.contains("runs on 3 GPUs, each another"), "{words}");
    }
    let options = monomorph_model::LoadOptions { ordinals: Vec::new(), ..scripted::options(0) };
    assert_eq!(options.ordinals(RANKS).expect("the first ones"), [0, 1, 2]);
}

#[test]
fn a_rank_that_dies_in_any_call_is_a_fault_in_time() {
    // Two writes; submit; submit, sample, collect; collect; two reads; offload.
    for call in 1..=10 {
        for rank in 0..RANKS {
            let planted = Some((rank, Defect::Panics(call)));
            let (_, mut world) = Scenario { polls: true, ..Scenario::new(planted) }.world();
            let words = fault(|| drop(session(&mut world, 2)));
            assert!(words.starts_with(&format!("rank {rank} failed: ")), "{words}");
            assert!(words.ends_with(&format!("planted in call {call}")), "{words}");
            // Nothing is computed any more.
            assert_eq!(fault(|| _ = world.submit(&step(9, 1))), words);
            assert_eq!(fault(|| drop(world.collect(Ticket(1)))), words);
            assert_eq!(fault(|| world.read_block(BlockId(3), &mut [0; RANKS * BLOCK])), words);
            assert!(device_fault().is_some());
        }
    }
}

#[test]
fn a_step_that_others_wait_for_in_vain_is_not_waited_for() {
    // The devices of ranks 0 and 2 poll for what rank 1 was to send, and would for ever.
    let (_, mut world) = Scenario { polls: true, ..Scenario::new(Some((1, Defect::Vanishes))) }.world();
    world.submit(&step(0, 3));
    let words = fault(|| drop(world.collect(Ticket(1))));
    assert!(
        words.starts_with("rank 1 failed: collect: ") && words.ends_with("planted in collect"),
        "{words}"
    );
    let begun = Instant::now();
    drop(world);
    assert!(begun.elapsed() < BOUND, "two threads never end");
}

#[test]
fn ranks_that_come_to_different_ids_are_a_fault_that_names_them() {
    let at = |defect| {
        let (_, mut world) = Scenario::new(Some((2, defect))).world();
        fault(|| drop(session(&mut world, 8)))
    };
    let words = at(Defect::Samples(5, 3));
    assert!(words.starts_with("ranks differ in step 5: rank 2 sampled id "), "{words}");
    assert!(words.contains(" in row 3, and rank 0 "), "{words}");
    let words = at(Defect::Samples(5, 2));
    assert!(words.starts_with("ranks differ in step 5: rank 2 sampled ids ["), "{words}");
    let words = at(Defect::Accepts(1, 5));
    assert!(words.contains("step 1: rank 2 sampled ids [") && words.contains(", 7] in row 5"), "{words}");
    let words = at(Defect::Drafts(8, 2));
    assert!(words.contains("step 8: rank 2 drafted ids [") && words.contains("in row 2"), "{words}");
}

#[test]
fn a_rank_that_skips_or_swaps_steps_differs_from_the_others() {
    for rank in 0..RANKS {
        // Calls 3, 4 and 7 are steps 1, 2 and 3.
        for (call, seen) in [(3, 1), (4, 2), (7, 3)] {
            let (_, mut world) = Scenario::new(Some((rank, Defect::Skips(call)))).world();
            let words = fault(|| drop(session(&mut world, 8)));
            assert!(words.starts_with(&format!("ranks differ in step {seen}: ")), "{words}");
        }
        let (_, mut world) = Scenario::new(Some((rank, Defect::Swaps(3)))).world();
        let words = fault(|| drop(session(&mut world, 8)));
        assert!(words.starts_with("ranks differ in step 3: "), "{words}");
    }
}

#[test]
fn a_row_that_one_rank_lost_is_lost_and_a_full_disk_is_an_error() {
    let (_, mut world) = Scenario::new(Some((1, Defect::Loses(4, 3)))).world();
    let outputs = session(&mut world, 8);
    for (at, rows) in outputs.iter().enumerate() {
        let lost = rows.iter().position(|row| matches!(row, RowOutput::Lost(_)));
        assert_eq!(lost, (at == 3).then_some(3), "step {}", at + 1);
    }
    let (_, mut world) = Scenario::new(Some((2, Defect::DiskFull))).world();
    let outcome = world.offload_blocks(&[BlockId(1)], OffloadSlot(0));
    assert_eq!(outcome, Err("rank 2: the disk is full".to_owned()));
}

#[test]
fn bytes_of_another_size_are_refused_before_any_rank_sees_them() {
    let (scenario, mut world) = Scenario::new(None).world();
    let words = fault(|| world.write_block(BlockId(0), &[0; RANKS * BLOCK - 1]));
    assert!(words.contains("the bytes of all ranks"), "{words}");
    assert!(scenario.log.lock().unwrap().iter().all(Vec::is_empty));
    session(&mut world, 3);
}
