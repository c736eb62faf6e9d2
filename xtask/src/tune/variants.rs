//! Which knobs are worth trying: a few steps about the defaults, by what cuts the kernels of a phase.

use monomorph_compiler::plan::cuda::Cut;
use monomorph_compiler::spec::types::{Cuda, Knobs, Settings};

/// Knobs to try for a phase at `rows` rows, `knobs` themselves first and none twice. Some come to the same
/// kernel, because the launch pass takes the nearest shape that fits, and some to none: planning tells.
pub fn variants(cut: Cut, rows: usize, knobs: Knobs, card: &Cuda) -> Vec<Knobs> {
    let mut all = vec![knobs];
    match cut {
        Cut::Stream => {
            for blocks_per_multiprocessor in [1, 2] {
                for stage_bytes in [8_192, 16_384, 32_768, 49_152, 65_536] {
                    for ring_stages in [3, 4, 5, 6, 8, 12] {
                        let ring = blocks_per_multiprocessor * ring_stages * stage_bytes;
                        // A ring of less than 48 KiB does not outlast the memory's latency.
                        if (49_152..card.shared_per_multiprocessor).contains(&ring) {
                            let cut = Knobs { blocks_per_multiprocessor, ring_stages, stage_bytes, ..knobs };
                            all.push(cut);
                            // A block of many warps is alone, and each of its warps wants work in a stage.
                            if blocks_per_multiprocessor == 1 && stage_bytes >= 16_384 {
                                all.push(Knobs { stream_warps: 16, ..cut });
                            }
                        }
                    }
                }
            }
        }
        Cut::Gemm => {
            for gemm_stages in [2, 3, 4, 6, 8] {
                for gemm_inputs in [64, 128] {
                    all.push(Knobs { gemm_stages, gemm_inputs, ..knobs });
                }
            }
            for gemm_outputs in [128, 256] {
                for gemm_rows in [64, 128, 256] {
                    all.push(Knobs { gemm_outputs, gemm_rows, ..knobs });
                }
            }
        }
        Cut::Attention { kv_heads } => {
            // From a quarter of the multiprocessors to sixteen blocks each.
            let blocks = |splits: u32| u64::from(splits) * u64::from(kv_heads) * rows as u64;
            let multiprocessors = u64::from(card.multiprocessors);
            let sensible = |splits: &u32| {
                *splits == 1 || (multiprocessors / 4..=16 * multiprocessors).contains(&blocks(*splits))
            };
            let splits = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64].into_iter().filter(sensible);
            all.extend(splits.map(|attention_splits| Knobs { attention_splits, ..knobs }));
        }
    }
    let mut kept: Vec<Knobs> = Vec::new();
    for knobs in all {
        if !kept.contains(&knobs) {
            kept.push(knobs);
        }
    }
    kept
}

/// The keys in which `knobs` differ from `base`, as a tuning file sets them.
pub fn settings(mut knobs: Knobs, mut base: Knobs) -> Settings {
    let mut differs = |key: &'static str| {
        let value = *knobs.get_mut(key)?;
        (base.get_mut(key).copied() != Some(value)).then(|| (key.to_owned(), value))
    };
    Knobs::KEYS.into_iter().filter_map(|(key, ..)| differs(key)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths;
    use monomorph_compiler::spec;

    fn h200() -> (Cuda, Knobs) {
        let target = spec::load(&[paths::targets()], "h200/llama-3.2-1b/bf16").unwrap();
        (target.hardware.cuda().unwrap().clone(), target.tuning.unwrap().defaults)
    }

    #[test]
    fn the_defaults_come_first_and_nothing_twice() {
        let (card, knobs) = h200();
        for cut in [Cut::Stream, Cut::Gemm, Cut::Attention { kv_heads: 8 }] {
            let all = variants(cut, 1, knobs, &card);
            assert_eq!(all[0], knobs);
            assert!(all.len() > 4, "{cut:?}: {}", all.len());
            for (at, variant) in all.iter().enumerate() {
                assert!(!all[..at].contains(variant), "{variant:?} twice");
                assert_eq!(settings(*variant, knobs).is_empty(), at == 0, "only the defaults set nothing");
            }
        }
    }

    #[test]
    fn each_cut_moves_its_own_knobs() {
        let (card, knobs) = h200();
        let moved = |cut| {
            let all = variants(cut, 1, knobs, &card);
            let keys = all.into_iter().flat_map(|it| settings(it, knobs).into_keys());
            keys.collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>()
        };
        assert_eq!(
            moved(Cut::Stream),
            ["blocks_per_multiprocessor", "ring_stages", "stage_bytes", "stream_warps"]
        );
        assert_eq!(moved(Cut::Gemm), ["gemm_inputs", "gemm_outputs", "gemm_rows", "gemm_stages"]);
        assert_eq!(moved(Cut::Attention { kv_heads: 8 }), ["attention_splits"]);
    }

    #[test]
    fn a_ring_fits_the_card_and_splits_follow_the_rows() {
        let (card, knobs) = h200();
        for it in variants(Cut::Stream, 1, knobs, &card) {
            assert!(
                it.blocks_per_multiprocessor * it.ring_stages * it.stage_bytes
                    < card.shared_per_multiprocessor
            );
        }
        let splits = |rows| {
            let all = variants(Cut::Attention { kv_heads: 8 }, rows, knobs, &card);
            all.into_iter().map(|it| it.attention_splits).collect::<Vec<_>>()
        };
        assert_eq!(splits(1), [0, 1, 8, 12, 16, 24, 32, 48, 64]);
        assert_eq!(splits(64), [0, 1, 2, 4]);
    }
}
