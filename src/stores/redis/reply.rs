//! The server's replies: results of scripts, and errors.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use redis::{ServerError, Value};

use crate::error::{Error, ErrorKind, Result};
use crate::seam::{Answer, Failure};

/// The reply of a script: an array that begins with a tag, or only the tag.
pub(super) struct Tagged(Vec<Value>);

impl Tagged {
    pub(super) fn tag(&self) -> &[u8] {
        match self.0.first() {
            Some(Value::BulkString(tag)) => tag,
            _ => &[],
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len().saturating_sub(1)
    }

    pub(super) fn has(&self, index: usize) -> bool {
        self.0.len() > index
    }

    pub(super) fn number(&self, index: usize) -> Result<i64> {
        self.0.get(index).ok_or_else(|| self.unexpected()).and_then(number)
    }

    pub(super) fn text(&self, index: usize) -> Result<Option<String>> {
        match self.0.get(index) {
            None | Some(Value::Nil) => Ok(None),
            Some(text) => bytes(text).map(|text| Some(owner_text(text))),
        }
    }

    pub(super) fn ends_with(&self, word: &[u8]) -> bool {
        self.0.len() > 1 && matches!(self.0.last(), Some(Value::BulkString(text)) if text == word)
    }

    pub(super) fn unexpected(&self) -> Error {
        unexpected(&Value::Array(self.0.clone()))
    }
}

/// Scripts return this instead of a number of listeners if the owner did not hold the lock.
pub(super) const NOT_HELD: i64 = -2;

/// The owner as text, at most 256 characters, because another program may have written anything.
pub(super) fn owner_text(bytes: &[u8]) -> String {
    const MOST: usize = 256;
    String::from_utf8_lossy(bytes).chars().take(MOST).collect()
}

pub(super) fn ttl(ttl_ms: i64) -> Option<Duration> {
    match ttl_ms {
        -1 => None,
        gone if gone < 0 => Some(Duration::ZERO),
        ttl_ms => Some(Duration::from_millis(ttl_ms.unsigned_abs())),
    }
}

pub(super) fn list(value: &Value) -> Result<&[Value]> {
    if let Value::Array(items) = value { Ok(items) } else { Err(unexpected(value)) }
}

pub(super) fn number(value: &Value) -> Result<i64> {
    if let Value::Int(number) = value { Ok(*number) } else { Err(unexpected(value)) }
}

pub(super) fn bytes(value: &Value) -> Result<&[u8]> {
    if let Value::BulkString(bytes) = value { Ok(bytes) } else { Err(unexpected(value)) }
}

pub(super) fn text(value: &Value) -> Option<&str> {
    std::str::from_utf8(bytes(value).ok()?).ok()
}

/// The field `name` of a list of names and values, which RESP3 sends as a map.
pub(super) fn field<'a>(fields: &'a Value, name: &str) -> Option<&'a Value> {
    match fields {
        Value::Array(items) => items.chunks(2).find_map(|pair| match pair {
            [key, value] if text(key) == Some(name) => Some(value),
            _ => None,
        }),
        Value::Map(pairs) => pairs.iter().find_map(|(key, value)| (text(key) == Some(name)).then_some(value)),
        _ => None,
    }
}

pub(super) fn unexpected(reply: &Value) -> Error {
    let kind = match reply {
        Value::Nil => "nothing",
        Value::Int(_) => "a number",
        Value::BulkString(_) | Value::SimpleString(_) | Value::Okay => "a string",
        Value::Array(_) => "another array",
        _ => "something else",
    };
    let words = format!(
        "the server's reply has an unexpected type: {kind}; check that no other program or proxy answers in place of Redis"
    );
    Error::new(ErrorKind::Protocol, "read", words)
}

pub(super) fn tagged(reply: Value) -> Answer<Tagged> {
    match done(reply).map_err(Failure::Refused)? {
        Value::Array(items) if matches!(items.first(), Some(Value::BulkString(_))) => Ok(Tagged(items)),
        tag @ Value::BulkString(_) => Ok(Tagged(vec![tag])),
        other => Err(Failure::Unknown(unexpected(&other))),
    }
}

pub(super) fn done(reply: Value) -> Result<Value> {
    accepted(reply).map_err(|error| refusal(&error))
}

/// If a reply cannot be decoded, the outcome of its request is unknown.
pub(super) fn decoded<T>(result: Result<T>) -> Answer<T> {
    result.map_err(Failure::Unknown)
}

pub(super) fn accepted(reply: Value) -> std::result::Result<Value, ServerError> {
    match reply {
        Value::ServerError(error) => Err(error),
        value => Ok(value),
    }
}

pub(super) fn is_unknown_script(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.code() == "NOSCRIPT")
}

pub(super) fn is_logged_out(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.code() == "NOAUTH")
}

pub(super) fn is_unknown_command(error: &ServerError) -> bool {
    error.details().is_some_and(|text| text.starts_with("unknown command"))
}

pub(super) const WRONG_PASSWORD: &str =
    "the server rejected the user name or the password; a password alone is given as redis://:PASSWORD@host";

/// The error for an error reply. Redis 6.2 wraps a script's error in another one; the inner one counts.
pub(super) fn refusal(error: &ServerError) -> Error {
    let text = error.details().unwrap_or_default();
    let (kind, words) = classify(error.code(), text);
    let said = said(error.code(), text);
    // The server's text for NOAUTH is left out: it is long, and about the server's own commands.
    let words = if error.code() == "NOAUTH" {
        words.to_owned()
    } else {
        format!("{words} (the server said: {said})")
    };
    let refused = Error::new(kind, "request", words);
    match Redirect::read(error.code(), text) {
        Some(redirect) => refused.with_source(redirect),
        None => refused,
    }
}

pub(super) fn refused_by(words: &'static str, error: &ServerError) -> Error {
    let refused = refusal(error);
    match refused.kind() {
        kind @ (ErrorKind::NoPermission | ErrorKind::Unsupported | ErrorKind::Refused) => {
            Error::new(kind, "lock", words).with_source(refused)
        }
        _ => refused,
    }
}

/// Whether the request, or the next login, may succeed later without a change of settings or rights.
pub(super) fn is_temporary(refusal: &Error) -> bool {
    use ErrorKind::{Authentication, Busy, OutOfMemory, ReadOnly};
    matches!(refusal.kind(), Authentication | Busy | OutOfMemory | ReadOnly)
}

/// The place that a cluster's member names for a slot. The error of the refused request has it as its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Redirect {
    /// Whether the slot is still moving, so that ASKING must precede the request.
    pub(super) asking: bool,
    pub(super) slot: u16,
    /// Empty if the slot is on the same host as the member that answered.
    pub(super) host: String,
    pub(super) port: u16,
}

impl Redirect {
    pub(super) fn of(error: &Error) -> Option<&Redirect> {
        StdError::source(error)?.downcast_ref()
    }

    fn read(code: &str, text: &str) -> Option<Redirect> {
        let asking = match code {
            "MOVED" => false,
            "ASK" => true,
            _ => return None,
        };
        let (slot, place) = text.trim().split_once(' ')?;
        let (host, port) = place.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Some(Redirect { asking, slot: slot.parse().ok()?, host, port: port.parse().ok()? })
    }
}

impl fmt::Display for Redirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {} is at {}:{}", self.slot, self.host, self.port)
    }
}

impl StdError for Redirect {}

fn own_code<'a>(code: &'a str, text: &'a str) -> &'a str {
    let is_known = |code: &&str| by_code(code).is_some();
    if is_known(&code) {
        return code;
    }
    // Redis 6.2 wraps a script's error in these forms: `ERR Error running script (call to f_…):
    // @user_script:8: -OOM command …` and `… 8: WRONGTYPE …`.
    let inner = text.split_once("@user_script").map_or("", |(_, inner)| inner);
    let mut words = inner.split([' ', ':']).map(|word| word.trim_start_matches('-')).take(8);
    words.find(is_known).unwrap_or(code)
}

/// Whether a server can serve: yes; not now; no longer, so its connections must be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fitness {
    Fit,
    Temporary,
    Demoted,
}

pub(super) fn fitness(reply: &Value) -> Fitness {
    let Value::ServerError(error) = reply else { return Fitness::Fit };
    match own_code(error.code(), error.details().unwrap_or_default()) {
        // NOAUTH: the login has ended, so the connection must be replaced too.
        "READONLY" | "UNBLOCKED" | "MASTERDOWN" | "NOAUTH" => Fitness::Demoted,
        "LOADING" | "NOREPLICAS" | "MISCONF" => Fitness::Temporary,
        _ => Fitness::Fit,
    }
}

fn classify(code: &str, text: &str) -> (ErrorKind, &'static str) {
    if let Some(found) = by_code(own_code(code, text)) {
        return found;
    }
    let known = BY_TEXT.iter().find(|(parts, ..)| parts.iter().all(|part| text.contains(part)));
    known.map_or((ErrorKind::Refused, "the server refused"), |(_, kind, words)| (*kind, words))
}

const BY_TEXT: &[(&[&str], ErrorKind, &str)] = &[
    (&["can't run this command"], ErrorKind::NoPermission, NO_RIGHT),
    (&["ACL failure"], ErrorKind::NoPermission, NO_RIGHT),
    (&["can't access at least one of the keys"], ErrorKind::NoPermission, NO_RIGHT),
    (&["max number of clients"], ErrorKind::Busy, "the server has reached its limit of clients"),
    (&["cannot be used with replica instances"], ErrorKind::ReadOnly, READ_ONLY),
    (&["unknown command"], ErrorKind::Unsupported, LACKING),
    (&["Unknown Redis command"], ErrorKind::Unsupported, LACKING),
    (&[KEY_NOT_LOCAL], ErrorKind::Busy, "the cluster is moving a key that the script used"),
    (
        &["not below 2^53"],
        ErrorKind::InvalidInput,
        "the number would reach 2^53, from which on numbers are not exact",
    ),
    (&["not an integer"], ErrorKind::WrongType, NO_INTEGER),
    (&["would overflow"], ErrorKind::WrongType, NO_INTEGER),
    (
        &["AUTH", "without any password"],
        ErrorKind::Authentication,
        "the server has no password for this user",
    ),
];

const READ_ONLY: &str = "the server is a read-only replica";
const LACKING: &str = "the server does not know a command that this request needs";
const NO_INTEGER: &str = "a key of this name holds no usable integer, perhaps because another program wrote to it: use another name";

/// The error of a script that used a key which is not among KEYS and has moved to another member.
const KEY_NOT_LOCAL: &str = "access a non local key";

pub(super) fn is_split(error: &Error) -> bool {
    error.detail().contains(KEY_NOT_LOCAL)
}

const NO_RIGHT: &str = "permission denied by the server's ACL";

fn by_code(code: &str) -> Option<(ErrorKind, &'static str)> {
    Some(match code {
        "WRONGTYPE" => (
            ErrorKind::WrongType,
            "a key of this name holds something else, such as a lock of another kind (a RedisLock's hash, a token lock, a plain SET lock) or another program's data: use another name",
        ),
        "NOPERM" => (ErrorKind::NoPermission, NO_RIGHT),
        "NOAUTH" => (
            ErrorKind::Authentication,
            "the server wants a password: give it as redis://:PASSWORD@host, or by password()",
        ),
        "WRONGPASS" => (ErrorKind::Authentication, WRONG_PASSWORD),
        "DENIED" => (
            ErrorKind::Authentication,
            "the server is in protected mode: it accepts connections from its own machine only",
        ),
        "OOM" => (ErrorKind::OutOfMemory, "the server is out of memory"),
        "READONLY" => (ErrorKind::ReadOnly, READ_ONLY),
        "UNBLOCKED" => (ErrorKind::ReadOnly, "the server became a read-only replica"),
        "LOADING" => (ErrorKind::Busy, "the server is loading its data"),
        "BUSY" => (ErrorKind::Busy, "the server is busy with a script"),
        "MASTERDOWN" => (ErrorKind::Busy, "the server is a replica that has lost its master"),
        "MISCONF" => (ErrorKind::Busy, "the server cannot write its data to disk and refuses changes"),
        "NOREPLICAS" => (ErrorKind::Busy, "the server has too few replicas to accept changes"),
        "CLUSTERDOWN" => (ErrorKind::Busy, "the cluster is down"),
        "TRYAGAIN" => (ErrorKind::Busy, "the cluster is moving the key"),
        "ASK" => (ErrorKind::Busy, "the cluster is moving the key"),
        "NOSCRIPT" => (ErrorKind::Busy, "the server forgot the script twice in a row: try again"),
        "MOVED" => (
            ErrorKind::Unsupported,
            "the server is a member of a cluster and the key is on another member: use redis-cluster://",
        ),
        "CROSSSLOT" => (
            ErrorKind::Unsupported,
            "the server is a member of a cluster, and the lock's keys would be on several members: use redis-cluster://",
        ),
        _ => return None,
    })
}

fn said(code: &str, text: &str) -> String {
    const MOST: usize = 300;
    let text = text.split_once(" script: ").map_or(text, |(before, _)| before);
    let text = text.trim_end_matches([',', ' ']);
    format!("{code} {text}").chars().map(|c| if c.is_control() { ' ' } else { c }).take(MOST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classified(line: &str) -> ErrorKind {
        let reply = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        refusal(&accepted(reply).unwrap_err()).kind()
    }

    #[test]
    fn refusals_of_all_server_versions_are_classified() {
        use ErrorKind::{
            Authentication, Busy, NoPermission, OutOfMemory, ReadOnly, Refused, Unsupported, WrongType,
        };
        let f = "Error running script (call to f_0123456789abcdef0123456789abcdef01234567): @user_script:";
        let table = [
            // all versions
            ("WRONGTYPE Operation against a key holding the wrong kind of value".to_owned(), WrongType),
            ("NOAUTH Authentication required.".to_owned(), Authentication),
            ("NOAUTH HELLO must be called with the client already authenticated, otherwise …".to_owned(), Authentication),
            ("WRONGPASS invalid username-password pair or user is disabled.".to_owned(), Authentication),
            ("ERR AUTH <password> called without any password configured for the default user. Are you sure …".to_owned(), Authentication),
            ("DENIED Redis is running in protected mode because protected mode is enabled …".to_owned(), Authentication),
            ("READONLY You can't write against a read only replica.".to_owned(), ReadOnly),
            ("UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)".to_owned(), ReadOnly),
            ("ERR WAIT cannot be used with replica instances. Please also note …".to_owned(), ReadOnly),
            ("LOADING Redis is loading the dataset in memory".to_owned(), Busy),
            ("LOADING Valkey is loading the dataset in memory".to_owned(), Busy),
            ("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.".to_owned(), Busy),
            ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.".to_owned(), Busy),
            ("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.".to_owned(), Busy),
            ("NOREPLICAS Not enough good replicas to write.".to_owned(), Busy),
            ("CLUSTERDOWN The cluster is down".to_owned(), Busy),
            ("TRYAGAIN Multiple keys request during rehashing of slot".to_owned(), Busy),
            ("ASK 3999 127.0.0.1:6381".to_owned(), Busy),
            ("MOVED 3999 127.0.0.1:6381".to_owned(), Unsupported),
            ("CROSSSLOT Keys in request don't hash to the same slot".to_owned(), Unsupported),
            ("ERR max number of clients reached".to_owned(), Busy),
            ("ERR Script attempted to access a non local key in a cluster node script: 01, on @user_script:20.".to_owned(), Busy),
            ("NOSCRIPT No matching script. Please use EVAL.".to_owned(), Busy),
            ("ERR unknown command 'DELEX', with args beginning with: 'k' 'IFEQ' 'v' ".to_owned(), Unsupported),
            ("ERR value is not an integer or out of range".to_owned(), WrongType),
            ("ERR something new".to_owned(), Refused),
            ("SOMETHING new".to_owned(), Refused),
            // Redis 6.2
            (format!("ERR {f}12: WRONGTYPE Operation against a key holding the wrong kind of value "), WrongType),
            (format!("ERR {f}12: -OOM command not allowed when used memory > 'maxmemory'. "), OutOfMemory),
            (format!("ERR {f}12: @user_script: 12: -READONLY You can't write against a read only replica. "), ReadOnly),
            (format!("ERR {f}12: @user_script: 12: -MISCONF Redis is configured to save RDB snapshots "), Busy),
            (format!("ERR {f}12: The user executing the script can't run this command or subcommand "), NoPermission),
            (format!("ERR {f}12: The user executing the script can't access at least one of the keys mentioned in the command "), NoPermission),
            (format!("ERR {f}12: @user_script: 12: Unknown Redis command called from Lua script "), Unsupported),
            ("NOPERM this user has no permissions to run the 'eval' command or its subcommand".to_owned(), NoPermission),
            ("NOPERM this user has no permissions to access one of the keys used as arguments".to_owned(), NoPermission),
            ("OOM command not allowed when used memory > 'maxmemory'.".to_owned(), OutOfMemory),
            // Redis 7.0
            ("WRONGTYPE Operation against a key holding the wrong kind of value script: 01, on @user_script:20.".to_owned(), WrongType),
            ("OOM command not allowed when used memory > 'maxmemory'. script: 01, on @user_script:20.".to_owned(), OutOfMemory),
            ("ERR The user executing the script can't run this command or subcommand script: 01, on @user_script:20.".to_owned(), NoPermission),
            ("READONLY You can't write against a read only replica. script: 01, on @user_script:20.".to_owned(), ReadOnly),
            // Redis 8.2 and Valkey
            ("ERR ACL failure in script: User lk has no permissions to run the 'pexpire' command script: 01, on @user_script:20.".to_owned(), NoPermission),
            ("NOPERM User lk has no permissions to run the 'eval' command".to_owned(), NoPermission),
            ("NOPERM No permissions to access a key".to_owned(), NoPermission),
        ];
        for (line, kind) in table {
            assert_eq!(classified(&line), kind, "{line}");
        }
    }

    #[test]
    fn moved_and_ask_errors_are_parsed_as_redirects() {
        let read = |line: &str| {
            let reply = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
            Redirect::of(&refusal(&accepted(reply).unwrap_err())).cloned()
        };
        let at =
            |asking, slot, host: &str, port| Some(Redirect { asking, slot, host: host.to_owned(), port });
        assert_eq!(read("MOVED 3999 127.0.0.1:6381"), at(false, 3999, "127.0.0.1", 6381));
        assert_eq!(read("ASK 0 db.example:1"), at(true, 0, "db.example", 1));
        assert_eq!(read("MOVED 1 :6381"), at(false, 1, "", 6381));
        assert_eq!(read("MOVED 1 [::1]:6381"), at(false, 1, "::1", 6381));
        assert_eq!(read("MOVED 1 ::1:6381"), at(false, 1, "::1", 6381));
        for nonsense in ["MOVED", "MOVED x y:1", "MOVED 1 y", "MOVED 70000 y:1", "TRYAGAIN 1 y:1"] {
            assert_eq!(read(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn a_wrong_type_error_says_what_the_key_may_hold() {
        let reply = redis::parse_redis_value(b"-WRONGTYPE Operation against it\r\n").unwrap();
        let error = accepted(reply).unwrap_err();
        assert!(refusal(&error).to_string().contains("a token lock, a plain SET lock"));
        assert!(refusal(&error).to_string().contains("a RedisLock's hash"));
    }

    #[test]
    fn server_error_texts_become_one_short_line() {
        let text = said("OOM", &format!("{}\r\nx script: 01, on @user_script:20.", "y".repeat(1000)));
        assert!(text.len() <= 300 && !text.contains(['\r', '\n']), "{text}");
        assert_eq!(said("OOM", "no memory. script: 01, on @user_script:20."), "OOM no memory.");
    }
}
