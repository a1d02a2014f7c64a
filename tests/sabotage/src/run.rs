//! Builds the copy's test programs, and runs their tests with a time limit.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::Result;
use crate::list::{Mutation, Suite};
use crate::record::Verdict;

/// The shortest time limit of a suite.
const LEAST_LIMIT: Duration = Duration::from_secs(60);

/// Cargo in the copy, with the features that `./check` uses for tests, so that both share built dependencies.
fn cargo(package: &Path, target: &Path, command: &str) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.args([command, "--workspace", "--all-features"]);
    cargo
        .current_dir(package)
        .env("CARGO_TARGET_DIR", target)
        .env_remove("SABOTAGE")
        .stderr(Stdio::inherit());
    // Cargo has set these variables for this program. They would make dependencies' build scripts run again.
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
        {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Whether the library and the program compile with each mutation in them.
pub fn check(package: &Path, target: &Path) -> Result<()> {
    let status = cargo(package, target, "check").args(["--quiet", "--lib", "--bins"]).status();
    let compiles = status.map_err(|error| format!("cargo: {error}"))?.success();
    if compiles { Ok(()) } else { Err(NO_COPY.to_owned()) }
}

const NO_COPY: &str = "the copy does not build: a mutation does not compile";

pub struct Programs {
    package: PathBuf,
    logs: PathBuf,
    by_name: BTreeMap<String, PathBuf>,
    /// How long each suite takes without a mutation.
    times: Mutex<BTreeMap<Suite, Duration>>,
}

impl Programs {
    pub fn build(package: &Path, target: &Path, mutations: &[&Mutation]) -> Result<Programs> {
        let suites = mutations.iter().map(|one| &one.suite);
        let names: BTreeSet<&str> = suites.map(|suite| suite.program.as_str()).collect();
        let mut cargo = cargo(package, target, "test");
        cargo.args(["--no-run", "--message-format=json-render-diagnostics"]);
        for name in &names {
            match *name {
                "lib" => cargo.arg("--lib"),
                "program" => cargo.args(["--bin", "leasehold"]),
                name => cargo.args(["--test", name]),
            };
        }
        let built = cargo.output().map_err(|error| format!("cargo: {error}"))?;
        if !built.status.success() {
            return Err(NO_COPY.to_owned());
        }
        let mut by_name = BTreeMap::new();
        for line in String::from_utf8_lossy(&built.stdout).lines() {
            let field = |name: &str| {
                let begin = format!("\"{name}\":\"");
                line.split_once(&begin)
                    .and_then(|(_, rest)| rest.split_once('"'))
                    .map(|(value, _)| value.to_owned())
            };
            let target = line.split_once("\"target\":").map_or("", |(_, target)| target);
            let name = target
                .split_once("\"name\":\"")
                .and_then(|(_, rest)| rest.split_once('"'))
                .map(|(name, _)| name);
            if let (Some(name), Some(program)) = (name, field("executable")) {
                let profile = line.split_once("\"profile\":").map_or("", |(_, profile)| profile);
                let is = |kind: &str| target.starts_with(&format!("{{\"kind\":[\"{kind}\"]"));
                let name = match name {
                    _ if is("lib") => "lib",
                    // Cargo also builds programs for tests to start. These builds contain no unit tests.
                    _ if is("bin") && !profile.contains("\"test\":true") => continue,
                    _ if is("bin") => "program",
                    name => name,
                };
                by_name.insert(name.to_owned(), PathBuf::from(program));
            }
        }
        let missing = names.iter().find(|name| !by_name.contains_key(**name));
        if let Some(missing) = missing {
            return Err(format!("there is no test program {missing}"));
        }
        let logs = target.join("sabotage/logs");
        fs::create_dir_all(&logs).map_err(|error| format!("{}: {error}", logs.display()))?;
        Ok(Programs { package: package.to_owned(), logs, by_name, times: Mutex::default() })
    }

    /// Checks that the suite passes without a mutation. A suite that always fails would seem to catch
    /// everything.
    pub fn judge_unbroken(&self, suite: &Suite) -> Result<()> {
        let log = self.logs.join(format!("unbroken-{}.log", suite.to_string().replace([' ', ':'], "-")));
        let log = if log.as_os_str().len() > 200 {
            self.logs.join(format!("unbroken-{}.log", suite.program))
        } else {
            log
        };
        let begun = Instant::now();
        let passed = self.run(suite, None, &log, LEAST_LIMIT * 2)?;
        let text = fs::read_to_string(&log).unwrap_or_default();
        if !passed || !text.contains("test result: ok. ") || text.contains("test result: ok. 0 passed") {
            return Err(format!(
                "with nothing broken this suite fails, or runs no test: {suite} ({})",
                log.display()
            ));
        }
        self.times.lock().expect("nobody panics with it").insert(suite.clone(), begun.elapsed());
        Ok(())
    }

    pub fn judge(&self, one: &Mutation) -> Result<(Verdict, u64)> {
        let time = self.times.lock().expect("nobody panics with it").get(&one.suite).copied();
        let time =
            time.ok_or_else(|| format!("{}: its suite does not pass when nothing is broken", one.number))?;
        let log = self.logs.join(format!("{}.log", one.number));
        let reached = self.logs.join(format!("{}.reached", one.number));
        drop(fs::remove_file(&reached));
        let begun = Instant::now();
        let passed = self.run(&one.suite, Some((one.number, &reached)), &log, LEAST_LIMIT.max(time * 4))?;
        let seconds = begun.elapsed().as_secs();
        let verdict = match (passed, reached.exists()) {
            (false, true) => Verdict::Caught,
            (true, true) => Verdict::Survived,
            (true, false) => Verdict::NotReached,
            (false, false) => {
                return Err(format!("{}: the suite failed by itself ({})", one.number, log.display()));
            }
        };
        Ok((verdict, seconds))
    }

    /// Whether the tests pass within the limit. After the limit this function ends them and their children.
    fn run(
        &self,
        suite: &Suite,
        broken: Option<(usize, &Path)>,
        log: &Path,
        limit: Duration,
    ) -> Result<bool> {
        let program = self.by_name.get(&suite.program).ok_or("no such program")?;
        let out = File::create(log).map_err(|error| format!("{}: {error}", log.display()))?;
        let err = out.try_clone().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        let list = Command::new(program).arg("--list").output().map_err(|error| error.to_string())?;
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        let tests = suite.chosen(&list)?;
        command.args(["--test-threads=8", "--exact"]).args(tests);
        command.current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package);
        command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
        // One version of Redis is enough, because the tests notice a mutation on each.
        if let Ok(servers) = std::env::var("LEASEHOLD_SERVERS") {
            command.env("LEASEHOLD_SERVERS", servers.split(':').next().unwrap_or_default());
        }
        if let Some((number, reached)) = broken {
            command.env("SABOTAGE", number.to_string()).env("SABOTAGE_REACHED", reached);
        }
        let mut child = command.spawn().map_err(|error| format!("{}: {error}", program.display()))?;
        let begun = Instant::now();
        loop {
            if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
                return Ok(status.success());
            }
            if begun.elapsed() > limit {
                let group = format!("-{}", child.id());
                drop(Command::new("kill").args(["-KILL", "--", &group]).status());
                drop(child.wait());
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
