//! `[mixer.*]`.

use super::{ACTIVATIONS, MAX_HEADS, flag, norm, rotary};
use crate::spec::diagnostic::Source;
use crate::spec::reader::{At, Table, Value, list};
use crate::spec::types::*;

pub(super) fn mixers(source: &Source, mut table: Table) -> Option<Vec<(At<String>, Mixer)>> {
    let span = table.span();
    let mut mixers = Vec::new();
    let mut sound = true;
    for (name, value) in table.entries() {
        let path = value.path().to_owned();
        let reserved = ["embed", "head"].contains(&name.value.as_str());
        // The name becomes a function of the emitted stack.
        if reserved || name.value.starts_with('_') || syn::parse_str::<syn::Ident>(&name.value).is_err() {
            let message = format!("a mixer cannot be called {:?}", name.value);
            let help = "a Rust identifier that is no keyword, neither `embed` nor `head`".to_owned();
            source.report(name.span.clone(), &path, message, "this name", help);
            sound = false;
        }
        match value.table().and_then(|table| mixer(source, table)) {
            Some(mixer) => mixers.push((name, mixer)),
            None => sound = false,
        }
    }
    if sound && mixers.is_empty() {
        let help = "add `[mixer.attention]`".to_owned();
        source.report(span, "mixer", "there is no mixer".to_owned(), "empty", help);
        return None;
    }
    sound.then_some(mixers)
}

fn mixer(source: &Source, mut table: Table) -> Option<Mixer> {
    let kinds = [("attention", true), ("gated-delta-net", false)];
    let attends = table.required("kind", "kind = \"attention\"").and_then(|it| it.choice(&kinds))?.value;
    if attends {
        Some(Mixer::Attention(attention(source, table)?))
    } else {
        Some(Mixer::DeltaNet(delta_net(source, table)?))
    }
}

fn delta_net(source: &Source, mut table: Table) -> Option<DeltaNet> {
    let mut size = |key: &str, example: u32, most: u64| {
        table.required(key, &format!("{key} = {example}")).and_then(|it| it.size(1..=most))
    };
    let key_heads = size("key_heads", 16, MAX_HEADS);
    let value_heads = size("value_heads", 32, MAX_HEADS);
    let key_dim = size("key_dim", 128, MAX_HEADS);
    let value_dim = size("value_dim", 128, MAX_HEADS);
    let taps = size("taps", 4, 64);
    divides(source, &table, ("key_heads", &key_heads), &value_heads, "value heads", "key head");
    let example = "norm = { kind = \"rms\", weight = \"plain\", eps = 1e-6 }";
    let norm = table.required("norm", example).and_then(norm);
    let activation =
        table.required("activation", "activation = \"silu\"").and_then(|it| it.choice(&ACTIVATIONS));
    table.finish();
    let shape = DeltaShape {
        key_heads: key_heads?.value,
        value_heads: value_heads?.value,
        key_dim: key_dim?.value,
        value_dim: value_dim?.value,
        taps: taps?.value,
    };
    Some(DeltaNet { shape, norm: norm?, activation: activation?.value })
}

/// Reports heads that cannot be shared out evenly.
fn divides(
    source: &Source,
    table: &Table,
    (few_key, few): (&str, &Option<At<usize>>),
    many: &Option<At<usize>>,
    heads: &str,
    serves: &str,
) {
    let (Some(few), Some(many)) = (few, many) else { return };
    if many.value % few.value == 0 {
        return;
    }
    let key = table.key(few_key);
    let message = format!("`{key}` = {} does not divide the {} {heads}", few.value, many.value);
    let divisors: Vec<_> = (1..=many.value).filter(|it| many.value % it == 0).take(16).collect();
    let help = format!("every {serves} serves equally many {heads}: one of {}", list(divisors.iter()));
    let mistake = source.mistake(few.span.clone(), &key, message, "does not divide", help);
    source.sink.push(mistake.also(many.span.clone(), &format!("the {heads}")));
}

fn attention(source: &Source, mut table: Table) -> Option<Attention> {
    let mut size = |key: &str, example: u32| {
        table.required(key, &format!("{key} = {example}")).and_then(|it| it.size(1..=MAX_HEADS))
    };
    let heads = size("heads", 16);
    let kv_heads = size("kv_heads", 4);
    let head_dim = size("head_dim", 64);
    divides(source, &table, ("kv_heads", &kv_heads), &heads, "query heads", "K/V head");
    let rotary_example = "rotary = { dims = 64, theta = 10000.0, pairs = \"halves\" }";
    let rotary = table.required("rotary", rotary_example).and_then(Value::table);
    let rotary = rotary.and_then(|table| rotary::read(source, table, head_dim.as_ref()));
    let qk_norm = match table.optional("qk_norm") {
        Some(value) => norm(value).map(Some),
        None => Some(None),
    };
    let qkv_bias = flag(&mut table, "qkv_bias");
    let output_bias = flag(&mut table, "output_bias");
    let gate = match table.optional("gate") {
        Some(value) => value.choice(&[("sigmoid", true)]).map(|it| it.value),
        None => Some(false),
    };
    table.finish();
    Some(Attention {
        heads: heads?.value,
        kv_heads: kv_heads?.value,
        head_dim: head_dim?.value,
        rotary: rotary?,
        qk_norm: qk_norm?,
        qkv_bias: qkv_bias?,
        output_bias: output_bias?,
        gate: gate?,
    })
}
