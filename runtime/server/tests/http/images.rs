//! Images in conversations, to a model that tells what it sees.

use crate::client::Response;
use crate::clock;
use crate::hostile::{Broken, Decoded, Either, TooLarge, Unsupported, files, fixture};
use crate::process::{Server, command_as};
use crate::scripted::seeing::{IMAGE, NAME, hash, write_seeing_checkpoint};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};
use monomorph_engine::scripted::images::{of_row, shifted};
use monomorph_vision::{Family, FileLimits, ImageFile, Levels, Positions, Span, VisionSpec};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

/// The processor of the model.
const PROCESSOR: VisionSpec = VisionSpec {
    patch: 2,
    merge: 2,
    levels: Levels::Normalised { mean: [0.5; 3], deviation: [0.5; 3] },
    family: Family::Qwen {
        least_pixels: 65_536,
        most_pixels: 16_777_216,
        most_ratio: 200,
        frames: 2,
        image: IMAGE,
    },
};
/// Most tokens of an image.
const MOST: u32 = 64;

/// A part of a user's message.
#[derive(Clone)]
enum Part {
    Text(&'static str),
    Image(Vec<u8>),
}

use Part::{Image, Text};

fn data_url(file: &[u8]) -> String {
    format!("data:image/png;base64,{}", STANDARD.encode(file))
}

fn chat_part(part: &Part) -> Value {
    match part {
        Text(text) => json!({"type": "text", "text": text}),
        Image(file) => json!({"type": "image_url", "image_url": {"url": data_url(file)}}),
    }
}

fn response_part(part: &Part) -> Value {
    match part {
        Text(text) => json!({"type": "input_text", "text": text}),
        Image(file) => json!({"type": "input_image", "image_url": data_url(file)}),
    }
}

fn block(part: &Part) -> Value {
    match part {
        Text(text) => json!({"type": "text", "text": text}),
        Image(file) => {
            let data = STANDARD.encode(file);
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}})
        }
    }
}

fn said_by_user(parts: &[Part], of: fn(&Part) -> Value) -> Value {
    json!([{"role": "user", "content": parts.iter().map(of).collect::<Vec<_>>()}])
}

fn chat(parts: &[Part]) -> Value {
    json!({"messages": said_by_user(parts, chat_part)})
}

/// What the model has of the prompt of these tokens, whose images are of these files: computed here, from
/// what transformers' processor does with a file.
fn expected(tokens: &[u32], files: &[&[u8]], most: u32) -> String {
    let opened: Vec<ImageFile> =
        files.iter().map(|file| ImageFile::open(file, &FileLimits::DEFAULT).expect("an image")).collect();
    let plans: Vec<_> =
        opened.iter().map(|file| PROCESSOR.plan(file.size(), most).expect("of a size")).collect();
    let starts = (0..tokens.len())
        .filter(|at| tokens[*at] == IMAGE && at.checked_sub(1).is_none_or(|before| tokens[before] != IMAGE));
    let spans: Vec<_> = starts
        .zip(&plans)
        .map(|(start, plan)| (Span { start, tokens: plan.tokens as usize }, plan.merged))
        .collect();
    assert_eq!(spans.len(), files.len(), "{tokens:?}");
    let axes = Positions::new(tokens.len(), &spans).axes;
    let mut cells: Vec<u32> =
        (0..).zip(tokens).map(|(at, id)| shifted(*id, axes[at][0] as i32 - at as i32)).collect();
    let mut text = String::new();
    let mut behind = 0;
    let said = |range: std::ops::Range<usize>| -> String {
        let bytes = tokens[range].iter().filter_map(|id| u8::try_from(*id).ok());
        String::from_utf8(bytes.collect()).expect("texts are UTF-8")
    };
    for ((file, plan), (span, _)) in opened.iter().zip(&plans).zip(&spans) {
        let pixels = PROCESSOR.prepare(file, plan).expect("it can be decoded");
        let range = span.start..span.start + span.tokens;
        assert!(tokens[range.clone()].iter().all(|id| *id == IMAGE), "{tokens:?}");
        for (row, at) in range.clone().enumerate() {
            cells[at] = of_row(IMAGE, at, &pixels, row, axes[at]);
        }
        text += &said(behind..span.start);
        text += &format!("<{} {:08x}>", span.tokens, hash(&cells[range.clone()]));
        behind = range.end;
    }
    format!("{text}{}= {:08x}", said(behind..tokens.len()), hash(&cells))
}

/// The tokens of a chat's prompt.
fn tokens(server: &Server, chat: &Value) -> Vec<u32> {
    let response = server.post("/tokenize", chat);
    assert_eq!(response.status, 200, "{}", response.text());
    serde_json::from_value(response.json()["tokens"].clone()).expect("ids")
}

fn text_of_chat(response: &Response) -> String {
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()["choices"][0]["message"]["content"].as_str().expect("a text").to_owned()
}

/// The data of a stream's events, their names left out.
fn streamed(server: &Server, path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = true.into();
    let response = server.post(path, &body);
    assert_eq!(response.status, 200, "{}", response.text());
    let data = response.text().lines().filter_map(|line| line.strip_prefix("data: "));
    let events = data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).expect("JSON"));
    events.collect()
}

/// The texts at a path of events, joined.
fn joined(events: &[Value], path: &str) -> String {
    events.iter().filter_map(|event| event.pointer(path)?.as_str()).collect()
}

pub fn every_api() {
    let server = Server::start_seeing(&[]);
    let [odd, photo, wide] = ["odd.png", "photo.png", "one-wide.png"].map(fixture);
    let parts = [
        Text("before "),
        Image(odd.clone()),
        Text(" between "),
        Image(photo.clone()),
        Image(wide.clone()),
        Text(" [[seen]]"),
    ];
    let asked = chat(&parts);
    let tokens = tokens(&server, &asked);
    let seen = expected(&tokens, &[&odd, &photo, &wide], MOST);
    assert!(seen.contains("user\nbefore <") && seen.contains("> between <"), "{seen}");
    // In chats.
    let response = server.post(CHAT, &asked);
    assert_eq!(text_of_chat(&response), seen);
    let usage = &response.json()["usage"];
    assert_eq!(usage["prompt_tokens"], tokens.len());
    let with_usage = json!({"messages": asked["messages"], "stream_options": {"include_usage": true}});
    let events = streamed(&server, CHAT, &with_usage);
    assert_eq!(joined(&events, "/choices/0/delta/content"), seen);
    let usage = events.last().map(|event| event["usage"]["prompt_tokens"].clone());
    assert_eq!(usage, Some(tokens.len().into()));
    let rendered = server.post("/v1/chat/completions/render", &asked).json();
    assert_eq!(rendered["token_ids"], json!(tokens));
    // In responses.
    let input = json!({"input": said_by_user(&parts, response_part)});
    let response = server.post(RESPONSES, &input).json();
    assert_eq!(response["output"][0]["content"][0]["text"], seen.as_str(), "{response}");
    assert_eq!(response["usage"]["input_tokens"], tokens.len());
    let events = streamed(&server, RESPONSES, &input);
    let deltas: Vec<Value> =
        events.into_iter().filter(|event| event["type"] == "response.output_text.delta").collect();
    assert_eq!(joined(&deltas, "/delta"), seen);
    // In Anthropic's messages, whose texts of one message are joined by line ends where they touch.
    let mut body = json!({"messages": said_by_user(&parts, block)});
    let counted = server.post("/v1/messages/count_tokens", &body).json();
    assert_eq!(counted["input_tokens"], tokens.len(), "{counted}");
    body["max_tokens"] = 500.into();
    let message = server.post(MESSAGES, &body).json();
    assert_eq!(message["content"][0]["text"], seen.as_str(), "{message}");
    let usage = &message["usage"];
    let of = |name: &str| usage[name].as_u64().expect("a number");
    assert_eq!(of("input_tokens") + of("cache_read_input_tokens"), tokens.len() as u64);
    assert_eq!(joined(&streamed(&server, MESSAGES, &body), "/delta/text"), seen);
}

/// A PNG of 40 x 40 pixels of its own.
fn coloured(seed: u32) -> Vec<u8> {
    let image =
        image::RgbImage::from_fn(40, 40, |x, y| image::Rgb([x, y, x * y].map(|it| (it * seed) as u8)));
    let mut file = Vec::new();
    PngEncoder::new(&mut file).write_image(&image, 40, 40, ExtendedColorType::Rgb8).expect("written");
    file
}

pub fn known() {
    let server = Server::start_seeing(&[]);
    let [one, another] = [1, 2].map(coloured);
    let seen = || ["images_seen", "images_found"].map(|name| server.stats()[name].as_u64().expect("a count"));
    let cached = |response: &Response| {
        response.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a count")
    };
    let ask = |file: &[u8]| {
        let asked = chat(&[Text("a picture: "), Image(file.to_vec()), Text(" [[seen]]")]);
        let response = server.post(CHAT, &asked);
        assert_eq!(text_of_chat(&response), expected(&tokens(&server, &asked), &[file], MOST));
        response
    };
    let first = ask(&one);
    assert_eq!((seen(), cached(&first)), ([1, 0], 0));
    let tokens_of_one = first.json()["usage"]["prompt_tokens"].as_u64().expect("a count");
    // All of it is in the cache, up to the last whole block, and nothing is seen anew.
    let again = ask(&one);
    assert_eq!(seen(), [1, 0]);
    assert!(cached(&again) + 16 >= tokens_of_one && cached(&again) < tokens_of_one, "{}", cached(&again));
    // Another of the same size has the text before it at most.
    let other = ask(&another);
    assert_eq!(other.json()["usage"]["prompt_tokens"], tokens_of_one, "they are of one size");
    assert!(cached(&other) <= 32, "{} tokens of another image", cached(&other));
    assert_eq!(seen(), [2, 0]);
    // Behind another text it stands elsewhere, and its rows are there.
    let asked = chat(&[Text("what is it? "), Image(one.clone()), Image(one.clone()), Text(" [[seen]]")]);
    let response = server.post(CHAT, &asked);
    let told = expected(&tokens(&server, &asked), &[&one, &one], MOST);
    assert_eq!((text_of_chat(&response), seen()), (told, [2, 2]));
    let metric = |name: &str| server.metric(&format!("monomorph:images_{name}_total"));
    assert_eq!((metric("seen"), metric("found")), (2.0, 2.0));
    server.wait_for("all to end", |stats| stats["running"] == 0);
    assert_eq!(server.metric("monomorph:image_bytes"), 0.0);
}

pub fn details() {
    let server = Server::start_seeing(&["--image-max-tokens", "20"]);
    let photo = fixture("photo.png");
    for (detail, most) in [(None, 20), (Some("auto"), 20), (Some("low"), 20), (Some("original"), MOST)] {
        let mut asked = chat(&[Image(photo.clone()), Text("[[seen]]")]);
        if let Some(detail) = detail {
            asked["messages"][0]["content"][0]["image_url"]["detail"] = detail.into();
        }
        let told = expected(&tokens(&server, &asked), &[&photo], most);
        assert_eq!(text_of_chat(&server.post(CHAT, &asked)), told, "{detail:?}");
    }
}

pub fn conversations() {
    let server = Server::start_seeing(&[]);
    let [odd, pixel] = ["odd.png", "pixel.png"].map(fixture);
    let parts = |of: fn(&Part) -> Value| [of(&Text("it is ")), of(&Image(odd.clone()))];
    // The result of a tool, in the words of each vendor.
    let call = json!({"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}});
    let chats = json!({"messages": [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": "well", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": parts(chat_part)},
        {"role": "user", "content": "[[seen]]"},
    ]});
    let told = expected(&tokens(&server, &chats), &[&odd], MOST);
    assert!(told.contains("tool\nit is <"), "{told}");
    assert_eq!(text_of_chat(&server.post(CHAT, &chats)), told);
    let items = json!({"input": [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": "well"},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": parts(response_part)},
        {"role": "user", "content": "[[seen]]"},
    ]});
    let response = server.post(RESPONSES, &items).json();
    assert_eq!(response["output"][0]["content"][0]["text"], told.as_str(), "{response}");
    let blocks = json!({"max_tokens": 500, "messages": [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [
            {"type": "text", "text": "well"}, {"type": "tool_use", "id": "c", "name": "look", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c", "content": parts(block)},
            {"type": "text", "text": "[[seen]]"},
        ]},
    ]});
    let message = server.post(MESSAGES, &blocks).json();
    assert_eq!(message["content"][0]["text"], told.as_str(), "{message}");
    // A response that is kept has its image, and a later turn another.
    let first = json!({"input": said_by_user(&[Image(odd.clone()), Text("one")], response_part)});
    let first = server.post(RESPONSES, &first).json();
    let second = said_by_user(&[Image(pixel.clone()), Text("[[seen]]")], response_part);
    let second = json!({"previous_response_id": first["id"], "input": second});
    let response = server.post(RESPONSES, &second).json();
    let chats = json!({"messages": [
        {"role": "user", "content": [chat_part(&Image(odd.clone())), chat_part(&Text("one"))]},
        {"role": "assistant", "content": first["output"][0]["content"][0]["text"]},
        {"role": "user", "content": [chat_part(&Image(pixel.clone())), chat_part(&Text("[[seen]]"))]},
    ]});
    let told = expected(&tokens(&server, &chats), &[&odd, &pixel], MOST);
    assert_eq!(response["output"][0]["content"][0]["text"], told.as_str(), "{response}");
    // What is wrong with an image of the request has its place there.
    let broken = said_by_user(&[Text("x"), Image(b"GIF89a".to_vec())], response_part);
    let refused = server.post(RESPONSES, &json!({"previous_response_id": first["id"], "input": broken}));
    let error = &refused.json()["error"];
    assert_eq!((refused.status, &error["param"]), (400, &json!("input[0].content[1].image_url")), "{error}");
}

/// So many images that are none of the others, with an answer that does not end behind them.
fn many(first: usize, count: usize) -> Vec<Part> {
    // What stands behind a picture makes another file of it.
    let file = |at: usize| [&fixture("pixel.png")[..], &at.to_le_bytes()].concat();
    (first..first + count).map(|at| Image(file(at))).chain([Text("[[forever]]")]).collect()
}

pub fn memory() {
    // Of 64 tokens, four patches each of 24 numbers: 24 KiB an image, 42 in all.
    let server = Server::start_seeing(&["--image-memory", "1", "--kv-tokens", "16384"]);
    let bytes = || server.metric("monomorph:image_bytes");
    let mut held = server.connect();
    let mut body = chat(&many(0, 30));
    body["stream"] = true.into();
    held.send("POST", CHAT, &[], body.to_string().as_bytes());
    held.read_until("data: ");
    assert_eq!(bytes(), 30.0 * 24.0 * 1024.0);
    let mut another = chat(&many(100, 30));
    another["max_tokens"] = 1.into();
    for stream in [false, true] {
        another["stream"] = stream.into();
        let refused = server.post(CHAT, &another);
        let error = &refused.json()["error"];
        assert_eq!((refused.status, &error["code"]), (429, &json!("image_memory_full")), "{error}");
        let wait: Option<u32> = refused.header("retry-after").and_then(|seconds| seconds.parse().ok());
        assert!(wait.is_some_and(|seconds| (1..=60).contains(&seconds)), "{wait:?}");
    }
    // Texts and fewer images are answered meanwhile.
    let mut few = chat(&many(200, 12));
    few["max_tokens"] = 1.into();
    assert_eq!(server.post(CHAT, &few).status, 200);
    drop(held);
    server.wait_for("it to end", |stats| stats["running"] == 0);
    let began = Instant::now();
    while bytes() > 0.0 {
        assert!(clock::since(began) < Duration::from_secs(5), "{} bytes are not given back", bytes());
        std::thread::sleep(Duration::from_millis(5));
    }
    another["stream"] = false.into();
    assert_eq!(server.post(CHAT, &another).status, 200);
    // More than there is in all is refused for good, and so is more than the context holds.
    for (count, code, words) in
        [(43, "image_too_large", "--image-memory"), (130, "context_length_exceeded", "context is 8192")]
    {
        let refused = server.post(CHAT, &chat(&many(0, count)));
        let error = &refused.json()["error"];
        assert_eq!((refused.status, &error["code"]), (400, &json!(code)), "{error}");
        assert!(error["message"].as_str().is_some_and(|message| message.contains(words)), "{error}");
        assert_eq!(error["param"], "messages");
    }
    assert_eq!(bytes(), 0.0);
}

pub fn facts() {
    let server = Server::start_seeing(&["--image-max-tokens", "50", "--image-memory", "3"]);
    let info = server.get("/info").json();
    let vision = json!({"family": "qwen", "patch": 2, "merge": 2, "most_tokens": MOST});
    assert_eq!(info["build"]["vision"], vision);
    let images = json!({"most_tokens": MOST, "max_tokens": 50, "memory_bytes": 3 << 20});
    assert_eq!(info["engine"]["images"], images);
    assert!(server.opening.contains("images of 50 tokens, 64 where asked for"), "{}", server.opening);
    let document = server.get("/openapi.json").json();
    assert!(document["components"]["schemas"]["ChatImagePart"].is_object());
    let run = |model: &str, arguments: &[&str]| command_as(model, arguments).output().expect("it runs");
    let printed = run(NAME, &["info"]);
    let text = String::from_utf8_lossy(&printed.stdout).into_owned();
    assert!(text.contains("a token for 4 x 4 pixels, at most 64 an image, as qwen has it"), "{text}");
    // A model without a tower.
    let blind = Server::start(&[]);
    let info = blind.get("/info").json();
    assert_eq!((&info["build"]["vision"], &info["engine"]["images"]), (&Value::Null, &Value::Null));
    assert_eq!(blind.metric("monomorph:images_seen_total"), 0.0);
    for flag in ["--image-max-tokens", "--image-memory", "--image-hosts"] {
        let refused = run("echo", &["serve", "--port", "0", "--weights", "dummy", flag, "9"]);
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{text}");
        assert!(text.contains(&format!("{flag}: this build takes no images")), "{text}");
    }
}

pub fn refusals() {
    let server = Server::start_seeing(&[]);
    let url =
        |url: &str| json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]);
    let at = "messages[0].content[0].image_url.url";
    let pixel = data_url(&fixture("pixel.png"));
    let text = STANDARD.encode("hello, world");
    for (messages, param, code) in [
        (url("https://example.com/a.png"), at, "invalid_image_url"),
        (url("http://127.0.0.1/a.png"), at, "invalid_image_url"),
        (url("file:///etc/passwd"), at, "invalid_image_url"),
        (url("data:image/png,abc"), at, "invalid_image_url"),
        (url(&pixel[..pixel.len() - 1]), at, "invalid_base64_image"),
        (url("data:image/png;base64,@@@@"), at, "invalid_base64_image"),
        (url("data:text/plain;base64,AAAA"), at, "unsupported_image_media_type"),
        (url(&format!("data:image/png;base64,{text}")), at, "unsupported_image_media_type"),
        (url("data:image/png;base64,"), at, "empty_image_file"),
        (
            json!([{"role": "user", "content": [{"type": "image_url"}]}]),
            "messages[0].content[0].image_url",
            "",
        ),
        (
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": pixel}]}]),
            "messages[0].content[0].image_url",
            "",
        ),
        (
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": pixel, "detail": 1}}]}]),
            "messages[0].content[0].image_url.detail",
            "invalid_type",
        ),
        (
            json!([{"role": "system", "content": [{"type": "image_url", "image_url": {"url": pixel}}]}]),
            "messages[0].content[0]",
            "unsupported_parameter",
        ),
    ] {
        for path in [CHAT, "/v1/chat/completions/render", "/tokenize"] {
            let refused = server.post(path, &json!({"messages": messages}));
            let error = &refused.json()["error"];
            assert_eq!((refused.status, &error["param"]), (400, &json!(param)), "{path} {error}");
            assert!(code.is_empty() || error["code"] == code, "{path} {error}");
            let message = error["message"].as_str().expect("a message");
            assert!(message.starts_with(&format!("`{param}`")), "{message}");
            assert!(!message.contains("iVBOR") && !message.contains("passwd"), "it is told again: {message}");
        }
    }
    // Where hosts are allowed, others are not, and none whose address is not public.
    let fetching = Server::start_seeing(&["--image-hosts", "localhost,*.example.com"]);
    for (address, code, why) in [
        ("https://example.com/a.png", "invalid_image_url", "--image-hosts"),
        ("http://a.example.com/a.png", "invalid_image_url", "as `data:image"),
        ("https://localhost/a.png", "failed_to_download_image", "localhost has no public address"),
    ] {
        let block = json!({"type": "image", "source": {"type": "url", "url": address}});
        let items = json!([{"role": "user", "content": [{"type": "input_image", "image_url": address}]}]);
        let anthropic = json!({"max_tokens": 1, "messages": [{"role": "user", "content": [block]}]});
        for (path, body) in [
            (CHAT, json!({"messages": url(address)})),
            ("/v1/chat/completions/render", json!({"messages": url(address)})),
            ("/tokenize", json!({"messages": url(address)})),
            ("/v1/responses", json!({"input": items})),
            ("/v1/messages", anthropic.clone()),
            ("/v1/messages/count_tokens", json!({"messages": anthropic["messages"]})),
        ] {
            let refused = fetching.post(path, &body);
            let error = &refused.json()["error"];
            let message = error["message"].as_str().expect("a message");
            assert_eq!(refused.status, 400, "{path} {error}");
            assert!(path.contains("messages") || error["code"] == code, "{path} {error}");
            assert!(message.contains(why) && !message.contains("a.png"), "{path} {message}");
        }
    }
    // A typed placeholder is text.
    let asked = chat(&[Text("<|image_pad|>"), Image(fixture("pixel.png")), Text("[[seen]]")]);
    let told = text_of_chat(&server.post(CHAT, &asked));
    assert!(told.contains("user\n<|image_pad|><64 "), "{told}");
}

/// Files that lie, through the API: each is refused or seen within a second of the server's work.
pub fn hostile_files() {
    /// What the process may take beside what it has at its start: far below what the files claim.
    const MOST_BYTES: u64 = 200 << 20;
    let server = Server::start_seeing(&[]);
    let before = server.resident_bytes();
    let (mut tried, mut wrong) = (0, Vec::new());
    for (name, file, fate) in files() {
        let asked = chat(&[Text("what? "), Image(file), Text(" [[say I see]]")]);
        let (began, worked) = (Instant::now(), server.worked());
        let response = server.post(CHAT, &asked);
        let (took, worked) = (began.elapsed(), server.worked() - worked);
        tried += 1;
        let body = response.json();
        let (code, message) = (body["error"]["code"].as_str(), body["error"]["message"].as_str());
        let right = match fate {
            Decoded => response.status == 200,
            Either if response.status == 200 => true,
            Either | Broken => response.status == 400 && code == Some("image_parse_error"),
            TooLarge => response.status == 400 && code == Some("image_too_large"),
            Unsupported => response.status == 400 && code == Some("unsupported_image_media_type"),
        };
        let clear = response.status == 200
            || (body["error"]["param"] == "messages[0].content[1].image_url.url"
                && message.is_some_and(|text| text.len() < 600 && text.contains("the image")));
        if !right || !clear {
            wrong.push(format!("{name}, to be {fate:?}: {} {body}", response.status));
        }
        if worked.min(took) > Duration::from_secs(1) {
            wrong.push(format!("{name}: {} ms of work in {} ms", worked.as_millis(), took.as_millis()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(tried >= 60);
    let most = server.most_resident_bytes();
    println!("{tried} files: {} MiB before, at most {} MiB", before >> 20, most >> 20);
    assert!(most < before + MOST_BYTES, "{most} bytes");
    // It goes on.
    assert_eq!(text_of_chat(&server.post(CHAT, &chat(&[Text("[[say still here]]")]))), "still here");
    assert_eq!(server.metric("monomorph:image_bytes"), 0.0);
}

pub fn bench() {
    let weights = tempfile::tempdir().expect("a temporary directory");
    write_seeing_checkpoint(weights.path()).expect("written");
    let path = weights.path().to_str().expect("UTF-8");
    let arguments = ["bench", "--weights", path, "--depth", "16", "--generate", "8", "--repeat", "2"];
    let run = |model: &str, more: &[&str]| {
        let output = command_as(model, &[&arguments[..], more].concat()).output().expect("the verb starts");
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).expect("UTF-8"))
    };
    let (done, said) = run(NAME, &["--images", "64x32,400x300", "--streams", "0", "--json"]);
    assert_eq!(done, Some(0), "{said}");
    let report: Value = serde_json::from_str(&said).expect("one JSON object");
    for (of, size) in report["images"].as_array().expect("by size").iter().zip(["64x32", "400x300"]) {
        assert_eq!(of["size"], size);
        assert!(of["patches"].as_u64() == of["tokens"].as_u64().map(|tokens| 4 * tokens), "{of}");
        assert!(of["tower_ms"].as_f64() > Some(0.0), "{of}");
        assert_eq!(of["samples"].as_array().map(Vec::len), Some(2));
        for (answers, count) in of["answers"].as_array().expect("by images").iter().zip([1, 8]) {
            assert_eq!(answers["images"], count);
            // Each stands between two tokens.
            let tokens = of["tokens"].as_u64().map(|tokens| 16 + count * (tokens + 2));
            assert_eq!(answers["tokens"].as_u64(), tokens);
            for way in ["with_images", "text"] {
                assert!(answers[way]["first_token_ms"].as_f64() > Some(0.0), "{answers}");
                assert!(answers[way]["token_ms"].as_f64() > Some(0.0), "{answers}");
            }
        }
    }
    let (_, said) = run(NAME, &["--images", "64x32", "--streams", "0"]);
    assert!(said.contains("tower, 64x32") && said.contains("8 of them"), "{said}");
    for (model, size, words) in [
        ("", "64x32", "without a vision tower"),
        (NAME, "64x0", "write WIDTHxHEIGHT in pixels"),
        (NAME, "9000x4", "--images 9000x4"),
    ] {
        let (done, said) = run(model, &["--images", size]);
        assert!(done != Some(0) && said.contains(words), "{said}");
    }
}
