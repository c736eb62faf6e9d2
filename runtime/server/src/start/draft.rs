//! How a build's drafts are reported.

use monomorph_engine::Stats;
use monomorph_model::{DraftSpec, Drafter, ModelSpec};
use serde_json::{Value, json};

/// The mark on every answer of a build whose drafts are accepted by force, since these mean nothing; `None`
/// for other builds.
pub(crate) fn forced(spec: &ModelSpec) -> Option<String> {
    let rate = spec.draft.as_ref()?.forced_acceptance?;
    Some(format!("forced-acceptance-{rate}"))
}

/// The method, in words.
pub(crate) fn describe(spec: &ModelSpec, draft: &DraftSpec) -> String {
    let DraftSpec { method, drafter, drafts, vocabulary, forced_acceptance } = draft;
    let plural = if *drafts == 1 { "" } else { "s" };
    if *drafter == Drafter::Caller {
        return format!("{method}: {drafts} token{plural} where the same ones came before");
    }
    let ids = if *vocabulary < spec.vocabulary {
        format!("one of the first {vocabulary} ids each")
    } else {
        "of all ids".to_owned()
    };
    let by = match drafter {
        Drafter::Layers => " by the layers without recurrent state".to_owned(),
        Drafter::Block { rows, window } => {
            let window =
                window.map_or(String::new(), |window| format!(" over the last {window} positions at most"));
            format!(" by a drafter's block of {rows} rows{window}")
        }
        Drafter::Head | Drafter::Caller => String::new(),
    };
    let forced = forced_acceptance.map_or(String::new(), |rate| {
        format!("; accepted at a rate of {rate} whatever was sampled, so answers mean nothing")
    });
    format!("{method}: {drafts} token{plural} after every one sampled{by}, {ids}{forced}")
}

/// The method as JSON; null where nothing is drafted.
pub(crate) fn facts(spec: &ModelSpec) -> Value {
    let Some(DraftSpec { method, drafter, drafts, vocabulary, forced_acceptance }) = spec.draft else {
        return Value::Null;
    };
    let mut facts = json!({
        "method": method, "drafts": drafts, "vocabulary": vocabulary, "forced_acceptance": forced_acceptance,
    });
    if let Drafter::Block { rows, window } = drafter {
        facts["block"] = json!({ "rows": rows, "window": window });
    }
    facts
}

/// Mean number of accepted drafts of a step, from 0 to all that it verifies; `None` before the first.
pub(crate) fn mean_accepted(spec: &ModelSpec, verified: u64, accepted: u64) -> Option<f64> {
    (verified > 0).then(|| accepted as f64 * spec.drafts() as f64 / verified as f64)
}

/// [`mean_accepted`] of an engine.
pub(crate) fn mean_of(spec: &ModelSpec, stats: &Stats) -> Option<f64> {
    mean_accepted(spec, stats.drafts_verified, stats.drafts_accepted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_engine::scripted::{Drafting, Shape, Small};

    #[test]
    fn a_cut_head_and_a_forced_rate_are_told() {
        let whole = Drafting::<Small, 1>::SPEC;
        let told = |spec: &ModelSpec| describe(spec, &spec.draft.expect("drafts"));
        assert_eq!(told(whole), "script: 1 token after every one sampled, of all ids");
        let layers = DraftSpec { drafter: Drafter::Layers, ..whole.draft.expect("drafts") };
        let words =
            "script: 1 token after every one sampled by the layers without recurrent state, of all ids";
        assert_eq!(told(&ModelSpec { draft: Some(layers), ..*whole }), words);
        let block = |window: Option<usize>| {
            let drafter = Drafter::Block { rows: 2, window };
            ModelSpec { draft: Some(DraftSpec { drafter, ..whole.draft.expect("drafts") }), ..*whole }
        };
        let words = "script: 1 token after every one sampled by a drafter's block of 2 rows over the last 64 positions \
                     at most, of all ids";
        assert_eq!(told(&block(Some(64))), words);
        assert_eq!(facts(&block(None))["block"], json!({ "rows": 2, "window": null }));
        assert_eq!(facts(whole).get("block"), None);
        // Both of the step's, and those of a block behind all drafts.
        assert_eq!((block(None).reach(), block(None).ahead(1), block(None).drafted()), (3, 2, 1));
        let draft = DraftSpec {
            drafts: 2,
            vocabulary: 1000,
            forced_acceptance: Some(0.8),
            ..whole.draft.expect("drafts")
        };
        let cut = ModelSpec { draft: Some(draft), ..*whole };
        assert!(told(&cut).contains(
            "2 tokens after every one sampled, one of the first 1000 ids each; accepted at a rate of 0.8"
        ));
        assert_eq!((forced(whole), forced(&cut).as_deref()), (None, Some("forced-acceptance-0.8")));
        assert_eq!(mean_accepted(&cut, 0, 0), None);
        assert_eq!(mean_accepted(&cut, 200, 150), Some(1.5));
    }
}
