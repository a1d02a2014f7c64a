//! The score of the mutations that were run, for `docs/figures/sabotage.md`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::Result;
use crate::list::Mutation;
use crate::record::{Record, Verdict, said};

const LEAST_SCORE: usize = 95;
const MOST_EQUIVALENT: usize = 15;

const HEAD: &str = "# Sabotage: the score\n\nWritten by `LEASEHOLD_BLESS=1 ./check sabotage`, with each mutation in \
    `target/figures/sabotage.md`. The page on [what was checked](../proof.md) says what it shows.\n\n";

/// Writes all verdicts, also earlier ones, to a file below `target`. With `LEASEHOLD_BLESS` writes the page;
/// else fails if all mutations were run and the score is too low, or too many are called equivalent.
pub fn write(root: &Path, mutations: &[Mutation], record: &Record) -> Result<()> {
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
    println!("{score}");
    let survived =
        |one: &&Mutation| matches!(record.verdict(one), Some(Verdict::Survived | Verdict::NotReached));
    let alive: Vec<String> = mutations.iter().filter(survived).map(|one| row(one, record)).collect();
    alive.iter().for_each(|row| println!("{row}"));
    let all: Vec<String> = mutations.iter().map(|one| row(one, record)).collect();
    let table = |rows: &[String]| {
        format!(
            "{HEAD}{score}\n\n| | File | What is broken | Suite | |\n|---|---|---|---|---|\n{}\n",
            rows.join("\n")
        )
    };
    let write = |file: &str, text: String| {
        let path = root.join(file);
        let folder = path.parent().unwrap_or(root);
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&path, text))
            .map_err(|error| format!("{}: {error}", path.display()))
    };
    write("target/figures/sabotage.md", table(&all))?;
    if std::env::var_os("LEASEHOLD_BLESS").is_some() {
        return write("docs/figures/sabotage.md", table(&alive));
    }
    if unrun > 0 {
        return Ok(());
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
