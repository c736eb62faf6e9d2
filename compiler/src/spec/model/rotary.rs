//! `rotary` of an attention mixer.

use super::MAX_HEADS;
use crate::spec::diagnostic::Source;
use crate::spec::reader::{At, Table, Value};
use crate::spec::types::*;

/// Reads `"none"`, or a table.
pub(crate) fn or_none(source: &Source, value: Value, head_dim: Option<&At<usize>>) -> Option<Option<Rotary>> {
    if value.is_string() {
        let what = "`none`, or a table such as { dims = 64, theta = 10000.0, pairs = \"halves\" }";
        return value.string_that(what, |it| it == "none").map(|_| None);
    }
    value.table().and_then(|table| read(source, table, head_dim)).map(Some)
}

/// Reads a table; with `head_dim`, no more dimensions may turn than a head has.
pub(crate) fn read(source: &Source, mut table: Table, head_dim: Option<&At<usize>>) -> Option<Rotary> {
    let dims = table.required("dims", "dims = 64").and_then(|it| it.size(2..=MAX_HEADS));
    if let Some(dims) = &dims {
        let key = table.key("dims");
        if dims.value % 2 != 0 {
            let message = format!("`{key}` = {} is odd", dims.value);
            let help = format!("dimensions turn in pairs: {} or {}", dims.value - 1, dims.value + 1);
            source.report(dims.span.clone(), &key, message, "odd", help);
        }
        if let Some(head_dim) = head_dim.filter(|head_dim| dims.value > head_dim.value) {
            let message = format!("`{key}` = {} is more than the head's {}", dims.value, head_dim.value);
            let help = format!("at most {}", head_dim.value);
            let mistake = source.mistake(dims.span.clone(), &key, message, "too many", help);
            source.sink.push(mistake.also(head_dim.span.clone(), "the head's width"));
        }
    }
    let above_one = |it: f64| it > 1.0;
    let theta = table.required("theta", "theta = 10000.0").and_then(|it| it.number("above 1", above_one));
    let pairs = [("halves", RotaryPairs::Halves), ("adjacent", RotaryPairs::Adjacent)];
    let pairs = table.required("pairs", "pairs = \"halves\"").and_then(|it| it.choice(&pairs));
    let most = dims.as_ref().map_or(MAX_HEADS, |dims| dims.value as u64 / 2).max(1);
    let turning = match table.optional("turning") {
        Some(value) => value.size(1..=most).map(|it| Some(it.value)),
        None => Some(None),
    };
    let scaling = match table.optional("scaling") {
        Some(value) => value.table().and_then(|table| scaling(source, table)),
        None => Some(RotaryScaling::None),
    };
    table.finish();
    Some(Rotary {
        dims: dims?.value,
        theta: theta?.value,
        pairs: pairs?.value,
        turning: turning?,
        scaling: scaling?,
    })
}

fn scaling(source: &Source, mut table: Table) -> Option<RotaryScaling> {
    let kinds = [("linear", 0), ("llama3", 1), ("yarn", 2)];
    let kind = table.required("kind", "kind = \"linear\"").and_then(|it| it.choice(&kinds))?;
    let mut number = |key: &str, example: &str| {
        table.required(key, &format!("{key} = {example}")).and_then(Value::positive)
    };
    let factor = number("factor", "8.0");
    let scaling = match kind.value {
        0 => factor.map(|factor| RotaryScaling::Linear { factor: factor.value }),
        1 => {
            let (low, high) = (number("low", "1.0"), number("high", "4.0"));
            let original = number("original", "8192.0");
            ordered(source, &table, ("low", &low), ("high", &high), |low, high| low < high);
            (|| {
                let (factor, low, high) = (factor?.value, low?.value, high?.value);
                Some(RotaryScaling::Llama3 { factor, low, high, original: original?.value })
            })()
        }
        _ => {
            let original = number("original", "4096.0");
            let (fast, slow) = (number("beta_fast", "32.0"), number("beta_slow", "1.0"));
            let attention_factor = number("attention_factor", "1.0");
            let truncate = table.required("truncate", "truncate = true").and_then(Value::boolean);
            ordered(source, &table, ("beta_slow", &slow), ("beta_fast", &fast), |slow, fast| slow <= fast);
            (|| {
                Some(RotaryScaling::Yarn {
                    factor: factor?.value,
                    original: original?.value,
                    beta_fast: fast?.value,
                    beta_slow: slow?.value,
                    attention_factor: attention_factor?.value,
                    truncate: truncate?.value,
                })
            })()
        }
    };
    table.finish();
    scaling
}

/// Reports the ends of a ramp that are in the wrong order.
fn ordered(
    source: &Source,
    table: &Table,
    low: (&str, &Option<At<f64>>),
    high: (&str, &Option<At<f64>>),
    holds: fn(f64, f64) -> bool,
) {
    let ((low_key, Some(low)), (high_key, Some(high))) = (low, high) else { return };
    if !holds(low.value, high.value) {
        let key = table.key(low_key);
        let message =
            format!("`{key}` = {} and `{high_key}` = {} are the wrong way round", low.value, high.value);
        let help = format!("the ramp runs from `{low_key}` up to `{high_key}`");
        let mistake = source.mistake(low.span.clone(), &key, message, "the lower end", help);
        source.sink.push(mistake.also(high.span.clone(), "the upper end"));
    }
}
