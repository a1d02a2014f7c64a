//! The list of `./check sabotage`, which the gate does not run: each mutation, and each switch, has its place
//! in the sources.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::docs::{files, read};

#[path = "../sabotage/src/hooks.rs"]
mod hooks;

/// The reasons why mutations cannot be made. Those of a Rust file are all in one copy, each behind a switch,
/// the longest first: a shorter one may lie within it, but not across its border.
fn misplaced(list: &str, mut source: impl FnMut(&str) -> String) -> Vec<String> {
    let (mut file, mut text, mut misplaced) = (String::new(), String::new(), Vec::new());
    let mut of_files: BTreeMap<String, (String, Vec<(String, String)>)> = BTreeMap::new();
    for paragraph in list.split("\n\n").map(|paragraph| paragraph.trim_matches('\n')) {
        if let Some(named) = paragraph.strip_prefix("# ") {
            file = named.trim().to_owned();
            text = source(&file);
            continue;
        }
        let old = paragraph.lines().filter_map(|line| line.strip_prefix('-'));
        let old: Vec<_> = old.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
        let old = old.join("\n");
        let place = old.replace(['«', '»'], "");
        let times = if place.is_empty() { 0 } else { text.matches(&place).count() };
        if paragraph.is_empty() {
            continue;
        }
        let what = paragraph.lines().next().unwrap_or_default();
        if times != 1 {
            misplaced.push(format!("{file}: \"{what}\": its text is there {times} times"));
        } else if file.ends_with(".rs") {
            let new =
                paragraph.lines().filter_map(|line| line.strip_prefix('+')).collect::<Vec<_>>().join("\n");
            if !can_be_switched(&old, new.trim_start()) {
                misplaced.push(format!("{file}: \"{what}\": neither an expression nor a statement"));
            }
            let (_, mutations) = of_files.entry(file.clone()).or_insert_with(|| (text.clone(), Vec::new()));
            mutations.push((what.to_owned(), old));
        }
    }
    for (file, (mut text, mut mutations)) in of_files {
        let inner = |old: &str| {
            old.split_once('«').and_then(|(_, rest)| rest.split_once('»')).map(|(inner, _)| inner.len())
        };
        mutations.sort_by_key(|(_, old)| std::cmp::Reverse(inner(old).unwrap_or(old.len())));
        for (what, old) in mutations {
            let place = old.replace(['«', '»'], "");
            if text.matches(&place).count() != 1 {
                misplaced.push(format!("{file}: \"{what}\" overlaps with another"));
            }
            let switched = match old.split_once('«') {
                Some(_) => old.replace('«', "(switched ").replace('»', ")"),
                None => format!("(switched {old})"),
            };
            text = text.replacen(&place, &switched, 1);
        }
    }
    misplaced
}

/// Whether both texts can stand behind `if`, as far as that can be seen.
fn can_be_switched(old: &str, new: &str) -> bool {
    let (before, inner) = match old.split_once('«') {
        Some((before, rest)) => (before, rest.split_once('»').map_or("", |(inner, _)| inner)),
        None => ("", old),
    };
    let is_balanced = |text: &str| {
        let count = |one| text.matches(one).count();
        [('(', ')'), ('[', ']'), ('{', '}')].iter().all(|(open, close)| count(*open) == count(*close))
    };
    let begins = |text: &str| [".", "&&", "||", "?"].iter().any(|operator| text.starts_with(operator));
    let is_statement = inner.ends_with([';', '}']);
    [inner, new].iter().all(|text| !begins(text) && is_balanced(text))
        && (is_statement || !inner.is_empty() && !new.is_empty() && !new.starts_with("let "))
        && !before.ends_with('.')
}

#[test]
fn each_mutation_has_one_place_in_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut lists = 0;
    for entry in fs::read_dir(root.join("tests/sabotage/mutations")).unwrap() {
        let list = fs::read_to_string(entry.unwrap().path()).unwrap();
        let source = |file: &str| fs::read_to_string(root.join(file)).unwrap_or_default();
        assert_eq!(misplaced(&list, source), Vec::<String>::new());
        lists += 1;
    }
    assert!(lists > 0, "there are no lists");
}

/// If one of these places is missing, the copy cannot be made.
#[test]
fn each_switch_has_one_place_in_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (file, old, _) in hooks::HOOKS {
        let text = fs::read_to_string(root.join(file)).unwrap();
        assert_eq!(text.matches(old).count(), 1, "{file}: {old}");
    }
}

#[test]
fn a_misplaced_mutation_is_reported() {
    let sources = BTreeMap::from([("a.rs", "one two two"), ("b.rs", "let x =\n    one;")]);
    let list = "# a.rs\n\nOne\nsuite: lib a\n- one\n+ 1\n\nTwo\nsuite: lib a\n- two\n+ 2\n\n\
        Three\nsuite: lib a\n- three\n+ 3\n\n# b.rs\n\nIts one\nsuite: lib b\n- let x =\n-     «one»;\n+ 1\n";
    let said = misplaced(list, |file| sources[file].to_owned());
    assert_eq!(
        said,
        ["a.rs: \"Two\": its text is there 2 times", "a.rs: \"Three\": its text is there 0 times"]
    );
}

/// Whether each part of a test's path begins a word of these sources: a module, a test, or an item of a
/// macro's list.
fn has(sources: &str, filter: &str) -> bool {
    let is_begun = |(at, _): (usize, &str)| {
        !sources[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_')
    };
    filter.split("::").all(|name| name.is_empty() || sources.match_indices(name).any(is_begun))
}

/// A filter that names a renamed test would run no test and catch nothing.
#[test]
fn each_filter_of_a_suite_names_a_test() {
    let lists = ["engine", "locks", "scripts", "stores", "topologies"];
    let lists = lists.map(|list| read(format!("tests/sabotage/mutations/{list}.txt"))).concat();
    let of_mutations = lists.lines().filter_map(|line| line.strip_prefix("suite: ")?.split_once(' '));
    let gate = read("xtask/src/suites.rs");
    let of_gate = gate.split(" suite(").skip(1).filter_map(|suite| {
        let quoted: Vec<&str> = suite.split('"').collect();
        Some((*quoted.get(3)?, *quoted.get(5)?))
    });
    let mut programs = BTreeMap::new();
    let mut stale = BTreeSet::new();
    for (program, filters) in of_mutations.chain(of_gate).filter(|(program, _)| !program.contains(':')) {
        let root = match program {
            "lib" => "src".to_owned(),
            "program" => "cli/src".to_owned(),
            "cli" | "anywhere" => format!("cli/tests/{program}"),
            other => format!("tests/{other}"),
        };
        let sources = &*programs
            .entry(program)
            .or_insert_with(|| files(&root, "rs").iter().map(read).collect::<String>());
        let filters =
            filters.split_whitespace().map(|filter| filter.strip_prefix("--skip=").unwrap_or(filter));
        stale.extend(
            filters.filter(|filter| !has(sources, filter)).map(|filter| format!("{program} {filter}")),
        );
    }
    assert_eq!(stale, BTreeSet::new(), "no test of the program begins so");
}
