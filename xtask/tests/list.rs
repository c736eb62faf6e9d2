//! `cargo xtask list` on the command line.

use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;

fn list(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask")).arg("list").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// All three output forms agree on every target.
#[test]
fn what_can_be_built_stands_first_and_the_rest_is_counted() {
    let json: Vec<Value> = serde_json::from_str(&list(&["--json"])).unwrap();
    let status =
        |it: &Value| (it["target"].as_str().unwrap().to_owned(), it["status"].as_str().unwrap().to_owned());
    let known: BTreeMap<String, String> = json.iter().map(status).collect();
    assert_eq!(known["cpu/smollm2-135m/q4_1"], "measured");
    assert!(
        json.iter()
            .all(|it| it["status"] != "waiting" || it["reason"].as_str().is_some_and(|it| !it.is_empty()))
    );

    let all = list(&["--all"]);
    let rows: Vec<(String, String)> = all
        .lines()
        .map(|line| {
            let mut words = line.split_whitespace().map(str::to_owned);
            (words.next().unwrap(), words.next().unwrap())
        })
        .collect();
    assert_eq!(rows.iter().cloned().collect::<BTreeMap<_, _>>(), known);
    let order =
        |status: &str| ["measured", "compiled", "waiting"].iter().position(|it| *it == status).unwrap();
    assert!(rows.is_sorted_by_key(|(_, status)| order(status)), "{all}");

    let short = list(&[]);
    let built = rows.iter().filter(|(_, status)| status != "waiting").count();
    assert!(short.starts_with(&all.lines().take(built).collect::<Vec<_>>().join("\n")), "{short}");
    let counted: usize =
        short.lines().skip(built).filter_map(|line| line.split(' ').next()?.parse::<usize>().ok()).sum();
    assert_eq!(counted, rows.len() - built, "{short}");
    assert!(!short.contains("waiting"), "{short}");
}
