//! Kernels: machine code compiled with the server.

use super::arguments::Arguments;
use super::driver::check;
use super::fault::Fault;
use super::gpu::Gpu;
use cudarc::driver::sys;
use std::ffi::{CString, c_void};
use std::marker::PhantomData;
use std::ptr::null_mut;

/// Dynamic shared memory that a kernel may use without opting in.
const FREE_SHARED: u32 = 48 * 1024;

/// A loaded cubin. It and its kernels live as long as the process.
#[derive(Debug)]
pub struct Module {
    name: &'static str,
    handle: sys::CUmodule,
    shared_part: Option<u32>,
}

impl Module {
    /// Loads a cubin; `name` identifies it in errors. The GPU must be current on the calling thread.
    /// `shared_part` is the percentage of the memory shared by L1 and shared memory that is shared memory
    /// while its kernels run; `None` leaves the choice to the driver.
    ///
    /// # Errors
    /// When the driver refuses it.
    pub fn load(
        _: &Gpu,
        name: &'static str,
        cubin: &[u8],
        shared_part: Option<u32>,
    ) -> Result<Module, Fault> {
        // The driver reads an ELF image, whose tables need alignment; bytes included in a binary have none.
        let mut aligned = vec![0u64; cubin.len().div_ceil(8)];
        for (word, bytes) in aligned.iter_mut().zip(cubin.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(whole);
        }
        let mut handle = null_mut();
        // SAFETY: the image is complete and outlives the call; the driver validates its contents.
        check(&format!("loading the kernels of {name}"), unsafe {
            sys::cuModuleLoadData(&mut handle, aligned.as_ptr().cast::<c_void>())
        })?;
        Ok(Module { name, handle, shared_part })
    }

    /// A kernel of the module with arguments `A`, with its threads per block and bytes of dynamic shared
    /// memory.
    ///
    /// # Errors
    /// When there is no such kernel, or it has another number of parameters.
    pub fn kernel<A: Arguments>(
        &self,
        name: &'static str,
        block: u32,
        shared: u32,
    ) -> Result<Kernel<A>, Fault> {
        let kernel = self.any_kernel(name, block, shared)?;
        kernel.takes(A::NAMES.len()).map_err(|fault| fault.at(self.name))?;
        Ok(kernel)
    }

    /// The same, whatever its parameters are.
    pub(crate) fn any_kernel<A>(
        &self,
        name: &'static str,
        block: u32,
        shared: u32,
    ) -> Result<Kernel<A>, Fault> {
        let place = |what: &str| format!("{what} of kernel {name} in {}", self.name);
        let symbol = CString::new(name).map_err(|error| Fault::new(format!("{name:?}: {error}")))?;
        let mut function = null_mut();
        // SAFETY: writes one handle; module and name are alive.
        check(&place("looking up the address"), unsafe {
            sys::cuModuleGetFunction(&mut function, self.handle, symbol.as_ptr())
        })?;
        let set = |what: &str, attribute, value: u32| {
            // SAFETY: the function is alive; the driver rejects invalid values.
            check(&place(what), unsafe { sys::cuFuncSetAttribute(function, attribute, value as i32) })
        };
        if shared > FREE_SHARED {
            let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            set("allowing the shared memory", most, shared)?;
        }
        if let Some(percent) = self.shared_part {
            let part = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
            set("the shared memory's part", part, percent)?;
        }
        let parameters = parameter_count(function);
        Ok(Kernel { name, function, block, shared, parameters, arguments: PhantomData })
    }

    /// A variable of the module: its address and bytes.
    pub(crate) fn variable(&self, name: &str) -> Result<(u64, u64), Fault> {
        let symbol = CString::new(name).map_err(|error| Fault::new(format!("{name:?}: {error}")))?;
        let (mut start, mut bytes) = (0, 0);
        // SAFETY: writes an address and a length; module and name are alive.
        check(&format!("looking up {name} in {}", self.name), unsafe {
            sys::cuModuleGetGlobal_v2(&mut start, &mut bytes, self.handle, symbol.as_ptr())
        })?;
        Ok((start, bytes as u64))
    }
}

/// Counts a kernel's parameters: they are numbered from 0, and the driver refuses the first number past the
/// last.
fn parameter_count(function: sys::CUfunction) -> usize {
    let known = |index: usize| {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: writes two integers.
        let result = unsafe { sys::cuFuncGetParamInfo(function, index, &mut offset, &mut size) };
        result == sys::CUresult::CUDA_SUCCESS
    };
    (0..).take_while(|index| known(*index)).count()
}

/// A kernel with arguments `A` and fixed block geometry.
#[derive(Clone, Copy, Debug)]
pub struct Kernel<A> {
    pub(super) name: &'static str,
    pub(super) function: sys::CUfunction,
    pub(super) block: u32,
    pub(super) shared: u32,
    parameters: usize,
    arguments: PhantomData<fn(A)>,
}

impl<A> Kernel<A> {
    /// Checks its number of parameters.
    pub(crate) fn takes(&self, given: usize) -> Result<(), Fault> {
        let found = self.parameters;
        if found == given {
            return Ok(());
        }
        Err(Fault::new(format!("kernel {} takes {found} parameters, and it is given {given}", self.name)))
    }
}

// SAFETY: the handle of a function in a module that is never unloaded.
unsafe impl<A> Send for Kernel<A> {}
// SAFETY: as above.
unsafe impl<A> Sync for Kernel<A> {}
