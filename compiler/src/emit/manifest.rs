//! The generated crate's Cargo.toml.

use crate::plan::Plan;
use tera::{Context, Tera};

const TEMPLATE: &str = include_str!("../../../templates/rust/Cargo.toml.tera");

/// Runtime crates that the generated code uses.
const CRATES: [&str; 5] = ["device", "formats", "model", "server", "weights"];

/// Renders `templates/rust/Cargo.toml.tera` for a package. The runtime crates stand below its own directory,
/// in `runtime/`.
pub fn manifest(plan: &Plan, package: &str) -> String {
    let mut tera = Tera::default();
    tera.add_raw_template("Cargo.toml", TEMPLATE).expect("the template is part of the compiler");
    let mut context = Context::new();
    context.insert("package", package);
    context.insert("version", env!("CARGO_PKG_VERSION"));
    context.insert("crates", &CRATES);
    let forced = plan.target.draft.is_some_and(|draft| draft.forced_acceptance.is_some());
    let features = match (&plan.cuda, forced) {
        (None, false) => "",
        (None, true) => ", features = [\"forced-acceptance\"]",
        (Some(_), false) => ", default-features = false, features = [\"cuda\"]",
        (Some(_), true) => ", default-features = false, features = [\"cuda\", \"forced-acceptance\"]",
    };
    context.insert("device_features", features);
    tera.render("Cargo.toml", &context).expect("every name of the template is in the context")
}
