//! All ranks must have sampled the same.

use monomorph_model::{RowOutput, StepOutput};
use monomorph_sampling::Sampled;

/// Checks that a rank came to what rank 0 did: each row's kind, ids and drafts. Logits and probabilities are
/// not compared, since ids follow from them.
///
/// # Errors
/// Says which rank and row differ, and how.
pub(crate) fn agree(rank: usize, first: &StepOutput, other: &StepOutput) -> Result<(), String> {
    if first.rows.len() != other.rows.len() {
        let (rows, others) = (first.rows.len(), other.rows.len());
        return Err(format!("rank {rank} returned {others} rows of a step, and rank 0 {rows}"));
    }
    for (row, (first, other)) in first.rows.iter().zip(&other.rows).enumerate() {
        match (first, other) {
            (RowOutput::Sampled(first), RowOutput::Sampled(other)) if first.id == other.id => {}
            (RowOutput::Sampled(first), RowOutput::Sampled(other)) => {
                return Err(format!(
                    "rank {rank} sampled id {} in row {row}, and rank 0 {}",
                    other.id, first.id
                ));
            }
            (RowOutput::Verified(first), RowOutput::Verified(other)) => {
                let ids = |of: &[Sampled]| of.iter().map(|it| it.id).collect::<Vec<_>>();
                if !first.sampled.iter().map(|it| it.id).eq(other.sampled.iter().map(|it| it.id)) {
                    let [first, other] = [ids(&first.sampled), ids(&other.sampled)];
                    return Err(format!(
                        "rank {rank} sampled ids {other:?} in row {row}, and rank 0 {first:?}"
                    ));
                }
                if !first.drafts.iter().eq(other.drafts.iter()) {
                    let [first, other] = [&first.drafts, &other.drafts];
                    return Err(format!(
                        "rank {rank} drafted ids {other:?} in row {row}, and rank 0 {first:?}"
                    ));
                }
            }
            // A rank may lose a row alone: its own file of blocks on disk failed.
            (RowOutput::Lost(_), _) | (_, RowOutput::Lost(_)) => {}
            _ if std::mem::discriminant(first) == std::mem::discriminant(other) => {}
            _ => return Err(format!("rank {rank} returned something else than rank 0 in row {row}")),
        }
    }
    Ok(())
}

/// Rank 0's output, without the rows that any rank lost.
pub(crate) fn merge(mut first: StepOutput, others: Vec<StepOutput>) -> StepOutput {
    for other in others {
        for (row, other) in first.rows.iter_mut().zip(other.rows) {
            if matches!(other, RowOutput::Lost(_)) && !matches!(row, RowOutput::Lost(_)) {
                *row = other;
            }
        }
    }
    first
}
