//! Connections: how many there may be, and how long a request's head may take.

use super::asker::Peer;
use super::protocol::{self, Wire};
use crate::error::ApiError;
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1::{self, Parts};
use hyper::service::service_fn;
use hyper_util::rt::TokioTimer;
use std::future::poll_fn;
use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tower_service::Service;

/// Pause after the system could not accept a connection for lack of descriptors.
const SHORTAGE: Duration = Duration::from_millis(100);
/// Time to send the 503 on a rejected connection.
const TURN_AWAY: Duration = Duration::from_secs(1);

/// Limits of connections.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct ConnectionArgs {
    /// Connections at a time; on one more, requests are answered 503 and it is closed.
    #[arg(long, value_name = "N", default_value_t = NonZero::<usize>::MIN.saturating_add(1023))]
    pub max_connections: NonZero<usize>,
    /// Seconds that a request's head may take to arrive, and a connection to say nothing between two
    /// requests; then it is closed.
    #[arg(long, value_name = "SECONDS", default_value_t = NonZero::<u64>::MIN.saturating_add(59))]
    pub head_seconds: NonZero<u64>,
}

/// Serves connections until `stop` completes, then lets answers in progress finish.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: ConnectionArgs,
    stop: impl Future<Output = ()>,
) {
    let permits = Arc::new(Semaphore::new(limits.max_connections.get()));
    let (stopping, stopped) = watch::channel(());
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(limits.head_seconds.get()))
        .max_headers(protocol::HEADERS)
        .max_buf_size(protocol::HEAD_BYTES);
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, address)) = accepted else {
            // An aborted connection costs nothing; otherwise a descriptor must be closed first.
            tokio::time::sleep(SHORTAGE).await;
            continue;
        };
        // Every event is sent at once instead of waiting for more bytes; slower, not wrong, where the system
        // refuses.
        let _ = stream.set_nodelay(true);
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
            tokio::spawn(turn_away(stream, limits.max_connections));
            continue;
        };
        let (router, peer) = (router.clone(), ConnectInfo(Peer(address.ip())));
        let (builder, stopped) = (builder.clone(), stopped.clone());
        tokio::spawn(async move {
            talk(stream, &builder, router, peer, limits.head_seconds, stopped).await;
            drop(permit);
        });
    }
    drop((listener, stopped));
    stopping.send_replace(());
    stopping.closed().await;
}

/// Serves one connection until it ends, or after `stopped` until the answer in progress is sent.
async fn talk(
    stream: TcpStream,
    builder: &http1::Builder,
    router: Router,
    peer: ConnectInfo<Peer>,
    head_seconds: NonZero<u64>,
    mut stopped: watch::Receiver<()>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer);
        Box::pin(router.clone().call(request))
    });
    let mut connection = builder.serve_connection(Wire::new(stream), service);
    let mut goes_on = true;
    let ended = loop {
        tokio::select! {
            ended = poll_fn(|context| connection.poll_without_shutdown(context)) => break ended,
            _ = stopped.changed(), if goes_on => {
                goes_on = false;
                Pin::new(&mut connection).graceful_shutdown();
            }
        }
    };
    let Parts { io, read_buf, .. } = connection.into_parts();
    let (mut stream, refused) = io.into_parts();
    let error = match (refused, ended) {
        (Some(status), _) => protocol::refusal(status),
        // A client that sent nothing gets no response: it would take it for the answer to its next request.
        (None, Err(error)) if error.is_timeout() && !read_buf.is_empty() => protocol::late(head_seconds),
        // An aborted connection is not the server's error.
        _ => {
            let _ = stream.shutdown().await;
            return;
        }
    };
    let _ = tokio::time::timeout(TURN_AWAY, protocol::tell(&mut stream, &error)).await;
}

/// Answers 503 on a connection beyond the limit.
async fn turn_away(mut stream: TcpStream, most: NonZero<usize>) {
    let message = format!("this server is at its limit of {most} connections; try again later");
    let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_connections", message);
    let _ = tokio::time::timeout(TURN_AWAY, protocol::tell(&mut stream, &error)).await;
}
