//! From specs to the list of tensors to write: names, shapes, formats, scales, and the rows they are made of.

use super::shards::Stored;
use monomorph_compiler::graph::instance;
use monomorph_compiler::spec::types::{
    CheckpointSpec, FileTensor, Model, Quant, ScaleForm, Scales, TensorClass,
};
use monomorph_compiler::spec::{TensorDecl, tensors};
use monomorph_formats::Format;
use std::collections::BTreeMap;

/// One tensor of the new checkpoint, its scales included.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its name in the spec, `{layer}` and `{expert}` included.
    pub of: String,
    /// Its name in the checkpoint.
    pub name: String,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// What it is stored in.
    pub format: Format,
    /// Where the format has companions.
    pub scales: Option<Scales>,
    /// Whether it is the matrix of a linear layer.
    pub linear: bool,
    /// What its rows are in the old checkpoint, from the first to the last.
    pub rows: Vec<Rows>,
}

/// Rows of a tensor of the old checkpoint that stand one below the other. A vector's are its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Its name.
    pub tensor: String,
    /// The first of them.
    pub first: usize,
    /// How many.
    pub count: usize,
}

impl Job {
    /// Elements of a row.
    pub fn columns(&self) -> usize {
        if self.shape.len() < 2 { 1 } else { self.shape[self.shape.len() - 1] }
    }

    /// The layer it is the weight of.
    pub fn module(&self) -> &str {
        let name = self.name.strip_suffix("_packed").unwrap_or(&self.name);
        name.strip_suffix(".weight").unwrap_or(name)
    }

    /// What is stored of it: itself, then its companions.
    pub fn stored(&self) -> Vec<Stored> {
        let itself = Stored::new(&self.name, &self.shape, self.format);
        let companions = self.scales.iter().flat_map(|scales| &scales.companions);
        let companions = companions.map(|it| Stored::new(&it.name, &it.shape, it.format));
        std::iter::once(itself).chain(companions).collect()
    }
}

/// What is to be done.
pub struct Plan {
    /// Layer after layer.
    pub jobs: Vec<Job>,
    /// The tensors of the old checkpoint and their shapes.
    pub sources: BTreeMap<String, Vec<usize>>,
}

/// A job some of whose rows are known.
struct Draft {
    layer: Option<usize>,
    job: Job,
    /// Each with the row of the job that it begins at.
    rows: Vec<(usize, Rows)>,
}

/// What makes the checkpoint that `quant` describes of one whose tensors are called as `names` says.
///
/// # Errors
/// Where a tensor cannot have the scales that the spec names, or rows of it are no tensor's of the model.
pub fn plan(model: &Model, quant: &Quant, names: &BTreeMap<String, FileTensor>) -> Result<Plan, String> {
    let mut plan = Plan { jobs: Vec::new(), sources: BTreeMap::new() };
    let mut drafts: BTreeMap<String, Draft> = BTreeMap::new();
    for tensor in tensors(model) {
        let (to, from) = (&quant.checkpoint.names[&tensor.name], &names[&tensor.name]);
        let layers: Vec<Option<usize>> =
            tensor.layers.as_ref().map_or(vec![None], |layers| layers.iter().copied().map(Some).collect());
        for layer in layers {
            for expert in tensor.experts.map_or(vec![None], |experts| (0..experts).map(Some).collect()) {
                let job = job(&tensor, to, layer, expert, quant)?;
                let name = named(&from.name, layer, expert);
                plan.sources.insert(name.clone(), tensor.file_shape(from));
                let entry = drafts.entry(job.name.clone());
                let known = entry.or_insert_with(|| Draft { layer, job: job.clone(), rows: Vec::new() });
                if known.job != job {
                    return Err(format!(
                        "`{}` would have to be stored in two ways, as tensors of the model are",
                        job.name
                    ));
                }
                let stacked = |file: &FileTensor| expert.filter(|_| file.stacks_experts(&tensor.name));
                known.rows.extend(runs(&tensor, (to, stacked(to)), (from, stacked(from)), &name));
            }
        }
    }
    let mut drafts: Vec<Draft> = drafts.into_values().collect();
    drafts.sort_by_key(|draft| draft.layer);
    for Draft { mut job, rows, .. } in drafts {
        job.rows = in_order(&job, rows)?;
        plan.jobs.push(job);
    }
    Ok(plan)
}

/// The names of tensors in floats beside which no scales stand: those of `spec`, but for compressed-tensors' `_packed`.
pub fn unpacked(spec: &CheckpointSpec) -> BTreeMap<String, FileTensor> {
    let unpacked = |file: &FileTensor| FileTensor {
        name: file
            .name
            .strip_suffix(".weight_packed")
            .map_or(file.name.clone(), |stem| format!("{stem}.weight")),
        view: file.view,
    };
    spec.names.iter().map(|(name, file)| (name.clone(), unpacked(file))).collect()
}

fn named(pattern: &str, layer: Option<usize>, expert: Option<usize>) -> String {
    let name = instance(pattern, layer);
    expert.map_or(name.clone(), |expert| name.replace("{expert}", &expert.to_string()))
}

/// The tensor of the new checkpoint that holds one of the model's; its rows are found later.
fn job(
    tensor: &TensorDecl,
    file: &FileTensor,
    layer: Option<usize>,
    expert: Option<usize>,
    quant: &Quant,
) -> Result<Job, String> {
    let (name, shape) = (named(&file.name, layer, expert), tensor.file_shape(file));
    let scales = match (quant.scales.of(tensor.class, &tensor.name), &shape[..]) {
        (None, _) => None,
        (Some(scales), [rows, columns]) => Some(scales.of(&name, *rows, *columns)),
        (Some(scales), _) => {
            return Err(format!("`{name}` is {shape:?}: no scales of {} are of such", scales.form));
        }
    };
    let packed = scales.as_ref().is_some_and(|scales| scales.form == ScaleForm::CompressedTensors);
    if packed && !name.ends_with(".weight_packed") {
        return Err(format!("`{name}` should end in `.weight_packed`, as codes of compressed-tensors do"));
    }
    let format = quant
        .stored
        .of(tensor.class, &tensor.name)
        .ok_or_else(|| format!("nothing says what {:?} is stored as", tensor.name))?;
    let vector = matches!(tensor.class, TensorClass::Embedding | TensorClass::Norm);
    let linear = tensor.columns.is_some() && !vector;
    Ok(Job { of: file.name.clone(), name, shape, format, scales, linear, rows: Vec::new() })
}

/// The rows of one tensor of the model, each run with the row of the new tensor `to` that it begins at, in the old one's
/// order: `from`, of name `name`. Each comes with its expert where experts are stacked in it.
fn runs(
    tensor: &TensorDecl,
    to: (&FileTensor, Option<usize>),
    from: (&FileTensor, Option<usize>),
    name: &str,
) -> Vec<(usize, Rows)> {
    let mut runs = Vec::new();
    let mut row = 0;
    while row < tensor.rows {
        // As far as both go on without a gap.
        let until =
            |file: &FileTensor| file.view.map_or(tensor.rows, |view| (row / view.take + 1) * view.take);
        let end = tensor.rows.min(until(to.0)).min(until(from.0));
        let rows = Rows { tensor: name.to_owned(), first: from.0.file_row(row, from.1), count: end - row };
        runs.push((to.0.file_row(row, to.1), rows));
        row = end;
    }
    runs
}

/// The rows of a job from its first to its last, runs that go on joined.
fn in_order(job: &Job, mut rows: Vec<(usize, Rows)>) -> Result<Vec<Rows>, String> {
    rows.sort_by_key(|(at, _)| *at);
    let mut ordered: Vec<Rows> = Vec::new();
    let mut next = 0;
    for (at, rows) in rows {
        if at != next {
            return Err(format!("rows {next} to {at} of `{}` are no tensor's of the model", job.name));
        }
        next += rows.count;
        match ordered.last_mut() {
            Some(last) if last.tensor == rows.tensor && last.first + last.count == rows.first => {
                last.count += rows.count;
            }
            _ => ordered.push(rows),
        }
    }
    let all = job.shape.iter().product::<usize>() / job.columns();
    if next != all {
        return Err(format!("rows {next} to {all} of `{}` are no tensor's of the model", job.name));
    }
    Ok(ordered)
}
