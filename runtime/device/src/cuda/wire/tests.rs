mod images;

use super::*;
use monomorph_abi::sliding::{Sliding, SlidingStarts};
use monomorph_model::{BlockId, SequenceStep, SlidingId, SlidingTable, Slot};
use monomorph_sampling::{Sampling, TokenBias, TokenMask, TokenUse};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn limits() -> StepLimits {
    StepLimits {
        tokens: 8,
        sequences: 3,
        vocabulary: 10,
        context: 64,
        block_tokens: 16,
        blocks: 4,
        slides: None,
        vision: None,
        offloaded: 0,
        drafts: 0,
        drafted: 0,
        ahead: 0,
    }
}

fn fill(buffer: &mut StepBuffer, sequences: &[SequenceStep]) {
    let decodes = sequences.iter().all(|sequence| sequence.tokens.len() == 1);
    buffer.fill(&sequences.iter().collect::<Vec<_>>(), &[], decodes);
}

fn sequence(slot: u32, position: usize, tokens: Tokens, blocks: &[u32], output: Output) -> SequenceStep {
    let blocks = blocks.iter().map(|block| BlockId(*block)).collect();
    SequenceStep {
        drafts: 0,
        generated: false,
        following: None,
        begins: position == 0,
        slot: Slot(slot),
        position,
        tokens,
        blocks,
        output,
    }
}

fn known(ids: &[u32]) -> Tokens {
    Tokens::Known(ids.to_vec())
}

fn sample(top_logprobs: Option<u8>, history: Vec<TokenUse>) -> Output {
    let sampling = Sampling { top_k: 7, seed: 9, top_logprobs, ..Sampling::default() };
    Output::Sample { sampling, draw: 5, history, biases: Vec::new(), masks: Vec::new() }
}

#[test]
fn a_prompt_beside_a_decoding_sequence() {
    let mut buffer = StepBuffer::new(limits());
    let history = vec![TokenUse { id: 4, generated: 2 }, TokenUse { id: 1, generated: 0 }];
    let step = [
        sequence(2, 15, known(&[1, 2]), &[3, 0], Output::Logits),
        sequence(0, 0, known(&[4]), &[1, 2], Output::None),
        sequence(1, 7, known(&[5]), &[2], sample(Some(3), history)),
    ];
    // Twice: nothing may remain from the previous step.
    for _ in 0..2 {
        fill(&mut buffer, &step);
        assert!(!buffer.decodes);
        let ids: Vec<_> = buffer.tokens.iter().map(|row| (row.id, row.sequence)).collect();
        assert_eq!(ids, [(1, 0), (2, 0), (4, 1), (5, 2)]);
        // Blocks beyond the tokens are left out.
        assert_eq!(buffer.blocks, [3, 0, 1, 2]);
        let rows: Vec<_> = buffer.outputs.iter().map(|it| (it.row, it.sequence, it.logits)).collect();
        assert_eq!(rows, [(0, 0, true), (1, 0, true), (3, 2, false)]);
        let third = buffer.header.sequence[2];
        assert_eq!((third.first_token, third.count, third.position), (3, 1, 7));
        assert_eq!((third.block_start, third.slot, third.drafted), (3, 1, 0));
        assert_eq!(buffer.first_outputs, [0, 2, 2]);
        assert_eq!((buffer.header.sequence[1].drafted, buffer.drafted), (-1, 1));
        assert_eq!(buffer.header.blocks_at as usize, size_of::<Header>());
        buffer.select(1..3);
        assert_eq!((buffer.header.outputs, &buffer.header.output_rows[..2]), (2, &[1, 3][..]));
        let [unwanted, wanted] = [buffer.header.sampling[0], buffer.header.sampling[1]];
        assert_eq!((unwanted.slot, unwanted.top_logprobs), (-1, -1));
        assert_eq!((wanted.slot, wanted.top_logprobs, wanted.top_k, wanted.draw), (1, 3, 7, 5));
        assert_eq!((wanted.history_start, wanted.history_count), (0, 2));
        assert_eq!(buffer.history, [Use { id: 4, generated: 2 }, Use { id: 1, generated: 0 }]);
    }
}

#[test]
fn decoding_gives_every_sequence_its_row() {
    let mut buffer = StepBuffer::new(limits());
    fill(&mut buffer, &[sequence(1, 0, known(&[3, 4]), &[0], sample(None, Vec::new()))]);
    assert!(!buffer.decodes);
    let step = [
        sequence(0, 0, known(&[4]), &[1], Output::None),
        sequence(1, 2, Tokens::Sampled, &[0], sample(None, Vec::new())),
    ];
    fill(&mut buffer, &step);
    assert!(buffer.decodes);
    assert_eq!(buffer.header.sequence[0].token, 4);
    assert_eq!((buffer.header.sequence[1].token, buffer.first_outputs[1]), (-1, 1));
    let rows: Vec<_> = buffer.outputs.iter().map(|output| (output.row, output.sampling.slot)).collect();
    assert_eq!(rows, [(0, -1), (1, 1)]);
}

fn penalised(history: Vec<TokenUse>) -> Output {
    let sampling = Sampling { presence_penalty: 1.0, ..Sampling::default() };
    Output::Sample { sampling, draw: 5, history, biases: Vec::new(), masks: Vec::new() }
}

/// As `penalised`, masked to these ids: one list per sampled token.
fn masked(history: Vec<TokenUse>, ids: &[&[u32]]) -> Output {
    let sampling = Sampling { presence_penalty: 1.0, ..Sampling::default() };
    let masks = ids.iter().map(|ids| TokenMask::of(10, ids.iter().copied())).collect();
    Output::Sample { sampling, draw: 5, history, biases: Vec::new(), masks }
}

/// As `masked`, biased at these ids: one list per sampled token.
fn biased(output: Output, ids: &[&[u32]]) -> Output {
    let list = |ids: &&[u32]| ids.iter().map(|&id| TokenBias { id, bias: id as f32 / 2.0 }).collect();
    match output {
        Output::Sample { sampling, draw, history, masks, .. } => {
            Output::Sample { sampling, draw, history, biases: ids.iter().map(list).collect(), masks }
        }
        other => other,
    }
}

fn drafting() -> StepBuffer {
    StepBuffer::new(StepLimits { drafts: 2, drafted: 2, ahead: 1, ..limits() })
}

fn drafts(sequence: SequenceStep, drafts: usize) -> SequenceStep {
    SequenceStep { drafts, ..sequence }
}

#[test]
fn masks_stand_behind_the_history() {
    let mut buffer = StepBuffer::new(limits());
    let history = vec![TokenUse { id: 4, generated: 2 }, TokenUse { id: 1, generated: 0 }];
    let step = [
        sequence(1, 7, known(&[5]), &[2], masked(history.clone(), &[&[0, 3]])),
        sequence(0, 7, known(&[4]), &[1], sample(None, Vec::new())),
        sequence(2, 7, known(&[4]), &[0], masked(history, &[&[9]])),
    ];
    for _ in 0..2 {
        fill(&mut buffer, &step);
        // Two uses of two words each come before them, twice, whichever range of rows they are uploaded with.
        for (rows, found) in [(0..3, &[8, -1, 9][..]), (1..3, &[-1, 9]), (2..3, &[9])] {
            buffer.select(rows.clone());
            let masks: Vec<_> = buffer.header.sampling[..rows.len()].iter().map(|row| row.mask).collect();
            assert_eq!(masks, found);
        }
        assert_eq!(buffer.masks, [0b1001, 1 << 9]);
    }
    fill(&mut buffer, &step[1..2]);
    assert!(buffer.masks.is_empty(), "nothing of a step is left for the next");
    let large = Output::Sample {
        sampling: Sampling::default(),
        draw: 0,
        history: Vec::new(),
        biases: Vec::new(),
        masks: vec![TokenMask::of(40, [3])],
    };
    let step = [sequence(1, 7, known(&[5]), &[2], large)];
    let filled = catch_unwind(AssertUnwindSafe(|| fill(&mut buffer, &step)));
    assert!(filled.is_err(), "a mask of another vocabulary");
}

#[test]
fn biases_stand_between_the_history_and_the_masks() {
    let mut buffer = StepBuffer::new(limits());
    let history = vec![TokenUse { id: 4, generated: 2 }, TokenUse { id: 1, generated: 0 }];
    let step = [
        sequence(1, 7, known(&[5]), &[2], biased(masked(history, &[&[0, 3]]), &[&[8, 2]])),
        sequence(0, 7, known(&[4]), &[1], sample(None, Vec::new())),
        sequence(2, 7, known(&[4]), &[0], biased(masked(Vec::new(), &[&[9]]), &[&[7]])),
    ];
    for _ in 0..2 {
        fill(&mut buffer, &step);
        buffer.select(0..3);
        let rows = &buffer.header.sampling[..3];
        let places: Vec<_> = rows.iter().map(|row| (row.bias_start, row.bias_count, row.mask)).collect();
        // Biases follow two uses; masks follow two uses and three biases of two words each.
        assert_eq!(places, [(2, 2, 10), (4, 0, -1), (4, 1, 11)]);
        let biases: Vec<_> = buffer.biases.iter().map(|one| (one.id, one.bias)).collect();
        assert_eq!(biases, [(8, 4.0), (2, 1.0), (7, 3.5)]);
    }
    fill(&mut buffer, &step[1..2]);
    assert!(buffer.biases.is_empty(), "nothing of a step is left for the next");
    // Each draft's row has its own biases and mask.
    let mut given = StepBuffer::new(StepLimits { drafts: 2, tokens: 9, ..limits() });
    let output = biased(sample(None, Vec::new()), &[&[1], &[2, 3], &[]]);
    given.verify(&[&drafts(sequence(2, 14, known(&[1, 9, 8]), &[3, 0], output), 2)], &[]);
    let places: Vec<_> =
        given.outputs.iter().map(|row| (row.sampling.bias_start, row.sampling.bias_count)).collect();
    assert_eq!(places, [(0, 1), (1, 2), (3, 0)]);
}

#[test]
fn drafts_have_masks_of_their_own() {
    let mut buffer = drafting();
    let step = [
        drafts(sequence(2, 14, known(&[1, 9, 8]), &[3, 0], masked(Vec::new(), &[&[9], &[8, 7], &[1]])), 2),
        drafts(sequence(0, 3, known(&[5, 1, 6]), &[2], masked(Vec::new(), &[&[1, 2], &[5]])), 2),
        drafts(sequence(1, 3, known(&[5, 1]), &[1], masked(Vec::new(), &[&[1], &[6]])), 0),
    ];
    // The third has no drafts, and its rows are filled up.
    let third = SequenceStep { tokens: known(&[5]), ..step[2].clone() };
    let mut given = StepBuffer::new(StepLimits { drafts: 2, tokens: 9, ..limits() });
    given.verify(&[&step[0], &step[1], &third], &[]);
    given.select(0..9);
    let masks: Vec<_> = given.header.sampling[..9].iter().map(|row| row.mask).collect();
    // Six uses of two words each come before them: drafts join the history of the rows after them.
    assert_eq!(masks, [12, 13, 14, 15, 16, -1, 17, -1, -1]);
    buffer.verify(&step[..2].iter().collect::<Vec<_>>(), &[]);
    assert_eq!(buffer.masks, [1 << 9, 0b1_1000_0000, 0b10, 0b110, 1 << 5]);
}

#[test]
fn drafts_are_rows_with_places_draws_and_histories_of_their_own() {
    let mut buffer = drafting();
    let history = vec![TokenUse { id: 4, generated: 2 }, TokenUse { id: 1, generated: 0 }];
    let step = [
        drafts(sequence(2, 14, known(&[1, 9, 8]), &[3, 0], sample(None, Vec::new())), 2),
        drafts(sequence(0, 3, known(&[5, 1, 6]), &[2], penalised(history)), 2),
    ];
    for _ in 0..2 {
        buffer.verify(&step.iter().collect::<Vec<_>>(), &[]);
        let header = &buffer.header;
        assert_eq!((header.tokens, header.sequences, buffer.drafted), (6, 6, 2));
        let rows: Vec<_> = header.sequence[..6]
            .iter()
            .map(|it| (it.first_token, it.count, it.position, it.block_start, it.token, it.slot, it.drafted))
            .collect();
        assert_eq!(rows[..3], [(0, 1, 14, 0, 1, 2, 0), (1, 1, 15, 0, 9, 2, -1), (2, 1, 16, 0, 8, 2, -1)]);
        assert_eq!(rows[3..], [(3, 1, 3, 2, 5, 0, 1), (4, 1, 4, 2, 1, 0, -1), (5, 1, 5, 2, 6, 0, -1)]);
        assert_eq!(buffer.first_outputs, [0, 3]);
        // The ids of three slots come before those of rows.
        let sampled: Vec<_> =
            buffer.outputs.iter().map(|it| (it.row, it.sampling.slot, it.sampling.draw)).collect();
        assert_eq!(sampled, [(0, 3, 5), (1, 4, 6), (2, 5, 7), (3, 6, 5), (4, 7, 6), (5, 8, 7)]);
        let uses = |at: usize| -> Vec<(i32, i32)> {
            let row = buffer.outputs[at].sampling;
            let of_row = &buffer.history[row.history_start as usize..][..row.history_count as usize];
            of_row.iter().map(|seen| (seen.id, seen.generated)).collect()
        };
        assert_eq!(uses(0), []);
        assert_eq!(uses(3), [(4, 2), (1, 0)]);
        assert_eq!(uses(4), [(4, 2), (1, 1)]);
        assert_eq!(uses(5), [(4, 2), (1, 1), (6, 1)]);
    }
    // The token sampled last may be left to the device afterwards.
    fill(&mut buffer, &[sequence(2, 15, Tokens::Sampled, &[3, 0], sample(None, Vec::new()))]);
}

#[test]
fn sequences_without_drafts_take_as_many_rows_as_those_with() {
    let mut buffer = StepBuffer::new(StepLimits { drafts: 2, drafted: 0, ..limits() });
    let history = vec![TokenUse { id: 4, generated: 2 }];
    let step = [
        sequence(2, 14, known(&[1]), &[3, 0], penalised(history)),
        drafts(sequence(0, 3, known(&[5, 1, 6]), &[2], sample(None, Vec::new())), 2),
    ];
    buffer.verify(&step.iter().collect::<Vec<_>>(), &[]);
    let header = &buffer.header;
    assert_eq!((header.tokens, header.sequences, buffer.drafted), (6, 6, 2));
    let rows: Vec<_> =
        header.sequence[..6].iter().map(|it| (it.position, it.block_start, it.token, it.slot)).collect();
    assert_eq!(rows, [(14, 0, 1, 2), (15, 0, 1, 2), (16, 0, 1, 2), (3, 2, 5, 0), (4, 2, 1, 0), (5, 2, 6, 0)]);
    assert_eq!((&buffer.first_outputs, &buffer.blocks), (&vec![0, 3], &vec![3, 0, 2]));
    // Tokens sampled from filled-up rows are discarded.
    let sampled: Vec<_> = buffer.outputs.iter().map(|it| (it.sampling.slot, it.sampling.draw)).collect();
    assert_eq!(sampled, [(3, 5), (-1, 0), (-1, 0), (6, 5), (7, 6), (8, 7)]);
    assert_eq!((buffer.outputs[0].sampling.history_count, buffer.history.len()), (1, 1));
    // One row too few, and blocks that end with the token.
    let one = drafts(sequence(0, 3, known(&[5, 1]), &[2], sample(None, Vec::new())), 1);
    let short = sequence(2, 14, known(&[1]), &[3], sample(None, Vec::new()));
    for (bad, message) in [(one, "feeds 2 tokens of which 1 are drafts"), (short, "needs 2 blocks and has 1")]
    {
        let panic = catch_unwind(AssertUnwindSafe(|| buffer.verify(&[&bad], &[]))).expect_err("refused");
        let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
        assert!(text.contains(message), "{text:?} lacks {message:?}");
    }
    // Only the host knows which draft was accepted, so it must say what to feed next.
    let sampled = sequence(2, 15, Tokens::Sampled, &[3, 0], sample(None, Vec::new()));
    catch_unwind(AssertUnwindSafe(|| fill(&mut buffer, &[sampled]))).expect_err("refused");
}

#[test]
fn prompts_say_what_follows_and_have_room_for_drafts() {
    let mut buffer = drafting();
    let going_on = SequenceStep { following: Some(7), ..sequence(0, 15, known(&[1]), &[0], Output::None) };
    let ending = sequence(1, 14, known(&[2]), &[1, 2], sample(None, Vec::new()));
    fill(&mut buffer, &[going_on, ending]);
    let of = |at: usize| (buffer.header.sequence[at].following, buffer.header.sequence[at].drafted);
    assert_eq!((of(0), of(1), buffer.drafted), ((7, -1), (-1, 0), 1));
    // The second pass writes after the last token: here within the same block, below in the next one.
    assert_eq!(buffer.blocks, [0, 1]);
    fill(&mut buffer, &[sequence(1, 15, known(&[2]), &[1, 2], sample(None, Vec::new()))]);
    assert_eq!(buffer.blocks, [1, 2]);
}

#[test]
fn drafts_that_break_the_contract_are_refused() {
    let sampled = || sample(None, Vec::new());
    for (bad, message) in [
        (drafts(sequence(0, 0, known(&[1, 2]), &[0], sampled()), 1), "feeds 2 tokens of which 1 are drafts"),
        (drafts(sequence(0, 0, known(&[1, 2, 3, 4]), &[0], sampled()), 2), "feeds 4 tokens"),
        (drafts(sequence(0, 0, known(&[1, 2, 3]), &[0], Output::Logits), 2), "not sampled after"),
        (drafts(sequence(0, 0, known(&[1, 2, 10]), &[0], sampled()), 2), "token id 10"),
        (drafts(sequence(0, 13, known(&[1, 2, 3]), &[0], sampled()), 2), "needs 2 blocks and has 1"),
        (drafts(sequence(0, 61, known(&[1, 2, 3]), &[0, 1, 2, 3], sampled()), 2), "beyond the context of 64"),
    ] {
        let panic = catch_unwind(AssertUnwindSafe(|| drafting().verify(&[&bad], &[]))).expect_err("refused");
        let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
        assert!(text.contains(message), "{text:?} lacks {message:?}");
    }
    let bad = drafts(sequence(0, 0, known(&[1, 2, 3]), &[0], sampled()), 2);
    catch_unwind(AssertUnwindSafe(|| drafting().fill(&[&bad], &[], false)))
        .expect_err("drafts are not prefilled");
}

#[test]
fn what_breaks_the_limits_is_refused() {
    let none = || Output::None;
    for (bad, message) in [
        (sequence(0, 0, known(&[]), &[0], none()), "has no tokens"),
        (sequence(0, 0, known(&[10]), &[0], none()), "token id 10"),
        (sequence(0, 0, known(&[1]), &[4], none()), "no K/V block 4"),
        (sequence(0, 16, known(&[1]), &[0], none()), "needs 2 blocks and has 1"),
        (sequence(0, 0, known(&[1; 9]), &[0], none()), "beyond 8 tokens"),
        (sequence(0, 64, known(&[1]), &[0, 1, 2, 3, 0], none()), "beyond the context of 64"),
        (sequence(0, usize::MAX, known(&[1]), &[0], none()), "beyond the context of 64"),
        (sequence(3, 0, known(&[1]), &[0], none()), "no slot 3"),
        (sequence(0, 0, Tokens::Sampled, &[0], none()), "nothing was sampled for slot 0"),
    ] {
        let mut buffer = StepBuffer::new(limits());
        let panic = catch_unwind(AssertUnwindSafe(|| buffer.fill(&[&bad], &[], false))).expect_err("refused");
        let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
        assert!(text.contains(message), "{text:?} lacks {message:?}");
    }
}

#[test]
fn blocks_on_disk_are_read_and_never_written() {
    let mut buffer = StepBuffer::new(StepLimits { offloaded: 2, ..limits() });
    fill(&mut buffer, &[sequence(0, 34, known(&[1]), &[1, 5, 0], Output::None)]);
    assert_eq!(buffer.blocks, [1, 5, 0]);
    for (position, blocks) in [(34, [1, 6, 0]), (34, [1, 5, 4]), (31, [1, 5, 0])] {
        let bad = sequence(0, position, known(&[1]), &blocks, Output::None);
        catch_unwind(AssertUnwindSafe(|| buffer.fill(&[&bad], &[], false))).expect_err("refused");
    }
}

#[test]
fn sampled_rows_are_read_back() {
    let mut bytes = vec![0u8; size_of::<SampledRow>()];
    for (at, word) in [(0, 77), (1, (-0.5f32).to_bits()), (2, 2), (4, 77), (5, 3), (24, (-0.5f32).to_bits())]
    {
        bytes[4 * at..][..4].copy_from_slice(&u32::to_le_bytes(word));
    }
    let row = read_sampled(&bytes);
    assert_eq!((row.id, row.logprob, row.top_count), (77, -0.5, 2));
    assert_eq!((row.top_id[..2].to_vec(), row.top_logprob[0]), (vec![77, 3], -0.5));
}

#[test]
fn passes_of_the_model_itself_write_a_position_more() {
    let ahead = |ahead: usize| StepBuffer::new(StepLimits { drafts: 2, drafted: 2, ahead, ..limits() });
    // Positions 12 to 14 are fed. After them, a draft head's passes write one position, and the model's two.
    let one = drafts(sequence(0, 12, known(&[1, 2, 3]), &[0], sample(None, Vec::new())), 2);
    ahead(1).verify(&[&one], &[]);
    let panic = catch_unwind(AssertUnwindSafe(|| ahead(2).verify(&[&one], &[]))).expect_err("refused");
    let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(text.contains("needs 2 blocks and has 1"), "{text}");
    ahead(2).verify(&[&drafts(SequenceStep { position: 11, ..one }, 2)], &[]);
}

/// A window of 20 tokens over the blocks of `limits`, of which there are five.
fn sliding() -> StepLimits {
    StepLimits { slides: Some((Sliding { window: 20, block_tokens: 16 }, 5)), ..limits() }
}

fn table(first: usize, ids: &[u32]) -> SlidingTable {
    SlidingTable { first, blocks: ids.iter().copied().map(SlidingId).collect() }
}

/// The ids that kernels find of a row's blocks `range`, of layers with a window.
fn found(buffer: &StepBuffer, row: usize, range: Range<i32>) -> Vec<i32> {
    let all = [&buffer.blocks[..], &buffer.sliding].concat();
    range.map(|block| all[(buffer.starts.start[row] + block) as usize]).collect()
}

#[test]
fn tables_of_layers_with_a_window_follow_the_others_and_begin_with_what_a_row_attends_to() {
    let step = [
        sequence(2, 40, known(&[1, 2]), &[3, 0, 2], Output::None),
        sequence(0, 15, known(&[4, 5]), &[1, 2], Output::None),
        sequence(1, 50, known(&[6]), &[3, 0, 2, 1], Output::None),
    ];
    // The first attends to 21 .. 41 at first, the last to 31 .. 50: blocks before and behind are left out.
    for tables in [
        [table(1, &[4, 1]), table(0, &[2, 0]), table(1, &[3, 1, 4])],
        [table(0, &[2, 4, 1]), table(0, &[2, 0, 3]), table(0, &[2, 3, 1, 4])],
    ] {
        let mut buffer = StepBuffer::new(sliding());
        for _ in 0..2 {
            let tables: Vec<_> = tables.iter().collect();
            buffer.fill(&step.iter().collect::<Vec<_>>(), &tables, false);
            assert_eq!(buffer.blocks, [3, 0, 2, 1, 2, 3, 0, 2, 1]);
            assert_eq!(buffer.sliding, [4, 1, 2, 0, 3, 1, 4]);
            assert_eq!(found(&buffer, 0, 1..3), [4, 1]);
            assert_eq!(found(&buffer, 1, 0..2), [2, 0]);
            assert_eq!(found(&buffer, 2, 1..4), [3, 1, 4]);
            let behind = size_of::<Header>() + size_of::<SlidingStarts>();
            assert_eq!(buffer.header.blocks_at as usize, behind);
        }
    }
}

#[test]
fn rows_of_drafts_share_the_table_of_their_sequence() {
    let limits = StepLimits { drafts: 2, drafted: 0, ..sliding() };
    let step = [
        drafts(sequence(2, 46, known(&[1, 9, 8]), &[3, 0, 2, 1], sample(None, Vec::new())), 2),
        sequence(0, 14, known(&[5]), &[2, 1], sample(None, Vec::new())),
    ];
    let tables = [table(1, &[4, 1, 0]), table(0, &[3, 2])];
    let mut buffer = StepBuffer::new(limits);
    buffer.verify(&step.iter().collect::<Vec<_>>(), &tables.iter().collect::<Vec<_>>());
    assert_eq!(buffer.sliding, [4, 1, 0, 3, 2]);
    (0..3).for_each(|row| assert_eq!(found(&buffer, row, 1..4), [4, 1, 0]));
    // The second is filled up to as many rows, into the block behind.
    (3..6).for_each(|row| assert_eq!(found(&buffer, row, 0..2), [3, 2]));
}

#[test]
fn tables_that_lack_what_a_row_attends_to_are_refused() {
    let one = sequence(0, 40, known(&[1, 2]), &[3, 0, 2], Output::None);
    for (limits, tables, message) in [
        (
            sliding(),
            vec![table(2, &[1])],
            "needs blocks 1..3 of layers with a sliding window, and has 1 from 2 on",
        ),
        (sliding(), vec![table(1, &[2])], "and has 1 from 1 on"),
        (sliding(), vec![table(1, &[2, 5])], "no block 5 of layers with a sliding window"),
        (sliding(), vec![], "with 0 tables of layers with a sliding window, and 1 are due"),
        (limits(), vec![table(1, &[2, 1])], "with 1 tables of layers with a sliding window, and 0 are due"),
    ] {
        let mut buffer = StepBuffer::new(limits);
        let tables: Vec<_> = tables.iter().collect();
        let panic =
            catch_unwind(AssertUnwindSafe(|| buffer.fill(&[&one], &tables, false))).expect_err("refused");
        let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
        assert!(text.contains(message), "{text:?} lacks {message:?}");
    }
}
