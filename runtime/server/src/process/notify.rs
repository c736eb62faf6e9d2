//! What this process tells its supervisor, by the protocol of `sd_notify(3)`: systemd's, or that of
//! `serve --supervised`, which speaks the same.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Names where the supervisor listens.
pub(crate) const SOCKET: &str = "NOTIFY_SOCKET";
/// Tells within how many microseconds it wants to hear of a process again.
pub(crate) const WATCHDOG: &str = "WATCHDOG_USEC";
/// Tells of which process.
pub(crate) const WATCHDOG_PROCESS: &str = "WATCHDOG_PID";

/// The server answers requests.
pub(crate) const READY: &str = "READY=1";
/// The server still works: systemd starts it again when it hears this no more.
pub(crate) const ALIVE: &str = "WATCHDOG=1";
/// It ends as it was told to.
pub(crate) const STOPPING: &str = "STOPPING=1";

/// The way to a supervisor.
#[derive(Debug)]
pub(crate) struct Notifier {
    socket: UnixDatagram,
    /// Within which time it wants to hear again, if it does.
    watchdog: Option<Duration>,
}

impl Notifier {
    /// To the supervisor that the environment names, if it names one.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub(crate) fn from_environment() -> Result<Option<Notifier>, String> {
        let Some(name) = std::env::var_os(SOCKET).filter(|name| !name.is_empty()) else { return Ok(None) };
        let cannot = |error: std::io::Error| format!("{SOCKET} {}: {error}", name.to_string_lossy());
        let socket = UnixDatagram::unbound().map_err(cannot)?;
        socket.connect_addr(&address(&name).map_err(cannot)?).map_err(cannot)?;
        // A supervisor that reads nothing must not hold anything up.
        socket.set_nonblocking(true).map_err(cannot)?;
        let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse::<u64>().ok());
        let is_of_another = number(WATCHDOG_PROCESS).is_some_and(|id| id != u64::from(std::process::id()));
        let watchdog = number(WATCHDOG).filter(|_| !is_of_another).map(Duration::from_micros);
        Ok(Some(Notifier { socket, watchdog: watchdog.filter(|it| !it.is_zero()) }))
    }

    /// Within which time it wants to hear again, if it ends or kills a process that it does not hear of.
    pub(crate) fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Tells it; false if it is gone.
    pub(crate) fn tell(&self, state: &str) -> bool {
        match self.socket.send(state.as_bytes()) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }
}

/// The address of a socket's name; one that begins with `@` is no file.
fn address(name: &OsStr) -> std::io::Result<SocketAddr> {
    match name.as_bytes().split_first() {
        Some((b'@', rest)) => SocketAddr::from_abstract_name(rest),
        _ => SocketAddr::from_pathname(name),
    }
}
