//! Survivors, and tests/mutants.toml, which says why each may survive.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The list of survivors, below the workspace's root.
const LIST: &str = "tests/mutants.toml";

/// A change to the code. It has no line number, so that it stays the same when lines above come and go: the
/// text of its line distinguishes it from others of the same description.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mutant {
    /// From the workspace's root.
    pub file: String,
    /// What cargo-mutants prints behind the position.
    pub mutant: String,
    /// The line where the change begins, without indentation.
    pub line: String,
}

/// An entry of the list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    file: String,
    mutant: String,
    line: String,
    why: String,
    /// How many survivors of this description the line has.
    times: Option<usize>,
}

/// The list by crate, with its mistakes: an entry for each survivor.
pub fn list(root: &Path) -> Result<BTreeMap<String, Vec<Mutant>>, String> {
    let text = crate::paths::read(&root.join(LIST))?;
    let crates: BTreeMap<String, Vec<Entry>> =
        toml::from_str(&text).map_err(|error| format!("{LIST}: {error}"))?;
    let (mut listed, mut mistakes) = (BTreeMap::<String, Vec<Mutant>>::new(), Vec::new());
    for (name, entries) in crates {
        for Entry { file, mutant, line, why, times } in entries {
            let mut mistake = |what: &str| mistakes.push(format!("{LIST}: {file}: {mutant}: {what}"));
            if why.trim().is_empty() {
                mistake("no reason is given");
            }
            if times.is_some_and(|times| times < 2) {
                mistake("`times` is left out below 2");
            }
            if !file.starts_with(&format!("runtime/{name}/src/")) {
                mistake("the file is not of its crate");
            }
            match std::fs::read_to_string(root.join(&file)) {
                Err(error) => mistake(&error.to_string()),
                Ok(text) if !text.lines().any(|it| it.trim() == line) => {
                    mistake("its line is not in the file")
                }
                Ok(_) => {}
            }
            let times = times.unwrap_or(1);
            let all = std::iter::repeat_n(Mutant { file, mutant, line }, times);
            listed.entry(name.clone()).or_default().extend(all);
        }
    }
    if mistakes.is_empty() { Ok(listed) } else { Err(mistakes.join("\n")) }
}

/// What is wrong between the survivors of a crate and those listed: nothing where each is listed once.
pub fn compare(name: &str, survivors: &[Mutant], listed: &[Mutant]) -> Vec<String> {
    let mut balance = BTreeMap::<&Mutant, (usize, usize)>::new();
    survivors.iter().for_each(|one| balance.entry(one).or_default().0 += 1);
    listed.iter().for_each(|one| balance.entry(one).or_default().1 += 1);
    let unequal = balance.into_iter().filter(|(_, (survive, listed))| survive != listed);
    unequal
        .map(|(Mutant { file, mutant, line }, (survive, listed))| {
            let what = match survive > listed {
                true => "survives: kill it with a test, or list it with the reason",
                false => "is listed and does not survive: delete the entry",
            };
            let times = if survive > 1 { format!("times = {survive}\n") } else { String::new() };
            format!(
                "# {what} ({survive} survive, {listed} listed)\n[[{name}]]\nfile = {}\nmutant = {}\nline = {}\n{times}",
                quoted(file), quoted(mutant), quoted(line)
            )
        })
        .collect()
}

/// A TOML string.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// What became of the mutants of a crate.
#[derive(Debug, Default)]
pub struct Outcome {
    pub caught: usize,
    pub unviable: usize,
    pub timeouts: usize,
    pub survivors: Vec<Mutant>,
    /// Files that have mutants.
    pub files: Vec<String>,
}

/// The part of cargo-mutants' outcomes.json that is read.
#[derive(Deserialize)]
struct Outcomes {
    outcomes: Vec<Tested>,
}

#[derive(Deserialize)]
struct Tested {
    scenario: Scenario,
    summary: Summary,
}

#[derive(Deserialize)]
enum Scenario {
    Baseline,
    Mutant { name: String, file: String, span: Span },
}

#[derive(Deserialize)]
struct Span {
    start: Start,
}

#[derive(Deserialize)]
struct Start {
    line: usize,
}

#[derive(Deserialize)]
enum Summary {
    Success,
    CaughtMutant,
    MissedMutant,
    Unviable,
    Timeout,
}

impl Outcome {
    /// Reads outcomes.json, and the lines of the survivors from the sources, of which `source` has the text.
    pub fn of(json: &str, source: impl Fn(&str) -> Result<String, String>) -> Result<Outcome, String> {
        let Outcomes { outcomes } =
            serde_json::from_str(json).map_err(|error| format!("outcomes.json: {error}"))?;
        let mut all = Outcome::default();
        for Tested { scenario, summary } in outcomes {
            let Scenario::Mutant { name, file, span } = scenario else { continue };
            match summary {
                Summary::CaughtMutant => all.caught += 1,
                Summary::Unviable => all.unviable += 1,
                Summary::Timeout => all.timeouts += 1,
                Summary::Success | Summary::MissedMutant => {
                    // FILE:LINE:COLUMN: DESCRIPTION
                    let mutant = name.splitn(2, ": ").last().unwrap_or_default().to_owned();
                    let line = source(&file)?
                        .lines()
                        .nth(span.start.line.saturating_sub(1))
                        .unwrap_or_default()
                        .trim()
                        .to_owned();
                    all.survivors.push(Mutant { file: file.clone(), mutant, line });
                }
            }
            if all.files.last() != Some(&file) {
                all.files.push(file);
            }
        }
        Ok(all)
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Outcome { caught, unviable, timeouts, survivors, .. } = self;
        let all = caught + unviable + timeouts + survivors.len();
        write!(
            f,
            "{all} mutants: {caught} caught, {} missed, {unviable} unviable, {timeouts} timeouts",
            survivors.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant(mutant: &str, line: &str) -> Mutant {
        Mutant { file: "runtime/cache/src/pool.rs".into(), mutant: mutant.into(), line: line.into() }
    }

    #[test]
    fn the_committed_list_is_in_order() {
        let listed = list(&crate::paths::root()).expect("a list without mistakes");
        assert!(listed.keys().all(|name| super::super::CRATES.iter().any(|it| it.name == name)));
    }

    #[test]
    fn mistakes_of_the_list_are_named() {
        let entry = |file: &str, line: &str, rest: &str| {
            format!("[[cache]]\nfile = '{file}'\nmutant = 'm'\nline = '{line}'\n{rest}\n")
        };
        let file = "runtime/cache/src/pool.rs";
        let refused = |text: &str| {
            let root = crate::tidy::planted(&[(LIST, text), (file, "fn one() {\n    two()\n}\n")]);
            list(root.path()).map(|_| ())
        };
        assert_eq!(refused(&entry(file, "two()", "why = 'it is equivalent'")), Ok(()));
        for (text, what) in [
            (entry(file, "two()", ""), "missing field `why`"),
            (entry(file, "two()", "why = ' '"), "no reason"),
            (entry(file, "three()", "why = 'w'"), "its line"),
            (entry(file, "two()", "why = 'w'\ntimes = 1"), "`times`"),
            (entry(file, "two()", "why = 'w'\ncolumn = 1"), "unknown field"),
            (entry("runtime/cache/src/gone.rs", "two()", "why = 'w'"), "No such file"),
            (entry("runtime/engine/src/lib.rs", "two()", "why = 'w'"), "not of its crate"),
        ] {
            let why = refused(&text).expect_err(what);
            assert!(why.contains(what), "{why}");
        }
    }

    #[test]
    fn survivors_and_entries_are_to_be_the_same() {
        let (one, other, twin) = (mutant("a", "x"), mutant("b", "x"), mutant("a", "y"));
        let wrong = |survivors: &[&Mutant], listed: &[&Mutant]| -> Vec<String> {
            let owned = |all: &[&Mutant]| all.iter().map(|it| (*it).clone()).collect::<Vec<_>>();
            compare("cache", &owned(survivors), &owned(listed))
        };
        assert!(wrong(&[&one, &other, &twin], &[&twin, &one, &other]).is_empty());
        let unlisted = wrong(&[&one, &other], &[&one]);
        assert!(
            matches!(&unlisted[..], [why] if why.starts_with("# survives") && why.contains("mutant = \"b\""))
        );
        let caught = wrong(&[&one], &[&one, &twin]);
        assert!(
            matches!(&caught[..], [why] if why.contains("is listed and") && why.contains("line = \"y\""))
        );
        let twice = wrong(&[&one, &one], &[&one]);
        assert!(matches!(&twice[..], [why] if why.contains("times = 2")), "{twice:?}");
        assert_eq!(wrong(&[&one], &[&one, &one]).len(), 1, "one of two was caught");
    }

    #[test]
    fn outcomes_are_counted_and_survivors_have_their_lines() {
        let tested = |line: usize, summary: &str| {
            format!(
                r#"{{"scenario":{{"Mutant":{{"name":"src/a.rs:{line}:5: replace f -> T<a::B> with 1","file":"src/a.rs",
                "span":{{"start":{{"line":{line},"column":5}}}}}}}},"summary":"{summary}"}}"#
            )
        };
        let all = [
            tested(1, "CaughtMutant"),
            tested(2, "MissedMutant"),
            tested(1, "Timeout"),
            tested(1, "Unviable"),
        ];
        let json =
            format!(r#"{{"outcomes":[{{"scenario":"Baseline","summary":"Success"}},{}]}}"#, all.join(","));
        let outcome = Outcome::of(&json, |_| Ok("fn f() {\n    2\n}\n".into())).expect("it is read");
        let survivor = Mutant {
            file: "src/a.rs".into(),
            mutant: "replace f -> T<a::B> with 1".into(),
            line: "2".into(),
        };
        assert_eq!((&outcome.survivors, &outcome.files), (&vec![survivor], &vec!["src/a.rs".to_owned()]));
        assert_eq!(outcome.to_string(), "4 mutants: 1 caught, 1 missed, 1 unviable, 1 timeouts");
        assert!(Outcome::of("{}", |_| Ok(String::new())).is_err());
    }
}
