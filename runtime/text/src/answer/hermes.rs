//! Hermes, and Qwen before 3.5: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

use super::json_calls::JsonDialect;

pub(crate) const OPEN: &str = "<tool_call>";
pub(crate) const CLOSE: &str = "</tool_call>";
pub(crate) const DIALECT: JsonDialect = JsonDialect { tags: &[CLOSE, OPEN], closed: true, bare: false };
