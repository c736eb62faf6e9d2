//! The GPU a stack was compiled for, opened.

use super::driver::{self, Context, Stream, check};
use super::fault::Fault;
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use monomorph_abi::cuda::{LEAST_DRIVER, RELEASE, VERSION};
use monomorph_model::{CudaSpec, LoadError, ModelSpec};
use monomorph_world::Seat;
use std::sync::{Arc, OnceLock};

/// An opened GPU and the one stream that steps run on. Cloning it is cheap.
#[derive(Clone, Debug)]
pub struct Gpu {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    // The fields are dropped in this order.
    stream: Stream,
    context: Context,
    /// Contexts of other GPUs, whose memory this one reaches.
    peers: OnceLock<Vec<Context>>,
    ordinal: usize,
    name: String,
    integrated: bool,
}

impl Gpu {
    /// Checks that this machine has the GPUs that `spec` was compiled for, one for each rank, without
    /// claiming any of them: those of the driver's numbers `ordinals`, or the first ones.
    ///
    /// # Errors
    /// [`LoadError::Hardware`] saying in one line what is missing.
    pub fn check(spec: &ModelSpec, ordinals: &[usize], ranks: usize) -> Result<(), LoadError> {
        let cuda = cuda(spec)?;
        let first: Vec<usize> = (0..ranks).collect();
        let ordinals = if ordinals.is_empty() { &first } else { ordinals };
        ordinals.iter().try_for_each(|ordinal| find(cuda, *ordinal).map(drop)).map_err(LoadError::Hardware)
    }

    /// The driver's number of the GPU with this UUID, as `nvidia-smi -L` prints it.
    ///
    /// # Errors
    /// [`LoadError::Hardware`] naming the GPUs that the driver finds.
    pub fn ordinal_of(spec: &ModelSpec, uuid: &str) -> Result<usize, LoadError> {
        let wanted = wanted(cuda(spec)?);
        let uuids: Result<Vec<String>, String> = (0..count(&wanted).map_err(LoadError::Hardware)?)
            .map(|number| {
                driver::device(number).and_then(driver::uuid).map_err(|fault| silent(&wanted, &fault))
            })
            .collect();
        let uuids = uuids.map_err(LoadError::Hardware)?;
        uuids.iter().position(|found| found == uuid).ok_or_else(|| {
            LoadError::Hardware(format!("there is no {uuid}; the driver finds {}", uuids.join(", ")))
        })
    }

    /// Opens the GPU of the driver's number `ordinal`.
    ///
    /// # Errors
    /// As [`Gpu::check`], or when the driver fails.
    pub fn open(spec: &ModelSpec, ordinal: usize) -> Result<Gpu, LoadError> {
        Gpu::of(cuda(spec)?, ordinal)
    }

    pub(crate) fn of(cuda: CudaSpec, ordinal: usize) -> Result<Gpu, LoadError> {
        let device = find(cuda, ordinal).map_err(LoadError::Hardware)?;
        let context = Context::of(device)?;
        let stream = Stream::new()?;
        let name = driver::name(device)?;
        let integrated = driver::attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0;
        let peers = OnceLock::new();
        Ok(Gpu { inner: Arc::new(Inner { stream, context, peers, ordinal, name, integrated }) })
    }

    /// Lets this GPU reach the memory of those of all other ranks.
    ///
    /// # Errors
    /// [`LoadError::Hardware`] naming two GPUs of which one cannot.
    pub(crate) fn reach(&self, seat: Seat) -> Result<(), LoadError> {
        let others = seat.ordinals().iter().filter(|ordinal| **ordinal != self.inner.ordinal);
        let peers = others.map(|peer| self.reach_one(*peer)).collect::<Result<Vec<_>, _>>()?;
        let _ = self.inner.peers.set(peers);
        Ok(())
    }

    fn reach_one(&self, peer: usize) -> Result<Context, LoadError> {
        let ordinal = self.inner.ordinal;
        let device = driver::device(peer as i32)?;
        if !driver::can_reach(driver::device(ordinal as i32)?, device)? {
            return Err(LoadError::Hardware(format!(
                "GPU {ordinal} cannot reach the memory of GPU {peer} (no peer access), and ranks write to each other's; name                  others with --gpu-ordinals"
            )));
        }
        let context = Context::of_peer(device)?;
        let place = |fault: Fault| fault.at(&format!("letting GPU {ordinal} reach the memory of GPU {peer}"));
        self.inner.context.reach(&context).map_err(place)?;
        Ok(context)
    }

    /// The driver's number of it.
    pub(crate) fn ordinal(&self) -> usize {
        self.inner.ordinal
    }

    /// Makes this GPU current on the calling thread. Each thread that uses it calls this once.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn enter(&self) -> Result<(), Fault> {
        self.inner.context.enter()
    }

    pub(crate) fn name(&self) -> &str {
        &self.inner.name
    }

    /// Whether the GPU shares the host's memory.
    pub(crate) fn is_integrated(&self) -> bool {
        self.inner.integrated
    }

    /// Bytes free and bytes in all.
    pub(crate) fn memory(&self) -> Result<(u64, u64), Fault> {
        self.inner.context.memory()
    }

    /// The stream that steps run on.
    pub(crate) fn stream(&self) -> &Stream {
        &self.inner.stream
    }
}

/// The beginning of what is said where it is not there.
fn wanted(cuda: CudaSpec) -> String {
    let (major, minor) = cuda.capability;
    format!("this server wants an NVIDIA GPU of compute capability {major}.{minor}")
}

/// What is said of a driver whose calls fail.
fn silent(wanted: &str, fault: &Fault) -> String {
    format!("{wanted}, and the NVIDIA driver does not answer: {fault}")
}

/// How many GPUs a driver that is new enough finds, at least one.
fn count(wanted: &str) -> Result<i32, String> {
    if !driver::is_present() {
        return Err(format!("{wanted}, and there is no NVIDIA driver (libcuda.so.1) on this machine"));
    }
    let version = driver::version().map_err(|fault| silent(wanted, &fault))?;
    if version < VERSION {
        let have = version_text(version);
        return Err(format!(
            "{wanted} with a driver for CUDA {RELEASE} ({LEAST_DRIVER} or newer), and this driver is for CUDA {have}"
        ));
    }
    match driver::devices().map_err(|fault| silent(wanted, &fault))? {
        0 => Err(format!("{wanted}, and the driver finds no GPU")),
        count => Ok(count),
    }
}

fn cuda(spec: &ModelSpec) -> Result<CudaSpec, LoadError> {
    spec.hardware
        .cuda
        .ok_or_else(|| LoadError::Hardware(format!("{} was not compiled for a GPU", spec.target)))
}

/// A device. It must have exactly the architecture that the kernels were compiled for, and the number
/// of multiprocessors they were planned for: blocks that wait for each other must all be on the card
/// together.
fn find(cuda: CudaSpec, ordinal: usize) -> Result<i32, String> {
    let (major, minor) = cuda.capability;
    let wanted = wanted(cuda);
    let failed = |fault: Fault| silent(&wanted, &fault);
    let count = count(&wanted)?;
    let ordinal = i32::try_from(ordinal).ok().filter(|it| *it < count).ok_or_else(|| {
        let gpus = if count == 1 { "GPU" } else { "GPUs" };
        format!("{wanted} of number {ordinal}, and the driver finds {count} {gpus}, numbered from 0")
    })?;
    let device = driver::device(ordinal).map_err(failed)?;
    let number = |which| driver::attribute(device, which).map_err(failed);
    let found = (
        number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    if found != (major as i32, minor as i32) {
        let name = driver::name(device).map_err(failed)?;
        return Err(format!(
            "{wanted} ({}), and {name} is of {}.{}; build it for that one",
            cuda.architecture, found.0, found.1
        ));
    }
    let multiprocessors = number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    if i64::from(multiprocessors) < i64::from(cuda.multiprocessors) {
        let name = driver::name(device).map_err(failed)?;
        return Err(format!(
            "{wanted} with at least {} multiprocessors, and {name} has {multiprocessors}; build it for hardware that says so",
            cuda.multiprocessors
        ));
    }
    Ok(device)
}

pub(crate) fn version_text(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Waits until the device has finished all work of this process.
pub(crate) fn settle(gpu: &Gpu) -> Result<(), Fault> {
    gpu.stream().wait()?;
    // SAFETY: no argument; the context is current on this thread.
    check("waiting for the device", unsafe { cudarc::driver::sys::cuCtxSynchronize() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_the_driver_is_told_what_is_missing() {
        if driver::is_present() {
            return;
        }
        let spec = CudaSpec { architecture: "sm_90a", capability: (9, 0), multiprocessors: 132, tuning: "" };
        let error = find(spec, 0).expect_err("nothing to be found");
        assert!(error.contains("compute capability 9.0") && error.contains("libcuda.so.1"), "{error}");
        assert!(!error.contains('\n'));
        assert_eq!(version_text(VERSION), RELEASE);
    }
}
