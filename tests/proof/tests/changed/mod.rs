//! Changes of scripts, one a paragraph. The first line is the head: words separated by ` | `, whose meaning
//! each test defines. Lines that begin with `- ` are a script's text; lines that begin with `+ ` replace it.

#![allow(dead_code, reason = "each test uses another part of this")]

use leasehold_proof::kinds::Kind;

pub struct Change {
    head: &'static str,
    pub from: String,
    pub to: String,
}

impl Change {
    pub fn all(text: &'static str) -> impl Iterator<Item = Change> {
        text.trim().split("\n\n").map(|paragraph| {
            let behind = |sign: &str| {
                let lines = paragraph.lines().skip(1).filter_map(|line| line.strip_prefix(sign));
                lines.collect::<Vec<_>>().join("\n")
            };
            let head = paragraph.lines().next().unwrap_or_default();
            Change { head, from: behind("- "), to: behind("+ ") }
        })
    }

    /// The first `N` words of the head. Words that the head lacks are empty.
    pub fn head<const N: usize>(&self) -> [&'static str; N] {
        let mut words = self.head.split(" | ");
        [(); N].map(|()| words.next().unwrap_or_default())
    }

    /// The `text` of the file `name`. If this is the file `changed`, the change is made.
    pub fn made(&self, changed: &str, name: &str, text: String) -> String {
        if name != changed {
            return text;
        }
        assert!(text.contains(&self.from), "{changed} has no {:?}", self.from);
        text.replacen(&self.from, &self.to, 1)
    }
}

pub fn kind_named(name: &str) -> Kind {
    let kinds = [Kind::Plain, Kind::Fenced, Kind::Fair, Kind::ReadWrite, Kind::Semaphore(1)];
    kinds.into_iter().find(|kind| format!("{kind:?}") == name).expect("a kind of lock")
}
