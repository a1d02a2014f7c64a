//! Requests and answers in the JSON of etcd's gateway, with bytes in base64 and 64-bit numbers as text.
//!
//! | key | value | lease |
//! |---|---|---|
//! | prefix + the lock's name + `/%/` + owner | `owner count ttl`, for example `0f0c…:7 1 31` | its own, of `ttl` seconds |
//! | prefix + `%clients/` + client | the client's entry in the directory | its own |
//!
//! An owner that wants a lock puts a key of the first row. The owner whose key is the oldest holds the lock,
//! as in etcd's own recipe. In a name, `/` is written `%2F`, and `%` is written `%25`. A prefix contains no
//! `%`. Therefore no other lock, under this or a longer prefix, has keys in the range of a lock's keys.
//! `ttl` is in the value, so that a reader need not ask for the lease.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::error::{Error, ErrorKind, Result};
use crate::hosts::unescaped;
use crate::ident::Owner;
use crate::seam::Failure;
use crate::stores::etcd::members::unreadable;

/// Maximum number of locks in one transaction. A server accepts 128 operations by default.
pub(super) const BATCH: usize = BATCH_OF_CLAIMS as usize;
pub(super) const BATCH_OF_CLAIMS: u32 = 100;

/// The key just before an owner's key in the queue. A later key of the same name has another `created`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Front {
    pub(super) key: String,
    pub(super) created: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeldKey {
    pub(super) key: String,
    pub(super) owner: String,
    pub(super) count: u32,
    pub(super) ttl: u64,
    pub(super) lease: i64,
    pub(super) revision: i64,
    /// The revision of the key's creation, which is its place in the queue.
    pub(super) created: i64,
}

impl HeldKey {
    fn read(pair: &Value) -> Result<HeldKey> {
        let value = pair.get("value").and_then(Value::as_str).unwrap_or_default();
        let value = String::from_utf8(STANDARD.decode(value).unwrap_or_default()).unwrap_or_default();
        let mut words = value.split(' ');
        let (owner, count, ttl) = (words.next(), words.next(), words.next());
        let (Some(owner), Some(count), Some(ttl), None) = (
            owner,
            count.and_then(|count| count.parse().ok()),
            ttl.and_then(|ttl| ttl.parse().ok()),
            words.next(),
        ) else {
            return Err(Error::new(ErrorKind::WrongType, "use", "the key holds a value that is not a lock"));
        };
        Ok(HeldKey {
            key: pair.get("key").and_then(Value::as_str).unwrap_or_default().to_owned(),
            owner: owner.to_owned(),
            count,
            ttl,
            lease: number(pair, "lease").unwrap_or(0),
            revision: number(pair, "mod_revision").unwrap_or(0),
            created: number(pair, "create_revision").unwrap_or(0),
        })
    }

    pub(super) fn is_of(&self, owner: Owner) -> bool {
        self.owner == owner.to_string()
    }
}

pub(super) fn value(owner: Owner, count: u32, ttl: u64) -> String {
    STANDARD.encode(format!("{owner} {count} {ttl}"))
}

/// The key of the format's version, below the prefix. No lock's key begins so: names write a `%` as `%25`.
pub(super) const FORMAT_KEY: &str = "%format";

/// Separates a lock's name from the owner. Neither names nor prefixes can contain it.
pub(super) const OWNERS: &str = "/%/";

/// The prefix of all keys of one lock, which form its queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeyLine(String);

impl KeyLine {
    pub(super) fn new(prefix: &str, name: &str) -> KeyLine {
        let name = name.replace('%', "%25").replace('/', "%2F");
        KeyLine(format!("{prefix}{name}{OWNERS}"))
    }

    pub(super) fn text(&self) -> &str {
        &self.0
    }

    pub(super) fn range(&self) -> Value {
        let [key, range_end] = self.bounds();
        json!({ "key": key, "range_end": range_end })
    }

    pub(super) fn key(&self, owner: Owner) -> String {
        STANDARD.encode(format!("{}{owner}", self.0))
    }

    /// The range's first key, and the first key behind it. The range has exactly the keys with this prefix.
    fn bounds(&self) -> [String; 2] {
        [STANDARD.encode(&self.0), behind(&self.0)]
    }

    pub(super) fn first(&self) -> Value {
        self.first_of(1)
    }

    /// The request for the first `few` keys and the length of the queue.
    pub(super) fn first_of(&self, few: u32) -> Value {
        let [key, range_end] = self.bounds();
        json!({ "request_range": {
            "key": key,
            "range_end": range_end,
            "sort_target": "CREATE",
            "sort_order": "ASCEND",
            "limit": few.to_string(),
        } })
    }

    pub(super) fn last(&self, before: Option<i64>) -> Value {
        let [key, range_end] = self.bounds();
        // Zero would mean "no bound". etcd's first write has revision 2, so `before - 1` is at least 1.
        let newest = before.map_or(0, |before| before.saturating_sub(1));
        json!({ "request_range": {
            "key": key,
            "range_end": range_end,
            "sort_target": "CREATE",
            "sort_order": "DESCEND",
            "limit": "1",
            "keys_only": true,
            "max_create_revision": newest.to_string(),
        } })
    }

    pub(super) fn is_empty(&self) -> Value {
        let [key, range_end] = self.bounds();
        json!({
            "key": key,
            "range_end": range_end,
            "target": "CREATE",
            "result": "EQUAL",
            "create_revision": "0",
        })
    }
}

/// The first key behind all keys below `folder`, which ends with a slash: `0` is the character after `/`.
pub(super) fn behind(folder: &str) -> String {
    STANDARD.encode(format!("{}0", folder.trim_end_matches('/')))
}

/// The name from which [`KeyLine::new`] makes the text `written`; `None` if there is none.
pub(super) fn name_of(written: &str) -> Option<String> {
    let is_it = |name: &String| KeyLine::new("", name).0.strip_suffix(OWNERS) == Some(written);
    unescaped(written).filter(|name| !name.is_empty() && is_it(name))
}

pub(super) fn all(prefix: &str) -> Value {
    KeyLine(prefix.to_owned()).range()
}

pub(super) fn is_absent(key: &str) -> Value {
    is_since(key, 0)
}

pub(super) fn is_there(key: &str) -> Value {
    json!({ "key": key, "target": "CREATE", "result": "GREATER", "create_revision": "0" })
}

/// Condition: the key exists, and was created at revision `created`; zero: the key does not exist.
pub(super) fn is_since(key: &str, created: i64) -> Value {
    json!({ "key": key, "target": "CREATE", "result": "EQUAL", "create_revision": created.to_string() })
}

/// Condition: the key has not changed since `revision`.
pub(super) fn is_at(key: &str, revision: i64) -> Value {
    json!({ "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string() })
}

pub(super) fn put(key: &str, value: &str, lease: i64) -> Value {
    json!({ "request_put": { "key": key, "value": value, "lease": lease.to_string() } })
}

pub(super) fn put_as_leased(key: &str, value: &str) -> Value {
    json!({ "request_put": { "key": key, "value": value, "ignore_lease": true } })
}

pub(super) fn get(key: &str) -> Value {
    json!({ "request_range": { "key": key } })
}

pub(super) fn take_away(key: &str) -> Value {
    json!({ "request_delete_range": { "key": key, "prev_kv": true } })
}

pub(super) fn txn(compare: &[Value], then: &[Value], otherwise: &[Value]) -> Value {
    json!({ "compare": compare, "success": then, "failure": otherwise })
}

pub(super) struct Done {
    pub(super) succeeded: bool,
    pub(super) revision: u64,
    responses: Vec<Value>,
}

impl Done {
    pub(super) fn read(answer: &Value) -> Done {
        Done {
            succeeded: answer.get("succeeded").and_then(Value::as_bool).unwrap_or(false),
            revision: answer
                .get("header")
                .and_then(|header| number(header, "revision"))
                .and_then(|revision| u64::try_from(revision).ok())
                .unwrap_or(0),
            responses: answer.get("responses").and_then(Value::as_array).cloned().unwrap_or_default(),
        }
    }

    /// The key in `responses[at]`, which answers a `get`, a queue's `first` or a `take_away`.
    pub(super) fn found(&self, at: usize) -> Result<Option<HeldKey>> {
        self.pair(at)?.map(HeldKey::read).transpose()
    }

    /// The text and lease of the key in `responses[at]`, which answers a `get`. `None` if there is no such
    /// key, or its value is not UTF-8.
    pub(super) fn text(&self, at: usize) -> Result<Option<(String, i64)>> {
        let Some(pair) = self.pair(at)? else { return Ok(None) };
        let value = pair.get("value").and_then(Value::as_str).unwrap_or_default();
        let bytes = STANDARD.decode(value).map_err(|_error| unreadable())?;
        Ok(String::from_utf8(bytes).ok().map(|text| (text, number(pair, "lease").unwrap_or(0))))
    }

    /// The key, and the revision of its creation, in `responses[at]`, which answers a `get` or a queue's
    /// `last`.
    pub(super) fn found_front(&self, at: usize) -> Result<Option<Front>> {
        let Some(pair) = self.pair(at)? else { return Ok(None) };
        let key = pair.get("key").and_then(Value::as_str).ok_or_else(unreadable)?;
        let created = number(pair, "create_revision").ok_or_else(unreadable)?;
        Ok(Some(Front { key: key.to_owned(), created }))
    }

    /// The keys in `responses[at]`, which answers a queue's `first_of`, and the length of the queue.
    pub(super) fn line(&self, at: usize) -> Result<(Vec<HeldKey>, u64)> {
        let range = self.responses.get(at).and_then(|response| response.get("response_range"));
        let range = range.ok_or_else(unreadable)?;
        let pairs = range.get("kvs").and_then(Value::as_array).into_iter().flatten();
        let all = number(range, "count").and_then(|all| u64::try_from(all).ok()).unwrap_or(0);
        Ok((pairs.map(HeldKey::read).collect::<Result<_>>()?, all))
    }

    fn pair(&self, at: usize) -> Result<Option<&Value>> {
        let response = self.responses.get(at).ok_or_else(unreadable)?;
        let pairs = response
            .get("response_range")
            .map(|range| range.get("kvs"))
            .or_else(|| response.get("response_delete_range").map(|range| range.get("prev_kvs")))
            .ok_or_else(unreadable)?;
        Ok(pairs.and_then(|pairs| pairs.get(0)))
    }

    pub(super) fn inner(&self, at: usize) -> Result<Done> {
        let inner = self.responses.get(at).and_then(|response| response.get("response_txn"));
        inner.map(Done::read).ok_or_else(unreadable)
    }
}

/// A number field; `None` can mean zero. The gateway writes numbers as text, and omits zeros.
pub(super) fn number(of: &Value, field: &str) -> Option<i64> {
    let value = of.get(field)?;
    value.as_i64().or_else(|| value.as_str()?.parse().ok())
}

/// The failure of a request in a batch, if the batch's answer has no response to this request: its outcome is
/// unknown.
pub(super) fn unanswered() -> Failure {
    Failure::Unknown(unreadable())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ident::ClientId;

    fn pair(value: &str) -> Value {
        json!({ "value": STANDARD.encode(value), "lease": "7", "mod_revision": "9" })
    }

    #[test]
    fn the_value_of_a_lock_key_is_read_back_unchanged() {
        let owner = Owner::new(ClientId::random(), 3);
        let written = json!({ "value": value(owner, 2, 31), "lease": "7587848390220873735", "mod_revision": "12", "create_revision": "9" });
        let held = HeldKey::read(&written).unwrap();
        assert!(held.is_of(owner) && !held.is_of(Owner::new(ClientId::random(), 3)));
        assert_eq!((held.count, held.ttl, held.lease), (2, 31, 7_587_848_390_220_873_735));
        assert_eq!((held.revision, held.created), (12, 9));
    }

    #[test]
    fn reading_a_value_of_another_program_fails_as_wrong_type() {
        for value in ["", "a", "a 1", "a 1 x", "a 1 2 3", "a -1 3"] {
            assert_eq!(HeldKey::read(&pair(value)).unwrap_err().kind(), ErrorKind::WrongType, "{value}");
        }
    }

    #[test]
    fn a_malformed_etcd_key_yields_no_lock_name() {
        for written in ["", "%clients", "%", "a%2", "a/b", "%2f"] {
            assert_eq!(name_of(written), None, "{written}");
        }
    }

    #[test]
    fn key_ranges_of_different_locks_do_not_overlap() {
        let owner = Owner::new(ClientId::random(), 3);
        let text =
            |value: &Value| String::from_utf8(STANDARD.decode(value.as_str().unwrap()).unwrap()).unwrap();
        let names = ["a", "a/", "a/b", "a%2Fb", "a0", "a.", "A", "ab", "/", "%"];
        for name in names {
            let line = KeyLine::new("p/", name);
            let written = line.0.strip_prefix("p/").and_then(|line| line.strip_suffix(OWNERS));
            assert_eq!(written.and_then(name_of).as_deref(), Some(name));
            let [least, end] = line.bounds().map(|bound| text(&json!(bound)));
            for other in names {
                let key = text(&json!(KeyLine::new("p/", other).key(owner)));
                assert_eq!(
                    (least.as_str()..end.as_str()).contains(&key.as_str()),
                    name == other,
                    "{key} in {least}"
                );
            }
        }
        assert_eq!(text(&json!(KeyLine::new("p/", "a/b").key(owner))), format!("p/a%2Fb/%/{owner}"));
        let [least, end] = KeyLine::new("p/", "a").bounds().map(|bound| text(&json!(bound)));
        let below = KeyLine::new("p/a/", "b").key(owner);
        for key in [text(&json!(below)), "p/a/notes".to_owned(), "p/a/%clients/x".to_owned()] {
            assert!(!(least.as_str()..end.as_str()).contains(&key.as_str()), "{key} in {least}");
        }
    }
}

#[cfg(all(test, leasehold_fuzz))]
mod fuzz {
    use super::*;
    use crate::fuzz::{each, nearly};

    const SEEDS: &[&[u8]] = &[
        br#"{"header":{"revision":"9"},"succeeded":true,"responses":[{"response_range":{"kvs":[{"key":"YQ==","value":"YSAxIDMx","lease":"7","create_revision":"3","mod_revision":"4"}],"count":"1"}}]}"#,
        br#"{"responses":[{"response_delete_range":{"prev_kvs":[{"key":"YQ==","value":"YSAxIDMx"}]}},{"response_put":{}}]}"#,
        br#"{"responses":[{"response_txn":{"succeeded":false,"responses":[{"response_range":{}}]}}],"succeeded":1}"#,
        br#"{"kvs":[{"key":"bGVhc2Vob2xkL2EvYg=="}],"more":true,"count":"250"}"#,
    ];

    #[test]
    fn any_answer_of_the_gateway_is_read_or_refused() {
        each(nearly(SEEDS), Vec::len, |bytes| {
            let Ok(answer) = serde_json::from_slice::<Value>(bytes) else { return };
            let done = Done::read(&answer);
            for place in 0..3 {
                drop((done.found(place), done.found_front(place), done.line(place), done.text(place)));
                drop(done.inner(place).map(|inner| inner.found(0)));
            }
            drop((number(&answer, "ID"), HeldKey::read(&answer)));
        });
    }

    #[test]
    fn any_name_round_trips_through_its_key() {
        each(crate::fuzz::nearly_text(&[b"a/b%c", b"%clients", b"%25%2F", b"plain"]), String::len, |name| {
            let written = KeyLine::new("", name).0;
            let read = name_of(written.strip_suffix(OWNERS).unwrap());
            assert!(name.is_empty() || read.as_deref() == Some(name), "{name:?}: {written:?}: {read:?}");
            drop(name_of(name));
        });
    }
}
