//! MiniMax-M2: `<minimax:tool_call><invoke name="NAME"><parameter
//! name="KEY">value</parameter></invoke></minimax:tool_call>`.

use super::xml_calls::XmlDialect;

pub(crate) const OPEN: &str = "<minimax:tool_call>";
pub(crate) const CLOSE: &str = "</minimax:tool_call>";
pub(crate) const DIALECT: XmlDialect = XmlDialect {
    between: [CLOSE, OPEN, "<invoke name="],
    body: [CLOSE, OPEN, "</invoke>", "<parameter name="],
    value: ["</parameter>"],
    lines: false,
};
