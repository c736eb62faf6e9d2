//! Against transformers' processors, torchvision and Pillow: `tests/reference/vision.py` says how.

mod support;

use monomorph_vision::{Family, FileLimits, Grid, ImageFile, Positions, Rgb, Size, Span, VisionSpec, resize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::path::PathBuf;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/vision").join(name)
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(fixture(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn json(name: &str) -> Value {
    serde_json::from_slice(&read(name)).unwrap()
}

fn number(value: &Value) -> u32 {
    value.as_u64().and_then(|it| u32::try_from(it).ok()).expect("a number")
}

fn decode(file: &[u8]) -> Rgb {
    ImageFile::open(file, &FileLimits::DEFAULT).unwrap().decode().unwrap()
}

fn spec(rule: &Value) -> VisionSpec {
    match rule["family"].as_str() {
        Some("qwen") => support::qwen(rule["least"].as_u64().unwrap(), rule["most"].as_u64().unwrap()),
        Some("gemma") => support::gemma(number(&rule["tokens"])),
        _ => support::pixtral(number(&rule["longest"])),
    }
}

fn hex(bytes: impl AsRef<[u8]>) -> String {
    Sha256::digest(bytes.as_ref()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Rows as a processor gives them: Qwen's are those of its tower. Gemma and Pixtral have patches line by
/// line, and of Gemma levels are from 0 to 1: its tower subtracts a half and doubles what is left.
fn as_given(spec: &VisionSpec, patches: Grid, rows: &[f32]) -> Vec<f32> {
    let merge = spec.merge as usize;
    let columns = patches.columns as usize;
    let place = |row: usize, column: usize| {
        let squares_before = row / merge * (columns / merge) + column / merge;
        squares_before * merge * merge + row % merge * merge + column % merge
    };
    let unit = |level: &f32| {
        let sample = ((level + 1.0) * 127.5).round();
        let unit = sample * (1.0 / 255.0_f64) as f32;
        assert_eq!((unit - 0.5) * 2.0, *level);
        unit
    };
    let lines = (0..patches.rows as usize).flat_map(|row| (0..columns).map(move |column| (row, column)));
    let lines = lines
        .flat_map(|(row, column)| &rows[place(row, column) * spec.row_elements()..][..spec.row_elements()]);
    match spec.family {
        Family::Qwen { .. } => rows.to_vec(),
        Family::Gemma { .. } => lines.map(unit).collect(),
        Family::Pixtral { .. } => lines.copied().collect(),
    }
}

#[test]
fn resized_samples_and_rows_are_those_of_the_processors_bit_for_bit() {
    let rules = json("sizes.json");
    let cases = json("cases.json");
    assert!(cases.as_array().unwrap().len() >= 25);
    for case in cases.as_array().unwrap() {
        let (name, rule) = (case["image"].as_str().unwrap(), case["rule"].as_str().unwrap());
        let what = format!("{name} by {rule}");
        let spec = spec(&rules[rule]);
        let bytes = read(&format!("images/{name}"));
        let file = ImageFile::open(&bytes, &FileLimits { ratio: 2000, ..FileLimits::DEFAULT }).unwrap();
        let plan = spec.plan(file.size(), u32::MAX).unwrap();
        let size = Size { width: number(&case["size"][0]), height: number(&case["size"][1]) };
        let patches = Grid { rows: number(&case["grid"][0]), columns: number(&case["grid"][1]) };
        assert_eq!((plan.resized, plan.patches), (size, patches), "{what}");
        assert_eq!(plan.tokens, number(&case["tokens"]), "{what}");
        let resized = resize(file.decode().unwrap(), plan.resized);
        let kept = format!("resized/{rule}-{name}");
        if fixture(&kept).exists() {
            let expected = decode(&read(&kept));
            let (differ, most) = apart(&resized, &expected);
            assert_eq!(differ, 0.0, "{what}: samples differ by up to {most}");
        }
        assert_eq!(hex(resized.samples()), case["u8"], "{what}: other samples");
        let made = spec.patches(&resized);
        assert_eq!(made.len(), patches.cells() as usize * spec.row_elements(), "{what}");
        let rows = as_given(&spec, patches, &made);
        let four = |rows: &[f32]| rows.iter().map(|it| f64::from(*it)).collect::<Vec<f64>>();
        let there = |key: &str| case[key].as_array().unwrap().iter().map(|it| it.as_f64().unwrap()).collect();
        let (first, last): (Vec<f64>, Vec<f64>) = (there("first"), there("last"));
        assert_eq!(four(&rows[..4]), first, "{what}");
        assert_eq!(four(&rows[rows.len() - 4..]), last, "{what}");
        let bytes: Vec<u8> = rows.iter().flat_map(|it| it.to_le_bytes()).collect();
        assert_eq!(hex(bytes), case["rows"], "{what}: other rows");
        assert_eq!(spec.prepare(&file, &plan).unwrap(), made, "{what}");
    }
}

#[test]
fn sizes_and_tokens_are_those_of_the_processors() {
    let rules = json("sizes.json");
    for (name, rule) in rules.as_object().unwrap() {
        let spec = spec(rule);
        let sizes = rule["sizes"].as_array().unwrap();
        assert!(sizes.len() > 300);
        for row in sizes {
            let size = Size { width: number(&row[0]), height: number(&row[1]) };
            let what = format!("{size} by {name}");
            let plan = spec.plan(size, u32::MAX);
            match row[2].as_array() {
                Some(expected) => {
                    let plan = plan.unwrap_or_else(|error| panic!("{what}: {error}"));
                    let found = [plan.resized.width, plan.resized.height, plan.tokens];
                    assert_eq!(found.as_slice(), expected.iter().map(number).collect::<Vec<_>>(), "{what}");
                }
                // Pixtral's rule leaves nothing of a short side, and is no refusal.
                None if name.starts_with("pixtral") => assert!(plan.unwrap().tokens > 0, "{what}"),
                None => assert!(plan.is_err(), "{what}"),
            }
        }
    }
}

/// Which part of two images' samples differs, and by how much at most.
fn apart(found: &Rgb, expected: &Rgb) -> (f64, u8) {
    assert_eq!(found.size(), expected.size());
    let pairs = found.samples().iter().zip(expected.samples());
    let differences: Vec<u8> = pairs.map(|(a, b)| a.abs_diff(*b)).collect();
    let differ = differences.iter().filter(|it| **it > 0).count() as f64 / differences.len() as f64;
    (differ, differences.into_iter().max().unwrap())
}

/// The part that may differ, and the most that a sample may; nothing where a format says every sample.
fn bound(name: &str) -> (f64, u8) {
    match name {
        "colour-420.jpg" | "colour-422.jpg" | "progressive.jpg" => (0.30, 6),
        "cmyk.jpg" => (0.10, 3),
        name if name.ends_with(".jpg") => (0.03, 3),
        "lossy.webp" => (0.30, 6),
        _ => (0.0, 0),
    }
}

#[test]
fn files_are_decoded_as_pillow_decodes_them_within_what_their_format_leaves_open() {
    let mut seen = 0;
    let mut wrong = Vec::new();
    for entry in std::fs::read_dir(fixture("images")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let bytes = read(&format!("images/{name}"));
        let file = ImageFile::open(&bytes, &FileLimits::DEFAULT).unwrap();
        let found = file.decode().unwrap();
        assert_eq!(found.size(), file.size(), "{name}");
        let expected = decode(&read(&format!("decoded/{name}.png")));
        let ((differ, most), bound) = (apart(&found, &expected), bound(&name));
        if differ > bound.0 || most > bound.1 {
            wrong.push(format!("{name}: {:.1} % differ, by up to {most}", differ * 100.0));
        }
        seen += 1;
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(seen >= 35);
}

#[test]
fn positions_on_three_axes_are_those_of_transformers() {
    for case in json("positions.json").as_array().unwrap() {
        let (mut at, mut images) = (0, Vec::new());
        for part in case["parts"].as_array().unwrap() {
            match part.as_array() {
                Some(grid) => {
                    let grid = Grid { rows: number(&grid[0]) / 2, columns: number(&grid[1]) / 2 };
                    let tokens = grid.cells() as usize;
                    images.push((Span { start: at, tokens }, grid));
                    at += tokens;
                }
                None => at += number(part) as usize,
            }
        }
        let found = Positions::new(at, &images);
        let expected: Vec<[u32; 3]> = serde_json::from_value(case["positions"].clone()).unwrap();
        assert_eq!(found.axes, expected, "{}", case["parts"]);
        assert_eq!(Some(found.delta), case["delta"].as_i64(), "{}", case["parts"]);
    }
}
