//! Code that a reader copies, in pages, rustdoc and examples, passes no error of a release on behind a write:
//! the caller would take the write for one that failed, and make it twice. Such code calls `with_lock`, drops
//! the guard, or asks whether the lock was lost.

use crate::docs::{documents, files, read};

type Program<'a> = Vec<(usize, &'a str)>;

/// The code blocks of a text whose lines `shown` gives without what makes them documentation; `is_rust` says
/// which blocks count, by the word behind the fence.
fn blocks<'a>(
    text: &'a str,
    shown: impl Fn(&'a str) -> Option<&'a str>,
    is_rust: fn(&str) -> bool,
) -> Vec<Program<'a>> {
    let (mut blocks, mut block) = (Vec::new(), None);
    for (at, line) in text.lines().enumerate() {
        let Some(line) = shown(line) else {
            block = None;
            continue;
        };
        match (line.trim_start().strip_prefix("```"), &mut block) {
            (Some(word), None) => block = Some((is_rust(word), Vec::new())),
            (Some(_), Some(_)) => {
                let whole = block.take().filter(|(is_rust, _)| *is_rust);
                blocks.extend(whole.map(|(_, lines)| lines));
            }
            // Also the lines that only rustdoc hides.
            (None, Some((_, lines))) => lines.push((at + 1, line.trim_start().trim_start_matches("# "))),
            (None, None) => {}
        }
    }
    blocks
}

fn documented(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))
}

/// The value whose release ends the line's function if it fails: `guard` of `guard.unlock()?`, of
/// `return guard.unlock();` and of `guard.unlock()` as the last expression.
fn passed_on(line: &str) -> Option<&str> {
    let code = line.split("//").next()?.trim();
    let (value, rest) = code.split_once(".unlock()")?;
    let is_passed_on = rest.starts_with('?') || rest.is_empty() || value.starts_with("return ");
    let value = value.rsplit(|letter: char| !letter.is_alphanumeric() && letter != '_').next()?;
    let is_asked = code.starts_with("match ") || code.starts_with("if let ");
    (is_passed_on && !is_asked && !value.is_empty()).then_some(value)
}

/// Whether the line acquires what the value stands for.
fn acquires(line: &str, value: &str) -> bool {
    let is_named =
        line.split(|letter: char| !letter.is_alphanumeric() && letter != '_').any(|word| word == value);
    is_named
        && ["acquire", "lock(", "lock_with_lease", "lock_interruptibly", "lock_and_get_token", "try_lock"]
            .iter()
            .any(|call| line.contains(call))
}

/// Whether nothing is written by the line: a question, a word to the terminal, a comment that leaves nothing
/// out.
fn writes_nothing(line: &str) -> bool {
    let line = line.trim();
    let begins = |words: &[&str]| words.iter().any(|word| line.starts_with(word));
    line.is_empty() || line == "}" || begins(&["assert", "println!", "//"]) && !line.contains('…')
}

/// The numbers of the lines that pass the error of a release on behind something that may be a write.
fn repeating(program: &Program<'_>) -> Vec<usize> {
    let mut found = Vec::new();
    for (at, (number, line)) in program.iter().enumerate() {
        let Some(value) = passed_on(line) else { continue };
        let before = program.iter().take(at).rev().map(|(_, line)| *line);
        let between = before.take_while(|line| !acquires(line, value));
        if !between.clone().all(writes_nothing) {
            found.push(*number);
        }
    }
    found
}

#[test]
fn no_code_that_readers_copy_passes_the_error_of_a_release_on_behind_a_write() {
    let (mut found, mut programs) = (Vec::new(), 0);
    let mut look = |path: &std::path::Path, program: &Program<'_>| {
        programs += 1;
        found.extend(repeating(program).into_iter().map(|line| format!("{}:{line}", path.display())));
    };
    for path in documents().into_iter().filter(|path| !path.starts_with("docs/decisions")) {
        let text = read(&path);
        for program in blocks(&text, Some, |word| word.starts_with("rust")) {
            look(&path, &program);
        }
    }
    for path in files("src", "rs") {
        let text = read(&path);
        // Of a doc comment every block is Rust, unless it says otherwise.
        let is_rust = |word: &str| !["text", "toml", "sh", "sql", "lua"].contains(&word);
        for program in blocks(&text, documented, is_rust) {
            look(&path, &program);
        }
    }
    let of_tests = |path: &std::path::Path| path.components().any(|part| part.as_os_str() == "tests");
    for path in files("examples", "rs").into_iter().filter(|path| !of_tests(path)) {
        let text = read(&path);
        look(&path, &text.lines().enumerate().map(|(at, line)| (at + 1, line)).collect());
    }
    assert!(programs > 150, "{programs} programs were read");
    assert!(found.is_empty(), "the error of a release is passed on behind a write: {found:#?}");
}

#[test]
fn the_lint_tells_a_release_behind_a_write_from_others() {
    let lines = |text: &'static str| text.lines().enumerate().map(|(at, line)| (at + 1, line)).collect();
    let repeats = |text| !repeating(&lines(text)).is_empty();
    for bad in [
        "let guard = lock.acquire()?;\nwrite(1);\nguard.unlock()?;",
        "let guard = lock.acquire()?;\n// … write …\nguard.unlock() // waits",
        "lock.lock()?;\nwrite(1);\nreturn lock.unlock();",
        "let writing = lock.acquire()?;\nstore(1);\nlet reading = lock.acquire()?;\nwriting.unlock()?;",
        "guard.unlock()?;\nwrite(1);\nguard.unlock()?;",
    ] {
        assert!(repeats(bad), "{bad}");
    }
    for good in [
        "let guard = lock.acquire()?;\nwrite(1);\nreleased(guard.unlock())?;",
        "let guard = lock.acquire()?;\nwrite(1);\nmatch guard.unlock() {",
        "let guard = lock.acquire()?;\nwrite(1);\nguard.unlock().ok();",
        "let guard = lock.acquire()?;\nprintln!(\"held\");\nguard.unlock()?;",
        "lock.acquire()?.unlock()?;",
    ] {
        assert!(!repeats(good), "{good}");
    }
}
