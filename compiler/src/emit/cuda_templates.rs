//! Declared kernels as templates over their struct of constants. tests/cuda instantiates them in ways that no
//! plan does. The plan's figures become arguments of the template, which asserts what a build's wrappers
//! assert, except grids and bytes of memory: a test takes these from the headers. A parameter or condition
//! that changes does not compile in tests/cuda until its caller follows.

use super::File;
use crate::blocks;
use crate::kernels::{FILL_MATRIX, FILL_VECTOR, Signature};
use std::path::Path;

/// Indentation within a struct.
const INDENT: &str = "    ";

/// `kernels/<function>.cuh` of every kernel.
pub fn templates() -> Vec<File> {
    blocks::kernels().chain([FILL_MATRIX, FILL_VECTOR]).map(template).collect()
}

fn template(signature: &Signature) -> File {
    let Signature { function, arguments, header, parameters, declarations, checks, body, .. } = signature;
    let declared: Vec<String> =
        parameters.iter().map(|it| format!("{} {}", dependent(it.kind), it.name)).collect();
    let declared = declared.join(", ");
    let handed: Vec<&str> = parameters.iter().map(|it| it.name).collect();
    let handed = handed.join(", ");
    let body = match *body {
        "" => format!("{function}<C>({handed});"),
        body => fill(body),
    };
    let declarations: String = fill(declarations).lines().map(|line| format!("{INDENT}{line}\n")).collect();
    let checks: String = checks
        .iter()
        .map(|(check, why)| format!("    static_assert({}, \"{why}\");\n", fill(check)))
        .collect();
    let text = format!(
        "// Written from the declaration of `{function}`: change compiler/src/blocks, not this file.\n\
         #pragma once\n\n\
         #include \"{header}\"\n\n\
         namespace monomorph {{\n\n\
         // A kernel may not declare a struct with constants, nor name what only the host computes.\n\
         template <class C, int BLOCK, int SHARED, int CLUSTER>\n\
         struct {arguments}Kernel {{\n\
         {declarations}{checks}\
         {INDENT}__device__ __forceinline__ static void call({declared}) {{\n\
         {INDENT}{INDENT}{body}\n\
         {INDENT}}}\n\
         }};\n\n\
         template <class C, int BLOCK, int SHARED = 0, int RESIDENT = 1, int CLUSTER = 1>\n\
         __global__ void __launch_bounds__(BLOCK, RESIDENT) {function}_kernel({declared}) {{\n\
         {INDENT}{arguments}Kernel<C, BLOCK, SHARED, CLUSTER>::call({handed});\n\
         }}\n\n\
         }}  // namespace monomorph\n"
    );
    File { path: Path::new("kernels").join(function).with_extension("cuh"), text }
}

/// Replaces the names in braces in a declaration by the template's parameters, and those of constants by
/// members of the struct.
fn fill(text: &str) -> String {
    let names = [
        ("{config}", "C"),
        ("{block}", "BLOCK"),
        ("{shared}", "SHARED"),
        ("{cluster}", "CLUSTER"),
        ("{FORMAT}", "C::FORMAT"),
        ("{SCALES}", "C::SCALES"),
    ];
    names.into_iter().fold(text.to_owned(), |text, (name, argument)| text.replace(name, argument))
}

/// Marks a parameter's type as a type if it depends on the struct of constants.
fn dependent(kind: &str) -> String {
    let (constant, element) = kind.strip_prefix("const ").map_or(("", kind), |element| ("const ", element));
    let typename = if kind.contains("{config}") { "typename " } else { "" };
    format!("{constant}{typename}{}", fill(element))
}

#[cfg(test)]
mod tests {
    use super::{dependent, templates};

    #[test]
    fn a_template_has_the_declared_parameters_checks_and_body() {
        let files = templates();
        let text = |name: &str| {
            let file = files.iter().find(|file| file.path.ends_with(name)).expect("it is declared");
            file.text.as_str()
        };
        let stage = text("kernels/stage.cuh");
        assert!(
            stage.contains("stage_kernel(const Step* step, const float* x, const float* norm, void* out) {")
        );
        assert!(stage.contains("static_assert(StageShape<C>::THREADS == BLOCK, "), "{stage}");
        assert!(stage.contains("    stage<C>(step, x, norm, out);\n"), "{stage}");
        assert!(text("kernels/select.cuh").contains("monomorph::select<C>(step"));
        assert!(files.iter().all(|file| !file.text.contains("{config}") && !file.text.contains("{shared}")));
        // This kernel declares a second struct of constants; the next has none of its own in a build.
        assert!(text("kernels/stream_beside.cuh").contains("    struct CBeside : C {\n"));
        assert!(text("kernels/fill_matrix.cuh").contains("fill_matrix<C::FORMAT, C::SCALES>(codes, "));
    }

    #[test]
    fn members_of_what_the_constants_make_are_said_to_be_types() {
        assert_eq!(dependent("const float*"), "const float*");
        assert_eq!(dependent("{config}::Kv*"), "typename C::Kv*");
        let queries = "const AttentionShape<{config}>::Operand*";
        assert_eq!(dependent(queries), "const typename AttentionShape<C>::Operand*");
    }
}
