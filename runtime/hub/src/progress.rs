//! What a download tells those who wait for it.

use crate::error::Bytes;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Is told how a download goes on.
pub trait Progress {
    /// A file begins, of which `have` bytes are there already; `bytes` is its size, if known.
    fn begin(&mut self, name: &str, bytes: Option<u64>, have: u64);
    /// It has this many bytes now.
    fn at(&mut self, bytes: u64);
    /// Something that people should know: an attempt that failed, another process that is waited for.
    fn note(&mut self, words: &str);
    /// The file is whole, or was given up.
    fn end(&mut self);
}

/// Tells nobody.
impl Progress for () {
    fn begin(&mut self, _: &str, _: Option<u64>, _: u64) {}
    fn at(&mut self, _: u64) {}
    fn note(&mut self, _: &str) {}
    fn end(&mut self) {}
}

/// Time between two lines where standard error is no terminal.
const BETWEEN: Duration = Duration::from_secs(15);

/// A bar on a terminal, and lines where standard error is none.
pub struct Shown {
    terminal: bool,
    bar: Option<ProgressBar>,
    name: String,
    bytes: Option<u64>,
    next: Instant,
}

impl Default for Shown {
    fn default() -> Shown {
        let terminal = std::io::stderr().is_terminal();
        Shown { terminal, bar: None, name: String::new(), bytes: None, next: Instant::now() }
    }
}

impl Progress for Shown {
    fn begin(&mut self, name: &str, bytes: Option<u64>, have: u64) {
        self.end();
        (self.name, self.bytes, self.next) = (name.to_owned(), bytes, Instant::now() + BETWEEN);
        if self.terminal {
            let style =
                ProgressStyle::with_template("{msg} {bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}");
            let bar = ProgressBar::with_draw_target(bytes, ProgressDrawTarget::stderr());
            let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            self.bar = Some(bar.with_message(name.to_owned()).with_position(have));
            return;
        }
        let size = bytes.map(|bytes| format!(", {}", Bytes(bytes))).unwrap_or_default();
        let rest = if have > 0 { format!(", of which {} are there", Bytes(have)) } else { String::new() };
        eprintln!("fetching {name}{size}{rest}");
    }

    fn at(&mut self, bytes: u64) {
        match &self.bar {
            Some(bar) => bar.set_position(bytes),
            None if Instant::now() < self.next => {}
            None => {
                self.next = Instant::now() + BETWEEN;
                let of = self.bytes.map(|all| format!(" of {}", Bytes(all))).unwrap_or_default();
                eprintln!("{}: {}{of}", self.name, Bytes(bytes));
            }
        }
    }

    fn note(&mut self, words: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{words}")),
            None => eprintln!("{words}"),
        }
    }

    fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
