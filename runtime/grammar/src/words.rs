//! Rewrites the library's errors for clients.

use llguidance::derivre::RegexBuilder;
use llguidance::regex_to_lark;

/// Whether a schema's pattern can be enforced.
///
/// # Errors
/// Why it cannot.
pub(crate) fn pattern(pattern: &str) -> Result<(), String> {
    let read = |pattern: &str| RegexBuilder::new().mk_regex_for_serach(pattern).map(drop);
    // Its own text first, so that the error's position refers to it.
    read(pattern).and_then(|()| read(&regex_to_lark(pattern, "dw"))).map_err(|error| {
        let error = error.to_string();
        format!("is not a pattern that is followed: {}", regex(&error).unwrap_or_else(|| first_line(&error)))
    })
}

/// The fault and its position from a regex parser's message of several lines.
fn regex(message: &str) -> Option<String> {
    if message.contains("lookarounds not supported") {
        return Some("it looks around (as `\\b` does), which is not supported".to_owned());
    }
    let lines = || message.lines();
    let at = lines().position(|line| line.contains("regex parse error:"))?;
    let what = lines().skip(at).find_map(|line| line.trim_start().strip_prefix("error: "))?;
    let place = lines().skip(at).find_map(|line| {
        let marks = line.trim_start();
        let marked = marks.starts_with('^') && marks.trim_end().chars().all(|it| it == '^' || it == ' ');
        // The text is indented by four spaces.
        marked.then(|| line.len() - marks.len() - 3)
    });
    Some(match place {
        Some(place) => format!("{what}, at its character {place}"),
        None => what.to_owned(),
    })
}

/// The first line of a message; the others quote the grammar.
fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or(message).to_owned()
}

/// Why a grammar cannot be used, as the rest of a sentence that begins with the name of the field.
pub(crate) fn refusal(message: &str) -> String {
    let known = |text: &str| message.contains(text);
    if let Some(what) = regex(message) {
        return format!("cannot be used: it has an invalid regular expression: {what}");
    }
    let what = if let Some((_, why)) = message.split_once("Unsatisfiable schema: ") {
        return format!("cannot be used, for it allows no answer: {}", nothing(&first_line(why)));
    } else if known("oneOf constraints are not supported") {
        "a `oneOf` has options of which one value may fit several, or that cannot be told apart; use `anyOf`, or give each option a \
         required member with a constant of its own"
    } else if known("circular references with sibling keys") {
        "a `$ref` leads in a circle to where it stands beside other keywords; let it stand alone"
    } else if known("min/maxProperties only supported") {
        "`minProperties` and `maxProperties` are followed beside members that are not required only to ask for one of them, and where \
         `additionalProperties` is false"
    } else if known("can't determine if patternProperty") || known("are not disjoint") {
        "a name may match several of `patternProperties`; give them patterns that exclude each other"
    } else if known("Unable to determine if regex is empty") {
        "a pattern, with the lengths and formats beside it, has too many states to see whether any text fits"
    } else if known("schema too large") || known("stack level exceeded") {
        "the schema is too large; split or simplify it"
    } else if known("lexer configuration (grammar) too big") || known("grammar size") || known("too many") {
        "it is too large, with all that it repeats or refers to"
    } else if known("NoExtension") {
        "no text can satisfy the schema"
    } else if known("Too many items") || known("Current row has") {
        "it has too many alternatives that are open at one time"
    } else {
        return format!("cannot be used: {}", placed(&first_line(message)));
    };
    format!("cannot be used: {what}")
}

/// Why nothing is valid.
fn nothing(why: &str) -> String {
    let known = |text: &str| why.contains(text);
    if known("Regex is empty") {
        "no text fits its pattern or format and is of its lengths".to_owned()
    } else if known("does not contain a multiple of") {
        "no number between its bounds is a multiple of its `multipleOf`".to_owned()
    } else if known("incompatible types") {
        "its keywords, or the schemas that it puts together, ask for values of different types".to_owned()
    } else if known("schema is false") {
        "it is `false`".to_owned()
    } else {
        why.to_owned()
    }
}

/// Rewrites positions in a grammar's text for people, and drops lists of expected tokens.
fn placed(message: &str) -> String {
    let message = message.split_once("; following").map_or(message, |(what, _)| what);
    let place = |message: &str| {
        let (line, rest) = message.strip_prefix("at ").unwrap_or(message).split_once('(')?;
        let (column, rest) = rest.split_once("): ")?;
        let (line, column) = (line.parse::<u32>().ok()?, column.parse::<u32>().ok()?);
        let what = if rest == "lexer error" { "unexpected character" } else { rest };
        Some(format!("{what}, in line {line} at character {column}"))
    };
    match message {
        "no start rule found" => "it has no rule `start`".to_owned(),
        other => place(other).unwrap_or_else(|| other.to_owned()),
    }
}

/// Why an answer cannot go on, and whether its grammar is known to be at fault.
pub(crate) fn stopped(message: &str) -> (bool, String) {
    let known = |text: &str| message.contains(text);
    let (grammar, what) = if known("NoExtension") {
        (true, "no text can satisfy the schema".to_owned())
    } else if known("Too many items") || known("Current row has") {
        (true, "too many of its alternatives have begun at one time".to_owned())
    } else {
        (false, first_line(message))
    };
    (grammar, format!("cannot be followed: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_several_lines_say_what_and_where() {
        assert_eq!(pattern("[a-z]+"), Ok(()));
        for (text, what) in [
            ("a(", "unclosed group, at its character 2"),
            ("a{5,3}", "at its character 2"),
            ("\\bfoo", "it looks around"),
        ] {
            let why = pattern(text).expect_err(text);
            assert!(why.contains(what), "{text}: {why}");
        }
        assert_eq!(placed("at 1(8): unknown name: \"b\""), "unknown name: \"b\", in line 1 at character 8");
        assert_eq!(placed("something (else): of it"), "something (else): of it");
    }

    #[test]
    fn a_fault_of_an_expression_has_its_place() {
        let message = "bad\n  regex parse error:\n    ab(c\n      ^\nerror: unclosed group";
        assert_eq!(regex(message).as_deref(), Some("unclosed group, at its character 3"));
        // Several characters are marked, and in several places.
        let message = "regex parse error:\n    a{5,3}\n     ^^^^^\n error: invalid range";
        assert_eq!(regex(message).as_deref(), Some("invalid range, at its character 2"));
        let message = "regex parse error:\n    (?P<a>)(?P<a>)\n        ^      ^ \nerror: duplicate";
        assert_eq!(regex(message).as_deref(), Some("duplicate, at its character 5"));
        // The expression itself may begin with a mark.
        let message = "regex parse error:\n    ^a(\n      ^\nerror: unclosed group";
        assert_eq!(regex(message).as_deref(), Some("unclosed group, at its character 3"));
        assert_eq!(regex("regex parse error:\n    a\nerror: odd").as_deref(), Some("odd"));
        assert_eq!(regex("error: of another kind\n   ^"), None);
        assert_eq!(regex("regex parse error:\n   ^"), None);
        let around = regex("a(?=b): lookarounds not supported");
        assert!(around.is_some_and(|it| it.starts_with("it looks around")));
    }

    #[test]
    fn errors_of_the_library_are_put_in_words() {
        for (message, words) in [
            (
                "at 1: regex parse error:\n    (\n    ^\nerror: unclosed",
                "has an invalid regular expression: unclosed, at its character 1",
            ),
            (
                "Unsatisfiable schema: Regex is empty for x\nmore",
                "allows no answer: no text fits its pattern",
            ),
            (
                "Unsatisfiable schema: no multiple: does not contain a multiple of 5",
                "no answer: no number between its bounds",
            ),
            ("Unsatisfiable schema: incompatible types: a and b", "no answer: its keywords"),
            ("Unsatisfiable schema: schema is false", "no answer: it is `false`"),
            ("Unsatisfiable schema: all else\nand more", "no answer: all else"),
            ("oneOf constraints are not supported here", "use `anyOf`"),
            ("circular references with sibling keys: a", "let it stand alone"),
            ("min/maxProperties only supported when", "`minProperties` and `maxProperties` are followed"),
            ("can't determine if patternProperty a", "several of `patternProperties`"),
            ("patterns a and b are not disjoint", "several of `patternProperties`"),
            ("Unable to determine if regex is empty: a", "too many states"),
            ("schema too large", "the schema is too large"),
            ("stack level exceeded", "the schema is too large"),
            ("lexer configuration (grammar) too big", "it is too large, with all"),
            ("grammar size exceeded", "it is too large, with all"),
            ("too many expressions", "it is too large, with all"),
            ("NoExtension in lexer", "no text can satisfy"),
            ("Too many items (5)", "too many alternatives"),
            ("Current row has 5", "too many alternatives"),
            ("no start rule found\nmore", "it has no rule `start`"),
            ("at 3(7): lexer error; following: a", "unexpected character, in line 3 at character 7"),
            ("something else\nand more", "something else"),
        ] {
            let found = refusal(message);
            assert!(found.starts_with("cannot be used") && found.contains(words), "{message}: {found}");
            assert!(!found.contains("more"), "{found}");
        }
    }

    #[test]
    fn an_answer_that_cannot_go_on_says_who_is_at_fault() {
        for (message, grammar, words) in [
            ("NoExtension", true, "no text can satisfy"),
            ("Too many items", true, "too many of its alternatives"),
            ("Current row has 7", true, "too many of its alternatives"),
            ("token 5 does not fit\nmore", false, "cannot be followed: token 5 does not fit"),
        ] {
            let found = stopped(message);
            assert!(found.0 == grammar && found.1.contains(words), "{message}: {found:?}");
            assert!(!found.1.contains("more"), "{found:?}");
        }
    }
}
