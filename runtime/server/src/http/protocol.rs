//! Error bodies for requests that are not HTTP: hyper would answer them with a bare status.

use crate::error::ApiError;
use axum::http::StatusCode;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use std::io::{IoSlice, Result};
use std::num::NonZero;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// Most bytes of a request's head: many times what a hundred ordinary headers take.
pub(super) const HEAD_BYTES: usize = 64 << 10;
/// Most headers of a request.
pub(super) const HEADERS: usize = 100;

/// A connection that withholds hyper's own refusals.
pub(super) struct Wire {
    io: TokioIo<TcpStream>,
    refused: Option<StatusCode>,
}

impl Wire {
    pub(super) fn new(stream: TcpStream) -> Wire {
        Wire { io: TokioIo::new(stream), refused: None }
    }

    /// The connection, and the status of the refusal that was withheld.
    pub(super) fn into_parts(self) -> (TcpStream, Option<StatusCode>) {
        (self.io.into_inner(), self.refused)
    }

    /// Withholds a refusal of hyper's.
    fn keeps(&mut self, bytes: &[u8]) -> bool {
        let refusal = bare_refusal(bytes);
        self.refused = refusal.or(self.refused);
        refusal.is_some()
    }
}

impl Read for Wire {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context, into: ReadBufCursor) -> Poll<Result<()>> {
        Pin::new(&mut self.io).poll_read(context, into)
    }
}

impl Write for Wire {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context, bytes: &[u8]) -> Poll<Result<usize>> {
        if self.keeps(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context,
        parts: &[IoSlice],
    ) -> Poll<Result<usize>> {
        if let [part] = parts
            && self.keeps(part)
        {
            return Poll::Ready(Ok(part.len()));
        }
        Pin::new(&mut self.io).poll_write_vectored(context, parts)
    }
}

/// The status of a response that did not come from the router: an error without a body or request id.
fn bare_refusal(bytes: &[u8]) -> Option<StatusCode> {
    let status = bytes.strip_prefix(b"HTTP/1.")?.get(2..5)?;
    let status = StatusCode::from_bytes(status).ok().filter(StatusCode::is_client_error)?;
    let head = std::str::from_utf8(bytes.strip_suffix(b"\r\n\r\n")?).ok()?;
    let named = |name: &str| head.lines().any(|line| line.starts_with(name));
    (!head.contains("\r\n\r\n") && named("content-length: 0") && !named("x-request-id:")).then_some(status)
}

/// The error for a request that hyper refused.
pub(super) fn refusal(status: StatusCode) -> ApiError {
    if status == StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE {
        let message = format!(
            "the head of the request is too large: this server takes {HEADERS} headers and about {HEAD_BYTES} bytes of path and headers"
        );
        return ApiError::new(status, "head_too_large", message);
    }
    let message = "this is no request of HTTP/1.1: it begins with a line such as `POST /v1/chat/completions HTTP/1.1`, then come headers, \
         a line `name: value` each, and an empty line; TLS is not spoken here, so addresses begin with http://";
    ApiError::new(status, "invalid_http", message)
}

/// The error for a request's head that did not arrive in time.
pub(super) fn late(seconds: NonZero<u64>) -> ApiError {
    let message = format!("the head of the request did not arrive within {seconds} seconds");
    ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout", message)
}

/// Writes an error to a connection and closes it. Reads what the client has sent, since closing would
/// otherwise reset the connection and lose the answer; the caller bounds the time.
pub(super) async fn tell(stream: &mut TcpStream, error: &ApiError) -> Result<u64> {
    let body = error.body().to_string();
    let (code, reason) = (error.status.as_u16(), error.status.canonical_reason().unwrap_or("Error"));
    let retry = if error.status == StatusCode::SERVICE_UNAVAILABLE { "retry-after: 1\r\n" } else { "" };
    let answer = format!(
        "HTTP/1.1 {code} {reason}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{retry}connection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    tokio::io::copy(stream, &mut tokio::io::sink()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hyper_says_by_itself_is_told_from_what_the_router_says() {
        let status = |text: &str| bare_refusal(text.as_bytes()).map(|status| status.as_u16());
        let date = "date: Mon, 23 Nov 2026 08:00:00 GMT";
        let bare =
            format!("HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\n{date}\r\n\r\n");
        assert_eq!(status(&bare), Some(431));
        assert_eq!(status(&bare.replace("1.1 431", "1.0 400")), Some(400));
        for other in [
            bare.replace(date, "x-request-id: req-1"),
            bare.replace(": 0", ": 7"),
            bare.replace("431", "200"),
            bare.replace("431", "503"),
            bare.replace("HTTP/1.1", "HTTP/2.0"),
            format!("{bare}{bare}"),
            format!("{bare}more"),
            bare.trim_end().to_owned(),
            "HTTP/1.1 4".to_owned(),
            String::new(),
        ] {
            assert_eq!(status(&other), None, "{other:?}");
        }
    }
}
