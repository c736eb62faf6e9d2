//! Tool calls as patterns that constrain an answer, in each format that `monomorph_text` reads.

mod gemma;
mod parameters;
#[cfg(test)]
mod tests;
mod xml;

use crate::answer::reading::Controls;
use monomorph_grammar::{
    Body, Constraint, End, GrammarError, Grammars, Opener, Openers, Pattern, Schema, Source,
};
use monomorph_text::{ToolFormat, ToolSet};
use serde_json::Value;
use std::sync::Arc;

/// How a model writes calls: a format, and its tags that are control tokens.
#[derive(Clone, Debug)]
pub(crate) struct Form {
    pub(crate) format: ToolFormat,
    pub(crate) controls: Controls,
}

/// A tool that may be called.
#[derive(Clone, Debug)]
pub(crate) struct Tool {
    /// The function's name.
    pub(crate) name: String,
    /// The schema of its arguments.
    pub(crate) schema: Value,
    /// Whether a schema that cannot be enforced in full is refused.
    pub(crate) strict: bool,
    /// The path of the schema in the request.
    pub(crate) path: String,
}

/// The calls that an answer may contain.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) form: Form,
    pub(crate) tools: Vec<Tool>,
    /// The types of the parameters, as they are read.
    pub(crate) set: Arc<ToolSet>,
    /// Whether the answer must be a call.
    pub(crate) required: bool,
    /// Whether at most one call is allowed.
    pub(crate) one: bool,
}

/// Paths of the parts of tools' schemas that do not constrain arguments.
pub(crate) type Loose = Vec<String>;

/// A tool with the constraint of its arguments.
struct ConstrainedTool<'a> {
    name: &'a str,
    schema: Schema,
    set: &'a ToolSet,
}

impl Form {
    /// The tags that begin calls.
    pub(crate) fn openers(&self) -> Vec<Opener<'static>> {
        let opener = |text: &&'static str| Opener { text, token: self.control(text) };
        self.format.openers().iter().map(opener).collect()
    }

    fn control(&self, tag: &str) -> Option<u32> {
        self.controls.iter().find(|(_, name)| *name == tag).map(|(id, _)| *id)
    }

    fn tag(&self, tag: &str) -> Pattern {
        self.control(tag).map_or_else(|| Pattern::text(tag), Pattern::Token)
    }

    /// A tag behind the first, which a model may spell out as it may the first one.
    fn inner(&self, tag: &str) -> Pattern {
        match self.control(tag) {
            None => Pattern::text(tag),
            Some(id) => Pattern::OneOf(vec![Pattern::Token(id), Pattern::text(tag)]),
        }
    }

    /// What ends a text that this tag follows.
    fn end(&self, tag: &str) -> End {
        let name = tag.to_owned();
        match self.control(tag) {
            None => End::Text(name),
            Some(id) => End::Token(id, name),
        }
    }

    /// One call, or as many as the format has between one pair of tags; behind each of the tags that may
    /// begin it.
    fn blocks(&self, tools: &[ConstrainedTool], one: bool) -> Vec<Pattern> {
        let text = |text: &str| Pattern::text(text);
        // Templates have it; not all models.
        let line = || Pattern::Maybe(Box::new(Pattern::text("\n")));
        match self.format {
            ToolFormat::Hermes => {
                let call = json_calls(tools, "arguments");
                let (open, close) = (self.tag("<tool_call>"), self.inner("</tool_call>"));
                vec![Pattern::All(vec![open, line(), call, line(), close])]
            }
            ToolFormat::QwenXml => {
                let functions = || xml::calls(&xml::QWEN, tools);
                let (open, close) = (self.tag("<tool_call>"), self.inner("</tool_call>"));
                vec![Pattern::All(vec![open, line(), functions(), line(), close]), functions()]
            }
            ToolFormat::MiniMax => {
                let calls = several(xml::calls(&xml::MINIMAX, tools), "\n", one);
                let (open, close) = (self.tag("<minimax:tool_call>"), self.inner("</minimax:tool_call>"));
                vec![Pattern::All(vec![open, line(), calls, line(), close])]
            }
            ToolFormat::Mistral => {
                let open = self.tag("[TOOL_CALLS]");
                if self.control("[ARGS]").is_none() {
                    let calls = several(json_calls(tools, "arguments"), ", ", one);
                    return vec![Pattern::All(vec![open, text("["), calls, text("]")])];
                }
                let id = Pattern::Source(Source::Regex("[a-zA-Z0-9]{9}".to_owned()));
                let id = Pattern::Maybe(Box::new(Pattern::All(vec![self.inner("[CALL_ID]"), id])));
                let id = if self.control("[CALL_ID]").is_some() { id } else { Pattern::All(Vec::new()) };
                let call = |tool: &ConstrainedTool| {
                    Pattern::All(vec![text(tool.name), id.clone(), self.inner("[ARGS]"), json(tool)])
                };
                vec![Pattern::All(vec![open, Pattern::OneOf(tools.iter().map(call).collect())])]
            }
            ToolFormat::Gemma => {
                let call = |tool: &ConstrainedTool| {
                    let arguments = gemma::value(self, &tool.schema, tool.schema.value(), 0);
                    Pattern::All(vec![text(&format!("call:{}", tool.name)), arguments])
                };
                let calls = Pattern::OneOf(tools.iter().map(call).collect());
                vec![Pattern::All(vec![self.tag("<|tool_call>"), calls, self.inner("<tool_call|>")])]
            }
            ToolFormat::BareJson => {
                let calls = || json_calls(tools, "parameters");
                let nested = Pattern::All(vec![text("{\"function\": "), calls(), text("}")]);
                vec![calls(), nested]
            }
        }
    }

    /// What stands between two blocks.
    fn between(&self) -> &'static str {
        match self.format {
            ToolFormat::Hermes | ToolFormat::QwenXml | ToolFormat::MiniMax => "\n",
            ToolFormat::BareJson => "; ",
            ToolFormat::Mistral | ToolFormat::Gemma => "",
        }
    }

    /// Calls and nothing else, one or more.
    fn required(&self, tools: &[ConstrainedTool], one: bool) -> Pattern {
        several(self.blocks(tools, one).remove(0), self.between(), one)
    }

    /// Any number of calls, with nothing between them: what stands there is no part of it.
    fn any(&self, tools: &[ConstrainedTool]) -> Pattern {
        Pattern::Any(Box::new(Pattern::OneOf(self.blocks(tools, false))))
    }

    /// Whether arguments are written as JSON, so that a schema can be enforced in full.
    fn is_json(&self) -> bool {
        !matches!(self.format, ToolFormat::QwenXml | ToolFormat::MiniMax)
    }
}

/// One or more of these.
fn several(call: Pattern, between: &str, one: bool) -> Pattern {
    if one { call } else { Pattern::Some(Box::new(call), between.to_owned()) }
}

fn json(tool: &ConstrainedTool) -> Pattern {
    Pattern::Json(tool.schema.clone())
}

/// A call as an object.
fn json_calls(tools: &[ConstrainedTool], arguments: &str) -> Pattern {
    let call = |tool: &ConstrainedTool| {
        let begin = format!("{{\"name\": \"{}\", \"{arguments}\": ", tool.name);
        Pattern::All(vec![Pattern::text(begin), json(tool), Pattern::text("}")])
    };
    Pattern::OneOf(tools.iter().map(call).collect())
}

impl Wanted {
    /// Whether the arguments of some are strict.
    pub(crate) fn is_strict(&self) -> bool {
        self.tools.iter().any(|tool| tool.strict)
    }

    /// Whether calls that need not be can be told from all else in the answer.
    pub(crate) fn has_tags(&self) -> bool {
        self.form.format != ToolFormat::BareJson
    }

    /// Everything that [`Self::compile`] depends on but the form of calls, which is fixed. As text, because
    /// equal values may have their members in another order.
    pub(crate) fn key(&self) -> String {
        let mut names: Vec<_> = self.set.names().collect();
        names.sort_unstable();
        format!("{:?} {names:?} {} {}", self.tools, self.required, self.one)
    }

    /// The answer's constraint, beside a format of the rest of it, and the parts of schemas left out.
    ///
    /// # Errors
    /// When a strict tool's schema cannot be enforced, by its path, or the grammar as a whole cannot be used.
    pub(crate) fn compile(
        &self,
        grammars: &Grammars,
        openers: &Arc<Openers>,
        format: Option<&Source>,
    ) -> Result<(Constraint, Loose), GrammarError> {
        let mut loose = Loose::new();
        let mut schemas = Vec::new();
        for tool in &self.tools {
            schemas.push(self.schema(tool, &mut loose)?);
        }
        let pattern = |schemas: &[Schema]| {
            let held = self.tools.iter().zip(schemas);
            let held: Vec<ConstrainedTool> =
                held.map(|(tool, schema)| self.constrained(tool, schema)).collect();
            match format.filter(|_| !self.required) {
                None if self.required => self.form.required(&held, self.one),
                None => self.form.any(&held),
                Some(format) => {
                    let calls = self.form.required(&held, self.one);
                    Pattern::OneOf(vec![calls, Pattern::Source(format.clone())])
                }
            }
        };
        let compiled = match grammars.compile_pattern(&pattern(&schemas)) {
            Ok(compiled) => compiled,
            Err(error) if grammars.is_late() => return Err(error),
            Err(error) => {
                self.find_fault(grammars, &error, &mut schemas, &mut loose)?;
                grammars.compile_pattern(&pattern(&schemas))?
            }
        };
        let free = !self.required && format.is_none();
        let watching = if free && !self.has_tags() {
            compiled.watching_names(openers, &self.set.names().map(str::to_owned).collect())
        } else {
            compiled.watching(openers, free)
        };
        Ok((watching, loose))
    }

    fn constrained<'a>(&'a self, tool: &'a Tool, schema: &Schema) -> ConstrainedTool<'a> {
        ConstrainedTool { name: &tool.name, schema: schema.clone(), set: &self.set }
    }

    /// The part of a tool's schema that constrains its arguments.
    fn schema(&self, tool: &Tool, loose: &mut Loose) -> Result<Schema, GrammarError> {
        let at = |error: GrammarError| GrammarError { path: format!("{}{}", tool.path, error.path), ..error };
        let closed = tool.strict.then(|| Schema::closed(&tool.schema));
        let (schema, mut left_out) = Schema::relaxed(closed.as_ref().unwrap_or(&tool.schema));
        if !self.form.is_json() {
            left_out.extend(parameters::not_held(&schema, &self.set, &tool.name));
        }
        match left_out.into_iter().next() {
            Some(error) if tool.strict => Err(at(error)),
            first => {
                loose.extend(first.map(|error| at(error).path));
                Ok(schema)
            }
        }
    }

    /// Finds the schemas that the library cannot compile, and lets their tools take any object.
    fn find_fault(
        &self,
        grammars: &Grammars,
        error: &GrammarError,
        schemas: &mut [Schema],
        loose: &mut Loose,
    ) -> Result<(), GrammarError> {
        let mut found = false;
        for (tool, schema) in self.tools.iter().zip(&mut *schemas) {
            let alone = self.form.required(&[self.constrained(tool, schema)], true);
            let Err(error) = grammars.compile_pattern(&alone) else { continue };
            if grammars.is_late() {
                return Err(error);
            }
            if tool.strict {
                // Of the schema alone it is known where it is at fault.
                let alone = grammars.compile(&Source::JsonSchema(Schema::closed(&tool.schema)));
                let error = alone.err().unwrap_or(error);
                return Err(GrammarError { path: format!("{}{}", tool.path, error.path), ..error });
            }
            found = true;
            loose.push(tool.path.clone());
            *schema = Schema::any_object();
        }
        if found || self.is_strict() {
            return if found { Ok(()) } else { Err(error.clone()) };
        }
        // All of them together are too much.
        loose.clear();
        loose.extend(self.tools.iter().map(|tool| tool.path.clone()));
        schemas.fill(Schema::any_object());
        Ok(())
    }
}

/// Text up to a tag, whatever it is.
fn free(end: End) -> Pattern {
    Pattern::Until(Body::Free(0, None), end)
}
