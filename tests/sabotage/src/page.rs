//! The text of docs/figures/sabotage.md about the mutations that were run.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::Result;
use crate::list::Mutation;
use crate::record::{Record, Verdict, said};

const LEAST_SCORE: usize = 95;
const MOST_EQUIVALENT: usize = 15;

const HEAD: &str = "# Sabotage: each mutation\n\nWritten by `LEASEHOLD_BLESS=1 ./check sabotage`. The page on [what was \
    checked](../proof.md) says what it shows.\n\n";

/// The file has the score and the table; `LEASEHOLD_BLESS` writes it. A run of some adds to what earlier ones
/// have shown, and is compared with nothing.
pub fn write(path: &Path, mutations: &[Mutation], record: &Record) -> Result<()> {
    let count = |wanted: Verdict| mutations.iter().filter(|one| record.verdict(one) == Some(wanted)).count();
    let equivalent = mutations.iter().filter(|one| one.equivalent.is_some()).count();
    let judged = mutations.len() - equivalent;
    let caught = count(Verdict::Caught);
    let lived = count(Verdict::Survived) + count(Verdict::NotReached);
    let unrun = judged - caught - lived;
    let tenths = caught * 1000 / judged.max(1);
    let mut commits: BTreeMap<String, usize> = BTreeMap::new();
    mutations
        .iter()
        .filter_map(|one| record.commit(one))
        .for_each(|commit| *commits.entry(commit).or_default() += 1);
    let commits: Vec<String> = commits.iter().map(|(commit, count)| format!("{count} at {commit}")).collect();
    let score = format!(
        "{} mutations, of which {equivalent} are argued to be equivalent. Of the other {judged}, {caught} were caught ({}.{} %), {lived} \
         survived and {unrun} were not run. Run until {}: {}.",
        mutations.len(),
        tenths / 10,
        tenths % 10,
        said("date", &["+%F"]),
        commits.join(", "),
    );
    let alive = mutations
        .iter()
        .filter(|one| matches!(record.verdict(one), Some(Verdict::Survived | Verdict::NotReached)));
    let alive: Vec<String> = alive.map(|one| one.number.to_string()).collect();
    let score = if alive.is_empty() { score } else { format!("{score} Survivors: {}.", alive.join(", ")) };
    println!("{score}");
    let rows: Vec<String> = mutations.iter().map(|one| row(one, record)).collect();
    let table = format!("| | File | What is broken | Suite | |\n|---|---|---|---|---|\n{}", rows.join("\n"));
    for one in mutations
        .iter()
        .filter(|one| matches!(record.verdict(one), Some(Verdict::Survived | Verdict::NotReached)))
    {
        println!("survived: {} {}: {}", one.number, one.file, one.what);
    }
    let told = |error| format!("{}: {error}", path.display());
    if std::env::var_os("LEASEHOLD_BLESS").is_some() {
        return fs::write(path, format!("{HEAD}{score}\n\n{table}\n")).map_err(told);
    }
    if unrun > 0 {
        return Ok(());
    }
    // The score has the day of the run, and is not compared.
    if !fs::read_to_string(path).map_err(told)?.ends_with(&format!("\n\n{table}\n")) {
        let words = "does not say so: LEASEHOLD_BLESS=1 ./check sabotage --resume writes it";
        return Err(format!("{} {words}", path.display()));
    }
    if caught * 100 < judged * LEAST_SCORE || equivalent * 100 > mutations.len() * MOST_EQUIVALENT {
        return Err(format!(
            "the score is below {LEAST_SCORE} %, or more than {MOST_EQUIVALENT} % are called equivalent"
        ));
    }
    Ok(())
}

fn row(one: &Mutation, record: &Record) -> String {
    let (suite, verdict) = match (&one.equivalent, record.verdict(one)) {
        (Some(why), _) => (why.clone(), "equivalent"),
        (None, verdict) => {
            let verdict = match verdict {
                Some(Verdict::Caught) => "caught",
                Some(Verdict::Survived) => "**survived**",
                Some(Verdict::NotReached) => "**survived**, not reached",
                None => "not run",
            };
            (format!("`{}`", one.suite), verdict)
        }
    };
    let file = one.file.strip_prefix("src/").unwrap_or(&one.file);
    format!("| {} | {file} | {} | {suite} | {verdict} |", one.number, one.what)
}
