use super::*;
use monomorph_model::{BlockId, SequenceStep, Slot};
use monomorph_sampling::{Sampling, TokenUse};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn limits() -> Limits {
    Limits { tokens: 8, sequences: 3, vocabulary: 10, context: 64, block_tokens: 16, blocks: 4 }
}

fn sequence(slot: u32, position: usize, tokens: Tokens, blocks: &[u32], output: Output) -> SequenceStep {
    let blocks = blocks.iter().map(|block| BlockId(*block)).collect();
    SequenceStep { drafts: 0, following: None, slot: Slot(slot), position, tokens, blocks, output }
}

fn known(ids: &[u32]) -> Tokens {
    Tokens::Known(ids.to_vec())
}

fn sample(top_logprobs: Option<u8>, history: Vec<TokenUse>) -> Output {
    let sampling = Sampling { top_k: 7, seed: 9, top_logprobs, ..Sampling::default() };
    Output::Sample { sampling, draw: 5, history }
}

#[test]
fn a_prompt_beside_a_decoding_sequence() {
    let mut buffer = StepBuffer::new(limits());
    let history = vec![TokenUse { id: 4, generated: 2 }, TokenUse { id: 1, generated: 0 }];
    let step = Step {
        sequences: vec![
            sequence(2, 15, known(&[1, 2]), &[3, 0], Output::Logits),
            sequence(0, 0, known(&[4]), &[1, 2], Output::None),
            sequence(1, 7, known(&[5]), &[2], sample(Some(3), history)),
        ],
    };
    // Twice: nothing of a step is left for the next.
    for _ in 0..2 {
        buffer.fill(&step);
        assert!(!buffer.decodes);
        let ids: Vec<_> = buffer.tokens.iter().map(|row| (row.id, row.sequence)).collect();
        assert_eq!(ids, [(1, 0), (2, 0), (4, 1), (5, 2)]);
        // Blocks beyond the tokens are not taken over.
        assert_eq!(buffer.blocks, [3, 0, 1, 2]);
        let rows: Vec<_> = buffer.outputs.iter().map(|it| (it.row, it.sequence, it.logits)).collect();
        assert_eq!(rows, [(0, 0, true), (1, 0, true), (3, 2, false)]);
        let third = buffer.header.sequence[2];
        assert_eq!((third.first_token, third.count, third.position), (3, 1, 7));
        assert_eq!((third.block_start, third.slot, third.output), (3, 1, 2));
        assert_eq!(buffer.header.sequence[1].output, -1);
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
    buffer.fill(&Step { sequences: vec![sequence(1, 0, known(&[3, 4]), &[0], sample(None, Vec::new()))] });
    assert!(!buffer.decodes);
    buffer.fill(&Step {
        sequences: vec![
            sequence(0, 0, known(&[4]), &[1], Output::None),
            sequence(1, 2, Tokens::Sampled, &[0], sample(None, Vec::new())),
        ],
    });
    assert!(buffer.decodes);
    assert_eq!(buffer.header.sequence[0].token, 4);
    assert_eq!((buffer.header.sequence[1].token, buffer.header.sequence[1].output), (-1, 1));
    let rows: Vec<_> = buffer.outputs.iter().map(|output| (output.row, output.sampling.slot)).collect();
    assert_eq!(rows, [(0, -1), (1, 1)]);
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
        let step = Step { sequences: vec![bad] };
        let panic = catch_unwind(AssertUnwindSafe(|| buffer.fill(&step))).expect_err("refused");
        let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
        assert!(text.contains(message), "{text:?} lacks {message:?}");
    }
}

#[test]
fn sampled_rows_are_read_back() {
    let mut bytes = vec![0u8; size_of::<SampledRow>()];
    for (at, word) in [(0, 77), (1, (-0.5f32).to_bits()), (2, 2), (4, 77), (5, 3), (24, (-0.5f32).to_bits())]
    {
        bytes[4 * at..][..4].copy_from_slice(&u32::to_le_bytes(word));
    }
    let row = SampledRow::read(&bytes);
    assert_eq!((row.id, row.logprob, row.top_count), (77, -0.5, 2));
    assert_eq!((row.top_id[..2].to_vec(), row.top_logprob[0]), (vec![77, 3], -0.5));
}
