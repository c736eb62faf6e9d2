//! Distances of logits, and what they say.

use super::reference::Logits;
use serde::Serialize;
use std::fmt;

/// As many times as rounding alone moves a reference a right server may be away, and a wrong one must be.
const NEAR: f64 = 2.0;
const FAR: f64 = 4.0;

/// What f32 in another order moves at most, where a reference says nothing of rounding.
const ORDER: f64 = 2e-4;

/// How far logits are from others, over all rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Distance {
    pub rows: usize,
    /// Largest difference of a row, relative to the largest magnitude of the reference's row.
    pub max_error: f64,
    pub mean_error: f64,
    /// Kullback-Leibler divergence of the distributions from the reference's, in nats.
    pub max_kl: f64,
    pub mean_kl: f64,
    /// Share of rows in which the same token leads.
    pub top1: f64,
    /// The widest lead, relative as errors are, of a token of the reference that leads no longer; 0 for none.
    pub lost_lead: f64,
    /// Rows with a logit that is no number.
    pub broken: usize,
}

impl Distance {
    pub const HEAD: &str = "max error  mean error     max KL    mean KL  top-1     lost lead";

    /// Of rows of so many logits.
    pub fn between(found: &Logits, reference: &Logits, vocabulary: usize) -> Distance {
        let mut sum = Distance {
            rows: 0,
            max_error: 0.0,
            mean_error: 0.0,
            max_kl: 0.0,
            mean_kl: 0.0,
            top1: 0.0,
            lost_lead: 0.0,
            broken: 0,
        };
        let rows = found.iter().zip(reference);
        let rows = rows.flat_map(|(a, b)| a.chunks_exact(vocabulary).zip(b.chunks_exact(vocabulary)));
        for (found, reference) in rows {
            sum.rows += 1;
            if found.iter().any(|logit| !logit.is_finite()) {
                sum.broken += 1;
                continue;
            }
            let largest = reference.iter().fold(f64::MIN_POSITIVE, |most, it| most.max(f64::from(it.abs())));
            let apart = found.iter().zip(reference).map(|(a, b)| f64::from((a - b).abs()));
            let error = apart.fold(0.0, f64::max) / largest;
            let kl = divergence(reference, found);
            let [led, leads] = [reference, found].map(leader);
            if led == leads {
                sum.top1 += 1.0;
            } else {
                let lead = f64::from(reference[led] - reference[leads]) / largest;
                sum.lost_lead = sum.lost_lead.max(lead);
            }
            sum.max_error = sum.max_error.max(error);
            sum.max_kl = sum.max_kl.max(kl);
            sum.mean_error += error;
            sum.mean_kl += kl;
        }
        let whole = (sum.rows - sum.broken).max(1) as f64;
        sum.mean_error /= whole;
        sum.mean_kl /= whole;
        sum.top1 /= sum.rows.max(1) as f64;
        sum
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Distance { max_error, mean_error, max_kl, mean_kl, lost_lead, .. } = self;
        write!(f, "{max_error:>9.2e}  {mean_error:>10.2e}  {max_kl:>9.2e}  {mean_kl:>9.2e}  ")?;
        write!(f, "{:>5.1}%  {lost_lead:>11.2e}", 100.0 * self.top1)
    }
}

/// Index of the largest logit, the first of equal ones.
fn leader(row: &[f32]) -> usize {
    (1..row.len()).fold(0, |best, at| if row[at] > row[best] { at } else { best })
}

/// KL divergence of the softmax of `found` from that of `reference`.
fn divergence(reference: &[f32], found: &[f32]) -> f64 {
    let log_sum = |row: &[f32]| {
        let largest = f64::from(row[leader(row)]);
        largest + row.iter().map(|it| (f64::from(*it) - largest).exp()).sum::<f64>().ln()
    };
    let (of_reference, of_found) = (log_sum(reference), log_sum(found));
    let term = |(r, f): (&f32, &f32)| {
        let (r, f) = (f64::from(*r) - of_reference, f64::from(*f) - of_found);
        r.exp() * (r - f)
    };
    reference.iter().zip(found).map(term).sum::<f64>().max(0.0)
}

/// What a distance says, and why.
#[derive(Debug, PartialEq)]
pub enum Verdict {
    Pass(String),
    Fail(String),
    Inconclusive(String),
}

impl Verdict {
    pub fn word(&self) -> &'static str {
        match self {
            Verdict::Pass(_) => "PASS",
            Verdict::Fail(_) => "FAIL",
            Verdict::Inconclusive(_) => "INCONCLUSIVE",
        }
    }

    pub fn why(&self) -> &str {
        let (Verdict::Pass(why) | Verdict::Fail(why) | Verdict::Inconclusive(why)) = self;
        why
    }
}

/// Judges a distance from a reference that rounding moves by `noise`.
pub fn judge(found: &Distance, noise: Option<&Distance>) -> Verdict {
    if found.broken > 0 {
        return Verdict::Fail(format!(
            "{} of {} rows have logits that are not numbers",
            found.broken, found.rows
        ));
    }
    let Some(noise) = noise else {
        return match found.max_error <= ORDER {
            true => {
                Verdict::Pass(format!("every row is within {ORDER:.0e}, what f32 in another order moves"))
            }
            false => Verdict::Inconclusive(format!(
                "rows are up to {:.1e} away, and the reference does not say how far rounding moves it: make it with --rounded",
                found.max_error
            )),
        };
    };
    let far = |what: &str, found: f64, noise: f64| {
        format!("{what} is {found:.1e}, {:.1} times what rounding makes ({noise:.1e})", found / noise)
    };
    if found.lost_lead > FAR * noise.max_error {
        return Verdict::Fail(format!(
            "another token leads where the reference's is ahead by {:.1e} of the row, and rounding moves {:.1e} at most",
            found.lost_lead, noise.max_error
        ));
    }
    if found.mean_error > FAR * noise.mean_error.max(ORDER / FAR) {
        return Verdict::Fail(far("the mean error", found.mean_error, noise.mean_error));
    }
    let near = [
        ("the mean error", found.mean_error, noise.mean_error),
        ("the largest error", found.max_error, noise.max_error),
        ("the mean KL divergence", found.mean_kl, NEAR * noise.mean_kl),
    ];
    // Below what an order of sums does there is nothing to compare.
    let beyond = near.iter().find(|(_, found, noise)| *found > NEAR * noise && *found > ORDER);
    match beyond {
        Some((what, found, noise)) => Verdict::Inconclusive(far(what, *found, *noise)),
        None => Verdict::Pass(format!(
            "it is as near as rounding to bf16 leaves the reference, within {NEAR} times"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: [f32; 4] = [4.0, 3.0, -1.0, 0.5];

    /// Three rows, each moved by so much in turn in one element.
    fn moved(by: f32, at: usize) -> Logits {
        let mut rows = [ROW; 3];
        rows[1][at] += by;
        vec![rows.concat()]
    }

    fn distance(by: f32, at: usize) -> Distance {
        Distance::between(&moved(by, at), &moved(0.0, 0), 4)
    }

    #[test]
    fn distances_are_those_of_hand() {
        assert_eq!(distance(0.0, 0), Distance { rows: 3, top1: 1.0, ..distance(0.0, 0) });
        assert_eq!(distance(0.0, 0).max_kl, 0.0);
        let it = distance(1.5, 1);
        assert_eq!((it.max_error, it.mean_error), (0.375, 0.125));
        // 3 + 1.5 leads 4: one of three rows, by a quarter of its largest magnitude.
        assert!((it.top1 - 2.0 / 3.0).abs() < 1e-12 && it.lost_lead == 0.25);
        let [p, q] = [ROW, [4.0, 4.5, -1.0, 0.5]].map(|row| {
            let all: f64 = row.iter().map(|it| f64::from(*it).exp()).sum();
            row.map(|it| f64::from(it).exp() / all)
        });
        let kl: f64 = p.iter().zip(q).map(|(p, q)| p * (p / q).ln()).sum();
        assert!((it.max_kl - kl).abs() < 1e-12, "{} and {kl}", it.max_kl);
        let broken = Distance::between(&moved(f32::NAN, 0), &moved(0.0, 0), 4);
        assert_eq!((broken.broken, judge(&broken, None).word()), (1, "FAIL"));
    }

    #[test]
    fn a_verdict_follows_from_the_noise() {
        let noise = distance(0.2, 2);
        let word = |by, at| judge(&distance(by, at), Some(&noise)).word();
        assert_eq!(word(0.0, 0), "PASS");
        assert_eq!(word(0.3, 2), "PASS");
        assert_eq!(word(0.6, 2), "INCONCLUSIVE");
        assert_eq!(word(1.0, 2), "FAIL", "five times as far");
        let other = judge(&distance(1.9, 1), Some(&distance(0.9, 0)));
        assert_eq!(other.word(), "INCONCLUSIVE", "a lead of 0.25 may be rounding's: {}", other.why());
        assert_eq!(
            judge(&distance(1.1, 1), Some(&distance(0.1, 0))).word(),
            "FAIL",
            "a lead that no rounding turns"
        );
        assert_eq!(judge(&distance(0.0001, 2), None).word(), "PASS");
        assert_eq!(judge(&distance(0.2, 2), None).word(), "INCONCLUSIVE");
    }
}
