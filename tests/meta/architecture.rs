//! The shape of the source, executed: which layer may use which, who reads time, where nothing panics, how long a file
//! is, and that scripts are never put together from pieces.
//!
//! ```text
//! client                            L3
//! store, compose                    L2   stores don't know each other, nor what is composed of them
//! lock                              L1
//! error health hosts time ident inspection config observe sync tls   L0
//! ```
//!
//! Arrows only point down. The same checker that passes the source is shown samples that break each rule, and has to
//! say so. It reads Rust as text: it knows comments, strings and test code, and paths that begin with `crate`, `super`
//! or `self`; that is all these rules need.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, its helpers too"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Where the library may panic although nothing is wrong with it, and by what; each place explains itself with an
/// `#[expect]`.
const MAY_PANIC: &[(&str, &str)] = &[("src/client.rs", ".expect(")];

/// A file whose code is longer than this says why in its header, in a sentence that begins with `Long because`.
const LONG: usize = 400;
const TOO_LONG: usize = 800;

const GROUND: [&str; 11] =
    ["error", "health", "hosts", "time", "ident", "inspection", "config", "observe", "room", "sync", "tls"];
/// The door to what threads wait by, behind which the models put shuttle.
const KNOWS_MUTEXES: &str = "src/sync/";
const READS_TIME: &str = "src/time.rs";
/// Drivers, and where alone they are known.
const DRIVERS: &[(&str, &[&str])] = &[
    ("redis::", &["src/store/redis/"]),
    ("rustls::", &["src/tls.rs"]),
    ("r2d2::", &["src/store/redis/", "src/store/sql/"]),
    ("tokio::", &["src/store/sql/postgres/"]),
    ("tokio_postgres::", &["src/store/sql/postgres/"]),
    ("postgres::", &["src/store/sql/postgres/"]),
    ("mysql::", &["src/store/sql/mysql"]),
    ("rusqlite::", &["src/store/sql/sqlite.rs"]),
];

#[test]
fn the_source_keeps_to_its_rules() {
    let files = files_under("src");
    assert!(files.len() > 30, "only {} files were found", files.len());
    let found = violations(&files);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_checker_sees_the_source() {
    let files = files_under("src");
    let modules = Modules::of(&files);
    let uses = |from: &str, to: &str| {
        let file = files.iter().find(|file| file.path == from).unwrap();
        let paths = modules.paths_used_by(file);
        paths.iter().any(|path| path.join("::").starts_with(to))
    };
    // Were these not seen, nothing would be.
    assert!(uses("src/client.rs", "lock::engine"));
    assert!(uses("src/lock/wait.rs", "time::Moment"));
    assert!(uses("src/store/memory/mod.rs", "lock::store"));
    assert!(uses("src/store/redis/hub.rs", "store::redis::link"), "through super");
}

// ---- samples that break a rule

fn complaints(files: &[(&str, &str)]) -> Vec<String> {
    let root = ("src/lib.rs", "mod error; mod lock; mod store; mod client; pub use client::LockClient;");
    let all: Vec<Source> =
        files.iter().chain([&root]).map(|(path, text)| Source::new((*path).to_owned(), text)).collect();
    violations(&all)
}

#[track_caller]
fn breaks(path: &str, text: &str, expected: &str) {
    let found = complaints(&[(path, text)]);
    assert!(found.iter().any(|line| line.contains(expected)), "not said: {expected}\nsaid: {found:?}");
    assert!(found.iter().all(|line| line.contains(path)), "{found:?}");
}

#[track_caller]
fn keeps(path: &str, text: &str) {
    assert_eq!(complaints(&[(path, text)]), Vec::<String>::new());
}

#[test]
fn an_arrow_that_points_up_is_flagged() {
    breaks("src/lock/wait.rs", "use crate::client::LockClient;", "may not use client");
    breaks("src/lock/wait.rs", "use crate::store::memory::MemoryStore;", "may not use store/memory");
    breaks("src/error.rs", "use crate::lock::hold::Hold;", "may not use lock");
    breaks(
        "src/store/memory.rs",
        "use crate::{error::Error, client::{self, ClientBuilder}};",
        "may not use client",
    );
    breaks("src/lock/hold.rs", "fn f() -> crate::client::LockClient { todo() }", "may not use client");
    // Also by another name: the root re-exports it.
    breaks("src/lock/hold.rs", "fn f(client: &crate::LockClient) {}", "may not use client");
    breaks("src/lock/hold.rs", "use super::super::client::LockClient;", "may not use client");
    breaks(
        "src/lock/hold.rs",
        "macro_rules! m { () => { $crate::client::LockClient } }",
        "may not use client",
    );
    keeps("src/client.rs", "use crate::{error::Result, lock::engine::Engine, store::memory::MemoryStore};");
    keeps("src/lock/hold.rs", "use crate::error::Result; use super::wait::Want; use crate::lock::park;");
    keeps("src/error.rs", "use crate::time::Moment;");
}

#[test]
fn stores_that_know_each_other_are_flagged() {
    breaks("src/store/memory.rs", "use crate::store::redis::RedisStore;", "may not use store/redis");
    breaks("src/store/memory.rs", "use super::redis::RedisStore;", "may not use store/redis");
    breaks("src/store/redis/hub.rs", "use super::super::memory::Held;", "may not use store/memory");
    breaks("src/compose/multi.rs", "use crate::store::redis::RedisStore;", "may not use store/redis");
    breaks("src/store/redis/mod.rs", "use crate::compose::multi::Multi;", "may not use compose");
    keeps("src/store/redis/hub.rs", "use super::link::Link; use crate::store::redis::wire;");
}

#[test]
fn a_module_without_a_layer_is_flagged() {
    breaks("src/utils.rs", "", "belongs to no layer");
    breaks("src/helpers/misc.rs", "", "belongs to no layer");
    breaks("src/lock/wait.rs", "use crate::utils::now;", "unknown");
}

#[test]
fn text_that_only_looks_like_a_use_is_not_flagged() {
    keeps("src/error.rs", "/// See [`lock`](crate::client::LockClient::lock).\n// use crate::client;\n");
    keeps("src/error.rs", "fn f() -> &'static str { \"use crate::client;\" }");
    keeps("src/error.rs", "/* use crate::client; /* nested */ use crate::lock; */");
    keeps("src/error.rs", "fn f<'a>(c: &'a char) -> bool { *c == '\"' } // \" crate::client");
    keeps("src/error.rs", "const A: &str = r#\"a \" crate::client::B \"#;");
    keeps(
        "src/error.rs",
        "#[cfg(test)]\nmod tests {\n    use crate::client::LockClient; fn f() { x.unwrap() }\n}",
    );
}

#[test]
fn test_code_in_files_of_its_own_is_not_flagged() {
    let found = complaints(&[
        ("src/store/redis/mod.rs", "#[cfg(test)]\nmod harness;\nmod hub;\n#[cfg(test)]\nmod tests;"),
        ("src/store/redis/tests.rs", "mod wire;"),
        ("src/store/redis/tests/wire.rs", "fn f() { x.unwrap() }"),
        ("src/store/redis/harness.rs", "fn f() { x.unwrap() }"),
        ("src/store/redis/lane.rs", "#[cfg(test)]\nmod tests;"),
        ("src/store/redis/lane/tests.rs", "fn f() { x.unwrap() }"),
        ("src/store/redis/hub.rs", "fn f() { x.unwrap() }"),
    ]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("src/store/redis/hub.rs"));
}

#[test]
fn reading_time_elsewhere_is_flagged() {
    breaks("src/lock/wait.rs", "fn f() { let now = std::time::Instant::now(); }", "reads time");
    breaks("src/lock/wait.rs", "fn f() { SystemTime::UNIX_EPOCH; }", "reads time");
    breaks("src/store/redis/hub.rs", "fn f(at: Instant) { at.elapsed(); }", "reads time");
    breaks("src/client.rs", "fn f() { rustix::time::clock_gettime(id); }", "reads time");
    breaks("src/lock/wait.rs", "fn f() { std::thread::sleep(pause); }", "sleeps");
    keeps(READS_TIME, "fn f() { Instant::now(); }");
    keeps("src/lock/wait.rs", "fn f(until: Instant) {}");
}

#[test]
fn panics_are_flagged_unless_listed_and_explained() {
    for panics in [
        ".unwrap()",
        ".expect(\"x\")",
        ".unwrap_err()",
        "; panic!()",
        "; unreachable!()",
        "; todo!()",
        "; unimplemented!()",
    ] {
        breaks("src/lock/wait.rs", &format!("fn f() {{ x{panics}; }}"), "may panic");
    }
    let explained = "#[expect(clippy::expect_used, reason = \"documented\")]\nfn f() { x.expect(\"y\"); }";
    keeps("src/client.rs", explained);
    breaks("src/lock/wait.rs", explained, "may panic"); // explained, but not listed
    breaks("src/client.rs", "fn f() { x.expect(\"y\"); }", "may panic"); // listed, but not explained
    breaks("src/client.rs", &format!("{explained}\nfn g() {{ x.expect(\"y\"); }}"), "may panic");
    keeps("src/lock/wait.rs", "fn f() { x.unwrap_or(1); x.expected(); x.unwrap_or_else(|| 1); }");
}

#[test]
fn long_files_are_flagged() {
    let code = "const A: u8 = 1;\n";
    breaks("src/lock/wait.rs", &code.repeat(LONG + 1), "lines of code");
    breaks("src/lock/wait.rs", &format!("//! A part.\n{}", code.repeat(LONG + 1)), "lines of code");
    keeps("src/lock/wait.rs", &format!("//! A part. Long because of a table.\n{}", code.repeat(LONG + 1)));
    keeps("src/lock/wait.rs", &format!("{}{}", code.repeat(LONG), "// told\n\n".repeat(100)));
    let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", code.repeat(300));
    keeps("src/lock/wait.rs", &format!("{}{tests}", code.repeat(LONG)));
    breaks("src/lock/wait.rs", &"// told\n".repeat(TOO_LONG + 1), "lines, the most is");
}

#[test]
fn long_test_files_are_flagged_by_their_whole_length_only() {
    let of_lines = |lines| {
        complaints(&[
            ("src/lock/mod.rs", "#[cfg(test)]\npub(crate) mod model;"),
            ("src/lock/model.rs", &"const A: u8 = 1;\n".repeat(lines)),
        ])
    };
    assert_eq!(of_lines(TOO_LONG), Vec::<String>::new());
    assert_eq!(of_lines(TOO_LONG + 1).len(), 1);
}

#[test]
fn scripts_that_are_put_together_are_flagged() {
    let redis = "src/store/redis/mutex.rs";
    breaks(redis, "fn f() { format!(\"return redis.call('get', '{key}')\"); }", "script text");
    breaks(redis, "const S: &str = \"return KEYS[1]\";", "script text");
    breaks(redis, "fn f() { s.push_str(r#\"if ARGV[1] then\"#); }", "script text");
    breaks(redis, "static S: Script = Script::new(&text);", "not by include_str!");
    breaks(redis, "fn f() { cmd(\"EVAL\").arg(format!(\"return {n}\")); }", "puts text together");
    breaks(redis, "static S: Script = Script::new(concat!(\"return \", \"1\"));", "not by include_str!");
    keeps(redis, "static S: Script = Script::new(include_str!(\"lua/acquire.lua\"));");
    keeps(redis, "Script::new(concat!(include_str!(\"lua/guard.lua\"), include_str!(\"lua/acquire.lua\")));");
    keeps(redis, "fn f() { Request::new(\"EVAL\").arg(\"return 1\").arg(0); }");
    keeps(redis, "fn f() { format!(\"the key {key}\"); }");
}

#[test]
fn names_that_are_derived_elsewhere_are_flagged() {
    let redis = "src/store/redis/fair.rs";
    breaks(redis, "fn f() { format!(\"redisson_lock_queue:{{{name}}}\"); }", "derives a name");
    breaks(redis, "const MARK: &str = \"leasehold_mark\";", "derives a name");
    keeps("src/ident/derived.rs", "const QUEUE: &str = \"redisson_lock_queue:\";");
    keeps(redis, "fn f() { format!(\"as redisson_lock_queue\"); }");
}

#[test]
fn undocumented_script_parameters_are_flagged() {
    let lua = "src/store/redis/lua/a.lua";
    breaks(lua, "return redis.call('get', KEYS[1])", "KEYS[1]");
    breaks(lua, "-- Takes.\n-- KEYS[1] lock\n-- Returns x\nreturn {KEYS[1], ARGV[2]}", "ARGV[2]");
    breaks(lua, "-- Takes.\n-- KEYS[1] lock\nreturn KEYS[1]", "Returns");
    keeps(lua, "-- Takes.\n-- KEYS[1] lock\n-- ARGV[1] owner\n-- Returns x\nreturn {KEYS[1], ARGV[1]}");
}

#[test]
fn undocumented_query_parameters_are_flagged() {
    let sql = "src/store/sql/query/sqlite/a.sql";
    breaks(sql, "-- Looks.\n-- Returns x\nSELECT a FROM b WHERE c = ?1", "?1");
    breaks(sql, "-- Looks.\n-- $1 name\n-- Returns x\nSELECT a::text FROM b WHERE c = $1 AND d = $2", "$2");
    breaks(sql, "-- Looks.\n-- :name\nSELECT a FROM b WHERE c = :name", "Returns");
    keeps(sql, "-- Looks.\n-- :name\n-- Returns x\nSELECT a::text FROM b WHERE c = :name");
    keeps(sql, "CREATE TABLE a (b text)");
}

#[test]
fn the_driver_outside_of_its_store_is_flagged() {
    breaks("src/error.rs", "impl From<redis::RedisError> for Error {}", "knows the driver");
    breaks("src/lock/engine.rs", "use r2d2::Pool;", "knows the driver");
    breaks("src/store/sql/rows.rs", "use rusqlite::Connection;", "knows the driver");
    breaks("src/store/redis/hub.rs", "fn f() { tokio::spawn(work); }", "knows the driver");
    breaks("src/store/redis/link.rs", "use rustls::ClientConfig;", "knows the driver");
    breaks("src/tls.rs", "use redis::Cmd;", "knows the driver");
    keeps("src/store/redis/wire.rs", "use redis::Cmd; use r2d2::Pool;");
    keeps("src/tls.rs", "use rustls::ClientConfig;");
    keeps("src/client.rs", "use crate::store::redis::RedisStore;");
    keeps("src/client.rs", "use crate::store::sql; fn f() { sql::postgres::open(&options); }");
}

#[test]
fn a_way_around_the_door_to_mutexes_is_flagged() {
    breaks("src/lock/wait.rs", "use parking_lot::Mutex;", "knows parking_lot");
    breaks("src/time.rs", "fn f(m: &parking_lot::Mutex<u8>) {}", "knows parking_lot");
    keeps("src/sync/mod.rs", "pub(crate) use parking_lot::Mutex;");
    keeps("src/lock/wait.rs", "use crate::sync::{Condvar, Mutex}; use std::sync::Arc;");
}

#[test]
fn logic_in_the_root_is_flagged() {
    let found = violations(&[Source::new("src/lib.rs".to_owned(), "mod error;\nfn helper() {}")]);
    assert!(found.iter().any(|line| line.contains("holds logic")), "{found:?}");
}

// ---- the checker

/// A file under `src`.
struct Source {
    path: String,
    text: String,
    /// The text with comments, the contents of strings, and test code blanked; line by line as long as before.
    code: String,
    /// What stands in strings outside of test code.
    strings: Vec<String>,
}

impl Source {
    fn new(path: String, text: &str) -> Source {
        if path.ends_with(".lua") || path.ends_with(".sql") {
            return Source { path, text: text.to_owned(), code: String::new(), strings: Vec::new() };
        }
        let (mut code, strings) = blanked(text);
        let tests = test_code(&code);
        for range in &tests {
            let blank: String =
                code[range.clone()].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
            code.replace_range(range.clone(), &blank);
        }
        let strings = strings
            .into_iter()
            .filter(|(at, _)| !tests.iter().any(|range| range.contains(at)))
            .map(|(_, text)| text)
            .collect();
        Source { path, text: text.to_owned(), code, strings }
    }

    /// The module's path: `src/store/redis/hub.rs` is `store::redis::hub`.
    fn module(&self) -> Vec<&str> {
        let inner = self.path.trim_start_matches("src/").trim_end_matches(".rs");
        inner.split('/').filter(|part| !matches!(*part, "lib" | "mod")).collect()
    }
}

fn files_under(folder: &str) -> Vec<Source> {
    fn walk(root: &Path, folder: &Path, files: &mut Vec<Source>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(root, &path, files);
            } else if path
                .extension()
                .is_some_and(|extension| ["rs", "lua", "sql"].iter().any(|known| extension == *known))
            {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().replace('\\', "/");
                files.push(Source::new(name, &fs::read_to_string(&path).unwrap()));
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    walk(root, &root.join(folder), &mut files);
    files
}

/// Everything that breaks a rule.
fn violations(all: &[Source]) -> Vec<String> {
    let modules = Modules::of(all);
    let mut found = Vec::new();
    for file in all {
        let mut complain = |what: String| found.push(format!("{}: {what}", file.path));
        if file.path.ends_with(".lua") {
            check_script(file, &mut complain);
            continue;
        }
        if file.path.ends_with(".sql") {
            check_query(file, &mut complain);
            continue;
        }
        let is_test = modules.is_test(file);
        check_length(file, is_test, &mut complain);
        if is_test {
            continue;
        }
        check_layers(file, &modules, &mut complain);
        check_time(file, &mut complain);
        check_panics(file, &mut complain);
        check_script_text(file, &mut complain);
        check_derived(file, &mut complain);
        check_driver(file, &mut complain);
        if !file.path.starts_with(KNOWS_MUTEXES) && file.code.contains("parking_lot::") {
            complain("knows parking_lot, not `sync`: a model could not look into it".to_owned());
        }
    }
    found
}

type Complain<'a> = dyn FnMut(String) + 'a;

/// What belongs together, as far as the layers are concerned.
#[derive(Debug, PartialEq)]
struct Unit {
    layer: u8,
    name: String,
}

fn unit_of(module: &[&str]) -> Option<Unit> {
    let unit = |layer, name: String| Some(Unit { layer, name });
    match module {
        [ground, ..] if GROUND.contains(ground) => unit(0, (*ground).to_owned()),
        ["lock", ..] => unit(1, "lock".to_owned()),
        ["store"] => unit(2, "store".to_owned()),
        ["store", one, ..] => unit(2, format!("store/{one}")),
        ["compose", ..] => unit(2, "compose".to_owned()),
        ["client", ..] => unit(3, "client".to_owned()),
        _ => None,
    }
}

impl Unit {
    fn may_use(&self, other: &Unit) -> bool {
        let ground = self.layer == 0 && other.layer == 0;
        let inside = |outer: &Unit, inner: &Unit| inner.name.starts_with(&format!("{}/", outer.name));
        self == other || other.layer < self.layer || ground || inside(self, other) || inside(other, self)
    }
}

/// What the checker knows about all files.
struct Modules {
    /// What the root re-exports, and from where.
    exports: BTreeMap<String, Vec<String>>,
    /// Modules that are test code as a whole, with all below them; paths without their `.rs`.
    tests: BTreeSet<String>,
}

impl Modules {
    fn of(files: &[Source]) -> Modules {
        let mut modules = Modules { exports: BTreeMap::new(), tests: BTreeSet::new() };
        for file in files {
            if file.module().is_empty() {
                for (at, _) in file.code.match_indices("pub use ") {
                    for path in tree(&file.code[at + "pub use ".len()..]) {
                        if let Some(name) = path.last() {
                            modules.exports.insert(name.clone(), path.clone());
                        }
                    }
                }
            }
            // `test_code` has blanked these in `code`; they are looked for in the text.
            for (at, _) in file.text.match_indices("#[cfg(test)]") {
                let rest = file.text[at + "#[cfg(test)]".len()..].trim_start();
                let rest = rest.strip_prefix("pub(crate) ").unwrap_or(rest);
                if let Some(name) = rest.strip_prefix("mod ").and_then(|rest| rest.split(';').next())
                    && name.chars().all(|c| c.is_alphanumeric() || c == '_')
                {
                    let folder = match file.path.rsplit_once('/') {
                        Some((folder, "mod.rs" | "lib.rs")) => folder,
                        _ => file.path.trim_end_matches(".rs"),
                    };
                    modules.tests.insert(format!("{folder}/{name}"));
                }
            }
        }
        modules
    }

    fn is_test(&self, file: &Source) -> bool {
        self.tests.iter().any(|module| {
            file.path.strip_prefix(module).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        })
    }

    /// The paths inside the crate that a file names, from the root on.
    fn paths_used_by(&self, file: &Source) -> Vec<Vec<String>> {
        let mut used = Vec::new();
        for start in ["crate", "super", "self"] {
            for (at, _) in file.code.match_indices(&format!("{start}::")) {
                let before = file.code[..at].chars().next_back();
                if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                    continue; // the end of another word, or within a path that was seen from its start
                }
                for path in tree(&file.code[at..]) {
                    let mut full: Vec<String> = match start {
                        "crate" => Vec::new(),
                        _ => file.module().iter().map(|part| (*part).to_owned()).collect(),
                    };
                    for part in path {
                        match part.as_str() {
                            "crate" | "self" => {}
                            "super" => drop(full.pop()),
                            _ => full.push(part),
                        }
                    }
                    if let Some(source) = full.first().and_then(|name| self.exports.get(name)) {
                        full = source.clone();
                    }
                    used.push(full);
                }
            }
        }
        used
    }
}

/// The paths of a use tree, or of an expression, that `code` begins with.
fn tree(code: &str) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    let mut prefix = Vec::new();
    branch(code, &mut prefix, &mut paths);
    paths
}

/// Reads one branch; returns what is left of `code`.
fn branch<'a>(code: &'a str, prefix: &mut Vec<String>, paths: &mut Vec<Vec<String>>) -> &'a str {
    let depth = prefix.len();
    let mut rest = code.trim_start();
    loop {
        if let Some(mut inner) = rest.strip_prefix('{') {
            loop {
                inner = inner.trim_start();
                if let Some(after) = inner.strip_prefix('}') {
                    rest = after;
                    break;
                }
                let after = branch(inner, prefix, paths).trim_start();
                let after = after.strip_prefix(',').unwrap_or(after);
                if after.len() == inner.len() {
                    rest = after; // not a use tree after all
                    break;
                }
                inner = after;
            }
            break;
        }
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        if end > 0 {
            prefix.push(rest[..end].to_owned());
        }
        rest = &rest[end..];
        match rest.strip_prefix("::") {
            Some(more) => rest = more.trim_start(),
            None => {
                paths.push(prefix.clone());
                if let Some(renamed) = rest.trim_start().strip_prefix("as ") {
                    rest = renamed.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_' || c == ' ');
                }
                break;
            }
        }
    }
    prefix.truncate(depth);
    rest
}

fn check_layers(file: &Source, modules: &Modules, complain: &mut Complain<'_>) {
    let module = file.module();
    if module.is_empty() {
        let items = ["fn ", "impl ", "struct ", "enum ", "trait ", "static ", "const ", "macro_rules!"];
        if file.code.lines().any(|line| items.iter().any(|item| line.contains(item))) {
            complain("the root holds logic; it lists and re-exports".to_owned());
        }
        return;
    }
    let Some(own) = unit_of(&module) else {
        return complain("belongs to no layer".to_owned());
    };
    let mut said = BTreeSet::new();
    for path in modules.paths_used_by(file) {
        let parts: Vec<&str> = path.iter().map(String::as_str).collect();
        match unit_of(&parts) {
            Some(other) if own.may_use(&other) => {}
            Some(other) => drop(said.insert(format!("{} may not use {}", own.name, other.name))),
            None if matches!(parts.as_slice(), [] | ["crossbeam_channel", ..]) => {}
            None => drop(said.insert(format!("uses the unknown {}", path.join("::")))),
        }
    }
    said.into_iter().for_each(complain);
}

fn check_time(file: &Source, complain: &mut Complain<'_>) {
    if file.path == READS_TIME {
        return;
    }
    for reader in ["Instant::now", "SystemTime", "UNIX_EPOCH", ".elapsed()", "clock_gettime"] {
        if file.code.contains(reader) {
            complain(format!("reads time ({reader}); {READS_TIME} does"));
        }
    }
    if file.code.contains("thread::sleep") {
        complain("sleeps; wait on a Parker".to_owned());
    }
}

fn check_panics(file: &Source, complain: &mut Complain<'_>) {
    let ways = [
        (".unwrap()", "unwrap_used"),
        (".unwrap_err()", "unwrap_used"),
        (".expect(", "expect_used"),
        (".expect_err(", "expect_used"),
        ("panic!", "panic"),
        ("unreachable!", "unreachable"),
        ("todo!", "todo"),
        ("unimplemented!", "unimplemented"),
    ];
    for (way, lint) in ways {
        for (at, _) in file.code.match_indices(way) {
            let listed = MAY_PANIC.contains(&(file.path.as_str(), way));
            if !(listed && is_expected(&file.code[..at], lint)) {
                let line = file.code[..at].matches('\n').count() + 1;
                complain(format!("line {line} may panic: {way}"));
            }
        }
    }
}

/// Whether the function that `before` ends in has an `#[expect]` for the lint among its attributes.
fn is_expected(before: &str, lint: &str) -> bool {
    let Some(function) = before.rfind("fn ") else { return false };
    let head = &before[..function];
    let attributes = &head[head.rfind(['}', ';']).map_or(0, |end| end + 1)..];
    attributes.contains(&format!("#[expect(clippy::{lint}"))
}

fn check_length(file: &Source, is_test: bool, complain: &mut Complain<'_>) {
    let lines = file.text.lines().count();
    if lines > TOO_LONG {
        complain(format!("{lines} lines, the most is {TOO_LONG}"));
    }
    let code = file.code.lines().filter(|line| !line.trim().is_empty()).count();
    let header = file.text.lines().take_while(|line| line.starts_with("//!"));
    // Tests count in no file: neither beside the code nor in files of their own.
    if !is_test && code > LONG && !header.into_iter().any(|line| line.contains("Long because")) {
        complain(format!("{code} lines of code, over {LONG}, and no reason in the header"));
    }
}

fn check_script_text(file: &Source, complain: &mut Complain<'_>) {
    for text in &file.strings {
        if ["redis.call", "redis.pcall", "KEYS[", "ARGV["].iter().any(|lua| text.contains(lua)) {
            complain(format!("script text outside of the .lua files: {text:?}"));
        }
    }
    for (at, _) in file.code.match_indices("Script::new(") {
        let is_drivers = file.code[..at].ends_with("redis::"); // which only hashes it
        let argument = file.code[at + "Script::new(".len()..].trim_start();
        let is_whole =
            ["include_str!", "concat!(include_str!("].iter().any(|from| argument.starts_with(from));
        if !is_drivers && !is_whole {
            complain("a script's text comes not by include_str!".to_owned());
        }
    }
    let evaluates = file.strings.iter().any(|text| text == "EVAL");
    for maker in ["arg(format!", "arg(&format!", ".push_str(", "write!("] {
        if evaluates && file.code.contains(maker) {
            complain(format!("sends EVAL and puts text together: {maker}"));
        }
    }
}

/// What belongs to a name is called by one list, which says what is no name as well.
fn check_derived(file: &Source, complain: &mut Complain<'_>) {
    // The names of tables are no names of locks.
    let lists = ["src/ident/derived.rs", "src/store/sql/", "src/config.rs"];
    let is_a_list = lists.iter().any(|list| file.path.starts_with(list));
    for text in &file.strings {
        if !is_a_list && ["redisson_", "leasehold_"].iter().any(|begins| text.starts_with(begins)) {
            complain(format!("derives a name by itself: {text:?}"));
        }
    }
}

/// A script's header names all that it is given, and what it returns.
fn check_script(file: &Source, complain: &mut Complain<'_>) {
    let is_comment = |line: &&str| line.starts_with("--");
    let header: String = file.text.lines().take_while(is_comment).collect();
    let body = file.text.lines().skip_while(is_comment).collect::<Vec<_>>().join("\n");
    for list in ["KEYS[", "ARGV["] {
        for (at, _) in body.match_indices(list) {
            let end = body[at..].find(']').map_or(body.len(), |end| at + end + 1);
            let parameter = &body[at..end];
            if !header.contains(parameter) {
                complain(format!("the header does not say what {parameter} is"));
            }
        }
    }
    if !header.contains("Returns") {
        complain("the header does not say what it Returns".to_owned());
    }
}

/// A statement's header names all that it is given, and what it comes to. What creates a table explains its columns.
fn check_query(file: &Source, complain: &mut Complain<'_>) {
    let header: String = file.text.lines().take_while(|line| line.starts_with("--")).collect();
    let body = file.text.lines().filter_map(|line| line.split("--").next()).collect::<Vec<_>>().join("\n");
    for (at, sign) in body.match_indices(['$', '?', ':']) {
        let name: String = body[at + 1..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let is_cast = sign == ":" && (body[..at].ends_with(':') || body[at..].starts_with("::"));
        let parameter = format!("{sign}{name}");
        if !name.is_empty() && !is_cast && !header.contains(&parameter) {
            complain(format!("the header does not say what {parameter} is"));
        }
    }
    let is_told = ["Returns", "Changes", "Removes"].iter().any(|word| header.contains(word));
    if !is_told && !body.starts_with("CREATE TABLE") {
        complain("the header does not say what it Returns, Changes or Removes".to_owned());
    }
}

fn check_driver(file: &Source, complain: &mut Complain<'_>) {
    for (driver, homes) in DRIVERS {
        if homes.iter().any(|home| file.path.starts_with(home)) {
            continue;
        }
        for (at, _) in file.code.match_indices(driver) {
            let before = file.code[..at].chars().next_back();
            if !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                complain(format!("knows the driver: {driver}"));
            }
        }
    }
}

// ---- reading Rust as text

/// `text` with comments and the contents of strings blanked, and the strings with where they began.
fn blanked(text: &str) -> (String, Vec<(usize, String)>) {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut strings = Vec::new();
    let blank = |code: &mut Vec<u8>, from: usize, to: usize| {
        for byte in &mut code[from..to] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
    };
    let find = |from: usize, what: &str| text[from..].find(what).map_or(text.len(), |at| from + at);
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        if rest.starts_with(b"//") {
            let end = find(at, "\n");
            blank(&mut code, at, end);
            at = end;
        } else if rest.starts_with(b"/*") {
            let (mut depth, mut end) = (1, at + 2);
            while depth > 0 && end < bytes.len() {
                match &bytes[end..] {
                    [b'/', b'*', ..] => (depth, end) = (depth + 1, end + 2),
                    [b'*', b'/', ..] => (depth, end) = (depth - 1, end + 2),
                    _ => end += 1,
                }
            }
            blank(&mut code, at, end);
            at = end;
        } else if let Some(hashes) = raw_string(bytes, at) {
            let begin = at + 2 + hashes;
            let close = format!("\"{}", "#".repeat(hashes));
            let end = find(begin, &close);
            strings.push((at, text[begin..end].to_owned()));
            blank(&mut code, begin, end);
            at = (end + close.len()).min(bytes.len());
        } else if rest[0] == b'"' {
            let mut end = at + 1;
            while end < bytes.len() && bytes[end] != b'"' {
                end += if bytes[end] == b'\\' { 2 } else { 1 };
            }
            let end = end.min(bytes.len());
            strings.push((at, text[at + 1..end].to_owned()));
            blank(&mut code, at + 1, end);
            at = end + 1;
        } else if rest[0] == b'\'' {
            // A character, or a lifetime: only the former has a second quote right behind it.
            let mut inner = text[at + 1..].chars();
            let end = match inner.next() {
                Some('\\') => find(at + 3, "'"),
                Some(c) if inner.next() == Some('\'') => at + 1 + c.len_utf8(),
                _ => at,
            };
            if end > at {
                blank(&mut code, at + 1, end.min(bytes.len()));
            }
            at = end + 1;
        } else {
            at += 1;
        }
    }
    (String::from_utf8(code).unwrap(), strings)
}

/// The number of hashes if a raw string begins at `at`.
fn raw_string(bytes: &[u8], at: usize) -> Option<usize> {
    let in_word = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
    if bytes[at] != b'r' || (in_word && bytes[at - 1] != b'b') {
        return None;
    }
    let hashes = bytes[at + 1..].iter().take_while(|byte| **byte == b'#').count();
    (bytes.get(at + 1 + hashes) == Some(&b'"')).then_some(hashes)
}

/// Where items that are only there for tests stand in blanked code.
fn test_code(code: &str) -> Vec<std::ops::Range<usize>> {
    let mut ranges = Vec::new();
    for (at, _) in code.match_indices("#[cfg(test)]") {
        let mut depth = 0_usize;
        let end = code[at..].char_indices().find_map(|(offset, c)| {
            match c {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            (depth == 0 && matches!(c, '}' | ';')).then_some(at + offset + 1)
        });
        ranges.push(at..end.unwrap_or(code.len()));
    }
    ranges
}
