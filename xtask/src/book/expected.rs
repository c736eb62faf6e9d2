//! Whether a command printed what a page says: `…` in a line is any text of that line, a line of `…`
//! alone any lines. Space at the ends of lines does not count, nor do empty lines behind the last.

/// Stands for what is not said.
const ANY: &str = "…";

/// Compares all lines, or only the first ones where more may `follow`.
///
/// # Errors
/// Says which expected line nothing is like, or that there were more lines.
pub fn compare(expected: &[String], printed: &str, follow: bool) -> Result<(), String> {
    let lines: Vec<&str> = printed.trim_end().lines().map(str::trim_end).collect();
    // After how many lines what is expected so far may end.
    let mut ends = vec![false; lines.len() + 1];
    ends[0] = true;
    for pattern in expected {
        let mut next = vec![false; ends.len()];
        if pattern == ANY {
            let first = ends.iter().position(|it| *it).expect("there is one, or an error was returned");
            next[first..].fill(true);
        } else {
            for (at, line) in lines.iter().enumerate() {
                next[at + 1] = ends[at] && is_like(pattern, line);
            }
        }
        if !next.contains(&true) {
            return Err(format!("printed no line like `{pattern}`"));
        }
        ends = next;
    }
    if follow || ends[lines.len()] { Ok(()) } else { Err("printed more than the page says".to_owned()) }
}

/// Whether a line has the parts between the pattern's wildcards, in order, and begins and ends like it.
fn is_like(pattern: &str, line: &str) -> bool {
    let Some((begin, rest)) = pattern.split_once(ANY) else { return pattern == line };
    let (middle, end) = rest.rsplit_once(ANY).unwrap_or(("", rest));
    let inner = line.strip_prefix(begin).and_then(|line| line.strip_suffix(end));
    let found = |line: &str| {
        let mut parts = middle.split(ANY);
        parts.try_fold(line.to_owned(), |line, part| Some(line[line.find(part)? + part.len()..].to_owned()))
    };
    inner.is_some_and(|line| found(line).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expect(expected: &str, printed: &str) -> Result<(), String> {
        compare(&expected.lines().map(str::to_owned).collect::<Vec<_>>(), printed, false)
    }

    #[test]
    fn wildcards_stand_for_text_and_for_lines() {
        for (expected, printed) in [
            ("", ""),
            ("a", "a  \n"),
            ("a\n\nb", "a\n\nb\n\n"),
            ("…", ""),
            ("…", "a\nb\n"),
            ("a\n…\nc", "a\nc\n"),
            ("a\n…\nc", "a\nc\nb\nc\n"),
            ("…b…", "abc\n"),
            ("…/server", "/x/server\n"),
            ("a … c … e", "a b c d e\n"),
            ("…\nlast…\n…", "1\n2\nlast one\n"),
            ("a…a", "aa\n"),
        ] {
            assert_eq!(expect(expected, printed), Ok(()), "{expected:?} {printed:?}");
        }
        for (expected, printed, why) in [
            ("a", "b\n", "printed no line like `a`"),
            ("a\nb", "a\n", "printed no line like `b`"),
            ("a", "a\nb\n", "printed more than the page says"),
            ("…\nc\nd", "c\nx\nd\n", "printed no line like `d`"),
            ("a…a", "a\n", "printed no line like `a…a`"),
            ("a … c … e", "a c d e\n", "printed no line like `a … c … e`"),
        ] {
            assert_eq!(expect(expected, printed), Err(why.to_owned()), "{expected:?} {printed:?}");
        }
        assert_eq!(compare(&["a".to_owned()], "a\nb\n", true), Ok(()));
    }
}
