//! The cores that a server and its drivers run on, by the program `taskset`.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::workload::Cores;

/// A pinned server. Dropping this value gives the server its former cores back.
pub struct Pinned {
    server: u32,
    /// The cores that the server had before.
    before: String,
    core: usize,
}

impl Pinned {
    /// Pins a server with all its threads; an error says why that is impossible here.
    pub fn new(server: u32, cores: Cores) -> Result<Pinned> {
        ensure!(cfg!(target_os = "linux"), "{} has no taskset", std::env::consts::OS);
        let before = allowed(&format!("/proc/{server}/status"))?;
        let (first, second) = match parse(&allowed("/proc/self/status")?).as_slice() {
            [first, second, ..] => (*first, *second),
            _ => bail!("there is one core"),
        };
        taskset(server, &first.to_string())?;
        let core = if cores == Cores::One { first } else { second };
        Ok(Pinned { server, before, core })
    }

    /// The command that runs a driver on its core.
    pub fn command(&self, program: &[String]) -> Vec<String> {
        let core = self.core.to_string();
        let before = ["taskset", "-c", &core].map(str::to_owned);
        before.into_iter().chain(program.iter().cloned()).collect()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Err(error) = taskset(self.server, &self.before) {
            eprintln!("the server stays pinned: {error:#}");
        }
    }
}

fn taskset(pid: u32, cores: &str) -> Result<()> {
    let output = Command::new("taskset")
        .args(["-a", "-c", "-p", cores, &pid.to_string()])
        .stdin(Stdio::null())
        .output()
        .context("taskset does not run")?;
    ensure!(output.status.success(), "taskset: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// The cores that a process may use, as Linux writes them: `0-3,8`.
fn allowed(status: &str) -> Result<String> {
    let text = std::fs::read_to_string(status).with_context(|| status.to_owned())?;
    let line = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    Ok(line.context("no list of cores")?.trim().to_owned())
}

fn parse(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::{Pinned, allowed, parse};
    use crate::workload::Cores;

    #[test]
    fn core_lists_with_ranges_are_parsed() {
        assert_eq!(parse("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(parse("7"), [7]);
    }

    #[test]
    fn a_pinned_server_gets_its_former_cores_back() {
        let own = parse(&allowed("/proc/self/status").unwrap_or_default());
        let [first, second, ..] = own.as_slice() else {
            eprintln!("LEFT OUT: pinning needs Linux and two cores");
            return;
        };
        let mut server = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let status = format!("/proc/{}/status", server.id());
        let before = allowed(&status).unwrap();
        let program = ["a".to_owned()];
        for (cores, driver) in [(Cores::One, first), (Cores::Two, second)] {
            let pinned = Pinned::new(server.id(), cores).unwrap();
            assert_eq!(allowed(&status).unwrap(), first.to_string());
            assert_eq!(pinned.command(&program), ["taskset", "-c", &driver.to_string(), "a"]);
            drop(pinned);
            assert_eq!(allowed(&status).unwrap(), before);
        }
        server.kill().unwrap();
        server.wait().unwrap();
    }
}
