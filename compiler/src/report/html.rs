//! The report as one page of HTML: phases in time, the roofline, memory, precision, every phase's figures.

use super::{BodyReport, CostReport, Report, Times, report};
use crate::plan::{Cost, Plan, Prediction};
use crate::spec::types::HardwareKind;
use crate::standing::Measurement;
use serde::Serialize;
use tera::{Context, Tera};

const TEMPLATE: &str = include_str!("../../../templates/html/explain.html.tera");

/// Width of the pictures, and of the names left of bars, in their own units.
const WIDTH: f64 = 900.0;
const NAMES: f64 = 130.0;

/// Width of a letter in them.
const LETTER: f64 = 6.0;

/// The square of the roofline: left, right, top, bottom.
const PLOT: [f64; 4] = [60.0, WIDTH - 10.0, 10.0, 265.0];

/// A figure at the head of the page.
#[derive(Serialize)]
struct Card {
    what: &'static str,
    value: String,
    of: String,
}

/// A part of a bar, with what is shown where the pointer rests on it.
#[derive(Serialize)]
struct Bar {
    class: &'static str,
    x: f64,
    width: f64,
    title: String,
}

/// A body in time.
#[derive(Serialize)]
struct Row {
    name: String,
    words: String,
    y: usize,
    bars: Vec<Bar>,
    labels: Vec<Label>,
}

/// A phase's name, where its bar has room for it.
#[derive(Serialize)]
struct Label {
    x: f64,
    text: String,
}

#[derive(Serialize)]
struct Timeline {
    title: String,
    words: String,
    height: usize,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Tick {
    path: String,
    x: f64,
    y: f64,
    anchor: &'static str,
    label: String,
}

#[derive(Serialize)]
struct Point {
    class: &'static str,
    x: f64,
    y: f64,
    title: String,
}

#[derive(Serialize)]
struct Roofline {
    ticks: Vec<Tick>,
    roof: String,
    points: Vec<Point>,
}

#[derive(Serialize)]
struct PhaseRow {
    name: String,
    weights: String,
    kv: String,
    state: String,
    decode: String,
    decode_share: String,
    products: String,
    prefill: String,
    prefill_share: String,
    ops: String,
}

/// The page, with the newest `measured` speed of the target beside the prediction, and the times of phases
/// that a profiling build took, if there are some.
pub fn html(plan: &Plan, measured: Option<&Measurement>, times: Option<&Times>) -> String {
    let report = report(plan);
    let hardware = &plan.target.hardware;
    let mut tera = Tera::default();
    tera.add_raw_template("explain.html", TEMPLATE).expect("the template is part of the compiler");
    let mut context = Context::new();
    context.insert("build", &plan.target.build());
    context.insert("command", &format!("--target {}", plan.target.name()));
    context.insert("width", &WIDTH);
    context.insert("prompt", &Prediction::PREFILL_TOKENS);
    context.insert(
        "hardware",
        &serde_json::json!({
            "name": hardware.name, "bandwidth": format!("{}/s", bytes(hardware.bandwidth)),
            "memory": bytes(hardware.memory_bytes as f64), "boundary": format!("{:.1} us", 1e6 * hardware.boundary_seconds),
        }),
    );
    context.insert("cards", &cards(plan, &report, measured));
    let decode = format!("A token after {} others", Prediction::DECODE_CONTEXT);
    let prefill = format!("A prompt of {} tokens", Prediction::PREFILL_TOKENS);
    let lines = [
        timeline(plan, &report, decode, |it| &it.decode, |it| &it.decode),
        timeline(plan, &report, prefill, |it| &it.prefill, |it| &it.prefill),
    ];
    context.insert("timelines", &lines);
    context.insert("timed", &times.map_or(Vec::new(), |times| times.tables(bytes)));
    context.insert("roofline", &roofline(plan, &report));
    context.insert("memory", &memory(plan, &report));
    let kv = serde_json::json!({"class": "k/v", "stored": plan.target.quant.kv_formats.to_string(), "compute": "f32"});
    let formats = report.formats.iter().map(|it| serde_json::json!(it)).chain([kv]);
    context.insert("formats", &formats.collect::<Vec<_>>());
    context.insert(
        "bodies",
        &report.bodies.iter().enumerate().map(|(at, it)| table(plan, at, it)).collect::<Vec<_>>(),
    );
    context.insert("ranks", &ranks(&report));
    tera.render("explain.html", &context).expect("every name of the template is in the context")
}

fn cards(plan: &Plan, report: &Report, measured: Option<&Measurement>) -> Vec<Card> {
    let speed = &report.speed;
    let share =
        |part: f64, whole: f64| format!("{:.0} % of the limit, {}", 100.0 * part / whole, rate(whole));
    let mut cards = vec![
        Card {
            what: "decode, predicted",
            value: rate(speed.predicted_decode),
            of: share(speed.predicted_decode, speed.limit_decode),
        },
        Card {
            what: "prompts, predicted",
            value: rate(speed.predicted_prefill),
            of: share(speed.predicted_prefill, speed.limit_prefill),
        },
        Card {
            what: "weights",
            value: bytes(report.memory.weights as f64),
            of: format!("{} a token read", bytes(sum(plan, |it| it.decode.weight_bytes))),
        },
        Card {
            what: "keys and values",
            value: bytes(report.memory.kv_token as f64),
            of: "a token".to_owned(),
        },
    ];
    if let Some(it) = measured {
        let of = format!("after {}, {}, {} at {}", it.after, it.weights.words(), it.date, it.commit);
        cards.insert(1, Card { what: "decode, measured", value: rate(it.decode), of });
    }
    cards
}

/// The sum of something over all phases of a step.
fn sum(plan: &Plan, of: impl Fn(&crate::plan::Phase) -> f64) -> f64 {
    plan.schedule.iter().flat_map(|(body, _)| &plan.bodies[body.0].phases).map(of).sum()
}

/// How often a step runs a body.
fn times(plan: &Plan, body: usize) -> usize {
    plan.schedule.iter().filter(|(run, _)| run.0 == body).count()
}

/// Each body once, its phases one after the other at one scale, divided by what takes their time.
fn timeline(
    plan: &Plan,
    report: &Report,
    title: String,
    of: impl Fn(&super::PhaseReport) -> &CostReport,
    cost: impl Fn(&crate::plan::Phase) -> &Cost,
) -> Timeline {
    let total = |body: &BodyReport| body.phases.iter().map(|it| of(it).microseconds).sum::<f64>();
    let bodies: Vec<usize> = (0..report.bodies.len()).filter(|at| times(plan, *at) > 0).collect();
    let longest = bodies.iter().map(|at| total(&report.bodies[*at])).fold(f64::MIN_POSITIVE, f64::max);
    let scale = (WIDTH - NAMES) / longest;
    let hardware = &plan.target.hardware;
    let row = |(line, at): (usize, &usize)| {
        let body = &report.bodies[*at];
        let (mut x, mut bars, mut labels) = (NAMES, Vec::new(), Vec::new());
        for (phase, planned) in body.phases.iter().zip(&plan.bodies[*at].phases) {
            let (it, all) = (of(phase), of(phase).microseconds);
            if scale * all > LETTER * (phase.name.len() + 2) as f64 {
                labels.push(Label { x: round(x + LETTER), text: phase.name.clone() });
            }
            let boundary = all.min(1e6 * hardware.boundary_seconds);
            let moved = it.weight_bytes + it.kv_bytes + it.state_bytes + it.activation_bytes;
            // What bounds it: bytes by their kinds, or products.
            let by_bytes = 1e6 * moved / hardware.bandwidth;
            let by_products = 1e6 * (cost(planned).predicted(hardware)) - 1e6 * hardware.boundary_seconds;
            let rest = all - boundary;
            let parts = match by_products > 1.05 * by_bytes {
                true => vec![("products", rest)],
                false => {
                    let part = |bytes: f64| rest * bytes / moved.max(1.0);
                    vec![
                        ("weights", part(it.weight_bytes + it.activation_bytes)),
                        ("kv", part(it.kv_bytes)),
                        ("state", part(it.state_bytes)),
                    ]
                }
            };
            let title = format!(
                "{}: {:.2} us\n{}\nweights {}, keys and values {}, state {}, activations {}; {:.3e} operations",
                phase.name,
                all,
                phase.ops.join(" + "),
                bytes(it.weight_bytes),
                bytes(it.kv_bytes),
                bytes(it.state_bytes),
                bytes(it.activation_bytes),
                it.flops
            );
            for (class, microseconds) in parts.into_iter().chain([("boundary", boundary)]) {
                if microseconds > 0.0 {
                    let width = scale * microseconds;
                    bars.push(Bar { class, x: round(x), width: round(width), title: title.clone() });
                    x += width;
                }
            }
        }
        let words = format!("{} x {:.1} us", times(plan, *at), total(body));
        Row { name: body.name.clone(), words, y: 42 * line, bars, labels }
    };
    let rows: Vec<Row> = bodies.iter().enumerate().map(row).collect();
    let whole: f64 = bodies.iter().map(|at| times(plan, *at) as f64 * total(&report.bodies[*at])).sum();
    Timeline {
        title,
        words: format!("{whole:.0} us predicted in all; each body once, as often as it says, at one scale."),
        height: 42 * rows.len(),
        rows,
    }
}

/// Products over bytes against products a second, both logarithmic.
fn roofline(plan: &Plan, report: &Report) -> Roofline {
    let hardware = &plan.target.hardware;
    let peak = 2.0
        * match &hardware.kind {
            HardwareKind::Cpu(cpu) => cpu.int8_rate.max(cpu.f32_rate),
            HardwareKind::Cuda(cuda) => cuda.bf16_rate,
        };
    let (mut decades, mut points) = ((-1.0f64, 4.0f64), Vec::new());
    let top = peak.log10().ceil();
    let rates = (top - 5.0, top);
    let ridge = (peak / hardware.bandwidth).log10();
    decades.1 = decades.1.max(ridge.ceil() + 1.0);
    let [left, right, above, below] = PLOT;
    let x = |intensity: f64| left + (intensity - decades.0) / (decades.1 - decades.0) * (right - left);
    let y = |rate: f64| below - (rate - rates.0) / (rates.1 - rates.0) * (below - above);
    for body in &report.bodies {
        for phase in &body.phases {
            for (class, what, cost) in
                [("products", "a token", &phase.decode), ("hollow", "a prompt", &phase.prefill)]
            {
                let moved = cost.weight_bytes + cost.kv_bytes + cost.state_bytes + cost.activation_bytes;
                if cost.flops <= 0.0 || moved <= 0.0 || cost.microseconds <= 0.0 {
                    continue;
                }
                let (intensity, rate) = (cost.flops / moved, cost.flops / (1e-6 * cost.microseconds));
                let title = format!(
                    "{}.{}, {what}: {intensity:.1} operations a byte, {rate:.2e} a second",
                    body.name, phase.name
                );
                let clamp = |value: f64, (least, most): (f64, f64)| value.log10().clamp(least, most);
                points.push(Point {
                    class,
                    x: round(x(clamp(intensity, decades))),
                    y: round(y(clamp(rate, rates))),
                    title,
                });
            }
        }
    }
    let vertical = (decades.0 as i32..=decades.1 as i32).map(|at| {
        let x = round(x(f64::from(at)));
        Tick {
            path: format!("M{x} {above}V{below}"),
            x,
            y: below + 16.0,
            anchor: "middle",
            label: format!("1e{at}"),
        }
    });
    let horizontal = (rates.0 as i32..=rates.1 as i32).map(|at| {
        let y = round(y(f64::from(at)));
        Tick {
            path: format!("M{left} {y}H{right}"),
            x: left - 6.0,
            y: y + 4.0,
            anchor: "end",
            label: format!("1e{at}/s"),
        }
    });
    let names = [Tick {
        path: String::new(),
        x: right,
        y: below + 30.0,
        anchor: "end",
        label: "operations a byte".to_owned(),
    }];
    let start = (hardware.bandwidth * 10f64.powf(decades.0)).log10().max(rates.0);
    let roof = format!(
        "M{} {}L{} {}H{right}",
        round(x(start - hardware.bandwidth.log10())),
        round(y(start)),
        round(x(ridge)),
        round(y(peak.log10()))
    );
    Roofline { ticks: vertical.chain(horizontal).chain(names).collect(), roof, points }
}

/// What stands in memory, and for how many tokens the rest has keys and values.
fn memory(plan: &Plan, report: &Report) -> serde_json::Value {
    let (it, all) = (&report.memory, plan.target.hardware.memory_bytes);
    let state = it.state * plan.buckets.sequences as u64;
    let rest = all.saturating_sub(it.weights + it.scratch + state);
    let tokens = rest / it.kv_token.max(1);
    let scale = WIDTH / all.max(1) as f64;
    let (mut x, mut bars) = (0.0, Vec::new());
    for (class, what, size) in [
        ("weights", "weights", it.weights),
        ("products", "activations and scratch", it.scratch),
        ("state", "recurrent state of all sequences", state),
        ("kv", "keys and values", rest),
    ] {
        let width = scale * size as f64;
        bars.push(Bar {
            class,
            x: round(x),
            width: round(width),
            title: format!("{what}: {}", bytes(size as f64)),
        });
        x += width;
    }
    let words = format!(
        "{} of {} are weights, {} activations; what is left holds keys and values of {tokens} tokens at most.",
        bytes(it.weights as f64),
        bytes(all as f64),
        bytes(it.scratch as f64)
    );
    serde_json::json!({ "words": words, "bars": bars })
}

/// The figures of a body's phases.
fn table(plan: &Plan, at: usize, body: &BodyReport) -> serde_json::Value {
    let hardware = &plan.target.hardware;
    // Of the time, without boundaries.
    let share = |cost: &CostReport| {
        let limit = cost.microseconds - 1e6 * hardware.boundary_seconds;
        if cost.microseconds > 0.0 {
            format!("{:.0} %", (100.0 * limit / cost.microseconds).max(0.0))
        } else {
            String::new()
        }
    };
    let some = |size: f64| if size > 0.0 { bytes(size) } else { String::new() };
    let row = |it: &super::PhaseReport| PhaseRow {
        name: it.name.clone(),
        weights: some(it.decode.weight_bytes),
        kv: some(it.decode.kv_bytes),
        state: some(it.decode.state_bytes),
        decode: format!("{:.2}", it.decode.microseconds),
        decode_share: share(&it.decode),
        products: format!("{:.2e}", it.prefill.flops),
        prefill: format!("{:.1}", it.prefill.microseconds),
        prefill_share: share(&it.prefill),
        ops: it.ops.join(" + "),
    };
    let title = match times(plan, at) {
        0 => format!("{}, not in a step", body.name),
        1 => body.name.clone(),
        times => format!("{}, {times} layers", body.name),
    };
    serde_json::json!({ "title": title, "phases": body.phases.iter().map(row).collect::<Vec<_>>() })
}

fn ranks(report: &Report) -> Option<serde_json::Value> {
    let it = report.ranks.as_ref()?;
    let each = it.each.iter().map(|it| {
        serde_json::json!({
            "name": it.name, "times": it.times, "decode_bytes": bytes(it.decode_bytes), "decode": format!("{:.2}", it.decode_microseconds),
            "prefill_bytes": bytes(it.prefill_bytes), "prefill": format!("{:.1}", it.prefill_microseconds),
        })
    });
    let words = format!(
        "{} exchanges a step, {:.1} of its {:.0} us; of a prompt {:.0} of {:.0} us.",
        it.exchanges,
        it.decode_microseconds,
        it.rank_decode_microseconds,
        it.prefill_microseconds,
        it.rank_prefill_microseconds
    );
    Some(serde_json::json!({ "ranks": it.ranks, "words": words, "each": each.collect::<Vec<_>>() }))
}

fn rate(tokens: f64) -> String {
    format!("{tokens:.0} tok/s")
}

/// A size for people.
fn bytes(size: f64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB"];
    let power = if size < 1000.0 { 0 } else { ((size.log10() / 3.0) as usize).min(units.len() - 1) };
    let scaled = size / 1000f64.powi(power as i32);
    let digits = if power == 0 || scaled >= 100.0 { 0 } else { 1 };
    format!("{scaled:.digits$} {}", units[power])
}

/// To hundredths, which is less than a pixel.
fn round(value: f64) -> f64 {
    (100.0 * value).round() / 100.0
}
