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
