//! `./check sabotage` makes a copy of the library with mutations (deliberate faults), and with *hooks*, which
//! switch the mutations on. The text of each mutation and each hook must stand at one place of the sources.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::docs::{files, read, root};
use list::Mutation;

#[path = "../sabotage/src/hooks.rs"]
mod hooks;

#[path = "../sabotage/src/list.rs"]
#[allow(dead_code, unreachable_pub, reason = "the program uses more of it, from outside")]
mod list;

type Result<T> = std::result::Result<T, String>;

/// The reasons why mutations cannot be made. One copy of a Rust file contains all its mutations, each behind
/// a switch. The longest is made first, because a shorter mutation may lie within a longer one, but not
/// across its border.
fn misplaced(mutations: &[Mutation], source: impl Fn(&str) -> String) -> Vec<String> {
    let (mut texts, mut misplaced) = (BTreeMap::new(), Vec::new());
    let mut sorted: Vec<&Mutation> = mutations.iter().collect();
    sorted.sort_by_key(|mutation| Reverse(mutation.old.len()));
    for mutation in sorted {
        let mut complain =
            |why: &str| misplaced.push(format!("{}: \"{}\" {why}", mutation.file, mutation.what));
        let (text, switched) = texts.entry(&mutation.file).or_insert_with(|| {
            let text = source(&mutation.file);
            (text.clone(), text)
        });
        let place = mutation.found_by();
        let times = text.matches(&place).count();
        if times != 1 {
            complain(&format!("is there {times} times"));
        } else if mutation.is_rust() {
            if !can_be_switched(mutation) {
                complain("is neither an expression nor a statement");
            }
            if switched.matches(&place).count() != 1 {
                complain("overlaps with another");
            }
            let switch = mutation.replaced_by(&format!("(switched {})", mutation.old));
            *switched = switched.replacen(&place, &switch, 1);
        }
    }
    misplaced
}

/// Whether, as far as the text shows, the old and the new text can stand in the branches of an `if`.
fn can_be_switched(mutation: &Mutation) -> bool {
    let before = mutation.place.split_once('«').map_or("", |(before, _)| before);
    let (inner, new) = (&*mutation.old, mutation.new.trim_start());
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
    let mutations = list::read(&root().join("tests/sabotage/mutations")).unwrap();
    assert!(mutations.len() > 100, "there are only {} mutations", mutations.len());
    assert_eq!(misplaced(&mutations, |file| read(file)), Vec::<String>::new());
}

/// If one of these places is missing, `./check sabotage` cannot make its copy of the library.
#[test]
fn each_sabotage_hook_replaces_exactly_one_source_place() {
    for (file, old, _) in hooks::HOOKS {
        assert_eq!(read(file).matches(old).count(), 1, "{file}: {old}");
    }
}

#[test]
fn a_misplaced_mutation_is_reported() {
    let sources = BTreeMap::from([("a.rs", "one two two"), ("b.rs", "let x =\n    one;")]);
    let list = "# a.rs\n\nOne\nsuite: lib a\n- one\n+ 1\n\nTwo\nsuite: lib a\n- two\n+ 2\n\n\
        Three\nsuite: lib a\n- three\n+ 3\n\n# b.rs\n\nIts one\nsuite: lib b\n- let x =\n-     «one»;\n+ 1\n";
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("sample.txt"), list).unwrap();
    let said = misplaced(&list::read(folder.path()).unwrap(), |file| sources[file].to_owned());
    assert_eq!(said, ["a.rs: \"Three\" is there 0 times", "a.rs: \"Two\" is there 2 times"]);
}

#[test]
fn a_suite_with_one_unknown_test_is_refused() {
    let chosen = |tests: &str| {
        let tests = tests.split(' ').map(str::to_owned).collect();
        let suite = list::Suite { program: "contract".to_owned(), tests };
        suite
            .chosen("rw::a::memory: test\nrw::a::redis: test\ntoken::b::memory: test\n")
            .map(|tests| tests.join(" "))
    };
    assert_eq!(chosen("rw::*::memory token::").unwrap(), "rw::a::memory token::b::memory");
    assert_eq!(chosen("token:: rw::memory").unwrap_err(), "there is no such test: contract rw::memory");
}

/// Whether each part of a test's path is the beginning of a word in these sources: a module, a test, or an
/// item in a macro's list.
fn has(sources: &str, filter: &str) -> bool {
    let is_begun = |(at, _): (usize, &str)| {
        !sources[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_')
    };
    filter.split([':', '*']).all(|name| name.is_empty() || sources.match_indices(name).any(is_begun))
}

/// A filter with a test's former name would run no test, and so catch no mutation.
#[test]
fn each_test_filter_of_suites_and_mutations_matches_a_test() {
    let mutations = list::read(&root().join("tests/sabotage/mutations")).unwrap();
    let suites = mutations.iter().filter(|one| one.equivalent.is_none()).map(|one| &one.suite);
    let of_mutations = suites.map(|suite| (&*suite.program, suite.tests.join(" ")));
    let gate = read("xtask/src/suites.rs");
    let of_gate = gate.split(" suite(").skip(1).filter_map(|suite| {
        let quoted: Vec<&str> = suite.split('"').collect();
        Some((*quoted.get(3)?, (*quoted.get(5)?).to_owned()))
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
    assert_eq!(stale, BTreeSet::new(), "no test of the program begins like this");
}
