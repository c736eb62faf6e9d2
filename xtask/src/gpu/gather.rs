//! Builds everything into a store and packs it.

use super::files::write;
use super::gathering::Gathering;
use super::ranks::Servers;
use super::{Options, Piece, parts};
use crate::paths;
use monomorph_compiler::spec::types::{BuildOptions, Ranks};
use serde_json::json;
use std::process::Command;

/// What runs on the machine with the card.
const SCRIPTS: [(&str, &str); 19] = [
    ("run.py", include_str!("run.py")),
    ("checks/__init__.py", include_str!("checks/__init__.py")),
    ("checks/benches.py", include_str!("checks/benches.py")),
    ("checks/common.py", include_str!("checks/common.py")),
    ("checks/compile.py", include_str!("checks/compile.py")),
    ("checks/engine.py", include_str!("checks/engine.py")),
    ("checks/hosts.py", include_str!("checks/hosts.py")),
    ("checks/images.py", include_str!("checks/images.py")),
    ("checks/kv_offload.py", include_str!("checks/kv_offload.py")),
    ("checks/joins.py", include_str!("checks/joins.py")),
    ("checks/launches.py", include_str!("checks/launches.py")),
    ("checks/logits.py", include_str!("checks/logits.py")),
    ("checks/profiles.py", include_str!("checks/profiles.py")),
    ("checks/programs.py", include_str!("checks/programs.py")),
    ("checks/ranks.py", include_str!("checks/ranks.py")),
    ("checks/sanitizer.py", include_str!("checks/sanitizer.py")),
    ("checks/serving.py", include_str!("checks/serving.py")),
    ("checks/storm.py", include_str!("checks/storm.py")),
    ("checks/tokens.py", include_str!("checks/tokens.py")),
];

/// Builds, gathers and packs.
///
/// # Errors
/// Names what could not be gathered, after gathering everything else.
pub fn gather(options: &Options) -> Result<(), String> {
    let out = paths::root().join("target/gpu");
    let store = out.join("gathered");
    for directory in [&store, &out.join("checks")] {
        std::fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    }
    for entry in std::fs::read_dir(&out).map_err(|error| error.to_string())?.flatten() {
        if entry.file_name().to_string_lossy().starts_with("part-") {
            std::fs::remove_file(entry.path()).map_err(|error| error.to_string())?;
        }
    }
    for (name, text) in SCRIPTS {
        write(&out.join(name), text.as_bytes())?;
    }
    // Only what was requested now travels; the inputs of its build are kept elsewhere.
    std::fs::remove_dir_all(&store)
        .and_then(|()| std::fs::create_dir_all(&store))
        .map_err(|error| error.to_string())?;

    let cases = out.join("cases");
    // A directory of targets must exist even without goldens in it.
    std::fs::create_dir_all(cases.join("targets/models")).map_err(|error| error.to_string())?;
    let tensor_parallel = options.ep.or(options.tp).map(Ranks::tensor_parallel);
    let expert_parallel = options.ep.map(Ranks::expert_parallel);
    let ranks = expert_parallel.or(tensor_parallel);
    let mut gathering = Gathering {
        out,
        store,
        hardware: options.hardware.clone(),
        ranks,
        search: vec![cases.join("targets"), paths::targets()],
        executables: Vec::new(),
        named: Vec::new(),
        problems: Vec::new(),
    };
    let with = |piece: Piece| {
        let asked = options.only.as_ref().is_none_or(|only| only.contains(&piece));
        asked && !options.without.contains(&piece)
    };
    let mut manifest = json!({
        "commit": commit(), "hardware": options.hardware,
        "programs": [], "instruments": [], "goldens": [], "images": [], "joins": [], "engine": [], "sanitized": [], "hosts": {}, "benches": [],
        "profiles": [], "ranks": [], "storm": [],
    });
    if with(Piece::Programs) {
        let (programs, instruments) =
            gathering.programs(&options.programs, options.instruments, options.compile_there)?;
        (manifest["programs"], manifest["instruments"]) = (programs, instruments);
    }
    let hosts = options.hosts.filter(|_| with(Piece::Hosts));
    if with(Piece::Goldens) || with(Piece::Sanitized) || hosts.is_some() {
        let all = gathering.cases(&cases)?;
        if with(Piece::Goldens) {
            manifest["goldens"] = gathering.goldens(&cases, &all, &options.goldens)?;
        }
        if with(Piece::Sanitized) && options.tp.is_none() {
            manifest["sanitized"] = gathering.sanitized();
        }
        if let Some(hosts) = hosts {
            manifest["hosts"] = gathering.hosts(&cases, &all, &options.goldens, hosts)?;
        }
    }
    // Several ranks do not see images yet.
    let images = with(Piece::Images) && ranks.is_none();
    if images {
        manifest["images"] = gathering.images(&cases, &options.goldens)?;
    }
    if with(Piece::Joins) {
        manifest["joins"] = gathering.joins(&cases, &options.goldens)?;
    }
    if with(Piece::Goldens) || images || with(Piece::Joins) {
        let unnamed = gathering.unnamed(&options.goldens);
        if !unnamed.is_empty() {
            let (cases, unnamed) = (cases.display(), unnamed.join("`, `"));
            return Err(format!("--goldens: no target below {cases} contains `{unnamed}`"));
        }
    }
    if options.tp.is_some() {
        // SmolLM2's nine heads are no two ranks'.
        let pieces = [Piece::Engine, Piece::Served, Piece::Storm, Piece::Ranks, Piece::Sanitized].map(with);
        if pieces.contains(&true) {
            let ranks = Servers::store(&mut gathering, &cases.join("ranks"))?;
            for (piece, wanted) in ["engine", "served", "storm", "ranks", "sanitized"].into_iter().zip(pieces)
            {
                if wanted {
                    manifest[piece] = ranks.piece(piece);
                }
            }
        }
    } else {
        if with(Piece::Engine) {
            manifest["engine"] = gathering.engine();
        }
        if with(Piece::Served) {
            manifest["served"] = gathering.smollm2()?;
        }
        if with(Piece::Storm) {
            manifest["storm"] = gathering.storm()?;
        }
    }
    if with(Piece::Benches) {
        let plain = BuildOptions { draft: options.draft.option()?, ..BuildOptions::default() };
        let invariant = options.batch_invariant.iter().map(|it| Some(*it));
        let invariant = invariant.map(|it| BuildOptions { batch_invariant: it, ..plain });
        let kept = options.kv.iter().map(|it| BuildOptions { kv: Some(*it), ..plain });
        let patches = (!options.images.is_empty()).then_some(None).into_iter();
        let patches = patches.chain(options.image_patches.map(Some));
        let seeing: Vec<_> =
            patches.map(|it| BuildOptions { vision: true, image_patches: it, ..plain }).collect();
        let several = [tensor_parallel, expert_parallel].into_iter().flatten();
        // Several ranks see as one does.
        let several =
            several.flat_map(|it| [plain].into_iter().chain(seeing.clone()).map(move |of| it.of(of)));
        let spread = tensor_parallel.filter(|_| options.hosts.is_some());
        let spread = spread.map(|it| BuildOptions { hosts: options.hosts, ..it.of(plain) });
        let builds: Vec<BuildOptions> = [plain]
            .into_iter()
            .chain(invariant)
            .chain(kept)
            .chain(seeing.clone())
            .chain(several)
            .chain(spread)
            .collect();
        for name in super::benches(options.bench.as_deref()) {
            for build in &builds {
                let bench = gathering.bench(&name, build, !options.kv.is_empty(), &options.images)?;
                manifest["benches"].as_array_mut().expect("it was made a list").push(bench);
            }
        }
    }
    if options.profile {
        for name in super::benches(options.bench.as_deref()) {
            let profile = gathering.profile(&name)?;
            manifest["profiles"].as_array_mut().expect("it was made a list").push(profile);
        }
    }
    manifest["executables"] = json!(gathering.executables);
    for (directory, bytes) in parts::sizes(&gathering.store)? {
        println!("{directory} ({:.1} MB before packing)", bytes as f64 / 1e6);
    }
    let (cut, packed) = parts::pack(&gathering.store, &gathering.out, options.part_bytes)?;
    manifest["cut"] = cut;
    let text = serde_json::to_string_pretty(&manifest).expect("it is JSON");
    write(&gathering.out.join("manifest.json"), text.as_bytes())?;
    for part in packed {
        let bytes = part.metadata().map_err(|error| error.to_string())?.len();
        println!("{} ({:.1} MB)", part.display(), bytes as f64 / 1e6);
    }
    if gathering.problems.is_empty() { Ok(()) } else { Err(gathering.problems.join("\n")) }
}

fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").current_dir(paths::root()).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_none_or(|text| !text.is_empty());
    let name = git(&["rev-parse", "--short", "HEAD"]).unwrap_or_else(|| "no commit".to_owned());
    if changed { format!("{name} and changes") } else { name }
}

#[cfg(test)]
mod tests {
    use super::super::files::write;
    use super::SCRIPTS;
    use std::process::Command;

    #[test]
    fn a_table_of_kernels_has_each_launch_and_its_phase_once() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("checks")).unwrap();
        for (name, text) in SCRIPTS {
            write(&directory.path().join(name), text.as_bytes()).unwrap();
        }
        let script = r#"
from checks.profiles import table
launches = [{"kernel": "stage", "microseconds": 12.0}, {"kernel": "head", "microseconds": 48.0}]
phase = {"body": "head", "phase": "logits", "times": 4, "bytes": 8e6, "gb_per_second": 133.3, "of_limit": 0.5,
         "predicted_microseconds": 33.0, "launches": launches}
step = {"sequences": 2, "context": 140.5, "step_microseconds": 50.0, "phases_microseconds": 60.0,
        "predicted_microseconds": 33.0, "limit_microseconds": 30.0, "phases": [phase]}
print(table({"target": "a/b/c", "weights": "dummy", "steps": [step]}))
"#;
        let mut python = Command::new("python3");
        let python = python.current_dir(directory.path()).env("PYTHONDONTWRITEBYTECODE", "1");
        let output = python.args(["-c", script]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        for line in [
            "## 2 sequences, a token each after 140",
            "50.0 us a step, 60.0 all launches, 33.0 predicted, 30.0 at the limit",
            "| stage | head.logits | 4 | 3.00 | 12.0 | 8000000 | 133 | 50 % | 33.0 |",
            "| head | head.logits | 4 | 12.00 | 48.0 |  | | | |",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
    }
}
