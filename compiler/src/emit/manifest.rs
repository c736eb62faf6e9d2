//! The generated crate's Cargo.toml.

use super::package_name;
use crate::plan::Plan;
use std::path::Path;

/// A workspace of its own, so that it needs no entry in the project's; the runtime crates are paths into the
/// project, and the profile is the project's `release`.
pub fn manifest(plan: &Plan, root: &Path) -> String {
    let runtime = root.join("runtime");
    let dependency = |name: &str| {
        format!("monomorph-{name} = {{ path = {:?} }}\n", runtime.join(name).display().to_string())
    };
    let dependencies: String =
        ["device", "formats", "model", "sampling", "server", "weights"].map(dependency).concat();
    format!(
        "# Written by `cargo xtask build`: change the spec or the compiler, not this file.\n\n\
         [package]\n\
         name = \"{}\"\n\
         version = \"{}\"\n\
         edition = \"2024\"\n\
         publish = false\n\n\
         [workspace]\n\n\
         [dependencies]\n\
         {dependencies}\n\
         [profile.release]\n\
         opt-level = 3\n\
         codegen-units = 16\n\
         strip = true\n",
        package_name(&plan.target),
        env!("CARGO_PKG_VERSION"),
    )
}
