//! Addresses: what a redirect leads to, and whose host it is.

use ureq::http::Uri;

/// The address that `location` means in an answer from `base`; none if it is none.
pub fn joined(base: &str, location: &str) -> Option<String> {
    let uri: Uri = base.parse().ok()?;
    let (scheme, host) = (uri.scheme_str()?, uri.authority()?.as_str());
    let location = location.split('#').next().unwrap_or_default();
    let joined = if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{host}{location}")
    } else if location.starts_with('?') {
        format!("{scheme}://{host}{}{location}", uri.path())
    } else if scheme_of(location).is_some() {
        location.to_owned()
    } else {
        let directory = uri.path().rsplit_once('/').map_or("", |(directory, _)| directory);
        format!("{scheme}://{host}{directory}/{location}")
    };
    let parsed: Uri = joined.parse().ok()?;
    (matches!(parsed.scheme_str(), Some("http" | "https")) && parsed.host().is_some()).then_some(joined)
}

fn scheme_of(address: &str) -> Option<&str> {
    let (scheme, _) = address.split_once(':')?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    (!scheme.is_empty() && scheme.chars().all(plain)).then_some(scheme)
}

/// Whether two addresses are of one scheme, host and port.
pub fn same_host(one: &str, other: &str) -> bool {
    let origin = |address: &str| {
        let uri: Uri = address.parse().ok()?;
        let scheme = uri.scheme_str()?.to_owned();
        let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
        Some((scheme, uri.host()?.to_lowercase(), port))
    };
    origin(one).is_some_and(|it| origin(other) == Some(it))
}

/// A path as part of an address; `slash` says whether slashes stay.
pub fn encoded(path: &str, slash: bool) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || slash && byte == b'/';
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        match plain(byte) {
            true => out.push(byte as char),
            false => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_read_as_browsers_do() {
        let base = "https://hub:8/a/b/c.json?x=1";
        for (location, meant) in [
            ("https://other/x?y", Some("https://other/x?y")),
            ("//other/x", Some("https://other/x")),
            ("/x/y", Some("https://hub:8/x/y")),
            ("d.json", Some("https://hub:8/a/b/d.json")),
            ("?y", Some("https://hub:8/a/b/c.json?y")),
            ("/x#part", Some("https://hub:8/x")),
            ("file:///etc/passwd", None),
            ("ftp://other/x", None),
            ("http://", None),
        ] {
            assert_eq!(joined(base, location).as_deref(), meant, "{location}");
        }
    }

    #[test]
    fn scheme_host_and_port_make_a_host_the_same() {
        assert!(same_host("https://Hub/a", "https://hub:443/b"));
        for other in ["http://hub/a", "https://hub:444/", "https://hub.evil/", "https://evil/hub", "hub"] {
            assert!(!same_host("https://hub/a", other), "{other}");
        }
        assert_eq!(encoded("a b/c#d", true), "a%20b/c%23d");
        assert_eq!(encoded("refs/pr/1", false), "refs%2Fpr%2F1");
    }
}
