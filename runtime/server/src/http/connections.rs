//! Connections: how many there may be, and how long one may take to say what it wants.

use super::asker::Peer;
use super::error::ApiError;
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tower_service::Service;

/// Most bytes of a request's head: what one with a hundred headers of ordinary length takes many times over.
const HEAD_BYTES: usize = 64 << 10;
/// Most headers of a request.
const HEADERS: usize = 100;
/// How long to wait after the system would hand out no connection, because it is short of files.
const SHORTAGE: Duration = Duration::from_millis(100);
/// How long one that is turned away may take to hear so.
const TURN_AWAY: Duration = Duration::from_secs(1);

/// What connections are bounded by.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct ConnectionArgs {
    /// Connections at a time; on one more, requests are answered 503 and it is closed.
    #[arg(long, value_name = "N", default_value_t = NonZero::<usize>::MIN.saturating_add(1023))]
    pub max_connections: NonZero<usize>,
    /// Seconds that a request's head may take to arrive, and a connection to say nothing between two requests; then it is closed.
    #[arg(long, value_name = "SECONDS", default_value_t = NonZero::<u64>::MIN.saturating_add(59))]
    pub head_seconds: NonZero<u64>,
}

/// Answers on connections until `stop` is over, then lets those under way end.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: ConnectionArgs,
    stop: impl Future<Output = ()>,
) {
    let permits = Arc::new(Semaphore::new(limits.max_connections.get()));
    let graceful = GracefulShutdown::new();
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(limits.head_seconds.get()))
        .max_headers(HEADERS)
        .max_buf_size(HEAD_BYTES);
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, address)) = accepted else {
            // One that broke off is the next one's gain; otherwise somebody has to close a file first.
            tokio::time::sleep(SHORTAGE).await;
            continue;
        };
        // Every event is sent at once instead of waiting for more bytes; slower, not wrong, where the system refuses.
        let _ = stream.set_nodelay(true);
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
            tokio::spawn(turn_away(stream, limits.max_connections));
            continue;
        };
        let (router, peer) = (router.clone(), ConnectInfo(Peer(address.ip())));
        let service = service_fn(move |request: Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(peer);
            router.clone().call(request)
        });
        let connection = graceful.watch(builder.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            // A connection that breaks off is its client's affair.
            let _ = connection.await;
            drop(permit);
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

/// Says on a connection too many that it is one.
async fn turn_away(mut stream: TcpStream, most: NonZero<usize>) {
    let message = format!("this server has as many connections as it takes, {most}");
    let body =
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_connections", message).body().to_string();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {}\r\nretry-after: 1\r\nconnection: \
         close\r\n\r\n{body}",
        body.len()
    );
    let told = async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await?;
        // What it has sent is read, or closing would take the answer back.
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
    };
    let _ = tokio::time::timeout(TURN_AWAY, told).await;
}
