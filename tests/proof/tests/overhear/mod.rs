//! Records Redisson's requests, which MONITOR shows while a JVM uses locks. Each run records them anew.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use leasehold_proof::foreign::{Foreign, LASTS, LEASE, NOW, OWNER, Part, Template, UNLOCK, Verb, WAIT};
use redis::Connection;

use crate::real::{Program, start};

const LOCK: &str = "{l}";

/// The lease and waits of the recorded requests. No other part of a request has these numbers, so
/// placeholders can replace them.
const LEASE_MS: &str = "15001";
const FAIR_WAIT_MS: &str = "70003";
const SHORT_WAIT_MS: &str = "701";

const PATIENCE: Duration = Duration::from_secs(60);

/// A script that runs a command which Redisson sends without a script.
const COMMAND: &str = "return redis.call(unpack(ARGV))";

/// The requests that Redisson sends. Without Java or Maven, prints why and returns `None`; in CI, panics.
pub fn redisson() -> Option<&'static Foreign> {
    static HEARD: OnceLock<Result<Foreign, String>> = OnceLock::new();
    let heard = HEARD.get_or_init(|| jar().and_then(|()| Ear::new()).map(Ear::listen));
    if let Err(why) = heard {
        let line = format!("SKIPPED Redisson in the models: {why}");
        let in_ci = std::env::var("CI").is_ok_and(|value| !["", "false", "0"].contains(&&*value));
        assert!(!in_ci, "{line} (in CI that is a failure)");
        println!("{line}");
    }
    heard.as_ref().ok()
}

fn project() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../interop/java")
}

/// Builds `target/agent.jar` unless it is newer than its sources, as `tests/interop` does.
fn jar() -> Result<(), String> {
    let target = project().join("target");
    fs::create_dir_all(&target).expect("a folder");
    let in_use = File::create(target.join(".building")).expect("a file");
    in_use.lock().expect("a lock that goes with the file");
    let changed = |file: &str| fs::metadata(project().join(file)).and_then(|data| data.modified()).ok();
    let made_of = [
        "pom.xml",
        "src/main/java/leasehold/interop/Agent.java",
        "src/main/resources/simplelogger.properties",
    ];
    let built = changed("target/agent.built").filter(|_| target.join("agent.jar").exists());
    if built.is_some_and(|built| made_of.iter().all(|part| changed(part).is_some_and(|at| at <= built))) {
        return Ok(());
    }
    let begun = target.join(".begun");
    File::create(&begun).expect("a file");
    let maven = Command::new("mvn").args(["-q", "-B", "package"]).current_dir(project()).output();
    match maven {
        Ok(output) if output.status.success() => {
            fs::rename(&begun, target.join("agent.built")).expect("a stamp");
            Ok(())
        }
        Ok(output) => Err(format!("Maven failed: {}", String::from_utf8_lossy(&output.stdout))),
        Err(error) => Err(format!("no Maven: {error}")),
    }
}

/// The Java agent, whose requests and answers `tests/interop/agent.rs` describes.
struct Java {
    _program: Program,
    requests: ChildStdin,
    answers: Receiver<String>,
}

impl Java {
    fn start() -> Result<Java, String> {
        let mut child = Command::new("java")
            .args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xmx256m", "-jar"])
            .arg(project().join("target/agent.jar"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("no Java: {error}"))?;
        let requests = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, answers) = channel();
        let read = move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line));
        std::thread::Builder::new().name("java".to_owned()).spawn(read).expect("a thread");
        Ok(Java { _program: Program(child), requests, answers })
    }

    /// Lets a thread of the JVM run a command. Returns its result, or the reason of its failure.
    fn ask(&mut self, thread: &str, verb: &str, arguments: &[&str]) -> Result<String, String> {
        let request = [&["0", thread, "redisson", verb], arguments].concat().join("\t");
        writeln!(self.requests, "{request}").expect("the agent reads");
        let answer = self.answers.recv_timeout(PATIENCE).unwrap_or_else(|why| panic!("{request}: {why}"));
        let fields: Vec<&str> = answer.splitn(5, '\t').collect();
        let [_, verdict, _, _, text] = fields[..] else { panic!("no answer: {answer}") };
        if verdict == "ok" { Ok(text.to_owned()) } else { Err(text.to_owned()) }
    }
}

struct Ear {
    java: Java,
    monitor: BufReader<UnixStream>,
    admin: Connection,
    marks: u32,
    owners: BTreeMap<&'static str, String>,
    foreign: Foreign,
    _server: Program,
    _folder: tempfile::TempDir,
}

impl Ear {
    fn new() -> Result<Ear, String> {
        let mut java = Java::start()?;
        let folder = tempfile::tempdir().expect("a folder");
        let (server, admin, port) = start(folder.path());
        let mut monitor = UnixStream::connect(folder.path().join("socket")).expect("the server's socket");
        monitor.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        monitor.write_all(b"MONITOR\r\n").expect("the server reads");
        let url = format!("redis://127.0.0.1:{port}");
        let id = java.ask("a", "connect", &[&url, LEASE_MS, "", "", FAIR_WAIT_MS]).expect("a connection");
        let owners = ["a", "b"].map(|thread| {
            (thread, format!("{id}:{}", java.ask(thread, "thread-id", &[]).expect("a number")))
        });
        let scripts = BTreeMap::from([("command".to_owned(), COMMAND.to_owned())]);
        Ok(Ear {
            java,
            monitor: BufReader::new(monitor),
            admin,
            marks: 0,
            owners: BTreeMap::from(owners),
            foreign: Foreign { scripts, ..Foreign::default() },
            _server: server,
            _folder: folder,
        })
    }

    /// Makes Redisson send every request. On each part (a kind of lock) thread `a` acquires, re-enters,
    /// renews and releases, thread `b` tries in vain, and at last `a` frees the lock by force.
    fn listen(mut self) -> Foreign {
        let mark = self.mark();
        while self.next() != ["ECHO", &mark] {}
        self.shared(Part::Plain, "");
        self.shared(Part::Fair, "fair-");
        self.shared(Part::Write, "write-");
        // Readers are blocked only by a writer, so a writer holds the lock here.
        self.step("a", Part::Write, "write-lock-lease", &[LEASE_MS], &[], "");
        self.step("b", Part::Read, "read-try-for", &[SHORT_WAIT_MS], &[Verb::Acquire], "false");
        self.step("a", Part::Write, "write-unlock", &[], &[], "");
        self.step("a", Part::Read, "read-lock-lease", &[LEASE_MS], &[], "");
        self.ends(Part::Read, "read-");
        self.step("a", Part::Fenced, "fenced-lock-token", &[], &[Verb::Acquire, Verb::Renew], "1");
        self.step("b", Part::Fenced, "fenced-try-token-for", &[SHORT_WAIT_MS], &[], "null");
        self.ends(Part::Fenced, "fenced-");
        self.foreign
    }

    fn shared(&mut self, part: Part, kind: &str) {
        let verb = |verb: &str| format!("{kind}{verb}");
        self.step("a", part, &verb("lock-lease"), &[LEASE_MS], &[Verb::Acquire], "");
        let tries: &[Verb] = if part == Part::Fair { &[Verb::Try] } else { &[] };
        self.step("b", part, &verb("try"), &[], tries, "false");
        let leaves: &[Verb] = if part == Part::Fair { &[Verb::Leave] } else { &[] };
        self.step("b", part, &verb("try-for"), &[SHORT_WAIT_MS], leaves, "false");
        self.ends(part, kind);
    }

    /// Thread `a`, which must hold the lock with one level, re-enters, ends both levels, acquires again,
    /// waits for a renewal, and frees the lock by force.
    fn ends(&mut self, part: Part, kind: &str) {
        let verb = |verb: &str| format!("{kind}{verb}");
        let again: (&str, &[&str], &str) = match part {
            Part::Fenced => ("lock-token", &[], "2"),
            _ => ("try-for-lease", &[SHORT_WAIT_MS, LEASE_MS], "true"),
        };
        self.step("a", part, &verb(again.0), again.1, &[], again.2);
        for _ in 0..2 {
            self.step("a", part, &verb("unlock"), &[], &[Verb::Release], "");
        }
        let (hold, token) = if part == Part::Fenced { ("lock-token", "3") } else { ("lock", "") };
        self.step("a", part, &verb(hold), &[], &[Verb::Acquire, Verb::Renew], token);
        while !self.foreign.requests.contains_key(&(part, Verb::Renew)) {
            let words = self.next();
            self.learn(part, &[Verb::Renew], &words);
        }
        self.step("a", part, &verb("force-unlock"), &[], &[Verb::Force, Verb::Renew], "true");
    }

    /// Lets a thread of the JVM run the agent's command `verb`, and records Redisson's scripts. `new` says,
    /// in order, what the scripts do that no earlier step recorded.
    fn step(&mut self, thread: &str, part: Part, verb: &str, more: &[&str], new: &[Verb], expected: &str) {
        let said = self.java.ask(thread, verb, &[&[LOCK], more].concat());
        let said = said.unwrap_or_else(|error| panic!("{verb}: {error}"));
        assert_eq!(said, expected, "{verb}");
        let mark = self.mark();
        // Redisson awaits no reply to an unlock's last command, a DEL, so the DEL may come after the mark.
        let mut is_forgotten =
            !verb.ends_with("-unlock") && verb != "unlock" || verb.ends_with("force-unlock");
        let mut is_over = false;
        while !is_over || !is_forgotten {
            let words = self.next();
            is_over |= words == ["ECHO", &mark];
            is_forgotten |= words[0] == "DEL";
            self.learn(part, new, &words);
        }
    }

    /// Sends a command that marks the end of all earlier requests in MONITOR's output.
    fn mark(&mut self) -> String {
        self.marks += 1;
        let mark = format!("mark {}", self.marks);
        redis::cmd("ECHO").arg(&mark).exec(&mut self.admin).expect("an answer of the server");
        mark
    }

    /// The next command in MONITOR's output that a client sent, and not a script.
    fn next(&mut self) -> Vec<String> {
        loop {
            let mut line = String::new();
            self.monitor.read_line(&mut line).expect("the server tells what it does");
            if let Some((source, command)) = line.split_once("] ")
                && !source.ends_with("lua")
            {
                return words(command.trim_end());
            }
        }
    }

    fn learn(&mut self, part: Part, new: &[Verb], words: &[String]) {
        let word = |at: usize| words.get(at).map(String::as_str).unwrap_or_default();
        match word(0) {
            "SCRIPT" if word(1) == "LOAD" => drop(self.script(word(2))),
            "EVAL" | "EVALSHA" => {
                let script = if word(0) == "EVAL" { self.script(word(1)) } else { word(1).to_owned() };
                let keys: usize = word(2).parse().expect("a number of keys");
                let marked: Vec<String> = words[3..].iter().map(|word| self.marked(word)).collect();
                let (keys, arguments) = marked.split_at(keys);
                let template = Template { script, keys: keys.to_vec(), arguments: arguments.to_vec() };
                let requests = &self.foreign.requests;
                let known =
                    requests.iter().find(|((of, _), one)| *of == part && one.script == template.script);
                if let Some((for_what, known)) = known {
                    assert_eq!(known, &template, "{for_what:?} is asked for in two ways");
                    return;
                }
                let verb = new.iter().find(|verb| !requests.contains_key(&(part, **verb)));
                let verb = verb.unwrap_or_else(|| panic!("{part:?}: what is {template:?} for?"));
                self.foreign.requests.insert((part, *verb), template);
            }
            "DEL" => {
                let arguments = words.iter().map(|word| self.marked(word)).collect();
                let template = Template { script: "command".to_owned(), keys: Vec::new(), arguments };
                let known = self.foreign.requests.insert((part, Verb::Forget), template.clone());
                assert!(known.is_none_or(|known| known == template), "{part:?}: {template:?}");
            }
            "SUBSCRIBE" => {
                let channel = self.marked(word(1));
                let known = self.foreign.channels.insert(part, channel.clone());
                assert!(known.is_none_or(|known| known == channel), "{part:?}: {channel}");
            }
            _ => {}
        }
    }

    /// Loads a script into the server. Returns the script's name, which is the hash that the server gives it.
    fn script(&mut self, text: &str) -> String {
        let load = redis::cmd("SCRIPT").arg("LOAD").arg(text).query(&mut self.admin);
        let name: String = load.expect("the server takes the script too");
        self.foreign.scripts.insert(name.clone(), text.to_owned());
        name
    }

    /// A word of a request, with a placeholder such as `<owner>` for each part that differs between requests.
    fn marked(&self, word: &str) -> String {
        let mut marked = word.to_owned();
        for owner in self.owners.values() {
            marked = marked.replace(owner, OWNER);
        }
        if let Some((key, unlock)) = marked.rsplit_once(':')
            && unlock.len() == 32
            && unlock.bytes().all(|digit| digit.is_ascii_hexdigit())
        {
            return format!("{key}:{UNLOCK}");
        }
        let Ok(number) = word.parse::<u64>() else { return marked };
        match word {
            LEASE_MS => LEASE.to_owned(),
            FAIR_WAIT_MS | SHORT_WAIT_MS => WAIT.to_owned(),
            _ => match number {
                0..10 => marked,
                16_000..=20_000 => LASTS.to_owned(),
                1_000_000_000_000.. => NOW.to_owned(),
                _ => panic!("what is {number} in a request?"),
            },
        }
    }
}

/// Parses the quoted words of a line of MONITOR.
fn words(quoted: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut letters = quoted.chars();
    while let Some(letter) = letters.next() {
        if letter != '"' {
            continue;
        }
        let mut word = String::new();
        while let Some(letter) = letters.next().filter(|letter| *letter != '"') {
            word.push(match letter {
                '\\' => match letters.next() {
                    Some('n') => '\n',
                    Some('r') => '\r',
                    Some('t') => '\t',
                    Some('x') => panic!("no text: {quoted}"),
                    Some(other) => other,
                    None => panic!("cut off: {quoted}"),
                },
                letter => letter,
            });
        }
        words.push(word);
    }
    words
}
