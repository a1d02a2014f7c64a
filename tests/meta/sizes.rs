//! The tree grows only on purpose: lines and words of each part of the tree have limits in `limits.txt`,
//! which people edit by hand. A commit that raises a limit says what the lines are for.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::docs::{files, read};

/// A limit of a hundred or more may exceed the count by at most this many percent, so that deleted lines do
/// not grow back without notice.
const ROOM_TO_GROW: usize = 10;

#[test]
fn no_folder_exceeds_its_size_limit() {
    let limits = limits(include_str!("limits.txt"));
    let counts = counts();
    let wrong = beyond(&limits, &counts);
    assert!(wrong.is_empty(), "{}\n(tests/meta/limits.txt)", wrong.join("\n"));
}

#[test]
fn a_decision_has_at_most_250_words() {
    let records = texts("docs/decisions", &["md"]).filter(|(path, _)| !path.ends_with("README.md"));
    let long = records.filter(|(_, text)| text.split_whitespace().count() > 250).map(|(path, _)| path);
    assert_eq!(long.collect::<Vec<_>>(), Vec::<PathBuf>::new());
}

#[test]
fn a_folder_over_its_limit_or_without_one_is_reported() {
    let limits = limits("# why\nsrc/engine 100\ntests 500\ngone 1\n");
    let counts = [("src/engine", 101), ("tests", 450), ("cli", 7)]
        .map(|(room, count)| (room.to_owned(), count))
        .into();
    assert_eq!(
        beyond(&limits, &counts),
        [
            "cli has 7 and no limit",
            "gone has a limit and is not there",
            "src/engine has 101, allowed are 100",
            "tests has 450: lower its limit of 500"
        ]
    );
}

#[test]
fn the_size_limits_count_comments_and_unit_tests_separately() {
    let text = "//! What.\nuse a::B;\n\n/// Does.\nfn f() {} // why\n#[cfg(all(test, not(x)))]\nmod tests {\n    // one\n}\n";
    assert_eq!(Lines::of(text, false), Lines { code: 2, comments: 2, tests: 4 });
    assert_eq!(Lines::of(text, true), Lines { code: 0, comments: 0, tests: 8 });
}

fn limits(text: &str) -> BTreeMap<String, usize> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let (room, limit) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no limit in {line:?}"));
            (room.trim_end().to_owned(), limit.parse().unwrap_or_else(|_| panic!("no number in {line:?}")))
        })
        .collect()
}

fn beyond(limits: &BTreeMap<String, usize>, counts: &BTreeMap<String, usize>) -> Vec<String> {
    let rooms = limits.keys().chain(counts.keys()).collect::<std::collections::BTreeSet<_>>();
    let judge = |room: &String| match (limits.get(room), counts.get(room)) {
        (None, Some(count)) => Some(format!("{room} has {count} and no limit")),
        (Some(_), None) => Some(format!("{room} has a limit and is not there")),
        (Some(limit), Some(count)) if count > limit => {
            Some(format!("{room} has {count}, allowed are {limit}"))
        }
        (Some(limit), Some(count)) if *limit >= 100 && count * (100 + ROOM_TO_GROW) < limit * 100 => {
            Some(format!("{room} has {count}: lower its limit of {limit}"))
        }
        _ => None,
    };
    rooms.into_iter().filter_map(judge).collect()
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Lines {
    code: usize,
    comments: usize,
    tests: usize,
}

impl Lines {
    /// Counts lines. From the attribute of the test module to the file's end, all lines count as unit tests.
    fn of(text: &str, only_tests: bool) -> Lines {
        let (mut counted, mut in_tests) = (Lines::default(), only_tests);
        let mut lines = text.lines().map(str::trim).peekable();
        while let Some(line) = lines.next() {
            let for_tests = line.starts_with("#[cfg(") && line.contains("test");
            in_tests |=
                for_tests && lines.peek().is_some_and(|next| next.contains("mod ") && next.ends_with('{'));
            match line {
                "" => {}
                _ if in_tests => counted.tests += 1,
                _ if line.starts_with("//") => counted.comments += 1,
                _ => counted.code += 1,
            }
        }
        counted
    }
}

fn counts() -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let mut add = |room: &str, count: usize| *counts.entry(room.to_owned()).or_default() += count;
    for (path, text) in texts("src", &["rs"]) {
        let folders = path.iter().filter_map(|part| part.to_str()).collect::<Vec<_>>();
        let only_tests = folders
            .iter()
            .any(|part| ["tests", "tests.rs", "fake", "fake.rs", "model", "model.rs"].contains(part));
        let lines = Lines::of(&text, only_tests);
        let room = match folders.as_slice() {
            ["src", "stores", store, _, ..] => format!("src/stores/{store}"),
            ["src", folder, _, ..] => format!("src/{folder}"),
            _ => "src (other files)".to_owned(),
        };
        add(&format!("{room}, code"), lines.code);
        add("src, code", lines.code);
        add("src, comments", lines.comments);
        add("src, unit tests and models", lines.tests);
    }
    for folder in ["benches", "cli", "examples", "tests", "xtask"] {
        add(&format!("{folder}, lines"), texts(folder, &["rs"]).map(|(_, text)| text.lines().count()).sum());
    }
    add(
        "src, lines of scripts and statements",
        texts("src", &["lua", "sql"]).map(|(_, text)| text.lines().count()).sum(),
    );
    for (path, text) in texts("docs", &["md"]) {
        let room = match path.iter().nth(1).and_then(|part| part.to_str()) {
            Some("decisions") => "docs/decisions, words",
            Some("figures") => "docs/figures, words",
            _ => "docs, words of pages",
        };
        add(room, text.split_whitespace().count());
    }
    add("README.md, words", read("README.md").split_whitespace().count());
    counts
}

fn texts(folder: &str, ends: &[&str]) -> impl Iterator<Item = (PathBuf, String)> {
    ends.iter().flat_map(move |end| files(folder, end)).map(|path| (path.clone(), read(path)))
}
