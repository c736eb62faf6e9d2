//! Servers of models with vision towers: what they answer about a file is what the reference interpreter
//! computes of the rows that transformers' processor makes of it. The models are those of the goldens
//! (`vision.rs`), with a tokenizer and a chat template that tests make up.

use monomorph_compiler::graph;
use monomorph_compiler::import::{self, Seen};
use monomorph_compiler::reference::{
    Cache, Features, Fed, Grid, ImageSpan, Interpreter, Logits, grid_positions,
};
use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{BuildOptions, Compute, Target, Vision, VisionFamily};
use monomorph_tests::server::{Serving, build_with, post, stats};
use monomorph_tests::{emulated, fixtures, root};
use monomorph_vision::{Family, FileLimits, ImageFile, Levels, VisionSpec};
use monomorph_weights::Checkpoint;
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Largest difference of a log-probability: both compute in f32.
const BOUND: f32 = 2e-3;
/// Tokens of an answer.
const ANSWER: usize = 6;
/// Most tokens of an image, which the servers are told: the contexts are small.
const MOST: u32 = 12;

/// Imports the config of a golden into a targets directory, for this hardware.
fn import_into(targets: &Path, hardware: &str, name: &str) -> Target {
    let directory = fixtures().join("towers").join(name);
    let config = fs::read_to_string(directory.join("config.json")).expect("a golden has a config");
    let seen = Seen::read(&directory.join("f32")).expect("checkpoints are sound");
    let imported = import::import(&config, name, Compute::F32, &seen);
    let imported = imported.unwrap_or_else(|error| panic!("{name}: {error}"));
    let model = targets.join("models").join(name);
    fs::create_dir_all(&model).expect("a temporary directory is writable");
    let vision = imported.vision_toml.expect("its config has a tower");
    let files = [("MODEL.toml".to_owned(), imported.model_toml), ("VISION.toml".to_owned(), vision)];
    for (file, text) in files.into_iter().chain(imported.quants) {
        fs::write(model.join(file), text).expect("a temporary directory is writable");
    }
    let search = [targets.to_owned(), root().join("targets")];
    spec::load_with(&search, &format!("{hardware}/{name}/f32"), &options())
        .unwrap_or_else(|error| panic!("{error}"))
}

fn options() -> BuildOptions {
    BuildOptions { vision: true, ..BuildOptions::default() }
}

/// What transformers' processor of such a model does.
#[allow(clippy::excessive_precision, reason = "as published")]
fn processor(vision: &Vision) -> VisionSpec {
    let image = vision.tokens.image;
    let (levels, family) = match vision.family {
        VisionFamily::Qwen { .. } => (
            Levels::Normalised { mean: [0.5; 3], deviation: [0.5; 3] },
            Family::Qwen { least_pixels: 65_536, most_pixels: 16_777_216, most_ratio: 200, frames: 2, image },
        ),
        VisionFamily::Gemma { .. } => (
            Levels::Signed,
            Family::Gemma {
                tokens: 280,
                budgets: &[70, 140, 280, 560, 1120],
                begin: vision.tokens.start.expect("an id"),
                image,
                end: vision.tokens.end.expect("an id"),
            },
        ),
        VisionFamily::Pixtral { .. } => (
            Levels::Normalised {
                mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
                deviation: [0.268_629_54, 0.261_302_58, 0.275_777_11],
            },
            Family::Pixtral {
                longest: 1540,
                image,
                row_end: vision.tokens.row_end.expect("an id"),
                end: vision.tokens.end.expect("an id"),
            },
        ),
    };
    VisionSpec { patch: vision.patch as u32, merge: vision.merge as u32, levels, family }
}

/// Copies a golden's weights, with a tokenizer of one character a token, of longer words behind the
/// printable ones, and of names where the ids are those of images.
fn write_checkpoint(name: &str, target: &Target, directory: &Path) {
    let ids = target.tower.as_ref().expect("it has a tower").tokens;
    let named = [(Some(ids.image), "image"), (ids.start, "start"), (ids.end, "end"), (ids.row_end, "row")];
    let named: Vec<(u32, String)> =
        named.into_iter().filter_map(|(id, name)| Some((id?, format!("<|{name}|>")))).collect();
    let text = |id: u32| match char::from_u32(u32::from('!') + id).filter(|it| *it <= '~') {
        Some(character) => character.to_string(),
        None => format!("word{id}"),
    };
    let token = |id: u32| match named.iter().find(|(other, _)| *other == id) {
        Some((_, name)) => name.clone(),
        None => text(id),
    };
    let vocabulary: Map<String, Value> =
        (0..target.model.vocabulary as u32).map(|id| (token(id), id.into())).collect();
    let added = named.iter().map(|(id, name)| {
        json!({
            "id": id, "content": name, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false,
        })
    });
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null, "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary, "merges": [],
        },
    });
    // Of Qwen the template writes what stands around an image; of the others that belongs to the image.
    let image = match processor(target.tower.as_ref().expect("it has one")).family {
        Family::Qwen { .. } => "<|start|><|image|><|end|>",
        Family::Gemma { .. } | Family::Pixtral { .. } => "<|image|>",
    };
    let template = format!(
        "{{%- for message in messages %}}{{%- if message.content is string %}}{{{{ message.content }}}}{{%- else %}}\
         {{%- for part in message.content %}}\
         {{%- if part.type == 'image' %}}{{{{ '{image}' }}}}{{%- else %}}{{{{ part.text }}}}{{%- endif %}}\
         {{%- endfor %}}{{%- endif %}}{{%- endfor %}}"
    );
    let config = json!({"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template});
    let write = |file: &str, text: String| fs::write(directory.join(file), text).expect("it is writable");
    write("tokenizer.json", tokenizer.to_string());
    write("tokenizer_config.json", config.to_string());
    let file = "model.safetensors";
    fs::copy(fixtures().join("towers").join(name).join("f32").join(file), directory.join(file))
        .expect("it is writable");
}

/// A text, or the name of an image of the fixtures.
#[derive(Clone, Copy, Debug)]
enum Part {
    Text(&'static str),
    Image(&'static str),
}

use Part::{Image, Text};

fn file(name: &str) -> Vec<u8> {
    fs::read(fixtures().join("vision/images").join(name)).expect("a fixture")
}

fn body(parts: &[Part]) -> Value {
    let part = |part: &Part| match part {
        Text(text) => json!({"type": "text", "text": text}),
        Image(name) => {
            let url = format!("data:image/png;base64,{}", base64(&file(name)));
            json!({"type": "image_url", "image_url": {"url": url}})
        }
    };
    json!({"messages": [{"role": "user", "content": parts.iter().map(part).collect::<Vec<_>>()}]})
}

/// RFC 4648, with its padding.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let of = |three: &[u8]| {
        let word = (0..3).fold(0u32, |word, at| word << 8 | u32::from(three.get(at).copied().unwrap_or(0)));
        let letter = move |at: usize| char::from(LETTERS[(word >> (18 - 6 * at)) as usize & 63]);
        let written = three.len() + 1;
        (0..4).map(move |at| if at < written { letter(at) } else { '=' }).collect::<String>()
    };
    bytes.chunks(3).map(of).collect()
}

/// Ids of an answer, and their log-probabilities.
type Answer = (Vec<u32>, Vec<f32>);

fn asked(address: &str, path: &str, body: &Value) -> Value {
    let (status, text) = post(address, path, &body.to_string()).expect("the server answers");
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).expect("JSON")
}

fn served(serving: &Serving, parts: &[Part]) -> Answer {
    let mut body = body(parts);
    for (field, value) in [
        ("max_tokens", json!(ANSWER)),
        ("temperature", json!(0)),
        ("logprobs", json!(true)),
        ("ignore_eos", json!(true)),
        ("return_token_ids", json!(true)),
    ] {
        body[field] = value;
    }
    let choice = &asked(&serving.address, "/v1/chat/completions", &body)["choices"][0];
    let ids = serde_json::from_value(choice["token_ids"].clone()).expect("ids");
    let told = choice["logprobs"]["content"].as_array().expect("log-probabilities");
    (ids, told.iter().map(|one| one["logprob"].as_f64().expect("a number") as f32).collect())
}

/// What the interpreter answers to a prompt of these tokens with these images.
fn computed(interpreter: &Interpreter, vision: &Vision, prompt: &[u32], images: &[&str]) -> Answer {
    let processor = processor(vision);
    let (mut pixels, mut grids, mut rows) = (Vec::new(), Vec::new(), 0);
    for name in images {
        let bytes = file(name);
        let opened = ImageFile::open(&bytes, &FileLimits::DEFAULT).expect("an image");
        let plan = processor.plan(opened.size(), MOST).expect("of a size");
        pixels.extend(processor.prepare(&opened, &plan).expect("it can be decoded"));
        let [patch_rows, columns] = [plan.patches.rows, plan.patches.columns].map(|side| side as usize);
        grids.push(Grid { frames: 1, rows: patch_rows, columns });
        rows += plan.merged.cells() as usize;
    }
    let image = vision.tokens.image;
    assert_eq!(prompt.iter().filter(|id| **id == image).count(), rows, "{prompt:?}");
    let features = match images {
        [] => Features::default(),
        _ => interpreter.see(vision, &pixels, &grids, &mut |_, _, _, _| {}),
    };
    // Of the prompt alone: an id of images that is sampled is text.
    let spans = ImageSpan::all(prompt, image, 0);
    let (mut positions, shift) = match vision.mrope() {
        Some(_) => grid_positions(prompt, image, &grids, vision.merge),
        None => (Vec::new(), 0),
    };
    let (mut tokens, mut logprobs) = (prompt.to_vec(), Vec::new());
    for _ in 0..ANSWER {
        let fed = Fed::with_images(&tokens, &positions, &spans, &features);
        let row = interpreter.forward_fed(&fed, &mut Cache::default(), Logits::Last).logits;
        let (id, most) =
            (0..).zip(&row).fold(
                (0, f32::NEG_INFINITY),
                |best, (id, logit)| {
                    if *logit > best.1 { (id, *logit) } else { best }
                },
            );
        let sum: f32 = row.iter().map(|logit| (logit - most).exp()).sum();
        if vision.mrope().is_some() {
            positions.push([(tokens.len() as i64 + shift) as u32; 3]);
        }
        tokens.push(id);
        logprobs.push(-sum.ln());
    }
    (tokens.split_off(prompt.len()), logprobs)
}

#[test]
fn answers_about_images_are_those_of_the_interpreter() {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    for name in ["qwen35", "qwen3-vl", "gemma4", "pixtral"] {
        let target = import_into(targets.path(), "cpu", name);
        let server = build_with(Some(targets.path()), &format!("cpu/{name}/f32"), &options());
        answers(name, &target, Command::new(server));
    }
}

/// Servers of CUDA devices on the emulated card, whose products are f32 too: kernels, chunks, a cache of rows
/// and of prefixes, and steps behind images.
#[test]
fn answers_of_emulated_cards_are_those_of_the_interpreter() {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    let hardware = emulated::hardware(targets.path(), "h200", Some(emulated::FEW));
    for name in ["qwen35", "gemma4"] {
        let target = import_into(targets.path(), &hardware, name);
        let server = emulated::build_up_to(&target, 1);
        answers(name, &target, server.command());
    }
}

/// Asks a server of a golden about files, and compares its answers with the interpreter's.
fn answers(name: &str, target: &Target, server: Command) {
    let vision = target.tower.as_ref().expect("it has a tower");
    let weights = tempfile::tempdir().expect("temporary directories can be made");
    write_checkpoint(name, target, weights.path());
    let most = MOST.to_string();
    let flags = ["--threads", "2", "--context", "256", "--image-max-tokens", &most, "--image-memory", "64"];
    let serving = Serving::start_command(server, weights.path(), &flags);
    let graph = graph::build_with_vision(&target.model, &target.quant, vision);
    let checkpoint =
        Checkpoint::open(&fixtures().join("towers").join(name).join("f32")).expect("a checkpoint");
    let interpreter = Interpreter::new(&graph, &target.quant, &checkpoint).expect("its tensors fit");
    let mut answers: Vec<Answer> = Vec::new();
    for parts in [
        &[Image("odd.png"), Text("AB8")][..],
        &[Text("AB8"), Image("photo.png")],
        &[Text("A"), Image("pixel.png"), Text("B"), Image("gray-16.png"), Image("odd.png"), Text("8")],
        &[Text("AB8")],
        // Of one size.
        &[Text("AB8"), Image("noise.png"), Text("X")],
        &[Text("AB8"), Image("exact.png"), Text("X")],
    ] {
        let prompt = asked(&serving.address, "/tokenize", &body(parts));
        let prompt: Vec<u32> = serde_json::from_value(prompt["tokens"].clone()).expect("ids");
        let images: Vec<&str> =
            parts.iter().filter_map(|part| if let Image(name) = part { Some(*name) } else { None }).collect();
        let expected = computed(&interpreter, vision, &prompt, &images);
        let found = served(&serving, parts);
        assert_eq!(found.0, expected.0, "{name} {parts:?}");
        let apart = found.1.iter().zip(&expected.1).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        println!("{name} {parts:?}: {} tokens, {apart:.1e}", prompt.len());
        assert!(apart <= BOUND, "{name} {parts:?}: {apart:e}");
        // A second time what is kept of the prompt and of its images answers, to the bit.
        assert_eq!(served(&serving, parts), found, "{name} {parts:?}");
        assert!(!answers.contains(&found), "{name} {parts:?}: as if it had not been seen");
        answers.push(found);
    }
    let stats = stats(&serving.address);
    assert!(stats["images_seen"].as_u64() >= Some(6), "{stats}");
}
