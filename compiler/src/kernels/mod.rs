//! How CUDA kernels are declared; a block declares its own. A declaration names the function template of
//! `templates/cuda` that a kernel instantiates, its parameters by name and type, and what the plan has
//! computed that C++ must find too.
//!
//! From a declaration come the `extern "C"` wrapper, a struct that launches are made with, and the struct the
//! emitted stack hands its kernels: a missing argument, a swapped one of another type, and the arguments of
//! another kernel do not compile.

mod fill;
mod operands;

pub use fill::*;
pub(crate) use operands::operands;
pub use operands::*;

use crate::plan::cuda::Argument;

/// The declaration of a kernel. In its texts `{config}` stands for the name of the struct of constants,
/// `{block}`, `{cluster}` and `{shared}` for the launch's figures, and a constant's name in braces for its
/// value.
#[derive(Debug, PartialEq, Eq)]
pub struct Signature {
    /// The function template that the wrapper calls, unless its body says otherwise; reports call the kernel
    /// so.
    pub function: &'static str,
    /// The struct of its arguments.
    pub arguments: &'static str,
    /// The file that defines it, from `templates/cuda` on.
    pub header: &'static str,
    /// Its struct of constants.
    pub config: Config,
    /// In order.
    pub parameters: &'static [Parameter],
    /// C++ declarations between the struct of constants and the checks.
    pub declarations: &'static str,
    /// Conditions that hold, each with what is wrong where it does not.
    pub checks: &'static [(&'static str, &'static str)],
    /// The wrapper's statements; empty for a call of the function with all parameters.
    pub body: &'static str,
}

/// The struct of constants that a kernel is instantiated with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Config {
    /// There is none.
    None,
    /// It holds the constants.
    Plain,
    /// It inherits those that it does not hold.
    Inherits(&'static str),
}

/// A parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// In C++ and in the struct of arguments.
    pub name: &'static str,
    /// Its type in C++.
    pub kind: &'static str,
}

/// The arguments of a kernel, a field a parameter.
pub trait Arguments {
    /// The kernel's declaration.
    const SIGNATURE: &'static Signature;

    /// In the order of the parameters.
    fn list(&self) -> Vec<Argument>;
}

/// What is said where a check fails that names nothing else.
const FIGURES: &str = "the plan's figures";

/// Declares kernels: `function => Arguments in "header", Config`, then its parameters, `READ` or `WRITE`
/// what, then its checks, declarations and body, where it has some.
macro_rules! kernels {
    ($(
        $(#[$doc:meta])*
        $function:ident => $arguments:ident in $header:literal, $config:expr;
        ($($parameter:ident: $access:ident $operand:ident),* $(,)?)
        $(check $check:literal $(or $message:literal)?)*
        $(declare $declarations:literal)?
        $(body $body:literal)?;
    )*) => {
        /// All that are declared here.
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

/// The message given, or the one of all others.
pub(crate) const fn message(given: &[&'static str]) -> &'static str {
    if given.is_empty() { FIGURES } else { given[0] }
}
