//! Declarations of CUDA kernels; each block declares its own. A declaration names the function template of
//! `templates/cuda` that the kernel instantiates, its parameters by name and type, and the figures of the
//! plan that C++ must agree with.
//!
//! A declaration yields the `extern "C"` wrapper, the struct that launches are built from, and the struct
//! that the emitted stack passes to its kernels. A missing argument, swapped arguments of different types and
//! the arguments of another kernel do not compile.

mod fill;
mod operands;

pub use fill::*;
pub(crate) use operands::operands;
pub use operands::*;

use crate::plan::cuda::Argument;

/// The declaration of a kernel. In its strings `{config}` is replaced by the name of the struct of constants,
/// `{block}`, `{cluster}` and `{shared}` by the figures of the launch, and a constant's name in braces by its
/// value.
#[derive(Debug, PartialEq, Eq)]
pub struct Signature {
    /// The function template that the wrapper calls, unless `body` differs. Reports use this name.
    pub function: &'static str,
    /// Name of the struct of its arguments.
    pub arguments: &'static str,
    /// The file that defines it, relative to `templates/cuda`.
    pub header: &'static str,
    /// Its struct of constants.
    pub config: Config,
    /// Parameters in order.
    pub parameters: &'static [Parameter],
    /// C++ declarations between the struct of constants and the checks.
    pub declarations: &'static str,
    /// Conditions that hold, each with the message if it does not.
    pub checks: &'static [(&'static str, &'static str)],
    /// Blocks of the grid as C++ computes them, by dimension (0 is x). The plan's must equal them where its grid
    /// does not depend on the step.
    pub grid: &'static [(usize, &'static str)],
    /// Bytes of memory as C++ computes them, by the name under which a launch gives the plan's, which must
    /// equal them.
    pub bytes: &'static [(&'static str, &'static str)],
    /// Statements of the wrapper; empty for a call of the function with all parameters.
    pub body: &'static str,
}

/// The struct of constants that a kernel is instantiated with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Config {
    /// No struct.
    None,
    /// A struct that holds the constants.
    Plain,
    /// A struct that inherits the constants it does not hold.
    Inherits(&'static str),
}

/// A parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Name in C++ and in the struct of arguments.
    pub name: &'static str,
    /// Its type in C++.
    pub kind: &'static str,
}

/// The arguments of a kernel, one field per parameter.
pub trait Arguments {
    /// The kernel's declaration.
    const SIGNATURE: &'static Signature;

    /// Arguments in the order of the parameters.
    fn list(&self) -> Vec<Argument>;
}

/// Message of failed checks that have none of their own.
pub(crate) const FIGURES: &str = "the plan's figures";

/// Declares kernels: `function => Arguments in "header", Config`, then the parameters, each marked `READ` or
/// `WRITE`, then checks, blocks of the grid, bytes of memory, declarations and body, if there are any.
macro_rules! kernels {
    ($(
        $(#[$doc:meta])*
        $function:ident => $arguments:ident in $header:literal, $config:expr;
        ($($parameter:ident: $access:ident $operand:ident),* $(,)?)
        $(check $check:literal $(or $message:literal)?)*
        $(grid $axis:ident $blocks:literal)*
        $(bytes $memory:ident $bytes:literal)*
        $(declare $declarations:literal)?
        $(body $body:literal)?;
    )*) => {
        /// All kernels declared here.
        pub(crate) const KERNELS: &[&$crate::kernels::Signature] =
            &[$(<$arguments as $crate::kernels::Arguments>::SIGNATURE),*];

        $(
        $(#[$doc])*
        #[expect(missing_docs, reason = "the kernel's header explains its parameters")]
        #[derive(Clone, Copy, Debug)]
        pub struct $arguments {
            $(
                pub $parameter: $operand,
            )*
        }

        impl $crate::kernels::Arguments for $arguments {
            const SIGNATURE: &'static $crate::kernels::Signature = &$crate::kernels::Signature {
                function: stringify!($function),
                arguments: stringify!($arguments),
                header: $header,
                config: $config,
                parameters: &[$($crate::kernels::Parameter {
                    name: stringify!($parameter),
                    kind: <$operand as $crate::kernels::Operand>::$access,
                }),*],
                declarations: concat!($($declarations)?),
                checks: &[$(($check, $crate::kernels::message(&[$($message)?]))),*],
                grid: &[$(($crate::kernels::axis(stringify!($axis)), $blocks)),*],
                bytes: &[$((stringify!($memory), $bytes)),*],
                body: concat!($($body)?),
            };

            fn list(&self) -> Vec<$crate::plan::cuda::Argument> {
                vec![$($crate::kernels::Operand::argument(self.$parameter)),*]
            }
        }
        )*
    };
}
pub(crate) use kernels;

/// The dimension of a grid that is called `x`, `y` or `z`.
pub(crate) const fn axis(name: &str) -> usize {
    (name.as_bytes()[0] - b'x') as usize
}

/// The message given, or else the default.
pub(crate) const fn message(given: &[&'static str]) -> &'static str {
    if given.is_empty() { FIGURES } else { given[0] }
}
