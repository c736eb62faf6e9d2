//! `context_management` of a request, and what an answer says of it.

use crate::error::{ApiError, wrong};
use crate::openapi::schema::{any_of, array, of, only, text, whole};
use crate::request::described::described;
use crate::request::editing::{Edit, Edited, Results, Trigger};
use crate::request::fields::{Fields, missing, wrong_type, wrong_word};
use serde_json::{Value, json};

const REASONING: &str = "clear_thinking_20251015";
const RESULTS: &str = "clear_tool_uses_20250919";

/// Anthropic's defaults: from so many tokens on, results of all calls but the last so many go; and reasoning
/// of all turns but the last so many.
const TRIGGER: usize = 100_000;
const KEPT_CALLS: usize = 3;
const KEPT_TURNS: usize = 1;

/// The edits that a request asks for; `None` if it says nothing of them.
pub(super) fn read_edits(fields: &mut Fields) -> Result<Option<Vec<Edit>>, ApiError> {
    let Some(management) = fields.value("context_management") else { return Ok(None) };
    let mut management = Fields::new("context_management", management)?;
    management.of(|| array(of("AnthropicEdit")));
    let edits = management.array("edits")?.unwrap_or_default();
    let at = |index: usize| format!("context_management.edits[{index}]");
    let edits =
        (0..).zip(edits).map(|(index, edit)| read_edit(&at(index), edit)).collect::<Result<_, _>>()?;
    management.finish()?;
    Ok(Some(edits))
}

/// JSON schema of an entry of `edits`.
pub(crate) fn edit_schema() -> Value {
    let samples = [json!({"type": REASONING}), json!({"type": RESULTS})];
    any_of(samples.map(|sample| described("", [sample], |edit| read_edit("", edit))))
}

fn read_edit(path: &str, edit: &Value) -> Result<Edit, ApiError> {
    let mut fields = Fields::new(path, edit)?;
    let edit = match fields.required_tag("type")? {
        REASONING => {
            fields.about(format_args!(
                "Turns with reasoning whose reasoning stays, the last ones: {KEPT_TURNS} without."
            ));
            fields.of(|| any_of([counted(&["thinking_turns"]), only("all")]));
            let keep = match fields.value("keep") {
                Some(Value::String(all)) if all == "all" => usize::MAX,
                keep => read_counted(&fields.path("keep"), keep, &["thinking_turns"])?
                    .map_or(KEPT_TURNS, |it| it.1),
            };
            Edit::Reasoning { keep }
        }
        RESULTS => Edit::Results(read_results(&mut fields)?),
        other => return Err(wrong_word(&fields.path("type"), &[REASONING, RESULTS], Some(other))),
    };
    fields.finish()?;
    Ok(edit)
}

fn read_results(fields: &mut Fields) -> Result<Results, ApiError> {
    const TRIGGERS: [&str; 2] = ["input_tokens", "tool_uses"];
    fields.about(format_args!("What the conversation has more of: {TRIGGER} `input_tokens` without."));
    let trigger = fields.of(|| counted(&TRIGGERS)).value("trigger");
    let trigger = match read_counted(&fields.path("trigger"), trigger, &TRIGGERS)? {
        Some(("tool_uses", calls)) => Trigger::Calls(calls),
        tokens => Trigger::Tokens(tokens.map_or(TRIGGER, |it| it.1)),
    };
    fields.about(format_args!("Calls whose results stay, the last ones: {KEPT_CALLS} without."));
    let keep = fields.of(|| counted(&["tool_uses"])).value("keep");
    let keep = read_counted(&fields.path("keep"), keep, &["tool_uses"])?.map_or(KEPT_CALLS, |it| it.1);
    fields.about("Unless the prompt gets shorter by so many, nothing goes.");
    let at_least = fields.of(|| counted(&["input_tokens"])).value("clear_at_least");
    let at_least = read_counted(&fields.path("clear_at_least"), at_least, &["input_tokens"])?;
    let exclude_at = fields.path("exclude_tools");
    fields.about("Tools whose results stay.").of(|| array(text()));
    let exclude = fields.array("exclude_tools")?.unwrap_or_default().iter().enumerate();
    let name = |(at, name): (usize, &Value)| match name {
        Value::String(name) => Ok(name.clone()),
        other => Err(wrong_type(&format!("{exclude_at}[{at}]"), "a string", other)),
    };
    let exclude = exclude.map(name).collect::<Result<_, _>>()?;
    let arguments = fields.boolean("clear_tool_inputs")?.unwrap_or(false);
    Ok(Results { trigger, keep, at_least: at_least.map_or(0, |it| it.1), exclude, arguments })
}

/// `{"type": one of these, "value": a number}`.
fn read_counted<'a>(
    path: &str,
    value: Option<&Value>,
    kinds: &[&'a str],
) -> Result<Option<(&'a str, usize)>, ApiError> {
    let Some(value) = value else { return Ok(None) };
    let mut fields = Fields::new(path, value)?;
    let found = fields.required_string("type")?;
    let Some(kind) = kinds.iter().find(|kind| **kind == found) else {
        return Err(wrong_word(&fields.path("type"), kinds, Some(found)));
    };
    let at = fields.path("value");
    let count = fields.integer("value", 0..=i64::from(u32::MAX))?.ok_or_else(|| missing(&at))?;
    fields.finish()?;
    let count = usize::try_from(count).map_err(|_| wrong!(at, "is {count}"))?;
    Ok(Some((kind, count)))
}

fn counted(kinds: &[&str]) -> Value {
    let kind = crate::openapi::schema::words(kinds);
    whole(vec![("type", kind), ("value", crate::openapi::schema::integer(0..=i64::from(u32::MAX)))])
}

/// What an answer says of its request's edits.
pub(super) fn applied(edits: &[Edited]) -> Value {
    let one = |edit: &Edited| match edit.reasoning {
        true => {
            json!({"type": REASONING, "cleared_thinking_turns": edit.count, "cleared_input_tokens": edit.tokens})
        }
        false => {
            json!({"type": RESULTS, "cleared_tool_uses": edit.count, "cleared_input_tokens": edit.tokens})
        }
    };
    json!({"applied_edits": edits.iter().map(one).collect::<Vec<_>>()})
}

/// JSON schema of that.
pub(crate) fn applied_schema() -> Value {
    use crate::openapi::schema::count;
    let of = |kind: &str, name: &'static str| {
        whole(vec![("type", only(kind)), (name, count()), ("cleared_input_tokens", count())])
    };
    let one = any_of([of(REASONING, "cleared_thinking_turns"), of(RESULTS, "cleared_tool_uses")]);
    whole(vec![("applied_edits", array(one))])
}
