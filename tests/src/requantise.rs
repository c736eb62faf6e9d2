//! Goldens stored in another format: their f32 weights, the quant spec, and a second copy of the weights with
//! the f32 values that codes and scales stand for, computed here and not by the code under test.

use crate::goldens::{Golden, file_tensors};
use monomorph_compiler::spec::types::{
    ClassScales, Compute, Container, RotaryRows, RowView, ScaleForm, Target, TensorClass,
};
use monomorph_compiler::spec::{TensorDecl, stored_tensors};
use monomorph_formats::{Format, decode, e2m1_to_f32, e4m3_to_f32, encode, quantise};
use monomorph_weights::Checkpoint;
use monomorph_weights::test_support::GgufWriter;
use safetensors::tensor::{Dtype, TensorView};
use std::fmt::Write;
use std::path::Path;

/// A storage for a golden.
#[derive(Clone, Copy, Debug)]
pub struct Storage {
    /// Its name in quant specs and messages.
    pub name: &'static str,
    /// Format of the projections of attention and ffn.
    pub matrices: Format,
    /// Format of embedding, head, norms and biases, if `matrices` allows it.
    pub rest: Format,
    /// Scales of the projections.
    pub scales: Option<ClassScales>,
    /// Formats of the projections of ffn, and of embedding and head, where these have others.
    pub mixed: Option<[Format; 2]>,
}

const fn scaled(name: &'static str, form: ScaleForm, format: Format) -> Storage {
    let scales = Some(ClassScales { form, format });
    Storage { name, matrices: form.codes(), rest: Format::Bf16, scales, mixed: None }
}

const fn plain(name: &'static str, matrices: Format, rest: Format) -> Storage {
    Storage { name, matrices, rest, scales: None, mixed: None }
}

const fn mixed(name: &'static str, [attention, ffn, ends]: [Format; 3]) -> Storage {
    Storage { mixed: Some([ffn, ends]), ..plain(name, attention, Format::F32) }
}

impl Storage {
    /// Every storage that cards have, too.
    pub const ALL: [Storage; 9] = [
        plain("f32", Format::F32, Format::F32),
        plain("bf16", Format::Bf16, Format::Bf16),
        plain("f16", Format::F16, Format::F16),
        scaled("fp8-tensor", ScaleForm::Tensor, Format::F32),
        scaled("fp8-block128", ScaleForm::Block128, Format::Bf16),
        scaled("nvfp4-modelopt", ScaleForm::Modelopt, Format::F32),
        scaled("nvfp4-compressed-tensors", ScaleForm::CompressedTensors, Format::F32),
        plain("q8_0", Format::Q8_0, Format::F32),
        plain("q4_1", Format::Q4_1, Format::F32),
    ];

    /// Those that only CPUs have: each format of GGUF is in one of them.
    pub const ON_CPUS: [Storage; 4] = [
        mixed("q4_0-q5", [Format::Q4_0, Format::Q5_0, Format::Q5_1]),
        mixed("q4_k-q6_k", [Format::Q4K, Format::Q5K, Format::Q6K]),
        mixed("q2_k-q3_k", [Format::Q3K, Format::Q2K, Format::Q3K]),
        mixed("iq4", [Format::Iq4Xs, Format::Iq4Nl, Format::Iq4Xs]),
    ];

    /// The storage of a name.
    ///
    /// # Panics
    /// If there is none.
    pub fn called(name: &str) -> &'static Storage {
        let all = Storage::ALL.iter().chain(&Storage::ON_CPUS);
        all.into_iter().find(|it| it.name == name).unwrap_or_else(|| panic!("no storage is called {name}"))
    }

    /// The container that can hold it.
    pub fn container(&self) -> Container {
        if self.matrices.is_quantised() && self.scales.is_none() {
            Container::Gguf
        } else {
            Container::Safetensors
        }
    }

    /// Whether the rows of every matrix fill whole blocks, and no scale covers rows of two tensors or of
    /// several experts.
    pub fn fits(&self, target: &Target) -> bool {
        let whole = |tensor: TensorDecl| {
            let (format, scales) = self.of(tensor.class);
            let Some(columns) = tensor.columns else { return true };
            let file = &target.quant.checkpoint.names[&tensor.base()];
            let fits = |scales: ClassScales| {
                let cut = |view: RowView| [view.first, view.take, view.of].iter().any(|rows| rows % 128 != 0);
                let cuts_blocks = scales.form == ScaleForm::Block128 && file.view.is_some_and(cut);
                !cuts_blocks && !file.stacks_experts(&tensor.name)
            };
            format.bytes(columns).is_some() && scales.is_none_or(fits)
        };
        stored_tensors(&target.model, &target.quant).into_iter().all(whole)
    }

    /// Whether it can compute in `compute`.
    pub fn computes(&self, compute: Compute) -> bool {
        match compute {
            Compute::Int8Block32 => self.container() == Container::Gguf,
            Compute::Fp8 => self.matrices == Format::Fp8E4m3,
            Compute::F16 | Compute::F32 => true,
        }
    }

    fn of(&self, class: TensorClass) -> (Format, Option<ClassScales>) {
        match (class, self.mixed) {
            (TensorClass::Ffn, Some([ffn, _])) => (ffn, None),
            (TensorClass::Embedding | TensorClass::Head, Some([_, ends])) => (ends, None),
            (class, _) if class.is_quantised() => (self.matrices, self.scales),
            // A GGUF's embedding and head are quantised too: to 8 bits, as in files with 4-bit matrices.
            (TensorClass::Embedding | TensorClass::Head, None) if self.container() == Container::Gguf => {
                (Format::Q8_0, None)
            }
            _ => (self.rest, None),
        }
    }
}

/// A tensor to write: the part of its name after the weight's stem, shape, format, bytes.
type Stored = (String, Vec<usize>, Format, Vec<u8>);

/// An encoded weight, and the values that it stands for.
pub struct Encoded {
    /// First the weight itself, suffix `weight` or `weight_packed`, then its scales.
    pub tensors: Vec<Stored>,
    /// The exact decoded values.
    pub values: Vec<f32>,
}

/// Encodes a matrix `[rows, columns]`, rounding to nearest under the usual scales. The decoded values follow
/// from the definition of the form, not from the readers' code.
pub fn encode_matrix(values: &[f32], columns: usize, format: Format, scales: Option<ClassScales>) -> Encoded {
    let rows = values.len() / columns;
    let Some(scales) = scales else {
        let bytes = encode(format, values);
        let mut back = vec![0.0; values.len()];
        decode(format, &bytes, &mut back);
        return Encoded {
            tensors: vec![("weight".to_owned(), vec![rows, columns], format, bytes)],
            values: back,
        };
    };
    let form = scales.form;
    let quantised = quantise(form, scales.format, values, columns);
    let last = quantised.scales[quantised.scales.len() - 1][0];
    // One scale per `height` rows and `width` columns, and one on top of all of them.
    let (height, width, top) = match form {
        ScaleForm::Tensor => (rows, columns, 1.0),
        ScaleForm::Block128 => (128, 128, 1.0),
        ScaleForm::Modelopt => (1, 16, last),
        ScaleForm::CompressedTensors => (1, 16, 1.0 / last),
    };
    let across = columns.div_ceil(width);
    let scale_of = |i: usize| quantised.scales[0][i / columns / height * across + i % columns / width];
    let code = |i: usize| match form.codes() {
        Format::Nvfp4 => e2m1_to_f32(quantised.codes[i / 2] >> (4 * (i % 2))),
        _ => e4m3_to_f32(quantised.codes[i]),
    };
    let stand_for = (0..values.len()).map(|i| code(i) * scale_of(i) * top).collect();
    let weight = if form == ScaleForm::CompressedTensors { "weight_packed" } else { "weight" };
    let mut tensors = vec![(weight.to_owned(), vec![rows, columns], form.codes(), quantised.codes.clone())];
    for (companion, values) in scales.of("", rows, columns).companions.into_iter().zip(&quantised.scales) {
        // Releases write the second scale of nvfp4 in either shape.
        let shape = if tensors.len() == 2 { vec![1] } else { companion.shape };
        let name = companion.name.trim_start_matches('.').to_owned();
        tensors.push((name, shape, companion.format, encode(companion.format, values)));
    }
    Encoded { tensors, values: stand_for }
}

/// Stores the f32 checkpoint of `golden` as `storage` says. Writes `out/stored/`, a checkpoint; `out/means/`,
/// an f32 checkpoint of exactly the values that `stored` stands for, for the golden's own `f32.toml`; and
/// `targets/models/<golden>/<quant>.toml`. Returns its name `<quant>`: `<storage>-<compute>`.
///
/// `plain` is the golden's imported f32 target.
///
/// # Panics
/// If the storage does not fit the model, or a file cannot be written.
pub fn requantise(
    golden: &Golden,
    plain: &Target,
    storage: &Storage,
    compute: Compute,
    kv: Format,
    targets: &Path,
    out: &Path,
) -> String {
    assert!(storage.fits(plain) && storage.computes(compute), "{}: {}", golden.name, storage.name);
    let spec = &plain.quant.checkpoint;
    assert_eq!(spec.rotary_rows, RotaryRows::AsModel);
    let checkpoint = Checkpoint::open(&golden.directory.join("f32")).expect("a golden has a checkpoint");
    let (mut stored, mut means, mut names) = (Vec::new(), Vec::new(), String::new());
    for tensor in file_tensors(plain) {
        let (format, scales) = match tensor.columns {
            Some(_) => storage.of(tensor.class),
            None => (storage.rest, None),
        };
        let bytes = checkpoint.expect(&tensor.name, &tensor.shape, Format::F32);
        let bytes = bytes.expect("the golden's tensors fit").bytes.read().expect("goldens are readable");
        let mut values = vec![0.0; bytes.len() / 4];
        decode(Format::F32, &bytes, &mut values);
        let encoded = encode_matrix(&values, tensor.columns.unwrap_or(1), format, scales);
        let stem = tensor.name.rsplit_once('.').map_or(tensor.name.as_str(), |(stem, _)| stem);
        for (i, (suffix, matrix_shape, format, bytes)) in encoded.tensors.into_iter().enumerate() {
            let shape = if i == 0 { tensor.shape.clone() } else { matrix_shape };
            let name = if suffix == "weight" { tensor.name.clone() } else { format!("{stem}.{suffix}") };
            stored.push((name, shape, format, bytes));
        }
        means.push((tensor.name, tensor.shape, Format::F32, encode(Format::F32, &encoded.values)));
    }
    for (name, file) in &spec.names {
        let (_, scales) = stored_tensors(&plain.model, &plain.quant)
            .into_iter()
            .find(|tensor| tensor.name == *name)
            .map_or((storage.rest, None), |tensor| storage.of(tensor.class));
        let packed = scales.is_some_and(|scales| scales.form == ScaleForm::CompressedTensors);
        let file_name = if packed { format!("{}_packed", file.name) } else { file.name.clone() };
        let line = match file.view {
            None => writeln!(names, "{name:?} = {file_name:?}"),
            Some(RowView { first, take, of }) => {
                let end = first + take;
                writeln!(names, "{name:?} = {{ tensor = {file_name:?}, rows = [{first}, {end}], of = {of} }}")
            }
        };
        line.expect("strings are writable");
    }
    write_checkpoint(&out.join("stored"), storage.container(), stored);
    write_checkpoint(&out.join("means"), Container::Safetensors, means);
    let quant = format!("{}-{}", storage.name, compute.name());
    let text = quant_toml(plain, storage, compute, kv, &names);
    let file = targets.join("models").join(&golden.name).join(format!("{quant}.toml"));
    std::fs::write(file, text).expect("the targets directory is writable");
    quant
}

fn quant_toml(plain: &Target, storage: &Storage, compute: Compute, kv: Format, names: &str) -> String {
    let container = match storage.container() {
        Container::Gguf => "gguf",
        Container::Safetensors => "safetensors",
    };
    let (mut stored, mut scales, mut computes) = (String::new(), String::new(), String::new());
    for class in plain.quant.stored.classes.keys() {
        let (format, scaled) = storage.of(*class);
        let class = class.name();
        stored += &format!("{class} = \"{format}\"\n");
        if class != "norm" && class != "router" {
            // Beside products of codes by codes, those of floats are in f16.
            let compute =
                if compute == Compute::Fp8 && format != Format::Fp8E4m3 { Compute::F16 } else { compute };
            computes += &format!("{class} = {:?}\n", compute.name());
        }
        if let Some(ClassScales { form, format }) = scaled {
            let format = if form.codes() == Format::Nvfp4 {
                String::new()
            } else {
                format!(", format = \"{format}\"")
            };
            scales += &format!("{class} = {{ form = \"{form}\"{format} }}\n");
        }
    }
    format!(
        "[checkpoint]\ncontainer = {container:?}\nrotary_rows = \"as-model\"\n\n[checkpoint.names]\n{names}\n[stored]\n{stored}\n\
         [scales]\n{scales}\n[compute]\n{computes}\n[kv]\nformat = \"{kv}\"\nblock = 16\n"
    )
}

/// Writes `model.safetensors` or `model.gguf` into a new directory.
fn write_checkpoint(directory: &Path, container: Container, tensors: Vec<Stored>) {
    std::fs::create_dir_all(directory).expect("a temporary directory is writable");
    if container == Container::Gguf {
        let add = |file: GgufWriter, (name, shape, format, bytes): Stored| {
            file.tensor(&name, &shape, format, bytes)
        };
        let file = tensors.into_iter().fold(GgufWriter::new(), add);
        std::fs::write(directory.join("model.gguf"), file.finish()).expect("it is writable");
        return;
    }
    let views = tensors.iter().map(|(name, shape, format, bytes)| {
        let mut shape = shape.clone();
        let dtype = match format {
            Format::F32 => Dtype::F32,
            Format::Bf16 => Dtype::BF16,
            Format::F16 => Dtype::F16,
            Format::Fp8E4m3 => Dtype::F8_E4M3,
            Format::Nvfp4 => {
                *shape.last_mut().expect("a matrix") /= 2;
                Dtype::U8
            }
            _ => unreachable!("a format of GGUF"),
        };
        (name, TensorView::new(dtype, shape, bytes).expect("shape and bytes agree"))
    });
    let file = safetensors::tensor::serialize(views, None).expect("the tensors are sound");
    std::fs::write(directory.join("model.safetensors"), file).expect("it is writable");
}
