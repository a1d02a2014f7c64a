//! The machine of the measurement.

use std::process::Command;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    pub cores: usize,
    pub cpu: String,
    pub kernel: String,
    pub server: String,
    pub rustc: String,
    pub go: String,
    pub java: String,
    pub python: String,
    /// The load average before the first round.
    pub load: String,
}

impl Machine {
    pub fn look(server: String, python: Option<&str>) -> Machine {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let cpu = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
        let load = read("/proc/loadavg");
        let release = read("/proc/sys/kernel/osrelease");
        let version = release.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or_default();
        Machine {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            cpu: cpu.and_then(|line| line.split_once(':')).map_or("?", |(_, name)| name.trim()).to_owned(),
            kernel: format!("{} {version}", std::env::consts::OS),
            server,
            rustc: first_line("rustc", &["--version"]),
            go: first_line("go", &["version"]),
            java: first_line("java", &["-version"]),
            python: python.map_or_else(String::new, |python| first_line(python, &["--version"])),
            load: load.split_whitespace().take(3).collect::<Vec<_>>().join(" "),
        }
    }
}

/// The first line that a program prints. Java prints its version to standard error.
fn first_line(program: &str, arguments: &[&str]) -> String {
    let Ok(output) = Command::new(program).args(arguments).output() else {
        return String::new();
    };
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    String::from_utf8_lossy(&text).lines().next().unwrap_or_default().to_owned()
}
