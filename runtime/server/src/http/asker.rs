//! The client of a request, so that the engine can share service fairly.

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, header};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

/// The address at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// What identifies a client before the body is read: its key, or else its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asker(u64);

impl Asker {
    /// The client that sent a request, as a keyed hash, so that no client can impersonate another.
    pub(crate) fn of(request: &Request<Body>, keys: &RandomState) -> Asker {
        let headers = request.headers();
        let key = headers.get(header::AUTHORIZATION).or_else(|| headers.get("x-api-key"));
        let peer = || request.extensions().get::<ConnectInfo<Peer>>().map(|info| info.0.0);
        Asker(match key {
            Some(key) => keys.hash_one(("key", key.as_bytes())),
            None => keys.hash_one(("peer", peer())),
        })
    }

    /// The client's number: of the `user` that the body names, where it does.
    pub(crate) fn client(self, user: Option<&str>, keys: &RandomState) -> u64 {
        user.map_or(self.0, |user| keys.hash_one(("user", user)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn request(headers: &[(&str, &str)], peer: u8) -> Request<Body> {
        let mut request = Request::builder();
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(Body::empty()).expect("a request");
        request.extensions_mut().insert(ConnectInfo(Peer(IpAddr::V4(Ipv4Addr::new(10, 0, 0, peer)))));
        request
    }

    #[test]
    fn a_user_goes_before_a_key_and_a_key_before_an_address() {
        let keys = RandomState::new();
        let who = |headers: &[(&str, &str)], peer, user| {
            Asker::of(&request(headers, peer), &keys).client(user, &keys)
        };
        let [one, other] = [[("authorization", "Bearer a")], [("authorization", "Bearer b")]];
        assert_eq!(who(&[], 1, None), who(&[], 1, None));
        assert_ne!(who(&[], 1, None), who(&[], 2, None));
        assert_eq!(who(&one, 1, None), who(&one, 2, None));
        assert_ne!(who(&one, 1, None), who(&other, 1, None));
        assert_ne!(who(&one, 1, None), who(&[], 1, None));
        assert_ne!(who(&[("x-api-key", "a")], 1, None), who(&[], 1, None));
        assert_eq!(who(&one, 1, Some("u")), who(&other, 2, Some("u")));
        assert_ne!(who(&one, 1, Some("u")), who(&one, 1, Some("v")));
        assert_ne!(who(&one, 1, Some("Bearer a")), who(&one, 1, None), "a user is no key");
    }
}
