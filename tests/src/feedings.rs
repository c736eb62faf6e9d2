//! Lists of tokens that emulated servers are fed, in every way that steps allow, with their logits.

use crate::emulated::{self, Server};
use crate::goldens::Golden;
use crate::logits::{Logits, Spread, read, rows_apart};
use monomorph_compiler::reference::{Cache, Interpreter, Logits as Which};
use monomorph_compiler::spec::types::Target;
use monomorph_compiler::{graph, passes};
use monomorph_weights::Checkpoint;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Largest distance between rows with another order of summation, for exact targets.
pub const EXACT: f32 = 1e-4;

/// What a server is built of, and its expected logits.
#[derive(Debug)]
pub struct Case {
    /// For an emulated card.
    pub target: Target,
    /// Its checkpoint.
    pub weights: PathBuf,
    /// Tokens whose logits are expected.
    pub prompts: Vec<Vec<u32>>,
    /// The logits, by prompt.
    pub expected: Logits,
    /// Largest distance between rows.
    pub bound: f32,
    /// Bounds by prompt and token, for models with clear choices of experts and distinguishable rows.
    pub rows: Option<Vec<Vec<f32>>>,
}

/// Lists of tokens that are prefixes of prompts, and the flags to feed them with.
struct Feeding {
    name: &'static str,
    lists: Vec<(usize, usize)>,
    flags: &'static [&'static str],
}

/// Every prompt, whole.
fn whole(case: &Case) -> Vec<(usize, usize)> {
    case.prompts.iter().enumerate().map(|(number, prompt)| (number, prompt.len())).collect()
}

/// `count` short lists that end one after another.
fn short(case: &Case, count: usize, least: usize) -> Vec<(usize, usize)> {
    let length = |number: usize| least + number % 4;
    let long: Vec<_> = whole(case).into_iter().filter(|(_, length)| *length >= least + 3).collect();
    (0..count).map(|number| (long[number % long.len()].0, length(number))).collect()
}

/// Each prompt alone, all of them together, and batches that need every decode program.
fn feedings(case: &Case) -> Vec<Feeding> {
    let mut feedings = vec![
        Feeding { name: "prompts", lists: whole(case), flags: &[] },
        Feeding { name: "steps", lists: short(case, 2, 30), flags: &["--decode"] },
        Feeding { name: "prompts together", lists: whole(case), flags: &["--together"] },
        Feeding {
            name: "steps behind prompts",
            lists: whole(case),
            flags: &["--together", "--decode", "--prompt", "61"],
        },
    ];
    for (name, count) in [("100 and fewer", 100), ("34 and fewer", 34), ("9 and fewer", 9)] {
        let flags = &["--together", "--decode", "--prompt", "3"];
        feedings.push(Feeding { name, lists: short(case, count, 4), flags });
    }
    feedings
}

impl Case {
    /// Whether a server that answers with these logits, of every token, is found wrong.
    pub fn sees(&self, found: &Logits) -> bool {
        let spread = Spread::of(found, &self.expected, self.target.model.vocabulary);
        println!("{}, of one that is to be seen: {spread}", self.target.name());
        !spread.is_within(self.bound, &self.target.model)
    }

    fn check(&self, server: &Server, feeding: &Feeding) -> Result<(), String> {
        let begin = Instant::now();
        let out = tempfile::tempdir().expect("temporary directories can be made");
        let (tokens, found) = (out.path().join("tokens.json"), out.path().join("logits.safetensors"));
        let lists = feeding.lists.iter().map(|(number, length)| &self.prompts[*number][..*length]);
        std::fs::write(&tokens, json!(lists.collect::<Vec<_>>()).to_string()).expect("it is writable");
        let mut command = server.command();
        command.arg("logits").arg("--weights").arg(&self.weights).arg("--tokens").arg(&tokens);
        let output =
            command.arg("--out").arg(&found).args(feeding.flags).output().expect("the server starts");
        let name = format!("{} {} ({} lists)", self.target.name(), feeding.name, feeding.lists.len());
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(format!("{name}: {}\n{words}", output.status));
        }
        let vocabulary = self.target.model.vocabulary;
        let begins =
            |(number, length): &(usize, usize)| self.expected[*number][..length * vocabulary].to_vec();
        let expected = feeding.lists.iter().map(begins);
        let (found, expected) = (read(&found), expected.collect());
        let spread = Spread::of(&found, &expected, vocabulary);
        let mut words = format!("{name}: {spread} ({:.1} s)", begin.elapsed().as_secs_f32());
        println!("{words}");
        let mut right = spread.is_within(self.bound, &self.target.model);
        if let Some(bounds) = &self.rows {
            let rows = feeding.lists.iter().flat_map(|&(number, length)| {
                (0..length).map(move |token| (number, token, bounds[number][token]))
            });
            for ((number, token, bound), apart) in rows.zip(rows_apart(&found, &expected, vocabulary)) {
                if apart > bound {
                    words += &format!("\n  prompt {number}, token {token}: {apart:.1e}, bound {bound:.1e}");
                    right = false;
                }
            }
        }
        if right { Ok(()) } else { Err(words) }
    }
}

/// The case of a target; prints the reason and returns `None` if the compiler refuses it. Without `expected`
/// logits, the interpreter computes them.
///
/// # Panics
/// If the checkpoint is damaged.
pub fn case(
    target: Target,
    golden: &Golden,
    weights: &Path,
    expected: Option<Logits>,
    bound: f32,
) -> Option<Case> {
    let graph = graph::build(&target.model, &target.quant);
    if let Err(why) = passes::assemble::plan(&target, &graph) {
        println!("{} is refused: {why}", target.name());
        return None;
    }
    let interpreted = || {
        let checkpoint = Checkpoint::open(weights).unwrap_or_else(|error| panic!("{error}"));
        let interpreter = Interpreter::new(&graph, &target.quant, &checkpoint);
        let interpreter = interpreter.unwrap_or_else(|error| panic!("{}: {error}", target.name()));
        let forward = |prompt: &Vec<u32>| interpreter.forward(prompt, &mut Cache::default(), Which::All);
        golden.prompts.iter().map(forward).collect()
    };
    let expected = expected.unwrap_or_else(interpreted);
    Some(Case {
        weights: weights.to_owned(),
        prompts: golden.prompts.clone(),
        expected,
        bound,
        rows: None,
        target,
    })
}

/// Builds the server of a case with the kernels that it takes, checks it, prints its distances, and appends
/// failures to `wrong`; only feedings of these names, or all. Returns the server.
///
/// # Panics
/// If the server cannot be built or does not start.
pub fn run(case: &Case, wrong: &mut Vec<String>, only: &[&str]) -> Server {
    let feedings: Vec<_> =
        feedings(case).into_iter().filter(|it| only.is_empty() || only.contains(&it.name)).collect();
    let sequences = feedings.iter().map(|feeding| feeding.lists.len()).max().expect("some are wanted");
    let begin = Instant::now();
    let server = emulated::build_up_to(&case.target, sequences);
    println!("{} built in {:.1} s", case.target.name(), begin.elapsed().as_secs_f32());
    for feeding in &feedings {
        if let Err(why) = case.check(&server, feeding) {
            println!("WRONG: {why}");
            wrong.push(why);
        }
    }
    server
}
