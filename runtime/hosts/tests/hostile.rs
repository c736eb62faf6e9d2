//! Messages with damage of several kinds at once: decoded or refused, and never with more memory than a small
//! multiple of their length. And steps that decode, and are none that follow: refused, without a panic.
//!
//! Planted, and caught here: a list's count is believed (`a_damaged_message_is_decoded_or_refused`); a mask's
//! runs are expanded before their words are counted (`a_step_of_anything_is_taken_or_refused`).

use monomorph_hosts::{
    Answer, Call, Done, Feed, Hello, Limits, Mask, Message, Place, Room, Row, RowAnswer, Run, SampledBy,
    SamplingBits, Slots, StepCall, Task, Want, decode, encode,
};
use monomorph_model::Sliding;
use monomorph_weights::hostile::{Counting, damaged, measured};
use proptest::prelude::*;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Most bytes that decoding claims for each of the message, and for none.
const FOR_EACH_BYTE: usize = 16;
const FOR_NONE: usize = 8 << 10;

fn sampled_by() -> impl Strategy<Value = SampledBy> {
    let pairs = || prop::collection::vec(any::<(u32, u32)>(), 0..4);
    let run = prop_oneof![
        any::<u32>().prop_map(Run::Nothing),
        (0u32..4).prop_map(Run::All),
        prop::collection::vec(any::<u32>(), 0..4).prop_map(Run::Words),
    ];
    let masks = prop::collection::vec(prop::collection::vec(run, 0..4).prop_map(Mask), 0..3);
    let bits = (any::<[u32; 9]>(), any::<u32>(), any::<u64>(), any::<Option<u8>>())
        .prop_map(|(reals, top_k, seed, top_logprobs)| SamplingBits { reals, top_k, seed, top_logprobs });
    (bits, pairs(), prop::collection::vec(pairs(), 0..3), masks)
        .prop_map(|(sampling, history, biases, masks)| SampledBy { sampling, history, biases, masks })
}

/// Small numbers, which may be in range, and others.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0u32..6, 1 => any::<u32>()]
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![number().prop_map(Place::Slot), number().prop_map(Place::Snapshot)]
}

fn row() -> impl Strategy<Value = Row> {
    let tokens =
        prop_oneof![Just(Feed::Sampled), prop::collection::vec(number(), 0..5).prop_map(Feed::Known)];
    let output = prop_oneof![
        Just(Want::None),
        Just(Want::Logits),
        (any::<u64>(), sampled_by()).prop_map(|(draw, by)| Want::Sample(draw, by))
    ];
    let position = prop_oneof![8 => 0u64..8, 1 => any::<u64>()];
    let begins = (number(), 0u64..4, position, any::<bool>());
    let table = prop::option::of((0u64..6, prop::collection::vec(number(), 0..5)));
    let rest = (
        number(),
        any::<bool>(),
        any::<Option<u32>>(),
        number(),
        prop::collection::vec(number(), 0..5),
        table,
    );
    (begins, tokens, rest, output).prop_map(
        |(
            (slot, generation, position, begins),
            tokens,
            (drafts, generated, following, kept, added, sliding),
            output,
        )| Row {
            slot,
            generation,
            position,
            begins,
            tokens,
            drafts,
            generated,
            following,
            kept,
            added,
            sliding,
            output,
        },
    )
}

/// A row that begins as it should, sampled by anything.
fn beginning() -> impl Strategy<Value = Row> {
    (row(), 0u32..4, prop::collection::vec(0u32..40, 1..5)).prop_map(|(row, slot, ids)| Row {
        slot,
        generation: 1,
        position: 0,
        begins: true,
        tokens: Feed::Known(ids),
        drafts: 0,
        following: None,
        kept: 0,
        added: vec![0, 1],
        sliding: Some((0, vec![2, 0])),
        ..row
    })
}

fn step() -> impl Strategy<Value = StepCall> {
    let row = prop_oneof![row(), beginning()];
    let copies = prop::collection::vec((place(), place()), 0..2);
    (copies, prop::collection::vec(any::<u32>(), 0..3), any::<bool>(), prop::collection::vec(row, 0..4))
        .prop_map(|(copies, offloaded, sampling_follows, rows)| StepCall {
            copies,
            offloaded,
            sampling_follows,
            rows,
        })
}

fn message() -> impl Strategy<Value = Message> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..40);
    let call = prop_oneof![
        step().prop_map(Call::Submit),
        prop::collection::vec(sampled_by(), 0..3).prop_map(Call::Sample),
        any::<u64>().prop_map(Call::Collect),
        (prop::collection::vec(any::<u32>(), 0..5), any::<u32>())
            .prop_map(|(blocks, to)| Call::Offload { blocks, to }),
        any::<u32>().prop_map(Call::ReadBlock),
        (any::<u32>(), bytes()).prop_map(|(block, bytes)| Call::WriteBlock(block, bytes)),
        any::<u32>().prop_map(Call::ReadSliding),
        (any::<u32>(), bytes()).prop_map(|(block, bytes)| Call::WriteSliding(block, bytes)),
        place().prop_map(Call::ReadState),
        (place(), bytes()).prop_map(|(place, bytes)| Call::WriteState(place, bytes)),
    ];
    let ids = || prop::collection::vec(any::<u32>(), 0..5);
    let row = prop_oneof![
        Just(RowAnswer::None),
        any::<u32>().prop_map(RowAnswer::Sampled),
        (ids(), ids()).prop_map(|(sampled, drafts)| RowAnswer::Verified(sampled, drafts)),
        any::<u64>().prop_map(RowAnswer::Logits),
        Just(RowAnswer::Lost),
    ];
    let answer = prop_oneof![
        prop::collection::vec(row, 0..4).prop_map(Answer::Collected),
        Just(Answer::Offloaded(Ok(()))),
        "[a-zé]{0,9}".prop_map(|why| Answer::Offloaded(Err(why))),
        bytes().prop_map(Answer::Bytes),
    ];
    let room = || {
        any::<[u64; 6]>().prop_map(|[blocks, sliding, sequences, snapshots, places, group]| Room {
            blocks,
            sliding,
            sequences,
            snapshots,
            places,
            group,
        })
    };
    let hello = ("[a-zé]{0,9}", any::<u32>(), any::<Option<u64>>()).prop_map(|(plan, ranks, blocks)| Hello {
        plan,
        ranks,
        blocks,
        ..Hello::default()
    });
    prop_oneof![
        2 => hello.prop_map(Message::Hello),
        1 => room().prop_map(|room| Message::Do(Task::Load(room))),
        1 => room().prop_map(|room| Message::Do(Task::Serve(room))),
        1 => room().prop_map(|room| Message::Done(Done::Load(room))),
        1 => bytes().prop_map(|name| Message::Do(Task::Join(name))),
        1 => prop::sample::select(vec![Task::Plan, Task::Identify, Task::Sum, Task::Record, Task::Canary])
            .prop_map(Message::Do),
        1 => room().prop_map(|room| Message::Done(Done::Plan(room))),
        1 => ids().prop_map(|ids| Message::Done(Done::Canary(ids))),
        1 => (bytes(), any::<u64>()).prop_map(|(name, sum)| Message::Done(
            if sum % 2 == 0 { Done::Sum(sum) } else { Done::Identify(name) }
        )),
        1 => prop::sample::select(vec![Done::Join, Done::Record]).prop_map(Message::Done),
        1 => any::<(u64, u64)>().prop_map(|(loaded, total)| Message::Progress(loaded, total)),
        12 => (any::<u64>(), call).prop_map(|(number, call)| Message::Command(number, call)),
        4 => (any::<u64>(), answer).prop_map(|(number, answer)| Message::Answer(number, answer)),
        1 => Just(Message::Heartbeat),
        1 => any::<Option<u8>>().prop_map(|why| Message::End(why.map(|why| why.to_string()))),
    ]
}

/// Of layers with a sliding window.
const WINDOW: Sliding = Sliding { window: 3, block_tokens: 2 };

const LIMITS: Limits = Limits {
    sequences: 4,
    snapshots: 2,
    blocks: 5,
    sliding: Some((WINDOW, 3)),
    block_tokens: 2,
    group: 2,
    vocabulary: 40,
    step_sequences: 3,
    step_tokens: 12,
};

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_message_comes_back_from_its_bytes(message in message()) {
        prop_assert_eq!(decode(&encode(&message)), Ok(message));
    }

    #[test]
    fn a_damaged_message_is_decoded_or_refused(
        message in message(),
        damage in prop::collection::vec(any::<[u32; 3]>(), 1..5),
    ) {
        let bytes = damaged(&encode(&message), &damage);
        let (decoded, claimed) = measured(|| decode(&bytes));
        prop_assert!(claimed <= FOR_NONE + FOR_EACH_BYTE * bytes.len(), "{claimed} bytes for {}", bytes.len());
        if let Ok(decoded) = decoded {
            prop_assert_eq!(decode(&encode(&decoded)), Ok(decoded));
        }
    }

    #[test]
    fn a_step_of_anything_is_taken_or_refused(steps in prop::collection::vec(step(), 1..6)) {
        let mut slots = Slots::new(LIMITS);
        for step in steps {
            let (taken, claimed) = measured(|| slots.receive(&step));
            prop_assert!(claimed < 1 << 16, "{claimed} bytes");
            let Ok(taken) = taken else { break };
            prop_assert_eq!(taken.sliding.len(), taken.sequences.len());
            for (row, table) in taken.sequences.iter().zip(&taken.sliding) {
                prop_assert!(table.first <= WINDOW.first(row.position));
                prop_assert!(table.blocks.iter().all(|block| block.0 < 3));
                let end = row.position + row.tokens.len();
                prop_assert!(end <= LIMITS.block_tokens * row.blocks.len());
                prop_assert!(end <= LIMITS.block_tokens * (table.first + table.blocks.len()));
                let most = LIMITS.blocks + LIMITS.group * taken.offloaded.len();
                prop_assert!(row.blocks.iter().all(|block| (block.0 as usize) < most));
            }
        }
    }
}

/// Counts that the message is far too short for, at every place where four bytes may be one.
#[test]
fn no_count_claims_memory() {
    let by = SampledBy {
        history: vec![(1, 2); 3],
        biases: vec![vec![(3, 4); 2]; 2],
        masks: vec![Mask(vec![Run::All(2), Run::Words(vec![7; 3])])],
        ..SampledBy::default()
    };
    let row = Row {
        slot: 1,
        generation: 1,
        position: 0,
        begins: true,
        tokens: Feed::Known(vec![1, 2, 3]),
        drafts: 0,
        generated: false,
        following: None,
        kept: 0,
        added: vec![0, 1],
        sliding: Some((0, vec![0, 1])),
        output: Want::Sample(0, by),
    };
    let step = StepCall { rows: vec![row; 2], offloaded: vec![1, 2], ..StepCall::default() };
    let whole = encode(&Message::Command(1, Call::Submit(step)));
    for at in 0..whole.len() - 4 {
        for count in [1u32 << 16, 1 << 24, 1 << 31, u32::MAX] {
            let mut bytes = whole.clone();
            bytes[at..at + 4].copy_from_slice(&count.to_le_bytes());
            let (_, claimed) = measured(|| decode(&bytes));
            assert!(
                claimed <= FOR_NONE + FOR_EACH_BYTE * bytes.len(),
                "{count} at {at}: {claimed} bytes claimed"
            );
        }
    }
}
