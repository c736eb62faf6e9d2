//! `[defaults]` of CUDA hardware, and the tuning files that override them.

use super::diagnostic::Source;
use super::reader::{Table, Value};
use super::types::{DECODE_BUCKETS, Knobs, PhaseTuning, Provenance, Settings, Tuning};
use std::collections::BTreeMap;

/// Reads every knob: `[defaults]` of HARDWARE.toml.
pub(super) fn knobs(source: &Source, mut table: Table) -> Option<Knobs> {
    let present =
        Knobs::KEYS.map(|(key, least, _)| table.required(key, &format!("{key} = {least}")).is_some());
    let settings = settings(source, &mut table);
    table.finish();
    let mut knobs = Knobs::default();
    set(&mut knobs, &settings?);
    present.iter().all(|it| *it).then_some(knobs)
}

/// Reads a tuning file, which overrides the hardware's defaults.
pub(super) fn read(source: &Source, mut root: Table, defaults: Knobs) -> Option<Tuning> {
    let provenance = root.table("measured").and_then(|mut table| {
        let mut text = |key: &str, example: &str| {
            table.required(key, &format!("{key} = {example:?}")).and_then(Value::string)
        };
        let card = text("card", "NVIDIA H200");
        let command = text("command", "cargo xtask bench --target ...");
        let day = |text: &str| {
            let form = |(at, byte): (usize, u8)| {
                if [4, 7].contains(&at) { byte == b'-' } else { byte.is_ascii_digit() }
            };
            text.len() == 10 && text.bytes().enumerate().all(form)
        };
        let date = table
            .required("date", "date = \"2026-01-31\"")
            .and_then(|it| it.string_that("a day such as \"2026-01-31\"", day));
        table.finish();
        let (card, date, command) = (card?.value, date?.value, command?.value);
        Some(Provenance::Measured { file: source.name.clone(), card, date, command })
    });
    let all = settings(source, &mut root);
    let phases = match root.optional("phase") {
        Some(value) => value.table().and_then(|table| phases(source, table)),
        None => Some(BTreeMap::new()),
    };
    root.finish();
    let mut knobs = defaults;
    set(&mut knobs, &all?);
    Some(Tuning { defaults, knobs, phases: phases?, provenance: provenance? })
}

/// Reads `[phase.NAME]` and `[phase.NAME.BUCKET]`. The planner refuses names that it does not have.
fn phases(source: &Source, mut table: Table) -> Option<BTreeMap<String, PhaseTuning>> {
    let mut phases = Some(BTreeMap::new());
    for (name, value) in table.entries() {
        let phase = value.table().and_then(|mut table| {
            let all = settings(source, &mut table);
            let mut buckets = Some(BTreeMap::new());
            let rows = DECODE_BUCKETS.map(|rows| (rows.to_string(), Some(rows)));
            for (bucket, rows) in rows.into_iter().chain([("prefill".to_owned(), None)]) {
                let Some(value) = table.optional(&bucket) else { continue };
                let read = value.table().and_then(|mut table| {
                    let settings = settings(source, &mut table);
                    table.finish();
                    settings
                });
                buckets = buckets.zip(read).map(|(mut buckets, read)| {
                    buckets.insert(rows, read);
                    buckets
                });
            }
            table.finish();
            let line = 1 + source.text[..name.span.start].matches('\n').count();
            Some(PhaseTuning { all: all?, buckets: buckets?, line })
        });
        phases = phases.zip(phase).map(|(mut phases, phase)| {
            phases.insert(name.value, phase);
            phases
        });
    }
    phases
}

/// The knobs that a table sets.
fn settings(source: &Source, table: &mut Table) -> Option<Settings> {
    let mut settings = Some(Settings::new());
    for (key, least, most) in Knobs::KEYS {
        let Some(value) = table.optional(key) else { continue };
        let path = value.path().to_owned();
        let read = value.integer(u64::from(least)..=u64::from(most)).and_then(|it| {
            let value = u32::try_from(it.value).ok()?;
            if key == "stage_bytes" && value % 512 != 0 {
                let message = format!("`{path}` = {value} is not whole units of packed weights");
                source.report(it.span, &path, message, "no multiple of 512", "a multiple of 512".to_owned());
                return None;
            }
            Some(value)
        });
        settings = settings.zip(read).map(|(mut settings, read)| {
            settings.insert(key.to_owned(), read);
            settings
        });
    }
    settings
}

fn set(knobs: &mut Knobs, settings: &Settings) {
    for (key, value) in settings {
        if let Some(knob) = knobs.get_mut(key) {
            *knob = *value;
        }
    }
}
