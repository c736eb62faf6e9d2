//! A hub that misbehaves: every fault is a clear error or a download that goes on, nothing half-written is
//! ever seen, and what failed succeeds without the fault.

use monomorph_hub::stand_in::{COMMIT, FORMER, Fault, On, Reply, Request, StandIn};
use monomorph_hub::{Error, File, Hub, Limits};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const ID: &str = "owner/name";
const TOKEN: &str = "hf_right";
const EVER: u32 = u32::MAX;
const SHARD: &str = "model-00001-of-00002.safetensors";
const OTHER: &str = "model-00002-of-00002.safetensors";
const SHARD_BYTES: usize = 300_000;

/// Bytes that repeat nowhere.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

fn files() -> Vec<(String, Vec<u8>)> {
    [
        ("config.json", br#"{"model_type": "llama"}"#.to_vec()),
        ("model.safetensors.index.json", br#"{"weight_map": {}}"#.to_vec()),
        (SHARD, noise(1, SHARD_BYTES)),
        (OTHER, noise(2, 20_000)),
        ("tokenizer.json", b"{}".to_vec()),
        ("parts/of/it.txt", b"deep".to_vec()),
    ]
    .map(|(path, content)| (path.to_owned(), content))
    .into()
}

fn hub(stand_in: &StandIn, cache: &Path) -> Hub {
    let limits = Limits {
        connect: Duration::from_secs(2),
        answer: Duration::from_millis(700),
        silence: Duration::from_millis(250),
        least: 1000,
        attempts: 3,
        pause: Duration::from_millis(1),
        longest_pause: Duration::from_secs(2),
    };
    let token = Some(TOKEN.to_owned());
    Hub { endpoint: stand_in.endpoint(), cache: cache.to_owned(), token, offline: false, limits }
}

fn fetch(hub: &Hub) -> Result<PathBuf, Error> {
    let named: Vec<File> = files().into_iter().map(|(path, _)| File::named(path)).collect();
    hub.tree(ID, "main", &mut ())?;
    hub.snapshot(ID, "main", &named, &mut ())
}

/// Files below a directory, links among them.
fn below(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let paths = entries.map(|it| it.unwrap().path());
    paths.flat_map(|it| if it.is_dir() { below(&it) } else { vec![it] }).collect()
}

/// Whatever stands in a snapshot is whole and right, and so is every blob that is called by its etag.
fn nothing_half_written(name: &str, cache: &Path) {
    let root = cache.join("models--owner--name");
    let snapshot = root.join("snapshots").join(COMMIT);
    for path in below(&root.join("snapshots")) {
        let file = path.strip_prefix(&snapshot).unwrap_or_else(|_| panic!("{name}: {}", path.display()));
        let right = files().into_iter().find(|(it, _)| Path::new(it) == file);
        let (_, content) = right.unwrap_or_else(|| panic!("{name}: {} is nobody's", path.display()));
        let found = fs::read(&path).unwrap_or_else(|error| panic!("{name}: {}: {error}", path.display()));
        assert!(found == content, "{name}: {} has {} bytes, not the right ones", path.display(), found.len());
    }
    for path in below(&root.join("blobs")) {
        let whole = path.extension().is_none();
        assert!(
            !whole || files().iter().any(|(_, content)| fs::read(&path).unwrap() == *content),
            "{name}: {} is no file of the repository",
            path.display()
        );
    }
    let outside = below(cache).into_iter().filter(|it| !it.starts_with(&root));
    let outside: Vec<PathBuf> = outside.filter(|it| !it.starts_with(cache.join(".locks"))).collect();
    assert_eq!(outside, Vec::<PathBuf>::new(), "{name}");
}

/// What comes of a fault.
enum Then {
    /// The files, right.
    Right,
    /// The same; a part that was there was not fetched again.
    Resumed,
    /// An error that says this.
    Error(&'static str),
    /// The same; the next attempt goes on where this one ended.
    ErrorThenResumed(&'static str),
}
use Then::{Error as Says, ErrorThenResumed, Resumed, Right};

struct Row {
    name: &'static str,
    faults: Vec<Fault>,
    then: Then,
}

fn row(name: &'static str, on: On, times: u32, does: fn(&Request, &mut Reply), then: Then) -> Row {
    Row { name, faults: vec![Fault { on, times, does }], then }
}

fn cut(reply: &mut Reply, bytes: usize) {
    reply.cut = Some(bytes);
}

fn rows() -> Vec<Row> {
    let bytes = On::Bytes("00001");
    let head = On::Head(SHARD);
    let config = On::Head("config.json");
    vec![
        row("no fault", bytes, 0, |_, _| (), Right),
        // Connections that break.
        row("the connection closes before an answer, once", head, 1, |_, it| it.dropped = true, Right),
        row(
            "the connection closes before an answer, for ever",
            head,
            EVER,
            |_, it| it.dropped = true,
            Says("failed 3 times in a row, the last time because"),
        ),
        row("weights are cut after 100 kB, once", bytes, 1, |_, it| cut(it, 100_000), Resumed),
        row("weights are cut after 100 kB each time", bytes, EVER, |_, it| cut(it, 100_000), Resumed),
        row(
            "weights are cut at their first byte, for ever",
            bytes,
            EVER,
            |_, it| cut(it, 0),
            Says("broke off after 0 bytes"),
        ),
        row(
            "weights are cut, and then the host is gone",
            bytes,
            EVER,
            |request, it| match request.begin {
                None => cut(it, 150_000),
                Some(_) => it.dropped = true,
            },
            ErrorThenResumed("failed 3 times in a row"),
        ),
        row("the list of files is cut, once", On::Tree, 1, |_, it| cut(it, 20), Right),
        row(
            "weights come a byte at a time",
            bytes,
            EVER,
            |_, it| it.slow = Some(Duration::from_millis(20)),
            Says("bytes came in"),
        ),
        row("weights stop coming", bytes, 1, |_, it| it.slow = Some(Duration::from_millis(600)), Right),
        row("no answer in time, once", head, 1, |_, it| it.late = Some(Duration::from_millis(1500)), Right),
        row(
            "a redirect to a host that drops",
            bytes,
            EVER,
            |_, it| it.dropped = true,
            Says("does not answer"),
        ),
        // Wrong bytes.
        row("a wrong byte, once", bytes, 1, |_, it| it.body[7] ^= 1, Right),
        row("a wrong byte, for ever", bytes, EVER, |_, it| it.body[7] ^= 1, Says("has SHA-256")),
        row(
            "a wrong byte in a small file, for ever",
            On::Get("config.json"),
            EVER,
            |_, it| it.body[7] ^= 1,
            Says("is git's blob"),
        ),
        row(
            "a body that is too short, for ever",
            bytes,
            EVER,
            |_, it| it.body.truncate(1000),
            Says("1000 bytes were to follow 0, and the file should have 300000"),
        ),
        row("a body that is too long, once", bytes, 1, |_, it| it.body.push(0), Right),
        row(
            "a page in place of weights, for ever",
            bytes,
            EVER,
            |_, it| it.become_status(200, &[("content-type", "text/html")]),
            Says("were to follow 0"),
        ),
        row(
            "the etag is of another content",
            head,
            EVER,
            |_, it| it.header("x-linked-etag", Some(&format!("\"{}\"", "0".repeat(64)))),
            Says("and should have 0000"),
        ),
        row(
            "the size is of another content",
            head,
            EVER,
            |_, it| it.header("x-linked-size", Some("299999")),
            Says("should have 299999"),
        ),
        row(
            "the content changes between two parts",
            bytes,
            2,
            |request, it| {
                if request.begin.is_none() {
                    it.body[3] ^= 1;
                    cut(it, 100_000);
                }
            },
            Right,
        ),
        // Ranges.
        row(
            "the rest comes as a whole",
            bytes,
            EVER,
            |request, it| match request.begin {
                None => cut(it, 200_000),
                Some(begin) => {
                    it.status = 200;
                    it.headers.clear();
                    it.body = noise(1, SHARD_BYTES);
                    assert!(begin > 0)
                }
            },
            Right,
        ),
        row(
            "the rest is shifted by a byte",
            bytes,
            2,
            |request, it| match request.begin {
                None => cut(it, 200_000),
                Some(begin) => {
                    it.header("content-range", Some(&format!("bytes {}-299999/300000", begin + 1)))
                }
            },
            Right,
        ),
        row(
            "the rest is of a longer file",
            bytes,
            2,
            |request, it| match request.begin {
                None => cut(it, 200_000),
                Some(begin) => it.header("content-range", Some(&format!("bytes {begin}-300000/300001"))),
            },
            Right,
        ),
        row(
            "the rest is not to be had (416)",
            bytes,
            2,
            |request, it| match request.begin {
                None => cut(it, 200_000),
                Some(_) => it.become_status(416, &[]),
            },
            Right,
        ),
        // Statuses.
        row(
            "gated: 401",
            On::Revision,
            EVER,
            |_, it| it.become_status(401, &[("x-error-code", "GatedRepo")]),
            Says("the account of this token has no access: ask for it at"),
        ),
        row(
            "gated: 403 at a file",
            head,
            EVER,
            |_, it| it.become_status(403, &[("x-error-code", "GatedRepo")]),
            Says("owner/name is gated"),
        ),
        row(
            "no such repository: 401",
            On::Revision,
            EVER,
            |_, it| it.become_status(401, &[("x-error-code", "RepoNotFound")]),
            Says("has no model owner/name that this token may read"),
        ),
        row(
            "no such repository: 404",
            On::Revision,
            EVER,
            |_, it| it.become_status(404, &[("x-error-code", "RepoNotFound")]),
            Says("has no model owner/name"),
        ),
        row(
            "no such revision",
            On::Revision,
            EVER,
            |_, it| it.become_status(404, &[("x-error-code", "RevisionNotFound")]),
            Says("has no revision \"main\""),
        ),
        row(
            "no such file",
            head,
            EVER,
            |_, it| it.become_status(404, &[("x-error-code", "EntryNotFound")]),
            Says("has no such file"),
        ),
        row(
            "a token that is not valid",
            On::Revision,
            EVER,
            |_, it| {
                it.become_status(401, &[("x-error-message", "Invalid credentials in Authorization header")])
            },
            Says("the token has to be valid"),
        ),
        row(
            "a token without rights",
            head,
            EVER,
            |_, it| it.become_status(403, &[]),
            Says("was refused (status 403)"),
        ),
        row(
            "an unknown 404",
            head,
            EVER,
            |_, it| it.become_status(404, &[]),
            Says("the answer has status 404"),
        ),
        row(
            "too many requests, come back at once",
            head,
            2,
            |_, it| it.become_status(429, &[("retry-after", "0")]),
            Right,
        ),
        row(
            "too many requests, come back in an hour",
            head,
            1,
            |_, it| it.become_status(429, &[("retry-after", "3600")]),
            Says("asks to come back in 3600 s"),
        ),
        row("500, once", On::Tree, 1, |_, it| it.become_status(500, &[]), Right),
        row("503, for ever", On::Tree, EVER, |_, it| it.become_status(503, &[]), Says("status 503")),
        row(
            "503 in the middle of weights",
            bytes,
            2,
            |request, it| match request.begin {
                None => cut(it, 150_000),
                Some(_) => it.become_status(503, &[]),
            },
            Resumed,
        ),
        row("the signed address expired, once", bytes, 1, |_, it| it.become_status(403, &[]), Right),
        row(
            "the signed address expires in the middle",
            bytes,
            2,
            |request, it| match request.begin {
                None => cut(it, 150_000),
                Some(_) => it.become_status(403, &[]),
            },
            Resumed,
        ),
        row(
            "signed addresses are refused for ever",
            bytes,
            EVER,
            |_, it| it.become_status(403, &[]),
            Says("the signed address was refused with status 403"),
        ),
        // Redirects.
        row(
            "a redirect to itself",
            head,
            EVER,
            |request, it| {
                it.headers.clear();
                it.header("location", Some(&request.path))
            },
            Says("more than 10 redirects"),
        ),
        row(
            "a relative redirect",
            head,
            1,
            |_, it| {
                it.headers.clear();
                it.header("location", Some("model-00001-of-00002.safetensors?again"))
            },
            Right,
        ),
        row(
            "a redirect without an address",
            head,
            EVER,
            |_, it| it.headers.clear(),
            Says("the redirect names no address"),
        ),
        row(
            "a redirect to a file of this machine",
            On::Get(SHARD),
            EVER,
            |_, it| it.header("location", Some("file:///etc/passwd")),
            Says("leads to no web server"),
        ),
        row(
            "a redirect to a host where nobody listens",
            On::Get(SHARD),
            EVER,
            |_, it| it.header("location", Some("http://localhost:1/x")),
            Says("failed 3 times in a row"),
        ),
        // Names and answers that no hub gives.
        row("no commit", config, EVER, |_, it| it.header("x-repo-commit", None), Says("names no commit")),
        row("no etag", config, EVER, |_, it| it.header("etag", None), Says("names no etag")),
        row(
            "a commit that leaves the cache",
            config,
            EVER,
            |_, it| it.header("x-repo-commit", Some("../../x")),
            Says("which is no digest"),
        ),
        row(
            "an etag that leaves the cache",
            config,
            EVER,
            |_, it| it.header("etag", Some("\"../../x\"")),
            Says("which is no digest"),
        ),
        row(
            "another commit for another file",
            head,
            EVER,
            |_, it| it.header("x-repo-commit", Some("c0ffee")),
            Says("is of commit c0ffee"),
        ),
        row(
            "a list with a path that leaves it",
            On::Tree,
            EVER,
            |_, it| it.body = br#"[{"type": "file", "path": "../x", "size": 1}]"#.to_vec(),
            Says("\"../x\" is no file name"),
        ),
        row(
            "a commit in the list that leaves it",
            On::Revision,
            EVER,
            |_, it| it.body = br#"{"sha": "../x"}"#.to_vec(),
            Says("which is no digest"),
        ),
        row(
            "a page in place of JSON",
            On::Revision,
            EVER,
            |_, it| it.become_status(200, &[]),
            Says("is not what a hub says"),
        ),
        row(
            "JSON that ends early",
            On::Tree,
            EVER,
            |_, it| it.body.truncate(40),
            Says("is not what a hub says"),
        ),
        row(
            "a list that goes on at another host",
            On::Tree,
            EVER,
            |_, it| it.header("link", Some("<http://localhost:1/x>; rel=\"next\"")),
            Says("goes on at another host"),
        ),
        row(
            "more weights than any disk has",
            head,
            EVER,
            |_, it| it.header("x-linked-size", Some("9000000000000000000")),
            Says("make room"),
        ),
    ]
}

/// Rows that are tried at once: most of their time is waiting.
const AT_ONCE: usize = 6;

#[test]
fn every_fault_is_a_clear_error_or_a_download_that_goes_on() {
    let began = Instant::now();
    let rows = rows();
    let every = rows.len().div_ceil(AT_ONCE);
    std::thread::scope(|scope| {
        for part in rows.chunks(every) {
            scope.spawn(|| {
                let stand_in = StandIn::serve(ID, files(), Some(TOKEN));
                part.iter().for_each(|row| hold(&stand_in, row));
            });
        }
    });
    println!("{} faults in {:.1} s", rows.len() - 1, began.elapsed().as_secs_f64());
}

/// Fetches with the fault, and again without.
fn hold(stand_in: &StandIn, Row { name, faults, then }: &Row) {
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(stand_in, cache.path());
    stand_in.plant(faults);
    let came = fetch(&hub);
    nothing_half_written(name, cache.path());
    let resumed = || stand_in.requests().iter().any(|it| it.elsewhere && it.begin.is_some());
    match (&came, then) {
        (Ok(_), Right) => {}
        (Ok(_), Resumed) => assert!(resumed(), "{name}: nothing was resumed"),
        (Err(error), Says(words) | ErrorThenResumed(words)) => {
            assert!(error.to_string().contains(words), "{name}: {error}");
        }
        (came, _) => panic!("{name}: {came:?}"),
    }
    assert!(
        stand_in.requests().iter().all(|it| !it.elsewhere || it.authorization.is_none()),
        "{name}: the token was given away"
    );
    stand_in.plant(&[]);
    let snapshot = fetch(&hub).unwrap_or_else(|error| panic!("{name}: without the fault: {error}"));
    assert_eq!(below(&snapshot).len(), files().len(), "{name}");
    nothing_half_written(name, cache.path());
    if matches!(then, ErrorThenResumed(_)) {
        assert!(resumed(), "{name}: the next attempt did not go on");
    }
}

#[test]
fn a_cache_that_cannot_be_written_or_holds_too_much_is_named_or_mended() {
    let stand_in = StandIn::serve(ID, files(), None);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let refused = fetch(&hub(&stand_in, &file)).unwrap_err();
    assert!(matches!(&refused, Error::Disk { path, .. } if path.starts_with(&file)), "{refused}");

    // A file that another program left behind: too long, or as long and wrong, or right as far as it goes.
    let sha256 = stand_in.sha256(SHARD).unwrap();
    let right = noise(1, SHARD_BYTES);
    for (at, (stale, asked)) in [
        (vec![0; SHARD_BYTES + 1], None),
        (vec![0; SHARD_BYTES], None),
        (right[..100_000].to_vec(), Some(100_000)),
        (right.clone(), Some(0)),
    ]
    .into_iter()
    .enumerate()
    {
        let cache = folder.path().join(at.to_string());
        let blobs = cache.join("models--owner--name/blobs");
        fs::create_dir_all(&blobs).unwrap();
        fs::write(blobs.join(format!("{sha256}.incomplete")), &stale).unwrap();
        stand_in.plant(&[]);
        fetch(&hub(&stand_in, &cache)).unwrap_or_else(|error| panic!("{at}: {error}"));
        nothing_half_written("stale", &cache);
        let asks = stand_in.requests().into_iter().filter(|it| it.elsewhere && it.path.contains(&sha256));
        let asks: Vec<Option<u64>> = asks.map(|it| it.begin).collect();
        // All of it was there: nobody was asked.
        assert_eq!(asks, if asked == Some(0) { vec![] } else { vec![asked] }, "{at}");
    }
}

#[test]
fn two_that_fetch_the_same_at_once_fetch_it_once() {
    let stand_in = StandIn::serve(ID, files(), None);
    let cache = tempfile::tempdir().unwrap();
    let (stand_in, cache) = (&stand_in, cache.path());
    std::thread::scope(|scope| {
        let both = [0, 1].map(|_| scope.spawn(move || fetch(&hub(stand_in, cache)).unwrap()));
        let both = both.map(|it| it.join().unwrap());
        assert_eq!(both[0], both[1]);
    });
    nothing_half_written("two at once", cache);
    assert_eq!(stand_in.requests().iter().filter(|it| it.elsewhere).count(), 2, "each shard came once");
}

#[test]
fn a_snapshot_is_found_without_the_hub_may_be_moved_and_names_what_lacks() {
    let stand_in = StandIn::serve(ID, files(), None);
    let folder = tempfile::tempdir().unwrap();
    let (here, there) = (folder.path().join("here"), folder.path().join("there"));
    let online = hub(&stand_in, &here);
    let snapshot = fetch(&online).unwrap();
    assert_eq!(snapshot, here.join("models--owner--name/snapshots").join(COMMIT));
    stand_in.plant(&[]);
    let named = [File::named(SHARD), File::named("parts/of/it.txt")];
    let offline = Hub { offline: true, ..online.clone() };
    for revision in ["main", COMMIT] {
        assert_eq!(offline.snapshot(ID, revision, &named, &mut ()).unwrap(), snapshot);
    }
    online.refer(ID, "v1.0", COMMIT).unwrap();
    assert_eq!(offline.snapshot(ID, "v1.0", &named, &mut ()).unwrap(), snapshot);
    assert!(online.refer(ID, "../up", COMMIT).is_err());
    assert!(stand_in.requests().is_empty(), "the cache has all of it");
    let more = [File::named("more.json")];
    let lacks = offline.snapshot(ID, "main", &more, &mut ()).unwrap_err().to_string();
    assert!(lacks.contains("lacks files of owner/name, and HF_HUB_OFFLINE forbids"), "{lacks}");
    let said = online.snapshot(ID, "main", &[], &mut ()).unwrap_err().to_string();
    assert_eq!(said, "no files of owner/name are named");
    fs::rename(&here, &there).unwrap();
    let moved = there.join("models--owner--name/snapshots").join(COMMIT);
    assert_eq!(fs::read(moved.join("parts/of/it.txt")).unwrap(), b"deep");
    assert_eq!(fs::read(moved.join(SHARD)).unwrap(), noise(1, SHARD_BYTES));
}

#[test]
fn a_digest_that_a_spec_names_holds_whatever_the_hub_says() {
    let stand_in = StandIn::serve(ID, files(), None);
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(&stand_in, cache.path());
    let ask = |path: &str, sha256: &str| {
        let file = File { path: path.to_owned(), sha256: Some(sha256.to_owned()) };
        hub.snapshot(ID, "main", &[file], &mut ())
    };
    let wrong = "0".repeat(64);
    let large = ask(SHARD, &wrong).unwrap_err().to_string();
    assert!(large.contains("on the hub and should have 0000"), "{large}");
    assert!(stand_in.requests().iter().all(|it| !it.elsewhere), "nothing was fetched");
    for _ in 0..2 {
        let small = ask("config.json", &wrong).unwrap_err().to_string();
        assert!(small.contains("config.json of owner/name has SHA-256"), "{small}");
    }
    assert_eq!(below(&cache.path().join("models--owner--name/blobs")), Vec::<PathBuf>::new());
    ask("config.json", &stand_in.sha256("config.json").unwrap()).unwrap();
    ask(SHARD, &stand_in.sha256(SHARD).unwrap()).unwrap();
    nothing_half_written("digests", cache.path());
}

#[test]
fn a_gated_repository_asks_for_a_token_and_a_renamed_one_is_found() {
    let stand_in = StandIn::serve(ID, files(), Some(TOKEN));
    let cache = tempfile::tempdir().unwrap();
    let right = hub(&stand_in, cache.path());
    let bare = Hub { token: None, ..right.clone() };
    let said = fetch(&bare).unwrap_err().to_string();
    let page = format!("ask for access at {}/owner/name", stand_in.endpoint());
    assert!(said.contains(&page) && said.contains("HF_TOKEN"), "{said}");
    let unknown = right.tree("owner/other", "main", &mut ()).unwrap_err().to_string();
    assert!(unknown.contains("has no model owner/other"), "{unknown}");
    let former = right.snapshot(FORMER, "main", &[File::named(SHARD)], &mut ()).unwrap();
    assert_eq!(fs::read(former.join(SHARD)).unwrap(), noise(1, SHARD_BYTES));
}

#[test]
fn a_tree_has_all_pages_and_a_file_a_beginning() {
    let stand_in = StandIn::serve(ID, files(), Some(TOKEN));
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(&stand_in, cache.path());
    let tree = hub.tree(ID, "main", &mut ()).unwrap();
    assert_eq!(tree.commit, COMMIT);
    let found: Vec<(&str, u64)> = tree.files.iter().map(|it| (it.path.as_str(), it.size)).collect();
    let there = files();
    let there: Vec<(&str, u64)> = there.iter().map(|(path, it)| (path.as_str(), it.len() as u64)).collect();
    assert_eq!(found, there);
    assert_eq!(tree.files[2].sha256, stand_in.sha256(SHARD));
    assert_eq!(tree.files[0].sha256, None, "the hub knows no SHA-256 of small files");
    assert_eq!(hub.beginning(ID, COMMIT, SHARD, 100, &mut ()).unwrap(), noise(1, 100));
    assert_eq!(hub.beginning(ID, COMMIT, "config.json", 1 << 20, &mut ()).unwrap(), files()[0].1);
    // A host without ranges sends all of it, of which the beginning is taken.
    let whole = |_: &Request, it: &mut Reply| {
        (it.status, it.body) = (200, noise(1, SHARD_BYTES));
        it.headers.clear();
    };
    stand_in.plant(&[Fault { on: On::Bytes("00001"), times: 1, does: whole }]);
    assert_eq!(hub.beginning(ID, COMMIT, SHARD, 100, &mut ()).unwrap(), noise(1, 100));
    assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0, "nothing is kept");
}
