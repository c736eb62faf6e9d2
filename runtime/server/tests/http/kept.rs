//! `--keep-prefixes`: what prompts have in common is found by the next process, and never wrongly. The
//! scripted model reads a prompt from the blocks that it is given, so an answer behind a block that is not
//! what it was is another answer.
//!
//! Planted, one at a time, and caught here: weights left out of what the files are bound to; files that
//! others may read, and links, opened; a page whose checksum is not compared; pages behind the end of their
//! file trusted; damaged entries not counted; an entry written in the next one's place; entries that stay
//! when answers were wrong. Planted and not seen, since checksums find what they leave: an entry written
//! before its page, one not cleared when its page goes, and the header of before kept.

use crate::clock;
use crate::lifecycle::CHAT;
use crate::process::{Server, checkpoint, run};
use crate::supervised::{child, signal};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Tokens of a block.
const BLOCK: u64 = 16;
const SOON: Duration = Duration::from_secs(10);

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn start(weights: &Path, kept: &Path, more: &[&str]) -> Server {
    Server::start_at(weights, &[&["--keep-prefixes", text(kept)], more].concat())
}

/// A prompt of some 300 tokens, and its answer.
fn prompt(number: usize) -> (Value, String) {
    let answer = format!("Number {number} it is");
    let filler: String = (0..24).map(|at| format!("{}. ", (at + 1) * (number + 3))).collect();
    let content = format!("[[say {answer}]] {filler}");
    (json!({"messages": [{"role": "user", "content": content}], "temperature": 0}), answer)
}

/// Asks, checks the answer, and returns the tokens of the prompt and those that were cached.
fn ask(server: &Server, number: usize) -> [u64; 2] {
    let (body, answer) = prompt(number);
    let said = server.post(CHAT, &body).json();
    assert_eq!(said["choices"][0]["message"]["content"], json!(answer), "{said}");
    let usage = &said["usage"];
    [&usage["prompt_tokens"], &usage["prompt_tokens_details"]["cached_tokens"]]
        .map(|count| count.as_u64().expect("a count"))
}

/// Most that can be cached of a prompt.
fn whole(tokens: u64) -> u64 {
    (tokens - 1) / BLOCK * BLOCK
}

/// Asks prompts, and waits until all that is known of them is in the files.
fn fill(server: &Server, numbers: std::ops::Range<usize>) {
    let blocks: u64 = numbers.map(|number| ask(server, number)[0]).map(|tokens| whole(tokens) / BLOCK).sum();
    // They share the beginning of a chat.
    server.wait_for("blocks in the files", |stats| {
        stats["kept_blocks"].as_u64() > Some(blocks / 2) && stats["running"] == 0
    });
    let settled =
        |server: &Server| [server.stats()["kept_blocks"].clone(), server.stats()["cached_blocks"].clone()];
    let began = Instant::now();
    while {
        let [kept, cached] = settled(server);
        kept != cached
    } {
        assert!(clock::since(began) < SOON, "{:?}", settled(server));
        std::thread::sleep(Duration::from_millis(10));
    }
    // The last page's entry is written when the engine hears of it.
    std::thread::sleep(Duration::from_millis(100));
}

fn stop(mut server: Server) {
    server.signal(libc::SIGTERM);
    let (status, stderr) = server.wait(SOON);
    assert!(status.success(), "{status}: {stderr}");
}

/// A prompt of before is found after an orderly end, as long as it can be.
pub fn restart() {
    let (weights, kept) = (checkpoint(), tempfile::tempdir().expect("a temporary directory"));
    let server = start(weights.path(), kept.path(), &[]);
    assert!(server.opening.contains("prefixes kept in"), "{}", server.opening);
    assert_eq!(server.get("/info").json()["engine"]["kept_prefixes"]["blocks_at_start"], 0);
    fill(&server, 0..3);
    for entry in std::fs::read_dir(kept.path()).expect("it is there") {
        let mode = entry.expect("a file").metadata().expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    let blocks = server.stats()["kept_blocks"].clone();
    stop(server);
    for round in 0..2 {
        let server = start(weights.path(), kept.path(), &[]);
        assert_eq!(server.get("/info").json()["engine"]["kept_prefixes"]["blocks_at_start"], blocks);
        let mut back = 0.0;
        for number in 0..3 {
            let [tokens, cached] = ask(&server, number);
            assert_eq!(cached, whole(tokens), "round {round}, prompt {number}");
            let now = server.metric("monomorph:kept_prefix_tokens_total");
            assert!(now > back && now - back <= cached as f64, "{now} after {back}: {cached}");
            back = now;
            // From now on it is in memory.
            assert_eq!(ask(&server, number)[1], cached);
            assert_eq!(server.metric("monomorph:kept_prefix_tokens_total"), now);
        }
        assert_eq!(server.stats()["kept_failures"], 0);
        assert_eq!(server.stats()["kept_blocks"], blocks, "nothing is written twice");
        stop(server);
    }
    let forgetful = Server::start_at(weights.path(), &["--prefix-cache", "off"]);
    (0..3).for_each(|number| assert_eq!(ask(&forgetful, number)[1], 0));
    assert!(forgetful.get("/info").json()["engine"]["kept_prefixes"].is_null());
}

/// Processes that are killed while they compute and write leave what is whole.
pub fn kills() {
    let (weights, kept) = (checkpoint(), tempfile::tempdir().expect("a temporary directory"));
    let mut found = 0;
    for round in 0..8 {
        let mut server = start(weights.path(), kept.path(), &[]);
        // What of these was kept is found, and rightly.
        found += (0..6).map(|number| ask(&server, number)[1]).sum::<u64>();
        std::thread::scope(|scope| {
            for client in 0..4 {
                let address = server.address;
                scope.spawn(move || {
                    for number in 0..20 {
                        let body = prompt(100 * round + 10 * client + number).0;
                        crate::supervised::try_ask(address, &body);
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(7 * round as u64 + 3));
            server.signal(libc::SIGKILL);
            server.wait(SOON);
        });
    }
    assert!(found > 0, "nothing was found again");
}

/// Bits that flip and ends that are cut off cost what they hit, with a line.
pub fn damage() {
    let (weights, kept) = (checkpoint(), tempfile::tempdir().expect("a temporary directory"));
    let [index, pages] = ["index", "pages"].map(|end| kept.path().join(format!("kept-prefixes.{end}")));
    let server = start(weights.path(), kept.path(), &[]);
    fill(&server, 0..4);
    let blocks = server.stats()["kept_blocks"].as_u64().expect("a count");
    stop(server);
    let (whole_index, whole_pages) =
        [&index, &pages].map(|file| std::fs::read(file).expect("it is there")).into();
    let page = 4096;
    let restore = |index_bytes: &[u8], pages_bytes: &[u8]| {
        std::fs::write(&index, index_bytes).expect("written");
        std::fs::write(&pages, pages_bytes).expect("written");
    };
    // Of each block a bit: all are refused when they are read.
    let mut flipped = whole_pages.clone();
    (0..blocks as usize).for_each(|at| flipped[at * page + 5] ^= 0x10);
    restore(&whole_index, &flipped);
    let server = start(weights.path(), kept.path(), &[]);
    (0..4).for_each(|number| assert!(ask(&server, number)[1] < 100, "it is not what it was"));
    assert!(server.stats()["kept_failures"].as_u64() > Some(0));
    // What was computed again is kept again.
    fill(&server, 0..4);
    stop(server);
    let server = start(weights.path(), kept.path(), &[]);
    (0..4).for_each(|number| {
        let [tokens, cached] = ask(&server, number);
        assert_eq!(cached, whole(tokens));
    });
    stop(server);

    // Half of the pages are cut off.
    restore(&whole_index, &whole_pages[..blocks as usize / 2 * page]);
    let server = start(weights.path(), kept.path(), &[]);
    assert!(server.opening.contains("are behind the end, and gone"), "{}", server.opening);
    let cached: u64 = (0..4).map(|number| ask(&server, number)[1]).sum();
    assert!(cached > 0, "the first half is there");
    assert_eq!(server.stats()["kept_failures"], 0);
    stop(server);

    // Bits of entries, and an index that is cut within one.
    let mut flipped = whole_index.clone();
    flipped[4096 + 20] ^= 1;
    restore(&flipped, &whole_pages);
    let server = start(weights.path(), kept.path(), &[]);
    assert!(server.opening.contains("1 entries are damaged"), "{}", server.opening);
    (0..4).for_each(|number| _ = ask(&server, number));
    stop(server);
    restore(&whole_index[..4096 + 1000], &whole_pages);
    let server = start(weights.path(), kept.path(), &[]);
    assert!(server.opening.contains("1 entries are damaged"), "{}", server.opening);
    (0..4).for_each(|number| _ = ask(&server, number));
    stop(server);

    // The header.
    let mut flipped = whole_index.clone();
    flipped[60] ^= 1;
    restore(&flipped, &whole_pages);
    let server = start(weights.path(), kept.path(), &[]);
    assert!(server.opening.contains("are dropped: their index is damaged"), "{}", server.opening);
    (0..4).for_each(|number| _ = ask(&server, number));
}

/// Files of other weights are not used, nor of a running server, nor any that others may read.
pub fn others() {
    let (weights, kept) = (checkpoint(), tempfile::tempdir().expect("a temporary directory"));
    let server = start(weights.path(), kept.path(), &[]);
    fill(&server, 0..2);
    let refused = |more: &[&str], word: &str| {
        let arguments = ["serve", "--port", "0", "--weights", text(weights.path())];
        let output = run(&[&arguments, more].concat());
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(1) && stderr.contains(word),
            "{more:?}: {}: {stderr}",
            output.status
        );
    };
    let directory = ["--keep-prefixes", text(kept.path())];
    refused(&directory, "is another server's, which runs");
    stop(server);

    let other = checkpoint();
    let server = start(other.path(), kept.path(), &[]);
    assert!(
        server.opening.contains("are dropped: they are of another set of weights ("),
        "{}",
        server.opening
    );
    (0..2)
        .for_each(|number| assert_eq!(ask(&server, number)[1] / 100, 0, "nothing but what both begin with"));
    stop(server);

    refused(&["--keep-prefixes", "/nonexistent"], "/nonexistent");
    refused(&[&directory[..], &["--keep-prefixes-space", "0.000001"]].concat(), "hold no block");
    refused(&[&directory[..], &["--keep-prefixes-space", "-1"]].concat(), "above 0");
    refused(&[&directory[..], &["--keep-prefixes-space", "15000"]].concat(), "has room for");
    refused(&[&directory[..], &["--prefix-cache", "off"]].concat(), "--prefix-cache on");
    let index = kept.path().join("kept-prefixes.index");
    std::fs::set_permissions(&index, std::fs::Permissions::from_mode(0o644)).expect("it is there");
    refused(&directory, "it must be 0600");
    std::fs::remove_file(&index).expect("it is there");
    std::os::unix::fs::symlink("/etc/hostname", &index).expect("a link");
    refused(&directory, "cannot be opened");
}

/// Files stay within the size that was asked for, and go on being of use.
pub fn bounded() {
    let (weights, kept) = (checkpoint(), tempfile::tempdir().expect("a temporary directory"));
    let arguments = ["--keep-prefixes-space", "0.0003"];
    let server = start(weights.path(), kept.path(), &arguments);
    let room = server.stats()["total_kept_blocks"].as_u64().expect("a count");
    assert!((20..75).contains(&room), "{room}");
    (0..12).for_each(|number| _ = ask(&server, number));
    server.wait_for("full files", |stats| stats["kept_blocks"].as_u64() == Some(room));
    let taken: u64 = std::fs::read_dir(kept.path())
        .expect("it is there")
        .map(|entry| entry.expect("a file").metadata().expect("a file").len())
        .sum();
    assert!(taken <= 300_000, "{taken}");
    stop(server);
    let server = start(weights.path(), kept.path(), &arguments);
    let [tokens, cached] = ask(&server, 11);
    assert_eq!(cached, whole(tokens), "the prompt used last");
    stop(server);
    // Smaller files keep what fits, larger ones all.
    for space in ["0.00015", "0.001"] {
        let server = start(weights.path(), kept.path(), &["--keep-prefixes-space", space]);
        (0..12).for_each(|number| _ = ask(&server, number));
        stop(server);
    }
}

/// So it is after a crash under a supervisor; wrong answers take what was kept along.
pub fn supervised() {
    let (weights, kept) = (checkpoint(), tempfile::tempdir().expect("a temporary directory"));
    let server = start(weights.path(), kept.path(), &["--supervised"]);
    fill(&server, 0..2);
    let again = |before: i32| {
        let began = Instant::now();
        while child(&server).is_none_or(|id| id == before) {
            assert!(clock::since(began) < SOON, "nobody serves");
            std::thread::sleep(Duration::from_millis(5));
        }
        server.wait_for_status("ok", Instant::now());
    };
    let before = child(&server).expect("a server");
    signal(before, libc::SIGKILL);
    again(before);
    for number in 0..2 {
        let [tokens, cached] = ask(&server, number);
        assert_eq!(cached, whole(tokens));
    }
    let before = child(&server).expect("a server");
    let body = json!({"messages": [{"role": "user", "content": "[[nan]]"}], "max_tokens": 1});
    crate::supervised::try_ask(server.address, &body);
    again(before);
    assert_eq!(server.stats()["kept_blocks_at_start"], 0, "of an engine whose answers were wrong");
    assert_eq!(ask(&server, 0)[1], 0);
}
