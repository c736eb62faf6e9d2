//! Kernel arguments: a struct for each kind of kernel, a field for each parameter.

use std::ffi::c_void;

/// The arguments of a kernel.
pub trait Arguments {
    /// Names of the parameters, in their order.
    const NAMES: &'static [&'static str];

    /// Calls `launch` with the addresses of the arguments, in the order of the kernel's parameters.
    fn handed(self, launch: impl FnOnce(&mut [*mut c_void]));
}

/// Declares [`Arguments`] structs. A field without a type is a device address.
#[macro_export]
macro_rules! arguments {
    (@kind) => { $crate::cuda::Pointer };
    (@kind $kind:ty) => { $kind };
    ($($(#[$doc:meta])* $name:ident { $($field:ident $(: $kind:ty)?),* $(,)? })*) => {$(
        $(#[$doc])*
        #[allow(missing_docs, reason = "the kernel's header explains its parameters")]
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            $(pub $field: $crate::arguments!(@kind $($kind)?)),*
        }

        impl $crate::cuda::Arguments for $name {
            const NAMES: &'static [&'static str] = &[$(stringify!($field)),*];

            fn handed(mut self, launch: impl FnOnce(&mut [*mut ::std::ffi::c_void])) {
                launch(&mut [$((&raw mut self.$field).cast()),*]);
            }
        }
    )*};
}
