//! `GET /`: the chat page, one text that loads nothing from elsewhere.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use std::sync::LazyLock;

/// The chat page, with its style and script in one text.
const PAGE: &str = concat!(
    include_str!("../page/head.html"),
    "<style>\n",
    include_str!("../page/page.css"),
    "</style>\n</head>\n",
    include_str!("../page/body.html"),
    "<script>",
    include_str!("../page/base.js"),
    include_str!("../page/markup.js"),
    include_str!("../page/images.js"),
    include_str!("../page/chat.js"),
    include_str!("../page/settings.js"),
    "</script>\n</body>\n</html>\n",
);
/// The page may run its own script, named by its digest, and talk to this server only: a model's output could
/// not run even if it were taken for HTML.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let (_, script) = PAGE.split_once("<script>").expect("it has a script");
    let (script, _) = script.split_once("</script>").expect("which ends");
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        STANDARD.encode(Sha256::digest(script))
    );
    HeaderValue::from_str(&policy).expect("a policy is visible characters")
});

/// Sends the page.
pub(crate) async fn page() -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CONTENT_SECURITY_POLICY, POLICY.clone()),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, PAGE).into_response()
}
