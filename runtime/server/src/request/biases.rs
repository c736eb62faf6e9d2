//! Biases of logits: `logit_bias`, llama.cpp's fields of DRY, and the penalty on what compresses.

use super::fields::{Fields, Numbers, wrong_type};
use super::limits::RequestLimits;
use crate::error::{ApiError, wrong};
use crate::openapi::schema::{at_most, within};
use monomorph_sampling::{Biases, Dry, Lz, MAX_FIXED, MAX_LZ_WINDOW, TokenBias, TokenMask};
use monomorph_text::{Special, TextError, Tokenizer};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Largest bias either way, as OpenAI has it.
pub(crate) const LARGEST: f64 = 100.0;
/// Largest multiplier and base of DRY.
pub(crate) const MAX_DRY: f32 = 100.0;
/// Largest strength of the penalty on what compresses.
const MAX_LZ: f32 = 100.0;
/// Tokens that it looks back, as its authors have it.
const LZ_WINDOW: usize = 512;
/// Default breakers: no repetition extends across them.
const BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];
/// Most breakers that a request may give.
pub(crate) const MOST_BREAKERS: usize = 32;
/// The longest, in characters.
pub(crate) const LONGEST_BREAKER: usize = 64;

/// A request's biases; breakers are still text.
#[derive(Clone, Debug, Default)]
pub(crate) struct BiasParams {
    fixed: Arc<[TokenBias]>,
    dry: Option<DryParams>,
    lz: Option<LzParams>,
}

#[derive(Clone, Copy, Debug)]
struct LzParams {
    strength: f32,
    window: usize,
}

#[derive(Clone, Debug)]
struct DryParams {
    multiplier: f32,
    base: f32,
    allowed: usize,
    window: usize,
    breakers: Vec<String>,
}

impl BiasParams {
    /// Reads the fields.
    pub(super) fn read(fields: &mut Fields, limits: &RequestLimits) -> Result<BiasParams, ApiError> {
        Ok(BiasParams { fixed: read_fixed(fields, limits)?, dry: read_dry(fields)?, lz: read_lz(fields)? })
    }

    /// Whether resolving them takes a walk through the vocabulary.
    pub(crate) fn takes_long(&self) -> bool {
        self.dry.is_some()
    }

    /// Resolves breakers to the tokens that contain one. A breaker that no token contains becomes its last
    /// token.
    ///
    /// # Errors
    /// When the tokenizer refuses a breaker.
    pub(crate) fn resolve(self, tokenizer: &Tokenizer) -> Result<Biases, TextError> {
        let vocabulary = tokenizer.vocabulary();
        let lz = self.lz.map(|LzParams { strength, window }| Lz { strength, window, vocabulary });
        let Some(DryParams { multiplier, base, allowed, window, breakers }) = self.dry else {
            return Ok(Biases { fixed: self.fixed, dry: None, lz });
        };
        let mut found = vec![false; breakers.len()];
        let mut breaks = |id: &u32| {
            let bytes = tokenizer.token_bytes(*id).unwrap_or_default();
            let mut any = false;
            for (breaker, found) in breakers.iter().zip(&mut found) {
                let within = bytes.windows(breaker.len()).any(|part| part == breaker.as_bytes());
                *found |= within;
                any |= within;
            }
            any
        };
        let mut ids: Vec<u32> = (0..vocabulary as u32).filter(&mut breaks).collect();
        for (breaker, _) in breakers.iter().zip(&found).filter(|(_, found)| !**found) {
            ids.extend(tokenizer.encode(breaker, Special::Plain)?.last());
        }
        let breakers = TokenMask::of(vocabulary, ids);
        let dry = Some(Dry { multiplier, base, allowed, window, breakers });
        Ok(Biases { fixed: self.fixed, dry, lz })
    }
}

/// An object of token ids, as strings, with what each is biased by.
fn read_fixed(fields: &mut Fields, limits: &RequestLimits) -> Result<Arc<[TokenBias]>, ApiError> {
    fields.about("By token id.").of(|| {
        json!({
            "type": "object", "maxProperties": MAX_FIXED,
            "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"},
            "additionalProperties": within(-LARGEST, LARGEST),
        })
    });
    let Some(map) = fields.object("logit_bias")? else { return Ok(Arc::default()) };
    if map.len() > MAX_FIXED {
        return Err(wrong!("logit_bias", "has {} tokens; at most {MAX_FIXED}", map.len()));
    }
    let mut biases = BTreeMap::new();
    for (name, bias) in map {
        let path = format!("logit_bias.{name}");
        let id = name
            .parse()
            .ok()
            .filter(|id: &u32| (*id as usize) < limits.vocabulary && id.to_string() == *name);
        let Some(id) = id else {
            let message = format!("`{path}`: {name:?} is not a token id below {}", limits.vocabulary);
            return Err(ApiError::field(path, message));
        };
        let Some(number) = bias.as_f64() else { return Err(wrong_type(&path, "a number", bias)) };
        if number.abs() > LARGEST {
            return Err(wrong!(path, "must be from -{LARGEST} to {LARGEST}, and is {bias}"));
        }
        biases.insert(id, number as f32);
    }
    Ok(biases.into_iter().map(|(id, bias)| TokenBias { id, bias }).collect())
}

fn read_dry(fields: &mut Fields) -> Result<Option<DryParams>, ApiError> {
    let multiplier = fields.about("0: off.").number("dry_multiplier", Numbers::within(0.0, MAX_DRY))?;
    let multiplier = multiplier.unwrap_or(0.0);
    let base = fields.number("dry_base", Numbers::within(1.0, MAX_DRY))?.unwrap_or(1.75);
    let allowed = fields.integer("dry_allowed_length", 1..=i64::from(u32::MAX))?.unwrap_or(2) as usize;
    // -1 means "all" elsewhere, and 0 turns it off.
    let window = fields.about("-1: all.").integer("dry_penalty_last_n", -1..=i64::from(u32::MAX))?;
    let window = window.unwrap_or(-1);
    let window = usize::try_from(window).unwrap_or(usize::MAX);
    let breakers = read_breakers(fields)?;
    let wanted = multiplier > 0.0 && window > 0;
    Ok(wanted.then_some(DryParams { multiplier, base, allowed, window, breakers }))
}

fn read_lz(fields: &mut Fields) -> Result<Option<LzParams>, ApiError> {
    let strength = fields.about("0: off.").number("lz_penalty", Numbers::within(0.0, MAX_LZ))?;
    let window = fields.integer("lz_penalty_last_n", 1..=MAX_LZ_WINDOW as i64)?;
    let window = window.map_or(LZ_WINDOW, |tokens| tokens as usize);
    Ok(strength.filter(|strength| *strength > 0.0).map(|strength| LzParams { strength, window }))
}

fn read_breakers(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    const NAME: &str = "dry_sequence_breakers";
    let one = || json!({"type": "string", "minLength": 1, "maxLength": LONGEST_BREAKER});
    let given = match fields.of(|| at_most(MOST_BREAKERS, one())).value(NAME) {
        None => return Ok(BREAKERS.map(str::to_owned).to_vec()),
        Some(Value::Array(given)) if given.len() <= MOST_BREAKERS => given,
        Some(Value::Array(given)) => {
            return Err(wrong!(NAME, "has {} strings; at most {MOST_BREAKERS}", given.len()));
        }
        Some(other) => return Err(wrong_type(NAME, "an array of strings", other)),
    };
    let one = |(at, value): (usize, &Value)| {
        let path = format!("{NAME}[{at}]");
        match value {
            Value::String(text) if (1..=LONGEST_BREAKER).contains(&text.chars().count()) => Ok(text.clone()),
            Value::String(text) => {
                let length = text.chars().count();
                Err(wrong!(path, "must have 1 to {LONGEST_BREAKER} characters, and has {length}"))
            }
            other => Err(wrong_type(&path, "a string", other)),
        }
    };
    given.iter().enumerate().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_sampling::Sampling;
    use serde_json::json;

    const LIMITS: RequestLimits = RequestLimits {
        context: 100,
        vocabulary: 10,
        on_gpu: false,
        images: false,
        sampling: Sampling::GREEDY,
    };

    fn read(body: &Value) -> Result<BiasParams, ApiError> {
        let mut fields = Fields::new("", body)?;
        let biases = BiasParams::read(&mut fields, &LIMITS)?;
        fields.finish()?;
        Ok(biases)
    }

    #[test]
    fn tokens_are_biased_by_id() {
        let biases = read(&json!({"logit_bias": {"7": -100, "2": 0.5}})).expect("biases");
        assert_eq!(*biases.fixed, [(2, 0.5), (7, -100.0)].map(|(id, bias)| TokenBias { id, bias }));
        assert!(read(&json!({"logit_bias": {}})).expect("none").fixed.is_empty());
        let many: serde_json::Map<_, _> = (0..=MAX_FIXED).map(|id| (format!("{id:05}"), json!(1))).collect();
        for (bad, param) in [
            (json!([]), "logit_bias"),
            (json!({"10": 1}), "logit_bias.10"),
            (json!({"the": 1}), "logit_bias.the"),
            (json!({"-1": 1}), "logit_bias.-1"),
            (json!({"1": "5"}), "logit_bias.1"),
            (json!({"1": 100.5}), "logit_bias.1"),
            (json!({"01": 1}), "logit_bias.01"),
            (Value::Object(many), "logit_bias"),
        ] {
            let error = read(&json!({"logit_bias": bad})).expect_err("refused");
            assert_eq!(error.param.as_deref(), Some(param), "{}", error.message);
        }
    }

    #[test]
    fn dry_is_off_unless_multiplied() {
        for body in [
            json!({}),
            json!({"dry_multiplier": 0, "dry_base": 2}),
            json!({"dry_multiplier": 1, "dry_penalty_last_n": 0}),
        ] {
            assert!(read(&body).expect("nothing is wrong").dry.is_none());
        }
        let dry = read(&json!({"dry_multiplier": 0.8})).expect("it is on").dry.expect("it is on");
        assert_eq!((dry.base, dry.allowed, dry.window, dry.breakers.len()), (1.75, 2, usize::MAX, 4));
        for (name, bad) in [
            ("dry_multiplier", json!(-1)),
            ("dry_multiplier", json!("1")),
            ("dry_base", json!(0.5)),
            ("dry_allowed_length", json!(0)),
            ("dry_penalty_last_n", json!(-2)),
            ("dry_sequence_breakers", json!("\n")),
            ("dry_sequence_breakers[1]", json!(["\n", ""])),
            ("dry_sequence_breakers[0]", json!([1])),
        ] {
            let field = name.split('[').next().unwrap_or_default();
            let error = read(&json!({field: bad})).expect_err("refused");
            assert_eq!(error.param.as_deref(), Some(name), "{}", error.message);
        }
    }

    #[test]
    fn breakers_are_tokens() {
        // A token a byte.
        let tokenizer = Tokenizer::stand_in(300).expect("a tokenizer");
        let body = json!({"dry_multiplier": 1, "dry_sequence_breakers": [":", "ab"]});
        let breakers = read(&body)
            .expect("it reads")
            .resolve(&tokenizer)
            .expect("tokens")
            .dry
            .expect("it is on")
            .breakers;
        let [a, b] = tokenizer.encode("ab", Special::Plain).expect("two tokens")[..] else {
            panic!("two tokens")
        };
        assert!(breakers.allows(b) && !breakers.allows(a), "the last token of what is part of none");
        let biases = read(&json!({"dry_multiplier": 1}))
            .expect("it reads")
            .resolve(&tokenizer)
            .expect("they are tokens");
        let breakers = biases.dry.expect("it is on").breakers;
        for id in 0..tokenizer.vocabulary() as u32 {
            let breaks = tokenizer
                .token_bytes(id)
                .is_some_and(|bytes| bytes.iter().any(|byte| b"\n:\"*".contains(byte)));
            assert_eq!(breakers.allows(id), breaks, "{id}");
        }
        assert!(breakers.count() >= 4, "{}", breakers.count());
    }
}
