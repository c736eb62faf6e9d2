//! JSON without tags, as in calls of Llama 3: an object (or an array of them) at the beginning of the answer
//! that starts with the name of one of the tools.

use super::json_calls::JsonDialect;

pub(crate) const DIALECT: JsonDialect = JsonDialect { tags: &[], closed: false, bare: true };
