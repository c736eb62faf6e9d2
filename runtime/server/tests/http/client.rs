//! HTTP/1.1 as written on the wire: what a client library would hide is looked at here.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// An answer, its body put together.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("UTF-8")
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.text()))
    }

    /// The events of a stream; checks their shape and that the last is `[DONE]`.
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.text());
        assert_eq!(self.header("content-type"), Some("text/event-stream; charset=utf-8"));
        let text = self.text().strip_suffix("\n\n").expect("the last event is ended");
        let mut events: Vec<&str> = text.split("\n\n").filter(|event| !event.starts_with(": ")).collect();
        assert_eq!(events.pop(), Some("data: [DONE]"));
        let parse = |event: &str| {
            let data = event.strip_prefix("data: ").unwrap_or_else(|| panic!("not an event: {event:?}"));
            serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data:?}"))
        };
        events.into_iter().map(parse).collect()
    }
}

/// One connection.
pub struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    pub fn open(address: SocketAddr) -> Connection {
        Connection::on(TcpStream::connect(address).expect("the server listens"))
    }

    /// With a server that may take no more of them.
    pub fn try_open(address: SocketAddr, within: Duration) -> Option<Connection> {
        TcpStream::connect_timeout(&address, within).ok().map(Connection::on)
    }

    fn on(stream: TcpStream) -> Connection {
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        Connection { stream: BufReader::new(stream) }
    }

    pub fn post(&mut self, path: &str, body: &Value) -> Response {
        self.request("POST", path, &[], body.to_string().as_bytes())
    }

    pub fn request(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
        self.send(method, path, headers, body);
        self.response()
    }

    /// Sends a request and does not wait for its answer. What every client says (a host, that a body is JSON)
    /// is said unless `headers` say it otherwise; one with an empty value is left out.
    pub fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut head = format!("{method} {path} HTTP/1.1\r\ncontent-length: {}\r\n", body.len());
        let kind = (method == "POST").then_some(("content-type", "application/json"));
        let usual = [("host", "localhost")].into_iter().chain(kind);
        let usual = usual.filter(|(name, _)| !headers.iter().any(|(given, _)| given == name));
        let headers = headers.iter().copied().filter(|(_, value)| !value.is_empty());
        for (name, value) in usual.chain(headers) {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        self.raw(head.as_bytes());
        self.raw(body);
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).expect("the server reads");
    }

    /// [`Connection::raw`], which the server may have answered and closed before all of it is there.
    pub fn try_raw(&mut self, bytes: &[u8]) {
        let _ = self.stream.get_mut().write_all(bytes);
    }

    /// Reads up to and including `text`, which is in the answer's raw bytes.
    pub fn read_until(&mut self, text: &str) {
        let mut seen = Vec::new();
        while !seen.ends_with(text.as_bytes()) {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).expect("more to come");
            seen.push(byte[0]);
        }
    }

    /// Reads everything until the server closes the connection.
    pub fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).expect("readable");
        String::from_utf8(rest).expect("UTF-8")
    }

    /// What is left of a chunked body that has been read in part, up to its end.
    pub fn response_rest(&mut self) -> String {
        let mut rest = String::new();
        while !rest.ends_with("\r\n0\r\n\r\n") {
            rest.push_str(&self.line_as_it_is());
        }
        rest
    }

    pub fn response(&mut self) -> Response {
        let status_line = self.line();
        let status = status_line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("not a status line: {status_line:?}"));
        let mut headers = Vec::new();
        loop {
            let line = self.line();
            let Some((name, value)) = line.split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut response = Response { status, headers, body: Vec::new() };
        if response.header("transfer-encoding") == Some("chunked") {
            loop {
                let size = usize::from_str_radix(&self.line(), 16).expect("a chunk's size");
                let mut chunk = vec![0; size + 2];
                self.stream.read_exact(&mut chunk).expect("a whole chunk");
                response.body.extend_from_slice(&chunk[..size]);
                if size == 0 {
                    break;
                }
            }
        } else {
            let length = response.header("content-length").expect("a length").parse().expect("a number");
            response.body.resize(length, 0);
            self.stream.read_exact(&mut response.body).expect("a whole body");
        }
        response
    }

    fn line(&mut self) -> String {
        self.line_as_it_is().trim_end().to_owned()
    }

    fn line_as_it_is(&mut self) -> String {
        let mut line = String::new();
        assert!(self.stream.read_line(&mut line).expect("a line") > 0, "the connection ended");
        line
    }
}
