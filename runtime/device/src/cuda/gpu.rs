//! The GPU a stack was compiled for, opened.

use super::driver::{self, Context, Stream, check};
use super::fault::Fault;
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use monomorph_model::{CudaSpec, LoadError, ModelSpec};
use std::sync::Arc;

/// The CUDA version that the cubins were built with, as the driver counts. Older drivers cannot run them.
const DRIVER_VERSION: i32 = 13_000;

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
    name: String,
    integrated: bool,
}

impl Gpu {
    /// Checks that this machine has the GPU that `spec` was compiled for, without claiming any of it.
    ///
    /// # Errors
    /// [`LoadError::Hardware`] saying in one line what is missing.
    pub fn check(spec: &ModelSpec) -> Result<(), LoadError> {
        find(cuda(spec)?).map(|_| ()).map_err(LoadError::Hardware)
    }

    /// Opens the GPU.
    ///
    /// # Errors
    /// As [`Gpu::check`], or when the driver fails.
    pub fn open(spec: &ModelSpec) -> Result<Gpu, LoadError> {
        Gpu::of(cuda(spec)?)
    }

    pub(crate) fn of(cuda: CudaSpec) -> Result<Gpu, LoadError> {
        let device = find(cuda).map_err(LoadError::Hardware)?;
        let context = Context::of(device)?;
        let stream = Stream::new()?;
        let name = driver::name(device)?;
        let integrated = driver::attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0;
        Ok(Gpu { inner: Arc::new(Inner { stream, context, name, integrated }) })
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

fn cuda(spec: &ModelSpec) -> Result<CudaSpec, LoadError> {
    spec.hardware
        .cuda
        .ok_or_else(|| LoadError::Hardware(format!("{} was not compiled for a GPU", spec.target)))
}

/// The first device. It must have exactly the architecture that the kernels were compiled for, and the number
/// of multiprocessors they were planned for: blocks that wait for each other must all be on the card
/// together.
fn find(cuda: CudaSpec) -> Result<i32, String> {
    let (major, minor) = cuda.capability;
    let wanted = format!("this server wants an NVIDIA GPU of compute capability {major}.{minor}");
    if !driver::is_present() {
        return Err(format!("{wanted}, and there is no NVIDIA driver (libcuda.so.1) on this machine"));
    }
    let failed = |fault: Fault| format!("{wanted}, and the NVIDIA driver does not answer: {fault}");
    let version = driver::version().map_err(failed)?;
    if version < DRIVER_VERSION {
        let (have, want) = (version_text(version), version_text(DRIVER_VERSION));
        return Err(format!(
            "{wanted} with a driver for CUDA {want} (580 or newer), and this driver is for CUDA {have}"
        ));
    }
    if driver::devices().map_err(failed)? == 0 {
        return Err(format!("{wanted}, and the driver finds no GPU"));
    }
    let device = driver::device(0).map_err(failed)?;
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

fn version_text(version: i32) -> String {
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
        let error = find(spec).expect_err("nothing to be found");
        assert!(error.contains("compute capability 9.0") && error.contains("libcuda.so.1"), "{error}");
        assert!(!error.contains('\n'));
        assert_eq!(version_text(DRIVER_VERSION), "13.0");
    }
}
