//! What the server reports about itself.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use redis::{Client, Connection};

/// The benchmark's own connection to the server.
pub struct Control(Connection);

/// Counters of the server at one moment.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Commands, including those inside scripts.
    pub commands: f64,
    /// Reads from sockets: several requests in one write are one read.
    pub reads: f64,
    pub cpu_s: f64,
    /// Connections to the server, without the benchmark's own and those of MONITOR.
    pub clients: f64,
    pub calls: BTreeMap<String, f64>,
}

impl Control {
    pub fn connect(url: &str) -> Result<Control> {
        Ok(Control(Client::open(url)?.get_connection()?))
    }

    pub fn flush(&mut self) -> Result<()> {
        Ok(redis::cmd("FLUSHALL").query(&mut self.0)?)
    }

    pub fn echo(&mut self, text: &str) -> Result<()> {
        let _: String = redis::cmd("ECHO").arg(text).query(&mut self.0)?;
        Ok(())
    }

    pub fn exists(&mut self, name: &str) -> Result<bool> {
        Ok(redis::cmd("EXISTS").arg(name).query(&mut self.0)?)
    }

    pub fn keys(&mut self) -> Result<u64> {
        Ok(redis::cmd("DBSIZE").query(&mut self.0)?)
    }

    pub fn pid(&mut self) -> Result<u32> {
        let info = self.info("server")?;
        Ok(info.get("process_id").context("a server without a process")?.parse()?)
    }

    pub fn version(&mut self) -> Result<String> {
        let info = self.info("server")?;
        let name = if info.contains_key("valkey_version") { "valkey" } else { "redis" };
        let version = info.get(&format!("{name}_version")).context("a server without a version")?;
        Ok(format!("{name} {version}"))
    }

    pub fn counters(&mut self) -> Result<Counters> {
        let mut counters = Counters { clients: self.peers_connections()?, ..Counters::default() };
        for (name, value) in self.info("all")? {
            if let Some(command) = name.strip_prefix("cmdstat_") {
                let calls = value.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
                counters.calls.insert(command.to_owned(), number(calls.unwrap_or_default()));
                continue;
            }
            match name.as_str() {
                "total_commands_processed" => counters.commands = number(&value),
                "total_reads_processed" => counters.reads = number(&value),
                "used_cpu_user" | "used_cpu_sys" => counters.cpu_s += number(&value),
                _ => {}
            }
        }
        Ok(counters)
    }

    /// The number of connections other than this one and those of MONITOR.
    fn peers_connections(&mut self) -> Result<f64> {
        let id: u64 = redis::cmd("CLIENT").arg("ID").query(&mut self.0)?;
        let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut self.0)?;
        let mine = format!("id={id} ");
        let others = list.lines().filter(|line| {
            let flags = line.split(" flags=").nth(1).and_then(|rest| rest.split(' ').next());
            !line.starts_with(&mine) && flags.is_some_and(|flags| !flags.contains('O'))
        });
        Ok(others.count() as f64)
    }

    fn info(&mut self, section: &str) -> Result<BTreeMap<String, String>> {
        let text: String = redis::cmd("INFO").arg(section).query(&mut self.0)?;
        let pairs = text.lines().filter_map(|line| line.trim().split_once(':'));
        Ok(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }
}

impl Counters {
    /// The calls of each command since `before`.
    pub fn calls_since(&self, before: &Counters) -> BTreeMap<String, f64> {
        let old = |name: &String| before.calls.get(name).copied().unwrap_or_default();
        self.calls.iter().map(|(name, calls)| (name.clone(), calls - old(name))).collect()
    }
}

fn number(text: &str) -> f64 {
    text.parse().unwrap_or_default()
}

/// `host:port` of a URL without credentials, such as `redis://127.0.0.1:6379`.
pub fn address(url: &str) -> Result<String> {
    let rest = url.strip_prefix("redis://").context("the benchmark wants a redis://host:port URL")?;
    Ok(rest.trim_end_matches('/').to_owned())
}

/// Encodes a request's words as Redis expects them on the connection.
pub fn pack(words: &[Vec<u8>]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    out
}
