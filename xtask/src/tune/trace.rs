//! Clocks in kernels: copies of what is compiled, with calls of trace.cuh put in.

use std::path::Path;

const HEADER: &str = include_str!("trace.cuh");
const WAIT: &str = r#"asm volatile("griddepcontrol.wait;" ::: "memory");"#;

/// Puts the clocks into the copy of the device library below `directory`.
///
/// # Errors
/// When it cannot be read or written, or waits elsewhere than it did.
pub fn library(directory: &Path) -> Result<(), String> {
    let path = directory.join("cuda/lib/core/async.cuh");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let (before, after) =
        text.split_once(WAIT).ok_or_else(|| format!("{}: kernels wait in another way", path.display()))?;
    let (pragma, before) = before
        .split_once("#include <cstdint>\n")
        .ok_or_else(|| format!("{}: its includes have changed", path.display()))?;
    super::write(
        &path,
        format!("{pragma}#include <cstdint>\n{HEADER}{before}{WAIT} trace_waited();{after}").as_bytes(),
    )
}

/// A module's source with clocks in its kernels, which are numbered in order. Those that fill weights are no
/// part of a program, and stay as they are.
pub fn module(text: &str) -> String {
    let (mut traced, mut number, mut inside) = (String::new(), 0, false);
    for line in text.lines() {
        let kernel = line.starts_with("extern \"C\" __global__") && line.ends_with('{');
        if inside && line == "}" {
            traced.push_str("    trace_ended();\n");
            inside = false;
        }
        traced.push_str(line);
        traced.push('\n');
        if kernel {
            if !name(line).starts_with("fill_") {
                traced.push_str(&format!("    trace_began({number});\n"));
                inside = true;
            }
            number += 1;
        }
    }
    traced
}

/// The kernel's: the word before the parameters, which begin at the parenthesis that the last one closes.
fn name(line: &str) -> &str {
    let declared = line.split_once(" void ").map_or(line, |(_, rest)| rest);
    let mut rest = declared;
    while rest.starts_with("__") {
        rest = rest.split_once(") ").map_or("", |(_, rest)| rest);
    }
    rest.split_once('(').map_or(rest, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_numbered_and_ends() {
        let text = "extern \"C\" __global__ void __launch_bounds__(288, 2) __cluster_dims__(8, 1, 1) head_3(const Step* step) {\n    \
                    a();\n}\n\nstruct B {\n};\nextern \"C\" __global__ void __launch_bounds__(32, 1) sample_4(int* ids) {\n    b();\n}\n\
                    extern \"C\" __global__ void __launch_bounds__(256, 1) fill_f16_5(void* to) {\n    c();\n}\n";
        let traced = module(text);
        assert!(traced.contains("fill_f16_5(void* to) {\n    c();\n}\n"));
        assert_eq!(traced.matches("trace_began(0);\n    a();\n    trace_ended();\n}").count(), 1);
        assert_eq!(traced.matches("trace_began(1);\n    b();\n    trace_ended();\n}").count(), 1);
        assert_eq!(traced.matches("trace_").count(), 4);
    }

    #[test]
    fn the_library_waits_where_clocks_are_put() {
        let directory = tempfile::tempdir().unwrap();
        let lib = directory.path().join("cuda/lib/core");
        std::fs::create_dir_all(&lib).unwrap();
        let source = crate::paths::root().join("templates/cuda/core/async.cuh");
        std::fs::copy(source, lib.join("async.cuh")).unwrap();
        library(directory.path()).unwrap();
        let text = std::fs::read_to_string(lib.join("async.cuh")).unwrap();
        assert_eq!(text.matches("trace_waited();").count(), 1);
        assert!(text.contains("struct TraceRecord"));
        std::fs::write(lib.join("async.cuh"), text.replace("griddepcontrol.wait", "griddepcontrol.other"))
            .unwrap();
        library(directory.path()).unwrap_err();
    }
}
