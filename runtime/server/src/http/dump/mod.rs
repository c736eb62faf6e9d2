//! Copies requests and responses to the [dump](crate::http::dump::file).

pub(crate) mod file;

use self::file::Dump;
use crate::http::app::App;
use crate::http::request_id;
use crate::process::clock::unix_time;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::State;
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use futures_util::StreamExt;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Bytes of a body that are copied at most.
const MOST: usize = 64 << 20;
/// Statuses answered before a request is read.
const TURNED_AWAY: [StatusCode; 4] = [
    StatusCode::UNAUTHORIZED,
    StatusCode::FORBIDDEN,
    StatusCode::MISDIRECTED_REQUEST,
    StatusCode::UNSUPPORTED_MEDIA_TYPE,
];

/// Copies a request that can have an effect, and its response, if there is a dump.
pub(crate) async fn record(State(app): State<Arc<App>>, request: Request<Body>, next: Next) -> Response {
    let Some(dump) = app.dump.as_ref().filter(|_| request.method() != Method::GET) else {
        return next.run(request).await;
    };
    let record = Shared(Arc::new(Mutex::new(Record {
        dump: Arc::clone(dump),
        time: unix_time(),
        began: Instant::now(),
        id: request_id::of(request.headers()).map(str::to_owned),
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
        request: Copy::default(),
        status: None,
        streamed: false,
        response: Copy::default(),
    })));
    let copy = record.clone();
    let request = request.map(|body| copied(body, move |chunk| copy.lock().request.take(chunk)));
    let mut response = next.run(request).await;
    // A copied body has no known length.
    let length = response.body().size_hint().exact();
    if let Some(length) = length {
        response.headers_mut().entry(header::CONTENT_LENGTH).or_insert(length.into());
    }
    {
        let mut record = record.lock();
        record.status = Some(response.status().as_u16());
        record.id = request_id::of(response.headers()).map(str::to_owned);
        record.streamed = is_stream(response.headers());
        record.response.length = length;
    }
    response.map(|body| copied(body, move |chunk| record.lock().response.take(chunk)))
}

/// The same body; `see` is shown each chunk, and then the end.
fn copied(body: Body, mut see: impl FnMut(Option<&Bytes>) + Send + 'static) -> Body {
    let mut stream = body.into_data_stream();
    Body::from_stream(futures_util::stream::poll_fn(move |context| {
        let polled = stream.poll_next_unpin(context);
        match &polled {
            std::task::Poll::Ready(Some(Ok(chunk))) => see(Some(chunk)),
            std::task::Poll::Ready(None) => see(None),
            _ => {}
        }
        polled
    }))
}

fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("text/event-stream"))
}

/// The record of one request, shared by its two directions.
#[derive(Clone)]
struct Shared(Arc<Mutex<Record>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A body as far as it went through.
#[derive(Default)]
struct Copy {
    bytes: Vec<u8>,
    cut: bool,
    /// Its declared length, if known. The reader may stop there without seeing the end.
    length: Option<u64>,
    taken: u64,
    /// Whether its end went through too.
    ended: bool,
}

impl Copy {
    fn take(&mut self, chunk: Option<&Bytes>) {
        let Some(chunk) = chunk else {
            self.ended = true;
            return;
        };
        self.taken += chunk.len() as u64;
        let room = MOST - self.bytes.len();
        self.cut |= chunk.len() > room;
        self.bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
    }

    /// Whether all of it went through.
    fn is_whole(&self) -> bool {
        self.ended || self.length == Some(self.taken)
    }

    /// As JSON, else as text; null when empty.
    fn value(&self) -> Value {
        match serde_json::from_slice(&self.bytes) {
            _ if self.bytes.is_empty() => Value::Null,
            Ok(value) => value,
            Err(_) => String::from_utf8_lossy(&self.bytes).into_owned().into(),
        }
    }

    /// The data of server-sent events, each as JSON, else as text.
    fn events(&self) -> Value {
        let text = String::from_utf8_lossy(&self.bytes);
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.map(|data| serde_json::from_str(data).unwrap_or_else(|_| Value::from(data))).collect()
    }
}

/// A request and its response, written when dropped: at the response's end, or when the client has gone.
struct Record {
    dump: Arc<Dump>,
    time: u64,
    began: Instant,
    /// The client's own, until there is a response, which has one.
    id: Option<String>,
    method: String,
    path: String,
    request: Copy,
    /// `None` if there was no response.
    status: Option<u16>,
    streamed: bool,
    response: Copy,
}

impl Drop for Record {
    fn drop(&mut self) {
        // A request without a valid key leaves no line.
        if self.status.is_some_and(|status| TURNED_AWAY.iter().any(|it| *it == status)) {
            return;
        }
        let mut line = json!({
            "time": self.time,
            "seconds": self.began.elapsed().as_secs_f64(),
            "id": self.id,
            "method": self.method,
            "path": self.path,
            "request": self.request.value(),
            "status": self.status,
            "complete": self.status.is_some() && self.response.is_whole(),
        });
        if self.request.cut || self.response.cut {
            line["cut"] = true.into();
        }
        if self.streamed {
            line["events"] = self.response.events();
        } else {
            line["response"] = self.response.value();
        }
        self.dump.write(&line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_json_text_or_events() {
        let copy = |bytes: &[u8]| Copy { bytes: bytes.to_vec(), ..Copy::default() };
        assert_eq!(copy(b"{\"a\": 1}").value(), json!({"a": 1}));
        assert_eq!(copy(b"no json").value(), json!("no json"));
        assert_eq!(copy(b"").value(), Value::Null);
        let events = b"event: a\ndata: {\"a\":1}\n\n: keep-alive\n\ndata: [DONE]\n\n";
        assert_eq!(copy(events).events(), json!([{"a": 1}, "[DONE]"]));
        let mut long = copy(&vec![b'x'; MOST - 1]);
        long.take(Some(&Bytes::from_static(b"yz")));
        assert!(long.cut && long.bytes.len() == MOST && long.bytes.last() == Some(&b'y') && !long.is_whole());
    }
}
