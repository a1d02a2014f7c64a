//! Parsers of other programs' output.

/// Whether at least one test program of this output ran a test, and passed. If another one failed, the
/// command's exit status shows that.
pub fn ran_a_test(output: &str) -> bool {
    output
        .lines()
        .filter_map(|line| line.strip_prefix("test result: ok. "))
        .any(|rest| rest.starts_with(|first: char| ('1'..='9').contains(&first)))
}

pub fn failed_tests(output: &str) -> Vec<&str> {
    let is_name = |name: &&str| {
        !name.is_empty()
            && name.chars().all(|one| one.is_ascii_lowercase() || one.is_ascii_digit() || "_:".contains(one))
    };
    let listed = output.lines().skip_while(|line| *line != "failures:");
    let mut failed: Vec<&str> = listed.filter_map(|line| line.strip_prefix("    ")).filter(is_name).collect();
    failed.sort_unstable();
    failed.dedup();
    failed
}

pub fn for_the_summary(output: &str) -> impl Iterator<Item = &str> {
    output.lines().filter(|line| line.starts_with("SKIPPED ") || line.starts_with("to run it alone: "))
}

pub fn skipped(output: &str) -> usize {
    output.lines().filter(|line| line.starts_with("SKIPPED ")).count()
}

/// The tests in a program's list (`NAME: test`).
pub fn listed(output: &str) -> impl Iterator<Item = &str> {
    output.lines().filter_map(|line| line.strip_suffix(": test"))
}

/// The tests whose names contain `pattern`, and whose path has the segment `store`, unless that is empty.
pub fn named<'a>(list: &'a str, pattern: &'a str, store: &'a str) -> impl Iterator<Item = &'a str> {
    listed(list)
        .filter(move |name| name.contains(pattern))
        .filter(move |name| store.is_empty() || name.split("::").any(|part| part == store))
}

/// The processor seconds in the output of bash's `times`: of the shell and its children, user and system.
pub fn processor_seconds(times: &str) -> f64 {
    let seconds = |word: &str| {
        let (minutes, seconds) = word.trim_end_matches('s').split_once('m')?;
        Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.replace(',', ".").parse::<f64>().ok()?)
    };
    times.split_whitespace().filter_map(seconds).sum()
}

pub fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    text.split_once(before)?.1.split_once(after).map(|(found, _)| found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: &str = "test a::b ... FAILED\n\nfailures:\n\n---- a::b stdout ----\n    left: 1\n\nfailures:\n    \
        a::b\n    c\n    a::b\n\ntest result: FAILED. 3 passed; 2 failed; 0 ignored\n";

    #[test]
    fn a_test_run_that_ran_no_test_fails() {
        assert!(ran_a_test("running 3 tests\ntest result: ok. 3 passed; 0 failed\n"));
        assert!(ran_a_test("test result: ok. 0 passed; 0 failed\ntest result: ok. 10 passed; 0 failed\n"));
        assert!(!ran_a_test("test result: ok. 0 passed; 0 failed; 9 filtered out\n"));
        assert!(!ran_a_test(FAILED));
        assert!(!ran_a_test(""));
    }

    #[test]
    fn each_failed_test_is_named_once() {
        assert_eq!(failed_tests(FAILED), ["a::b", "c"]);
        assert!(failed_tests("    a::b\ntest result: ok. 1 passed\n").is_empty(), "before any failure");
    }

    #[test]
    fn tests_are_chosen_by_name_and_store() {
        let list = "a::mysql::locks: test\na::mysql_settings::locks: test\nmysql::locks: test\nlocks::redis::mysql: test\n4 tests\n";
        let chosen = |pattern, store| named(list, pattern, store).collect::<Vec<_>>();
        assert_eq!(chosen("locks", "mysql"), ["a::mysql::locks", "mysql::locks", "locks::redis::mysql"]);
        assert_eq!(chosen("redis", ""), ["locks::redis::mysql"]);
        assert!(chosen("settings", "mysql").is_empty());
    }

    #[test]
    fn processor_time_includes_children() {
        assert_eq!(processor_seconds("0m0.250s 0m0.250s\n2m5.000s 0m4.500s\n"), 130.0);
        assert_eq!(processor_seconds("0m0,500s 0m0,000s\n0m1,000s 0m0,000s\n"), 1.5, "with a decimal comma");
        assert_eq!(processor_seconds(""), 0.0);
    }

    #[test]
    fn the_summary_shows_what_was_skipped_and_how_to_rerun() {
        let log = "a\nSKIPPED Go\nto run it alone: ./check test a\nnot SKIPPED\n";
        assert_eq!(
            for_the_summary(log).collect::<Vec<_>>(),
            ["SKIPPED Go", "to run it alone: ./check test a"]
        );
        assert_eq!(skipped(log), 1);
    }
}
