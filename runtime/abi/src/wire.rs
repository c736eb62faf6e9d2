//! Structs shared by host and device: declared once, in Rust, from which their C++ is printed.

use std::fmt::Write;

/// Plain numbers without gaps, which may be read as bytes.
///
/// # Safety
/// Implementors are `repr(C)`, have no padding, and every bit pattern is a value.
pub unsafe trait Wire: Copy {}

// SAFETY: a plain number.
unsafe impl Wire for i32 {}
// SAFETY: a plain number.
unsafe impl Wire for u32 {}
// SAFETY: a plain number.
unsafe impl Wire for f32 {}

/// The values as bytes.
pub fn bytes_of<T: Wire>(values: &[T]) -> &[u8] {
    // SAFETY: no padding, by the trait's promise; the length is the slice's own.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// A struct's declaration in C++.
pub(crate) struct Declaration {
    /// Its name in C++.
    pub(crate) name: &'static str,
    /// Its comment, by line.
    pub(crate) about: &'static [&'static str],
    pub(crate) bytes: usize,
    pub(crate) fields: &'static [Field],
}

/// A field of a [`Declaration`].
pub(crate) struct Field {
    pub(crate) name: &'static str,
    /// Its type in Rust.
    pub(crate) kind: &'static str,
    /// Its comment, by line.
    pub(crate) about: &'static [&'static str],
    /// Offset in bytes.
    pub(crate) offset: usize,
}

/// Declares [`Wire`] structs; in `Name as "Cpp"`, `Cpp` is the name in C++. A gap between fields does not
/// compile.
macro_rules! wire {
    ($(
        $(#[doc = $about:literal])*
        $name:ident as $cpp:literal { $( $(#[doc = $doc:literal])* $field:ident: $kind:ty, )* }
    )*) => {
        $(
            $(#[doc = $about])*
            #[allow(missing_docs, reason = "some fields say by their name what they are")]
            #[derive(Clone, Copy, Debug, PartialEq)]
            #[repr(C)]
            pub struct $name { $( $(#[doc = $doc])* pub $field: $kind, )* }

            const _: () = assert!(0 $(+ size_of::<$kind>())* == size_of::<$name>(), "there is a gap");
            // SAFETY: numbers, and structs and arrays of them, without gaps: their sizes add up.
            unsafe impl $crate::wire::Wire for $name {}
        )*

        /// All of them, in the order in which they are declared.
        pub(crate) const DECLARATIONS: &[$crate::wire::Declaration] = &[$(
            $crate::wire::Declaration {
                name: $cpp,
                about: &[$($about),*],
                bytes: size_of::<$name>(),
                fields: &[$( $crate::wire::Field {
                    name: stringify!($field),
                    kind: stringify!($kind),
                    about: &[$($doc),*],
                    offset: std::mem::offset_of!($name, $field),
                } ),*],
            }
        ),*];
    };
}
pub(crate) use wire;

/// Width of a line of C++, in columns.
const WIDTH: usize = 140;

/// Prints a struct, with `more` after its fields. `names` maps Rust names of structs to C++ names.
pub(crate) fn print(out: &mut String, it: &Declaration, names: &[(&str, &str)], more: &str) {
    comment(out, "", it.about);
    // Writing to a string cannot fail.
    let _ = writeln!(out, "struct {} {{", it.name);
    for field in it.fields {
        let declared = declare(field, names);
        let about = field.about.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
        let line = format!("    {declared};  // {}", about.trim_end_matches('.'));
        if about.is_empty() {
            let _ = writeln!(out, "    {declared};");
        } else if line.len() <= WIDTH {
            let _ = writeln!(out, "{line}");
        } else {
            comment(out, "    ", field.about);
            let _ = writeln!(out, "    {declared};");
        }
    }
    let _ = writeln!(out, "{more}}};");
    let _ = writeln!(out, "static_assert(sizeof({}) == {}, \"as the host has it\");", it.name, it.bytes);
    for field in it.fields {
        let (of, name, offset) = (it.name, field.name, field.offset);
        let _ = writeln!(out, "static_assert(offsetof({of}, {name}) == {offset}, \"as the host has it\");");
    }
}

/// The text of a header that has these structs, from the file `from` beside this one. `include` is what it
/// needs, in its quotes or brackets; `constants` stand before all.
pub(crate) fn header_of(from: &str, include: &str, constants: &str, declarations: &[Declaration]) -> String {
    let mut out = format!(
        "\
// Printed from runtime/abi/src/{from}: `cargo xtask test --bless` does it again.
#pragma once

#include {include}

namespace monomorph {{

{constants}"
    );
    let names: Vec<_> = declarations.iter().map(|it| (it.name, it.name)).collect();
    for it in declarations {
        print(&mut out, it, &names, "");
    }
    out.push_str("\n}  // namespace monomorph\n");
    out
}

fn comment(out: &mut String, indent: &str, lines: &[&str]) {
    for line in lines {
        let _ = writeln!(out, "{indent}//{line}");
    }
}

/// A field as C++ declares it.
fn declare(field: &Field, names: &[(&str, &str)]) -> String {
    let (element, count) = match field.kind.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
        Some(array) => array.split_once("; ").expect("an array has a length"),
        None => (field.kind, ""),
    };
    let numbers = [("i32", "int"), ("u32", "unsigned"), ("u64", "unsigned long long"), ("f32", "float")];
    let known = numbers.iter().chain(names).find(|(rust, _)| *rust == element);
    let (_, element) = known.unwrap_or_else(|| panic!("{element} has no name in C++"));
    let count = if count.is_empty() { String::new() } else { format!("[{count}]") };
    format!("{element} {}{count}", field.name)
}
