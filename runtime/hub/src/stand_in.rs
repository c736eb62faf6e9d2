//! A hub in this process, for tests: one repository, and faults that are planted into its answers.

use crate::disk::digests;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The commit of the repository.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The name that the repository had before; the hub redirects from it.
pub const FORMER: &str = "former/name";

/// Files in a page of the list of files.
const PAGE: usize = 4;

/// A file of the repository.
#[derive(Clone)]
struct Kept {
    path: String,
    content: Vec<u8>,
    sha256: String,
    git: String,
}

impl Kept {
    /// Weights are kept at another host, as hubs keep large files.
    fn large(&self) -> bool {
        self.path.ends_with(".safetensors")
    }
}

/// A request, as far as answers depend on it.
#[derive(Clone, Debug)]
pub struct Request {
    /// HEAD or GET.
    pub method: String,
    /// Path with its query.
    pub path: String,
    /// Whether the host that keeps large files was asked.
    pub elsewhere: bool,
    /// First byte of the range that was asked for.
    pub begin: Option<u64>,
    /// Byte after its last.
    pub end: Option<u64>,
    /// The header of this name.
    pub authorization: Option<String>,
}

/// An answer, to be changed by a fault.
#[derive(Clone)]
pub struct Reply {
    /// The code of its first line.
    pub status: u16,
    /// Headers, without those of length and connection.
    pub headers: Vec<(String, String)>,
    /// The body of a GET.
    pub body: Vec<u8>,
    /// What the header says of the length, if it is not the body's.
    pub length: Option<usize>,
    /// Bytes of the body after which the connection closes.
    pub cut: Option<usize>,
    /// Pause after every byte of the body.
    pub slow: Option<Duration>,
    /// Pause before anything is answered.
    pub late: Option<Duration>,
    /// Whether the connection closes without an answer.
    pub dropped: bool,
}

impl Reply {
    fn of(status: u16, headers: &[(&str, &str)], body: Vec<u8>) -> Reply {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let headers = headers.iter().map(owned).collect();
        Reply { status, headers, body, length: None, cut: None, slow: None, late: None, dropped: false }
    }

    /// Becomes an answer without content.
    pub fn become_status(&mut self, status: u16, headers: &[(&str, &str)]) {
        *self = Reply::of(status, headers, b"<html>no</html>".to_vec());
    }

    /// Sets a header, or takes it out.
    pub fn header(&mut self, name: &str, value: Option<&str>) {
        self.headers.retain(|(it, _)| it != name);
        self.headers.extend(value.map(|value| (name.to_owned(), value.to_owned())));
    }
}

/// Which requests a fault is planted into.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum On {
    /// The commit of a revision.
    Revision,
    /// The list of files.
    Tree,
    /// What a file is.
    Head(&'static str),
    /// A file of the hub itself, or its redirect.
    Get(&'static str),
    /// The bytes of a large file, by the number of the shard.
    Bytes(&'static str),
}

/// A fault: into which requests, how often, and what becomes of the answer.
#[derive(Clone, Copy)]
pub struct Fault {
    /// Which requests.
    pub on: On,
    /// How often; `u32::MAX` is for ever.
    pub times: u32,
    /// What becomes of the answer.
    pub does: fn(&Request, &mut Reply),
}

struct State {
    id: String,
    files: Vec<Kept>,
    token: Option<String>,
    port: u16,
    faults: Vec<Fault>,
    requests: Vec<Request>,
}

/// The hub. Its thread ends with the process.
#[derive(Clone)]
pub struct StandIn {
    state: Arc<Mutex<State>>,
    port: u16,
}

impl StandIn {
    /// Serves a repository of these files. With a token it is gated.
    ///
    /// # Panics
    /// When this machine has no free port on loopback.
    pub fn serve(id: &str, files: Vec<(String, Vec<u8>)>, token: Option<&str>) -> StandIn {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let scratch = tempfile::NamedTempFile::new().expect("a temporary file");
        let kept = |(path, content): (String, Vec<u8>)| {
            std::fs::write(scratch.path(), &content).expect("it is writable");
            let found = digests(scratch.path(), true).expect("it is readable");
            Kept { path, content, sha256: found.sha256, git: found.git }
        };
        let files = files.into_iter().map(kept).collect();
        let (id, token) = (id.to_owned(), token.map(str::to_owned));
        let state = State { id, files, token, port, faults: Vec::new(), requests: Vec::new() };
        let state = Arc::new(Mutex::new(state));
        let served = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&served);
                std::thread::spawn(move || answer(&state, &stream));
            }
        });
        StandIn { state, port }
    }

    /// The files of a directory, for [`StandIn::serve`].
    ///
    /// # Panics
    /// When they cannot be read.
    pub fn files_of(directory: &Path) -> Vec<(String, Vec<u8>)> {
        let entries = std::fs::read_dir(directory).expect("a directory").map(|it| it.expect("an entry"));
        let files = entries.filter(|it| it.path().is_file());
        let named = files.map(|it| {
            let name = it.file_name().into_string().expect("a name in UTF-8");
            (name, std::fs::read(it.path()).expect("it is readable"))
        });
        let mut named: Vec<_> = named.collect();
        named.sort();
        named
    }

    /// Its address.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Plants these faults in place of all others, and forgets earlier requests.
    pub fn plant(&self, faults: &[Fault]) {
        let mut state = held(&self.state);
        state.faults = faults.to_vec();
        state.requests.clear();
    }

    /// The requests since [`StandIn::plant`].
    pub fn requests(&self) -> Vec<Request> {
        held(&self.state).requests.clone()
    }

    /// SHA-256 of a file.
    pub fn sha256(&self, path: &str) -> Option<String> {
        held(&self.state).files.iter().find(|it| it.path == path).map(|it| it.sha256.clone())
    }
}

fn held(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads one request and answers it. A client that went away is none of its business.
fn answer(state: &Mutex<State>, stream: &TcpStream) {
    let Some(request) = read(stream) else { return };
    let reply = {
        let mut state = held(state);
        state.requests.push(request.clone());
        let mut reply = state.reply(&request);
        let (path, shard) = (request.path.clone(), state.shard(&request));
        let fits = |on: On| match on {
            On::Revision => path.contains("/revision/"),
            On::Tree => path.contains("/tree/"),
            On::Head(file) => request.method == "HEAD" && path.ends_with(file),
            On::Get(file) => request.method == "GET" && !request.elsewhere && path.ends_with(file),
            On::Bytes(file) => shard.as_ref().is_some_and(|it| it.contains(file)),
        };
        let fault = state.faults.iter_mut().find(|it| it.times > 0 && fits(it.on));
        if let Some(fault) = fault {
            fault.times = if fault.times == u32::MAX { u32::MAX } else { fault.times - 1 };
            (fault.does)(&request, &mut reply);
        }
        reply
    };
    // The client may have gone.
    let _ = write(stream, &request, &reply);
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let mut request = Request { method, path, elsewhere: false, begin: None, end: None, authorization: None };
    for line in lines {
        let line = line.ok()?;
        let Some((name, value)) = line.split_once(':') else { break };
        let value = value.trim();
        match name.to_lowercase().as_str() {
            "host" => request.elsewhere = value.starts_with("localhost"),
            "authorization" => request.authorization = Some(value.to_owned()),
            "range" => {
                let (begin, end) = value.strip_prefix("bytes=")?.split_once('-')?;
                request.begin = begin.parse().ok();
                request.end = end.parse::<u64>().ok().map(|last| last + 1);
            }
            _ => {}
        }
    }
    Some(request)
}

impl State {
    /// Path of the large file that is asked for at the other host.
    fn shard(&self, request: &Request) -> Option<String> {
        let digest = request.path.strip_prefix("/kept/").filter(|_| request.elsewhere)?;
        self.files.iter().find(|it| digest.starts_with(&it.sha256)).map(|it| it.path.clone())
    }

    fn reply(&self, request: &Request) -> Reply {
        if request.elsewhere {
            let shard = self.shard(request);
            let file = self.files.iter().find(|it| Some(&it.path) == shard.as_ref());
            // Signed addresses want no token: one that comes here is given away.
            let leaked = request.authorization.is_some();
            return match file.filter(|_| !leaked) {
                Some(file) => ranged(request, &file.content, &[("etag", "\"elsewhere\"")]),
                None => Reply::of(400, &[], Vec::new()),
            };
        }
        if let Some(rest) = request.path.strip_prefix(&format!("/{FORMER}/")) {
            return Reply::of(307, &[("location", &format!("/{}/{rest}", self.id))], Vec::new());
        }
        let own = self.token.as_ref().map(|token| format!("Bearer {token}"));
        if own.is_some() && own != request.authorization {
            return Reply::of(401, &[("x-error-code", "GatedRepo"), ("x-error-message", "ask")], Vec::new());
        }
        let api = format!("/api/models/{}/", self.id);
        let files = format!("/{}/resolve/", self.id);
        if let Some(rest) = request.path.strip_prefix(&api) {
            return self.api(rest);
        }
        match request.path.strip_prefix(&files).and_then(|rest| rest.split_once('/')) {
            Some((revision, path)) => self.file(request, revision, path),
            None => Reply::of(401, &[("x-error-code", "RepoNotFound")], Vec::new()),
        }
    }

    fn api(&self, rest: &str) -> Reply {
        let json = |value: serde_json::Value| Reply::of(200, &[], value.to_string().into_bytes());
        match rest.split_once('/') {
            Some(("revision", "main" | COMMIT)) => json(serde_json::json!({ "sha": COMMIT })),
            Some(("tree", query)) if query.starts_with(COMMIT) => {
                let page: usize = query.split_once("page=").map_or(0, |(_, it)| it.parse().unwrap_or(0));
                let listed = self.files.iter().skip(page * PAGE).take(PAGE).map(|it| {
                    let lfs = it.large().then(|| {
                        serde_json::json!({ "oid": it.sha256, "size": it.content.len(), "pointerSize": 130 })
                    });
                    let mut entry = serde_json::json!({
                        "type": "file", "oid": it.git, "size": it.content.len(), "path": it.path,
                    });
                    if let Some(lfs) = lfs {
                        entry["lfs"] = lfs;
                    }
                    entry
                });
                let mut reply = json(listed.collect());
                if (page + 1) * PAGE < self.files.len() {
                    let next = format!(
                        "<http://127.0.0.1:{}/api/models/{}/tree/{COMMIT}?recursive=true&page={}>; rel=\"next\"",
                        self.port,
                        self.id,
                        page + 1
                    );
                    reply.header("link", Some(&next));
                }
                reply
            }
            _ => Reply::of(404, &[("x-error-code", "RevisionNotFound")], Vec::new()),
        }
    }

    fn file(&self, request: &Request, revision: &str, path: &str) -> Reply {
        let missing = |code: &str| Reply::of(404, &[("x-error-code", code)], Vec::new());
        if revision != "main" && revision != COMMIT {
            return missing("RevisionNotFound");
        }
        let path = path.split('?').next().unwrap_or_default();
        let Some(file) = self.files.iter().find(|it| it.path == path) else {
            return missing("EntryNotFound");
        };
        let quoted = |digest: &str| format!("\"{digest}\"");
        if file.large() {
            // The etag of the redirect itself is no digest of the file.
            let address = format!("http://localhost:{}/kept/{}?signed=1", self.port, file.sha256);
            let headers = [
                ("location", address.as_str()),
                ("x-repo-commit", COMMIT),
                ("etag", "\"of-the-redirect\""),
                ("x-linked-etag", &quoted(&file.sha256)),
                ("x-linked-size", &file.content.len().to_string()),
            ];
            return Reply::of(302, &headers, b"Found. Redirecting".to_vec());
        }
        ranged(request, &file.content, &[("x-repo-commit", COMMIT), ("etag", &quoted(&file.git))])
    }
}

/// The content, or the part of it that is asked for.
fn ranged(request: &Request, content: &[u8], headers: &[(&str, &str)]) -> Reply {
    let Some(begin) = request.begin else { return Reply::of(200, headers, content.to_vec()) };
    let whole = content.len() as u64;
    if begin >= whole {
        return Reply::of(416, &[("content-range", &format!("bytes */{whole}"))], Vec::new());
    }
    let end = request.end.unwrap_or(whole).min(whole);
    let mut reply = Reply::of(206, headers, content[begin as usize..end as usize].to_vec());
    reply.header("content-range", Some(&format!("bytes {begin}-{}/{whole}", end - 1)));
    reply
}

fn write(mut stream: &TcpStream, request: &Request, reply: &Reply) -> std::io::Result<()> {
    std::thread::sleep(reply.late.unwrap_or_default());
    if reply.dropped {
        return stream.shutdown(std::net::Shutdown::Both);
    }
    let mut head = format!("HTTP/1.1 {} It\r\nconnection: close\r\n", reply.status);
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("content-length: {}\r\n\r\n", reply.length.unwrap_or(reply.body.len()));
    stream.write_all(head.as_bytes())?;
    if request.method == "HEAD" {
        return Ok(());
    }
    let body = &reply.body[..reply.cut.unwrap_or(usize::MAX).min(reply.body.len())];
    let Some(pause) = reply.slow else { return stream.write_all(body) };
    for byte in body {
        stream.write_all(&[*byte])?;
        std::thread::sleep(pause);
    }
    Ok(())
}
