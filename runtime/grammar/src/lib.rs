//! Constrained decoding: which tokens may come next in an answer that follows a grammar.
//!
//! [`Grammars`] contains a model's tokens and is built once. It compiles a [`Source`] (a JSON schema, a
//! regular expression, a Lark grammar, a choice of texts) to a [`Constraint`], which follows one answer token
//! by token and returns the ids that may come next. llguidance does the work. This crate adds to it:
//! [unsupported keywords](GrammarError) of a schema are rejected with their path, sizes are bounded, every id
//! that ends an answer counts as its end, and an answer may [reason](Thinking) first, within a budget.
//!
//! A constraint depends only on the tokens of its answer, so masks can be computed after drafts that may be
//! rejected.

pub mod bounds;
mod closed;
mod constraint;
mod error;
mod grammars;
mod head;
mod numbers;
mod patience;
mod pattern;
mod references;
mod schema;
mod shared;
mod source;
mod stack;
mod thinking;
mod watch;
mod width;
mod words;

pub use constraint::Constraint;
pub use error::{GrammarError, Stopped};
pub use grammars::{Grammars, Token};
pub use patience::{Patience, Trial};
pub use pattern::{Body, End, Pattern};
pub use schema::Schema;
pub use source::Source;
pub use thinking::{Tags, Thinking};
pub use watch::{Opener, Openers};
