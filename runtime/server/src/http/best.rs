//! `best_of`: of several answers to one prompt those that the model thinks likeliest.

use crate::answer::part::Piece;

/// Of `of` answers to each prompt, in order, the `kept` with the highest mean log-probability of their
/// tokens, the best first and the earlier among equals; an answer without tokens is the last. The first of a
/// prompt's carries the tokens of those that are left out: they were generated, too.
pub(super) fn choose(mut pieces: Vec<Piece>, of: usize, kept: usize) -> Vec<Piece> {
    if of <= kept {
        return pieces;
    }
    let mean = |piece: &Piece| {
        let sum: f64 = piece.logprobs.iter().map(|token| f64::from(token.logprob)).sum();
        if piece.logprobs.is_empty() { f64::NEG_INFINITY } else { sum / piece.logprobs.len() as f64 }
    };
    let mut chosen = Vec::new();
    while !pieces.is_empty() {
        let rest = pieces.split_off(of.min(pieces.len()));
        // A stable sort.
        pieces.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
        let left_out = pieces.split_off(kept.min(pieces.len()));
        let tokens = |piece: &Piece| piece.end.as_ref().map_or(0, |end| end.usage.completion_tokens);
        let tokens: usize = left_out.iter().map(tokens).sum();
        if let Some(end) = pieces.first_mut().and_then(|piece| piece.end.as_mut()) {
            end.usage.completion_tokens += tokens;
        }
        chosen.append(&mut pieces);
        pieces = rest;
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::part::{AnswerPart, End, EndReason, TokenLogprob, Usage};

    fn piece(text: &str, logprobs: &[f32]) -> Piece {
        let token = |logprob: &f32| TokenLogprob { bytes: Vec::new(), logprob: *logprob, top: Vec::new() };
        let usage = Usage { completion_tokens: logprobs.len(), ..Usage::default() };
        Piece {
            parts: vec![AnswerPart::Text(text.to_owned())],
            logprobs: logprobs.iter().map(token).collect(),
            end: Some(End { reason: EndReason::Stop, calls: 0, usage, timings: None }),
            ..Piece::default()
        }
    }

    fn told(pieces: &[Piece]) -> Vec<(String, usize)> {
        let tokens = |piece: &Piece| piece.end.as_ref().map_or(0, |end| end.usage.completion_tokens);
        pieces.iter().map(|piece| (piece.text(), tokens(piece))).collect()
    }

    #[test]
    fn the_likeliest_a_token_come_first_and_all_tokens_count() {
        let answers = || {
            vec![
                piece("long", &[-0.5, -0.5, -0.5]),
                piece("empty", &[]),
                piece("sure", &[-0.1]),
                // Of another prompt.
                piece("first", &[-2.0]),
                piece("alike", &[-2.0]),
                piece("never", &[f32::NEG_INFINITY, -0.1]),
            ]
        };
        let of = |kept| told(&choose(answers(), 3, kept));
        let owned = |all: &[(&str, usize)]| -> Vec<(String, usize)> {
            all.iter().map(|(text, tokens)| ((*text).to_owned(), *tokens)).collect()
        };
        assert_eq!(of(1), owned(&[("sure", 4), ("first", 4)]));
        assert_eq!(of(2), owned(&[("sure", 1), ("long", 3), ("first", 3), ("alike", 1)]));
        assert_eq!(of(3), told(&answers()), "in their order where all are wanted");
    }
}
