//! The page that `explain --html` writes: it stands by itself, says what the report does, and all its
//! pictures are within their frames.

use monomorph_compiler::spec::types::{BuildOptions, Ranks};
use monomorph_compiler::{report, spec, standing, toolchain};
use std::path::Path;

/// The values of an attribute of all elements of a kind.
fn attributes<'a>(page: &'a str, element: &str, name: &str) -> Vec<&'a str> {
    let (begin, name) = (format!("<{element} "), format!(" {name}=\""));
    let elements = page.split(begin.as_str()).skip(1).map(|it| &it[..it.find('>').expect("it ends")]);
    elements.filter_map(|it| it.split_once(name.as_str())?.1.split_once('"').map(|it| it.0)).collect()
}

#[test]
fn the_page_stands_by_itself_and_has_every_phase() {
    let targets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../targets");
    let measured = standing::measured(&targets).expect("it is readable");
    let two = Ranks::tensor_parallel(2).of(BuildOptions::default());
    for (name, options) in [
        ("cpu/smollm2-135m/q4_1", BuildOptions::default()),
        ("h200/qwen3.5-35b/nvfp4", BuildOptions::default()),
        ("h200/mistral-small-4/nvfp4", BuildOptions::default()),
        ("gb10/nemotron-3-nano/nvfp4", BuildOptions::default()),
        ("h200/qwen3.5-27b/nvfp4", two),
    ] {
        let target = spec::load_with(std::slice::from_ref(&targets), name, &options);
        let plan = toolchain::plan(&target.unwrap_or_else(|error| panic!("{error}")));
        let plan = plan.unwrap_or_else(|error| panic!("{name}: {error}"));
        let page = report::html(&plan, measured.get(name), None);
        for foreign in ["<script", "http:", "https:", "url(", "src=", "<link", "NaN", "inf ", "inf\""] {
            assert!(!page.contains(foreign), "{name}: {foreign}");
        }
        let report = report::report(&plan);
        for phase in report.bodies.iter().flat_map(|body| &body.phases) {
            assert!(page.contains(&format!("<td>{}<td>", phase.name)), "{name}: {}", phase.name);
            let takes = phase.decode.microseconds + phase.prefill.microseconds > 0.0;
            assert_eq!(page.contains(&format!(">{}: ", phase.name)), takes, "{name}: {}", phase.name);
        }
        assert_eq!(page.contains("decode, measured"), measured.contains_key(name), "{name}");
        assert_eq!(page.contains("Exchanges between 2 ranks"), options == two, "{name}");
        let numbers = |element: &str, attribute: &str| {
            let all = attributes(&page, element, attribute).into_iter();
            all.map(|it| it.parse::<f64>().unwrap_or_else(|_| panic!("{name}: {it}"))).collect::<Vec<_>>()
        };
        let ends = numbers("rect", "x").into_iter().zip(numbers("rect", "width")).map(|(x, width)| x + width);
        let ends: Vec<f64> = ends.collect();
        assert!(!ends.is_empty() && ends.iter().all(|end| (0.0..=900.1).contains(end)), "{name}: {ends:?}");
        // The longest body of each timeline, and memory, fill their frames.
        assert!(ends.iter().filter(|end| **end > 899.0).count() >= 3, "{name}");
        let (x, y) = (numbers("circle", "cx"), numbers("circle", "cy"));
        assert!(!x.is_empty(), "{name}");
        assert!(x.iter().all(|x| (60.0..=890.0).contains(x)) && y.iter().all(|y| (10.0..=265.0).contains(y)));
    }
}

#[test]
fn times_of_a_profiling_build_are_shown_and_those_of_another_target_refused() {
    let targets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../targets");
    let target = spec::load(std::slice::from_ref(&targets), "cpu/smollm2-135m/q4_1");
    let plan = toolchain::plan(&target.unwrap_or_else(|error| panic!("{error}")));
    let plan = plan.unwrap_or_else(|error| panic!("{error}"));
    let phase = serde_json::json!({
        "body": "attention", "phase": "ffn_down", "kind": "linear", "times": 30, "microseconds": 953.84,
        "microseconds_each": 31.79, "bytes": 16_588_800.0, "gb_per_second": 17.4, "limit_microseconds": 345.6,
        "of_limit": 0.362, "predicted_microseconds": 360.6,
    });
    let step = serde_json::json!({
        "sequences": 8, "context": 104.5, "step_microseconds": 1200.0, "phases_microseconds": 953.8,
        "predicted_microseconds": 360.6, "phases": [phase],
    });
    let printed =
        serde_json::json!({"target": "cpu/smollm2-135m/q4_1", "clock": "barriers", "steps": [step]});
    let times = report::Times::read(&printed.to_string(), &plan).expect("it is of this target");
    let page = report::html(&plan, None, Some(&times));
    for told in [
        "<h2>Timed: a token each of 8 sequences, after 104</h2>",
        "a step takes 1200.0 us",
        "<td>attention.ffn_down<td>30<td>31.79<td>953.8<td>16.6 MB<td>17.4<td>36 %<td>360.6</tr>",
    ] {
        assert!(page.contains(told), "{told} in {page}");
    }
    let mut other = printed.clone();
    other["target"] = "cpu/smollm2-135m/bf16".into();
    let refused = report::Times::read(&other.to_string(), &plan).expect_err("it is of another");
    assert_eq!(refused, "times of cpu/smollm2-135m/bf16, and the page is of cpu/smollm2-135m/q4_1");
    let refused = report::Times::read("{}", &plan).expect_err("it is nothing");
    assert!(refused.starts_with("not what `server profile --json` prints: missing field"), "{refused}");
}
