//! Reads the mutations from `mutations/*.txt`.
//!
//! A line `# PATH` names the file that the following mutations change. Each mutation is a paragraph of these lines:
//!
//! - a description;
//! - `suite:` with a test program (`lib` and `program` are unit tests) and names, or parts of names, of its tests,
//!   where `*` stands for any text; or `equivalent:` with the reason why no test can tell the two texts apart;
//! - lines with `-`: a text that the file contains exactly once. If it has `«` and `»`, only the part between them is
//!   replaced. In Rust that part is an expression, or statements that end with a semicolon or a brace;
//! - lines with `+`: the replacement.

use std::fs;
use std::path::Path;

use super::Result;

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

    /// The text by which the mutation's place is found, without « and ». The file contains it exactly once.
    pub fn found_by(&self) -> String {
        self.place.replace(['«', '»'], "")
    }

    /// The text of `found_by`, with `text` in place of the part that the mutation replaces.
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

impl Suite {
    /// The tests in the program's list (`NAME: test`). Fails for a pattern that names no test: a test may
    /// have another name by now.
    pub fn chosen<'a>(&self, list: &'a str) -> Result<Vec<&'a str>> {
        let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
        let is_meant = |name: &str, pattern: &str| {
            let mut rest = Some(name);
            pattern.split('*').for_each(|part| {
                rest = rest.and_then(|rest| rest.split_once(part)).map(|(_, rest)| rest);
            });
            rest.is_some()
        };
        let mut chosen = Vec::new();
        for pattern in &self.tests {
            let before = chosen.len();
            chosen.extend(names.clone().filter(|name| is_meant(name, pattern)));
            if chosen.len() == before {
                return Err(format!("there is no such test: {} {pattern}", self.program));
            }
        }
        Ok(chosen)
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
