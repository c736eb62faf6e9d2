//! Static scales of keys and values, measured over a fixed text while a model is loaded: before anything has
//! blocks, so that no block is ever read under another scale than it was written under.

use crate::request::text::Text;
use crate::start::sliding::SlidingTables;
use monomorph_model::{BlockId, KvScales, Model, ModelSpec, Output, SequenceStep, Slot, Step, Tokens, chunk};
use std::num::NonZero;

/// Prose, code, figures and several languages: what makes keys large differs.
const TEXT: &str = include_str!("calibration.txt");

/// Passes over the text. The first cuts off what a scale of 1 has no code for; what later layers keep depends
/// on it.
const PASSES: usize = 2;

/// Flags of calibration.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct CalibrationArgs {
    /// Measure the static scales of keys and values over so many tokens of a text while the model is loaded
    /// [default: they are the checkpoint's, or 1].
    #[arg(long, value_name = "N")]
    pub kv_calibration_tokens: Option<NonZero<usize>>,
}

impl CalibrationArgs {
    /// How many tokens are asked for.
    ///
    /// # Errors
    /// When no format of the build has a static scale to measure, or the model has no context of so many.
    pub(crate) fn count(self, spec: &ModelSpec) -> Result<Option<usize>, String> {
        let Some(count) = self.kv_calibration_tokens.map(NonZero::get) else { return Ok(None) };
        let why = match (spec.measures_kv(), spec.kv_scales) {
            (true, _) if count <= spec.context => return Ok(Some(count)),
            (true, _) => format!("the model's context is {}", spec.context),
            (false, read) => {
                let of_build = format!("keys and values of this build ({})", spec.kv_formats);
                let what = read.map_or("no static scales", |_| "the checkpoint's scales");
                format!("{of_build} have {what}")
            }
        };
        Err(format!("--kv-calibration-tokens {count}: {why}"))
    }
}

/// The first tokens of the text, over and over.
///
/// # Errors
/// When the tokenizer has none for it.
pub(crate) fn tokens(text: &Text, count: usize) -> Result<Vec<u32>, String> {
    let fault = |what: String| format!("--kv-calibration-tokens {count}: {what}");
    let ids = text.tokenizer.encode_prompt(TEXT).map_err(|error| fault(error.to_string()))?;
    if ids.is_empty() {
        return Err(fault("the tokenizer makes no tokens of the text".to_owned()));
    }
    Ok(ids.into_iter().cycle().take(count).collect())
}

/// Runs tokens through a model of which nothing has blocks yet, and sets its static scales by what they make
/// of keys and values. Sequences may have `context` tokens.
///
/// # Errors
/// When the tokens have no room, or something is not finite.
pub(crate) fn calibrate<M: Model>(model: &mut M, tokens: &[u32], context: usize) -> Result<KvScales, String> {
    let room = context.min(model.blocks() * M::SPEC.block_tokens);
    if tokens.len() > room {
        return Err(format!("a sequence has room for {room} tokens, and not for {}", tokens.len()));
    }
    let mut set = KvScales::default();
    for _ in 0..PASSES {
        model.measure_kv();
        run(model, tokens)?;
        set = model.set_kv_scales()?;
    }
    Ok(set)
}

/// Feeds the tokens as one prompt.
fn run<M: Model>(model: &mut M, tokens: &[u32]) -> Result<(), String> {
    let spec = M::SPEC;
    let mut tables = SlidingTables::new(model, 1);
    let mut position = 0;
    while position < tokens.len() {
        let left = tokens.len() - position;
        let end = position + chunk(position, left, spec.step_tokens, spec.chunk_alignment());
        let sequences = vec![SequenceStep {
            slot: Slot(0),
            position,
            begins: position == 0,
            tokens: Tokens::Known(tokens[position..end].to_vec()),
            drafts: 0,
            generated: false,
            following: tokens.get(end).copied(),
            blocks: (0..end.div_ceil(spec.block_tokens)).map(|block| BlockId(block as u32)).collect(),
            output: Output::None,
        }];
        let sliding = tables.of(&sequences)?;
        let ticket = model.submit(&Step { sequences, sliding, ..Step::default() });
        model.collect(ticket);
        position = end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_engine::scripted::{Scripted, Small};
    use monomorph_formats::cached::{Cached, KvFormats};
    use monomorph_model::{KvScaleSpec, LoadError, LoadOptions, Progress, StepOutput, Ticket, Weights};

    /// What happens to a model.
    #[derive(Default)]
    struct Noted(Vec<String>);

    impl Model for Noted {
        const SPEC: &'static ModelSpec = &ModelSpec {
            kv_formats: KvFormats { keys: Cached::Fp8, values: Cached::Bf16 },
            block_tokens: 4,
            step_tokens: 5,
            ..*Scripted::<Small>::SPEC
        };

        fn load(_: &Weights, _: &LoadOptions, _: &Progress) -> Result<Self, LoadError> {
            Ok(Noted::default())
        }

        fn blocks(&self) -> usize {
            3
        }

        fn sequences(&self) -> usize {
            1
        }

        fn read_block(&mut self, _: BlockId, _: &mut [u8]) {}

        fn write_block(&mut self, _: BlockId, _: &[u8]) {}

        fn measure_kv(&mut self) {
            self.0.push("measure".to_owned());
        }

        fn set_kv_scales(&mut self) -> Result<KvScales, String> {
            self.0.push("set".to_owned());
            Ok(KvScales { ranges: [Some((0.5, self.0.len() as f32)), None] })
        }

        fn submit(&mut self, step: &Step) -> Ticket {
            let [it] = &step.sequences[..] else { panic!("one sequence: {step:?}") };
            assert!(it.begins == (it.position == 0) && matches!(it.output, Output::None), "{it:?}");
            let blocks = it.blocks.len();
            self.0.push(format!("{:?} at {} in {blocks}, then {:?}", it.tokens, it.position, it.following));
            Ticket(0)
        }

        fn collect(&mut self, _: Ticket) -> StepOutput {
            StepOutput::default()
        }
    }

    #[test]
    fn a_text_is_run_twice_before_scales_stay() {
        let mut model = Noted::default();
        let set = calibrate(&mut model, &[7, 8, 9, 10, 11, 12, 13], 16).unwrap();
        let pass = [
            "measure",
            "Known([7, 8, 9, 10, 11]) at 0 in 2, then Some(12)",
            "Known([12, 13]) at 5 in 2, then None",
            "set",
        ];
        assert_eq!(model.0, [pass, pass].concat());
        assert_eq!(set.ranges, [Some((0.5, 8.0)), None], "of the second pass");
        let error = calibrate(&mut model, &[0; 13], 16).unwrap_err();
        assert_eq!(error, "a sequence has room for 12 tokens, and not for 13");
        assert!(calibrate(&mut model, &[0; 12], 11).is_err());
    }

    #[test]
    fn only_static_scales_that_nobody_gave_are_measured() {
        let args = CalibrationArgs { kv_calibration_tokens: NonZero::new(512) };
        let wide = Scripted::<Small>::SPEC;
        let error = "--kv-calibration-tokens 512: keys and values of this build (f32) have no static scales";
        assert_eq!(args.count(wide), Err(error.to_owned()));
        assert_eq!(CalibrationArgs { kv_calibration_tokens: None }.count(wide), Ok(None));
        let fp8 = ModelSpec { kv_formats: KvFormats::both(Cached::Fp8), ..*wide };
        assert_eq!(args.count(&fp8), Ok(Some(512)));
        let read = ModelSpec { kv_scales: Some(KvScaleSpec { names: ["k", "v"] }), ..fp8 };
        assert!(args.count(&read).unwrap_err().ends_with("(fp8) have the checkpoint's scales"));
        // A checkpoint's are of fp8 alone.
        let kv_formats = KvFormats { keys: Cached::Fp8, values: Cached::Turbo4 };
        assert_eq!(args.count(&ModelSpec { kv_formats, ..read }), Ok(Some(512)));
        let error = "--kv-calibration-tokens 512: the model's context is 511";
        assert_eq!(args.count(&ModelSpec { context: 511, ..fp8 }), Err(error.to_owned()));
    }
}
