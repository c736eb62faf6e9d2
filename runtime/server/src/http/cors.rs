//! Which pages in browsers, of other origins than this server's own, may ask it.

use axum::http::{HeaderName, HeaderValue, Method, header};
use std::time::Duration;
use tower_http::cors::{AllowOrigin, CorsLayer};

/// How long a browser may remember what it was allowed.
const REMEMBERED: Duration = Duration::from_secs(600);

/// Origins.
#[derive(Clone, Debug, clap::Args)]
pub struct CorsArgs {
    /// An origin whose pages may ask, such as `https://chat.example`; `*` is all. May be given several times [default: none].
    #[arg(long, value_name = "ORIGIN")]
    pub cors_origin: Vec<String>,
}

impl CorsArgs {
    /// What says so to browsers.
    ///
    /// # Errors
    /// When one is no origin.
    pub(crate) fn layer(&self) -> Result<CorsLayer, String> {
        if self.cors_origin.is_empty() {
            return Ok(CorsLayer::new());
        }
        let origins = self.cors_origin.iter().map(|origin| of(origin)).collect::<Result<Vec<_>, _>>()?;
        let allowed = if self.cors_origin.iter().any(|origin| origin == "*") {
            AllowOrigin::any()
        } else {
            AllowOrigin::list(origins)
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
