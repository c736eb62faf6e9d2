//! `cargo xtask replay`: sends the requests of a dump to a server again and compares the answers.

use clap::Args;
use monomorph_abi::serve::PORT;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// Fields that differ between two runs of the same request: answer ids, times, and cache hits.
const OTHER: [&str; 9] = [
    "id",
    "created",
    "created_at",
    "completed_at",
    "system_fingerprint",
    "cached_tokens",
    "item_id",
    "call_id",
    "cache_read_input_tokens",
];
/// Fields whose pieces in a stream make up one text.
const PIECES: [&str; 8] =
    ["content", "reasoning_content", "text", "arguments", "partial_json", "thinking", "delta", "token_ids"];
/// Differences reported per answer.
const SAID: usize = 4;

/// Flags of `replay`.
#[derive(Args)]
pub struct Options {
    /// What `serve --dump` wrote.
    dump: PathBuf,
    /// The server to send the requests to.
    #[arg(long, value_name = "URL", default_value_t = format!("http://127.0.0.1:{PORT}"))]
    url: String,
    /// File whose first line is the API key.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
}

/// Sends the requests one after another.
///
/// # Errors
/// When the dump cannot be read, or an answer differs.
pub fn replay(options: Options) -> Result<(), String> {
    let key = options.api_key_file.as_deref().map(first_line).transpose()?;
    let cannot = |error: std::io::Error| format!("{}: {error}", options.dump.display());
    let config = ureq::config::Config::builder().http_status_as_error(false).build();
    let agent = ureq::Agent::new_with_config(config);
    let (mut equal, mut drawn, mut broken, mut different) = (0, 0, 0, 0);
    let mut torn = 0;
    for (number, line) in (1..).zip(BufReader::new(File::open(&options.dump).map_err(cannot)?).split(b'\n')) {
        let record = match read(&line.map_err(cannot)?) {
            Ok(Some(record)) => record,
            // A full disk or a killed server leaves an incomplete line.
            Ok(None) => {
                println!("{}:{number}: a line that was cut", options.dump.display());
                torn += 1;
                continue;
            }
            Err(error) => return Err(format!("{}:{number}: {error}", options.dump.display())),
        };
        if record["complete"] != true || record["cut"] == true {
            broken += 1;
            continue;
        }
        let answer = ask(&agent, &options.url, key.as_deref(), &record)
            .map_err(|error| format!("{}:{number}: {error}", options.dump.display()))?;
        let differences = compare(&record, &answer);
        if differences.is_empty() {
            equal += 1;
        } else if is_drawn(&record["request"]) {
            drawn += 1;
        } else {
            different += 1;
            println!("{}:{number}: {}", options.dump.display(), record["path"].as_str().unwrap_or_default());
            for difference in differences.iter().take(SAID) {
                println!("  {difference}");
            }
        }
    }
    println!(
        "{equal} answers are the same, {different} differ; {drawn} differ that were drawn without a seed, {broken} broke off and \
         were not asked again; {torn} lines were cut"
    );
    if different > 0 { Err(format!("{different} answers differ")) } else { Ok(()) }
}

/// The record of a line; `None` if the line is incomplete.
fn read(line: &[u8]) -> Result<Option<Value>, String> {
    match serde_json::from_slice(line) {
        Ok(record) => Ok(Some(record)),
        Err(error) if error.is_eof() && line.starts_with(b"{") => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

fn first_line(path: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

/// Sends a record's request and returns the answer as a record.
fn ask(agent: &ureq::Agent, url: &str, key: Option<&str>, record: &Value) -> Result<Value, String> {
    let text = |name: &str| record[name].as_str().ok_or(format!("`{name}` is no string"));
    let method = text("method")?;
    let request = ureq::http::Request::builder()
        .method(method)
        .uri(format!("{}{}", url.trim_end_matches('/'), text("path")?))
        .header("content-type", "application/json");
    let request = match key {
        Some(key) => request.header("authorization", format!("Bearer {key}")),
        None => request,
    };
    let body = match &record["request"] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        body => body.to_string(),
    };
    let request = request.body(body).map_err(|error| error.to_string())?;
    let mut response = agent.run(request).map_err(|error| error.to_string())?;
    let status = response.status().as_u16();
    let text = response.body_mut().with_config().limit(1 << 30).read_to_string();
    let text = text.map_err(|error| error.to_string())?;
    let parsed = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
    let mut answer = serde_json::json!({ "status": status });
    if record["events"].is_array() {
        answer["events"] = text.lines().filter_map(|line| line.strip_prefix("data: ")).map(parsed).collect();
    } else {
        answer["response"] = if text.is_empty() { Value::Null } else { parsed(&text) };
    }
    Ok(answer)
}

/// Whether the answer to a request is random: it has no seed and is not greedy.
fn is_drawn(request: &Value) -> bool {
    request["seed"].is_null() && request["temperature"].as_f64() != Some(0.0)
}

/// Where two answers differ.
fn compare(record: &Value, answer: &Value) -> Vec<String> {
    let [before, now] = [record, answer].map(|answer| {
        let mut said = BTreeMap::new();
        said.insert("status".to_owned(), answer["status"].to_string());
        match answer["events"].as_array() {
            Some(events) => events.iter().for_each(|event| flatten("", "", event, true, &mut said)),
            None => flatten("", "", &answer["response"], false, &mut said),
        }
        said
    });
    let paths = before.keys().chain(now.keys().filter(|path| !before.contains_key(*path)));
    let nothing = || "nothing".to_owned();
    paths
        .filter(|path| before.get(*path) != now.get(*path))
        .map(|path| {
            let [before, now] = [&before, &now].map(|said| said.get(path).cloned().unwrap_or_else(nothing));
            format!("{}: {before} is now {now}", path.trim_start_matches('.'))
        })
        .collect()
}

/// The content of an answer by path; for a stream, the concatenation of its events.
fn flatten(path: &str, name: &str, value: &Value, stream: bool, said: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map.iter().filter(|(name, _)| !OTHER.contains(&name.as_str())) {
                flatten(&format!("{path}.{name}"), name, value, stream, said);
            }
        }
        Value::Array(values) => {
            for (at, value) in values.iter().enumerate() {
                // A choice, a call or an item is identified by its index, not by its position.
                let at = value["index"].as_u64().unwrap_or(at as u64);
                flatten(&format!("{path}[{at}]"), name, value, stream, said);
            }
        }
        Value::String(piece) if stream && PIECES.contains(&name) => {
            said.entry(path.to_owned()).or_default().push_str(piece);
        }
        Value::Null if stream => {}
        other => {
            said.insert(path.to_owned(), other.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn whole(text: &str) -> Value {
        json!({"status": 200, "response": {"id": text.len(), "choices": [{"index": 0, "text": text}]}})
    }

    #[test]
    fn ids_and_the_places_of_cuts_are_no_difference() {
        assert_eq!(compare(&whole("ab"), &whole("ab")), Vec::<String>::new());
        assert_eq!(compare(&whole("ab"), &whole("b")), [r#"choices[0].text: "ab" is now "b""#]);
        let stream = |pieces: &[&str]| {
            let event = |piece: &&str| json!({"id": pieces.len(), "choices": [{"index": 1, "delta": {"content": piece}}]});
            let events: Vec<Value> = pieces.iter().map(event).chain([json!("[DONE]")]).collect();
            json!({"status": 200, "events": events})
        };
        assert!(compare(&stream(&["a", "bc"]), &stream(&["ab", "", "c"])).is_empty());
        assert_eq!(
            compare(&stream(&["a", "bc"]), &stream(&["ab"])),
            ["choices[1].delta.content: abc is now ab"]
        );
        let refused = json!({"status": 400, "response": {"error": {}}});
        assert_eq!(compare(&refused, &json!({"status": 200, "response": {"error": {}}})).len(), 1);
    }

    #[test]
    fn lines_that_were_cut_are_told_from_what_is_no_dump() {
        let line = json!({"a": "wörd", "b": [1, {"c": null}]}).to_string();
        for end in 1..line.len() {
            assert_eq!(read(&line.as_bytes()[..end]), Ok(None), "{end}");
        }
        assert!(matches!(read(line.as_bytes()), Ok(Some(_))));
        for other in ["", "a", "{a", "{}{}", "[1"] {
            assert!(read(other.as_bytes()).is_err(), "{other}");
        }
    }

    #[test]
    fn chance_is_told_from_a_fault() {
        assert!(is_drawn(&json!({})) && is_drawn(&json!({"temperature": 1.0})));
        assert!(!is_drawn(&json!({"temperature": 0})) && !is_drawn(&json!({"seed": 3})));
    }
}
