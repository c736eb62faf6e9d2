//! Declarations of CUDA kernels; each block declares its own. A declaration names the function template of
//! `templates/cuda` that the kernel instantiates, its parameters by name and type, and the figures of the
//! plan that C++ must agree with.
//!
//! A declaration yields the `extern "C"` wrapper, the struct that launches are built from, and the struct
//! that the emitted stack passes to its kernels. A missing argument, swapped arguments of different types and
//! the arguments of another kernel do not compile.

mod argument;
mod fill;
mod operands;

pub use argument::{Argument, Constant, Edge};
pub use fill::*;
pub(crate) use operands::operands;
pub use operands::*;

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
    /// Whether it is instantiated with a struct of its constants.
    pub config: bool,
    /// Its constants, in sets that several kernels share.
    pub constants: &'static [&'static [Declared]],
    /// Parameters in order.
    pub parameters: &'static [Parameter],
    /// C++ declarations between the struct of constants and the checks.
    pub declarations: &'static str,
    /// Conditions that hold, each with the message if it does not.
    pub checks: &'static [(&'static str, &'static str)],
    /// Blocks of the grid as C++ computes them, by dimension (0 is x). The plan's must equal them where its
    /// grid does not depend on the step.
    pub grid: &'static [(usize, &'static str)],
    /// Bytes of memory as C++ computes them, by the name under which a launch gives the plan's, which must
    /// equal them.
    pub bytes: &'static [(&'static str, &'static str)],
    /// Statements of the wrapper; empty for a call of the function with all parameters.
    pub body: &'static str,
}

/// A constant of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declared {
    /// Name in C++.
    pub name: &'static str,
    /// Its type in C++: `int`, `float`, `bool`, an enum, `auto` for another expression, or `type` for a type.
    pub kind: &'static str,
    /// Whether an instance may lack it.
    pub optional: bool,
}

impl Signature {
    /// Checks that an instance has all of the kernel's constants, each once and with its type, and no others.
    ///
    /// # Errors
    /// When it has not; the message names the first constant that is wrong.
    pub fn check(&self, constants: &[(&'static str, Constant)]) -> Result<(), String> {
        let declared = || self.constants.iter().copied().flatten();
        let function = self.function;
        let given = |name: &str| constants.iter().filter(|it| it.0 == name).count();
        for (name, constant) in constants {
            let found = constant.kind();
            match declared().find(|it| it.name == *name).map(|it| it.kind) {
                None => return Err(format!("`{function}` declares no constant `{name}`")),
                Some(kind) if kind != found => {
                    return Err(format!("`{name}` of `{function}` is declared as {kind}, not {found}"));
                }
                Some(_) if given(name) > 1 => {
                    return Err(format!("`{function}` has more than one constant `{name}`"));
                }
                Some(_) => {}
            }
        }
        match declared().find(|it| !it.optional && given(it.name) == 0) {
            Some(missing) => Err(format!("`{function}` lacks its constant `{}`", missing.name)),
            None => Ok(()),
        }
    }
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

/// Declares constants, all required or, behind `optional`, none: `NAME: type`.
macro_rules! constants {
    (optional $($name:ident: $kind:ident),* $(,)?) => {
        $crate::kernels::constants!(@ true, $($name $kind)*)
    };
    ($($name:ident: $kind:ident),* $(,)?) => {
        $crate::kernels::constants!(@ false, $($name $kind)*)
    };
    (@ $optional:literal, $($name:ident $kind:ident)*) => {
        &[$($crate::kernels::Declared {
            name: stringify!($name),
            kind: stringify!($kind),
            optional: $optional,
        }),*]
    };
}
pub(crate) use constants;

/// Formats of a matrix.
pub(crate) const MATRIX: &[Declared] = constants![FORMAT: Format, SCALES: ScaleForm];
/// Arithmetic of a streaming product.
pub(crate) const ARITHMETIC: &[Declared] = constants![COMPUTE: Compute, ROUNDING: Rounding];
/// A norm, if there is one.
pub(crate) const NORM: &[Declared] = constants![NORM: Norm, EPS: float];
/// What multiplies what a kernel makes, if anything does (templates/cuda/core/factor.cuh).
pub(crate) const FACTOR: &[Declared] = constants![optional FACTOR: float];
/// What bounds the rows.
pub(crate) const LIMIT: &[Declared] = constants![LIMIT: Limit];
/// What becomes of a product's sums.
pub(crate) const EPILOGUE: &[Declared] = constants![EPILOGUE: Epilogue, ACTIVATION: Activation, BIAS: bool];
/// A ring that weights are streamed through.
pub(crate) const RING: &[Declared] = constants![
    ROWS: int, STAGES: int, STAGE_BYTES: int, CONSUMER_WARPS: int, BLOCKS: int, EVICT_FIRST: bool,
];
/// Tiles and rings of a product on tensor cores.
pub(crate) const GEMM: &[Declared] = constants![
    OUTPUTS: int, INPUTS: int, CAPACITY: int, TOKENS: int, STRIPS: int, STAGE_PANELS: int,
    WEIGHT_STAGES: int, STAGES: int, RESIDENT: int, MULTICAST: int, SPLIT: int,
];

/// Dimensions and ring of a product in fp8.
pub(crate) const FP8: &[Declared] = constants![OUTPUTS: int, INPUTS: int, CAPACITY: int, STAGES: int];

/// A sum over ranks: how many of them there are, and rows of a slot of their inboxes.
pub(crate) const SUM: &[Declared] = constants![RANKS: int, INBOX_ROWS: int];
/// Where a sum takes the place of what there was, and is not added to it (templates/cuda/core/replaces.cuh).
pub(crate) const REPLACES: &[Declared] = constants![optional REPLACES: bool];

/// Message of failed checks that have none of their own.
pub(crate) const FIGURES: &str = "the plan's figures";

/// Declares kernels: `function => Arguments in "header"`, then sets of constants, then the parameters, each
/// marked `READ` or `WRITE`, then checks, blocks of the grid, bytes of memory, declarations and body, as far
/// as there are any.
///
/// `+ sums` are kernels above that sum their results over ranks: rows of as many values as the constant says.
/// They have further parameters, and the world and an inbox are among their memory.
macro_rules! kernels {
    ($(
        $(#[$doc:meta])*
        $function:ident => $arguments:ident in $header:literal, [$($constants:expr),* $(,)?];
        ($($parameter:ident: $access:ident $operand:ident),* $(,)?)
        $(check $check:literal $(or $message:literal)?)*
        $(grid $axis:ident $blocks:literal)*
        $(bytes $memory:ident $bytes:literal)*
        $(declare $declarations:tt)?
        $(body $body:literal)?;
    )*
    $(+ sums {$(
        $(#[$sum_doc:meta])*
        $sum_function:ident => $sum_arguments:ident of $sum_of:ident in $sum_header:literal, $sum_width:literal;
        ($($sum_parameter:ident: $sum_access:ident $sum_operand:ident),* $(,)?)
        $(declare $sum_declarations:tt)?
        body $sum_body:literal;
    )*})?) => {
        /// All kernels declared here.
        pub(crate) const KERNELS: &[&$crate::kernels::Signature] = &[
            $(<$arguments as $crate::kernels::Arguments>::SIGNATURE,)*
            $($(<$sum_arguments as $crate::kernels::Arguments>::SIGNATURE,)*)?
        ];

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
                config: true,
                constants: &[$($constants),*],
                parameters: &[$($crate::kernels::Parameter {
                    name: stringify!($parameter),
                    kind: <$operand as $crate::kernels::Operand>::$access,
                }),*],
                declarations: [$($declarations,)? ""][0],
                checks: &[$(($check, $crate::kernels::message(&[$($message)?]))),*],
                grid: &[$(($crate::kernels::axis(stringify!($axis)), $blocks)),*],
                bytes: &[$((stringify!($memory), $bytes)),*],
                body: concat!($($body)?),
            };

            fn list(&self) -> Vec<$crate::kernels::Argument> {
                vec![$($crate::kernels::Operand::argument(self.$parameter)),*]
            }
        }
        )*

        $($(
        $(#[$sum_doc])*
        #[expect(missing_docs, reason = "the kernel's header explains its parameters")]
        #[derive(Clone, Copy, Debug)]
        pub struct $sum_arguments {
            pub of: $sum_of,
            $(
                pub $sum_parameter: $sum_operand,
            )*
        }

        impl $crate::kernels::Arguments for $sum_arguments {
            const SIGNATURE: &'static $crate::kernels::Signature = {
                use $crate::kernels::{Arguments, Operand, Parameter, REPLACES, SUM, Signature, join};
                const OF: &Signature = <$sum_of as Arguments>::SIGNATURE;
                const MORE: &[Parameter] = &[$(Parameter {
                    name: stringify!($sum_parameter),
                    kind: <$sum_operand as Operand>::$sum_access,
                }),*];
                const BYTES: &[(&str, &str)] = &[
                    ("world", "sizeof(World)"),
                    ("inbox", concat!("inbox_bytes({config}::RANKS, {config}::", $sum_width, ", {config}::INBOX_ROWS)")),
                ];
                &Signature {
                    function: stringify!($sum_function),
                    arguments: stringify!($sum_arguments),
                    header: $sum_header,
                    constants: &join::<_, { OF.constants.len() + 2 }>(OF.constants, &[SUM, REPLACES]),
                    parameters: &join::<_, { OF.parameters.len() + MORE.len() }>(OF.parameters, MORE),
                    bytes: &join::<_, { OF.bytes.len() + BYTES.len() }>(OF.bytes, BYTES),
                    $(declarations: $sum_declarations,)?
                    body: $sum_body,
                    ..*OF
                }
            };

            fn list(&self) -> Vec<$crate::kernels::Argument> {
                let mut all = self.of.list();
                all.extend([$($crate::kernels::Operand::argument(self.$sum_parameter)),*]);
                all
            }
        }
        )*)?
    };
}
pub(crate) use kernels;

/// Both slices, one behind the other; the second is not empty.
pub(crate) const fn join<T: Copy, const BOTH: usize>(first: &[T], second: &[T]) -> [T; BOTH] {
    let mut all = [second[0]; BOTH];
    let mut at = 0;
    while at < BOTH {
        all[at] = if at < first.len() { first[at] } else { second[at - first.len()] };
        at += 1;
    }
    all
}

/// The dimension of a grid that is called `x`, `y` or `z`.
pub(crate) const fn axis(name: &str) -> usize {
    (name.as_bytes()[0] - b'x') as usize
}

/// The message given, or else the default.
pub(crate) const fn message(given: &[&'static str]) -> &'static str {
    if given.is_empty() { FIGURES } else { given[0] }
}
