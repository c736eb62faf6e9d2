//! What a grammar is refused for.

/// Why a grammar cannot be used, or an answer cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrammarError {
    /// Of a JSON schema the member at fault, as `.properties.size.multipleOf`; empty for the grammar as a
    /// whole.
    pub path: String,
    /// What is wrong, as the rest of a sentence that begins with the name of the field at fault.
    pub message: String,
}

impl GrammarError {
    /// Of the grammar as a whole.
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
