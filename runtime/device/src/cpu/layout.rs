//! Tests of files of packed weights: what is taken from one is what would be packed, a file of another build
//! is refused, and no layout changes without another [`LAYOUT`]: a server would take old files for new ones.

use super::arrays::Mapped;
use super::format::{RowScales, WeightFormat};
use super::simd::TILE;
use super::{
    Bf16, Convolution, Experts, F16, F32, Fp8Block128, Fp8Tensor, GatedExperts, GatedMatrix, InE4m3, InF16,
    Iq4Nl, Iq4Xs, LatentHeads, Loader, Matrix, Nvfp4Groups, Part, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K,
    Q6K, Q8_0, Team, Vector,
};
use monomorph_abi::packed_file::LAYOUT;
use monomorph_formats::{Format, ScaleForm, encode};
use monomorph_model::{HostGuard, LoadError, Progress, Shortage};
use monomorph_weights::test_support::GgufWriter;
use monomorph_weights::{Checkpoint, Packing, Tensor, WeightsError, digest};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Numbers that are the same in every run.
fn numbers(count: usize) -> Vec<f32> {
    let mut state = 9u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Rows of so many columns: floats of numbers, or any codes.
fn rows(format: Format, rows: usize, columns: usize) -> Vec<u8> {
    if !format.is_quantised() {
        return encode(format, &numbers(rows * columns));
    }
    let bytes = rows * format.bytes(columns).expect("whole blocks");
    numbers(bytes).into_iter().map(|number| ((number + 1.0) * 127.0) as u8).collect()
}

/// The digest of a tile in `F`.
fn tile<F: WeightFormat>() -> u64 {
    const COLUMNS: usize = 512;
    let bytes = rows(F::FORMAT, TILE, COLUMNS);
    let mut tile = vec![0; F::tile_bytes(COLUMNS)];
    let groups: Vec<u8> = (0..COLUMNS / 16).map(|at| at as u8 + 0x30).collect();
    for (lane, row) in bytes.chunks_exact(bytes.len() / TILE).enumerate() {
        F::pack(row, lane, &mut tile);
        let scales = match F::SCALES {
            None => continue,
            Some(ScaleForm::Tensor) => RowScales::Row(0.25 + lane as f32),
            Some(ScaleForm::Block128) => RowScales::Blocks(&[0.5, 0.25, 2.0, 4.0]),
            Some(ScaleForm::Modelopt | ScaleForm::CompressedTensors) => {
                RowScales::Groups(&groups, lane as f32)
            }
        };
        F::pack_scales(&scales, COLUMNS, lane, &mut tile);
    }
    digest(&tile)
}

/// What to do where a digest is another.
const OTHERWISE: &str = "another layout than that of LAYOUT in runtime/abi/src/packed_file.rs: raise it, and write the digests anew";

#[test]
fn tiles_of_a_layout_stay_as_they_are() {
    let found = [
        ("f32", tile::<F32>()),
        ("bf16", tile::<Bf16>()),
        ("f16", tile::<F16>()),
        ("f32 in f16", tile::<InF16<F32>>()),
        ("bf16 in f16", tile::<InF16<Bf16>>()),
        ("fp8", tile::<Fp8Tensor>()),
        ("fp8 in blocks", tile::<Fp8Block128>()),
        ("fp8 in e4m3", tile::<InE4m3<Fp8Block128>>()),
        ("nvfp4", tile::<Nvfp4Groups>()),
        ("nvfp4 in f16", tile::<InF16<Nvfp4Groups>>()),
        ("q8_0", tile::<Q8_0>()),
        ("q4_0", tile::<Q4_0>()),
        ("q4_1", tile::<Q4_1>()),
        ("q5_0", tile::<Q5_0>()),
        ("q5_1", tile::<Q5_1>()),
        ("q2_k", tile::<Q2K>()),
        ("q3_k", tile::<Q3K>()),
        ("q4_k", tile::<Q4K>()),
        ("q5_k", tile::<Q5K>()),
        ("q6_k", tile::<Q6K>()),
        ("iq4_nl", tile::<Iq4Nl>()),
        ("iq4_xs", tile::<Iq4Xs>()),
    ];
    let found = (LAYOUT, digest(format!("{found:x?}").as_bytes()));
    assert_eq!(found, TILES, "{OTHERWISE}");
}

/// Of [`LAYOUT`].
const TILES: (u32, u64) = (1, 10_463_676_180_571_994_883);

/// A tensor in memory.
struct Owned {
    name: String,
    shape: Vec<usize>,
    format: Format,
    bytes: Vec<u8>,
}

impl Owned {
    fn new(name: &str, shape: &[usize], format: Format) -> Owned {
        let bytes = encode(format, &numbers(shape.iter().product()));
        Owned { name: name.to_owned(), shape: shape.to_owned(), format, bytes }
    }

    fn part(&self) -> Part<'_> {
        let Owned { name, shape, format, bytes } = self;
        Part::new(Tensor { name, shape, format: *format, bytes: bytes[..].into() })
    }
}

/// One of each kind of array.
#[derive(Debug)]
struct All {
    matrix: Matrix<F32, 20, 64>,
    gated: GatedMatrix<Bf16, 20, 64>,
    experts: Experts<Q8_0, 3, 20, 64>,
    gated_experts: GatedExperts<F16, 2, 20, 64>,
    heads: LatentHeads<F32, 2, 6, 10, 24>,
    vector: Vector<20>,
    convolution: Convolution<8, 4>,
}

impl All {
    fn load(loader: &Loader, name: &str) -> Result<All, WeightsError> {
        let [f32s, bf16s, codes, f16s] = [Format::F32, Format::Bf16, Format::Q8_0, Format::F16]
            .map(|format| Owned::new(name, &[20, 64], format));
        let heads = Owned::new(name, &[32, 24], Format::F32);
        let rates: Vec<f32> = numbers(20).into_iter().map(|number| number - 1.0).collect();
        let vector = Owned { bytes: encode(Format::F32, &rates), ..Owned::new(name, &[20], Format::F32) };
        let taps = Owned::new(name, &[8, 4], Format::F32);
        Ok(All {
            matrix: Matrix::load(loader, &[f32s.part()])?,
            gated: GatedMatrix::load(loader, &[bf16s.part()], &[bf16s.part()])?,
            experts: Experts::load(loader, &[codes.part(); 3])?,
            gated_experts: GatedExperts::load(loader, &[f16s.part(); 2], &[f16s.part(); 2])?,
            heads: LatentHeads::load(loader, &[heads.part()])?,
            vector: Vector::load(loader, &[vector.part().negative_rates()])?,
            convolution: Convolution::load(loader, &[taps.part()])?,
        })
    }

    /// What kernels read.
    fn bytes(&self) -> Vec<Vec<u8>> {
        let floats = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect();
        vec![
            self.matrix.packed().to_vec(),
            self.gated.packed().to_vec(),
            (0..3).flat_map(|expert| self.experts.packed(expert).to_vec()).collect(),
            (0..2).flat_map(|expert| self.gated_experts.packed(expert).to_vec()).collect(),
            (0..2).flat_map(|head| self.heads.keys(head).to_vec()).collect(),
            (0..2).flat_map(|head| self.heads.values(head).to_vec()).collect(),
            floats(self.vector.padded()),
            floats(self.convolution.taps()),
        ]
    }
}

const BUILD: &str = "model/quant";

/// What loads, and a checkpoint to keep the header of.
struct Bench {
    directory: tempfile::TempDir,
    team: Team,
    progress: Progress,
}

impl Bench {
    fn new() -> Bench {
        let directory = tempfile::tempdir().unwrap();
        let gguf = GgufWriter::new().metadata("general.name", "a").tensor(
            "t",
            &[8],
            Format::F32,
            encode(Format::F32, &numbers(8)),
        );
        std::fs::write(directory.path().join("m.gguf"), gguf.finish()).unwrap();
        Bench { directory, team: Team::new(2).unwrap(), progress: Progress::default() }
    }

    fn loader(&self) -> Loader<'_> {
        Loader::new(&self.team, Path::new("the weights"), &self.progress)
    }

    fn pack(&self) -> PathBuf {
        let to = self.directory.path().join("m.packed");
        let checkpoint = Checkpoint::open(&self.directory.path().join("m.gguf")).unwrap();
        let packing = Packing::begin(&to, &checkpoint, (BUILD, "a test"), 8, &|name| name == "t").unwrap();
        let packing = Mutex::new(packing);
        let all = All::load(&self.loader().writing(&packing), "w").unwrap();
        // Nothing of it is kept, and nothing can be read of what is not there.
        let gone = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| all.matrix.packed().len()));
        assert!(gone.is_err());
        packing.into_inner().unwrap().finish().unwrap();
        to
    }

    /// What is loaded of a file, and whether nothing is left of it.
    fn load(&self, packed: &Path, build: &str, name: &str) -> Result<Vec<Vec<u8>>, String> {
        let checkpoint = Checkpoint::open_packed(packed).map_err(|error| error.to_string())?;
        let said = |error: WeightsError| error.to_string();
        let mapped = Mapped::open(checkpoint.packed().unwrap(), build).map_err(said)?;
        let all = All::load(&self.loader().mapping(&mapped), name).map_err(said)?;
        mapped.finish().map_err(said)?;
        // Arrays are mapped for as long as they are there.
        drop(mapped);
        Ok(all.bytes())
    }
}

#[test]
fn what_is_mapped_is_what_would_be_packed_and_stays_as_it_is() {
    let bench = Bench::new();
    let made = All::load(&bench.loader(), "w").unwrap().bytes();
    let packed = bench.pack();
    assert_eq!(bench.load(&packed, BUILD, "w").unwrap(), made);
    let found = (LAYOUT, digest(&made.concat()));
    assert_eq!(found, ARRAYS, "{OTHERWISE}");
    let checkpoint = Checkpoint::open_packed(&packed).unwrap();
    let kept = checkpoint.tensor("t").unwrap();
    assert_eq!(
        kept.bytes.read().unwrap()[..],
        encode(Format::F32, &numbers(8)),
        "what was wanted of a tensor"
    );
    assert_eq!(checkpoint.gguf_metadata().unwrap().str("general.name").unwrap(), Some("a"));
    let header = checkpoint.packed().unwrap().header();
    assert_eq!((&*header.build, &*header.by, header.sources.len()), (BUILD, "a test", 1));
    assert!(header.arrays.iter().all(|array| array.piece.place.start.is_multiple_of(4096)));
    assert_eq!(header.arrays[0].name, "matrix [20, 64] in f32 of w");
}

/// Of [`LAYOUT`].
const ARRAYS: (u32, u64) = (1, 3_401_506_704_943_386_746);

#[test]
fn another_build_s_arrays_are_refused_by_name() {
    let bench = Bench::new();
    let packed = bench.pack();
    let other = bench.load(&packed, "model/other", "w").unwrap_err();
    assert!(other.contains("holds packed weights of model/quant, and this server is model/other"), "{other}");
    let other = bench.load(&packed, BUILD, "v").unwrap_err();
    assert!(
        other.contains(
            "m.packed: was packed by another build of model/quant: array 0 is matrix [20, 64] in f32 of w in"
        ) && other.contains("and matrix [20, 64] in f32 of v in")
            && other.contains("make it again with the verb `pack`"),
        "{other}"
    );
    let checkpoint = Checkpoint::open_packed(&packed).unwrap();
    let mapped = Mapped::open(checkpoint.packed().unwrap(), BUILD).unwrap();
    let one = Owned::new("w", &[20, 64], Format::F32);
    let parts = [one.part()];
    Matrix::<F32, 20, 64>::load(&bench.loader().mapping(&mapped), &parts).unwrap();
    let few = mapped.finish().unwrap_err().to_string();
    assert!(few.contains("it has 8 arrays, and 1 are wanted"), "{few}");
    // The same array again is not the next one.
    Matrix::<F32, 20, 64>::load(&bench.loader().mapping(&mapped), &parts).unwrap_err();
    let rounded = Mapped::open(checkpoint.packed().unwrap(), BUILD).unwrap();
    let error = Matrix::<InF16<F32>, 20, 64>::load(&bench.loader().mapping(&rounded), &parts).unwrap_err();
    assert!(error.to_string().contains("in f32 as f16 has them of w"), "{error}");
}

/// To be caught: nobody looking between tiles; the bytes of an array not asked for before it is claimed.
#[test]
fn memory_that_others_take_while_weights_are_loaded_ends_the_load() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    // Enough when the array is claimed, and then no more.
    let available = || if ASKED.fetch_add(1, Ordering::Relaxed) == 0 { 1 << 30 } else { 999 };
    let bench = Bench::new();
    let one = Owned::new("w", &[20, 64], Format::F32);
    let load = |guard: HostGuard| {
        let watch = guard.watch();
        Matrix::<F32, 20, 64>::load(&bench.loader().watched(&watch), &[one.part()]).map(|_| ())
    };
    let error = LoadError::from(load(HostGuard { bytes: 1000, available }).expect_err("others took it"));
    let LoadError::HostMemory(shortage) = error else { panic!("{error}") };
    assert_eq!(shortage, Shortage { available: 999, taking: 0, guard: 1000 });
    let error = load(HostGuard { bytes: 1000, available: || 5000 }).expect_err("the array is larger");
    let words = error.to_string();
    assert!(words.contains("5000 bytes of memory left") && words.contains("8192 more"), "{words}");
    load(HostGuard { bytes: 1000, available: || 1 << 30 }).unwrap();
    load(HostGuard::NONE).unwrap();
}
