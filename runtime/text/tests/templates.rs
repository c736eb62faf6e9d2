//! Chat templates against Jinja2 in transformers' configuration: `templates.py` made the expected texts.

use monomorph_text::{Chat, ChatEnd, ChatTemplate, TextError, Tokenizer};
use serde::Deserialize;
use serde_json::{Map, Value, json};

mod support;

#[derive(Deserialize)]
struct Case {
    template: String,
    chat: String,
    messages: Vec<Value>,
    extra: Map<String, Value>,
    prompt: bool,
    text: Option<String>,
    error: Option<String>,
}

fn tokenizer() -> Tokenizer {
    support::tokenizer(support::vocabulary())
}

fn source(name: &str) -> &'static str {
    match name {
        "alternating.jinja" => include_str!("templates/alternating.jinja"),
        "python.jinja" => include_str!("templates/python.jinja"),
        "thinking-tools.jinja" => include_str!("templates/thinking-tools.jinja"),
        other => panic!("no template {other}"),
    }
}

#[test]
fn equal_to_jinja2() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("templates.json")).unwrap();
    let tokenizer = tokenizer();
    let mut wrong = 0;
    for case in &cases {
        let template = ChatTemplate::from_source(source(&case.template), &tokenizer).unwrap();
        let end = if case.prompt { ChatEnd::Answer } else { ChatEnd::Message };
        let chat = Chat { messages: &case.messages, end, extra: &case.extra };
        let right = match (template.render(&chat), &case.text, &case.error) {
            (Ok(found), Some(expected), None) if found == *expected => continue,
            (Err(TextError::Template { line: Some(_), message }), None, Some(expected))
                if message == *expected =>
            {
                continue;
            }
            (found, _, _) => found,
        };
        wrong += 1;
        eprintln!("{} {}:\n expected {:?}\n found    {right:?}", case.template, case.chat, case.text);
    }
    assert_eq!(wrong, 0, "of {} cases", cases.len());
}

#[test]
fn an_answer_goes_on_with_the_last_content() {
    let tokenizer = tokenizer();
    let begun = "It is a \u{fdd1} place, \n";
    let messages =
        [json!({"role": "user", "content": "\u{fdd1}?"}), json!({"role": "assistant", "content": begun})];
    for name in ["alternating.jinja", "thinking-tools.jinja"] {
        let template = ChatTemplate::from_source(source(name), &tokenizer).unwrap();
        let render = |messages: &[Value], end| {
            template
                .render(&Chat { messages, end, extra: &Map::new() })
                .unwrap_or_else(|error| panic!("{name}: {error}"))
        };
        let [whole, found] = [ChatEnd::Message, ChatEnd::Content].map(|end| render(&messages, end));
        let (before, _) = whole.rsplit_once(begun.trim_end()).expect("the template writes it");
        assert_eq!(found, format!("{before}{begun}"), "{name}");
    }
    let deaf = ChatTemplate::from_source("{{ messages[0].content }}", &tokenizer).unwrap();
    let error = |messages: &[Value]| {
        let chat = Chat { messages, end: ChatEnd::Content, extra: &Map::new() };
        deaf.render(&chat).expect_err("there is nothing to go on with").to_string()
    };
    let unheard = [json!({"role": "user", "content": "Hi"}), json!({"role": "assistant", "content": "So"})];
    assert!(error(&unheard).contains("does not write the text of the last message"), "{}", error(&unheard));
    assert!(error(&[json!({"role": "assistant"})]).contains("no text to go on with"));
    assert!(error(&[]).contains("no text to go on with"));
}

#[test]
fn errors_name_the_line() {
    let tokenizer = tokenizer();
    let line = |error: TextError| match error {
        TextError::Template { line, message } => (line, message),
        other => panic!("{other}"),
    };
    let (at, _) = line(ChatTemplate::from_source("a\n{% if x %}\n{% endfor %}", &tokenizer).unwrap_err());
    assert_eq!(at, Some(3));

    let template = ChatTemplate::from_source(
        "{{ bos_token }}\n\n{{ raise_exception('no ' ~ messages[0].role) }}",
        &tokenizer,
    )
    .unwrap();
    let messages = [json!({"role": "tool"})];
    let chat = Chat { messages: &messages, end: ChatEnd::Message, extra: &Map::new() };
    let error = template.render(&chat).unwrap_err();
    assert_eq!(error.to_string(), "chat template, line 3: no tool");
}

#[test]
fn a_template_cannot_run_forever() {
    let source = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
    let template = ChatTemplate::from_source(source, &tokenizer()).unwrap();
    let chat = Chat { messages: &[], end: ChatEnd::Message, extra: &Map::new() };
    assert!(matches!(template.render(&chat), Err(TextError::Template { .. })));
}

#[test]
fn strftime_now_writes_the_date() {
    let template = ChatTemplate::from_source("{{ strftime_now('%d %b %Y|%-d') }}", &tokenizer()).unwrap();
    let chat = Chat { messages: &[], end: ChatEnd::Message, extra: &Map::new() };
    let text = template.render(&chat).unwrap();
    let (date, day) = text.split_once('|').unwrap();
    assert_eq!(date.split(' ').next().unwrap().trim_start_matches('0'), day);
    assert_eq!(date.len(), "21 Nov 2026".len());
}
