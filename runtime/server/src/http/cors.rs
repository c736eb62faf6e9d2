//! CORS: which foreign origins may use this server from a browser.

use axum::http::{HeaderName, HeaderValue, Method, header};
use std::time::Duration;
use tower_http::cors::{AllowOrigin, CorsLayer};

/// How long a browser may cache a preflight.
const REMEMBERED: Duration = Duration::from_secs(600);

/// Flags of CORS.
#[derive(Clone, Debug, clap::Args)]
pub struct CorsArgs {
    /// An origin whose pages may ask, such as `https://chat.example`; `*` is all. May be given several times
    /// [default: none].
    #[arg(long, value_name = "ORIGIN")]
    pub cors_origin: Vec<String>,
}

/// The allowed origins.
#[derive(Clone, Debug)]
pub(crate) enum Origins {
    /// Every origin.
    Any,
    /// Only these origins.
    Listed(Vec<HeaderValue>),
}

impl Origins {
    /// Whether an origin is allowed.
    pub(crate) fn contain(&self, origin: &HeaderValue) -> bool {
        match self {
            Origins::Any => true,
            Origins::Listed(list) => list.contains(origin),
        }
    }
}

impl CorsArgs {
    /// The origins.
    ///
    /// # Errors
    /// When one is not an origin.
    pub(crate) fn origins(&self) -> Result<Origins, String> {
        let origins = self.cors_origin.iter().map(|origin| of(origin)).collect::<Result<Vec<_>, _>>()?;
        Ok(if origins.iter().any(|origin| origin == "*") { Origins::Any } else { Origins::Listed(origins) })
    }

    /// The middleware that answers browsers.
    ///
    /// # Errors
    /// When one is no origin.
    pub(crate) fn layer(&self) -> Result<CorsLayer, String> {
        let allowed = match self.origins()? {
            Origins::Listed(origins) if origins.is_empty() => return Ok(CorsLayer::new()),
            Origins::Listed(origins) => AllowOrigin::list(origins),
            Origins::Any => AllowOrigin::any(),
        };
        let sent = [header::AUTHORIZATION, header::CONTENT_TYPE, HeaderName::from_static("x-api-key")];
        let told = ["x-request-id", "x-monomorph-weights", "x-monomorph-drafts"].map(HeaderName::from_static);
        Ok(CorsLayer::new()
            .allow_origin(allowed)
            .allow_methods([Method::GET, Method::POST, Method::DELETE])
            .allow_headers(sent)
            .expose_headers(told)
            .max_age(REMEMBERED))
    }
}

/// An origin as browsers write it: scheme, host, and a port if need be.
fn of(origin: &str) -> Result<HeaderValue, String> {
    let wrong =
        || format!("--cors-origin {origin:?} is neither `*` nor an origin such as `https://chat.example`");
    let host = origin.split_once("://").map(|(_, host)| host);
    let plain = host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '?', '#', '@', '*', ' ']));
    if origin != "*" && !plain {
        return Err(wrong());
    }
    HeaderValue::from_str(origin).map_err(|_| wrong())
}
