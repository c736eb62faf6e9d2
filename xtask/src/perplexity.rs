//! `cargo xtask perplexity`: how well a server foretells a text, and how much worse with other formats of
//! keys and values, or to another engine.

use crate::judged::{self, Server};
use crate::peer::{Peer, PeerName, machine};
use clap::Args;
use monomorph_formats::cached::KvFormats;
use serde::Deserialize;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::Stdio;

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    server: Server,
    /// A text in UTF-8; of several, each is judged by itself.
    #[arg(long, value_name = "FILE", required = true)]
    text: Vec<PathBuf>,
    /// Build the server with each of these formats of keys and values too, and say how much worse it
    /// foretells the text, window by window: formats as `--kv` takes them.
    #[arg(long, value_name = "FORMAT,…", value_delimiter = ',', value_parser = KvFormats::from_name,
          conflicts_with = "server")]
    compare: Vec<KvFormats>,
    /// Let another engine judge the same windows of the text with the same file.
    #[arg(long)]
    peer: Option<PeerName>,
    /// Threads of the other engine.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// What else the server's verb takes, such as `--window 512 --windows 8`; without `--compare` also
    /// `--json`.
    #[arg(last = true)]
    more: Vec<String>,
}

pub fn perplexity(options: Options) -> Result<(), String> {
    let own = options.server.ready()?;
    let with = |&formats: &KvFormats| Ok((formats, own.with_kv(formats).ready()?));
    let others = options.compare.iter().map(with).collect::<Result<Vec<_>, String>>()?;
    let mut peer = None;
    if let Some(PeerName::LlamaCpp) = options.peer {
        peer = Some(Peer::start(&own.paths()?.1, options.threads, &machine::here())?);
    }
    for text in &options.text {
        if others.is_empty() && peer.is_none() {
            let mut verb = judged::verb("perplexity", &own)?;
            judged::run(verb.arg("--text").arg(text).args(&options.more))?;
        } else {
            compare(&own, &others, peer.as_mut(), text, &options.more)?;
        }
    }
    Ok(())
}

/// What a server prints of a text.
#[derive(Deserialize)]
struct Judged {
    tokens: usize,
    perplexity: f64,
    /// Negative logarithms of probabilities, a token, of each window.
    windows: Vec<f64>,
    /// Where each begins, from which token on it is judged, and where it ends.
    cut: Vec<[usize; 3]>,
    text_tokens: usize,
}

impl Judged {
    /// What another engine says of the same windows.
    fn by(&self, peer: &mut Peer, text: &Path) -> Result<Judged, String> {
        let windows = peer.judge(text, self.text_tokens, &self.cut)?;
        let counts = self.cut.iter().map(|[_, judged, end]| end - judged);
        let nats: f64 = counts.zip(&windows).map(|(count, nats)| count as f64 * nats).sum();
        let (tokens, cut) = (self.tokens, self.cut.clone());
        let perplexity = (nats / tokens as f64).exp();
        Ok(Judged { tokens, perplexity, windows, cut, text_tokens: self.text_tokens })
    }
}

/// Prints a row for each format, and one for the peer, as a table of Markdown.
fn compare(
    own: &Server,
    others: &[(KvFormats, Server)],
    peer: Option<&mut Peer>,
    text: &Path,
    more: &[String],
) -> Result<(), String> {
    let own = judge(own, text, more)?;
    println!("{}: {} tokens in {} windows\n", text.display(), own.tokens, own.windows.len());
    println!("| {} | perplexity | more | windows, least to most | worse in |", heading(others));
    println!("|---|---|---|---|---|");
    println!("| its own | {:.4} | | | |", own.perplexity);
    let row = |name: &dyn Display, other: &Judged| {
        let difference = Difference::between(&own.windows, &other.windows)?;
        println!("| {name} | {:.4} | {difference} |", other.perplexity);
        Ok::<_, String>(())
    };
    for (formats, server) in others {
        row(formats, &judge(server, text, more)?)?;
    }
    if let Some(peer) = peer {
        row(&"llama.cpp", &own.by(peer, text)?)?;
    }
    println!();
    Ok(())
}

/// What the rows of a table are.
fn heading(others: &[(KvFormats, Server)]) -> &'static str {
    if others.is_empty() { "engine" } else { "keys and values" }
}

fn judge(server: &Server, text: &Path, more: &[String]) -> Result<Judged, String> {
    let mut verb = judged::verb("perplexity", server)?;
    verb.arg("--text").arg(text).arg("--json").args(more).stderr(Stdio::inherit());
    let output = verb.output().map_err(|error| format!("{verb:?} could not be started: {error}"))?;
    if !output.status.success() {
        return Err(format!("{verb:?}: {}", output.status));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("{verb:?} printed no result: {error}"))
}

/// How much more perplexing the same windows are to one server than to another, as a factor less 1.
#[derive(Debug, PartialEq)]
struct Difference {
    /// Over all windows, with its standard error: each window is compared with itself, so what makes windows
    /// differ from one another is not in it.
    mean: f64,
    error: f64,
    least: f64,
    most: f64,
    /// Windows that are more perplexing, of how many.
    worse: usize,
    windows: usize,
}

impl Difference {
    /// Of nats a token, window by window.
    fn between(own: &[f64], other: &[f64]) -> Result<Difference, String> {
        if own.len() != other.len() || own.len() < 2 {
            return Err(format!(
                "windows are compared one by one, and there are {} and {}: give a text of at least two",
                own.len(),
                other.len()
            ));
        }
        let more: Vec<f64> = other.iter().zip(own).map(|(other, own)| other - own).collect();
        let count = more.len() as f64;
        let mean = more.iter().sum::<f64>() / count;
        let spread = more.iter().map(|it| (it - mean).powi(2)).sum::<f64>();
        Ok(Difference {
            mean: mean.exp_m1(),
            error: mean.exp() * (spread / (count - 1.0) / count).sqrt(),
            least: more.iter().copied().fold(f64::INFINITY, f64::min).exp_m1(),
            most: more.iter().copied().fold(f64::NEG_INFINITY, f64::max).exp_m1(),
            worse: more.iter().filter(|&&it| it > 0.0).count(),
            windows: more.len(),
        })
    }
}

impl Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Difference { mean, error, least, most, worse, windows } = self;
        let [mean, error, least, most] = [mean, error, least, most].map(|it| 100.0 * it);
        write!(f, "{mean:+.3} % ± {error:.3} | {least:+.2} to {most:+.2} % | {worse} of {windows}")
    }
}

#[cfg(test)]
mod tests {
    use super::Difference;

    #[test]
    fn windows_are_compared_with_themselves() {
        // One window is three times as hard as the other, and both get harder by about as much.
        let found = Difference::between(&[1.0, 3.0], &[1.01, 3.03]).expect("two windows each");
        assert!((found.mean - 0.02_f64.exp_m1()).abs() < 1e-9);
        assert!((found.error - 0.02_f64.exp() * 0.01).abs() < 1e-9);
        assert!((found.least - 0.01_f64.exp_m1()).abs() < 1e-9);
        assert!((found.most - 0.03_f64.exp_m1()).abs() < 1e-9);
        assert_eq!((found.worse, found.windows), (2, 2));
        assert_eq!(found.to_string(), "+2.020 % ± 1.020 | +1.01 to +3.05 % | 2 of 2");
    }

    #[test]
    fn windows_without_a_partner_are_not_compared() {
        assert!(Difference::between(&[1.0, 2.0], &[1.0]).is_err());
        assert!(Difference::between(&[1.0], &[1.0]).is_err());
    }
}
