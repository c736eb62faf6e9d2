//! Where a run's time went.

use super::programs::Ran;
use crate::paths;
use monomorph_compiler::toolchain::times::{self, Work};

/// How many test programs and builds are listed, most first; the rest of the builds are summed up.
const LISTED: usize = 12;

/// A check, its outcome and its time.
pub struct Line {
    pub name: &'static str,
    pub became: &'static str,
    /// Wall time.
    pub seconds: f64,
    /// Processor time of all programs that it ran; `None` if the system does not report it.
    pub processor: Option<f64>,
}

/// Prints a line for each check, for the test programs that took most of the processors, and for the longest
/// builds of servers.
pub fn print(lines: &[Line], mut ran: Vec<Ran>) {
    println!("{}", checks(lines));
    ran.sort_by(|a, b| b.processor.unwrap_or(b.seconds).total_cmp(&a.processor.unwrap_or(a.seconds)));
    for Ran { name, seconds, processor, .. } in ran.iter().take(LISTED) {
        println!("{name:<28} {seconds:>8.0} {:>12}", of_processors(*processor));
    }
    println!("{}", builds(&times::noted(&paths::root())));
}

fn checks(lines: &[Line]) -> String {
    let mut text = format!("{:<12} {:<8} {:>8} {:>12}", "check", "", "seconds", "processors'");
    for line in lines {
        let processor = of_processors(line.processor);
        text += &format!("\n{:<12} {:<8} {:>8.0} {processor:>12}", line.name, line.became, line.seconds);
    }
    text
}

fn of_processors(seconds: Option<f64>) -> String {
    seconds.map_or("-".to_owned(), |seconds| format!("{seconds:.0}"))
}

fn builds(work: &[Work]) -> String {
    let sum = |work: &[Work]| work.iter().map(|it| it.seconds).sum::<f64>();
    let mut text = format!("{:>8}  built by tests ({} in all)", format!("{:.0} s", sum(work)), work.len());
    let (listed, rest) = work.split_at(work.len().min(LISTED));
    for Work { what, times, seconds } in listed {
        let again = if *times == 1 { String::new() } else { format!(", {times} times") };
        text += &format!("\n{:>8}  {what}{again}", format!("{seconds:.1} s"));
    }
    if !rest.is_empty() {
        text += &format!("\n{:>8}  {} others", format!("{:.1} s", sum(rest)), rest.len());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Line, builds, checks};
    use monomorph_compiler::toolchain::times::Work;

    #[test]
    fn a_table_names_every_check_and_the_longest_builds() {
        let line = |name, became, processor| Line { name, became, seconds: 61.4, processor };
        let text = checks(&[line("format", "passed", Some(2.0)), line("page", "skipped", None)]);
        let expected = "check                  seconds  processors'\n\
                        format       passed         61            2\n\
                        page         skipped        61            -";
        assert_eq!(text, expected);
        let work = |at: usize| Work { what: format!("server {at}"), times: 1 + at % 2, seconds: 2.0 };
        let text = builds(&(0..14).map(work).collect::<Vec<_>>());
        assert!(text.starts_with("    28 s  built by tests (14 in all)\n   2.0 s  server 0\n"), "{text}");
        assert!(text.contains("\n   2.0 s  server 11, 2 times\n   4.0 s  2 others"), "{text}");
    }
}
