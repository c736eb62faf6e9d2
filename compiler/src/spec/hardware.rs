//! HARDWARE.toml.

use super::diagnostic::Source;
use super::reader::{At, Table};
use super::types::{Cpu, Hardware, HardwareKind};
use std::ops::Range;

/// A validated HARDWARE.toml and the places later checks point at.
pub(super) struct ReadHardware {
    pub(super) hardware: Hardware,
    /// Where `memory.bytes` stands.
    pub(super) memory: Range<usize>,
}

/// Reads and checks HARDWARE.toml.
pub(super) fn read(source: &Source, name: &str, mut root: Table) -> Option<ReadHardware> {
    let is_cpu = root.table("hardware").and_then(|mut table| {
        let kind = table.required("kind", "kind = \"cpu\"").and_then(|it| it.choice(&[("cpu", ())]));
        table.finish();
        kind
    });
    let memory = root.table("memory").and_then(|mut table| {
        let bytes = table.required("bytes", "bytes = 8_589_934_592").and_then(|it| it.integer(1..=1 << 50));
        table.finish();
        bytes
    });
    let figures = root.table("figures").and_then(figures);
    // Whatever else the kind brings is unknown until the kind is.
    let kind = match is_cpu {
        Some(_) => {
            let cpu = root.table("cpu").and_then(|table| cpu(source, table));
            root.finish();
            cpu
        }
        None => None,
    };
    let (memory, figures, (target_cpu, features)) = (memory?, figures?, kind?);
    let Figures { bandwidth, boundary_seconds, int8_rate, f32_rate, threads } = figures;
    let cpu = Cpu { target_cpu, features, threads, int8_rate, f32_rate };
    let hardware = Hardware {
        name: name.to_owned(),
        memory_bytes: memory.value,
        bandwidth,
        boundary_seconds,
        kind: HardwareKind::Cpu(cpu),
    };
    Some(ReadHardware { hardware, memory: memory.span })
}

struct Figures {
    bandwidth: f64,
    boundary_seconds: f64,
    int8_rate: f64,
    f32_rate: f64,
    threads: usize,
}

fn figures(mut table: Table) -> Option<Figures> {
    let mut rate = |key: &str, example: &str| {
        let value = table.required(key, &format!("{key} = {example}"))?;
        Some(value.positive()?.value)
    };
    let bandwidth = rate("bandwidth", "30e9");
    let boundary_seconds = rate("boundary_seconds", "2e-6");
    let int8_rate = rate("int8_rate", "120e9");
    let f32_rate = rate("f32_rate", "50e9");
    let threads = table.required("threads", "threads = 2").and_then(|it| it.size(1..=4096));
    table.finish();
    Some(Figures {
        bandwidth: bandwidth?,
        boundary_seconds: boundary_seconds?,
        int8_rate: int8_rate?,
        f32_rate: f32_rate?,
        threads: threads?.value,
    })
}

fn cpu(source: &Source, mut table: Table) -> Option<(String, Vec<String>)> {
    let word = |text: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        text.chars().all(allowed) && text.starts_with(|c: char| c.is_ascii_alphanumeric())
    };
    let target_cpu = table
        .required("target_cpu", "target_cpu = \"native\"")
        .and_then(|it| it.string_that("a CPU name as `rustc --print target-cpus` lists", word));
    let what = "a feature name without sign, as `rustc --print target-features` lists";
    let features = match table.optional("features") {
        Some(value) => value.list(|it| it.string_that(what, word)),
        None => Some(At { value: Vec::new(), span: table.span() }),
    };
    table.finish();
    let features = features?.value;
    for (index, feature) in features.iter().enumerate() {
        if features[..index].iter().any(|it| it.value == feature.value) {
            let message = format!("`cpu.features` names {:?} twice", feature.value);
            source.report(feature.span.clone(), "cpu.features", message, "again", "name it once".to_owned());
        }
    }
    Some((target_cpu?.value, features.into_iter().map(|it| it.value).collect()))
}
