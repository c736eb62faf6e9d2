//! Formats of keys and values: in a quant spec, in the graph and in the plan.

use monomorph_compiler::blocks::Mixer;
use monomorph_compiler::emit;
use monomorph_compiler::graph;
use monomorph_compiler::passes::assemble;
use monomorph_compiler::plan::Plan;
use monomorph_compiler::plan::cuda::Constant;
use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{BuildOptions, KvScaleNames, Target};
use monomorph_formats::cached::{Cached, KvFormats};
use std::path::{Path, PathBuf};

const NAME: &str = "x86-64-v3/smollm2-135m/bf16";

/// Keys and values of a token in a layer of the model: 3 heads of 64.
const ELEMENTS: usize = 2 * 3 * 64;

fn targets() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../targets")
}

/// The target, with `[kv]` of its quant spec replaced.
fn with(kv: &str) -> Target {
    let own = tempfile::tempdir().unwrap();
    let model = own.path().join("models/smollm2-135m");
    std::fs::create_dir_all(&model).unwrap();
    let from = targets().join("models/smollm2-135m");
    std::fs::copy(from.join("MODEL.toml"), model.join("MODEL.toml")).unwrap();
    let text = std::fs::read_to_string(from.join("bf16.toml")).unwrap();
    let (before, _) = text.split_once("[kv]").unwrap();
    std::fs::write(model.join("bf16.toml"), format!("{before}[kv]\nblock = 16\n{kv}\n")).unwrap();
    let search = [own.path().to_owned(), targets()];
    spec::load(&search, NAME).unwrap_or_else(|error| panic!("{error}"))
}

/// The plan, and its bodies' names and formats by layer.
fn planned(target: &Target) -> (Plan, Vec<(String, KvFormats)>) {
    let plan = assemble::plan(target, &graph::build(&target.model, &target.quant)).unwrap();
    let layers = plan.schedule.iter().filter(|(_, layer)| layer.is_some());
    let kept = layers.filter_map(|(body, _)| {
        let body = &plan.bodies[body.0];
        Some((body.name.clone(), plan.kv_formats(body)?))
    });
    let kept = kept.collect();
    (plan, kept)
}

#[test]
fn layers_at_both_ends_are_exact_and_bodies_of_their_own() {
    let turbo4 = KvFormats::both(Cached::Turbo4);
    for (said, exact) in [("0", 0), ("1", 1), ("\"auto\"", 2), ("\"max\"", 15)] {
        let target = with(&format!("format = \"turbo4\"\nboundary_layers = {said}"));
        let (plan, layers) = planned(&target);
        assert_eq!(layers.len(), 30);
        for (layer, (_, formats)) in layers.iter().enumerate() {
            let kept =
                if layer < exact || layer >= 30 - exact { KvFormats::both(Cached::Bf16) } else { turbo4 };
            assert_eq!(*formats, kept, "layer {layer} of {said}");
        }
        let mut bodies: Vec<&str> = layers.iter().map(|(body, _)| body.as_str()).collect();
        bodies.dedup();
        assert_eq!(bodies.len(), if exact == 0 || exact == 15 { 1 } else { 3 }, "{said}: {bodies:?}");
        assert_eq!(plan.kv_exact_layers(), 2 * exact);
        assert_eq!(plan.kv_elements(), 30 * ELEMENTS);
        let bytes = 2 * exact * ELEMENTS * 2 + (30 - 2 * exact) * ELEMENTS * 9 / 16;
        assert_eq!(plan.memory.kv_block as usize, 16 * bytes, "{said}");
        assert_eq!(
            spec::kv_block_bytes(&target.model, &target.quant, &target.hardware.kind, false),
            16 * bytes as u128
        );
    }
    // Wide formats have no boundary to keep.
    let (_, layers) = planned(&with("format = \"f32\"\nboundary_layers = 2"));
    assert!(layers.iter().all(|(body, kv)| body == "attention" && *kv == KvFormats::both(Cached::F32)));
}

#[test]
fn a_build_may_ask_for_other_formats_than_the_spec() {
    let kv = KvFormats { keys: Cached::Turbo8, values: Cached::Turbo4 };
    let options = BuildOptions { kv: Some(kv), ..BuildOptions::default() };
    let target = spec::load_with(&[targets()], NAME, &options).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(target.build(), "x86-64-v3/smollm2-135m/bf16+kv-turbo8-turbo4");
    assert!(target.quant.checkpoint.canaries.is_empty());
    let (_, layers) = planned(&target);
    assert!(layers.len() == 30 && layers.iter().all(|(_, formats)| *formats == kv));
    assert_eq!(KvFormats::from_name("turbo8/turbo4"), Ok(kv));
    assert!(KvFormats::from_name("turbo5").unwrap_err().contains("\"turbo5\" is no format"));
}

#[test]
fn a_checkpoints_static_scales_are_those_of_fp8() {
    let emitted = |kv: &str| {
        let names = "{ keys = \"l.{layer}.k_scale\", values = \"l.{layer}.v_scale\" }";
        let (plan, _) = planned(&with(&format!("{kv}\nscales = {names}")));
        let files = emit::emit(&plan, &[]);
        ["spec.rs", "stack.rs"].map(|name| {
            let file = files.iter().find(|file| file.path.ends_with(name)).unwrap();
            file.text.split_whitespace().collect::<String>()
        })
    };
    let [spec, stack] = emitted("keys = \"fp8\"\nvalues = \"turbo4\"\nboundary_layers = 13");
    let names = "\"l.{layer}.k_scale\",\"l.{layer}.v_scale\"";
    assert!(spec.contains(&format!("kv_scales:Some(KvScaleSpec{{names:[{names}]")), "{spec}");
    // Not of the layers at the ends, which are exact.
    assert_eq!(stack.matches(".scaled(checkpoint,SPEC.kv_scales.as_ref(),[").count(), 1, "{stack}");
    assert!(stack.contains("SPEC.kv_scales.as_ref(),[13,14,15,16]"), "{stack}");
    let [spec, stack] = emitted("format = \"turbo4\"");
    assert!(spec.contains("kv_scales:None") && spec.contains(names), "the checkpoint may hold them: {spec}");
    assert!(!stack.contains(".scaled("), "{stack}");
}

/// Latents of Mistral Small 4: 36 layers of 256 elements and 64 rotated ones.
fn of_latents(kv: &str) -> Result<Plan, String> {
    of_latents_of(256, kv)
}

/// The same of latents of a width.
fn of_latents_of(width: usize, kv: &str) -> Result<Plan, String> {
    let mut target = spec::load(&[targets()], "h200/mistral-small-4/nvfp4").unwrap();
    let Some(Mixer::LatentAttention(it)) = target.model.mixers.get_mut("latent") else { panic!("latents") };
    it.latent = width;
    let kv = KvFormats::from_name(kv).unwrap();
    let target = spec::with_kv(target, kv).map_err(|error| error.to_string())?;
    assemble::plan(&target, &graph::build(&target.model, &target.quant)).map_err(|error| error.to_string())
}

#[test]
fn latents_have_codes_and_their_rotated_keys_none() {
    let plan = |kv| of_latents(kv).unwrap();
    let [bf16, fp8, nvfp4, turbo8, turbo4, turbo3] =
        ["bf16", "fp8", "nvfp4", "turbo8", "turbo4", "turbo3"].map(plan);
    for (plan, latent) in
        [(&bf16, 512), (&fp8, 256), (&nvfp4, 144), (&turbo8, 288), (&turbo4, 144), (&turbo3, 112)]
    {
        assert_eq!(plan.kv_elements(), 36 * 320);
        assert_eq!(plan.memory.kv_block as usize, 36 * 16 * (latent + 2 * 64));
    }
    let elements = |plan: &Plan| -> Vec<Constant> {
        let kernels = plan.cuda.as_ref().unwrap().modules.iter().flat_map(|module| &module.kernels);
        let kernels = kernels.filter(|it| it.function().starts_with("latent_"));
        kernels
            .filter_map(|it| Some(it.constants.iter().find(|(name, _)| *name == "Kv")?.1.clone()))
            .collect()
    };
    for (plan, element) in [
        (&bf16, "__nv_bfloat16"),
        (&fp8, "E4m3"),
        (&nvfp4, "Nvfp4"),
        (&turbo8, "Turbo8"),
        (&turbo4, "Turbo4"),
        (&turbo3, "Turbo3"),
    ] {
        let found = elements(plan);
        assert!(!found.is_empty() && found.iter().all(|it| *it == Constant::Type(element.to_owned())));
    }
    let functions = |plan: &Plan| -> Vec<String> {
        let modules = &plan.cuda.as_ref().unwrap().modules;
        modules.iter().flat_map(|it| &it.kernels).map(|it| it.function().to_owned()).collect()
    };
    for name in ["latent_decode_wgmma", "latent_prefill_wgmma"] {
        for plan in [&fp8, &nvfp4, &turbo8, &turbo4, &turbo3] {
            assert!(functions(plan).iter().any(|it| it == name), "{name}");
        }
    }
    // They have one static scale, that of keys; turbo8 has none.
    let stack = |plan: &Plan| -> String {
        let files = emit::emit(plan, &[]);
        files.iter().find(|file| file.path.ends_with("stack.rs")).unwrap().text.split_whitespace().collect()
    };
    for (plan, name) in [(&fp8, "Fp8"), (&nvfp4, "Nvfp4"), (&turbo3, "Turbo3")] {
        let stack = stack(plan);
        assert!(stack.contains("cache_behind(256,"), "{stack}");
        assert!(stack.contains(&format!("Cached::{name},monomorph_formats::cached::Cached::Bf16")));
    }
    assert!(!stack(&turbo8).contains("cache_behind("));
}

#[test]
fn what_latents_cannot_be_kept_as_is_refused_by_name() {
    // Widths that lanes do not share out.
    for (format, width) in [("nvfp4", 192), ("turbo4", 32), ("turbo3", 16)] {
        let refused = of_latents_of(width, format).unwrap_err();
        let wanted = "the CUDA backend has no kernels for latents of another width than 64, 128, 256 and 512";
        assert!(refused.contains(wanted), "{refused}");
    }
    assert!(of_latents_of(192, "turbo4").unwrap_err().contains("latents of \"latent\" are 192 wide"));
    let refused = of_latents("f32").unwrap_err();
    assert!(refused.contains("no kernel keeps latents as f32"), "{refused}");
    let refused = of_latents("turbo8/turbo4").unwrap_err();
    assert!(refused.contains("latents of \"latent\" are keys and values at once"), "{refused}");
    // A checkpoint's static scales would be read for nothing.
    let search = [targets()];
    let mut target =
        spec::load(&search, "h200/mistral-small-4/nvfp4").unwrap_or_else(|error| panic!("{error}"));
    let [keys, values] = ["l.{layer}.k", "l.{layer}.v"].map(str::to_owned);
    target.quant.kv_scales = Some(KvScaleNames { keys, values });
    let refused = spec::with_kv(target, KvFormats::both(Cached::Fp8)).unwrap_err().to_string();
    assert!(refused.contains("`kv.scales` are named, and latents of \"latent\""), "{refused}");
}
