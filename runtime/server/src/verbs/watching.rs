//! What a server tells its supervisor while it serves.

use super::stopping::Stopping;
use crate::process::notify::{self, Notifier};
use crate::process::out;
use rustix::process::{Signal, getpid, kill_process};
use std::sync::Arc;
use std::time::Duration;

/// How often a supervisor is told at least, so that one that is gone is missed soon.
const OFTEN: Duration = Duration::from_secs(1);

/// Tells a supervisor for as long as HTTP runs that it does. A server whose supervisor is gone drains.
pub(super) async fn tell(notifier: Arc<Notifier>, stopping: Arc<Stopping>) {
    // A third, as sd_watchdog_enabled(3) recommends half of it at most.
    let every = notifier.watchdog().map_or(OFTEN, |within| (within / 3).min(OFTEN));
    while notifier.tell(notify::ALIVE) {
        tokio::time::sleep(every).await;
    }
    // A second signal would cut the drain.
    if !stopping.has_begun() {
        out::say(format_args!("the supervisor is gone"));
        let _ = kill_process(getpid(), Signal::TERM);
    }
}
