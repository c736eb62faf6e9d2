//! JSON without any tag, as Llama 3 calls: an object (or an array of them) at the beginning of the answer
//! that begins with the name of one of the tools.

use super::json_calls::JsonDialect;

pub(crate) const DIALECT: JsonDialect = JsonDialect { tags: &[], closed: false, bare: true };
