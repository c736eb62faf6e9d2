//! Temporary: a checkpoint of holes for a target.
use monomorph_compiler::plan::FieldKind;
use monomorph_compiler::{spec, toolchain};
use monomorph_formats::{Format, encode};
use monomorph_tests::root;
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

#[test]
#[ignore]
fn write() {
    let name = std::env::var("MADE_UP_TARGET").unwrap();
    let out = PathBuf::from(std::env::var("MADE_UP_OUT").unwrap());
    std::fs::create_dir_all(&out).unwrap();
    let target = spec::load(&[root().join("targets")], &name).unwrap_or_else(|error| panic!("{error}"));
    let plan = toolchain::plan(&target).unwrap();
    let mut all: BTreeMap<String, (Vec<usize>, Format, u8)> = BTreeMap::new();
    for field in &plan.fields {
        let format = match field.kind {
            FieldKind::Matrix { format, .. }
            | FieldKind::Vector { format, .. }
            | FieldKind::Convolution { format, .. }
            | FieldKind::Heads { format, .. }
            | FieldKind::Norm { format, .. } => format,
        };
        let layers = field.owner.map_or(vec![0], |owner| plan.bodies[owner.0].layers.clone());
        let is_norm = matches!(field.kind, FieldKind::Norm { .. });
        for layer in layers {
            for part in &field.parts {
                let experts = part.experts.filter(|_| part.file.name.contains("{expert}")).unwrap_or(1);
                for expert in 0..experts {
                    let named = |name: &str| {
                        name.replace("{layer}", &layer.to_string()).replace("{expert}", &expert.to_string())
                    };
                    // 0 holes, 1 random, 2 ones.
                    let how = if part.experts.is_some() {
                        0
                    } else if is_norm {
                        2
                    } else {
                        1
                    };
                    all.insert(named(&part.file.name), (part.file_shape.clone(), format, how));
                    for it in part.scales.iter().flat_map(|scales| &scales.companions) {
                        all.insert(named(&it.name), (it.shape.clone(), it.format, 2));
                    }
                }
            }
        }
    }
    let (mut header, mut at) = (serde_json::Map::new(), 0usize);
    for (name, (shape, format, _)) in &all {
        let elements: usize = shape.iter().product();
        let bytes = format.bytes(elements).unwrap();
        let (dtype, shape) = match format {
            Format::F32 => ("F32", shape.clone()),
            Format::Bf16 => ("BF16", shape.clone()),
            Format::Fp8E4m3 => ("F8_E4M3", shape.clone()),
            Format::Nvfp4 => ("U8", vec![shape[0], shape[1] / 2]),
            other => panic!("{other}"),
        };
        header.insert(
            name.clone(),
            serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": [at, at + bytes]}),
        );
        at += bytes;
    }
    let header = serde_json::to_string(&header).unwrap();
    let mut file = std::fs::File::create(out.join("model.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    let start = 8 + header.len();
    file.set_len((start + at) as u64).unwrap();
    let (mut place, mut state) = (start as u64, 1u64);
    for (shape, format, how) in all.values() {
        let elements: usize = shape.iter().product();
        let bytes = format.bytes(elements).unwrap();
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / 8_388_608.0 - 1.0
        };
        let data = match (how, format) {
            (0, _) => None,
            (1, Format::Nvfp4) => {
                Some((0..bytes).map(|_| ((next() + 1.0) * 127.0) as u8).collect::<Vec<u8>>())
            }
            (1, _) => {
                let wide = *shape.last().unwrap_or(&1) as f32;
                let values: Vec<f32> = (0..elements).map(|_| next() * 1.7 / wide.sqrt()).collect();
                Some(encode(*format, &values))
            }
            // Of nvfp4 6 by 1/4 by this.
            (_, Format::Fp8E4m3) => Some(vec![0x28; bytes]),
            (_, Format::F32) if elements == 1 => Some(0.05f32.to_le_bytes().to_vec()),
            _ => Some(encode(*format, &vec![1.0; elements])),
        };
        if let Some(data) = data {
            file.write_all_at(&data, place).unwrap();
        }
        place += bytes as u64;
    }
    let mut tokens = serde_json::Map::new();
    let vocabulary = target.model.vocabulary;
    // Bytes as ByteLevel writes them, then names.
    for (id, letter) in (b'!'..=b'~').map(char::from).enumerate() {
        tokens.insert(letter.to_string(), id.into());
    }
    for id in tokens.len()..vocabulary {
        tokens.insert(format!("t{id}x"), id.into());
    }
    monomorph_tests::crowd::write_tokenizer(tokens, &out);
    println!("{} tensors, {} bytes, header {}", all.len(), at, header.len());
}

#[test]
#[ignore]
fn build() {
    let name = std::env::var("MADE_UP_TARGET").unwrap();
    println!("SERVER {}", monomorph_tests::server::build(None, &name).display());
}
