//! The list of mutations, as it is written in `mutations/*.txt`.
//!
//! `# PATH` names the file of the following mutations. A mutation is a paragraph: a description; `suite:`,
//! with the test program (`lib` and `program` are the unit tests) and its tests, by names or parts of names;
//! lines with `-`, a text that the file has exactly once; lines with `+`, its replacement. Of a first text
//! with `«` and `»` only the part between is replaced. In Rust that is an expression, or statements that end
//! with a semicolon or a brace. A line `equivalent:` says why no test can tell the two apart; then there is
//! no suite.

use std::fs;
use std::path::Path;

use crate::Result;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Suite {
    pub program: String,
    pub tests: Vec<String>,
}

#[derive(Debug, Clone, Default)]
pub struct Mutation {
    pub number: usize,
    pub file: String,
    pub what: String,
    pub suite: Suite,
    pub place: String,
    pub old: String,
    pub new: String,
    pub equivalent: Option<String>,
}

impl Mutation {
    pub fn is_meant_by(&self, pattern: &str) -> bool {
        match pattern.parse::<usize>() {
            Ok(number) => self.number == number,
            Err(_not_a_number) => self.file.contains(pattern) || self.what.contains(pattern),
        }
    }

    /// The text that the file has exactly once.
    pub fn found_by(&self) -> String {
        self.place.replace(['«', '»'], "")
    }

    /// That text with a replacement for the old text.
    pub fn replaced_by(&self, text: &str) -> String {
        match self.place.split_once('«').zip(self.place.split_once('»')) {
            Some(((before, _), (_, behind))) => [before, text, behind].concat(),
            None => text.to_owned(),
        }
    }

    pub fn is_rust(&self) -> bool {
        self.file.ends_with(".rs")
    }
}

impl std::fmt::Display for Suite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.program, self.tests.join(" "))
    }
}

pub fn read(folder: &Path) -> Result<Vec<Mutation>> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    let mut all = Vec::new();
    for path in files.iter().filter(|path| path.extension().is_some_and(|ending| ending == "txt")) {
        let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut file = String::new();
        for paragraph in text.split("\n\n").map(|paragraph| paragraph.trim_matches('\n')) {
            if let Some(named) = paragraph.strip_prefix("# ") {
                file = named.trim().to_owned();
            } else if !paragraph.is_empty() {
                let mut mutation =
                    mutation(paragraph).map_err(|what| format!("{}: {what}", path.display()))?;
                mutation.file.clone_from(&file);
                mutation.number = all.len() + 1;
                all.push(mutation);
            }
        }
    }
    Ok(all)
}

fn mutation(paragraph: &str) -> Result<Mutation> {
    let mut one = Mutation::default();
    let (mut old, mut new) = (Vec::new(), Vec::new());
    for line in paragraph.lines() {
        if let Some(suite) = line.strip_prefix("suite: ") {
            let mut words = suite.split_whitespace().map(str::to_owned);
            one.suite = Suite { program: words.next().unwrap_or_default(), tests: words.collect() };
        } else if let Some(why) = line.strip_prefix("equivalent: ") {
            one.equivalent = Some(why.to_owned());
        } else if let Some(line) = line.strip_prefix('-') {
            old.push(line.strip_prefix(' ').unwrap_or(line));
        } else if let Some(line) = line.strip_prefix('+') {
            new.push(line.strip_prefix(' ').unwrap_or(line));
        } else {
            if !one.what.is_empty() {
                one.what.push(' ');
            }
            one.what.push_str(line);
        }
    }
    (one.place, one.new) = (old.join("\n"), new.join("\n"));
    let marked = one.place.split_once('«').and_then(|(_, rest)| rest.split_once('»'));
    one.old = marked.map_or_else(|| one.place.clone(), |(within, _)| within.to_owned());
    let has_one_end = one.suite.tests.is_empty() == one.equivalent.is_some();
    if one.what.is_empty() || one.old.is_empty() || one.old == one.new || !has_one_end {
        return Err(format!("a mutation lacks something: {paragraph}"));
    }
    Ok(one)
}
