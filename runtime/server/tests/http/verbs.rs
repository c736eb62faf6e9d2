//! The verbs that end by themselves.

use crate::process::{checkpoint, run};
use crate::scripted::GREETING;
use serde_json::{Value, json};

fn stdout(output: &std::process::Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", output.status);
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

pub fn generate() {
    let weights = checkpoint();
    let weights = weights.path().to_str().expect("UTF-8");
    let output = run(&["generate", "--weights", weights, "--prompt", "Hi"]);
    assert_eq!(stdout(&output), format!("{GREETING}\n"));
    let timings = String::from_utf8_lossy(&output.stderr).into_owned();
    // As a chat: 21 tokens. As it is: 2.
    assert!(timings.contains("prompt 21 tokens"), "{timings}");
    let output = run(&["generate", "--weights", weights, "--prompt", "Hi", "--raw", "--max-tokens", "5"]);
    assert_eq!(stdout(&output), "Hello\n");
    let timings = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(timings.contains("prompt 2 tokens") && timings.contains("length limit"), "{timings}");
    let output = run(&["generate", "--weights", weights, "--prompt", "Hi", "--stop", "wör"]);
    assert_eq!(stdout(&output), "Hello, \n");
    let output = run(&["generate", "--weights", weights, "--prompt", "Hi", "--temperature", "3"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--temperature"));
    let output = run(&["generate", "--weights", weights, "--prompt", "Hi", "--gpu-ordinals", "1,0"]);
    assert_eq!(output.status.code(), Some(1));
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(words.contains("--gpu-ordinals 1,0: this server runs on a CPU"), "{words}");
    let uuid = "GPU-0aF00000-1111-2222-3333-444444444444";
    let output = run(&["generate", "--weights", weights, "--prompt", "Hi", "--gpu-ordinal", uuid]);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains(&format!("--gpu-ordinals {}: ", uuid.replace("aF", "af"))), "{words}");
    let output = run(&["generate", "--weights", weights, "--prompt", "Hi", "--gpu-ordinals", "0,GPU-1"]);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{words}");
    assert!(words.contains("'GPU-1'") && words.contains("nvidia-smi -L"), "{words}");
}

/// The text of `generate` stands where people write it, or is named; one of both.
pub fn generate_text() {
    let weights = checkpoint();
    let weights = weights.path().to_str().expect("UTF-8");
    for arguments in [
        &["generate", "[[say it]]", "--weights", weights][..],
        &["generate", "--weights", weights, "[[say it]]"],
        &["generate", "--weights", weights, "--", "[[say it]]"],
        &["generate", "--weights", weights, "--prompt", "[[say it]]"],
    ] {
        assert_eq!(stdout(&run(arguments)), "it\n", "{arguments:?}");
    }
    for (arguments, words) in [
        (
            &["generate", "a", "--weights", weights, "--prompt", "b"][..],
            &["cannot be used with", "--prompt"][..],
        ),
        (&["generate", "a", "--weights", weights, "--tokens", "b"], &["cannot be used with", "--tokens"]),
        (&["generate", "a", "b", "--weights", weights], &["unexpected argument", "'b'"]),
        (&["generate", "--weights", weights], &["required", "TEXT"]),
    ] {
        let output = run(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(words.iter().all(|word| stderr.contains(word)), "{arguments:?}: {stderr}");
    }
}

pub fn logits() {
    let weights = checkpoint();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let tokens = directory.path().join("tokens.json");
    // One token; more than a step takes; the whole context.
    let lists: Vec<Vec<u32>> =
        [1, 65, 512].iter().map(|&length| (0..length).map(|at| at % 256).collect()).collect();
    std::fs::write(&tokens, json!(lists).to_string()).expect("written");
    let mut files = Vec::new();
    for decode in [false, true] {
        let out = directory.path().join(format!("{decode}.safetensors"));
        let mut arguments = vec!["logits", "--weights", weights.path().to_str().expect("UTF-8"), "--tokens"];
        arguments.extend([tokens.to_str().expect("UTF-8"), "--out", out.to_str().expect("UTF-8")]);
        arguments.extend(decode.then_some("--decode"));
        stdout(&run(&arguments));
        files.push(std::fs::read(&out).expect("written"));
    }
    assert!(files[0] == files[1], "prefill and decode agree");
    let read = safetensors::SafeTensors::deserialize(&files[0]).expect("safetensors");
    assert_eq!(read.len(), 3);
    for (index, list) in lists.iter().enumerate() {
        let tensor = read.tensor(&index.to_string()).expect("there");
        assert_eq!(tensor.dtype(), safetensors::Dtype::F32);
        assert_eq!(tensor.shape(), [list.len(), 259]);
        // The scripted model puts one 1 into every row: that of the first token of its answer, an H.
        for row in tensor.data().chunks(259 * 4) {
            let row: Vec<f32> = row.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            assert_eq!(row.iter().sum::<f32>(), 1.0);
            assert_eq!(row[usize::from(b'H')], 1.0);
        }
    }
    let left: Vec<_> = std::fs::read_dir(directory.path()).expect("readable").collect();
    assert_eq!(left.len(), 3, "no partial file is left: {left:?}");
}

pub fn logits_refusals() {
    let weights = checkpoint();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let tokens = directory.path().join("tokens.json");
    let out = directory.path().join("out.safetensors");
    for (text, words) in [
        ("[[1, 2], [3, 259]]".to_owned(), ["list 1", "259"]),
        ("[[1], []]".to_owned(), ["list 1", "empty"]),
        ("[[1.5]]".to_owned(), ["ids", "line 1"]),
        (json!([vec![1; 513]]).to_string(), ["513", "512"]),
    ] {
        std::fs::write(&tokens, &text).expect("written");
        let output = run(&[
            "logits",
            "--weights",
            weights.path().to_str().expect("UTF-8"),
            "--tokens",
            tokens.to_str().expect("UTF-8"),
            "--out",
            out.to_str().expect("UTF-8"),
        ]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(words.iter().all(|word| stderr.contains(word)), "{stderr}");
        assert!(!out.exists());
    }
}

pub fn bench() {
    let weights = checkpoint();
    let weights = weights.path().to_str().expect("UTF-8");
    let arguments =
        ["bench", "--weights", weights, "--prompt-tokens", "100", "--generate", "8", "--repeat", "2"];
    let report: Value =
        serde_json::from_str(&stdout(&run(&[&arguments[..], &["--json", "--streams", "1,3"]].concat())))
            .expect("one JSON object");
    for kind in ["prefill", "decode"] {
        assert!(report["ours"][kind].as_f64().is_some_and(|rate| rate > 0.0), "{report}");
        assert!(report["limit"][kind].as_f64() > report["predicted"][kind].as_f64());
        assert_eq!(report["samples"][kind].as_array().map(Vec::len), Some(2));
    }
    assert_eq!(report["streams"][1]["streams"], 3);
    assert!(stdout(&run(&arguments)).contains("decode of 8 after 32"));
    let output = run(&["bench", "--weights", weights, "--prompt-tokens", "513"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("512"));
}

pub fn info() {
    let text = stdout(&run(&["info"]));
    for word in ["cpu/echo/none", "embedding", "512", "80 tok/s predicted"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let facts: Value = serde_json::from_str(&stdout(&run(&["info", "--json"]))).expect("one JSON object");
    assert_eq!(facts["target"], "cpu/echo/none");
    assert_eq!(facts["formats"], json!([{"class": "embedding", "stored": "f32", "compute": "f32"}]));
    assert!(facts["weights"].as_str().is_some_and(|path| path.ends_with("monomorph/echo/none")));
    assert_eq!(facts["commit"], "4567cdef+");
    assert_eq!(facts["specs"], json!({"models/echo/MODEL.toml": "0123abcd"}));
}

/// Scripts and pages know every verb and flag, and what is none is refused.
pub fn manual() {
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout(&run(&["completions", shell, "--name", "parrot"]));
        for word in ["parrot", "serve", "tool-max-tokens", "forced-off"] {
            assert!(script.contains(word), "{word}: {script}");
        }
        assert!(!script.contains("try-grammars"), "{shell}");
    }
    let page = stdout(&run(&["manual", "serve"]));
    for word in [".TH", "serve", "gpu\\-ordinals", "forced\\-off"] {
        assert!(page.contains(word), "{word}: {page}");
    }
    assert!(stdout(&run(&["manual"])).contains("generate"));
    let output = run(&["manual", "swim"]);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains("manual swim: there is no such verb; there are serve, generate"), "{words}");
}

/// By target, commit, compiler, formats and specs.
pub fn version() {
    let short = stdout(&run(&["-V"]));
    assert_eq!(short, concat!("server ", env!("CARGO_PKG_VERSION"), " (cpu/echo/none)\n"));
    let long = stdout(&run(&["--version"]));
    assert!(long.starts_with(&short), "{long}");
    for line in [
        "commit     4567cdef+",
        "processor  any of its kind",
        "weights    f32",
        "K/V        f32",
        "spec       0123abcd models/echo/MODEL.toml",
    ] {
        assert!(long.lines().any(|it| it == line), "{line}: {long}");
    }
    assert!(long.contains("compiler   rustc 1."), "{long}");
}
