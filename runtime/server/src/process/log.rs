//! Logging to standard error, off by default: spans of requests with their phases.

use tracing::level_filters::LevelFilter;

/// Flags of logging.
#[derive(Clone, Debug, clap::Args)]
pub struct LogArgs {
    /// What to log to standard error, one of off, error, warn, info (every request, phase by phase), debug,
    /// trace.
    #[arg(long = "log", value_name = "LEVEL", default_value_t = LevelFilter::OFF)]
    pub level: LevelFilter,
}

impl LogArgs {
    /// Starts logging.
    pub(crate) fn begin(&self) {
        if self.level == LevelFilter::OFF {
            return;
        }
        // An earlier subscriber stays.
        let _ = tracing_subscriber::fmt()
            .with_max_level(self.level)
            .with_ansi(false)
            .with_writer(std::io::stderr)
            .try_init();
    }
}
