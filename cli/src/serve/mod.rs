//! `serve`: who holds and who waits, for browsers and for Prometheus. Changes nothing on the store.

pub(crate) mod fresh;
pub(crate) mod http;
mod listing;
mod metrics;

use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leasehold::{Error, LockClient};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::args::{Common, ServeArgs};
use crate::run::signals::Caught;
use crate::say::{Ended, Exit, Say};
use crate::serve::fresh::{Fresh, Seen, Trouble};
use crate::serve::http::{Answer, Request};
use crate::serve::listing::{Listing, Lists};
use crate::store::{self, explain, explained};

const WAIT: Duration = Duration::from_millis(2500);
/// The lock name in the request that only tests whether the store answers.
const PROBE: &str = "leasehold";

pub(crate) fn serve(common: &Common, args: &ServeArgs) -> Ended {
    store::asked(common, |client, say| {
        let caught = start(client, args, say)?;
        Ok(caught.signals.recv().map_or(Exit::Internal, Exit::Signal))
    })
}

fn start(client: &LockClient, args: &ServeArgs, say: Say) -> Result<Caught, Exit> {
    // A store without lists, or a user without rights, fails at once instead of showing an empty page.
    client.list(&args.pattern).next_page().transpose().map_err(explained(say))?;
    args.jobs.first().map(|job| client.last_run(job)).transpose().map_err(explained(say))?;
    let listener = http::listen(&args.listen, say)?;
    let address = listener.local_addr().map_err(|error| say.internal("cannot listen", &error))?;
    let caught = Caught::start().map_err(|error| say.internal("signals cannot be caught", &error))?;
    let site = Site::start(client, args, say).map_err(|error| say.no_thread(&error))?;
    http::start(listener, move |request| site.answer(request), say)?;
    if let Some(words) = warning(address) {
        say.notice("warning", &words, &json!({}));
    }
    http::announce(address, say);
    Ok(caught)
}

fn warning(address: SocketAddr) -> Option<String> {
    let words = format!(
        "whoever can reach {address} sees the names of locks, hosts, programs and threads: nothing asks for a password, and nothing is encrypted"
    );
    (!address.ip().to_canonical().is_loopback()).then_some(words)
}

struct Site {
    hosts: Vec<String>,
    locks: Fresh<Listing>,
    /// Whether the store answers a single request, which is cheaper than listing all locks.
    health: Fresh<()>,
    policy: String,
}

impl Site {
    fn start(client: &LockClient, args: &ServeArgs, say: Say) -> std::io::Result<Site> {
        let mut lists = Lists::new(client, args);
        let mut reports = Reports { say, failed: false };
        let locks = Fresh::start(
            "list",
            move |progress| lists.list(progress),
            move |failure| reports.outcome(failure),
        )?;
        locks.want(); // so the first caller does not wait
        let health = Fresh::health(client, PROBE)?;
        Ok(Site { hosts: args.hosts.clone(), locks, health, policy: policy() })
    }

    /// The newest list of locks, and the trouble if the store does not answer a single request. That the list
    /// takes long is no trouble.
    fn seen(&self) -> (Seen<Listing>, Option<Trouble>) {
        let trouble = self.health.get(WAIT).trouble();
        let wait = if trouble.is_some() { Duration::ZERO } else { WAIT };
        (self.locks.get(wait), trouble)
    }

    fn answer(&self, request: &Request) -> Answer {
        if request.host.as_ref().is_some_and(|host| !http::is_known(host, request.local, &self.hosts)) {
            return Answer::text(
                421,
                "this program does not serve that host: start it with --host and the host's name",
            );
        }
        if let Some(refusal) = http::refusal(request) {
            return refusal;
        }
        match request.path.as_str() {
            "/" => self.page(),
            "/locks.json" => self.locks(),
            "/metrics" => self.metrics(),
            "/healthz" => self.health(),
            _ => Answer::text(404, "there are /, /locks.json, /metrics and /healthz"),
        }
    }

    fn page(&self) -> Answer {
        Answer {
            status: 200,
            content_type: "text/html; charset=utf-8",
            headers: format!("Content-Security-Policy: {}\r\nX-Frame-Options: DENY\r\n", self.policy),
            body: HTML.to_owned(),
        }
    }

    fn locks(&self) -> Answer {
        let (seen, trouble) = self.seen();
        let trouble = trouble.or(seen.failure);
        let status = if trouble.is_none() && seen.last.is_some() { 200 } else { 503 };
        let body = listing::as_json(&seen, trouble);
        Answer { status, content_type: "application/json", headers: String::new(), body }
    }

    fn metrics(&self) -> Answer {
        let (seen, trouble) = self.seen();
        let body = metrics::as_text(&seen, trouble);
        Answer { status: 200, content_type: metrics::CONTENT_TYPE, headers: String::new(), body }
    }

    fn health(&self) -> Answer {
        let seen = self.health.get(WAIT);
        match (seen.trouble(), seen.last) {
            (Some(trouble), _) => Answer::text(503, trouble.words()),
            (None, Some(_)) => Answer::text(200, "ok"),
            (None, None) => Answer::text(503, "the store has not answered yet"),
        }
    }
}

struct Reports {
    say: Say,
    failed: bool,
}

impl Reports {
    fn outcome(&mut self, failure: Option<&Error>) {
        let before = std::mem::replace(&mut self.failed, failure.is_some());
        match failure {
            Some(error) if !before => {
                explain(error, self.say);
            }
            None if before => self.say.notice("back", "the store answers again", &json!({})),
            _ => {}
        }
    }
}

const HTML: &str = include_str!("page.html");

fn policy() -> String {
    let (script, style) = (hash("<script>", "</script>"), hash("<style>", "</style>"));
    format!(
        "default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}

fn hash(begin: &str, end: &str) -> String {
    let text = HTML.split_once(begin).and_then(|(_, rest)| rest.split_once(end)).map_or("", |(text, _)| text);
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)))
}

#[cfg(test)]
mod tests {
    use super::{HTML, warning};

    #[test]
    fn serve_warns_of_an_address_that_others_can_reach() {
        for (address, is_open) in [
            ("127.0.0.1:1", false),
            ("[::1]:1", false),
            ("127.8.8.8:1", false),
            ("0.0.0.0:1", true),
            ("[::]:1", true),
            ("10.0.0.1:1", true),
        ] {
            let words = warning(address.parse().unwrap());
            assert_eq!(
                words.is_some_and(|words| words.contains("nothing asks for a password")),
                is_open,
                "{address}"
            );
        }
    }

    #[test]
    fn the_page_loads_nothing_from_other_hosts() {
        for tag in ["<script", "</script>", "<style", "</style>"] {
            assert_eq!(HTML.matches(tag).count(), 1, "{tag}");
        }
        // Texts that load something from another host, or turn other programs' text into elements or code.
        const NONE: &str = "http:|https:|//cdn|src=|@import|url(|innerHTML|outerHTML|insertAdjacentHTML|document.write|eval(|Function(|\
                            style=| on";
        for no in NONE.split('|') {
            let lines: Vec<&str> = HTML.lines().filter(|line| line.contains(no)).collect();
            let is_attribute = |line: &&&str| {
                no != " on" || line.contains("=\"") && line.contains(" on") && line.contains('<')
            };
            assert_eq!(lines.iter().filter(is_attribute).count(), 0, "{no}: {lines:?}");
        }
    }
}
