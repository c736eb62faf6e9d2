//! A mixture of experts against f64: routing, ties, every format, rows alone and among others.

use crate::common::{Owned, Random, Rounded, close, product, progress};
use monomorph_device::cpu::*;
use monomorph_formats::Format;
use monomorph_weights::{Tensor, WeightsError};
use std::path::Path;

/// The last has experts with more rows than are multiplied at a time.
const ROWS: [usize; 6] = [1, 2, 3, 17, 70, 210];
const MOST: usize = 210;

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Softmax over all logits, and the `active` largest with their experts, ties to the lower id.
fn choices(logits: &[f32], active: usize, renormalise: bool) -> Vec<(f64, usize)> {
    let exps: Vec<f64> = logits.iter().map(|x| f64::from(*x).exp()).collect();
    let sum: f64 = exps.iter().sum();
    let mut all: Vec<(f64, usize)> = exps.iter().map(|e| e / sum).zip(0..).collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    all.truncate(active);
    let kept: f64 = all.iter().map(|(p, _)| p).sum();
    if renormalise {
        all.iter_mut().for_each(|(p, _)| *p /= kept);
    }
    all
}

fn normalised(x: &[f32], gains: &[f32]) -> Vec<f32> {
    let mean = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + 1e-6).sqrt();
    x.iter().zip(gains).map(|(x, w)| (f64::from(*x) * scale * (1.0 + f64::from(*w))) as f32).collect()
}

/// One layer's weights, as stored.
struct Layer {
    gate: Vec<Owned>,
    up: Vec<Owned>,
    down: Vec<Owned>,
    gains: Owned,
}

impl Layer {
    fn random<F: Rounded>(random: &mut Random, experts: usize, width: usize, hidden: usize) -> Layer {
        let mut tensors = |name: &str, shape: [usize; 2]| -> Vec<Owned> {
            (0..experts).map(|e| Owned::of::<F>(random, &format!("{name}.{e}"), &shape)).collect()
        };
        let gate = tensors("gate", [width, hidden]);
        let up = tensors("up", [width, hidden]);
        let down = tensors("down", [hidden, width]);
        Layer { gate, up, down, gains: Owned::random(random, "norm", &[hidden], Format::F32) }
    }
}

fn parts(tensors: &[Owned]) -> Vec<Part<'_>> {
    tensors.iter().map(|tensor| Part::new(tensor.tensor())).collect()
}

/// The scales beside each.
fn scales(tensors: &[Owned]) -> Vec<Vec<Tensor<'_>>> {
    tensors.iter().map(Owned::companions).collect()
}

fn scaled<'a>(tensors: &'a [Owned], scales: &'a [Vec<Tensor<'a>>]) -> Vec<Part<'a>> {
    tensors.iter().zip(scales).map(|(tensor, scales)| tensor.part(scales)).collect()
}

/// Activations of a step, by row: routing, each slot's inner row, and what was added to the residual.
type Found = Vec<(Vec<f32>, Vec<Vec<f32>>, Vec<f32>)>;

/// `LOGITS` is one more than `EXPERTS`: the last is the shared expert's gate.
fn check<
    F: Rounded,
    const EXPERTS: usize,
    const LOGITS: usize,
    const ROUTING: usize,
    const WIDTH: usize,
    const HIDDEN: usize,
>(
    renormalise: bool,
    shared: bool,
) {
    let active = ROUTING / 2;
    let what = format!("{} {active} of {EXPERTS}, {WIDTH} of {HIDDEN}", std::any::type_name::<F>());
    let mut random = Random((EXPERTS * WIDTH) as u64);
    let layer = Layer::random::<F>(&mut random, EXPERTS, WIDTH, HIDDEN);
    let of_each = [&layer.gate, &layer.up, &layer.down].map(|it| scales(it));
    let (mut x, mut logits) = (Rows::<HIDDEN>::new(MOST), Rows::<LOGITS>::new(MOST));
    let (mut output, mut before) = (Rows::<HIDDEN>::new(MOST), Rows::<HIDDEN>::new(MOST));
    random.fill(&mut x, MOST, 2.0);
    random.fill(&mut logits, MOST, 3.0);
    random.fill(&mut output, MOST, 5.0);
    random.fill(&mut before, MOST, 1.0);

    // Row by row on one lane first; then steps of several rows on several lanes, to the same bits.
    let mut alone: Found = Vec::new();
    for lanes in [1, 2, 3] {
        let (team, progress) = (Team::new(lanes).unwrap(), progress());
        let loader = Loader::new(&team, Path::new("checkpoint"), &progress);
        let [gate, up] =
            [(&layer.gate, &of_each[0]), (&layer.up, &of_each[1])].map(|(it, of)| scaled(it, of));
        let gated = GatedExperts::<F, EXPERTS, WIDTH, HIDDEN>::load(&loader, &gate, &up).unwrap();
        let down = scaled(&layer.down, &of_each[2]);
        let down = Experts::<F, EXPERTS, HIDDEN, WIDTH>::load(&loader, &down).unwrap();
        let counted = 2 * WIDTH * F::tile_bytes(HIDDEN) + HIDDEN * F::tile_bytes(WIDTH);
        assert_eq!(progress.read().0, (EXPERTS * counted / 16) as u64);
        let norm = RmsNorm::<OnePlus, HIDDEN>::load(&loader, &Part::new(layer.gains.tensor()), 1e-6).unwrap();
        let staging = Staging::<F, HIDDEN>::new(lanes, MOST);
        let gated_scratch = ExpertScratch::<F, HIDDEN>::new(lanes, MOST * active);
        let down_scratch = ExpertScratch::<F, WIDTH>::new(lanes, MOST * active);
        let mut run = |first: usize, rows: usize| -> Found {
            let (mut step, mut router) = (Rows::<HIDDEN>::new(rows), Rows::<LOGITS>::new(rows));
            let (mut term, mut residual) = (Rows::<HIDDEN>::new(rows), Rows::<HIDDEN>::new(rows));
            for row in 0..rows {
                *step.row_mut(row) = *x.row(first + row);
                *router.row_mut(row) = *logits.row(first + row);
                *term.row_mut(row) = *output.row(first + row);
                *residual.row_mut(row) = *before.row(first + row);
            }
            let mut routing = Rows::<ROUTING>::new(rows);
            let mut inner = Rows::<WIDTH>::new(rows * active);
            let products = Rows::<HIDDEN>::new(rows * active);
            team.run(|lane| {
                route::<EXPERTS, _, _>(lane, rows, &router, renormalise, &routing);
                let epilogue = Gated(Silu, &inner);
                expert_gated(lane, rows, &step, &norm, &staging, &routing, &gated, &gated_scratch, epilogue);
                macro_rules! down {
                    ($shared:expr) => {
                        expert_down(
                            lane,
                            rows,
                            &inner,
                            &routing,
                            &down,
                            &down_scratch,
                            &products,
                            $shared,
                            &residual,
                        )
                    };
                }
                if shared {
                    down!(Shared { output: &term, logits: &router, gate: EXPERTS });
                } else {
                    down!(NoShared);
                }
            });
            (0..rows)
                .map(|row| {
                    let slots = (0..active).map(|slot| inner.row(row * active + slot).to_vec()).collect();
                    (routing.row(row).to_vec(), slots, residual.row(row).to_vec())
                })
                .collect()
        };
        if lanes == 1 {
            alone = (0..MOST).flat_map(|row| run(row, 1)).collect();
        }
        for rows in ROWS {
            assert!(run(0, rows) == alone[..rows], "{what}: bits of {rows} rows on {lanes} lanes");
        }
        assert!(run(5, 12) == alone[5..17], "{what}: bits of rows 5 to 16 on {lanes} lanes");
    }

    let inexact = 3.0 * F::ROUNDS.tolerance(3e-6);
    for (row, (routing, inner, residual)) in alone.iter().enumerate().take(40) {
        let expected = choices(&logits.row(row)[..EXPERTS], active, renormalise);
        let ids: Vec<usize> = routing[active..].iter().map(|id| *id as usize).collect();
        assert_eq!(ids, expected.iter().map(|(_, id)| *id).collect::<Vec<_>>(), "{what}: row {row}");
        let weights: Vec<f64> = expected.iter().map(|(p, _)| *p).collect();
        close(&routing[..active], &weights, 1e-6, &what);
        let normed = normalised(x.row(row), &layer.gains.values());
        let mut sum = vec![0.0; HIDDEN];
        for ((weight, expert), inner) in expected.iter().zip(inner) {
            let pairs = product(&layer.gate[*expert], F::ROUNDS, &normed).into_iter();
            let pairs = pairs.zip(product(&layer.up[*expert], F::ROUNDS, &normed));
            let wanted: Vec<f64> = pairs.map(|(gate, up)| gate * sigmoid(gate) * up).collect();
            close(inner, &wanted, inexact, &format!("{what}: inner of row {row}"));
            // From the kernel's own inner rows: whatever rounded them does not count twice.
            for (sum, product) in sum.iter_mut().zip(product(&layer.down[*expert], F::ROUNDS, inner)) {
                *sum += weight * product;
            }
        }
        let scale = if shared { sigmoid(f64::from(logits.row(row)[EXPERTS])) } else { 0.0 };
        for (i, sum) in sum.iter_mut().enumerate() {
            *sum += scale * f64::from(output.row(row)[i]) + f64::from(before.row(row)[i]);
        }
        close(residual, &sum, 1e-5, &format!("{what}: residual of row {row}"));
    }
}

#[test]
fn float_experts() {
    check::<F32, 5, 6, 2, 7, 20>(false, false);
    check::<F32, 5, 6, 10, 20, 36>(true, true);
    check::<Bf16, 40, 41, 16, 33, 50>(true, true);
    check::<F16, 17, 18, 6, 50, 36>(false, true);
}

#[test]
fn quantised_experts() {
    check::<Q8_0, 40, 41, 16, 96, 160>(true, true);
    check::<Q8_0, 3, 4, 4, 32, 64>(false, false);
    check::<Q4_1, 12, 13, 8, 160, 96>(true, true);
}

#[test]
fn experts_of_codes_with_scales_beside_them() {
    check::<InF16<Nvfp4Groups>, 17, 18, 6, 48, 80>(true, true);
    check::<InF16<Fp8Block128>, 5, 6, 4, 132, 144>(true, false);
}

#[test]
fn equal_probabilities_go_to_the_lower_id() {
    fn ids<const EXPERTS: usize, const ROUTING: usize>(lanes: usize, row: [f32; EXPERTS]) -> Vec<f32> {
        let (mut logits, mut routing) = (Rows::<EXPERTS>::new(1), Rows::<ROUTING>::new(1));
        *logits.row_mut(0) = row;
        let team = Team::new(lanes).unwrap();
        team.run(|lane| route::<EXPERTS, _, _>(lane, 1, &logits, true, &routing));
        let (weights, ids) = routing.row(0).split_at(ROUTING / 2);
        assert!(weights.is_sorted_by(|a, b| a >= b) || row.iter().any(|x| x.is_nan()), "{weights:?}");
        ids.to_vec()
    }
    assert_eq!(ids::<20, 8>(1, [0.5; 20]), [0.0, 1.0, 2.0, 3.0]);
    let mut row = [-1.0; 37];
    for (id, value) in [(36, 2.0), (17, 2.0), (4, 1.0), (3, 3.0), (20, 1.0), (19, 1.0)] {
        row[id] = value;
    }
    assert_eq!(ids::<37, 12>(2, row), [3.0, 17.0, 36.0, 4.0, 19.0, 20.0]);
    // All but one far below what f32 holds of a probability: zeros are equal, too.
    let mut row = [-400.0; 9];
    row[6] = 0.0;
    assert_eq!(ids::<9, 6>(1, row), [6.0, 0.0, 1.0]);
    // All experts are active, and none is named twice.
    assert_eq!(ids::<5, 10>(1, [0.0, 4.0, 2.0, 4.0, 2.0]), [1.0, 3.0, 2.0, 4.0, 0.0]);
    // What is no number still names experts that are there, each once.
    let mut found = ids::<9, 8>(1, [f32::NAN; 9]);
    found.sort_by(f32::total_cmp);
    found.dedup();
    assert!(found.len() == 4 && found.iter().all(|id| (0.0..9.0).contains(id)), "{found:?}");
}

#[test]
fn corrected_scores_choose_and_scores_alone_weigh() {
    const EXPERTS: usize = 21;
    let (mut random, progress) = (Random(11), progress());
    let team = Team::new(2).unwrap();
    let loader = Loader::new(&team, Path::new("checkpoint"), &progress);
    let tensor = Owned::random(&mut random, "correction", &[EXPERTS], Format::F32);
    let corrections = tensor.values();
    let correction = Vector::<EXPERTS>::load(&loader, &[Part::new(tensor.tensor())]).unwrap();
    let (mut logits, mut routing) = (Rows::<EXPERTS>::new(7), Rows::<10>::new(7));
    random.fill(&mut logits, 7, 3.0);
    team.run(|lane| route_by_scores(lane, 7, &logits, &correction, 2.5, &routing));
    for row in 0..7 {
        let scores = logits.row(row).map(|x| sigmoid(f64::from(x)));
        let mut order: Vec<usize> = (0..EXPERTS).collect();
        let key = |e: &usize| scores[*e] + f64::from(corrections[*e]);
        order.sort_by(|a, b| key(b).total_cmp(&key(a)));
        let (weights, ids) = routing.row(row).split_at(5);
        assert_eq!(ids.iter().map(|id| *id as usize).collect::<Vec<_>>(), order[..5], "row {row}");
        let sum: f64 = order[..5].iter().map(|e| scores[*e]).sum();
        let wanted: Vec<f64> = order[..5].iter().map(|e| 2.5 * scores[*e] / sum).collect();
        close(weights, &wanted, 1e-5, &format!("weights of row {row}"));
    }
}

#[test]
#[should_panic(expected = "there is no expert 3")]
fn an_expert_that_is_not_there_is_refused() {
    let (team, progress) = (Team::new(1).unwrap(), progress());
    let loader = Loader::new(&team, Path::new("checkpoint"), &progress);
    let down: Vec<Owned> =
        (0..3).map(|_| Owned::random(&mut Random(1), "w", &[16, 16], Format::F32)).collect();
    let down = Experts::<F32, 3, 16, 16>::load(&loader, &parts(&down)).unwrap();
    let mut routing = Rows::<2>::new(1);
    *routing.row_mut(0) = [1.0, 3.0];
    let (x, scratch) = (Rows::<16>::new(1), ExpertScratch::<F32, 16>::new(1, 1));
    let (products, residual) = (Rows::<16>::new(1), Rows::<16>::new(1));
    team.run(|lane| expert_down(lane, 1, &x, &routing, &down, &scratch, &products, NoShared, &residual));
}

#[test]
fn tensors_that_do_not_fit_are_refused_by_name() {
    let (team, progress) = (Team::new(1).unwrap(), progress());
    let loader = Loader::new(&team, Path::new("model.gguf"), &progress);
    let mut random = Random(3);
    let mut tensors = |name: &str, count: usize, rows: usize| -> Vec<Owned> {
        let name = |e| format!("{name}.{e}");
        (0..count).map(|e| Owned::random(&mut random, &name(e), &[rows, 32], Format::Q8_0)).collect()
    };
    let (good, few, tall) = (tensors("good", 3, 20), tensors("few", 2, 20), tensors("tall", 3, 21));
    let message = |result: Result<(), WeightsError>| result.unwrap_err().to_string();
    let gated = |gate: &[Owned], up: &[Owned]| {
        message(GatedExperts::<Q8_0, 3, 20, 32>::load(&loader, &parts(gate), &parts(up)).map(drop))
    };
    let plain = |of: &[Owned]| message(Experts::<Q8_0, 3, 20, 32>::load(&loader, &parts(of)).map(drop));
    for (text, words) in [
        (gated(&few, &good), "experts from few.0 on: expected 3, found 2"),
        (gated(&good, &[]), "experts from no tensor at all on: expected 3, found 0"),
        (gated(&good, &tall), "tensors tall.0: expected 20 rows, found 21"),
        (plain(&few), "experts from few.0 on: expected 3, found 2"),
        (plain(&tall), "tensors tall.0: expected 20 rows, found 21"),
    ] {
        assert!(text.contains("model.gguf") && text.contains(words), "{text}");
    }
}
