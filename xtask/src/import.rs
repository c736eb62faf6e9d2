//! `cargo xtask import`: MODEL.toml and quant specs from a Hugging Face config.json, from the params.json of
//! Mistral's own releases, or from a GGUF file.

use clap::Args;
use monomorph_compiler::import::{self, Imported, Seen};
use monomorph_compiler::spec::VISION_FILE;
use monomorph_compiler::spec::types::{Compute, DFLASH_FILE};
use monomorph_text::{ChatTemplate, ReasoningFormat, Tokenizer, ToolFormat};
use monomorph_weights::Checkpoint;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Options {
    /// The config.json (or params.json, in the form of Mistral's own releases), or its directory; or a GGUF
    /// file, which is one. Other files of the checkpoint there (safetensors, their index) tell which tensors
    /// it has and how they are stored; a chat template, how its answers are marked up. Or the config.json of
    /// a DFlash drafter, for a model that was imported before it.
    config: PathBuf,
    /// Name of the model.
    #[arg(long)]
    name: String,
    /// Targets directory to write into: DIR/models/NAME/.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// What weights other than f32 compute in: f32, or f16 for tensor cores. Blocks of GGUF compute in int8.
    #[arg(long, default_value = "f32", value_parser = ["f32", "f16"])]
    compute: String,
}

pub fn import(options: Options) -> Result<(), String> {
    let config = if options.config.is_dir() { config_of(&options.config) } else { options.config };
    let compute = if options.compute == "f16" { Compute::F16 } else { Compute::F32 };
    if let Some(path) = drafter(&config, &options.name, &options.out, compute)? {
        println!("{}", path.display());
        return Ok(());
    }
    let imported = draft(&config, &config.display().to_string(), &options.name, compute)?;
    for path in keep(&options.out, &options.name, &imported)? {
        println!("{}", path.display());
    }
    Ok(())
}

/// Writes DFLASH.toml beside the MODEL.toml of the model called `name`, if `config` is a drafter's, and
/// returns its path.
fn drafter(config: &Path, name: &str, out: &Path, compute: Compute) -> Result<Option<PathBuf>, String> {
    if is_gguf(config) {
        return Ok(None);
    }
    let called = config.display();
    let text = std::fs::read_to_string(config).map_err(|error| format!("{called}: {error}"))?;
    if !import::is_drafter(&text) {
        return Ok(None);
    }
    let model = out.join("models").join(name).join("MODEL.toml");
    let model_toml = std::fs::read_to_string(&model).map_err(|error| {
        let model = model.display();
        format!(
            "{called} is the config of a drafter, and {model}: {error}; import its model first, as {name}"
        )
    })?;
    let seen = Seen::beside(config)?;
    let text = import::import_drafter(&text, name, &model_toml, compute, &seen);
    let text = text.map_err(|error| format!("{called}: {error}"))?;
    write(&model.with_file_name(DFLASH_FILE), &text).map(Some)
}

/// Drafts the specs of a config by what stands beside it. `called` is what errors call it.
pub fn draft(config: &Path, called: &str, name: &str, compute: Compute) -> Result<Imported, String> {
    if is_gguf(config) {
        return of_gguf(config, called, name, compute);
    }
    let text = std::fs::read_to_string(config).map_err(|error| format!("{called}: {error}"))?;
    let (tools, reasoning) = formats(config)?;
    let seen = Seen::beside(config)?.with_formats(tools, reasoning);
    let own = config.file_name().is_some_and(|name| name == import::PARAMS_FILE);
    let import = if own { import::import_params } else { import::import };
    import(&text, name, compute, &seen).map_err(|error| format!("{called}: {error}"))
}

/// Whether a file is called as GGUF files are.
pub fn is_gguf(file: &Path) -> bool {
    file.extension().is_some_and(|it| it == "gguf")
}

/// Drafts the specs of a GGUF file, whose tokenizer must be a known one if it has one.
fn of_gguf(file: &Path, called: &str, name: &str, compute: Compute) -> Result<Imported, String> {
    let checkpoint = Checkpoint::open(file).map_err(|error| error.to_string())?;
    let metadata = checkpoint.gguf_metadata();
    if metadata.is_some_and(|it| it.kind("tokenizer.ggml.model").is_some()) {
        Tokenizer::from_checkpoint(&checkpoint).map_err(|error| error.to_string())?;
    }
    let (tools, reasoning) = formats(file)?;
    let seen = Seen::of(&checkpoint).with_formats(tools, reasoning);
    import::import_gguf(&checkpoint, name, compute, &seen).map_err(|error| format!("{called}: {error}"))
}

/// Writes specs into a targets directory and returns their paths. A file that differs is never overwritten:
/// it may have been edited by hand.
pub fn keep(out: &Path, name: &str, imported: &Imported) -> Result<Vec<PathBuf>, String> {
    let directory = out.join("models").join(name);
    std::fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let model = ("MODEL.toml".to_owned(), imported.model_toml.clone());
    let vision = imported.vision_toml.iter().map(|text| (VISION_FILE.to_owned(), text.clone()));
    let vision: Vec<_> = vision.collect();
    let mut paths = Vec::new();
    for (file, text) in [&model].into_iter().chain(&vision).chain(&imported.quants) {
        paths.push(write(&directory.join(file), text)?);
    }
    Ok(paths)
}

/// Writes a file unless one that differs is there; returns its path.
fn write(path: &Path, text: &str) -> Result<PathBuf, String> {
    let same = std::fs::read_to_string(path).is_ok_and(|old| old == text);
    if path.exists() && !same {
        return Err(format!("{} exists and differs; move it away to import again", path.display()));
    }
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path.to_owned())
}

/// The formats of calls and reasoning by the chat template beside a config, or in a GGUF file, if there is
/// one.
fn formats(config: &Path) -> Result<(Option<&'static str>, Option<&'static str>), String> {
    let directory = config.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let place = if is_gguf(config) { config } else { directory };
    // Without a tokenizer and without weights nothing is there to be served, and no template either.
    let Ok(checkpoint) = Checkpoint::open_text(place) else { return Ok((None, None)) };
    let source = ChatTemplate::source_in(&checkpoint).map_err(|error| error.to_string())?;
    let Some(source) = source else { return Ok((None, None)) };
    let (tools, reasoning) = (ToolFormat::of_template(&source), ReasoningFormat::of_template(&source));
    Ok((tools.map(ToolFormat::name), reasoning.map(ReasoningFormat::name)))
}

/// The config of a directory: a config.json goes before a params.json.
pub fn config_of(directory: &Path) -> PathBuf {
    let [config, params] = ["config.json", import::PARAMS_FILE].map(|name| directory.join(name));
    match (config.is_file(), params.is_file()) {
        (false, true) => params,
        (true, true) => {
            let (used, other) = (config.display(), params.display());
            eprintln!("imported from {used}; {other} is there too: name it to import the form of its makers");
            config
        }
        (_, false) => config,
    }
}
