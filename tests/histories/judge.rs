//! The second checker: the program `judge/`, which uses Porcupine, a checker of linearizability.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::support::{run, shout};

#[derive(Debug, Deserialize)]
pub(crate) struct Verdict {
    pub(crate) operations: usize,
    pub(crate) illegal: BTreeSet<String>,
    /// The histories that the checker could not judge within its time.
    pub(crate) undecided: BTreeSet<String>,
}

/// The path of the program that `./check histories` builds; `None` if it was not built.
pub(crate) fn program() -> Option<PathBuf> {
    let program = std::env::var_os("LEASEHOLD_JUDGE").map(PathBuf::from);
    if program.is_none() {
        shout("LEFT OUT: Porcupine, which ./check histories builds");
    }
    program
}

pub(crate) fn judge(program: &Path, file: &Path) -> Verdict {
    let (_, text) = run(&[program, file], |command| command);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}
