//! The documents name only files, links, commands, tests and methods that exist. In a column "Shown by", each
//! name in backticks is a test, a row of the demo, a command, or a file.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A package of the workspace, as Cargo reads its manifest.
pub(crate) fn package(name: &str) -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
        .current_dir(root())
        .output()
        .unwrap();
    let mut metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array_mut().unwrap();
    packages.iter_mut().find(|package| package["name"] == name).unwrap().take()
}

/// The dependencies that the package's users compile too.
pub(crate) fn dependencies(package: &Value) -> Vec<&Value> {
    package["dependencies"].as_array().unwrap().iter().filter(|one| one["kind"].is_null()).collect()
}

/// The files below `folder` that end in `.ending`, sorted, relative to the root, and without build output.
pub(crate) fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if !["target", "node_modules"].iter().any(|built| path.ends_with(built)) {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == ending) {
                found.push(path.strip_prefix(root()).unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

/// Panics unless the file has this text, and prints the lines that differ. `LEASEHOLD_BLESS` writes the file.
#[track_caller]
pub(crate) fn is_listed(path: &str, now: &str) {
    if std::env::var_os("LEASEHOLD_BLESS").is_some() {
        fs::write(root().join(path), now).unwrap();
    }
    let listed = fs::read_to_string(root().join(path)).unwrap_or_default();
    let (old, new): (BTreeSet<_>, BTreeSet<_>) = (listed.lines().collect(), now.lines().collect());
    let gone: Vec<_> = old.difference(&new).map(|line| format!("- {line}")).collect();
    let come: Vec<_> = new.difference(&old).map(|line| format!("+ {line}")).collect();
    assert!(
        listed == now,
        "{path} lists something else. If the change is wanted, LEASEHOLD_BLESS=1 writes it anew, and CHANGELOG.md says \
         why:\n{}",
        [gone, come].concat().join("\n")
    );
}

pub(crate) fn documents() -> Vec<PathBuf> {
    let mut documents =
        ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "MAINTAINING.md", "SECURITY.md", "cli/README.md"]
            .map(PathBuf::from)
            .to_vec();
    documents.extend(files("docs", "md"));
    documents
}

/// The numbered lines of a document, without code blocks.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut in_code = false;
    let mut lines = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code {
            lines.push((at + 1, line));
        }
    }
    assert!(!in_code, "a code block is not closed");
    lines
}

fn ticked(line: &str) -> Vec<&str> {
    line.split('`').skip(1).step_by(2).collect()
}

fn cells(line: &str) -> Option<Vec<&str>> {
    let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    Some(inner.split('|').map(str::trim).collect())
}

/// The table rows with a column of this name: the line's number, the cell in the column, and the row.
fn column<'a>(text: &'a str, name: &str) -> Vec<(usize, &'a str, Vec<&'a str>)> {
    let mut rows = Vec::new();
    let mut at: Option<usize> = None;
    let mut in_table = false;
    for (number, line) in prose(text) {
        let Some(cells) = cells(line) else {
            in_table = false;
            continue;
        };
        if !in_table {
            in_table = true;
            at = cells.iter().position(|cell| *cell == name);
        } else if let Some(at) = at
            && !cells[0].starts_with("--")
        {
            rows.push((number, cells[at], cells));
        }
    }
    rows
}

fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase().replace(' ', "-");
    kept.chars().filter(|c| c.is_alphanumeric() || *c == '-' || *c == '_').collect()
}

fn headings(text: &str) -> BTreeSet<String> {
    let lines = prose(text).into_iter().filter_map(|(_, line)| line.strip_prefix('#'));
    lines.map(|heading| anchor(heading.trim_start_matches('#').trim())).collect()
}

/// The names of all tests: functions marked `#[test]` or with a parameter `start: Start`, contracts
/// (`contract!`), faults (`scenario!`), tests on a server (`test_on!`) or on all databases (`on_databases!`,
/// `on_rows!`).
fn tests() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in files("src", "rs").into_iter().chain(files("tests", "rs")) {
        let text = read(&file);
        let mut marked = false;
        for line in text.lines().map(str::trim) {
            if line == "#[test]" {
                marked = true;
            } else if let Some((name, _)) =
                ["scenario!(", "contract!(", "test_on!(", "on_databases!(", "on_rows!("]
                    .iter()
                    .find_map(|macro_call| line.strip_prefix(macro_call))
                    .and_then(|rest| rest.split_once(','))
            {
                names.insert(name.to_owned());
            } else if let Some((name, arguments)) = line
                .trim_start_matches("pub(crate) ")
                .strip_prefix("fn ")
                .and_then(|rest| rest.split_once('('))
            {
                if marked || arguments.ends_with("start: Start) {") {
                    names.insert(name.to_owned());
                }
                marked = false;
            } else if !line.starts_with("#[") && !line.starts_with("//") {
                marked = false;
            }
        }
    }
    names
}

fn demo_rows() -> BTreeSet<String> {
    let args = read("examples/stock/args.rs");
    let names = args.split("=> \"").skip(1).filter_map(|rest| rest.split('"').next());
    names
        .filter(|name| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
        .map(str::to_owned)
        .collect()
}

#[cfg(unix)]
fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_executable(path: &Path) -> bool {
    path.is_file()
}

/// A path of this repository in backticks, such as `src/lock/wait.rs`, `docs/` or `tests/README.md`.
fn as_path(token: &str) -> Option<&Path> {
    let plain = token.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-*".contains(&b));
    let (first, _) = token.split_once('/')?;
    let ours = ["src", "tests", "docs", "examples", "scripts", "benches", ".ci"].contains(&first);
    (plain && ours && !token.contains('*')).then_some(Path::new(token))
}

#[test]
fn every_file_that_a_document_names_exists() {
    for document in documents() {
        let text = read(&document);
        for (number, line) in prose(&text) {
            for path in ticked(line).into_iter().filter_map(as_path) {
                assert!(root().join(path).exists(), "{}:{number}: {}", document.display(), path.display());
            }
        }
    }
}

/// The web address of this version's files, to which pages on docs.rs link.
const ON_THE_WEB: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/v", env!("CARGO_PKG_VERSION"), "/");

#[test]
fn every_document_that_the_source_names_exists() {
    let on_the_web = ON_THE_WEB.strip_prefix("https:").unwrap();
    for file in files("src", "rs").into_iter().chain(files("examples", "rs")).chain(files("tests", "rs")) {
        let text = read(&file);
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || "/._-".contains(c)));
        for word in
            words.filter(|word| word.len() > 3 && word.ends_with(".md") && !word.starts_with("target/"))
        {
            let word = word.strip_prefix(on_the_web).unwrap_or(word).trim_start_matches("../");
            let is_there = root().join(word).exists() || root().join("docs").join(word).exists();
            assert!(is_there, "{} names {word}", file.display());
        }
    }
}

#[test]
fn every_link_from_source_to_a_page_has_its_target() {
    let mut seen = 0;
    for file in files("src", "rs") {
        let text = read(&file);
        for link in text.split(ON_THE_WEB).skip(1).filter_map(|rest| rest.split([')', '"']).next()) {
            let (path, fragment) = link.split_once('#').unwrap_or((link, ""));
            let there = headings(&read(path)).contains(fragment);
            assert!(fragment.is_empty() || there, "{}: {path} has no heading {fragment}", file.display());
            seen += 1;
        }
    }
    assert!(seen > 10, "only {seen} links were found");
}

#[test]
fn every_link_in_a_document_has_its_target() {
    for document in documents() {
        let text = read(&document);
        for (number, line) in prose(&text) {
            for link in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                if link.starts_with("https://") {
                    continue;
                }
                let place = format!("{}:{number}: {link}", document.display());
                let (path, fragment) = link.split_once('#').unwrap_or((link, ""));
                let target = match path {
                    "" => document.clone(),
                    path => document.parent().unwrap().join(path),
                };
                assert!(root().join(&target).exists(), "{place}");
                let found = fragment.is_empty() || headings(&read(&target)).contains(fragment);
                assert!(found, "{place}: no such heading");
            }
        }
    }
}

/// If the versions differ, somebody has changed only a part of the files for a release.
#[test]
fn both_crates_and_the_change_log_have_the_same_version() {
    let version = env!("CARGO_PKG_VERSION");
    let program = package("leasehold-cli");
    assert_eq!(program["version"], version);
    let library = dependencies(&program).into_iter().find(|one| one["name"] == "leasehold").unwrap();
    assert_eq!(library["req"], format!("^{version}"));
    assert_eq!(library["path"].as_str(), root().to_str());
    let log = read("CHANGELOG.md");
    let mut headings = log.lines().filter_map(|line| line.strip_prefix("## ["));
    let last = headings.find(|heading| !heading.starts_with("Unreleased]")).unwrap();
    let date = last.strip_prefix(&format!("{version}] - ")).unwrap_or_else(|| panic!("## [{last}"));
    let parts: Vec<&str> = date.split('-').collect();
    assert!(parts.len() == 3 && parts.iter().all(|part| part.parse::<u32>().is_ok()), "{date}");
}

/// Plain `./check` builds neither `benches/peers` nor `examples/web`, so only this test notices a stale file.
#[test]
fn other_cargo_lock_files_list_the_dependencies_of_leasehold() {
    let library = package("leasehold");
    let of_default_features = ["redis", "r2d2", "scheduled-thread-pool"];
    let always: Vec<&str> = dependencies(&library)
        .into_iter()
        .filter(|one| one["optional"] == false || of_default_features.iter().any(|name| one["name"] == *name))
        .filter_map(|one| one["name"].as_str())
        .collect();
    assert!(always.contains(&"redis") && always.contains(&"winapi-util"), "{always:?}");
    for file in ["benches/peers/Cargo.lock", "examples/web/Cargo.lock"] {
        let text = read(file);
        let entry =
            text.split("[[package]]").find(|entry| entry.contains("\nname = \"leasehold\"\n")).unwrap();
        for name in &always {
            // A lock file with several versions of a crate writes `NAME VERSION`.
            let is_there = ["\"", " "].iter().any(|end| entry.contains(&format!("\n \"{name}{end}")));
            assert!(is_there, "{file} has no {name}: build there without --locked once");
        }
    }
}

#[test]
fn every_test_named_as_evidence_in_documents_exists() {
    let (tests, rows) = (tests(), demo_rows());
    assert!(
        tests.contains("every_test_named_as_evidence_in_documents_exists")
            && rows.contains("redis_lock_fenced")
    );
    let mut seen = 0;
    for document in documents() {
        let text = read(&document);
        for (number, cell, row) in column(&text, "Shown by") {
            let place = format!("{}:{number}", document.display());
            let tokens = ticked(cell);
            assert!(!tokens.is_empty() || cell.starts_with("step "), "{place}: nothing shows {:?}", row[0]);
            for token in tokens {
                seen += 1;
                let word = token.split_whitespace().next().unwrap_or_default();
                let exists = match token {
                    _ if cell.contains(&format!("demo row `{token}`")) => rows.contains(token),
                    _ if word.starts_with("./") => is_executable(&root().join(word)),
                    _ if token.contains('/') => root().join(token).exists(),
                    _ => tests.contains(token),
                };
                assert!(exists, "{place}: there is no {token}");
            }
        }
    }
    assert!(seen > 40, "only {seen} references were found");
}

#[test]
fn every_guarantee_has_evidence() {
    let (text, evidence) = (read("docs/guarantees.md"), read("docs/evidence.md"));
    let rows = column(&evidence, "Shown by");
    let headings = text.lines().filter_map(|line| line.strip_prefix("### P"));
    let promises: Vec<_> = headings.map(|line| format!("P{}", line.split(' ').next().unwrap())).collect();
    assert_eq!(promises, (1..=12).map(|number| format!("P{number}")).collect::<Vec<_>>());
    for promise in promises {
        assert!(rows.iter().any(|(_, _, row)| row[0] == promise), "{promise}");
    }
}

#[test]
fn the_guarantees_summary_names_every_promise_once() {
    let page = read("docs/guarantees.md");
    let screen = page.split("\n## ").next().unwrap();
    assert!(screen.lines().count() < 50, "the first part is longer than a screen");
    assert!(page.lines().count() <= 300, "the page is longer than 300 lines");
    for number in 1..=12 {
        let heading = page.lines().find(|line| line.starts_with(&format!("### P{number} "))).unwrap();
        let link = format!("[P{number}](#{})", anchor(heading.trim_start_matches("### ")));
        assert_eq!(screen.matches(&link).count(), 1, "{link}");
    }
}

#[test]
fn the_readme_is_short_and_leads_to_every_page() {
    let text = read("README.md");
    let is_word = |word: &&str| word.contains(char::is_alphanumeric);
    let words: usize =
        prose(&text).iter().map(|(_, line)| line.split_whitespace().filter(is_word).count()).sum();
    assert!(words <= 700, "{words} words without code");
    for page in files("docs", "md").iter().filter(|page| page.parent() == Some(Path::new("docs"))) {
        let link = format!("]({})", page.display());
        assert!(text.contains(&link), "no link leads to {}", page.display());
    }
}

#[test]
fn troubleshooting_rows_are_complete_and_name_the_error_kinds() {
    let page = read("docs/troubleshooting.md");
    let rows = column(&page, "Symptom");
    assert!(rows.len() > 25, "{}", rows.len());
    let mut first = String::new();
    for (number, symptom, row) in &rows {
        assert!(row.len() == 3 && row.iter().all(|cell| cell.len() > 5), "docs/troubleshooting.md:{number}");
        first.push_str(symptom);
    }
    let api = read("docs/api.txt");
    let kinds = api.split("pub enum ErrorKind\n").nth(1).unwrap().split("\n\n").next().unwrap();
    // `Interrupted` needs no row, as a program requests it; `Protocol` and `Refused` have no common cause.
    for kind in kinds
        .lines()
        .map(|line| line.trim().trim_end_matches(','))
        .filter(|kind| !["Interrupted", "Protocol", "Refused"].contains(kind))
    {
        assert!(first.contains(&format!("`{kind}`")), "{kind} is no row's symptom");
    }
}

#[test]
fn code_of_the_async_page_comes_from_tested_files() {
    let page = read("docs/using-from-async.md");
    let mut shown = BTreeSet::new();
    let mut blocks = 0;
    for (before, block) in page.split("```rust\n").zip(page.split("```rust\n").skip(1)) {
        let code = block.split("\n```").next().unwrap();
        let named = before.trim_end().lines().last().unwrap_or_default();
        let file = named.trim_end_matches(':').trim_matches('`');
        assert!(read(file).contains(code), "{file} has no such lines:\n{code}");
        shown.insert(PathBuf::from(file));
        blocks += 1;
    }
    assert!(blocks > 6, "only {blocks} blocks of code were found");
    assert_eq!(shown.into_iter().collect::<Vec<_>>(), files("examples/web/src", "rs"));
}

/// The page's settings for clippy are those of `examples/web`, whose tests show that clippy finds each named
/// mistake. The page names each guard that cannot leave its thread.
#[test]
fn the_async_page_lists_every_guard_bound_to_its_thread() {
    let page = read("docs/using-from-async.md");
    let list = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(
        read("examples/web/clippy.toml").contains(list),
        "examples/web/clippy.toml has another list:\n{list}"
    );
    let mut guards = Vec::new();
    for file in files("src/locks", "rs") {
        let source = read(&file);
        let made =
            source.lines().filter_map(|line| line.split_once("guard!(")?.1.split_once(" { _bound_to_thread"));
        guards.extend(made.map(|(guard, _)| guard.to_owned()));
    }
    guards.sort();
    assert_eq!(guards, ["Guard", "MultiGuard"]);
    for guard in guards {
        assert!(list.contains(&format!("{{ path = \"leasehold::{guard}\"")), "{guard} is not in the list");
    }
}

#[test]
fn the_architecture_page_lists_every_folder() {
    let text = read("docs/architecture.md");
    let tree = text.split("```text\nsrc/\n").nth(1).unwrap().split("```").next().unwrap();
    let (mut listed, mut path) = (BTreeSet::from([PathBuf::from("src")]), Vec::new());
    for line in tree.lines() {
        let depth = (line.len() - line.trim_start().len()) / 2;
        let names: Vec<&str> = line.split_whitespace().take_while(|word| word.ends_with('/')).collect();
        path.truncate(depth - 1);
        for name in &names {
            listed.insert(Path::new("src").join(path.concat()).join(name.trim_end_matches('/')));
        }
        path.push((*names.last().unwrap()).to_owned());
    }
    let mut folders = BTreeSet::new();
    for file in files("src", "rs") {
        let first = read(&file).lines().next().unwrap_or_default().to_owned();
        assert!(first.starts_with("//! ") || file.ends_with("tests.rs"), "{}: {first}", file.display());
        folders.insert(file.parent().unwrap().to_owned());
    }
    folders.extend(["src/stores/redis/lua", "src/stores/sql/query"].map(PathBuf::from));
    folders.retain(|folder| !folder.ends_with("shared"));
    assert_eq!(listed, folders);
}

/// Whether the file defines this type or trait, or its methods, and names this member.
fn has_member(source: &str, of: &str, member: &str) -> bool {
    let is_word = |line: &str, word: &str| {
        line.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|found| found == word)
    };
    let defines = |line: &str| {
        let is_head = ["struct ", "enum ", "trait "].iter().any(|kind| line.contains(&format!("{kind}{of}")))
            || line.starts_with("impl") && !line.contains(" for ");
        is_head && is_word(line, of)
    };
    let code = || source.lines().filter(|line| !line.trim_start().starts_with("//"));
    code().any(defines) && code().any(|line| is_word(line, member))
}

#[test]
fn every_type_member_named_in_architecture_pages_exists() {
    let sources: Vec<String> = files("src", "rs").iter().map(read).collect();
    let mut seen = 0;
    for page in ["docs/architecture.md", "CONTRIBUTING.md"] {
        let text = read(page);
        for (number, line) in prose(&text) {
            let members = ticked(line).into_iter().filter_map(|token| token.split_once("::"));
            for (of, member) in members.filter(|(of, _)| of.starts_with(char::is_uppercase)) {
                let member = member.trim_end_matches("()");
                let exists = member.is_empty() || sources.iter().any(|source| has_member(source, of, member));
                assert!(exists, "{page}:{number}: the source has no {of}::{member}");
                seen += 1;
            }
        }
    }
    assert!(seen > 5, "only {seen} names were found");
}

#[test]
fn every_rust_method_of_the_guides_exists() {
    let guides = [
        ("docs/porting-from-redisson.md", 40),
        ("docs/porting-from-curator.md", 20),
        ("docs/troubleshooting.md", 8),
    ];
    for (guide, least) in guides {
        let seen = methods_that_exist(guide);
        assert!(seen > least, "only {seen} methods were found in {guide}");
    }
}

fn methods_that_exist(guide: &str) -> usize {
    let source: String = files("src", "rs").iter().map(read).collect();
    let text = read(guide);
    let mut seen = 0;
    let columns = ["Rust", "leasehold", "Here", "Command"];
    for (number, cell, _) in columns.iter().flat_map(|name| column(&text, name)) {
        for token in ticked(cell) {
            for (at, _) in token.match_indices('(') {
                let name =
                    token[..at].rsplit(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).next().unwrap();
                if name.starts_with(|c: char| c.is_ascii_lowercase()) && name != "from_secs" {
                    seen += 1;
                    let here = ["(", "<"].iter().any(|open| source.contains(&format!("pub fn {name}{open}")));
                    assert!(here, "{guide}:{number}: there is no {name}");
                }
            }
        }
    }
    seen
}

/// PostgreSQL's driver contains a runtime, so its feature is off here.
#[test]
fn no_async_runtime_is_a_dependency() {
    let features = ["tls", "tracing", "mysql", "sqlite"].join(",");
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--offline", "--edges=normal", "--prefix=none", "--features", &features])
        .current_dir(root())
        .output()
        .unwrap();
    let tree = String::from_utf8(output.stdout).unwrap();
    assert!(
        tree.lines().any(|line| line.starts_with("rusqlite ")),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    for runtime in ["tokio", "async-std", "smol", "futures-executor"] {
        assert!(!tree.lines().any(|line| line.starts_with(&format!("{runtime} "))), "{runtime}");
    }
}
