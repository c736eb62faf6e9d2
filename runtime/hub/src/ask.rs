//! One request: redirects, the token, what statuses mean; and when to try again.

use crate::address::{joined, same_host};
use crate::{Error, Hub, Limits, Progress};
use std::time::Duration;
use ureq::http::{Method, Request, Response, Uri};
use ureq::{Agent, Body};

/// Longest chain of redirects.
const REDIRECTS: usize = 10;

/// Most bytes of an answer in JSON.
const JSON_BYTES: u64 = 32 << 20;

/// Why an attempt failed.
pub enum Fault {
    /// Another attempt may do better, after this time if the hub says so.
    Passing(String, Option<Duration>),
    /// It will not.
    Final(Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Final(error)
    }
}

impl Fault {
    pub fn passing(why: impl Into<String>) -> Fault {
        Fault::Passing(why.into(), None)
    }
}

/// What is told of attempts and how many are left.
pub struct Patience<'a> {
    limits: &'a Limits,
    url: &'a str,
    failed: u32,
}

impl<'a> Patience<'a> {
    pub fn new(limits: &'a Limits, url: &'a str) -> Patience<'a> {
        Patience { limits, url, failed: 0 }
    }

    /// An attempt brought something: the next failure is a first one.
    pub fn rewarded(&mut self) {
        self.failed = 0;
    }

    /// Waits before the next attempt, if there may be one.
    pub fn failed(&mut self, fault: Fault, progress: &mut dyn Progress) -> Result<(), Error> {
        let (why, wait) = match fault {
            Fault::Passing(why, wait) => (why, wait),
            Fault::Final(error) => return Err(error),
        };
        let url = || self.url.to_owned();
        self.failed += 1;
        if self.failed >= self.limits.attempts {
            return Err(Error::Unreachable { url: url(), attempts: self.failed, why });
        }
        if let Some(wait) = wait.filter(|wait| *wait > self.limits.longest_pause) {
            return Err(Error::Busy { url: url(), wait });
        }
        let doubled = self.limits.pause.saturating_mul(1 << (self.failed - 1).min(16));
        let pause = wait.unwrap_or(doubled).min(self.limits.longest_pause);
        progress.note(&format!("{why}; trying again in {:.0} s", pause.as_secs_f64().ceil()));
        std::thread::sleep(pause);
        Ok(())
    }
}

/// Whether the redirects of a request are followed to other hosts.
#[derive(Clone, Copy, PartialEq)]
pub enum Follow {
    /// To any, as for the bytes of a file.
    Everywhere,
    /// Not beyond the hub, whose answer says what a file is.
    OnTheHub,
}

/// The last answer of a chain of redirects, and what the hub's own said on the way.
pub struct Answer {
    pub response: Response<Body>,
    pub commit: Option<String>,
    pub etag: Option<String>,
    pub bytes: Option<u64>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.response, name)
    }

    pub fn status(&self) -> u16 {
        self.response.status().as_u16()
    }
}

fn header<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

/// Asks a hub about one revision of one repository.
pub struct Asker<'a> {
    pub hub: &'a Hub,
    agent: Agent,
    pub id: &'a str,
    revision: &'a str,
}

impl<'a> Asker<'a> {
    /// # Errors
    /// When the hub may not be asked.
    pub fn new(hub: &'a Hub, id: &'a str, revision: &'a str) -> Result<Asker<'a>, Error> {
        crate::names::id(id)?;
        crate::names::revision(revision)?;
        if hub.offline {
            return Err(Error::Offline { id: id.to_owned(), cache: hub.cache.clone() });
        }
        let limits = &hub.limits;
        let config = Agent::config_builder()
            .max_redirects(0)
            .http_status_as_error(false)
            // Sizes and ranges are those of the files themselves.
            .accept_encoding("identity")
            .user_agent(concat!("monomorph/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(limits.connect))
            .timeout_recv_response(Some(limits.answer))
            .timeout_per_read(Some(limits.silence))
            .build();
        Ok(Asker { hub, agent: config.into(), id, revision })
    }

    /// Asks until there is an answer that no further attempt would better.
    pub fn patiently<T>(
        &self,
        url: &str,
        progress: &mut dyn Progress,
        mut ask: impl FnMut(&Self) -> Result<T, Fault>,
    ) -> Result<T, Error> {
        let mut patience = Patience::new(&self.hub.limits, url);
        loop {
            match ask(self) {
                Ok(answer) => return Ok(answer),
                Err(fault) => patience.failed(fault, progress)?,
            }
        }
    }

    /// An answer in JSON, and the address of its next page.
    pub fn json<T: serde::de::DeserializeOwned>(
        &self,
        url: &str,
        progress: &mut dyn Progress,
    ) -> Result<(T, Option<String>), Error> {
        let (text, next) = self.patiently(url, progress, |it| {
            let mut answer = it.once(Method::GET, url, None, Follow::OnTheHub)?;
            if answer.status() != 200 {
                return Err(Error::answer(url, format!("the answer has status {}", answer.status())).into());
            }
            let next = answer.header("link").and_then(next_page);
            let next = next.and_then(|location| joined(url, &location));
            let body = answer.response.body_mut().with_config().limit(JSON_BYTES).read_to_vec();
            Ok((body.map_err(|error| Fault::passing(format!("{url} broke off: {error}")))?, next))
        })?;
        let read = serde_json::from_slice(&text);
        let read = read.map_err(|error| {
            let begin: String = String::from_utf8_lossy(&text).chars().take(60).collect();
            Error::answer(url, format!("the answer is not what a hub says ({error}): {begin:?}"))
        })?;
        Ok((read, next))
    }

    /// Asks once: a range begins at a byte and may end before another. Redirects are followed; the token goes
    /// to the hub's own host alone.
    pub fn once(
        &self,
        method: Method,
        url: &str,
        range: Option<(u64, Option<u64>)>,
        follow: Follow,
    ) -> Result<Answer, Fault> {
        let mut at = url.to_owned();
        let (mut commit, mut etag, mut bytes) = (None, None, None);
        for _ in 0..=REDIRECTS {
            let own = same_host(&at, &self.hub.endpoint);
            let response = self.call(&method, &at, range, own)?;
            let owned = |name: &str| header(&response, name).map(str::to_owned);
            let redirects = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
            if own {
                commit = commit.or_else(|| owned("x-repo-commit"));
                etag = etag.or_else(|| owned("x-linked-etag"));
                bytes = bytes.or_else(|| header(&response, "x-linked-size")?.parse().ok());
            }
            let location = redirects.then(|| owned("location")).flatten();
            let next = match location {
                None if redirects => return Err(Error::answer(&at, "the redirect names no address").into()),
                None => None,
                Some(location) => Some(joined(&at, &location).ok_or_else(|| {
                    Error::answer(&at, format!("the redirect to {location:?} leads to no web server"))
                })?),
            };
            let stays = next.as_ref().is_some_and(|next| same_host(next, &self.hub.endpoint));
            match next {
                Some(next) if at.starts_with("https:") && next.starts_with("http:") => {
                    return Err(Error::answer(&at, format!("the redirect to {next} is not encrypted")).into());
                }
                Some(next) if stays || follow == Follow::Everywhere => at = next,
                _ => {
                    if next.is_none() && !response.status().is_success() {
                        self.judge(&at, own, &response)?;
                    }
                    if own {
                        etag = etag.or_else(|| owned("etag"));
                        let length = || header(&response, "content-length")?.parse().ok();
                        bytes = bytes.or_else(|| if redirects { None } else { length() });
                    }
                    return Ok(Answer { response, commit, etag, bytes });
                }
            }
        }
        Err(Error::answer(url, format!("there are more than {REDIRECTS} redirects, the last to {at}")).into())
    }

    fn call(
        &self,
        method: &Method,
        url: &str,
        range: Option<(u64, Option<u64>)>,
        own: bool,
    ) -> Result<Response<Body>, Fault> {
        let broken = |error: &dyn std::fmt::Display| Fault::Final(Error::answer(url, error.to_string()));
        let uri: Uri = url.parse().map_err(|error| broken(&error))?;
        let mut request = Request::builder().method(method).uri(uri);
        if let Some((begin, end)) = range {
            let end = end.map(|end| (end - 1).to_string()).unwrap_or_default();
            request = request.header("range", format!("bytes={begin}-{end}"));
        }
        if let Some(token) = self.hub.token.as_ref().filter(|_| own) {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(()).map_err(|error| broken(&error))?;
        self.agent.run(request).map_err(|error| match error {
            ureq::Error::BadUri(_) | ureq::Error::Http(_) | ureq::Error::InvalidProxyUrl => broken(&error),
            ureq::Error::Timeout(_) => Fault::passing(format!("{url} does not answer in time")),
            _ => Fault::passing(format!("{url} does not answer: {error}")),
        })
    }

    /// What the status of an answer without content means.
    fn judge(&self, url: &str, own: bool, response: &Response<Body>) -> Result<(), Fault> {
        let status = response.status().as_u16();
        let why = || {
            let message = header(response, "x-error-message").unwrap_or_default().trim();
            if message.is_empty() { format!("status {status}") } else { message.to_owned() }
        };
        let id = || self.id.to_owned();
        let token = self.hub.token.is_some();
        match status {
            // Has to do with the range that was asked for.
            416 => return Ok(()),
            408 | 429 | 500.. => {
                let wait = header(response, "retry-after").and_then(|it| it.trim().parse().ok());
                return Err(Fault::Passing(format!("{url} has {}", why()), wait.map(Duration::from_secs)));
            }
            // A signed address expires; the next attempt gets another.
            401 | 403 | 404 | 410 if !own => {
                return Err(Fault::passing(format!("the signed address was refused with {}", why())));
            }
            _ => {}
        }
        let refused = || Error::Refused { url: url.to_owned(), why: why(), token };
        let error = match (header(response, "x-error-code").filter(|_| own), status) {
            (Some("GatedRepo"), _) => {
                Error::Gated { id: id(), page: format!("{}/{}", self.hub.endpoint, self.id), token }
            }
            _ if why().starts_with("Invalid credentials") => refused(),
            (Some("RepoNotFound"), _) => {
                Error::NoRepository { id: id(), endpoint: self.hub.endpoint.clone(), token }
            }
            (Some("RevisionNotFound"), _) => {
                Error::NoRevision { id: id(), revision: self.revision.to_owned() }
            }
            (Some("EntryNotFound"), _) => Error::NoFile { id: id(), url: url.to_owned() },
            (_, 401 | 403) => refused(),
            _ => Error::answer(url, format!("the answer has {}", why())),
        };
        Err(error.into())
    }
}

/// The next page of a `Link` header.
fn next_page(link: &str) -> Option<String> {
    let part = link.split(',').find(|part| part.contains("rel=\"next\""))?;
    Some(part.split_once('<')?.1.split_once('>')?.0.to_owned())
}
