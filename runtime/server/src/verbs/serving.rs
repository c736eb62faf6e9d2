//! HTTP from the first connection to the last byte: until a drain or a fault, and what follows it.

use super::stopping::Stopping;
use crate::failure::{EXIT_DEVICE_FAULT, EXIT_UNWELL, Failure};
use crate::health::Readiness;
use crate::http::app::App;
use crate::http::connections::{self, ConnectionArgs};
use crate::http::router;
use crate::process::notify::{self, Notifier};
use crate::process::out;
use monomorph_engine::Health;
use monomorph_model::device_fault;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tower_http::cors::CorsLayer;

/// How often to look whether loading is done, and whether the engine works.
const LOADING_POLL: Duration = Duration::from_millis(100);
/// How long the last bytes of answers may take to leave after the engine has stopped, and how much later than
/// told the engine may stop: it looks at the clock between two steps.
const FLUSH_TIME: Duration = Duration::from_secs(2);

/// What ends a server, and how.
pub(super) struct Way {
    /// The server.
    pub(super) app: Arc<App>,
    /// How long accepted requests get to finish.
    pub(super) drain: Duration,
    /// Tells when a drain begins.
    pub(super) stopping: Arc<Stopping>,
    /// Its supervisor, if it has one.
    pub(super) notifier: Option<Arc<Notifier>>,
}

impl Way {
    /// Serves HTTP until a drain begins, then lets accepted requests finish. Meanwhile it keeps listening:
    /// new requests get an error that the server is draining, instead of a refused connection.
    ///
    /// # Errors
    /// When HTTP ends by itself, the device failed, the engine did not end as it should, or a watched
    /// server's engine does not work.
    pub(super) async fn run(
        self,
        listener: TcpListener,
        connections: ConnectionArgs,
        cors: CorsLayer,
    ) -> Result<(), Failure> {
        let Way { app, drain, stopping, notifier } = self;
        let watched = notifier.as_ref().is_some_and(|it| it.watchdog().is_some());
        let listener = tokio::net::TcpListener::from_std(listener).map_err(|error| error.to_string())?;
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let router = router(Arc::clone(&app)).layer(cors);
        let mut server = tokio::spawn(connections::serve(listener, router, connections, async {
            // A dropped sender means the same.
            let _ = stopped.await;
        }));
        tokio::select! {
            ended = &mut server => return Err(format!("the HTTP server ended by itself: {ended:?}").into()),
            fault = fault(&app) => {
                // The engine has told its clients; only bytes in transit are left.
                let _ = stop.send(());
                let _ = timeout(FLUSH_TIME, server).await;
                return Err(Failure { message: fault, code: EXIT_DEVICE_FAULT });
            }
            cause = unwell(&app), if watched => {
                app.condemned.send_replace(Some(cause.clone()));
                let _ = stop.send(());
                let _ = timeout(FLUSH_TIME, server).await;
                return Err(Failure { message: cause, code: EXIT_UNWELL });
            }
            () = stopping.begun() => {}
        }
        if let Some(notifier) = &notifier {
            notifier.tell(notify::STOPPING);
        }
        let ended = match app.ready.get() {
            Some(ready)
                if timeout(drain.saturating_add(FLUSH_TIME), ready.engine.stopped()).await.is_err() =>
            {
                Err("the engine did not stop: a step has not come back".to_owned())
            }
            Some(ready) => match ready.engine.health() {
                Health::Dead(cause) | Health::Poisoned(cause) => Err(cause),
                Health::Running | Health::Draining | Health::Stopped => Ok(()),
            },
            None => Ok(()),
        };
        // The engine cut what it could not finish: only bytes in transit are left, and grammars whose clients
        // got an error.
        if let Some(ready) = app.ready.get() {
            ready.grammars.stop();
        }
        let _ = stop.send(());
        if timeout(FLUSH_TIME, server).await.is_err() {
            out::say(format_args!("some clients did not take their last bytes in time"));
        }
        out::say(format_args!("stopped"));
        Ok(ended?)
    }
}

/// Waits until the engine is dead or wrong, or hangs. A device fault has a way of its own.
async fn unwell(app: &App) -> String {
    loop {
        tokio::time::sleep(LOADING_POLL).await;
        match app.readiness() {
            Readiness::Hung(cause) | Readiness::Poisoned(cause) => return cause,
            Readiness::Dead(cause) if device_fault().is_none() => return cause,
            Readiness::Ready => {
                // As probes of /health do; nobody may be asking that.
                if let Some(ready) = app.ready.get() {
                    ready.canary.ask(&ready.engine);
                }
            }
            _ => {}
        }
    }
}

/// Waits for a device fault that ended the engine. After any other failure the process stays up to report it.
async fn fault(app: &App) -> String {
    let ready = loop {
        match app.ready.get() {
            Some(ready) => break ready,
            // Loading reports its own errors.
            None => tokio::time::sleep(LOADING_POLL).await,
        }
    };
    ready.engine.stopped().await;
    match (ready.engine.health(), device_fault()) {
        // An idle engine whose world ended was told so, which it counts as poison.
        (Health::Dead(_) | Health::Poisoned(_), Some(fault)) => fault.to_owned(),
        _ => std::future::pending().await,
    }
}
