//! Images that a request names by address, fetched from hosts that the server's operator allows.
//!
//! A name is looked up once for a connection, and only public addresses of it are connected to; a redirect is
//! an address like any other. So a request cannot reach the server's own network, whatever its names mean.

use super::FETCHED_BYTES;
use super::public::is_public;
use crate::error::{ApiError, wrong};
use axum::http::Uri;
use monomorph_hub::joined;
use std::fmt;
use std::io::Read;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::{Duration, Instant};
use ureq::config::Config;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Error};

/// Longest time for an image, its redirects included.
const LONGEST: Duration = Duration::from_secs(10);
/// Longest chain of redirects.
const REDIRECTS: usize = 3;

/// Hosts that `--image-hosts` allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageHost {
    /// Every host there is.
    Any,
    /// One of this name.
    Named(String),
    /// All whose names end in this one, which begins with a dot.
    Below(String),
}

impl FromStr for ImageHost {
    type Err = String;

    fn from_str(text: &str) -> Result<ImageHost, String> {
        let is_name = |name: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
            !name.is_empty() && name.chars().all(plain) && !name.starts_with('.') && !name.ends_with('.')
        };
        match text.strip_prefix("*.") {
            _ if text == "*" => Ok(ImageHost::Any),
            Some(name) if is_name(name) => Ok(ImageHost::Below(format!(".{}", name.to_ascii_lowercase()))),
            None if is_name(text) => Ok(ImageHost::Named(text.to_ascii_lowercase())),
            _ => Err(
                "a host is a name such as `images.example.com`, `*.example.com` for all below one, or `*`"
                    .to_owned(),
            ),
        }
    }
}

impl ImageHost {
    fn allows(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        match self {
            ImageHost::Any => true,
            ImageHost::Named(name) => host == *name,
            ImageHost::Below(end) => host.ends_with(end) && host.len() > end.len(),
        }
    }
}

/// What may be connected to.
#[derive(Clone, Copy, Debug)]
enum Reach {
    /// The public internet, by https on its usual port.
    Internet,
    /// This machine, by http, in tests.
    #[cfg(test)]
    Loopback,
}

impl Reach {
    fn has(self, address: IpAddr) -> bool {
        match self {
            Reach::Internet => is_public(address),
            #[cfg(test)]
            Reach::Loopback => address.is_loopback(),
        }
    }

    fn takes(self, address: &Uri) -> bool {
        match self {
            Reach::Internet => {
                address.scheme_str() == Some("https") && matches!(address.port_u16(), None | Some(443))
            }
            #[cfg(test)]
            Reach::Loopback => address.scheme_str() == Some("http"),
        }
    }
}

/// Looks names up, and leaves out what is out of reach.
struct Lookup {
    reach: Reach,
    all: DefaultResolver,
}

impl fmt::Debug for Lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lookup({:?})", self.reach)
    }
}

impl Resolver for Lookup {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let mut reached = self.empty();
        for address in &*self.all.resolve(uri, config, timeout)? {
            if self.reach.has(address.ip()) {
                reached.push(*address);
            }
        }
        if reached.is_empty() { Err(Error::HostNotFound) } else { Ok(reached) }
    }
}

/// Fetches images.
#[derive(Debug)]
pub(crate) struct Remote {
    agent: Agent,
    hosts: Vec<ImageHost>,
    reach: Reach,
    longest: Duration,
}

impl Remote {
    /// From these hosts; none where there are none.
    pub(crate) fn new(hosts: Vec<ImageHost>) -> Option<Remote> {
        (!hosts.is_empty()).then(|| Remote::within(Reach::Internet, hosts, LONGEST))
    }

    fn within(reach: Reach, hosts: Vec<ImageHost>, longest: Duration) -> Remote {
        let config = Agent::config_builder()
            .max_redirects(0)
            .http_status_as_error(false)
            // One would be connected to in place of the host.
            .proxy(None)
            .max_idle_connections(0)
            .user_agent(concat!("monomorph/", env!("CARGO_PKG_VERSION")))
            .build();
        let lookup = Lookup { reach, all: DefaultResolver::default() };
        let agent = Agent::with_parts(config, DefaultConnector::default(), lookup);
        Remote { agent, hosts, reach, longest }
    }

    /// The file at an address that the field `at` of a request has, of at most so many bytes.
    ///
    /// # Errors
    /// When the address may not be asked, does not answer in time or without a file, or the file is larger.
    pub(crate) fn fetch(&self, at: &str, address: &str, most: u64) -> Result<Vec<u8>, ApiError> {
        let ends = Instant::now() + self.longest;
        let mut address = address.to_owned();
        for _ in 0..=REDIRECTS {
            let host = self.check(at, &address)?;
            let failed = |why: &dyn fmt::Display| failed(at, &host, why);
            let left = ends.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            let asked = self.agent.get(&address).config().timeout_global(Some(left)).build().call();
            let response = asked.map_err(|error| failed(&why(&error)))?;
            match response.status().as_u16() {
                200 => return read(at, &host, response.into_body().into_reader(), most),
                301 | 302 | 303 | 307 | 308 => {
                    let location = response.headers().get("location").and_then(|it| it.to_str().ok());
                    let next = location.and_then(|location| joined(&address, location));
                    address = next.ok_or_else(|| failed(&"redirects to no address"))?;
                }
                status => return Err(failed(&format_args!("answers with status {status}"))),
            }
        }
        Err(unfetched(at, format_args!("is redirected more than {REDIRECTS} times")))
    }

    /// The host of an address, if it may be asked.
    fn check(&self, at: &str, address: &str) -> Result<String, ApiError> {
        let refused = |what| ApiError { code: "invalid_image_url", ..wrong!(at, "{what}") };
        let uri: Uri = address.parse().map_err(|_| refused("is no address of an image"))?;
        let plain = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
        if !plain || !self.reach.takes(&uri) {
            return Err(refused("must be an https address, without a port or a user's name"));
        }
        let host = uri.host().unwrap_or_default();
        if !self.hosts.iter().any(|allowed| allowed.allows(host)) {
            return Err(refused("leads to a host that this server fetches no images from (--image-hosts)"));
        }
        Ok(host.to_owned())
    }
}

/// The error of a file that could not be had.
fn unfetched(at: &str, what: impl fmt::Display) -> ApiError {
    ApiError { code: "failed_to_download_image", ..wrong!(at, "{what}") }
}

/// The same, naming the host; of an address nothing else is said.
fn failed(at: &str, host: &str, why: &dyn fmt::Display) -> ApiError {
    unfetched(at, format_args!("could not be fetched: {host} {why}"))
}

/// What went wrong, without what only the server's own network would know.
fn why(error: &Error) -> String {
    match error {
        Error::Timeout(_) => "does not answer in time".to_owned(),
        Error::HostNotFound => "has no public address".to_owned(),
        Error::Tls(_) | Error::Rustls(_) => "has no certificate that this server trusts".to_owned(),
        Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut => {
            "does not answer in time".to_owned()
        }
        _ => "cannot be reached, or answers with something else than HTTP".to_owned(),
    }
}

/// Reads a file of at most so many bytes, as it is once it is unpacked.
fn read(at: &str, host: &str, body: impl Read, most: u64) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::new();
    let read = body.take(most + 1).read_to_end(&mut bytes);
    read.map_err(|error| failed(at, host, &why(&Error::from(error))))?;
    if bytes.len() as u64 <= most {
        return Ok(bytes);
    }
    let what = format!(
        "is larger than the {most} bytes that are taken of it; the images that are fetched for a request have at \
         most {FETCHED_BYTES} together"
    );
    Err(ApiError { code: "image_file_too_large", ..wrong!(at, "{what}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    /// A server on this machine that answers paths; its port.
    fn serve() -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                std::thread::spawn(move || answer(&mut stream.expect("a connection"), port));
            }
        });
        port
    }

    fn answer(stream: &mut std::net::TcpStream, port: u16) {
        let mut lines = BufReader::new(stream.try_clone().expect("it is one")).lines();
        let first = lines.next().expect("a request").expect("text");
        lines.find(|line| line.as_ref().is_ok_and(String::is_empty));
        let path = first.split(' ').nth(1).expect("a path");
        let body = |bytes: &[u8]| {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", bytes.len());
            [head.as_bytes(), bytes].concat()
        };
        let to = |location: &str| {
            format!("HTTP/1.1 302 Found\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n").into_bytes()
        };
        let sent = match path {
            "/a.png" => body(b"a picture"),
            "/hop" => to("/a.png"),
            "/hops" => to("hops"),
            "/abroad" => to("http://elsewhere.test/a.png"),
            "/file" => to("file:///etc/passwd"),
            "/port" => to(&format!("http://localhost:{port}/a.png")),
            "/endless" => {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
                while stream.write_all(&[7; 4096]).is_ok() {}
                return;
            }
            "/bomb" => {
                let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
                packed.write_all(&[0; 1 << 20]).expect("packed");
                let packed = packed.finish().expect("packed");
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n",
                    packed.len()
                );
                [head.as_bytes(), &packed].concat()
            }
            "/silent" => {
                std::thread::sleep(Duration::from_secs(5));
                return;
            }
            "/slow" => {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n");
                while stream.write_all(b"x").is_ok() {
                    std::thread::sleep(Duration::from_millis(50));
                }
                return;
            }
            "/garbage" => b"no protocol\r\n\r\n".to_vec(),
            "/cut" => b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nhalf".to_vec(),
            _ => b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_vec(),
        };
        let _ = stream.write_all(&sent);
    }

    fn remote(hosts: &[&str], reach: Reach) -> Remote {
        let hosts = hosts.iter().map(|host| host.parse().expect("a host")).collect();
        Remote::within(reach, hosts, Duration::from_millis(500))
    }

    #[test]
    fn a_file_is_fetched_and_what_is_none_is_refused_in_time() {
        let (port, remote) = (serve(), remote(&["127.0.0.1", "localhost"], Reach::Loopback));
        let fetch = |path: &str| remote.fetch("p", &format!("http://127.0.0.1:{port}/{path}"), 1000);
        for path in ["a.png", "hop", "port"] {
            assert_eq!(fetch(path).expect("a file"), b"a picture", "{path}");
        }
        for (path, code, message) in [
            ("none", "failed_to_download_image", "127.0.0.1 answers with status 404"),
            ("hops", "failed_to_download_image", "is redirected more than 3 times"),
            ("abroad", "invalid_image_url", "(--image-hosts)"),
            ("file", "failed_to_download_image", "redirects to no address"),
            ("endless", "image_file_too_large", "larger"),
            ("bomb", "image_file_too_large", "larger"),
            ("silent", "failed_to_download_image", "does not answer in time"),
            ("slow", "failed_to_download_image", "does not answer in time"),
            ("garbage", "failed_to_download_image", "cannot be reached"),
            ("cut", "failed_to_download_image", "cannot be reached"),
        ] {
            let began = Instant::now();
            let error = fetch(path).expect_err(path);
            assert_eq!((error.code, error.param.as_deref()), (code, Some("p")), "{path}: {}", error.message);
            assert!(error.message.contains(message), "{path}: {}", error.message);
            assert!(began.elapsed() < Duration::from_secs(3), "{path} took {:?}", began.elapsed());
        }
    }

    #[test]
    fn nothing_but_public_hosts_that_are_allowed_is_asked() {
        let port = serve();
        let refused = |hosts: &[&str], address: &str| {
            let error = remote(hosts, Reach::Internet).fetch("p", address, 1000).expect_err(address);
            (error.code, error.message)
        };
        let private = "has no public address";
        for (address, message) in [
            ("http://images.test/a.png".to_owned(), "must be an https address"),
            ("https://images.test:8443/a.png".to_owned(), "must be an https address"),
            ("https://user@images.test/a.png".to_owned(), "must be an https address"),
            ("https://images.test@evil.test/a.png".to_owned(), "must be an https address"),
            ("https:///a.png".to_owned(), "address"),
            (format!("http://127.0.0.1:{port}/a.png"), "must be an https address"),
            ("https://evil.test/a.png".to_owned(), "(--image-hosts)"),
            ("https://images.test.evil.test/a.png".to_owned(), "(--image-hosts)"),
        ] {
            let (code, said) = refused(&["images.test"], &address);
            assert_eq!(code, "invalid_image_url", "{address}: {said}");
            assert!(said.contains(message), "{address}: {said}");
        }
        for address in
            ["https://127.0.0.1/", "https://169.254.169.254/", "https://[::1]/", "https://localhost/"]
        {
            let (code, said) = refused(&["*"], address);
            assert_eq!(code, "failed_to_download_image", "{address}: {said}");
            assert!(said.contains(private), "{address}: {said}");
        }
    }

    #[test]
    fn hosts_are_names_or_what_is_below_one() {
        let allows = |host: &str, name: &str| host.parse::<ImageHost>().expect(host).allows(name);
        assert!(
            allows("Images.example.com", "images.EXAMPLE.com") && !allows("example.com", "a.example.com")
        );
        assert!(allows("*.example.com", "a.b.example.com") && !allows("*.example.com", "example.com"));
        assert!(!allows("*.example.com", "badexample.com") && allows("*", "anything.test"));
        for wrong in ["", "*.", "https://a", "a/b", "a:443", ".a", "a.", "**", "*.*.a", "a b"] {
            assert!(wrong.parse::<ImageHost>().is_err(), "{wrong:?}");
        }
    }
}
