//! Sampling parameters where a request does not say: the model's recommendation, and over it the command
//! line's.

use super::fields::{Fields, meant};
use super::generation::{NOT_ON_GPU, preset_sampling, read_parameters};
use crate::error::ApiError;
use monomorph_model::ModelSpec;
use monomorph_sampling::Sampling;
use serde_json::{Map, Number, Value, json};

/// Parameters that have a default, as requests name them.
const KEYS: [&str; 10] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "top_n_sigma",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "dynatemp_range",
    "dynatemp_exponent",
];

/// Flags of sampling.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SamplingArgs {
    /// A sampling parameter where a request does not say, instead of the model's recommendation: temperature,
    /// top-p, top-k, min-p, top-n-sigma, repetition-penalty, presence-penalty, frequency-penalty,
    /// dynatemp-range or dynatemp-exponent. May be given several times.
    #[arg(long = "default", value_name = "KEY=VALUE", value_parser = read)]
    pub defaults: Vec<SamplingDefault>,
}

/// One parameter and its default.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingDefault {
    key: &'static str,
    value: Number,
}

impl SamplingDefault {
    /// Sets the parameter as a request that names it would.
    ///
    /// # Errors
    /// When the value is out of the parameter's range.
    fn set(&self, sampling: &mut Sampling) -> Result<(), ApiError> {
        let said = Map::from_iter([(self.key.to_owned(), Value::Number(self.value.clone()))]);
        read_parameters(&mut Fields::outside(&said), sampling)
    }
}

impl SamplingArgs {
    /// The parameters of a request that names none.
    ///
    /// # Errors
    /// When a parameter is given twice, or this build samples where it means nothing.
    pub(crate) fn sampling(&self, spec: &ModelSpec) -> Result<Sampling, String> {
        let mut sampling = preset_sampling(spec.sampling.first());
        for (at, default) in self.defaults.iter().enumerate() {
            if self.defaults[..at].iter().any(|earlier| earlier.key == default.key) {
                return Err(format!("--default {}: it is given twice, and has one value", default.key));
            }
            default.set(&mut sampling).map_err(|error| format!("--default: {}", error.message))?;
        }
        // A request may name a temperature that makes it act, and would be refused for what it did not name.
        if spec.hardware.cuda.is_some() && sampling.dynatemp_range > 0.0 {
            return Err(format!("--default dynatemp_range: not supported: {NOT_ON_GPU}"));
        }
        Ok(sampling)
    }
}

/// Reads `KEY=VALUE`; hyphens in the key are underscores.
fn read(text: &str) -> Result<SamplingDefault, String> {
    let Some((key, value)) = text.split_once('=') else {
        return Err("it must be KEY=VALUE, such as temperature=0.7".to_owned());
    };
    let asked = key.trim().replace('-', "_");
    let Some(key) = KEYS.into_iter().find(|key| **key == asked) else {
        let meant =
            meant(&asked, &KEYS).map_or_else(|| ".".to_owned(), |meant| format!("; did you mean {meant}?"));
        return Err(format!("there is no parameter {asked:?}{meant} It is one of {}", KEYS.join(", ")));
    };
    let value = value.trim();
    let number = value.parse::<i64>().ok().map(Number::from);
    let number = number.or_else(|| value.parse().ok().and_then(Number::from_f64));
    let value = number.ok_or_else(|| format!("`{key}` must be a number, and is {value:?}"))?;
    let default = SamplingDefault { key, value };
    default.set(&mut Sampling::default()).map_err(|error| error.message)?;
    Ok(default)
}

/// The parameters as `/info` and `/v1/models` have them.
pub(crate) fn written(sampling: &Sampling) -> Value {
    // The shortest decimal that is this number: 0.7, and not 0.699999988.
    let short = |number: f32| number.to_string().parse().unwrap_or(f64::from(number));
    json!({
        "temperature": short(sampling.temperature), "top_p": short(sampling.top_p), "top_k": sampling.top_k,
        "min_p": short(sampling.min_p), "top_n_sigma": short(sampling.top_n_sigma),
        "repetition_penalty": short(sampling.repetition_penalty),
        "presence_penalty": short(sampling.presence_penalty),
        "frequency_penalty": short(sampling.frequency_penalty),
        "dynatemp_range": short(sampling.dynatemp_range),
        "dynatemp_exponent": short(sampling.dynatemp_exponent),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::generation::GenerationParams;
    use crate::request::limits::RequestLimits;
    use monomorph_engine::scripted::{Shape, Small};
    use monomorph_model::{CudaSpec, HardwareSpec, SamplingPreset};

    fn args(given: &[&str]) -> Result<SamplingArgs, String> {
        Ok(SamplingArgs { defaults: given.iter().map(|text| read(text)).collect::<Result<_, _>>()? })
    }

    const PRESET: SamplingPreset = SamplingPreset {
        name: "default",
        temperature: 0.6,
        top_p: 0.95,
        top_k: 20,
        min_p: 0.0,
        repetition_penalty: 1.0,
    };

    #[test]
    fn they_are_over_the_models_and_under_a_requests() {
        let spec = ModelSpec { sampling: &[PRESET], ..*Small::SPEC };
        let of = |given: &[&str]| args(given).expect("parameters").sampling(&spec).expect("defaults");
        let preset = of(&[]);
        assert_eq!((preset.temperature, preset.top_p, preset.top_k), (0.6, 0.95, 20));
        let given = ["temperature=0.7", "top-k=7", "top_n_sigma=1.5", "presence-penalty=-1", "min-p=.05"];
        let set = of(&given);
        let expected = Sampling {
            temperature: 0.7,
            top_k: 7,
            top_n_sigma: 1.5,
            presence_penalty: -1.0,
            min_p: 0.05,
            ..preset
        };
        assert_eq!(set, expected);
        assert_eq!(written(&set)["temperature"], json!(0.7));
        let limits =
            RequestLimits { context: 100, vocabulary: 10, on_gpu: false, images: false, sampling: set };
        let asked = |body: Value| {
            let mut fields = Fields::outside(body.as_object().expect("an object"));
            let params = GenerationParams::read(&mut fields, &limits).expect("parameters");
            Sampling { seed: 0, ..params.sampling }
        };
        assert_eq!(asked(json!({})), expected);
        // What means "off" elsewhere is off.
        let off = asked(json!({"top_k": -1, "top_n_sigma": -1, "presence_penalty": 0, "temperature": 1}));
        let without =
            Sampling { top_k: 0, top_n_sigma: 0.0, presence_penalty: 0.0, temperature: 1.0, ..expected };
        assert_eq!(off, without);
    }

    #[test]
    fn every_key_is_a_parameter_and_every_parameter_has_a_key() {
        // A value that no parameter has but by being set.
        let two = |key: &str| read(&format!("{key}={}", if key == "min_p" { 0.25 } else { 0.5 }));
        for key in KEYS {
            let text = if key == "top_k" { Ok(read("top_k=3").expect("a number")) } else { two(key) };
            let mut sampling = Sampling::default();
            text.expect("in range").set(&mut sampling).expect("in range");
            assert_ne!(sampling, Sampling::default(), "{key} sets nothing");
        }
        let keys = written(&Sampling::default());
        let keys: Vec<&String> = keys.as_object().expect("an object").keys().collect();
        assert_eq!(keys, KEYS);
    }

    #[test]
    fn what_is_none_is_refused_with_what_would_be_right() {
        for (given, words) in [
            ("temprature=1", &["\"temprature\"", "did you mean temperature?", "top_n_sigma"][..]),
            ("seed=1", &["no parameter \"seed\"", "It is one of temperature, top_p"]),
            ("temperature", &["KEY=VALUE"]),
            ("temperature=hot", &["`temperature` must be a number", "\"hot\""]),
            ("temperature=nan", &["must be a number"]),
            ("temperature=2.5", &["`temperature` must be from 0 to 2, and is 2.5"]),
            ("top-p=0", &["`top_p` must be above 0 and at most 1, and is 0"]),
            ("top-k=-2", &["`top_k` must be between -1 and 4294967295, and is -2"]),
            ("top-k=1.5", &["`top_k` must be an integer"]),
            ("min-p=2", &["`min_p` must be from 0 to 1"]),
            ("top-n-sigma=-2", &["`top_n_sigma` must be at least 0"]),
            ("repetition-penalty=0", &["`repetition_penalty` must be above 0"]),
            ("dynatemp-range=3", &["`dynatemp_range` must be from 0 to 2, and is 3"]),
            ("frequency-penalty=3", &["`frequency_penalty` must be from -2 to 2, and is 3"]),
        ] {
            let message = read(given).expect_err(given);
            assert!(words.iter().all(|word| message.contains(word)), "{given}: {message}");
        }
        let cuda = CudaSpec { architecture: "sm_90a", capability: (9, 0), multiprocessors: 132, tuning: "" };
        let hardware = HardwareSpec { cuda: Some(cuda), ..Small::SPEC.hardware };
        let gpu = ModelSpec { hardware, ..*Small::SPEC };
        let adaptive = args(&["temperature=1", "dynatemp-range=0.5"]).expect("parameters");
        assert!(adaptive.sampling(Small::SPEC).expect("a CPU's sampler does").is_adaptive());
        let greedy = args(&["temperature=0", "dynatemp-range=0.5"]).expect("parameters");
        for given in [adaptive, greedy] {
            let refused = given.sampling(&gpu).expect_err("a GPU's does not");
            assert!(refused.contains("--default dynatemp_range: not supported"), "{refused}");
        }
        let off = args(&["temperature=1", "dynatemp-range=0", "dynatemp-exponent=2"]).expect("parameters");
        off.sampling(&gpu).expect("it does nothing");
        let twice = args(&["top-p=0.5", "top_p=0.6"]).expect("each is right").sampling(Small::SPEC);
        assert_eq!(twice, Err("--default top_p: it is given twice, and has one value".to_owned()));
    }
}
