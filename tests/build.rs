//! Sets `cfg(smollm2)` where `MONOMORPH_TEST_WEIGHTS` names the weights that some tests need. Without it they
//! are compiled as ignored, so that the summary of `cargo test` counts them.

fn main() {
    println!("cargo:rustc-check-cfg=cfg(smollm2)");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=MONOMORPH_TEST_WEIGHTS");
    if std::env::var_os("MONOMORPH_TEST_WEIGHTS").is_some_and(|path| !path.is_empty()) {
        println!("cargo:rustc-cfg=smollm2");
    }
}
