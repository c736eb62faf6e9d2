//! What the tuner measures with: ranges of memory, kernels named at run time, and recorded launches with
//! their times. Servers use none of this.

use super::driver::{Claim, Event};
use super::fault::Fault;
pub use super::fill::fill_shape;
use super::fill::{self, FillMatrix, FillVector, VECTOR_DEVIATION};
use super::gpu::{Gpu, settle};
use super::module::{Kernel, Module};
use super::pointer::Pointer;
use super::queue::{Graph, launch};
use super::rotary;
pub use monomorph_abi::fill::FillShape;
use monomorph_model::{CudaSpec, LoadError};
use std::collections::BTreeMap;
use std::ffi::c_void;

/// A kernel whose parameters are all device addresses.
pub type AnyKernel = Kernel<Addresses>;

/// The arguments of an [`AnyKernel`].
#[derive(Clone, Copy, Debug)]
pub enum Addresses {}

/// A recorded list of launches.
#[derive(Debug)]
pub struct Recording(Graph);

/// A card, all memory that was asked of it, and two marks in time.
#[derive(Debug)]
pub struct Card {
    start: Event,
    end: Event,
    /// Bytes of every known range, by its first address.
    ranges: BTreeMap<u64, u64>,
    claims: Vec<Claim>,
    gpu: Gpu,
}

/// One launch: kernel, blocks, arguments.
#[derive(Clone, Debug)]
pub struct Call {
    /// Kernel to time.
    pub kernel: AnyKernel,
    /// Its blocks.
    pub grid: [u32; 3],
    /// An address for each parameter.
    pub arguments: Vec<u64>,
}

impl Card {
    /// The first card, which has to be the one that `cuda` describes.
    ///
    /// # Errors
    /// When there is no such card, or its driver fails.
    pub fn open(cuda: CudaSpec) -> Result<Card, LoadError> {
        let gpu = Gpu::of(cuda, 0)?;
        let (start, end) = (Event::timed()?, Event::timed()?);
        Ok(Card { start, end, ranges: BTreeMap::new(), claims: Vec::new(), gpu })
    }

    /// The card's name.
    pub fn name(&self) -> &str {
        self.gpu.name()
    }

    /// So many bytes of zeros.
    ///
    /// # Errors
    /// When the card has no room for them.
    pub fn allocate(&mut self, bytes: u64) -> Result<u64, Fault> {
        let claim = Claim::new(bytes.max(1))?;
        let start = claim.start;
        self.ranges.insert(start, claim.bytes);
        self.claims.push(claim);
        self.fill(start, bytes, 0)?;
        Ok(start)
    }

    /// The same, with these contents.
    ///
    /// # Errors
    /// When the card has no room for them.
    pub fn uploaded(&mut self, bytes: &[u8]) -> Result<u64, Fault> {
        let start = self.allocate(bytes.len() as u64)?;
        // SAFETY: the range was just made of this length. The source is pageable: it is read before the call
        // returns.
        unsafe { self.gpu.stream().upload(start, bytes)? };
        self.wait()?;
        Ok(start)
    }

    /// The table of rotary angles of all positions below `positions`.
    ///
    /// # Errors
    /// When the card has no room for it.
    pub fn uploaded_angles(
        &mut self,
        inverse_frequencies: &[f32],
        factor: f32,
        positions: usize,
    ) -> Result<u64, Fault> {
        let table = rotary::table(inverse_frequencies, factor, positions, 1);
        let bytes: Vec<u8> = table.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.uploaded(&bytes)
    }

    /// Sets every byte of a range.
    ///
    /// # Errors
    /// When the driver fails.
    ///
    /// # Panics
    /// When the range is not within one that is known.
    pub fn fill(&self, at: u64, bytes: u64, byte: u8) -> Result<(), Fault> {
        self.inside(at, bytes);
        // SAFETY: within a range of this card, as was just checked.
        unsafe { self.gpu.stream().set(at, byte, bytes) }
    }

    /// Copies a range to one that it does not overlap.
    ///
    /// # Errors
    /// When the driver fails.
    ///
    /// # Panics
    /// When either range is not within one that is known, or they overlap.
    pub fn copy(&self, from: u64, to: u64, bytes: u64) -> Result<(), Fault> {
        self.inside(from, bytes);
        self.inside(to, bytes);
        assert!(from.abs_diff(to) >= bytes, "the ranges overlap");
        // SAFETY: both are within ranges of this card and apart, as was just checked.
        unsafe { self.gpu.stream().copy(from, to, bytes) }
    }

    /// What a range holds once all work is done.
    ///
    /// # Errors
    /// When the driver fails.
    ///
    /// # Panics
    /// When the range is not within one that is known.
    pub fn download(&self, at: u64, bytes: u64) -> Result<Vec<u8>, Fault> {
        self.inside(at, bytes);
        let mut data = vec![0; bytes as usize];
        // SAFETY: within a range of this card; the data are read behind the wait.
        unsafe { self.gpu.stream().download(at, &mut data)? };
        self.wait()?;
        Ok(data)
    }

    fn inside(&self, at: u64, bytes: u64) {
        let known = self.ranges.range(..=at).next_back();
        let inside = known.is_some_and(|(start, length)| at + bytes <= start + length);
        assert!(inside, "{bytes} bytes at {at:#x} are in no range of the card");
    }

    /// Waits for all work.
    ///
    /// # Errors
    /// When a launch failed.
    pub fn wait(&self) -> Result<(), Fault> {
        self.gpu.stream().wait()
    }

    /// Loads a cubin: see [`Module::load`].
    ///
    /// # Errors
    /// When the driver refuses it.
    pub fn module(&self, name: &str, cubin: &[u8], shared_part: Option<u32>) -> Result<Module, Fault> {
        Module::load(&self.gpu, lasting(name), cubin, shared_part)
    }

    /// A kernel all of whose parameters are addresses.
    ///
    /// # Errors
    /// When the module has none of that name.
    pub fn kernel(&self, module: &Module, name: &str, block: u32, shared: u32) -> Result<AnyKernel, Fault> {
        module.any_kernel(lasting(name), block, shared)
    }

    /// A variable of a module: its address and bytes.
    ///
    /// # Errors
    /// When the module has none of that name.
    pub fn variable(&mut self, module: &Module, name: &str) -> Result<(u64, u64), Fault> {
        let (start, bytes) = module.variable(name)?;
        self.ranges.insert(start, bytes);
        Ok((start, bytes))
    }

    /// Makes up a matrix as `--weights dummy` does; `planes` are its codes, scales and row scales.
    ///
    /// # Errors
    /// When the module lacks the kernel, or the launch fails.
    pub fn fill_matrix(
        &self,
        module: &Module,
        kernel: (&str, u32),
        planes: [u64; 3],
        shape: FillShape,
    ) -> Result<(), Fault> {
        let kernel = module.kernel(lasting(kernel.0), kernel.1, 0)?;
        let [codes, scales, row_scales] = planes.map(Pointer);
        fill::run(self.gpu.stream(), &kernel, FillMatrix { codes, scales, row_scales, shape })
    }

    /// Makes up a vector around `centre`.
    ///
    /// # Errors
    /// When the module lacks the kernel, or the launch fails.
    pub fn fill_vector(
        &self,
        module: &Module,
        kernel: (&str, u32),
        (values, count): (u64, usize),
        centre: f32,
        seed: u64,
    ) -> Result<(), Fault> {
        let kernel = module.kernel(lasting(kernel.0), kernel.1, 0)?;
        let (values, count, deviation) = (Pointer(values), count as i64, VECTOR_DEVIATION);
        fill::run(self.gpu.stream(), &kernel, FillVector { values, count, centre, deviation, seed })
    }

    /// Launches a kernel behind all earlier work.
    ///
    /// # Errors
    /// When the driver refuses it, or the arguments are not as many as its parameters.
    pub fn launch(&self, call: &Call, dependent: bool) -> Result<(), Fault> {
        let (Call { kernel, grid, arguments }, mut values) = (call, call.arguments.clone());
        kernel.takes(arguments.len())?;
        let mut addresses: Vec<*mut c_void> = values.iter_mut().map(|it| (&raw mut *it).cast()).collect();
        launch(self.gpu.stream(), kernel, *grid, &mut addresses, dependent)
    }

    /// Records calls. Where they are `dependent`, each may start before the one in front of it has ended.
    ///
    /// # Errors
    /// When the driver refuses one of them.
    pub fn record(&self, calls: &[Call], dependent: bool) -> Result<Recording, Fault> {
        self.wait()?;
        Graph::capture(self.gpu.stream(), "what is measured", || {
            calls.iter().enumerate().try_for_each(|(at, call)| self.launch(call, dependent && at > 0))
        })
        .map(Recording)
    }

    /// Milliseconds of one run.
    ///
    /// # Errors
    /// When a launch failed.
    pub fn time(&self, recording: &Recording) -> Result<f64, Fault> {
        let stream = self.gpu.stream();
        self.start.record(stream)?;
        recording.0.launch(stream)?;
        self.end.record(stream)?;
        self.end.wait()?;
        self.start.until(&self.end).map(f64::from)
    }
}

impl Drop for Card {
    /// Nothing may run on memory that is given back. An error was said by what failed.
    fn drop(&mut self) {
        let _ = settle(&self.gpu);
    }
}

/// Modules and kernels keep their names as long as the process lives, as they live themselves.
fn lasting(name: &str) -> &'static str {
    Box::leak(name.to_owned().into_boxed_str())
}
