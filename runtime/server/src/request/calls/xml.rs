//! Calls as tags with parameters in them: Qwen3-Coder's form and MiniMax's.

use super::parameters::{Value, members, value};
use super::{ConstrainedTool, free};
use monomorph_grammar::{Body, End, Pattern};

/// What differs between them.
pub(super) struct Dialect {
    /// Before and behind the name of a call.
    call: [&'static str; 2],
    call_end: &'static str,
    /// Before and behind the name of a parameter.
    parameter: [&'static str; 2],
    parameter_end: &'static str,
    /// Whether values stand on lines of their own.
    lines: bool,
}

pub(super) const QWEN: Dialect = Dialect {
    call: ["<function=", ">\n"],
    call_end: "</function>",
    parameter: ["<parameter=", ">\n"],
    parameter_end: "</parameter>",
    lines: true,
};

pub(super) const MINIMAX: Dialect = Dialect {
    call: ["<invoke name=\"", "\">\n"],
    call_end: "</invoke>",
    parameter: ["<parameter name=\"", "\">"],
    parameter_end: "</parameter>",
    lines: false,
};

/// A call of one of these.
pub(super) fn calls(dialect: &Dialect, tools: &[ConstrainedTool]) -> Pattern {
    let call = |tool: &ConstrainedTool| {
        let [before, behind] = dialect.call;
        let mut parts = vec![Pattern::text(format!("{before}{}{behind}", tool.name))];
        match members(&tool.schema) {
            None => parts.push(any(dialect)),
            Some(members) => parts.extend(members.into_iter().map(|(name, schema, required)| {
                let text = tool.set.reads_text(tool.name, name);
                let one = parameter(dialect, name, &value(&tool.schema, schema, text));
                if required { one } else { Pattern::Maybe(Box::new(one)) }
            })),
        }
        parts.push(Pattern::text(dialect.call_end));
        Pattern::All(parts)
    };
    Pattern::OneOf(tools.iter().map(call).collect())
}

fn parameter(dialect: &Dialect, name: &str, value: &Value) -> Pattern {
    let [before, behind] = dialect.parameter;
    let end = dialect.parameter_end;
    let last = if dialect.lines { format!("\n{end}") } else { end.to_owned() };
    let value = match value {
        Value::Json(schema) => Pattern::All(vec![Pattern::Json(schema.clone()), Pattern::text(last)]),
        Value::Free if dialect.lines => free(End::Line(end.to_owned())),
        Value::Free => free(End::Text(end.to_owned())),
        // A line end behind it is not read as part of it, so it has to be there.
        Value::Texts(bodies) => {
            let text = |body: &Body| Pattern::Until(body.clone(), End::Text(last.clone()));
            Pattern::OneOf(bodies.iter().map(text).collect())
        }
    };
    Pattern::All(vec![Pattern::text(format!("{before}{name}{behind}")), value, Pattern::text("\n")])
}

/// Any parameters, as texts.
fn any(dialect: &Dialect) -> Pattern {
    let [before, behind] = dialect.parameter;
    let name = Pattern::Until(Body::Regex("[^<>\\s\"']{1,64}".to_owned()), End::Text(behind.to_owned()));
    let end = dialect.parameter_end.to_owned();
    let value = free(if dialect.lines { End::Line(end) } else { End::Text(end) });
    Pattern::Any(Box::new(Pattern::All(vec![Pattern::text(before), name, value, Pattern::text("\n")])))
}
