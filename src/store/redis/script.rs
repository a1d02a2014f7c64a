//! The Lua scripts, and requests that run them.

use std::sync::LazyLock;

use redis::{Cmd, ToRedisArgs, cmd};

/// A script and its SHA-1.
#[derive(Debug)]
pub(super) struct Script {
    body: &'static str,
    sha: String,
}

macro_rules! scripts {
    ($($(#[$about:meta])* $name:ident = $file:literal;)*) => {
        $($(#[$about])* pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(include_str!(concat!("lua/", $file))));)*
        #[cfg(test)]
        const ALL: &[(&str, &LazyLock<Script>)] = &[$(($file, &$name)),*];
    };
}

scripts! {
    ACQUIRE = "acquire.lua";
    RELEASE = "release.lua";
    HAND_OVER = "hand_over.lua";
    RENEW = "renew.lua";
    INSPECT = "inspect.lua";
    FORCE = "force.lua";
    TOKEN_RELEASE = "token_release.lua";
    TOKEN_RENEW = "token_renew.lua";
}

impl Script {
    /// Whether the two are one; there is one value of each.
    pub(super) fn is(&self, other: &Script) -> bool {
        std::ptr::eq(self, other)
    }

    fn new(body: &'static str) -> Script {
        Script { body, sha: redis::Script::new(body).get_hash().to_owned() }
    }

    /// A request that runs the script on `keys`; its arguments are added by [`Request::arg`].
    pub(super) fn on(&'static self, keys: &[&str]) -> Request {
        let mut cmd = cmd("EVALSHA");
        cmd.arg(&self.sha).arg(keys.len()).arg(keys);
        Request { cmd, script: Some(self), about: keys.first().map_or(0, |key| hash(key)) }
    }
}

/// One command to send.
pub(super) struct Request {
    cmd: Cmd,
    script: Option<&'static Script>,
    /// The lock that it is about, as a hash.
    about: u64,
}

/// FNV-1a: requests about one lock must only end up together, and cheaply.
fn hash(key: &str) -> u64 {
    key.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

impl Request {
    pub(super) fn new(name: &str) -> Request {
        Request { cmd: cmd(name), script: None, about: 0 }
    }

    pub(super) fn arg(mut self, arg: impl ToRedisArgs) -> Request {
        self.cmd.arg(arg);
        self
    }

    pub(super) fn pack_into(&self, bytes: &mut Vec<u8>) {
        self.cmd.write_packed_command(bytes);
    }

    pub(super) fn about(&self) -> u64 {
        self.about
    }

    pub(super) fn script(&self) -> Option<&'static Script> {
        self.script
    }

    /// What to send when the server answers that it does not know the script; nothing was run then.
    pub(super) fn with_body(&self) -> Option<Request> {
        let script = self.script?;
        let mut cmd = cmd("EVAL");
        cmd.arg(script.body);
        for arg in self.cmd.args_iter().skip(2) {
            if let redis::Arg::Simple(arg) = arg {
                cmd.arg(arg);
            }
        }
        Some(Request { cmd, script: None, about: self.about })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn header(body: &str) -> Vec<&str> {
        body.lines().map_while(|line| line.strip_prefix("--")).collect()
    }

    /// `KEYS[1]`, `ARGV[2]`, … in `text`.
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
    fn each_script_names_exactly_the_keys_and_arguments_that_it_uses() {
        for (file, script) in ALL {
            let header = header(script.body);
            let code: String = script.body.lines().skip(header.len()).collect();
            assert_eq!(mentions(&header.join("\n")), mentions(&code), "{file}");
            for line in header.iter().filter(|line| line.contains("KEYS[") || line.contains("ARGV[")) {
                let name = line.split_whitespace().nth(1).unwrap();
                assert!(code.contains(name), "{file}: nothing in the code is called {name}");
                assert!(line.split_whitespace().count() > 2, "{file}: {name} is not explained");
            }
            assert!(header.iter().any(|line| line.starts_with(" Returns ")), "{file}: returns what?");
        }
    }

    #[test]
    fn the_request_with_the_body_has_the_same_keys_and_arguments() {
        let request = RENEW.on(&["lock"]).arg("owner").arg(5);
        let again = request.with_body().unwrap();
        let args = |request: &Request| -> Vec<Vec<u8>> {
            let simple = |arg: redis::Arg<&[u8]>| match arg {
                redis::Arg::Simple(arg) => arg.to_vec(),
                _ => vec![],
            };
            request.cmd.args_iter().map(simple).collect()
        };
        assert_eq!(args(&request)[2..], args(&again)[2..]);
        assert_eq!(args(&again)[0], b"EVAL");
        assert_eq!(args(&again)[1], RENEW.body.as_bytes());
        assert!(again.with_body().is_none());
    }
}
