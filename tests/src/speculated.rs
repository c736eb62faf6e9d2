//! Sequences as the reference interpreter speculates with them, beside servers that accept drafts whatever
//! was sampled, so that their answers contain their drafts.

use monomorph_compiler::reference::{Cache, Fed, ImageSpan, Interpreter, Logits};
use monomorph_compiler::spec::types::{DraftMethod, DraftOption, Model};

/// A build whose answers show its drafts: it accepts drafts at this rate, whatever was sampled.
pub const SHOWN: DraftOption =
    DraftOption { method: DraftMethod::Mtp, drafts: 2, vocabulary: Some(23), forced_acceptance: Some(0.6) };
/// The same with the model without its recurrent layers.
pub const SKIPPED: DraftOption = DraftOption { method: DraftMethod::Layers, ..SHOWN };

/// Whether a draft at a position is accepted, as compiler/src/plan/draft.rs states it.
fn holds(slot: u64, position: usize) -> bool {
    let rate = SHOWN.forced_acceptance.expect("it is forced");
    let bits = ((slot << 32) + position as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (bits ^ (bits >> 31)) >> 40 < (rate * f64::from(1 << 24)) as u64
}

fn likeliest(logits: &[f32]) -> u32 {
    let best = |best: usize, at: usize| if logits[at] > logits[best] { at } else { best };
    (0..logits.len()).fold(0, best) as u32
}

/// The spans of the tokens that follow those fed, without the first.
fn following(spans: &[ImageSpan]) -> Vec<ImageSpan> {
    let earlier = |span: &ImageSpan| match span.at {
        0 => ImageSpan { at: 0, count: span.count - 1, first: span.first + 1 },
        at => ImageSpan { at: at - 1, ..*span },
    };
    spans.iter().map(earlier).collect()
}

/// Text that turns by these positions.
fn text<'a>(tokens: &'a [u32], positions: &'a [[u32; 3]]) -> Fed<'a> {
    let mut fed = Fed::text(tokens);
    fed.positions = positions;
    fed
}

/// A sequence as the interpreter speculates with it: only accepted tokens are fed.
#[derive(Clone)]
pub struct Speculated<'a> {
    interpreter: &'a Interpreter<'a>,
    shown: DraftOption,
    vocabulary: usize,
    hidden: usize,
    /// What images of the prompt add to indices behind it, if positions have three axes.
    shift: Option<i64>,
    model: Cache,
    draft: Cache,
    /// Positions of both.
    positions: usize,
    answer: Vec<u32>,
    drafts: Vec<u32>,
}

impl<'a> Speculated<'a> {
    /// A sequence that was fed its prompt, behind which `shift` is added to indices.
    pub fn new(
        interpreter: &'a Interpreter<'a>,
        shown: DraftOption,
        model: &Model,
        prompt: &Fed,
        shift: i64,
    ) -> Speculated<'a> {
        let mut speculated = Speculated {
            interpreter,
            shown,
            vocabulary: model.vocabulary,
            hidden: model.hidden,
            shift: (!prompt.positions.is_empty()).then_some(shift),
            model: Cache::default(),
            draft: Cache::default(),
            positions: 0,
            answer: Vec::new(),
            drafts: Vec::new(),
        };
        speculated.feed(prompt);
        speculated
    }

    /// What tokens of text from `index` on turn by.
    fn turned(&self, index: usize, count: usize) -> Vec<[u32; 3]> {
        let at = |shift: i64, index: usize| [(index as i64 + shift) as u32; 3];
        let all = |shift| (index..index + count).map(|index| at(shift, index)).collect();
        self.shift.map(all).unwrap_or_default()
    }

    /// Feeds accepted tokens, then drafts after the token sampled from them.
    fn feed(&mut self, fed: &Fed) {
        let count = fed.tokens.len();
        let outcome = self.interpreter.forward_fed(fed, &mut self.model, Logits::All);
        let sampled = likeliest(&outcome.logits[(count - 1) * self.vocabulary..]);
        self.positions += count;
        self.answer.push(sampled);
        self.drafts.clear();
        let most = self.shown.vocabulary.expect("the head is cut");
        if self.shown.method == DraftMethod::Layers {
            // What passes add is discarded, and they do not use the model's recurrent state.
            let (mut passes, mut last) = (self.model.clone(), sampled);
            for pass in 0..self.shown.drafts {
                let turned = self.turned(self.positions + pass, 1);
                last = likeliest(
                    &self.interpreter.skip(&text(&[last], &turned), &mut passes, Logits::Last)[..most],
                );
                self.drafts.push(last);
            }
            return;
        }
        if self.shown.method.is_dflash() {
            self.interpreter.keep_context(&outcome.taps, &mut self.draft);
            let logits = self.interpreter.draft_block(sampled, self.shown.drafts, &self.draft);
            self.drafts.extend(logits.chunks(self.vocabulary).map(|row| likeliest(&row[..most])));
            return;
        }
        let tokens: Vec<u32> = fed.tokens[1..].iter().copied().chain([sampled]).collect();
        let spans = following(fed.images);
        let mut pairs = *fed;
        (pairs.tokens, pairs.images) = (&tokens, &spans);
        let mut drafted = self.interpreter.draft_fed(&outcome.hidden, &pairs, &mut self.draft, Logits::Last);
        // What passes after the first add is discarded.
        let mut further = self.draft.clone();
        for pass in 0.. {
            let draft = likeliest(&drafted.logits[..most]);
            self.drafts.push(draft);
            if self.drafts.len() == self.shown.drafts {
                return;
            }
            let from = &drafted.hidden[drafted.hidden.len() - self.hidden..];
            let turned = self.turned(self.positions + pass, 1);
            let fed = [draft];
            drafted = self.interpreter.draft_fed(from, &text(&fed, &turned), &mut further, Logits::Last);
        }
    }

    /// How many tokens of an answer are those of a sequence in a slot, from the first on.
    fn alike(mut self, slot: u64, found: &[u32]) -> usize {
        loop {
            let alike = self.answer.iter().zip(found).take_while(|(a, b)| a == b).count();
            if alike < self.answer.len().min(found.len()) || alike == found.len() {
                return alike;
            }
            let last = *self.answer.last().expect("the prompt was fed");
            let held = (0..self.shown.drafts).take_while(|at| holds(slot, self.positions + 1 + at)).count();
            let fed: Vec<u32> = [last].iter().chain(&self.drafts[..held]).copied().collect();
            self.answer.extend_from_slice(&fed[1..]);
            let turned = self.turned(self.positions, fed.len());
            self.feed(&text(&fed, &turned));
        }
    }

    /// The same of whichever slot the server used, which only the answer shows.
    ///
    /// # Panics
    /// Never: there are slots.
    pub fn alike_in_any_slot(&self, found: &[u32]) -> usize {
        let best = (0..32).map(|slot| self.clone().alike(slot, found)).max();
        best.expect("there are slots")
    }
}
