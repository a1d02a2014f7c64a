//! The tests of each part, and their test programs.

use std::fs;
use std::path::Path;

use crate::build::compiled_by_clippy;
use crate::job::{Job, Run};
use crate::output::{between, failed_tests, listed, ran_a_test};

/// One run of a test program for a part: all tests, some modules, or all but some.
pub struct Suite {
    pub part: &'static str,
    pub program: &'static str,
    filters: &'static str,
}

const fn suite(part: &'static str, program: &'static str, filters: &'static str) -> Suite {
    Suite { part, program, filters }
}

/// The suites of a part run one after the other, except those of part `timed`. Part `build` fails if a module
/// is in no suite.
pub const SUITES: &[Suite] = &[
    suite(
        "architecture",
        "meta",
        "alerts:: api:: api_list:: architecture:: docs:: errors:: fleet:: mutations:: operating:: sizes:: traps::",
    ),
    suite(
        "architecture",
        "stores",
        "callbacks:: deadlocks:: memory:: memory_faults:: metrics:: tasks:: tracing::",
    ),
    suite("cli", "cli", ""),
    suite("cli", "anywhere", ""),
    suite("contract", "contract", ""),
    suite("support", "meta", "support_selftest::"),
    suite(
        "faults",
        "faults",
        "--skip=cuts_under_load:: --skip=heap:: --skip=line_processes:: --skip=wakeups::",
    ),
    suite("faults", "faults", "wakeups::a_thousand wakeups::an_unread wakeups::waiters"),
    suite("faults", "faults", "heap::"),
    suite("faults", "histories", "two_processes_never_hold_at_once_on_redis"),
    suite("interop", "interop", ""),
    suite("topologies", "topology", "cluster::"),
    suite("topologies", "topology", "forgotten::"),
    suite("topologies", "topology", "redlock::"),
    suite("topologies", "topology", "replicas::"),
    suite("topologies", "topology", "ring::"),
    suite("topologies", "topology", "sentinel::"),
    // The skipped tests run with the tests of their stores, in the suites below.
    suite(
        "stores",
        "stores",
        "processes:: --skip=etcd:: --skip=mysql:: --skip=postgres:: --skip=sqlite:: --skip=zookeeper::",
    ),
    suite("stores", "stores", "etcd::"),
    suite("stores", "stores", "contended:: files:: formats:: lists:: redis:: secrets:: --skip=processes::"),
    suite("stores", "stores", "databases:: --skip=::postgres"),
    suite("stores", "stores", "databases:: --skip=::mysql --skip=::sqlite"),
    suite("stores", "stores", "mysql:: mysql_settings::"),
    suite("stores", "stores", "orders:: sqlite:: tls::"),
    suite("stores", "stores", "postgres::"),
    suite("stores", "stores", "postgres_keep:: postgres_line:: postgres_settings:: rights::"),
    suite("stores", "stores", "silence::"),
    suite(
        "stores",
        "stores",
        "turnstile:: --skip=::a_waiting_mysql_client_acquires_within_20_ms_of_release --skip=::a_waiter_retakes_the_polling_turn_after_each_killed_session",
    ),
    suite("stores", "stores", "roles::"),
    suite("stores", "stores", "zookeeper::"),
    suite("redis", "stores", "inspect::"),
    suite("redis", "meta", "pages::"),
    suite("support", "histories", "bad::"),
    suite("histories", "histories", ""),
    suite("redis", "faults", "cuts_under_load::"),
    suite("demo", "meta", "demo::"),
    suite("demo", "meta", "examples::"),
    suite("docs", "meta", "rendered::"),
    suite("timed", "faults", "line_processes::"),
    suite("timed", "faults", "wakeups:: --skip=::a_thousand --skip=::an_unread --skip=::waiters"),
    suite(
        "timed",
        "stores",
        "turnstile::a_waiting_mysql_client_acquires_within_20_ms_of_release turnstile::a_waiter_retakes_the_polling_turn_after_each_killed_session",
    ),
    suite("versions", "stores", "versions::"),
];

/// A test program, an example, or the unit tests of the library or a program.
pub struct Program {
    pub kind: String,
    pub name: String,
    pub path: String,
}

fn programs_in(messages: &str) -> Vec<Program> {
    let program = |line: &str| {
        line.strip_prefix("{\"reason\":\"compiler-artifact\"")?;
        let path = between(line, "\"executable\":\"", "\"")?;
        let (target, _) = line.split_once("\",\"src_path\"")?;
        let kind = between(line, "\"kind\":[\"", "\"")?;
        // A `bin` is no test program, unless it is in `deps`: there cargo puts the unit tests of programs.
        let is_test =
            kind != "bin" || Path::new(path).parent().is_some_and(|folder| folder.ends_with("deps"));
        let (_, name) = target.rsplit_once("\"name\":\"")?;
        is_test.then(|| Program { kind: kind.to_owned(), name: name.to_owned(), path: path.to_owned() })
    };
    messages.lines().filter_map(program).collect()
}

/// Builds all test programs and examples of the workspace by one command, so they share dependencies.
pub fn built(job: &Job<'_>) -> Option<Vec<Program>> {
    let run = compiled_by_clippy("test --locked --workspace --all-features --no-run")
        .args(["--message-format=json-render-diagnostics"]);
    let came = job.ask(&run);
    let programs = programs_in(&came.output);
    let has =
        |kind: &str, name: &str| programs.iter().any(|program| program.kind == kind && program.name == name);
    if !came.good || !has("lib", "leasehold") || !has("test", "contract") {
        return None;
    }
    let lines =
        programs.iter().map(|program| format!("{} {} {}\n", program.kind, program.name, program.path));
    fs::write(list(job), lines.collect::<String>()).ok()?;
    // Tests start the built example directly: `cargo run` would wait for cargo's lock of the build folder
    // while another part of the gate compiles.
    let example = programs.iter().find(|program| program.kind == "example")?;
    job.gate.set("LEASEHOLD_EXAMPLES", Path::new(&example.path).parent()?.display().to_string());
    Some(programs)
}

fn list(job: &Job<'_>) -> std::path::PathBuf {
    job.gate.logs.join("programs")
}

fn programs(job: &Job<'_>) -> Vec<Program> {
    let read = fs::read_to_string(list(job)).unwrap_or_default();
    let program = |line: &str| {
        let mut words = line.splitn(3, ' ').map(str::to_owned);
        Some(Program { kind: words.next()?, name: words.next()?, path: words.next()? })
    };
    read.lines().filter_map(program).collect()
}

pub fn names(job: &Job<'_>, program: &Program) -> String {
    job.run(&Run::new(&program.path).args(["--list"]).silent()).output
}

pub fn part_build(job: &Job<'_>) -> bool {
    let Some(programs) = built(job) else { return false };
    let mut good = true;
    for program in programs.iter().filter(|program| program.kind == "test") {
        let names = names(job, program);
        for module in forgotten(SUITES, &program.name, &names) {
            good = job.failed(&format!("no part has the tests of {}::{module}", program.name));
        }
    }
    job.say(&format!("{} programs", programs.len()));
    good
}

/// The modules of a test program that no suite runs. A suite without modules runs all that it does not skip.
fn forgotten<'a>(suites: &[Suite], program: &str, list: &'a str) -> Vec<&'a str> {
    let is_in = |module: &str| {
        suites.iter().filter(|suite| suite.program == program).any(|suite| {
            let words = || suite.filters.split_whitespace();
            let named = words().any(|word| word.strip_suffix("::") == Some(module));
            let takes_all = words().all(|word| word.starts_with("--"));
            named || takes_all && !words().any(|word| word == format!("--skip={module}::"))
        })
    };
    let mut modules: Vec<&str> =
        listed(list).filter_map(|name| name.split_once("::")).map(|(module, _)| module).collect();
    modules.sort_unstable();
    modules.dedup();
    modules.retain(|module| !is_in(module));
    modules
}

/// Runs a built test program: `name` is its name, for unit tests "lib" or "bin NAME". Fails if no test ran.
pub fn run(job: &Job<'_>, name: &str, arguments: &[&str]) -> bool {
    let programs = programs(job);
    let found = match name.split_once(' ') {
        Some((kind, name)) => programs.iter().find(|program| program.kind == kind && program.name == name),
        None if name == "lib" => programs.iter().find(|program| program.kind == "lib"),
        None => programs.iter().find(|program| program.kind == "test" && program.name == name),
    };
    let Some(program) = found else { return job.failed(&format!("there is no test program {name}")) };
    let arguments = arguments.join(" ");
    job.say(&format!("     Running {name} {arguments}"));
    let threads = threads(job);
    let run = Run::new(&program.path).args([format!("--test-threads={threads}")]);
    let came = job.run(&run.args(arguments.split_whitespace()).of_a_test());
    let ran =
        !came.good || ran_a_test(&came.output) || job.failed(&format!("{name} {arguments} ran no test"));
    for test in failed_tests(&came.output) {
        job.say(&format!("to run it alone: ./check test {test}"));
    }
    came.good && ran
}

pub fn threads(job: &Job<'_>) -> usize {
    job.variable("LEASEHOLD_THREADS").and_then(|threads| threads.parse().ok()).unwrap_or(job.gate.threads)
}

pub fn one_at_a_time<'a>(job: &Job<'a>) -> Job<'a> {
    job.also().with("LEASEHOLD_THREADS", "1")
}

pub fn of_part(job: &Job<'_>, part: &str, more: &[&str]) -> bool {
    let suites: Vec<&Suite> = SUITES.iter().filter(|suite| suite.part == part).collect();
    let mut good = !suites.is_empty() || job.failed(&format!("there are no tests of part {part}"));
    for suite in suites {
        let arguments: Vec<&str> = suite.filters.split_whitespace().chain(more.iter().copied()).collect();
        good &= run(job, suite.program, &arguments);
    }
    good
}

/// The tests that measure how soon a waiter is woken. Each suite runs one test at a time. The suites run side
/// by side, because they mostly wait: together they use a quarter of a processor.
pub fn timed(job: &Job<'_>) -> bool {
    let suites: Vec<&Suite> = SUITES.iter().filter(|suite| suite.part == "timed").collect();
    side_by_side(&one_at_a_time(job), &suites, |job, suite| {
        run(job, suite.program, &suite.filters.split_whitespace().collect::<Vec<_>>())
    })
}

/// Runs the work for all servers at the same time, each with half as many parallel tests.
pub fn on_each_server(job: &Job<'_>, work: fn(&Job<'_>) -> bool) -> bool {
    let Some(servers) = job.variable("LEASEHOLD_SERVERS") else {
        return job.skipped("what runs on each server: there is no redis-server and no valkey-server");
    };
    let threads = threads(job).div_ceil(2).to_string();
    let servers: Vec<&str> = servers.split(':').collect();
    side_by_side(job, &servers, |job, server| {
        let (name, path) = server.split_once('=').unwrap_or((server, server));
        let on_one = job.also().with("LEASEHOLD_SERVERS", *server).with("LEASEHOLD_TEST_SERVER", path);
        on_one.say(&format!("-- {name}"));
        work(&on_one.with("LEASEHOLD_THREADS", &*threads))
    })
}

/// Runs the work for all items at once; their output comes in order.
fn side_by_side<T: Sync>(job: &Job<'_>, all: &[T], work: impl Fn(&Job<'_>, &T) -> bool + Sync) -> bool {
    std::thread::scope(|scope| {
        let work = &work;
        let begin = |one| {
            let beside = job.beside();
            scope.spawn(move || (work(&beside, one), beside))
        };
        let works: Vec<_> = all.iter().map(begin).collect();
        let mut good = true;
        for work in works {
            let Ok((is_good, beside)) = work.join() else {
                return job.failed("a thread of the gate panicked");
            };
            good &= is_good;
            job.release(&beside);
        }
        good
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGES: &str = r#"{"reason":"compiler-artifact","package_id":"a","target":{"kind":["lib"],"crate_types":["lib"],"name":"leasehold","src_path":"/x/src/lib.rs"},"executable":null,"fresh":true}
{"reason":"compiler-artifact","package_id":"a","target":{"kind":["lib"],"crate_types":["lib"],"name":"leasehold","src_path":"/x/src/lib.rs"},"executable":"/t/debug/deps/leasehold-1","fresh":true}
{"reason":"compiler-artifact","package_id":"a","target":{"kind":["bin"],"crate_types":["bin"],"name":"leasehold","src_path":"/x/main.rs"},"executable":"/t/debug/leasehold","fresh":true}
{"reason":"compiler-artifact","package_id":"a","target":{"kind":["bin"],"crate_types":["bin"],"name":"leasehold","src_path":"/x/main.rs"},"executable":"/t/debug/deps/leasehold-2","fresh":true}
{"reason":"compiler-artifact","package_id":"a","target":{"kind":["example"],"crate_types":["bin"],"name":"stock","src_path":"/x/main.rs"},"executable":"/t/debug/examples/stock","fresh":true}
{"reason":"build-finished","success":true}"#;

    #[test]
    fn built_programs_are_read_from_the_messages_of_cargo() {
        let programs = programs_in(MESSAGES);
        let told: Vec<_> =
            programs.iter().map(|one| (one.kind.as_str(), one.name.as_str(), one.path.as_str())).collect();
        assert_eq!(
            told,
            [
                ("lib", "leasehold", "/t/debug/deps/leasehold-1"),
                ("bin", "leasehold", "/t/debug/deps/leasehold-2"),
                ("example", "stock", "/t/debug/examples/stock"),
            ]
        );
    }

    #[test]
    fn a_test_module_that_belongs_to_no_suite_is_found() {
        let suites = [
            suite("a", "stores", "redis:: mysql::"),
            suite("b", "faults", "--skip=heap:: --skip=cuts::"),
            suite("c", "faults", "heap::"),
            suite("d", "cli", ""),
        ];
        let list = "redis::a: test\nmysql::b: test\nmysql_settings::c: test\nbeside: test\n";
        assert_eq!(forgotten(&suites, "stores", list), ["mysql_settings"]);
        assert_eq!(forgotten(&suites, "faults", "heap::a: test\ncuts::b: test\nmore::c: test\n"), ["cuts"]);
        assert!(forgotten(&suites, "cli", list).is_empty());
        assert_eq!(forgotten(&suites, "new", "a::b: test\n"), ["a"]);
    }
}
