//! Protection of browsers: a foreign page can send requests to this server with its reader's network access,
//! which its author lacks.
//!
//! There are two ways. A cross-origin request has effects even though the page may not see the answer; it
//! carries an `Origin`. With DNS rebinding the page's own name resolves to this machine, so that browsers see
//! one origin; such a request carries that name as `Host`. An address cannot be rebound.

use super::cors::{CorsArgs, Origins};
use super::keys::is_open;
use crate::error::ApiError;
use axum::http::uri::Authority;
use axum::http::{Request, StatusCode, Uri, Version, header};
use std::net::IpAddr;
use sysinfo::System;

/// Flags of host names.
#[derive(Clone, Debug, clap::Args)]
pub struct HostArgs {
    /// A name that this machine is asked by, such as `llm.example.com`, without a port; `*` is any. May be
    /// given several times [default: localhost and loopback addresses; with --bind of another address also
    /// addresses and this machine's own name].
    #[arg(long, value_name = "NAME")]
    pub allowed_host: Vec<String>,
}

impl HostArgs {
    /// The hosts and origins accepted by a server that listens at `bind`.
    ///
    /// # Errors
    /// When something is not a host name.
    pub(crate) fn read(&self, bind: IpAddr, cors: &CorsArgs) -> Result<Guests, String> {
        let mut guests = Guests { bind, any: false, names: Vec::new(), origins: cors.origins()? };
        for name in &self.allowed_host {
            if name == "*" {
                guests.any = true;
                continue;
            }
            // Colons are an address's, or before a port.
            let parsed = name.parse().map(Host::Address).ok().or_else(|| Host::read(name, false));
            let Some(host) = parsed else {
                return Err(format!(
                    "--allowed-host {name:?} is neither `*` nor a name or an address without a port, such as `llm.example.com`"
                ));
            };
            guests.names.push(host);
        }
        if !bind.to_canonical().is_loopback() {
            let own = System::host_name().unwrap_or_default().to_ascii_lowercase();
            guests
                .names
                .extend([own.clone(), format!("{own}.local")].iter().filter_map(|it| Host::read(it, false)));
        }
        Ok(guests)
    }
}

/// A `Host` without its port.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Name(String),
    Address(IpAddr),
}

impl Host {
    /// What `text` names: a name in small letters, or an address, with a port behind it if there may be one.
    fn read(text: &str, port: bool) -> Option<Host> {
        if text.contains('@') {
            return None;
        }
        let authority: Authority = text.parse().ok()?;
        let host = authority.host();
        match text.strip_prefix(host)? {
            "" => {}
            // An empty port is none.
            ":" if port => {}
            _ if port && authority.port_u16().is_some() => {}
            _ => return None,
        }
        if let Some(address) = host.strip_prefix('[') {
            return address.strip_suffix(']')?.parse().ok().map(IpAddr::V6).map(Host::Address);
        }
        if let Ok(address) = host.parse() {
            return Some(Host::Address(address));
        }
        let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let fit = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        (!name.is_empty() && name.bytes().all(fit)).then_some(Host::Name(name))
    }
}

/// Accepted host names and origins.
#[derive(Clone, Debug)]
pub(crate) struct Guests {
    bind: IpAddr,
    /// Whether any name is accepted.
    any: bool,
    names: Vec<Host>,
    origins: Origins,
}

impl Guests {
    /// Why a request is refused, if it is refused.
    pub(super) fn refusal<B>(&self, request: &Request<B>) -> Option<ApiError> {
        if is_open(request.uri().path()) {
            return None;
        }
        self.host_refusal(request).or_else(|| self.origin_refusal(request))
    }

    fn host_refusal<B>(&self, request: &Request<B>) -> Option<ApiError> {
        let wrong = |message: String| Some(ApiError::new(StatusCode::BAD_REQUEST, "invalid_host", message));
        let mut hosts = request.headers().get_all(header::HOST).iter();
        let host = match (hosts.next(), hosts.next()) {
            (Some(host), None) => host,
            // HTTP/1.0 programs, which are no browsers, send none.
            (None, _) if request.version() < Version::HTTP_11 => return None,
            (None, _) => {
                return wrong("the header `Host` is missing; send the server's name".to_owned());
            }
            (Some(_), Some(_)) => return wrong("the header `Host` is given more than once".to_owned()),
        };
        let text = String::from_utf8_lossy(host.as_bytes());
        // An absolute request target takes precedence.
        for text in request.uri().authority().map(Authority::as_str).into_iter().chain([&*text]) {
            let Some(host) = Host::read(text, true) else {
                return wrong(format!(
                    "the header `Host` is {text:?}, and must be a name or an address, and a port if need be"
                ));
            };
            if !self.answers_to(&host) {
                return Some(ApiError::new(
                    StatusCode::MISDIRECTED_REQUEST,
                    "unknown_host",
                    self.unknown(text),
                ));
            }
        }
        None
    }

    fn answers_to(&self, host: &Host) -> bool {
        let wide = !self.bind.to_canonical().is_loopback();
        self.any
            || self.names.contains(host)
            || match host {
                Host::Name(name) => name == "localhost" || name.ends_with(".localhost"),
                Host::Address(address) => wide || address.to_canonical().is_loopback(),
            }
    }

    fn unknown(&self, host: &str) -> String {
        let known = if self.bind.to_canonical().is_loopback() {
            "localhost and loopback addresses"
        } else {
            "localhost, addresses and this machine's own name"
        };
        format!(
            "this server is not called {host:?}: it answers to {known}, and to what it is started with as `--allowed-host NAME`"
        )
    }

    fn origin_refusal<B>(&self, request: &Request<B>) -> Option<ApiError> {
        let headers = request.headers();
        let origin = headers.get(header::ORIGIN)?;
        // Browsers set this on every request, and no page can forge it; it holds behind a proxy that rewrites
        // the host, too.
        let site = headers.get("sec-fetch-site");
        let own = site.is_some_and(|site| site == "same-origin")
            || origin.to_str().is_ok_and(|origin| {
                headers
                    .get(header::HOST)
                    .and_then(|host| host.to_str().ok())
                    .is_some_and(|host| is_of(origin, host))
            });
        if own || self.origins.contain(origin) {
            return None;
        }
        let message = format!(
            "pages of {:?} may not use this server; to allow them, start it with `--cors-origin` and that origin",
            String::from_utf8_lossy(origin.as_bytes())
        );
        Some(ApiError::new(StatusCode::FORBIDDEN, "foreign_origin", message))
    }
}

/// Whether an origin has the name and port of `host`, with any scheme (a proxy may terminate TLS).
fn is_of(origin: &str, host: &str) -> bool {
    let Ok(origin) = origin.parse::<Uri>() else { return false };
    let usual = match origin.scheme_str() {
        Some("http") => 80,
        Some("https") => 443,
        _ => return false,
    };
    let place = |text: &str| {
        let port = text.parse::<Authority>().ok()?.port_u16().unwrap_or(usual);
        Some((Host::read(text, true)?, port))
    };
    let of = origin.authority().and_then(|authority| place(authority.as_str()));
    of.is_some() && of == place(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guests(bind: &str, allowed: &[&str], origins: &[&str]) -> Guests {
        let list = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        let cors = CorsArgs { cors_origin: list(origins) };
        let hosts = HostArgs { allowed_host: list(allowed) };
        hosts.read(bind.parse().expect("an address"), &cors).expect("names and origins")
    }

    fn status(guests: &Guests, path: &str, headers: &[(&str, &str)]) -> u16 {
        let mut request = Request::builder().uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).expect("a request");
        guests.refusal(&request).map_or(200, |error| error.status.as_u16())
    }

    #[test]
    fn a_server_answers_to_its_own_names() {
        let narrow = guests("127.0.0.1", &["LLM.example.com", "10.0.0.7", "fd00::7"], &[]);
        let wide = guests("0.0.0.0", &[], &[]);
        let wide6 = guests("::", &[], &[]);
        let any = guests("127.0.0.1", &["*"], &[]);
        let own = System::host_name().unwrap_or_default();
        for (host, of_narrow, of_wide) in [
            ("localhost", 200, 200),
            ("localhost:8888", 200, 200),
            ("LOCALHOST.:1", 200, 200),
            ("chat.localhost", 200, 200),
            ("127.0.0.1", 200, 200),
            ("127.0.0.1:", 200, 200),
            ("127.9.9.9:80", 200, 200),
            ("[::1]:8888", 200, 200),
            ("[::ffff:127.0.0.1]", 200, 200),
            ("llm.example.com:443", 200, 421),
            ("10.0.0.7", 200, 200),
            ("[fd00::7]", 200, 200),
            ("10.0.0.8", 421, 200),
            ("[fd00::8]:8888", 421, 200),
            ("0.0.0.0:8888", 421, 200),
            (own.as_str(), if own == "localhost" { 200 } else { 421 }, 200),
            ("evil.example", 421, 421),
            ("evil.example:8888", 421, 421),
            ("xlocalhost", 421, 421),
            ("localhost.evil.example", 421, 421),
            ("127.0.0.1.evil.example", 421, 421),
            ("llm.example.com.evil.example", 421, 421),
            ("", 400, 400),
            (":8888", 400, 400),
            ("localhost:x", 400, 400),
            ("localhost:99999", 400, 400),
            ("me@localhost", 400, 400),
            ("localhost/path", 400, 400),
            ("[::1", 400, 400),
            ("[localhost]", 400, 400),
            ("two words", 400, 400),
        ] {
            assert_eq!(status(&narrow, "/v1/models", &[("host", host)]), of_narrow, "{host:?}");
            assert_eq!(status(&wide, "/v1/models", &[("host", host)]), of_wide, "{host:?}");
            assert_eq!(status(&wide6, "/v1/models", &[("host", host)]), of_wide, "{host:?}");
            let of_any = if of_narrow == 400 { 400 } else { 200 };
            assert_eq!(status(&any, "/v1/models", &[("host", host)]), of_any, "{host:?}");
            for open in ["/health", "/health/live", "/health/ready", "/ping", "/metrics"] {
                assert_eq!(status(&narrow, open, &[("host", host)]), 200, "{open} {host:?}");
            }
            assert_ne!(status(&narrow, "/health/", &[("host", "evil.example")]), 200);
        }
        assert_eq!(status(&narrow, "/", &[]), 400);
        assert_eq!(status(&narrow, "/", &[("host", "localhost"), ("host", "localhost")]), 400);
        // What is asked for goes before what is said of it.
        assert_eq!(status(&narrow, "http://evil.example/", &[("host", "localhost")]), 421);
        assert_eq!(status(&narrow, "http://localhost/", &[("host", "evil.example")]), 421);
        assert_eq!(status(&narrow, "http://localhost/", &[("host", "localhost")]), 200);
        let old = Request::builder().version(Version::HTTP_10).body(()).expect("a request");
        assert!(narrow.refusal(&old).is_none());
    }

    #[test]
    fn pages_of_elsewhere_are_refused_unless_named() {
        let none = guests("127.0.0.1", &["llm.example.com"], &[]);
        let named = guests("127.0.0.1", &[], &["https://chat.example"]);
        let any = guests("127.0.0.1", &[], &["*"]);
        for (host, origin, of_none, of_named) in [
            ("localhost:8888", "http://localhost:8888", 200, 200),
            ("localhost:8888", "https://localhost:8888", 200, 200),
            ("LOCALHOST:8888", "http://localhost:8888", 200, 200),
            ("localhost", "http://localhost", 200, 200),
            ("localhost:80", "http://localhost", 200, 200),
            ("localhost:443", "https://localhost", 200, 200),
            ("localhost:80", "https://localhost", 403, 403),
            ("localhost:8888", "http://localhost", 403, 403),
            ("localhost:8888", "http://localhost:3000", 403, 403),
            ("localhost:8888", "http://127.0.0.1:8888", 403, 403),
            ("localhost:8888", "https://evil.example", 403, 403),
            ("localhost:8888", "https://evil.example:8888", 403, 403),
            ("localhost:8888", "http://localhost:8888@evil.example", 403, 403),
            ("localhost:8888", "null", 403, 403),
            ("localhost:8888", "", 403, 403),
            ("localhost:8888", "chrome-extension://localhost:8888", 403, 403),
            ("localhost:8888", "https://chat.example", 403, 200),
            ("localhost:8888", "https://chat.example:8443", 403, 403),
        ] {
            let headers = [("host", host), ("origin", origin)];
            assert_eq!(status(&none, "/v1/models", &headers), of_none, "{headers:?}");
            assert_eq!(status(&named, "/v1/models", &headers), of_named, "{headers:?}");
            assert_eq!(status(&any, "/v1/models", &headers), 200, "{headers:?}");
            assert_eq!(status(&none, "/metrics", &headers), 200, "{headers:?}");
        }
        let proxied =
            |site| [("host", "localhost"), ("origin", "https://llm.example.com"), ("sec-fetch-site", site)];
        assert_eq!(status(&none, "/", &proxied("same-origin")), 200);
        for site in ["same-site", "cross-site", "none"] {
            assert_eq!(status(&none, "/", &proxied(site)), 403, "{site}");
        }
    }

    #[test]
    fn names_that_are_none_are_refused() {
        for name in [
            "",
            "https://llm.example.com",
            "llm.example.com:8888",
            "*.example.com",
            "a b",
            "a/b",
            "me@b",
            "[::1]:8",
        ] {
            let hosts = HostArgs { allowed_host: vec![name.to_owned()] };
            let error = hosts.read(IpAddr::from([127, 0, 0, 1]), &CorsArgs { cors_origin: Vec::new() });
            assert!(error.expect_err(name).contains(&format!("{name:?}")), "{name}");
        }
    }
}
