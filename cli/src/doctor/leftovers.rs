//! Locks without an end: nobody's, or taken without a lease by Redisson. They block a name until somebody
//! ends them by hand.

use std::time::Duration;

use serde_json::Value;

use crate::clock::Moment;
use crate::doctor::redis::{Settings, failed, number};
use crate::doctor::report::Finding;
use crate::doctor::wire::{Refusal, Wire, list, text};

const CHECK: &str = "leftovers";

/// The places of the server's table that a page of SCAN walks over: well under a millisecond.
const PAGE: &str = "500";

/// Without `--all`.
const PATIENCE: Duration = Duration::from_secs(10);

/// The number of leftovers that are named to people, and to programs.
const NAMED: (usize, usize) = (5, 100);

/// Hashes with more fields are no locks that anybody forgot.
const MOST_FIELDS: i64 = 100;

pub(super) fn check(wire: &mut Wire, settings: &Settings<'_>) -> Finding {
    let mut search = Search { found: Vec::new(), count: 0, keys: 0, requests: 0 };
    match search.all(wire, settings) {
        Ok(true) => search.finding(settings.prefix),
        Ok(false) if search.count > 0 => search.finding(settings.prefix),
        Ok(false) => {
            let (keys, requests) = (search.keys, search.requests);
            let words = format!(
                "none among the first {keys} keys, by {requests} requests in {PATIENCE:?}; --all looks at all"
            );
            Finding::not_checked(CHECK, words)
        }
        Err(Refusal::NoRight) => {
            Finding::not_checked(CHECK, "the user may not use SCAN, PTTL, HLEN and HGETALL")
        }
        Err(refusal) => failed(CHECK, &refusal),
    }
}

struct Search {
    found: Vec<String>,
    count: u64,
    /// Hashes: the server shows no others.
    keys: u64,
    requests: u64,
}

impl Search {
    /// Looks at the keys, a page at a time, so that the server serves others between. Whether these were all.
    fn all(&mut self, wire: &mut Wire, settings: &Settings<'_>) -> Result<bool, Refusal> {
        let end = Moment::now().plus(PATIENCE);
        let pattern = format!("{}*", literally(settings.prefix));
        let mut cursor = "0".to_owned();
        loop {
            let scan = ["SCAN", &cursor, "MATCH", &pattern, "COUNT", PAGE, "TYPE", "hash"];
            let answer = wire.ask(&scan)?;
            self.requests += 1;
            let [next, keys] = list(&answer) else { return Err(Refusal::Unknown) };
            cursor = text(next);
            let keys: Vec<String> = list(keys).iter().map(text).collect();
            self.keys += u64::try_from(keys.len()).unwrap_or(0);
            self.look(wire, keys)?;
            if cursor == "0" {
                return Ok(true);
            }
            if !settings.all && Moment::now() >= end {
                return Ok(false);
            }
        }
    }

    fn look(&mut self, wire: &mut Wire, keys: Vec<String>) -> Result<(), Refusal> {
        let keys = self.those(wire, keys, "PTTL", |ttl| ttl == -1)?;
        let keys = self.those(wire, keys, "HLEN", |fields| (1..=MOST_FIELDS).contains(&fields))?;
        for (key, hash) in self.asked(wire, keys, "HGETALL")? {
            if is_lock(&hash) {
                self.count += 1;
                if self.found.len() < NAMED.1 {
                    self.found.push(key);
                }
            }
        }
        Ok(())
    }

    fn those(
        &mut self,
        wire: &mut Wire,
        keys: Vec<String>,
        command: &str,
        fits: impl Fn(i64) -> bool,
    ) -> Result<Vec<String>, Refusal> {
        let answers = self.asked(wire, keys, command)?;
        let fitting = answers.into_iter().filter(|(_, answer)| number(answer).is_some_and(&fits));
        Ok(fitting.map(|(key, _)| key).collect())
    }

    /// The answers to one command for each key, by one request.
    fn asked(
        &mut self,
        wire: &mut Wire,
        keys: Vec<String>,
        command: &str,
    ) -> Result<Vec<(String, redis::Value)>, Refusal> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let requests: Vec<Vec<String>> =
            keys.iter().map(|key| vec![command.to_owned(), key.clone()]).collect();
        self.requests += 1;
        Ok(keys.into_iter().zip(wire.ask_all(&requests)?).collect())
    }

    fn finding(self, prefix: &str) -> Finding {
        let Search { found, count, keys, requests } = self;
        let cost = format!("among {keys} hashes, by {requests} requests");
        let names: Vec<&str> = found.iter().map(|key| key.strip_prefix(prefix).unwrap_or(key)).collect();
        let found = if count == 0 {
            Finding::fine(CHECK, format!("no lock without an end {cost}"))
        } else {
            let shown = names.iter().take(NAMED.0).copied().collect::<Vec<_>>().join(", ");
            let more = if names.len() > NAMED.0 { ", …" } else { "" };
            let noun = if count == 1 { "lock" } else { "locks" };
            let words = format!("{count} {noun} without an end: {shown}{more} ({cost})");
            Finding::warning(
                CHECK,
                words,
                "`leasehold show NAME` says whose it is, `leasehold force NAME --yes` ends it; Redisson takes such with lease -1 and no watchdog",
            )
        };
        found
            .with("names", names)
            .with("keys", keys)
            .with("requests", requests)
            .with("count", Value::from(count))
    }
}

/// Whether each field of a hash is an owner, `client:number`, with a count of holds.
fn is_lock(hash: &redis::Value) -> bool {
    let mut has_owner = false;
    for pair in list(hash).chunks_exact(2) {
        let [field, value] = pair else { return false };
        let (field, value) = (text(field), text(value));
        if field == "mode" && (value == "read" || value == "write")
            || ["leasehold:about", "leasehold:kept"].contains(&field.as_str())
        {
            continue;
        }
        if !is_owner(field.strip_suffix(":write").unwrap_or(&field)) || value.parse::<u32>().is_err() {
            return false;
        }
        has_owner = true;
    }
    has_owner
}

fn is_owner(text: &str) -> bool {
    let Some((client, number)) = text.rsplit_once(':') else { return false };
    let is_id = client.len() == 36 && client.split('-').map(str::len).eq([8, 4, 4, 4, 12]);
    is_id && client.chars().all(|c| c == '-' || c.is_ascii_hexdigit()) && number.parse::<u64>().is_ok()
}

/// As a pattern that only this text has.
fn literally(text: &str) -> String {
    text.chars().flat_map(|c| if "*?[]\\^-".contains(c) { vec!['\\', c] } else { vec![c] }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_a_lock_if_each_field_is_an_owner() {
        let hash = |fields: &[(&str, &str)]| {
            let word = |text: &str| redis::Value::BulkString(text.as_bytes().to_vec());
            redis::Value::Array(fields.iter().flat_map(|(name, value)| [word(name), word(value)]).collect())
        };
        let owner = "0b7a5a9e-9c55-4f0a-8d6c-1f0f5d0c7a11:42";
        assert!(is_lock(&hash(&[(owner, "1")])));
        assert!(is_lock(&hash(&[("mode", "write"), (&format!("{owner}:write"), "2")])));
        assert!(is_lock(&hash(&[(owner, "1"), ("leasehold:about", "…")])));
        for other in [
            &[("name", "1")][..],
            &[("mode", "read")],
            &[(owner, "one")],
            &[(owner, "1"), ("price", "2")],
            &[("0b7a5a9e:42", "1")],
            &[],
        ] {
            assert!(!is_lock(&hash(other)), "{other:?}");
        }
    }

    #[test]
    fn a_prefix_stands_for_itself_in_a_pattern() {
        assert_eq!(literally("a*[b]?\\"), "a\\*\\[b\\]\\?\\\\");
    }
}
