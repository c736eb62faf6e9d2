//! Environments of pinned packages are rebuilt when their inputs change, and only then.

use monomorph_compiler::toolchain::python::environment_with;

#[test]
fn an_environment_is_built_anew_for_other_variables() {
    let directory = tempfile::tempdir().unwrap();
    let requirements = directory.path().join("requirements.txt");
    std::fs::write(&requirements, "# nothing\n").unwrap();
    let wanted = directory.path().join("environment");
    let mark = wanted.join("mark");
    let make = |variables: &[(&str, &str)]| {
        environment_with(&wanted, &requirements, variables).unwrap_or_else(|error| panic!("{error}"));
        let kept = mark.is_file();
        std::fs::write(&mark, "").unwrap();
        kept
    };
    assert!(!make(&[]));
    assert!(make(&[]), "made again for the same");
    assert!(!make(&[("CMAKE_ARGS", "-DGGML_NATIVE=ON")]), "kept for other flags");
    assert!(make(&[("CMAKE_ARGS", "-DGGML_NATIVE=ON")]), "made again for the same flags");
    assert!(!make(&[("CMAKE_ARGS", "-DGGML_NATIVE=OFF")]), "kept for other flags");
}
