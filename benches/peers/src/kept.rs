//! Finished runs in a file of JSON lines, so that an interrupted benchmark can be resumed. The first line
//! identifies what is measured.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::rounds::Run;

/// Finished runs with the same commit, settings and machine.
#[derive(Default)]
pub struct Kept {
    file: Option<File>,
    runs: Vec<Run>,
}

impl Kept {
    /// Begins the file anew; with `resume` keeps its runs if its first line equals `measured`.
    pub fn open(path: &Path, measured: &impl Serialize, resume: bool) -> Result<Kept> {
        let first = serde_json::to_string(measured)?;
        let mut runs = Vec::new();
        if resume {
            let text = fs::read_to_string(path).unwrap_or_default();
            match text.split_once('\n') {
                // Reading ends at a line that an interrupted benchmark left incomplete.
                Some((found, rest)) if found == first => {
                    runs.extend(rest.lines().map_while(|line| serde_json::from_str::<Run>(line).ok()));
                }
                Some((found, _)) => {
                    eprintln!("begins anew: the runs that were kept are of\n  {found}\nnot of\n  {first}");
                }
                None => eprintln!("begins anew: no runs were kept"),
            }
        }
        let mut file = File::create(path).with_context(|| path.display().to_string())?;
        writeln!(file, "{first}")?;
        let mut kept = Kept { file: Some(file), runs: Vec::new() };
        for run in runs {
            kept.add(&run)?;
            kept.runs.push(run);
        }
        Ok(kept)
    }

    /// The finished run; `None` if the run must be made: it is missing, or the machine was not quiet.
    pub fn find(&self, workload: &str, peer: &str, round: usize) -> Option<Run> {
        let same = |run: &&Run| run.workload == workload && run.peer == peer && run.round == round;
        self.runs.iter().rev().find(same).filter(|run| !run.is_disturbed()).cloned()
    }

    pub fn add(&mut self, run: &Run) -> Result<()> {
        if let Some(file) = &mut self.file {
            writeln!(file, "{}", serde_json::to_string(run)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::Kept;
    use crate::quiet::Disturbance;
    use crate::rounds::{Metrics, Run};

    fn run(round: usize, others: f64) -> Run {
        Run {
            workload: "one".into(),
            peer: "raw".into(),
            round,
            metrics: Metrics::from([("cycles_per_s".into(), 0.1 + 0.2)]),
            version: String::new(),
            note: None,
            disturbance: Some(Disturbance { others, steal: 0.0 }),
        }
    }

    #[test]
    fn finished_runs_are_reused_only_under_the_same_settings() {
        let path = std::env::temp_dir().join(format!("leasehold-kept-{}", std::process::id()));
        let mut kept = Kept::open(&path, &"commit 1", false).unwrap();
        for run in [run(1, 0.0), run(2, 0.0), run(3, 0.5)] {
            kept.add(&run).unwrap();
        }
        drop(kept);
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"workload\":\"o").unwrap();

        for _ in 0..2 {
            let kept = Kept::open(&path, &"commit 1", true).unwrap();
            assert_eq!(kept.find("one", "raw", 1).map(|run| run.metrics), Some(run(1, 0.0).metrics));
            assert!(kept.find("one", "raw", 2).is_some());
            assert!(kept.find("one", "raw", 3).is_none(), "the machine was not quiet");
            assert!(kept.find("one", "raw", 4).is_none());
        }
        assert!(Kept::open(&path, &"commit 2", true).unwrap().find("one", "raw", 1).is_none());
        assert!(Kept::open(&path, &"commit 1", false).unwrap().find("one", "raw", 1).is_none());
        fs::remove_file(path).unwrap();
    }
}
