//! Turns `results.json` into rows of the ledger.

use crate::paths;
use serde_json::Value;
use std::path::Path;

const HEADING: &str = "## On GPUs";
const INTRODUCTION: &str = "`cargo xtask gpu` gathers, `python3 target/gpu/run.py` measures on the machine with the card, and `cargo xtask gpu --report \
results.json` adds rows here. Weights are made up (`--weights dummy`). *limit*: for decode the bytes of a step (weights once, keys and values of every \
sequence) over the bandwidth in HARDWARE.toml, for prefill products over its rates. *checks*: how many of that run's checks passed.";
const COLUMNS: &str =
    "| date | commit | card | target | what | measured | limit | of limit | checks | command |
|---|---|---|---|---|---|---|---|---|---|";

/// Adds every bench of a run to docs/performance.md.
pub fn append(results: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(results).map_err(|error| format!("{}: {error}", results.display()))?;
    let results: Value =
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", results.display()))?;
    let rows = rows(&results)?;
    if rows.is_empty() {
        return Err("the results hold no benches: run.py measures with `--only benches`".to_owned());
    }
    let ledger = paths::root().join("docs/performance.md");
    let problem = |error: std::io::Error| format!("{}: {error}", ledger.display());
    let old = std::fs::read_to_string(&ledger).map_err(problem)?;
    std::fs::write(&ledger, with_rows(&old, &rows)).map_err(problem)?;
    println!("{} rows added to {}", rows.len(), ledger.display());
    Ok(())
}

fn rows(results: &Value) -> Result<Vec<String>, String> {
    let text = |value: &Value, what: &str| {
        value[what].as_str().map(str::to_owned).ok_or_else(|| format!("the results say no `{what}`"))
    };
    let checks = results["checks"].as_array().ok_or("the results list no checks")?;
    let passed = checks.iter().filter(|check| check["passed"] == true).count();
    let checks = format!("{passed} of {}", checks.len());
    let date = text(results, "date")?.split('T').next().unwrap_or_default().to_owned();
    let (commit, card) = (text(results, "commit")?, text(results, "card")?);
    let row = |bench: &Value| {
        let rate = bench["rate"].as_f64().ok_or("a bench has no rate")?;
        let (limit, share) = match bench["limit"].as_f64() {
            Some(limit) => (figure(limit), format!("{:.0} %", 100.0 * rate / limit)),
            None => (String::new(), String::new()),
        };
        let (target, what, unit) = (text(bench, "target")?, text(bench, "name")?, text(bench, "unit")?);
        let (rate, command) = (figure(rate), text(bench, "command")?);
        Ok(format!(
            "| {date} | {commit} | {card} | {target} | {what} | {rate} {unit} | {limit} | {share} | {checks} | `{command}` |"
        ))
    };
    let benches = results["benches"].as_array().ok_or("the results list no benches")?;
    benches.iter().map(row).collect()
}

/// A figure with its significant digits.
fn figure(value: f64) -> String {
    if value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

/// The ledger with rows appended to its table, which is created if missing.
fn with_rows(ledger: &str, rows: &[String]) -> String {
    let mut lines: Vec<&str> = ledger.lines().collect();
    let begun = lines.iter().position(|line| *line == HEADING);
    let heading = begun.unwrap_or_else(|| {
        lines.extend(["", HEADING, "", INTRODUCTION, ""]);
        lines.extend(COLUMNS.lines());
        lines.len() - 6
    });
    let end = lines[heading + 1..].iter().position(|line| line.starts_with("## "));
    let end = end.map_or(lines.len(), |at| heading + 1 + at);
    let last = lines[..end].iter().rposition(|line| line.starts_with('|')).map_or(end, |at| at + 1);
    lines.splice(last..last, rows.iter().map(String::as_str));
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rows_stand_in_the_order_of_the_runs_and_other_sections_stay() {
        let results = json!({
            "date": "2026-11-21T10:00:00+00:00", "commit": "abc", "card": "NVIDIA H200, 580",
            "checks": [{ "passed": true }, { "passed": false }],
            "benches": [
                { "target": "h200/a/bf16", "name": "decode", "rate": 80.0, "unit": "tok/s", "limit": 100.0, "command": "server bench" },
                { "target": "h200/a/bf16", "name": "start", "rate": 950.4, "unit": "ms", "limit": null, "command": "server bench" },
            ],
        });
        assert!(rows(&json!({})).is_err());
        let rows = rows(&results).unwrap();
        let first = "| 2026-11-21 | abc | NVIDIA H200, 580 | h200/a/bf16 | decode | 80.0 tok/s | 100 | 80 % | 1 of 2 | `server bench` |";
        assert_eq!(rows[0], first);
        let ledger = "# Performance\n\n| x |\n|---|\n| 1 |\n\n## Other\n\n| y |\n";
        let once = with_rows(ledger, &rows[..1]);
        assert!(once.starts_with(ledger) && once.ends_with(&format!("{COLUMNS}\n{first}\n")), "{once}");
        let twice = with_rows(&format!("{once}\n## After\n\n| z |\n"), &rows[1..]);
        assert!(twice.ends_with(&format!("{first}\n{}\n\n## After\n\n| z |\n", rows[1])), "{twice}");
    }
}
