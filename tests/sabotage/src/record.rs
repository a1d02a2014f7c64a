//! Keeps the verdicts between runs. A mutation whose text or suite changed loses its verdict.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use crate::Result;
use crate::list::Mutation;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Caught,
    Survived,
    /// The suite passed without reaching the broken place.
    NotReached,
}

pub struct Record {
    path: PathBuf,
    commit: String,
    verdicts: Mutex<BTreeMap<u64, (Verdict, String)>>,
}

fn key(one: &Mutation) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&one.file, &one.place, &one.new, &one.suite.program, &one.suite.tests).hash(&mut hasher);
    hasher.finish()
}

pub fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).current_dir(crate::root()).output();
    output.map_or_else(|_| String::new(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

impl Record {
    pub fn open(path: &Path) -> Result<Record> {
        let mut verdicts = BTreeMap::new();
        for line in fs::read_to_string(path).unwrap_or_default().lines() {
            let mut fields = line.split('\t');
            let verdict = |word: &str| match word {
                "Caught" => Verdict::Caught,
                "Survived" => Verdict::Survived,
                _ => Verdict::NotReached,
            };
            if let (Some(Ok(key)), Some(word), Some(commit)) =
                (fields.next().map(str::parse), fields.next(), fields.next())
            {
                verdicts.insert(key, (verdict(word), commit.to_owned()));
            }
        }
        let commit = said("git", &["rev-parse", "--short=7", "HEAD"]);
        Ok(Record { path: path.to_owned(), commit, verdicts: Mutex::new(verdicts) })
    }

    pub fn verdict(&self, one: &Mutation) -> Option<Verdict> {
        self.verdicts.lock().expect("nobody panics with it").get(&key(one)).map(|(verdict, _)| *verdict)
    }

    pub fn commit(&self, one: &Mutation) -> Option<String> {
        self.verdicts.lock().expect("nobody panics with it").get(&key(one)).map(|(_, commit)| commit.clone())
    }

    pub fn note(&self, one: &Mutation, verdict: Verdict) -> Result<()> {
        let mut verdicts = self.verdicts.lock().expect("nobody panics with it");
        verdicts.insert(key(one), (verdict, self.commit.clone()));
        let lines: Vec<String> = verdicts
            .iter()
            .map(|(key, (verdict, commit))| format!("{key}\t{verdict:?}\t{commit}\n"))
            .collect();
        fs::write(&self.path, lines.concat()).map_err(|error| format!("{}: {error}", self.path.display()))
    }
}
