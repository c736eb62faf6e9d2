//! Module patterns of quantisation configs: a name, a name with `*`, or a regular expression.

/// A pattern of module names.
#[derive(Clone, Debug)]
pub(super) enum Pattern {
    /// All modules.
    All,
    /// A module and those inside it.
    Module(String),
    /// The same, or the end of a module's name.
    End(String),
    /// A name in which `*` matches anything.
    Glob(String),
    /// The beginning of a name, or all of it if `whole`.
    Regex { parts: Vec<PatternToken>, whole: bool },
}

/// A part of a regular expression.
#[derive(Clone, Copy, Debug)]
pub(super) enum PatternToken {
    Char(char),
    /// `.`
    AnyChar,
    /// `.*`
    Anything,
    /// `\d+`
    Digits,
}

impl Pattern {
    /// A name that may contain `*`.
    pub(super) fn glob(text: &str) -> Pattern {
        if text.contains('*') { Pattern::Glob(text.to_owned()) } else { Pattern::Module(text.to_owned()) }
    }

    /// The expression after `re:`; `None` if it contains more than `.`, `.*`, `\d+`, escapes, a leading `^`
    /// and a trailing `$`.
    pub(super) fn regex(text: &str) -> Option<Pattern> {
        let text = text.strip_prefix('^').unwrap_or(text);
        let (text, whole) = text.strip_suffix('$').map_or((text, false), |text| (text, true));
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(next) = rest.chars().next() {
            let (part, length) = if rest.starts_with(".*") {
                (PatternToken::Anything, 2)
            } else if rest.starts_with("\\d+") {
                (PatternToken::Digits, 3)
            } else if next == '.' {
                (PatternToken::AnyChar, 1)
            } else if next == '\\' {
                let escaped = rest[1..].chars().next().filter(|it| !it.is_alphanumeric())?;
                (PatternToken::Char(escaped), 1 + escaped.len_utf8())
            } else if "[](){}|+?*^$".contains(next) {
                return None;
            } else {
                (PatternToken::Char(next), next.len_utf8())
            };
            parts.push(part);
            rest = &rest[length..];
        }
        Some(Pattern::Regex { parts, whole })
    }

    /// Whether it matches the module.
    pub(super) fn names(&self, module: &str) -> bool {
        let inside =
            |outer: &str| module.strip_prefix(outer).is_some_and(|it| it.is_empty() || it.starts_with('.'));
        match self {
            Pattern::All => true,
            Pattern::Module(name) => inside(name),
            Pattern::End(name) => inside(name) || module.ends_with(name.as_str()),
            Pattern::Glob(glob) => {
                let pieces: Vec<&str> = glob.split('*').collect();
                in_order(module, &pieces)
            }
            Pattern::Regex { parts, whole } => begins(module, parts, *whole),
        }
    }
}

/// Whether the pieces between stars occur in the name in this order, the first and last at its ends.
fn in_order(name: &str, pieces: &[&str]) -> bool {
    let [first, middle @ .., last] = pieces else { return pieces.first() == Some(&name) };
    let Some(mut rest) = name.strip_prefix(first).and_then(|rest| rest.strip_suffix(last)) else {
        return false;
    };
    middle.iter().all(|piece| match rest.find(piece) {
        Some(at) => {
            rest = &rest[at + piece.len()..];
            true
        }
        None => false,
    })
}

fn begins(name: &str, parts: &[PatternToken], whole: bool) -> bool {
    let Some((part, after)) = parts.split_first() else { return !whole || name.is_empty() };
    let mut chars = name.chars();
    match part {
        PatternToken::Char(char) => chars.next() == Some(*char) && begins(chars.as_str(), after, whole),
        PatternToken::AnyChar => chars.next().is_some() && begins(chars.as_str(), after, whole),
        PatternToken::Digits => {
            let digits = name.len() - name.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            (1..=digits).any(|length| begins(&name[length..], after, whole))
        }
        PatternToken::Anything => name
            .char_indices()
            .map(|(at, _)| at)
            .chain([name.len()])
            .any(|at| begins(&name[at..], after, whole)),
    }
}

#[cfg(test)]
mod tests {
    use super::Pattern;

    #[test]
    fn modules_are_named_as_the_tools_name_them() {
        let module = "model.layers.10.mlp.gate";
        let regex = |text| Pattern::regex(text).unwrap();
        for (pattern, named) in [
            (Pattern::All, true),
            (Pattern::glob("model.layers.10"), true),
            (Pattern::glob("model.layers.1"), false),
            (Pattern::glob("mlp.gate"), false),
            (Pattern::End("mlp.gate".to_owned()), true),
            (Pattern::End("mlp.gate_proj".to_owned()), false),
            (Pattern::glob("model.layers.10.*"), true),
            (Pattern::glob("*.mlp.gate"), true),
            (Pattern::glob("model*gate"), true),
            (Pattern::glob("model*up*"), false),
            (regex(".*mlp.gate$"), true),
            (regex(".*mlp.gat$"), false),
            (regex(".*mlp.gat"), true),
            (regex("^model\\.layers\\.\\d+\\.mlp"), true),
            (regex("mlp.gate"), false),
        ] {
            assert_eq!(pattern.names(module), named, "{pattern:?}");
        }
        for text in ["(a|b)", "a+", "[ab]", "a?", "\\w"] {
            assert!(Pattern::regex(text).is_none(), "{text}");
        }
    }
}
