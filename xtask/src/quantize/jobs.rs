//! From specs to the list of tensors to write: names, shapes, formats, scales, and the rows that make them
//! up.

use super::shards::Stored;
use monomorph_compiler::graph::instance;
use monomorph_compiler::spec::types::{
    CheckpointSpec, FileTensor, Model, Quant, ScaleForm, Scales, TensorClass,
};
use monomorph_compiler::spec::{TensorDecl, stored_tensors};
use monomorph_formats::Format;
use std::collections::BTreeMap;

/// One tensor of the new checkpoint with its scales.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its name in the spec, with `{layer}` and `{expert}`.
    pub of: String,
    /// Its name in the checkpoint.
    pub name: String,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// The shape that is written, where it differs by dimensions of one.
    pub shown: Option<Vec<usize>>,
    /// Storage format.
    pub format: Format,
    /// For formats with companions.
    pub scales: Option<Scales>,
    /// Whether it is the weight of a linear layer.
    pub linear: bool,
    /// Its rows in the old checkpoint, first to last.
    pub rows: Vec<Rows>,
}

/// Consecutive rows of a tensor of the old checkpoint. The rows of a vector are its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    pub tensor: String,
    pub first: usize,
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

    /// What is stored for it: the tensor, then its companions.
    pub fn stored(&self) -> Vec<Stored> {
        let itself = Stored::new(&self.name, self.shown.as_ref().unwrap_or(&self.shape), self.format);
        let companions = self.scales.iter().flat_map(|scales| &scales.companions);
        let companions = companions.map(|it| Stored::new(&it.name, &it.shape, it.format));
        std::iter::once(itself).chain(companions).collect()
    }
}

/// What is to be done.
pub struct JobPlan {
    /// In layer order.
    pub jobs: Vec<Job>,
    /// The tensors of the old checkpoint and their shapes.
    pub sources: BTreeMap<String, Vec<usize>>,
}

/// A job with some of its rows still missing.
struct Draft {
    layer: Option<usize>,
    job: Job,
    /// Each with the row of the job at which it begins.
    rows: Vec<(usize, Rows)>,
}

/// Plans how to make the checkpoint that `quant` describes from one whose tensors are named as in `names`.
///
/// # Errors
/// When the old checkpoint lacks a tensor, a tensor cannot have the scales that the spec names, or some of
/// its rows belong to no tensor of the model.
pub fn plan(model: &Model, quant: &Quant, names: &BTreeMap<String, FileTensor>) -> Result<JobPlan, String> {
    let mut plan = JobPlan { jobs: Vec::new(), sources: BTreeMap::new() };
    let mut drafts: BTreeMap<String, Draft> = BTreeMap::new();
    for tensor in stored_tensors(model, quant) {
        let from = names.get(&tensor.base());
        let from = from.ok_or_else(|| format!("what is read has no `{}`, by its spec", tensor.name))?;
        let to = &quant.checkpoint.names[&tensor.base()];
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

/// The spec of a checkpoint in floats laid out as `spec` says and without scales. The names are the same
/// except for compressed-tensors' `_packed`.
pub fn unpacked(spec: &CheckpointSpec) -> CheckpointSpec {
    let mut spec = spec.clone();
    for file in spec.names.values_mut() {
        if let Some(stem) = file.name.strip_suffix(".weight_packed") {
            file.name = format!("{stem}.weight");
        }
    }
    spec
}

/// A tensor that the model does not read, as it is.
pub fn copy(name: &str, shape: &[usize], format: Format) -> Job {
    let columns = if shape.len() < 2 { 1 } else { shape[shape.len() - 1] };
    let rows = Rows { tensor: name.to_owned(), first: 0, count: shape.iter().product::<usize>() / columns };
    let name = name.to_owned();
    Job {
        of: name.clone(),
        name,
        shape: shape.to_vec(),
        shown: None,
        format,
        scales: None,
        linear: false,
        rows: vec![rows],
    }
}

fn named(pattern: &str, layer: Option<usize>, expert: Option<usize>) -> String {
    let name = instance(pattern, layer);
    expert.map_or(name.clone(), |expert| name.replace("{expert}", &expert.to_string()))
}

/// The tensor of the new checkpoint that holds one of the model's; its rows are filled in later.
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
    Ok(Job { of: file.name.clone(), name, shape, shown: None, format, scales, linear, rows: Vec::new() })
}

/// The runs of rows of a model's tensor `name`, from `from` in the old checkpoint to `to` in the new, each
/// with the row of `to` at which it begins, in the old one's order. Where experts are stacked, each run has
/// its expert.
fn runs(
    tensor: &TensorDecl,
    to: (&FileTensor, Option<usize>),
    from: (&FileTensor, Option<usize>),
    name: &str,
) -> Vec<(usize, Rows)> {
    let mut runs = Vec::new();
    let mut row = 0;
    while row < tensor.rows {
        // Up to the first gap on either side.
        let until =
            |file: &FileTensor| file.view.map_or(tensor.rows, |view| (row / view.take + 1) * view.take);
        let end = tensor.rows.min(until(to.0)).min(until(from.0));
        let rows = Rows { tensor: name.to_owned(), first: from.0.file_row(row, from.1), count: end - row };
        runs.push((to.0.file_row(row, to.1), rows));
        row = end;
    }
    runs
}

/// The rows of a job, first to last, with adjacent runs joined.
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

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_compiler::spec::types::RowView;

    fn decl(name: &str, rows: usize, experts: Option<usize>) -> TensorDecl {
        let (name, class, columns) = (name.to_owned(), TensorClass::Experts, Some(32));
        TensorDecl { name, class, rows, columns, convolution: false, dims: Vec::new(), experts, layers: None }
    }

    fn file(name: &str, view: Option<[usize; 3]>) -> FileTensor {
        let view = view.map(|[first, take, of]| RowView { first, take, of });
        FileTensor { name: name.to_owned(), view }
    }

    fn rows(tensor: &str, first: usize, count: usize) -> Rows {
        Rows { tensor: tensor.to_owned(), first, count }
    }

    fn job(shape: &[usize], rows: Vec<Rows>) -> Job {
        let (of, name, shape) = (String::new(), "new".to_owned(), shape.to_vec());
        Job { of, name, shape, shown: None, format: Format::F32, scales: None, linear: true, rows }
    }

    #[test]
    fn experts_are_cut_out_of_stacked_tensors() {
        // The gate rows are the upper half of each expert's rows in a stacked tensor.
        let (tensor, from) = (decl("experts.{expert}.up", 8, Some(4)), file("stacked", Some([8, 8, 16])));
        let found = runs(&tensor, (&file("{expert}.up", None), None), (&from, Some(3)), "stacked");
        assert_eq!(found, [(0, rows("stacked", 56, 8))]);
        // And merged into one.
        let found = runs(&tensor, (&from, Some(3)), (&file("{expert}.up", None), None), "3.up");
        assert_eq!(found, [(56, rows("3.up", 0, 8))]);
    }

    #[test]
    fn views_of_one_tensor_become_that_tensor_again() {
        // Queries and gates of two heads alternate, four rows each.
        let (q, gate) = (file("both", Some([0, 4, 8])), file("both", Some([4, 4, 8])));
        let mut found = Vec::new();
        for view in [&gate, &q] {
            found.extend(runs(&decl("q", 8, None), (view, None), (view, None), "both"));
        }
        assert_eq!(found.len(), 4);
        assert_eq!(in_order(&job(&[16, 32], vec![]), found).unwrap(), [rows("both", 0, 16)]);
        // Rows from separate tensors alternate.
        let own = |name| (file(name, None), name);
        let (a, b) = (own("a"), own("b"));
        let mut found = runs(&decl("q", 8, None), (&q, None), (&a.0, None), a.1);
        found.extend(runs(&decl("gate", 8, None), (&gate, None), (&b.0, None), b.1));
        let turns = [rows("a", 0, 4), rows("b", 0, 4), rows("a", 4, 4), rows("b", 4, 4)];
        assert_eq!(in_order(&job(&[16, 32], vec![]), found).unwrap(), turns);
    }

    #[test]
    fn rows_that_are_no_tensors_are_named() {
        let found = vec![(0, rows("a", 0, 4)), (8, rows("a", 8, 8))];
        let error = in_order(&job(&[16, 32], vec![]), found).unwrap_err();
        assert_eq!(error, "rows 4 to 8 of `new` are no tensor's of the model");
        let error = in_order(&job(&[20, 32], vec![]), vec![(0, rows("a", 0, 16))]).unwrap_err();
        assert_eq!(error, "rows 16 to 20 of `new` are no tensor's of the model");
        assert!(in_order(&job(&[16, 1, 4], vec![]), vec![(0, rows("a", 0, 16))]).is_ok());
        assert!(in_order(&job(&[16], vec![]), vec![(0, rows("a", 0, 16))]).is_ok());
    }
}
