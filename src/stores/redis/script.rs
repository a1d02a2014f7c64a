//! The Lua scripts, and the requests that run them.

use std::borrow::Cow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, OnceLock};

use redis::Value;

use crate::ident::Owner;
use crate::seam::ring_member::MARK_KEY;
use crate::stores::redis::reply::{is_logged_out, is_unknown_script};

#[derive(Debug)]
pub(super) struct Script {
    body: Cow<'static, str>,
    call: Vec<u8>,
    number: usize,
    /// This script with each [`Prefix`] before it, in the order of the prefixes. Made on first use.
    behind: [OnceLock<Box<Script>>; 3],
}

/// Lua code put before a script: it replaces PUBLISH, or checks the server's mark (the version of a ring).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prefix {
    PublishSharded,
    PublishBoth,
    UnderMark,
}

/// The scripts that ran over a connection, one bit each. Valid while `Ledger::forgotten` equals `forgotten`.
#[derive(Debug, Clone, Default)]
pub(super) struct KnownScripts {
    bits: [u64; 4],
    forgotten: u64,
}

impl KnownScripts {
    pub(super) fn has(&self, script: &Script, forgotten: u64) -> bool {
        let bits = self.bits.get(script.number / 64).copied().unwrap_or(0);
        self.forgotten == forgotten && bits & (1 << (script.number % 64)) != 0
    }

    pub(super) fn note(&mut self, script: &Script, forgotten: u64) {
        if self.forgotten != forgotten {
            *self = KnownScripts { forgotten, ..KnownScripts::default() };
        }
        if let Some(bits) = self.bits.get_mut(script.number / 64) {
            *bits |= 1 << (script.number % 64);
        }
    }
}

macro_rules! scripts {
    ($($name:ident = $($file:literal),+;)*) => {
        $(pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(concat!($(include_str!(concat!("lua/", $file))),+)));)*
        #[cfg(test)]
        static ALL: &[(&str, &str)] = &[$($(($file, include_str!(concat!("lua/", $file)))),+),*];
    };
}

// Each script consists of the files after its `=`, joined in this order.
scripts! {
    ACQUIRE = "acquire.lua", "fence.lua", "standby.lua", "wait_queue.lua", "join.lua", "reserved.lua", "recall.lua", "acquire_rest.lua";
    RELEASE = "release.lua", "standby.lua", "wait_queue.lua", "release_rest.lua";
    LEAVE_WAIT_QUEUE = "standby.lua", "wait_queue.lua", "leave_wait_queue.lua";
    ACQUIRE_ALL = "reserved.lua", "acquire_all.lua";
    RELEASE_ALL = "standby.lua", "wait_queue.lua", "release_all.lua";
    HAND_OFF = "fence.lua", "hand_off.lua";
    RENEW = "prolong.lua", "renew.lua";
    CHECK_CACHED = "check_cached.lua";
    HEAR = "join.lua", "hear.lua";
    FAIR_HEAR = "fair_hear.lua";
    RW_HEAR = "rw_hear.lua";
    EXPIRE_IN = "expire_in.lua";
    FAIR_ACQUIRE = "fence.lua", "recall.lua", "fair_acquire.lua";
    FAIR_RELEASE = "owners.lua", "fair_release.lua";
    RW_ACQUIRE = "fence.lua", "join.lua", "reserved.lua", "stand.lua", "readers.lua", "recall.lua", "rw_acquire.lua";
    RW_RELEASE = "standby.lua", "wait_queue.lua", "readers.lua", "rw_release.lua";
    RW_LEAVE = "standby.lua", "wait_queue.lua", "readers.lua", "rw_leave.lua";
    RW_RENEW = "rw_renew.lua";
    RW_INSPECT = "rw_inspect.lua";
    RW_FORCE = "owners.lua", "standby.lua", "wait_queue.lua", "rw_force.lua";
    SEMAPHORE_ACQUIRE = "join.lua", "stand.lua", "standby.lua", "permits_queue.lua", "permits_stand.lua", "semaphore_acquire.lua";
    SEMAPHORE_RELEASE = "standby.lua", "permits_queue.lua", "semaphore_release.lua";
    COUNTER = "standby.lua", "permits_queue.lua", "counter.lua";
    PERMITS_ACQUIRE = "join.lua", "stand.lua", "standby.lua", "permits_queue.lua", "permits_stand.lua", "permits_acquire.lua";
    PERMITS_RELEASE = "standby.lua", "permits_queue.lua", "permits_release.lua";
    PERMITS_LEAVE = "standby.lua", "permits_queue.lua", "permits_leave.lua";
    PERMITS_RENEW = "permits_renew.lua";
    PERMITS_COUNT = "standby.lua", "permits_queue.lua", "permits_count.lua";
    PERMITS_BY_ID = "standby.lua", "permits_queue.lua", "permits_by_id.lua";
    LATCH_ATTEMPT = "latch_attempt.lua";
    SIGNAL_ATTEMPT = "signal_attempt.lua";
    SIGNAL_CHANGE = "signal_change.lua";
    INSPECT = "inspect.lua";
    SHOW = "show.lua";
    LIST = "list.lua";
    ENTRIES = "entries.lua";
    FORCE = "owners.lua", "standby.lua", "wait_queue.lua", "recall.lua", "force.lua";
    TOKEN_RELEASE = "token_release.lua";
    TOKEN_RENEW = "token_renew.lua";
    TOKEN_ACQUIRE = "token_acquire.lua";
    CHECK = "check.lua";
    RING_MARK = "ring_mark.lua";
    TOUCH = "touch.lua";
}

impl Script {
    fn new(body: &'static str) -> Script {
        Script::of(Cow::Borrowed(body))
    }

    fn of(body: Cow<'static, str>) -> Script {
        static SCRIPTS: AtomicUsize = AtomicUsize::new(0);
        let mut call = Vec::new();
        "EVALSHA".pack(&mut call);
        redis::Script::new(&body).get_hash().pack(&mut call);
        let number = SCRIPTS.fetch_add(1, Ordering::Relaxed);
        Script { body, call, number, behind: [const { OnceLock::new() }; 3] }
    }

    fn behind(&'static self, prefix: Prefix) -> &'static Script {
        let [sharded, both, marked] = &self.behind;
        let (made, prefix) = match prefix {
            Prefix::PublishSharded => (sharded, include_str!("lua/publish_sharded.lua")),
            Prefix::PublishBoth => (both, include_str!("lua/publish_both.lua")),
            Prefix::UnderMark => (marked, include_str!("lua/ring_guard.lua")),
        };
        made.get_or_init(|| Box::new(Script::of(Cow::Owned([prefix, &self.body].concat()))))
    }

    /// A request that runs the script on `keys`. The waiters' channel is an argument, not a key (decision
    /// 0051): a server refuses absent keys while their slot moves, and the user would need a right to the
    /// key.
    pub(super) fn on<K: AsRef<str>>(&'static self, keys: &[K]) -> Command {
        let command = Command { script: Some(self), ..Command::empty() }.arg(keys.len());
        keys.iter().fold(command, |command, key| command.arg(key.as_ref()))
    }
}

/// A command, encoded while it is built, so that it is copied only once on its way to the socket.
#[derive(Clone)]
pub(super) struct Command {
    /// The encoded arguments, without those that name the script.
    packed: Vec<u8>,
    words: usize,
    pub(super) script: Option<&'static Script>,
    /// Whether the words include the script's body, so that no hash is sent.
    has_body: bool,
}

pub(super) trait Word {
    fn pack(&self, to: &mut Vec<u8>);
}

const END: &[u8] = b"\r\n";

fn length(bytes: usize, to: &mut Vec<u8>) {
    to.push(b'$');
    match u8::try_from(bytes) {
        Ok(few @ ..10) => to.push(b'0' + few),
        _ => digits(bytes, |digits| to.extend_from_slice(digits)),
    }
    to.extend_from_slice(END);
}

impl Word for [u8] {
    fn pack(&self, to: &mut Vec<u8>) {
        length(self.len(), to);
        to.extend_from_slice(self);
        to.extend_from_slice(END);
    }
}

impl Word for str {
    fn pack(&self, to: &mut Vec<u8>) {
        self.as_bytes().pack(to);
    }
}

impl Word for String {
    fn pack(&self, to: &mut Vec<u8>) {
        self.as_bytes().pack(to);
    }
}

impl<const N: usize> Word for [&str; N] {
    fn pack(&self, to: &mut Vec<u8>) {
        length(self.iter().map(|part| part.len()).sum(), to);
        self.iter().for_each(|part| to.extend_from_slice(part.as_bytes()));
        to.extend_from_slice(END);
    }
}

impl<W: Word + ?Sized> Word for &W {
    fn pack(&self, to: &mut Vec<u8>) {
        (**self).pack(to);
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {
        $(impl Word for $number {
            fn pack(&self, to: &mut Vec<u8>) {
                digits(*self, |digits| digits.pack(to));
            }
        })*
    };
}

numbers!(u8, u32, u64, usize);

impl Word for i64 {
    fn pack(&self, to: &mut Vec<u8>) {
        self.to_string().pack(to);
    }
}

impl Word for Owner {
    fn pack(&self, to: &mut Vec<u8>) {
        let client = self.client().text();
        digits(self.number(), |number| {
            length(client.len() + 1 + number.len(), to);
            to.extend_from_slice(&client);
            to.push(b':');
            to.extend_from_slice(number);
            to.extend_from_slice(END);
        });
    }
}

/// Formats a number. `fmt` takes several times as long.
fn digits<T>(number: impl TryInto<u64>, then: impl FnOnce(&[u8]) -> T) -> T {
    let mut number = number.try_into().unwrap_or(u64::MAX);
    let mut digits = [b'0'; 20];
    let mut first = 0;
    for (at, digit) in digits.iter_mut().enumerate().rev() {
        *digit = b'0' + u8::try_from(number % 10).unwrap_or(0);
        first = at;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    then(digits.get(first..).unwrap_or_default())
}

impl Command {
    fn empty() -> Command {
        Command { packed: Vec::with_capacity(256), words: 0, script: None, has_body: false }
    }

    pub(super) fn new(name: &str) -> Command {
        Command::empty().arg(name)
    }

    pub(super) fn arg(mut self, word: impl Word) -> Command {
        word.pack(&mut self.packed);
        self.words += 1;
        self
    }

    pub(super) fn behind(self, prefix: Prefix) -> Command {
        Command { script: self.script.map(|script| script.behind(prefix)), ..self }
    }

    /// This request, to be carried out only if the node stores `mark`. A new fencing token exceeds `fence`.
    pub(super) fn under(self, mark: &str, fence: u64) -> Command {
        self.behind(Prefix::UnderMark).arg(fence).arg(MARK_KEY).arg(mark)
    }

    pub(super) fn pack_into(&self, bytes: &mut Vec<u8>) {
        let call = self.script.filter(|_| !self.has_body).map(|script| script.call.as_slice());
        let words = self.words + if call.is_some() { 2 } else { 0 };
        bytes.push(b'*');
        digits(words, |digits| bytes.extend_from_slice(digits));
        bytes.extend_from_slice(END);
        bytes.extend_from_slice(call.unwrap_or_default());
        bytes.extend_from_slice(&self.packed);
    }

    /// Encodes the request. Includes the script's body unless the server surely knows the script: after
    /// NOSCRIPT the request would be sent again, behind later ones.
    pub(super) fn packing(&self) -> impl FnOnce(&mut Vec<u8>, bool) {
        |to, is_known| {
            let whole = if is_known { None } else { self.with_body() };
            whole.as_ref().unwrap_or(self).pack_into(to);
        }
    }

    /// The request to send again, if nothing ran, because the script was unknown or the login had ended.
    pub(super) fn again_after(&self, reply: &Value) -> Option<Command> {
        if is_unknown_script(reply) { self.with_body() } else { is_logged_out(reply).then(|| self.clone()) }
    }

    /// The request with the script's body, which is long, so it is built only when needed.
    pub(super) fn with_body(&self) -> Option<Command> {
        let script = self.script.filter(|_| !self.has_body)?;
        let whole = Command::new("EVAL").arg(&*script.body);
        let packed = [whole.packed.as_slice(), &self.packed].concat();
        let words = whole.words + self.words;
        Some(Command { packed, words, script: self.script, has_body: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn header(body: &str) -> Vec<&str> {
        body.lines().map_while(|line| line.strip_prefix("--")).collect()
    }

    fn mentions(text: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for what in ["KEYS[", "ARGV["] {
            for (at, _) in text.match_indices(what) {
                let end = text[at..].find(']').unwrap() + at;
                found.insert(text[at..=end].to_owned());
            }
        }
        found
    }

    #[test]
    fn script_headers_explain_their_keys_and_arguments() {
        for (file, text) in ALL {
            let header = header(text);
            let code: String = text.lines().skip(header.len()).collect();
            assert_eq!(mentions(&header.join("\n")), mentions(&code), "{file}");
            for line in header.iter().filter(|line| line.contains("KEYS[") || line.contains("ARGV[")) {
                let name = line.split_whitespace().nth(1).unwrap();
                assert!(code.contains(name), "{file}: nothing in the code is called {name}");
                assert!(line.split_whitespace().count() > 2, "{file}: {name} is not explained");
            }
        }
    }

    #[test]
    fn no_script_has_a_channel_among_its_keys() {
        for (file, text) in ALL {
            let keys = header(text).into_iter().filter(|line| line.trim_start().starts_with("KEYS["));
            let channels: Vec<&str> =
                keys.filter(|line| line.contains("channel") || line.contains("listen")).collect();
            assert_eq!(channels, [""; 0], "{file}");
        }
    }

    fn words(command: &Command) -> Vec<String> {
        let mut bytes = Vec::new();
        command.pack_into(&mut bytes);
        redis::from_redis_value(redis::parse_redis_value(&bytes).unwrap()).unwrap()
    }

    #[test]
    fn requests_are_encoded_argument_by_argument() {
        let owner = Owner::new(crate::ident::ClientId::random(), u64::MAX);
        let command = Command::new("SET")
            .arg("")
            .arg("ä b")
            .arg(owner)
            .arg(0_u32)
            .arg(u64::MAX)
            .arg(10_usize)
            .arg(i64::MIN);
        let (number, least) = (u64::MAX.to_string(), i64::MIN.to_string());
        assert_eq!(words(&command), ["SET", "", "ä b", &owner.to_string(), "0", &number, "10", &least]);
        let command = RENEW.on(&["lock", "other"]).arg("owner");
        let sha = redis::Script::new(&RENEW.body).get_hash().to_owned();
        assert_eq!(words(&command), ["EVALSHA", &sha, "2", "lock", "other", "owner"]);
    }

    #[test]
    fn a_script_sent_in_full_keeps_keys_and_arguments() {
        let command = RENEW.on(&["lock"]).arg("owner").arg(5_u32);
        let again = command.with_body().unwrap();
        assert_eq!(words(&command)[2..], words(&again)[2..]);
        assert_eq!(words(&again)[..2], ["EVAL", &*RENEW.body]);
        assert!(again.with_body().is_none());
    }
}
