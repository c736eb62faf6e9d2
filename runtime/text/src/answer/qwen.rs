//! Qwen3-Coder, Qwen 3.5 and Nemotron 3: `<tool_call><function=NAME><parameter=KEY>` line end, value, line
//! end `</parameter></function></tool_call>`. Models sometimes omit the outer tag.

use super::xml_calls::XmlDialect;

pub(crate) const OPEN: &str = "<tool_call>";
pub(crate) const FUNCTION: &str = "<function=";
pub(crate) const FUNCTION_CLOSE: &str = "</function>";
pub(crate) const CLOSE: &str = "</tool_call>";
const PARAMETER: &str = "<parameter=";
pub(crate) const DIALECT: XmlDialect = XmlDialect {
    between: [CLOSE, OPEN, FUNCTION],
    body: [CLOSE, OPEN, FUNCTION_CLOSE, PARAMETER],
    value: ["</parameter>"],
    lines: true,
};
