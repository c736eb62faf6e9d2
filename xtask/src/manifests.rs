//! `cargo xtask manifests`: what runs a server's image, printed from the target's plan: manifests for
//! Kubernetes, and a Compose file for one machine.

use crate::{BuildOptions, TargetOptions, image, paths};
use clap::Args;
use monomorph_abi::serve::{DRAIN_SECONDS, END_SECONDS, HTTP_THREADS, PORT};
use monomorph_compiler::plan::Plan;
use monomorph_compiler::spec::types::{HardwareKind, Target};
use monomorph_compiler::{report, spec, toolchain};
use serde_json::{Value, json};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use tera::{Context, Tera};

/// Every file, with the template of its text. What is applied together stands in one directory, and what
/// needs more than Kubernetes itself below it.
const FILES: [(&str, &str); 8] = [
    ("kubernetes/deployment.yaml", include_str!("../../templates/manifests/deployment.yaml.tera")),
    ("kubernetes/service.yaml", include_str!("../../templates/manifests/service.yaml.tera")),
    (
        "kubernetes/disruption-budget.yaml",
        include_str!("../../templates/manifests/disruption-budget.yaml.tera"),
    ),
    ("kubernetes/optional/pod-monitor.yaml", include_str!("../../templates/manifests/pod-monitor.yaml.tera")),
    (
        "kubernetes/optional/scaled-object.yaml",
        include_str!("../../templates/manifests/scaled-object.yaml.tera"),
    ),
    ("kubernetes/optional/autoscaler.yaml", include_str!("../../templates/manifests/autoscaler.yaml.tera")),
    (
        "kubernetes/optional/inference-pool.yaml",
        include_str!("../../templates/manifests/inference-pool.yaml.tera"),
    ),
    ("compose.yaml", include_str!("../../templates/manifests/compose.yaml.tera")),
];

/// A dashboard for Grafana of whatever servers a Prometheus scrapes. No template: braces are its own.
const DASHBOARD: (&str, &str) = ("grafana.json", include_str!("../../templates/manifests/grafana.json"));

/// Seconds between the moment that a pod is to go and the signal that says so to the server: routers and
/// proxies hear of it meanwhile.
const SLEEP_SECONDS: u64 = 10;
/// Seconds between two probes of a start.
const STARTUP_PERIOD: u64 = 2;
/// Seconds that a start may take besides reading weights.
const STARTUP_SECONDS: u64 = 60;
/// Bytes of weights a second that a slow volume delivers.
const VOLUME_BANDWIDTH: u64 = 100_000_000;
/// Seconds of little load after which replicas are taken away.
const CALM_SECONDS: u64 = 300;
/// Most characters of a name: a label has 63, and a picker's is seven longer.
const NAME: usize = 56;

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    target: TargetOptions,
    #[command(flatten)]
    build: BuildOptions,
    /// Where the image is pulled from [default: the name that `cargo xtask image` gives it].
    #[arg(long, value_name = "REFERENCE")]
    image: Option<String>,
    /// Name of all that is made [default: made from the target].
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Replicas, and the least that an autoscaler leaves.
    #[arg(long, value_name = "N", default_value_t = NonZero::<u32>::MIN)]
    replicas: NonZero<u32>,
    /// Most replicas that an autoscaler makes [default: four times as many].
    #[arg(long, value_name = "N")]
    most_replicas: Option<NonZero<u32>>,
    /// The volume claim with the weights [default: NAME-weights].
    #[arg(long, value_name = "NAME")]
    claim: Option<String>,
    /// The image has its weights in it (`cargo xtask image --with-weights`): mount none.
    #[arg(long, conflicts_with = "claim")]
    with_weights: bool,
    /// Where an autoscaler asks Prometheus.
    #[arg(long, value_name = "URL", default_value = "http://prometheus-operated.monitoring.svc:9090")]
    prometheus: String,
    /// Directory for the files, instead of dist/HW/MODEL/QUANT/manifests/.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub fn manifests(options: Options) -> Result<(), String> {
    let search = paths::search(options.target.targets_dir.as_deref());
    let target = spec::load_with(&search, &options.target.target, &options.build.asked()?)
        .map_err(|error| error.to_string())?;
    image::ships(&target)?;
    if target.hosts > 1 {
        return Err(format!(
            "{} runs as {} processes that start together, which a Deployment's pods do not; leave --hosts out",
            target.name(),
            target.hosts
        ));
    }
    let plan = toolchain::plan(&target).map_err(|error| error.to_string())?;
    let values = values(&options, &target, &plan)?;
    let context = Context::from_serialize(&values).map_err(|error| error.to_string())?;
    let out =
        options.out.unwrap_or_else(|| paths::root().join("dist").join(target.build()).join("manifests"));
    for (file, template) in FILES {
        let mut tera = Tera::default();
        tera.add_raw_template(file, template).expect("the template is part of the program");
        let text = tera.render(file, &context).expect("every name of the template is in the context");
        write(&out.join(file), &text)?;
    }
    let (file, text) = DASHBOARD;
    write(&out.join(file), text)
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    std::fs::create_dir_all(path.parent().expect("a file is in a directory")).map_err(failed)?;
    std::fs::write(path, text).map_err(failed)?;
    println!("{}", path.display());
    Ok(())
}

/// What the templates print, each from the one place that has it.
fn values(options: &Options, target: &Target, plan: &Plan) -> Result<Value, String> {
    let reference = options.image.clone().unwrap_or_else(|| image::name(target));
    check("--image", &reference, "a reference such as registry.example/name:tag", |c| "._-/:@".contains(c))?;
    let address = &options.prometheus;
    check("--prometheus", address, "a URL such as http://prometheus:9090", |c| "._-/:@".contains(c))?;
    let name = match &options.name {
        Some(name) => name.clone(),
        None => named(&image::name(target)),
    };
    check_name("--name", &name)?;
    let claim = match (&options.claim, options.with_weights) {
        (_, true) => None,
        (Some(claim), false) => Some(claim.clone()),
        (None, false) => Some(format!("{name}-weights")),
    };
    claim.iter().try_for_each(|claim| check_name("--claim", claim))?;
    let replicas = options.replicas.get();
    let most_replicas = options.most_replicas.map_or(replicas.saturating_mul(4), NonZero::get);
    if most_replicas < replicas {
        return Err(format!("--most-replicas {most_replicas}: there are {replicas} replicas to begin with"));
    }
    let (gpu, cpus) = match &target.hardware.kind {
        HardwareKind::Cpu(cpu) => (None, cpu.threads),
        HardwareKind::Cuda(cuda) => {
            let (major, minor) = cuda.capability;
            let memory_above = (target.hardware.memory_bytes >> 20).saturating_sub(1);
            let gpu = json!({
                "major": major, "minor": minor, "memory_above": memory_above, "count": target.ranks,
            });
            (Some(gpu), target.ranks + HTTP_THREADS)
        }
    };
    let startup = STARTUP_SECONDS + plan.memory.weights.div_ceil(VOLUME_BANDWIDTH);
    let stop_seconds = DRAIN_SECONDS + END_SECONDS;
    let sequences = plan.buckets.sequences;
    Ok(json!({
        "build": target.build(),
        "name": name,
        "image": reference,
        "replicas": replicas,
        "most_replicas": most_replicas,
        "claim": claim,
        "prometheus": address,
        "architecture": image::platform(&target.hardware).architecture(),
        "gpu": gpu,
        "cpus": cpus,
        "memory_mebibytes": report::host::report(plan).container >> 20,
        "startup": {
            "seconds": startup, "period": STARTUP_PERIOD, "times": startup.div_ceil(STARTUP_PERIOD),
        },
        "sleep_seconds": SLEEP_SECONDS,
        "stop_seconds": stop_seconds,
        "grace_seconds": SLEEP_SECONDS + stop_seconds,
        "calm_seconds": CALM_SECONDS,
        "sequences": sequences,
        "in_flight": (3 * sequences / 4).max(1),
        "port": PORT,
        "user": image::USER,
        "server": image::SERVER,
        "arguments": image::ARGUMENTS,
        "weights": image::WEIGHTS,
        "scratch": image::SCRATCH,
    }))
}

/// An image's name as a name of Kubernetes.
fn named(image: &str) -> String {
    let text = image.trim_start_matches("monomorph/").to_ascii_lowercase();
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

fn check_name(flag: &str, name: &str) -> Result<(), String> {
    let is_name = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.ends_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if is_name && name.len() <= NAME {
        return Ok(());
    }
    Err(format!(
        "{flag} {name:?} is no name of Kubernetes: use a-z, 0-9 and `-`, a letter first, and at most {NAME} characters"
    ))
}

/// Checks a text that is printed as it is.
fn check(flag: &str, text: &str, wanted: &str, also: fn(char) -> bool) -> Result<(), String> {
    let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    match begins && text.chars().all(|c| c.is_ascii_alphanumeric() || also(c)) {
        true => Ok(()),
        false => Err(format!("{flag} {text:?} is not {wanted}")),
    }
}
