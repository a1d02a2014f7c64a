//! The gate: the checks of this repository. `./check` builds and starts this program, and documents its use.
//!
//! Order and content are data: [`plan`] has the parts and lanes, [`suites`] the tests of each part,
//! [`changed`] the parts that test each file. [`job`] runs commands, [`parts`] and [`build`] name them, and
//! [`gate`] runs parts and sums up. `scripts/servers.sh` finds and fetches servers, also for `./demo` and
//! `./bench` (docs/decisions/0054-the-gate-is-a-program.md).

mod build;
mod changed;
mod elsewhere;
mod gate;
mod job;
mod output;
mod parts;
mod plan;
mod soak;
mod suites;

use std::process::ExitCode;

use gate::Gate;

type Refused = String;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match started(&words) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(refused) => {
            eprintln!("{refused}");
            eprint!("{}", usage());
            ExitCode::from(2)
        }
    }
}

/// Runs what the arguments ask for. Returns whether all passed; `Err`: why nothing ran or was recorded.
fn started(words: &[&str]) -> Result<bool, Refused> {
    match words {
        ["list"] => {
            plan::full().for_each(|part| println!("{part}"));
            return Ok(true);
        }
        ["-h" | "--help", ..] => {
            print!("{}", usage());
            return Ok(true);
        }
        _ => {}
    }
    let gate = Gate::open();
    match words {
        [] => Ok(gate.everything()),
        ["test", rest @ ..] => one_test(gate, rest),
        ["changed", rest @ ..] => {
            let (revision, parts) = changed::since(rest.first().copied());
            println!("since {revision}: {}", parts.join(" "));
            gate.prepare_servers();
            Ok(gate.some(&parts))
        }
        ["soak", rest @ ..] => soak::run(gate, rest),
        ["sabotage", rest @ ..] if !rest.is_empty() => {
            gate.prepare_servers();
            Ok(gate.alone("sabotage", |job| parts::sabotage(job, rest)))
        }
        ["quick"] => Ok(gate.some(plan::QUICK)),
        parts => {
            if let Some(unknown) = parts.iter().find(|part| !plan::is_part(part)) {
                return Err(format!("no part {unknown}"));
            }
            gate.prepare_servers();
            Ok(gate.some(parts))
        }
    }
}

/// The help text, which is the first comment of `./check`.
fn usage() -> String {
    let script = std::fs::read_to_string("check").unwrap_or_default();
    let comment = script.lines().skip(1).take_while(|line| !line.is_empty());
    comment
        .map(|line| line.trim_start_matches('#'))
        .map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line)))
        .collect()
}

/// `./check test`: runs in each test program the tests whose names contain the pattern.
fn one_test(gate: &Gate, words: &[&str]) -> Result<bool, Refused> {
    let (mut pattern, mut store, mut times, mut load) = ("", "", "1", "0");
    let mut words = words.iter().copied();
    while let Some(word) = words.next() {
        let option = match word {
            "--store" => &mut store,
            "--times" => &mut times,
            "--load" => &mut load,
            _ if word.starts_with('-') => return Err(format!("no option {word}")),
            _ => {
                pattern = word;
                continue;
            }
        };
        *option = words.next().ok_or_else(|| format!("{word} wants a value"))?;
    }
    if pattern.is_empty() {
        return Err("./check test PATTERN".to_owned());
    }
    gate.prepare_servers();
    Ok(gate.alone("test", |job| {
        let Some(programs) = suites::built(job) else { return false };
        let (mut good, mut found) = (true, 0);
        for program in programs.iter().filter(|program| program.kind != "example") {
            let names = suites::names(job, program);
            let names: Vec<&str> = output::named(&names, pattern, store).collect();
            if names.is_empty() {
                continue;
            }
            found += names.len();
            let threads = gate.threads.to_string();
            let repeat = job::Run::new("scripts/repeat.sh")
                .args(["--times", times, "--load", load, "--threads", &threads, &program.path])
                .args(names)
                .without_limit();
            good &= job.run(&repeat.of_a_test()).good;
        }
        if found == 0 {
            let of = if store.is_empty() { String::new() } else { format!(", of store {store}") };
            job.say(&format!("FAILED: no test is named so: {pattern}{of}"));
        }
        good && found > 0
    }))
}
