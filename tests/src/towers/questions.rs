//! Questions about images that servers of goldens with a tower are asked, and what the reference interpreter
//! answers.

use super::checkpoint::{placeholder, processor, tokens};
use crate::fixtures;
use crate::greedy::top;
use monomorph_compiler::reference::{
    Cache, Features, Fed, Grid, ImageSpan, Interpreter, Logits, grid_positions,
};
use monomorph_compiler::spec::types::Vision;
use monomorph_vision::{FileLimits, ImageFile};
use serde_json::{Value, json};

/// Tokens of an answer.
const ANSWER: usize = 6;
/// Most tokens of an image, which servers are told: the contexts are small.
const MOST: u32 = 12;
/// Flags of `serve`, which say so.
pub const FLAGS: [&str; 6] = ["--context", "256", "--image-max-tokens", "12", "--image-memory", "64"];

/// Largest difference of a log-probability from the interpreter's where both compute in f32.
pub const EXACT: f32 = 2e-3;

/// A part of a message.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// Characters that the tokenizer has.
    Text(&'static str),
    /// An image of the fixtures, by name.
    Image(&'static str),
}

use Part::{Image, Text};

/// What is asked, all with different answers.
pub const QUESTIONS: [&[Part]; 6] = [
    &[Image("odd.png"), Text("AB8")],
    &[Text("AB8"), Image("photo.png")],
    &[Text("A"), Image("pixel.png"), Text("B"), Image("gray-16.png"), Image("odd.png"), Text("8")],
    &[Text("AB8")],
    // Of one size.
    &[Text("AB8"), Image("noise.png"), Text("X")],
    &[Text("AB8"), Image("exact.png"), Text("X")],
];

fn file(name: &str) -> Vec<u8> {
    std::fs::read(fixtures().join("vision/images").join(name)).expect("a fixture")
}

/// The body of a request for a greedy answer with ids and log-probabilities.
pub fn body(parts: &[Part]) -> Value {
    let part = |part: &Part| match part {
        Text(text) => json!({"type": "text", "text": text}),
        Image(name) => {
            let url = format!("data:image/png;base64,{}", base64(&file(name)));
            json!({"type": "image_url", "image_url": {"url": url}})
        }
    };
    json!({
        "messages": [{"role": "user", "content": parts.iter().map(part).collect::<Vec<_>>()}],
        "max_tokens": ANSWER, "temperature": 0, "logprobs": true, "ignore_eos": true, "return_token_ids": true,
    })
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

/// What a question comes to.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// Its tokens, those of its images among them.
    pub ids: Vec<u32>,
    /// Pixels of all images, and the patches of each.
    images: (Vec<f32>, Vec<Grid>),
}

impl Prompt {
    /// Of a model with this tower.
    ///
    /// # Panics
    /// If an image of the fixtures cannot be read.
    pub fn of(vision: &Vision, parts: &[Part]) -> Prompt {
        let processor = processor(vision);
        let (mut template, mut pixels, mut grids, mut plans) = (vec![], vec![], vec![], vec![]);
        for part in parts {
            let name = match part {
                Text(text) => {
                    template.extend(tokens(text));
                    continue;
                }
                Image(name) => name,
            };
            template.extend(placeholder(vision));
            let bytes = file(name);
            let opened = ImageFile::open(&bytes, &FileLimits::DEFAULT).expect("an image");
            let plan = processor.plan(opened.size(), MOST).expect("of a size");
            pixels.extend(processor.prepare(&opened, &plan).expect("it can be decoded"));
            let [rows, columns] = [plan.patches.rows, plan.patches.columns].map(|side| side as usize);
            grids.push(Grid { frames: 1, rows, columns });
            plans.push(plan);
        }
        let ids = processor.expand(&template, &plans).expect("a placeholder an image").ids;
        Prompt { ids, images: (pixels, grids) }
    }

    /// What the interpreter is fed beside the tokens.
    pub fn seen(&self, interpreter: &Interpreter, vision: &Vision) -> Seen {
        let (pixels, grids) = &self.images;
        let features = match grids[..] {
            [] => Features::default(),
            _ => interpreter.see(vision, pixels, grids, &mut |_, _, _, _| {}),
        };
        // Of the prompt alone: an id of images that is sampled is text.
        let spans = ImageSpan::all(&self.ids, vision.tokens.image, 0);
        let (positions, shift) = match vision.mrope() {
            Some(_) => grid_positions(&self.ids, vision.tokens.image, grids, vision.merge),
            None => (Vec::new(), 0),
        };
        Seen { features, spans, positions, shift }
    }
}

/// The images of a prompt as the interpreter is fed them.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Rows of all of them.
    pub features: Features,
    /// The tokens that take these.
    pub spans: Vec<ImageSpan>,
    /// Of all tokens, if positions have three axes.
    pub positions: Vec<[u32; 3]>,
    /// What is added to the index of a token behind them.
    pub shift: i64,
}

/// An answer of the interpreter.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Its tokens.
    pub ids: Vec<u32>,
    /// Their log-probabilities.
    pub logprobs: Vec<f32>,
    /// How far their logits are above the largest other one.
    pub margins: Vec<f32>,
}

/// The ids of a greedy answer of so many tokens.
pub fn answered(interpreter: &Interpreter, vision: &Vision, prompt: &Prompt, count: usize) -> Vec<u32> {
    let Seen { features, spans, positions, shift } = prompt.seen(interpreter, vision);
    let mut cache = Cache::default();
    let fed = Fed::with_images(&prompt.ids, &positions, &spans, &features);
    let mut row = interpreter.forward_fed(&fed, &mut cache, Logits::Last).logits;
    let (mut ids, mut index) = (Vec::new(), prompt.ids.len() as i64);
    loop {
        let id = top(&row).0;
        ids.push(id);
        if ids.len() == count {
            return ids;
        }
        let mut fed = Fed::text(&ids[ids.len() - 1..]);
        let position = [[(index + shift) as u32; 3]];
        fed.positions = if vision.mrope().is_some() { &position } else { &[] };
        row = interpreter.forward_fed(&fed, &mut cache, Logits::Last).logits;
        index += 1;
    }
}

/// What the interpreter answers to a prompt, greedily; or what it says of the tokens of a `given` answer.
pub fn computed(
    interpreter: &Interpreter,
    vision: &Vision,
    prompt: &Prompt,
    given: Option<&[u32]>,
) -> Answer {
    let Seen { features, spans, mut positions, shift } = prompt.seen(interpreter, vision);
    let (mut tokens, mut answer) = (prompt.ids.clone(), Answer::default());
    for at in 0..ANSWER {
        let fed = Fed::with_images(&tokens, &positions, &spans, &features);
        let row = interpreter.forward_fed(&fed, &mut Cache::default(), Logits::Last).logits;
        let id = given.map_or_else(|| top(&row).0, |given| given[at]);
        let logit = row[id as usize];
        let sum: f32 = row.iter().map(|other| (other - logit).exp()).sum();
        let others = (0..).zip(&row).filter(|(other, _)| *other != id).map(|(_, logit)| *logit);
        if vision.mrope().is_some() {
            positions.push([(tokens.len() as i64 + shift) as u32; 3]);
        }
        tokens.push(id);
        answer.ids.push(id);
        answer.logprobs.push(-sum.ln());
        answer.margins.push(logit - others.fold(f32::NEG_INFINITY, f32::max));
    }
    answer
}
