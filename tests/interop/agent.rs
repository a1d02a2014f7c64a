//! An agent: a program with another library (such as Redisson) that locks as a test commands.
//!
//! Test and agent exchange lines, with tabs between fields. A request is `number thread client verb
//! argument…`. The agent runs requests of one thread in order, and those of different threads side by side.
//! An answer is `number ok|error begun ended text`, with times in nanoseconds of CLOCK_MONOTONIC. An agent
//! ends when its input ends, so it does not outlive a killed test run.
//!
//! A JVM needs two seconds of processor time to start. So a JVM whose test has passed forgets its clients and
//! threads (the verb `reset`), and then serves the next test.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::scene::missing;
use crate::support::prelude::*;

/// The longest time that a request may take. A request that takes longer counts as hanging.
const PATIENCE: Duration = Duration::from_secs(30);
/// The time limit for `reset`, by which an agent closes its clients after a test, before another test reuses
/// the agent. The clients' servers may be gone by then. A slower agent is killed.
const CLEARING: Duration = Duration::from_secs(5);

/// Idle agents, each with the name of its program, for later tests. They end with this process.
static RESTING: Mutex<Vec<(&str, Program)>> = Mutex::new(Vec::new());

pub(crate) struct Agent {
    program: Option<Program>,
    reused_as: Option<&'static str>,
}

struct Program {
    child: Child,
    requests: Mutex<Requests>,
    answers: Arc<Mutex<HashMap<u64, Sender<Answer>>>>,
}

struct Requests {
    pipe: ChildStdin,
    sent: u64,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) begun: u64,
    pub(crate) ended: u64,
    pub(crate) result: Result<String, String>,
}

pub(crate) struct Pending {
    request: String,
    answer: Receiver<Answer>,
}

pub(crate) struct Peer {
    agent: Arc<Agent>,
    client: String,
    pub(crate) id: String,
}

impl Agent {
    /// Starts an agent, which is killed on drop. If `what` is not installed, the test is skipped (`None`), or
    /// fails in CI.
    pub(crate) fn start(what: &str, command: &mut Command) -> Option<Arc<Agent>> {
        let program = Program::start(what, command)?;
        Some(Arc::new(Agent { program: Some(program), reused_as: None }))
    }

    /// As [`start`](Self::start), but an idle agent of this name, if any, is reset and used.
    pub(crate) fn start_or_reuse(what: &'static str, command: &mut Command) -> Option<Arc<Agent>> {
        let resting = {
            let mut resting = RESTING.lock();
            resting.iter().position(|(name, _)| *name == what).map(|at| resting.swap_remove(at).1)
        };
        let program = resting.or_else(|| Program::start(what, command))?;
        Some(Arc::new(Agent { program: Some(program), reused_as: Some(what) }))
    }

    pub(crate) fn connect(self: &Arc<Self>, client: &str, url: &str, more: &[&str]) -> Peer {
        let arguments = [&[url], more].concat();
        let id = self.ask("main", client, "connect", &arguments).wait().expect_ok();
        Peer { agent: Arc::clone(self), client: client.to_owned(), id }
    }

    fn ask(&self, thread: &str, client: &str, verb: &str, arguments: &[&str]) -> Pending {
        self.program().ask(thread, client, verb, arguments).expect("the agent reads its requests")
    }

    fn program(&self) -> &Program {
        self.program.as_ref().expect("the agent is not dropped yet")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let Some(program) = self.program.take() else { return };
        if let Some(name) = self.reused_as.filter(|_| !std::thread::panicking())
            && program.is_cleared()
        {
            RESTING.lock().push((name, program));
        }
    }
}

impl Program {
    fn start(what: &str, command: &mut Command) -> Option<Program> {
        let mut child = match command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() {
            Ok(child) => child,
            Err(problem) => return missing(what, &problem.to_string()),
        };
        let pipe = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let answers: Arc<Mutex<HashMap<u64, Sender<Answer>>>> = Arc::default();
        let waiting = Arc::clone(&answers);
        let reader = std::thread::Builder::new().name("agent".to_owned());
        let reading = reader.spawn(move || {
            for line in output.lines() {
                let Ok(line) = line else { break };
                let (number, answer) = parse(&line);
                let asker = waiting.lock().remove(&number);
                if let Some(asker) = asker {
                    drop(asker.send(answer));
                }
            }
            // The agent has ended. Closing the channels ends the waits of all callers.
            waiting.lock().clear();
        });
        reading.unwrap();
        Some(Program { child, requests: Mutex::new(Requests { pipe, sent: 0 }), answers })
    }

    fn ask(&self, thread: &str, client: &str, verb: &str, arguments: &[&str]) -> io::Result<Pending> {
        let (promise, answer) = bounded(1);
        let mut requests = self.requests.lock();
        requests.sent += 1;
        let number = requests.sent;
        self.answers.lock().insert(number, promise);
        let request = [&[thread, client, verb], arguments].concat().join("\t");
        writeln!(requests.pipe, "{number}\t{request}")?;
        Ok(Pending { request: request.replace('\t', " "), answer })
    }

    /// Resets the agent. Returns `false` if a request is unanswered, or the reset fails or is slow.
    fn is_cleared(&self) -> bool {
        let is_idle = self.answers.lock().is_empty();
        let reset = is_idle.then(|| self.ask("main", "", "reset", &[]));
        let answer = reset.and_then(Result::ok).and_then(|reset| reset.answer.recv_timeout(CLEARING).ok());
        answer.is_some_and(|answer| answer.result.is_ok())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Peer {
    pub(crate) fn ask(&self, thread: &str, verb: &str, arguments: &[&str]) -> Pending {
        self.agent.ask(thread, &self.client, verb, arguments)
    }

    pub(crate) fn get(&self, thread: &str, verb: &str, arguments: &[&str]) -> String {
        self.ask(thread, verb, arguments).wait().expect_ok()
    }

    pub(crate) fn is(&self, thread: &str, verb: &str, arguments: &[&str]) -> bool {
        let said = self.get(thread, verb, arguments);
        said.parse().unwrap_or_else(|_| panic!("{verb} {arguments:?} returned {said:?}"))
    }

    pub(crate) fn error(&self, thread: &str, verb: &str, arguments: &[&str]) -> String {
        let answer = self.ask(thread, verb, arguments).wait();
        answer.result.expect_err("the request should have failed")
    }

    /// The owner `client-id:thread-id` of this thread, which is the field of its holds in Redis.
    pub(crate) fn owner(&self, thread: &str) -> String {
        format!("{}:{}", self.id, self.get(thread, "thread-id", &[]))
    }
}

impl Pending {
    pub(crate) fn wait(self) -> Answer {
        self.wait_for(PATIENCE)
    }

    pub(crate) fn wait_for(self, limit: Duration) -> Answer {
        self.answer.recv_timeout(limit).unwrap_or_else(|why| panic!("no answer to {:?}: {why}", self.request))
    }

    pub(crate) fn is_open(&self) -> bool {
        self.answer.is_empty()
    }
}

impl Answer {
    pub(crate) fn expect_ok(self) -> String {
        self.result.unwrap_or_else(|problem| panic!("the agent reports: {problem}"))
    }
}

fn parse(line: &str) -> (u64, Answer) {
    let fields: Vec<&str> = line.splitn(5, '\t').collect();
    let [number, verdict, begun, ended, text] = fields[..] else { panic!("not an answer: {line:?}") };
    let result = if verdict == "ok" { Ok(text.to_owned()) } else { Err(text.to_owned()) };
    let nanoseconds = |text: &str| text.parse().unwrap_or_else(|_| panic!("not an answer: {line:?}"));
    (nanoseconds(number), Answer { begun: nanoseconds(begun), ended: nanoseconds(ended), result })
}
