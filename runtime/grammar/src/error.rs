//! Errors of grammars and of answers under them.

/// Why a grammar cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrammarError {
    /// For a JSON schema, the member at fault, as `.properties.size.multipleOf`; empty for the grammar as a
    /// whole.
    pub path: String,
    /// What is wrong, as the rest of a sentence that begins with the name of the field at fault.
    pub message: String,
}

impl GrammarError {
    /// An error of the grammar as a whole.
    pub(crate) fn new(message: impl Into<String>) -> GrammarError {
        GrammarError { path: String::new(), message: message.into() }
    }
}

impl std::fmt::Display for GrammarError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.path.as_str() {
            "" => write!(f, "the grammar {}", self.message),
            path => write!(f, "the grammar's {} {}", path.trim_start_matches('.'), self.message),
        }
    }
}

impl std::error::Error for GrammarError {}

/// Why an answer cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The grammar cannot be followed any further, and is at fault.
    Grammar(GrammarError),
    /// The token is not allowed here, and the sampler is at fault.
    Token(GrammarError),
}

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Stopped::Grammar(error) | Stopped::Token(error)) = self;
        error.fmt(f)
    }
}

impl std::error::Error for Stopped {}

/// For a trial of a grammar: any stop is the grammar's fault.
impl From<Stopped> for GrammarError {
    fn from(stopped: Stopped) -> GrammarError {
        let (Stopped::Grammar(error) | Stopped::Token(error)) = stopped;
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_sentences() {
        let (whole, part) = (
            GrammarError::new("is too large"),
            GrammarError { path: ".items[1]".into(), message: "is odd".into() },
        );
        assert_eq!(whole.to_string(), "the grammar is too large");
        assert_eq!(part.to_string(), "the grammar's items[1] is odd");
        for stopped in [Stopped::Grammar(part.clone()), Stopped::Token(part.clone())] {
            assert_eq!(stopped.to_string(), part.to_string());
            assert_eq!(GrammarError::from(stopped), part);
        }
    }
}
