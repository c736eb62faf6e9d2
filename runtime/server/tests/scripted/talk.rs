//! The scripted model with a model's formats: its answers have tool calls and reasoning in them, and its
//! template shows all there is to a conversation. `[[ids FILE]]` answers with the token ids that the file
//! lists, as JSON.

use super::{Bytes, Loaded, Reply, checkpoint_of};
use monomorph_engine::scripted::{Pipelined, Shape};
use monomorph_model::{ModelSpec, Protocol};
use monomorph_server::{ServeArgs, Start, serve};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

/// Control tokens that are markup of one format or another, and those of text to fill in, from id 259 on.
pub const CONTROLS: [&str; 19] = [
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
    "<|channel>",
    "<channel|>",
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
];

/// Longest sequence.
pub const CONTEXT: usize = 8192;
/// Longest sequence where agents ask, whose instructions alone are a hundred thousand characters.
pub const AGENT: usize = 1 << 18;

/// The dimensions of [`Talk`].
pub struct Talking;

impl Shape for Talking {
    const SPEC: &'static ModelSpec = &ModelSpec {
        target: "cpu/talk/none",
        model: "talk",
        specs: &[],
        commit: None,
        vocabulary: 259 + CONTROLS.len(),
        context: AGENT,
        step_tokens: 512,
        ..*Bytes::SPEC
    };
}

/// The model.
pub type Talk = Loaded<Pipelined<Talking, 2>>;

/// What it says beside what the other one does.
pub fn ids(command: &str) -> Option<Reply> {
    let path = command.strip_prefix("ids ")?;
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    Some(Reply::Ids(serde_json::from_str(&text).expect("a list of ids")))
}

/// Writes a checkpoint directory whose template shows everything it is given.
pub fn write_talking_checkpoint(directory: &Path) -> std::io::Result<()> {
    checkpoint_of(directory, &CONTROLS, TEMPLATE)
}

/// Arguments of the server's `serve`.
#[derive(clap::Parser)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    Serve(Box<ServeArgs>),
}

/// Serves the model as one of these formats, `-` for none, for sequences of so many positions.
pub fn main(
    context: usize,
    tools: &str,
    reasoning: &str,
    arguments: impl IntoIterator<Item = String>,
) -> ExitCode {
    let Verb::Serve(args) = <Cli as clap::Parser>::parse_from(arguments).verb;
    let format = |name: &str| (name != "-").then(|| &*name.to_owned().leak());
    let (tools, reasoning) = (format(tools), format(reasoning));
    let protocol = Protocol { tools, reasoning, ..Talking::SPEC.protocol };
    let spec: &'static ModelSpec = Box::leak(Box::new(ModelSpec { protocol, context, ..*Talking::SPEC }));
    match serve(spec, Start::of::<Talk>(), &args, Instant::now()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {}", failure.message);
            ExitCode::FAILURE
        }
    }
}

const TEMPLATE: &str = r"
{%- if tools %}
{{- '<|im_start|>tools\n' }}
{%- for tool in tools %}{{ (tool | tojson) + '\n' }}{% endfor %}
{{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'system' and not loop.first %}
{{- raise_exception('System message must be at the beginning.') }}
{%- endif %}
{{- '<|im_start|>' + message.role }}
{%- if message.role == 'tool' %}{{ ' ' + message.name + ' ' + message.tool_call_id }}{% endif %}
{{- '\n' }}
{%- if message.reasoning_content %}{{ '(' + message.reasoning_content + ')' }}{% endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{{- '{' + call.function.name + ' ' + call.id }}
{%- for key, value in call.function.arguments | items %}{{ ' ' + key + '=' + (value | tojson) }}{% endfor %}
{{- '}' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- if reasoning_effort is defined %}{{ '{effort ' + reasoning_effort + '}\n' }}{% endif %}
{%- if enable_thinking is defined %}
{%- if enable_thinking %}{{ '<think>\n' }}{% else %}{{ '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}
{%- endif %}";
