//! `./check soak`: runs the parts `plan::SOAK` in turn until the time is over; a line each in `soak.tsv`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::process::Command;

use crate::gate::{Gate, now};
use crate::{Refused, plan, suites};

/// The soak's settings, unless the environment has others.
const MORE: &[(&str, &str)] = &[
    ("LEASEHOLD_ROUNDS", "20"),
    ("LEASEHOLD_SCHEDULES", "50000"),
    ("LEASEHOLD_CASES", "1000000"),
    ("LEASEHOLD_HISTORY_SECONDS", "300"),
    ("LEASEHOLD_CLI_ROUNDS", "200"),
    ("LEASEHOLD_FLEET_SECONDS", "60"),
    ("LEASEHOLD_KEEP_SECONDS", "600"),
    ("LEASEHOLD_CLI_LOCKS", "100000"),
    ("LEASEHOLD_COUNT", "10000"),
    ("LEASEHOLD_LIMIT", "7200"),
];

#[derive(Debug, PartialEq)]
struct Round {
    commit: String,
    number: usize,
    part: String,
    seconds: u64,
    verdict: String,
}

impl Round {
    fn line(&self) -> String {
        format!("{}\t{}\t{}\t{}\t{}", self.commit, self.number, self.part, self.seconds, self.verdict)
    }

    fn read(line: &str) -> Option<Round> {
        let mut fields = line.split('\t');
        Some(Round {
            commit: fields.next()?.to_owned(),
            number: fields.next()?.parse().ok()?,
            part: fields.next()?.to_owned(),
            seconds: fields.next()?.parse().ok()?,
            verdict: fields.next()?.to_owned(),
        })
    }

    fn failed(&self) -> bool {
        self.verdict != "ok"
    }
}

fn told(program: &str, arguments: &[&str]) -> Option<String> {
    let output =
        Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

pub fn run(gate: &Gate, words: &[&str]) -> Result<bool, Refused> {
    let (mut minutes, mut resumes, mut parts) = (60, false, Vec::new());
    let mut words = words.iter().copied();
    while let Some(word) = words.next() {
        match word {
            "--minutes" => {
                let number = words.next().and_then(|number| number.parse::<u64>().ok());
                minutes = number.ok_or("--minutes wants a number")?;
            }
            "--resume" => resumes = true,
            _ if word.starts_with('-') => return Err(format!("no option {word}")),
            part if plan::SOAK.contains(&part) => parts.push(part),
            part => return Err(format!("no part of the soak: {part}; there are {}", plan::SOAK.join(" "))),
        }
    }
    if parts.is_empty() {
        parts = plan::SOAK.to_vec();
    }
    let commit = told("git", &["rev-parse", "--short", "HEAD"]).unwrap_or_else(|| "none".to_owned());
    let record = gate.logs.join("soak.tsv");
    let before = if resumes { fs::read_to_string(&record).unwrap_or_default() } else { String::new() };
    fs::write(&record, &before).map_err(|error| format!("{}: {error}", record.display()))?;
    // With `--resume`, the time of an earlier soak of this commit counts towards the minutes.
    let mut rounds: Vec<Round> =
        before.lines().filter_map(Round::read).filter(|round| round.commit == commit).collect();
    MORE.iter().for_each(|(name, more)| gate.set_default(name, more));
    gate.set("CARGO_PROFILE_MODEL_OPT_LEVEL", "1");
    gate.prepare_servers();
    if !gate.alone("programs", |job| suites::built(job).is_some()) {
        return Ok(false);
    }
    while rounds.iter().map(|round| round.seconds).sum::<u64>() < minutes * 60 {
        let number = rounds.len();
        let part = parts.iter().cycle().nth(number % parts.len()).copied().unwrap_or_default();
        let begun = now();
        let good = gate.one(part);
        if !good {
            let kept = gate.logs.join(format!("soak-{number}-{part}.log"));
            fs::copy(gate.logs.join(format!("{part}.log")), kept).ok(); // the record has the failure anyway
        }
        let verdict = if good { "ok" } else { "FAILED" }.to_owned();
        let seconds = begun.elapsed().as_secs();
        let round = Round { commit: commit.clone(), number, part: part.to_owned(), seconds, verdict };
        let written = OpenOptions::new()
            .append(true)
            .open(&record)
            .and_then(|mut file| writeln!(file, "{}", round.line()));
        written.map_err(|error| format!("{}: {error}", record.display()))?;
        rounds.push(round);
    }
    println!("\n=== soak of {commit}: commit, round, part, seconds, verdict ({})", record.display());
    rounds.iter().for_each(|round| println!("{}", round.line()));
    let failed = rounds.iter().filter(|round| round.failed()).count();
    let spent = rounds.iter().map(|round| round.seconds).sum::<u64>() / 60;
    println!("{} rounds in {spent} min, {failed} failed", rounds.len());
    if std::env::var_os("LEASEHOLD_BLESS").is_some_and(|value| !value.is_empty()) {
        let day = told("date", &["+%F"]).unwrap_or_default();
        fs::write("docs/figures/soak.md", page(&rounds, &day))
            .map_err(|error| format!("docs/figures/soak.md: {error}"))?;
    }
    Ok(failed == 0)
}

fn page(rounds: &[Round], day: &str) -> String {
    let mut page = String::from(
        "# The last soak\n\nWritten by `LEASEHOLD_BLESS=1 ./check soak`. The page on [what was checked](../proof.md) says what \
         it shows.\n\n| Part | Date | Commit | Rounds | Time | Failed |\n|---|---|---|---|---|---|\n",
    );
    let mut parts: BTreeMap<&str, Vec<&Round>> = BTreeMap::new();
    rounds.iter().for_each(|round| parts.entry(&round.part).or_default().push(round));
    for (part, rounds) in parts {
        let commit = rounds.first().map(|round| round.commit.as_str()).unwrap_or_default();
        let minutes = (rounds.iter().map(|round| round.seconds).sum::<u64>() + 30) / 60;
        let failed = rounds.iter().filter(|round| round.failed()).count();
        let line =
            writeln!(page, "| `{part}` | {day} | {commit} | {} | {minutes} min | {failed} |", rounds.len());
        line.expect("a text takes what is written");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(part: &str, seconds: u64, verdict: &str) -> Round {
        let (commit, verdict) = ("abc".to_owned(), verdict.to_owned());
        Round { commit, number: 7, part: part.to_owned(), seconds, verdict }
    }

    #[test]
    fn the_record_of_a_soak_round_is_read_back_unchanged() {
        let one = round("faults", 61, "ok");
        assert_eq!(one.line(), "abc\t7\tfaults\t61\tok");
        assert_eq!(Round::read(&one.line()), Some(one));
        assert_eq!(Round::read("abc\t7\tfaults"), None, "of a soak that was ended");
    }

    #[test]
    fn the_soak_page_has_one_row_for_each_part() {
        let rounds = [round("model", 100, "ok"), round("faults", 29, "FAILED"), round("model", 50, "ok")];
        let page = page(&rounds, "2026-01-02");
        let lines: Vec<_> = page.lines().filter(|line| line.starts_with("| `")).collect();
        assert_eq!(
            lines,
            [
                "| `faults` | 2026-01-02 | abc | 1 | 0 min | 1 |",
                "| `model` | 2026-01-02 | abc | 2 | 3 min | 0 |"
            ]
        );
    }
}
