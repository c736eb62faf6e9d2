//! What a worker answers over HTTP: how it is, and nothing else.

use monomorph_model::Progress;
use serde_json::json;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a client may take to ask, and to read the answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of a request that are read; its first line is in them, or it is none.
const MOST: usize = 8 << 10;

/// How a worker is.
#[derive(Clone, Debug)]
pub(crate) struct WorkerHealth {
    pub(crate) rank: u32,
    pub(crate) processes: u32,
    pub(crate) progress: Arc<Progress>,
    /// Whether its programs are recorded: it carries out what the head says.
    pub(crate) ready: Arc<AtomicBool>,
}

impl WorkerHealth {
    /// Answers at this address from now on, on a thread of its own; returns the port.
    ///
    /// # Errors
    /// When the address is taken.
    pub(crate) fn listen(self, bind: IpAddr, port: u16) -> Result<u16, String> {
        let cannot =
            |error: std::io::Error| format!("--health-port: cannot listen at {bind}:{port}: {error}");
        let listener = TcpListener::bind((bind, port)).map_err(cannot)?;
        let port = listener.local_addr().map_err(cannot)?.port();
        let answer = move || {
            for stream in listener.incoming().flatten() {
                // A client that hangs up early is not answered.
                let _ = self.answer(stream);
            }
        };
        std::thread::Builder::new().name("health".into()).spawn(answer).map_err(cannot)?;
        Ok(port)
    }

    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let (mut request, mut chunk) = (Vec::new(), [0; 512]);
        while request.len() < MOST && !request.windows(4).any(|end| end == b"\r\n\r\n") {
            match stream.read(&mut chunk)? {
                0 => break,
                count => request.extend(&chunk[..count]),
            }
        }
        let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let (status, body) = self.of(&String::from_utf8_lossy(line));
        let length = body.len();
        write!(
            stream,
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
        )
    }

    /// Status and body for a request's first line.
    fn of(&self, line: &str) -> (&'static str, String) {
        let mut words = line.split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if method != "GET" || !["/health", "/health/live", "/health/ready"].contains(&path) {
            let why = "a worker answers GET /health, /health/live and /health/ready; rank 0 serves";
            return ("404 Not Found", json!({ "error": why }).to_string());
        }
        let (ready, (loaded, total)) = (self.ready.load(Ordering::Acquire), self.progress.read());
        let body = json!({
            "status": if ready { "ready" } else { "starting" }, "rank": self.rank, "world_size": self.processes,
            "loaded_bytes": loaded, "total_bytes": total,
        });
        let status = if ready || path == "/health/live" { "200 OK" } else { "503 Service Unavailable" };
        (status, body.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(port: u16, line: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        write!(stream, "{line} HTTP/1.1\r\nhost: x\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    }

    #[test]
    fn a_worker_says_how_it_is_and_nothing_else() {
        let (progress, ready) = (Arc::new(Progress::default()), Arc::<AtomicBool>::default());
        progress.expect(10);
        progress.advance(4);
        let health = WorkerHealth { rank: 1, processes: 2, progress, ready: Arc::clone(&ready) };
        let port = health.listen(IpAddr::from([127, 0, 0, 1]), 0).expect("a free port");
        let starting = ask(port, "GET /health");
        assert!(
            starting.starts_with("HTTP/1.1 503 ") && starting.contains("\"loaded_bytes\":4"),
            "{starting}"
        );
        assert!(ask(port, "GET /health/live").starts_with("HTTP/1.1 200 "));
        ready.store(true, Ordering::Release);
        let now = ask(port, "GET /health/ready");
        assert!(now.starts_with("HTTP/1.1 200 ") && now.contains("\"status\":\"ready\""), "{now}");
        for other in ["GET /metrics", "POST /health", "GET /v1/models", "nothing"] {
            assert!(ask(port, other).starts_with("HTTP/1.1 404 "), "{other}");
        }
    }
}
