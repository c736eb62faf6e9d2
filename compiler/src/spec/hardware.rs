//! Reads HARDWARE.toml.

use super::diagnostic::Source;
use super::reader::{At, Table, Value};
use super::tuning;
use super::types::{Cpu, Cuda, Hardware, HardwareKind, Knobs, Peers};
use std::ops::Range;

/// A validated HARDWARE.toml, and the places that later checks point at.
pub(super) struct ReadHardware {
    pub(super) hardware: Hardware,
    /// Span of `memory.bytes`.
    pub(super) memory: Range<usize>,
    /// `[defaults]`, only on CUDA hardware.
    pub(super) knobs: Option<Knobs>,
}

/// Reads and checks HARDWARE.toml.
pub(super) fn read(source: &Source, name: &str, mut root: Table) -> Option<ReadHardware> {
    let kind = root.table("hardware").and_then(|mut table| {
        let kinds = [("cpu", Kind::Cpu), ("cuda", Kind::Cuda)];
        let kind = table.required("kind", "kind = \"cpu\"").and_then(|it| it.choice(&kinds));
        table.finish();
        kind
    });
    let memory = root.table("memory").and_then(|mut table| {
        let bytes = table.required("bytes", "bytes = 8_589_934_592").and_then(|it| it.integer(1..=1 << 50));
        table.finish();
        bytes
    });
    let figures = root.table("figures");
    // Without a kind, none of the other keys can be checked.
    let (figures, kind, knobs) = match kind?.value {
        Kind::Cpu => {
            let figures = figures.and_then(cpu_figures);
            let cpu = root.table("cpu").and_then(|table| cpu(source, table));
            root.finish();
            let ((figures, rates), (target_cpu, features, host)) = (figures?, cpu?);
            let CpuRates { threads, int8_rate, f32_rate } = rates;
            (
                figures,
                HardwareKind::Cpu(Cpu { target_cpu, features, host, threads, int8_rate, f32_rate }),
                None,
            )
        }
        Kind::Cuda => {
            let figures = figures.and_then(cuda_figures);
            let device = root.table("cuda").and_then(|table| cuda(source, table));
            let knobs = root.table("defaults").and_then(|table| tuning::knobs(source, table));
            let peers = match root.optional("peers") {
                Some(table) => table.table().and_then(peers).map(Some),
                None => Some(None),
            };
            root.finish();
            let ((figures, rates), knobs, peers) = (figures?, knobs?, peers?);
            let [bf16_rate, f64_rate, f32_rate, nvfp4_rate] = rates;
            let cuda = Cuda { bf16_rate, f64_rate, f32_rate, nvfp4_rate, peers, ..device? };
            (figures, HardwareKind::Cuda(cuda), Some(knobs))
        }
    };
    let memory = memory?;
    let hardware = Hardware {
        name: name.to_owned(),
        memory_bytes: memory.value,
        bandwidth: figures.bandwidth,
        boundary_seconds: figures.boundary_seconds,
        copy_bandwidth: figures.copy_bandwidth,
        kind,
    };
    Some(ReadHardware { hardware, memory: memory.span, knobs })
}

#[derive(Clone, Copy)]
enum Kind {
    Cpu,
    Cuda,
}

/// Values of `[figures]` that every kind has.
struct Figures {
    bandwidth: f64,
    boundary_seconds: f64,
    copy_bandwidth: f64,
}

impl Figures {
    fn read(
        table: &mut Table,
        bandwidth: &str,
        boundary_seconds: &str,
        copy_bandwidth: &str,
    ) -> Option<Figures> {
        let bandwidth = rate(table, "bandwidth", bandwidth);
        let boundary_seconds = rate(table, "boundary_seconds", boundary_seconds);
        let copy_bandwidth = rate(table, "copy_bandwidth", copy_bandwidth);
        Some(Figures {
            bandwidth: bandwidth?,
            boundary_seconds: boundary_seconds?,
            copy_bandwidth: copy_bandwidth?,
        })
    }
}

struct CpuRates {
    threads: usize,
    int8_rate: f64,
    f32_rate: f64,
}

fn rate(table: &mut Table, key: &str, example: &str) -> Option<f64> {
    let value = table.required(key, &format!("{key} = {example}"))?;
    Some(value.positive()?.value)
}

fn cpu_figures(mut table: Table) -> Option<(Figures, CpuRates)> {
    let figures = Figures::read(&mut table, "30e9", "2e-6", "4e9");
    let int8_rate = rate(&mut table, "int8_rate", "120e9");
    let f32_rate = rate(&mut table, "f32_rate", "50e9");
    let threads = table.required("threads", "threads = 2").and_then(|it| it.size(1..=4096));
    table.finish();
    let rates = CpuRates { threads: threads?.value, int8_rate: int8_rate?, f32_rate: f32_rate? };
    Some((figures?, rates))
}

/// Reads `[figures]` of a CUDA device; the rates are those of bf16, f64, f32 and nvfp4.
fn cuda_figures(mut table: Table) -> Option<(Figures, [f64; 4])> {
    let figures = Figures::read(&mut table, "4.5e12", "1.3e-6", "10e9");
    let bf16_rate = rate(&mut table, "bf16_rate", "395e12");
    let f64_rate = rate(&mut table, "f64_rate", "33e12");
    let f32_rate = rate(&mut table, "f32_rate", "30e12");
    let nvfp4_rate = rate(&mut table, "nvfp4_rate", "2.5e12");
    table.finish();
    Some((figures?, [bf16_rate?, f64_rate?, f32_rate?, nvfp4_rate?]))
}

/// Reads `[peers]`.
fn peers(mut table: Table) -> Option<Peers> {
    let exchange_seconds = rate(&mut table, "exchange_seconds", "0.9e-6");
    let bandwidth = rate(&mut table, "bandwidth", "325e9");
    table.finish();
    Some(Peers { exchange_seconds: exchange_seconds?, bandwidth: bandwidth? })
}

/// Reads CPU, features and host of `[cpu]`.
fn cpu(source: &Source, mut table: Table) -> Option<(String, Vec<String>, Option<String>)> {
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
    let host = match table.optional("host") {
        Some(value) => Some(value.choice(&HOSTS.map(|host| (host, host)))),
        None => None,
    };
    table.finish();
    let features = features?.value;
    for (index, feature) in features.iter().enumerate() {
        if features[..index].iter().any(|it| it.value == feature.value) {
            let message = format!("`cpu.features` names {:?} twice", feature.value);
            source.report(feature.span.clone(), "cpu.features", message, "again", "name it once".to_owned());
        }
    }
    // An unknown host was reported; then there is no CPU.
    let host = match host {
        Some(host) => Some(host?.value.to_owned()),
        None => None,
    };
    Some((target_cpu?.value, features.into_iter().map(|it| it.value).collect(), host))
}

/// Hosts that servers can be linked for.
const HOSTS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// Reads `[cuda]`. The rates, which come from `[figures]`, are still 0.
fn cuda(source: &Source, mut table: Table) -> Option<Cuda> {
    let architecture = table.required("architecture", "architecture = \"sm_90a\"").and_then(|it| {
        it.string_that("an architecture as `nvcc --list-gpu-code` has it", |it| capability(it).is_some())
    });
    let mut size = |key: &str, example: &str, range| {
        let value = table.required(key, &format!("{key} = {example}")).and_then(|it| it.integer(range))?;
        Some(At { value: u32::try_from(value.value).ok()?, span: value.span })
    };
    let multiprocessors = size("multiprocessors", "132", 1..=1024);
    let shared_per_block = size("shared_per_block", "232_448", 16_384..=1 << 20);
    let shared_per_multiprocessor = size("shared_per_multiprocessor", "233_472", 16_384..=1 << 20);
    let registers_per_thread = size("registers_per_thread", "255", 32..=1024);
    let l2_bytes = table.required("l2_bytes", "l2_bytes = 52_428_800").and_then(|it| it.integer(1..=1 << 40));
    let mut has = |key: &str| table.required(key, &format!("{key} = false")).and_then(Value::boolean);
    let (wgmma, clusters) = (has("wgmma"), has("clusters"));
    let hosts = HOSTS.map(|host| (host, host));
    let example = format!("host = {:?}", HOSTS[0]);
    let host = table.required("host", &example).and_then(|it| it.choice(&hosts));
    table.finish();
    if let (Some(block), Some(whole)) = (&shared_per_block, &shared_per_multiprocessor)
        && block.value > whole.value
    {
        let message =
            format!("one block may claim {} bytes, and a multiprocessor has {}", block.value, whole.value);
        let help = "`shared_per_block` is the smaller one: the opt-in maximum a block".to_owned();
        let mistake = source.mistake(block.span.clone(), "cuda.shared_per_block", message, "a block", help);
        source.sink.push(mistake.also(whole.span.clone(), "a multiprocessor"));
    }
    if let (Some(wgmma), Some(architecture)) = (&wgmma, &architecture)
        && wgmma.value
        && architecture.value != "sm_90a"
    {
        let message = format!("{:?} has no warpgroup products", architecture.value);
        let help = "only `sm_90a` has them: write `wgmma = false`".to_owned();
        let mistake = source.mistake(wgmma.span.clone(), "cuda.wgmma", message, "not there", help);
        source.sink.push(mistake.also(architecture.span.clone(), "the architecture"));
    }
    let architecture = architecture?.value;
    Some(Cuda {
        capability: capability(&architecture)?,
        architecture,
        multiprocessors: multiprocessors?.value,
        shared_per_block: shared_per_block?.value,
        shared_per_multiprocessor: shared_per_multiprocessor?.value,
        registers_per_thread: registers_per_thread?.value,
        l2_bytes: l2_bytes?.value,
        wgmma: wgmma?.value,
        clusters: clusters?.value,
        bf16_rate: 0.0,
        f64_rate: 0.0,
        f32_rate: 0.0,
        peers: None,
        nvfp4_rate: 0.0,
        host: host?.value.to_owned(),
    })
}

/// Major and minor compute capability of an architecture such as `sm_90a`.
fn capability(architecture: &str) -> Option<(u32, u32)> {
    let digits = architecture.strip_prefix("sm_")?.trim_end_matches(['a', 'f']);
    let number =
        digits.parse::<u32>().ok().filter(|it| (80..=999).contains(it) && !digits.starts_with('+'))?;
    Some((number / 10, number % 10))
}
