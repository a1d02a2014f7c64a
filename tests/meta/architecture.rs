//! The shape of the source: layers, cycles, drivers, and headers of scripts and statements.
//!
//! The checker must also report samples that break each rule. `proc-macro2` splits Rust into tokens, of which
//! `flatten` drops test code. clippy finds panics, `Instant::now` and sleeps (`Cargo.toml`, `clippy.toml`).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, its helpers too"
)]

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use crate::docs::{dependencies, files, package, read};

/// The layers, and the layers that each may use. The modules of a layer may use each other, except in a
/// cycle. Stores may not use each other.
const LAYERS: &[(&str, &[&str])] = &[
    ("client", &["locks", "topologies", "stores", "engine", "seam", "ground"]),
    ("locks", &["engine", "seam", "ground"]),
    ("topologies", &["seam", "ground"]),
    ("stores", &["seam", "ground"]),
    ("engine", &["seam", "ground"]),
    ("seam", &["ground"]),
    ("ground", &[]),
];

const GROUND: &str = "config copies deadlock directory error fork health hosts inquiry credentials ident fuzz \
    inspect interrupt observe park refused shrink secrets servers sync system task time tls wire";

/// Crates, each with the files and folders that alone may use it.
const DRIVERS: &[(&str, &[&str])] = &[
    ("redis", &["src/stores/redis/"]),
    ("rustls", &["src/tls.rs"]),
    ("r2d2", &["src/stores/redis/"]),
    ("tokio", &["src/stores/sql/postgres/", "src/task.rs"]),
    ("tokio_postgres", &["src/stores/sql/postgres/"]),
    ("postgres", &["src/stores/sql/postgres/"]),
    ("mysql", &["src/stores/sql/mysql"]),
    ("rusqlite", &["src/stores/sql/sqlite.rs", "src/stores/sql/sqlite/connection.rs"]),
    ("httparse", &["src/stores/etcd/http.rs"]),
    ("percent_encoding", &["src/hosts/"]),
    ("rustix", &["src/system/", "src/locks/fencing/mod.rs"]),
    ("winapi_util", &["src/system/", "src/locks/fencing/mod.rs"]),
    // Only `sync` uses this crate, so that models can replace it by shuttle.
    ("parking_lot", &["src/sync/"]),
];

/// The files that build the names of keys, channels and metrics. No other file contains such a name.
const DERIVES_NAMES: &[&str] =
    &["src/observe/metrics.rs", "src/ident/derived.rs", "src/stores/sql/", "src/config.rs"];

/// The only file that may call `expect`, because one of its methods panics by its documentation.
const MAY_PANIC: &str = "src/client/mod.rs";

/// The only file that reads a clock, and the folder with the clocks of the operating systems.
const READS_TIME: &str = "src/time.rs";
const HAS_CLOCKS: &str = "src/system/";

/// The only files that may test for which operating system they are compiled.
const KNOWS_THE_SYSTEM: &[&str] = &["src/lib.rs", "src/system", "src/locks/fencing/mod.rs"];

/// The maximum number of lines of a file, including its tests.
const MOST_LINES: usize = 800;

/// A file with more lines of code must state its reason in a sentence that begins with `This file is long because`.
const LONG: usize = 400;

/// The compiler ignores a file that no `mod` names, and with it its tests.
#[test]
fn each_file_of_a_test_program_is_compiled() {
    let mut checked = 0;
    for program in ["contract", "faults", "histories", "interop", "meta", "stores", "topology"] {
        let folder = format!("tests/{program}");
        let main = read(format!("{folder}/main.rs"));
        let beside = |path: &std::path::PathBuf| path.parent() == Some(folder.as_ref());
        for path in files(&folder, "rs").into_iter().filter(beside) {
            let module = path.file_stem().unwrap().to_string_lossy().into_owned();
            assert!(module == "main" || main.contains(&format!("mod {module};")), "{}", path.display());
            checked += 1;
        }
    }
    assert!(checked > 100, "only {checked} files were found");
}

#[test]
fn no_source_file_breaks_an_architecture_rule() {
    let files = all_sources();
    assert!(files.len() > 100, "only {} files were found", files.len());
    let found = violations(&files);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_architecture_checker_sees_uses_through_reexports() {
    let files = all_sources();
    let modules = Modules::of(&files);
    let uses = |from: &str, to: &str| modules.uses[from].contains(to);
    assert!(uses("client", "engine"));
    assert!(uses("engine::acquire::waiting", "seam::claim"), "through a re-export");
    assert!(uses("stores::redis::conn::connections", "stores::redis::conn::shared"));
    assert!(modules.uses.values().map(BTreeSet::len).sum::<usize>() > 500);
}

/// Each author of a store must read this trait, so it stays short. Optional abilities are in `Capabilities`.
#[test]
fn the_store_trait_has_at_most_sixteen_methods() {
    let files = all_sources();
    let seam = files.iter().find(|file| file.path == "src/seam/mod.rs").unwrap();
    let word = |word: &str| Token::Word(word.to_owned());
    let begin = seam.tokens.windows(2).position(|pair| pair == [word("trait"), word("Store")]).unwrap();
    let (mut depth, mut methods) = (0, Vec::new());
    for (at, token) in seam.tokens.iter().enumerate().skip(begin) {
        match token {
            Token::Sign('{') => depth += 1,
            Token::Sign('}') if depth == 1 => break,
            Token::Sign('}') => depth -= 1,
            token if depth == 1 && *token == word("fn") => methods.push(&seam.tokens[at + 1]),
            _ => {}
        }
    }
    assert!((10..=16).contains(&methods.len()), "{methods:?}");
}

fn complaints(samples: &[(&str, &str)]) -> Vec<String> {
    let root = ("src/lib.rs", "mod client; mod engine; pub use client::LockClient; pub use error::Error;");
    let known = "client/mod client/open engine/mod engine/queue error stores/memory/mod stores/redis/mod";
    let mut files: Vec<Source> =
        known.split(' ').map(|path| Source::new(&format!("src/{path}.rs"), "")).collect();
    for (path, text) in samples.iter().chain([&root]) {
        files.retain(|file| file.path != *path);
        files.push(Source::new(path, text));
    }
    violations(&files)
}

#[track_caller]
fn breaks(path: &str, text: &str, expected: &str) {
    let found = complaints(&[(path, text)]);
    assert!(
        found.iter().any(|line| line.contains(expected)),
        "not reported: {expected}\nreported: {found:?}"
    );
    assert!(found.iter().all(|line| line.contains(path)), "{found:?}");
}

#[track_caller]
fn keeps(path: &str, text: &str) {
    assert_eq!(complaints(&[(path, text)]), Vec::<String>::new());
}

#[test]
fn the_architecture_checker_reports_exactly_the_bad_samples() {
    let (queue, memory, redis) =
        ("src/engine/queue.rs", "src/stores/memory/mod.rs", "src/stores/redis/mod.rs");
    let (lua, sql) = ("src/stores/redis/lua/a.lua", "src/stores/sql/query/sqlite/a.sql");
    for (path, text, expected) in [
        (queue, "use crate::client::LockClient;", "engine may not use client"),
        (queue, "use crate::{error::Error, stores::memory::{self, MemoryStore}};", "may not use stores"),
        ("src/error.rs", "fn f() -> crate::engine::Engine { g() }", "ground may not use engine"),
        // `LockClient` belongs to the layer client, although the crate's root re-exports it.
        (queue, "fn f(client: &crate::LockClient) {}", "engine may not use client"),
        (queue, "use super::super::client::LockClient;", "engine may not use client"),
        (memory, "use crate::stores::redis::RedisStore;", "may not use stores/redis"),
        (memory, "use super::redis::RedisStore;", "may not use stores/redis"),
        ("src/utils.rs", "", "belongs to no layer"),
        ("src/helpers/misc.rs", "", "belongs to no layer"),
        ("src/error.rs", "impl From<redis::RedisError> for Error {}", "knows redis"),
        (queue, "use parking_lot::Mutex;", "knows parking_lot"),
        (memory, "fn f() { tokio::spawn(work); }", "knows tokio"),
        (redis, "const A: &str = \"redisson_fair:\";", "derives a name"),
        (redis, "const A: &str = \"return redis.call('GET', KEYS[1])\";", "text of a script"),
        (redis, "fn f() { Script::new(&text); }", "include_str!"),
        (redis, "fn f() { Command::new(\"EVAL\"); arg(format!(\"{a}\")); }", "puts text together"),
        (redis, "fn f() { Command::new(\"EVAL\"); arg(&format!(\"{a}\")); }", "puts text together"),
        (redis, "fn f() { Command::new(\"EVAL\"); text.push_str(a); }", "puts text together"),
        (redis, "fn f() { Command::new(\"EVAL\"); write!(text, \"{a}\"); }", "puts text together"),
        (queue, "#[cfg(unix)]\nfn f() {}", "asks for which system"),
        (queue, "#[cfg(not(windows))]\nfn f() {}", "asks for which system"),
        (queue, "#[cfg(any(target_os = \"linux\", windows))]\nfn f() {}", "asks for which system"),
        (queue, "fn f() { rustix::event::poll(sockets, None); }", "knows rustix"),
        (queue, "#[expect(clippy::expect_used)]\nfn f() { x.expect(\"y\"); }", "silences"),
        (queue, "#[allow(clippy::panic)]\nfn f() {}", "silences"),
        (queue, "#[expect(clippy::disallowed_methods)]\nfn f() { Instant::now(); }", "silences"),
        ("src/client/open.rs", "#![allow(clippy::unwrap_used)]\nfn f() {}", "silences"),
        (queue, "fn f() { at.elapsed(); }", "reads a clock"),
        (queue, "fn f() { SystemTime::UNIX_EPOCH; }", "reads a clock"),
        (queue, "fn f() { clock_gettime(id); }", "reads a clock"),
        (lua, "-- Looks.\n-- KEYS[1] the lock\nreturn KEYS[1]", "Returns"),
        (sql, "-- Looks.\n-- Returns x\nSELECT a FROM b WHERE c = ?1", "?1"),
        (sql, "-- Looks.\n-- $1 name\n-- Returns x\nSELECT a::text FROM b WHERE c = $1 AND d = $2", "$2"),
        (sql, "-- Looks.\n-- :name\nSELECT a FROM b WHERE c = :name", "Returns"),
    ] {
        breaks(path, text, expected);
    }
    for (path, text) in [
        ("src/client/open.rs", "use crate::{error::Error, engine::Engine, stores::memory::MemoryStore};"),
        (
            queue,
            "/// See [`lock`](crate::client::LockClient).\n// use crate::client;\nfn f() -> &'static str { \"use crate::client;\" }",
        ),
        ("src/error.rs", "#[cfg(test)]\nmod tests { use crate::client::LockClient; }"),
        ("src/error.rs", "#[cfg(all(test, not(leasehold_shuttle)))]\nfn f(client: crate::LockClient) {}"),
        (redis, "use redis::Cmd; use r2d2::Pool;"),
        ("src/client/open.rs", "fn f() { crate::stores::redis::open(); sql::postgres::open(); }"),
        (redis, "#[cfg(test)] const A: &str = \"redisson_fair:\";"),
        (redis, "fn f() { Script::new(include_str!(\"a.lua\")); redis::Script::new(text); }"),
        (redis, "fn f() { Command::new(\"EVAL\").arg(BODY); }"),
        ("src/system/unix.rs", "#[cfg(unix)]\nfn f() {}"),
        (queue, "#[cfg(all(test, unix))]\nmod tests {}"),
        (queue, "#[cfg(unix)]\n#[cfg(test)]\nmod tests {}"),
        (queue, "#[cfg(test)]\nmod tests { #[cfg(unix)] fn f() {} }"),
        (MAY_PANIC, "#[expect(clippy::expect_used, reason = \"documented\")]\nfn f() { x.expect(\"y\"); }"),
        (queue, "#[cfg(test)]\n#[allow(clippy::panic)]\nmod tests { fn f() {} }"),
        (READS_TIME, "fn f() { at.elapsed(); SystemTime::UNIX_EPOCH; clock_gettime(id); }"),
        (lua, "-- Looks.\n-- KEYS[1] the lock\n-- Returns x\nreturn KEYS[1]"),
        (sql, "-- Looks.\n-- :name\n-- Returns x\nSELECT a::text FROM b WHERE c = :name"),
        (sql, "CREATE TABLE a (b text)"),
    ] {
        keeps(path, text);
    }
}

#[test]
fn a_dependency_cycle_of_files_is_reported() {
    let [a, b, c] = ["src/engine/a.rs", "src/engine/b.rs", "src/engine/c.rs"];
    let circle =
        [(a, "use crate::engine::b::B;"), (b, "use super::c::C;"), (c, "fn f() { crate::engine::a::g(); }")];
    let found = complaints(&circle);
    assert_eq!(found, ["circle: engine::a, engine::b, engine::c"]);
    let back = [
        ("src/engine/mod.rs", "pub struct E; use crate::engine::queue::Q;"),
        ("src/engine/queue.rs", "use super::E;"),
    ];
    assert_eq!(complaints(&back), ["circle: engine, engine::queue"]);
    // A re-export alone does not count as a use, so these files form no cycle.
    let through = [
        ("src/engine/mod.rs", "pub use crate::engine::queue::Q;"),
        (a, "use super::Q;"),
        ("src/engine/queue.rs", ""),
    ];
    assert_eq!(complaints(&through), Vec::<String>::new());
}

#[test]
fn logic_in_lib_rs_and_overlong_files_are_reported() {
    let root = Source::new("src/lib.rs", "mod error;\nfn helper() {}");
    assert!(violations(&[root]).iter().any(|line| line.contains("holds logic")));
    let code = |lines| "const A: u8 = 1;\n".repeat(lines);
    breaks("src/engine/queue.rs", &code(MOST_LINES + 1), "lines");
    breaks("src/engine/queue.rs", &code(LONG + 1), "no reason");
    keeps(
        "src/engine/queue.rs",
        &format!("//! This file is long because it is one thought.\n{}", code(LONG + 1)),
    );
    keeps("src/engine/queue.rs", &format!("{}// a comment\n", code(LONG)));
}

struct Source {
    path: String,
    text: String,
    /// The file's tokens, without comments, attributes and test code.
    tokens: Vec<Token>,
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Word(String),
    Text(String),
    Sign(char),
}

impl Source {
    fn new(path: &str, text: &str) -> Source {
        let mut tokens = Vec::new();
        if path.ends_with(".rs") {
            let stream: TokenStream = text.parse().unwrap_or_else(|error| panic!("{path}: {error}"));
            flatten(stream, &mut tokens);
        }
        Source { path: path.to_owned(), text: text.to_owned(), tokens }
    }

    /// The path of the module: `src/stores/redis/show.rs` is `stores::redis::show`, and the root is empty.
    fn module(&self) -> String {
        let inner = self.path.trim_start_matches("src/").trim_end_matches(".rs");
        let parts: Vec<&str> = inner.split('/').filter(|part| !matches!(*part, "lib" | "mod")).collect();
        parts.join("::")
    }

    fn is_test(&self) -> bool {
        let of_tests = |part: &str| matches!(part, "tests" | "tests.rs" | "model.rs");
        self.path.split('/').any(of_tests)
    }
}

/// Appends the tokens of `stream`, except attributes and test items.
fn flatten(stream: TokenStream, tokens: &mut Vec<Token>) {
    let mut trees = stream.into_iter().peekable();
    while let Some(tree) = trees.next() {
        match tree {
            TokenTree::Punct(sign) if sign.as_char() == '#' => {
                let attribute =
                    trees.next_if(|next| matches!(next, TokenTree::Group(_) | TokenTree::Punct(_)));
                let is_inner = matches!(&attribute, Some(TokenTree::Punct(_)));
                let attribute = if is_inner { trees.next() } else { attribute };
                if !is_inner && matches!(&attribute, Some(TokenTree::Group(group)) if is_for_tests(group)) {
                    let ends = |tree: &TokenTree| match tree {
                        TokenTree::Punct(sign) => sign.as_char() == ';',
                        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                        _ => false,
                    };
                    trees.by_ref().find(ends);
                }
            }
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Brace => ('{', '}'),
                    Delimiter::Bracket => ('[', ']'),
                    Delimiter::Parenthesis | Delimiter::None => ('(', ')'),
                };
                tokens.push(Token::Sign(open));
                flatten(group.stream(), tokens);
                tokens.push(Token::Sign(close));
            }
            TokenTree::Ident(word) => tokens.push(Token::Word(word.to_string())),
            TokenTree::Punct(sign) => tokens.push(Token::Sign(sign.as_char())),
            TokenTree::Literal(text) => tokens.push(Token::Text(text.to_string())),
        }
    }
}

fn is_for_tests(attribute: &Group) -> bool {
    let text = attribute.stream().to_string().replace(' ', "");
    text.starts_with("cfg(test") || text.starts_with("cfg(all(test")
}

fn all_sources() -> Vec<Source> {
    let files = ["rs", "lua", "sql"].into_iter().flat_map(|ending| files("src", ending));
    files.map(|file| Source::new(&file.to_str().unwrap().replace('\\', "/"), &read(&file))).collect()
}

struct Modules {
    uses: BTreeMap<String, BTreeSet<String>>,
}

impl Modules {
    fn of(files: &[Source]) -> Modules {
        let rust: Vec<&Source> =
            files.iter().filter(|file| file.path.ends_with(".rs") && !file.is_test()).collect();
        let known: BTreeSet<String> = rust.iter().map(|file| file.module()).collect();
        let mut reexports = BTreeMap::new();
        let mut named = BTreeMap::new();
        for file in &rust {
            let mut paths = Vec::new();
            for used in paths_of(file) {
                let name = used.path.rsplit("::").next().unwrap_or_default().to_owned();
                if used.is_passed_on {
                    reexports.insert(join(&file.module(), &name), used.path.clone());
                }
                if !used.is_passed_on {
                    paths.push(used.path);
                }
            }
            named.insert(file.module(), paths);
        }
        let module_of = |path: &str| {
            let mut path = path.to_owned();
            // A macro may be re-exported under its own path. Following that path would never end.
            let leads_on = |path: &String| reexports.get(path).filter(|from| *from != path).cloned();
            while let Some(from) = leads_on(&path) {
                path = from;
            }
            loop {
                if known.contains(&path) {
                    return path;
                }
                path = path.rsplit_once("::").map_or(String::new(), |(outer, _)| outer.to_owned());
                if let Some(from) = leads_on(&path) {
                    path = from;
                }
            }
        };
        let uses = named.into_iter().map(|(module, paths)| {
            let used =
                paths.iter().map(|path| module_of(path)).filter(|used| *used != module && !used.is_empty());
            (module.clone(), used.collect())
        });
        Modules { uses: uses.collect() }
    }

    /// The groups of modules that use each other in a cycle.
    fn circles(&self) -> Vec<String> {
        let reach = |from: &String| {
            let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
            while let Some(module) = next.pop() {
                for used in self.uses.get(module).into_iter().flatten() {
                    if reached.insert(used) {
                        next.push(used);
                    }
                }
            }
            reached
        };
        let reached: BTreeMap<&String, BTreeSet<&String>> =
            self.uses.keys().map(|from| (from, reach(from))).collect();
        let mut circles = BTreeSet::new();
        for (module, beyond) in &reached {
            if beyond.contains(module) {
                let back =
                    |other: &&&String| reached.get(**other).is_some_and(|reached| reached.contains(module));
                let circle: Vec<&str> = beyond.iter().filter(back).map(|module| module.as_str()).collect();
                circles.insert(format!("circle: {}", circle.join(", ")));
            }
        }
        circles.into_iter().collect()
    }
}

fn join(module: &str, name: &str) -> String {
    if module.is_empty() { name.to_owned() } else { format!("{module}::{name}") }
}

struct Used {
    path: String,
    is_passed_on: bool,
}

fn paths_of(file: &Source) -> Vec<Used> {
    let (module, tokens) = (file.module(), &file.tokens);
    let mut used = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let is_start = |at: usize| match tokens.get(at) {
            Some(Token::Word(word)) => matches!(word.as_str(), "crate" | "super" | "self"),
            _ => false,
        };
        let is_use = matches!(&tokens[at], Token::Word(word) if word == "use");
        let follows_colon = at > 0 && tokens[at - 1] == Token::Sign(':');
        if is_use || is_start(at) && !follows_colon && tokens.get(at + 1) == Some(&Token::Sign(':')) {
            let is_public = |token: &Token| matches!(token, Token::Word(word) if word == "pub");
            let before = &tokens[at.saturating_sub(4)..at];
            let is_passed_on = is_use
                && (before.last().is_some_and(is_public)
                    || before.first().is_some_and(is_public) && before.last() == Some(&Token::Sign(')')));
            let mut paths = Vec::new();
            at = tree(tokens, if is_use { at + 1 } else { at }, &mut Vec::new(), &mut paths);
            for path in paths {
                let mut full: Vec<&str> = module.split("::").filter(|part| !part.is_empty()).collect();
                // A path may also begin with a child module or a crate. For a crate's path `module_of`
                // returns this module, whose use of itself does not count.
                for part in &path {
                    match part.as_str() {
                        "crate" => full.clear(),
                        "super" => drop(full.pop()),
                        "self" => {}
                        part => full.push(part),
                    }
                }
                used.push(Used { path: full.join("::"), is_passed_on });
            }
        } else {
            at += 1;
        }
    }
    used
}

/// Reads the paths of a `use` tree (`a::{b, c}`) from the token `at` on, and returns the next token's index.
fn tree(tokens: &[Token], mut at: usize, prefix: &mut Vec<String>, paths: &mut Vec<Vec<String>>) -> usize {
    let depth = prefix.len();
    loop {
        match tokens.get(at) {
            Some(Token::Word(word)) => {
                prefix.push(word.clone());
                at += 1;
                if tokens.get(at..at + 2) == Some(&[Token::Sign(':'), Token::Sign(':')]) {
                    at += 2;
                    continue;
                }
                paths.push(prefix.clone());
                if tokens.get(at) == Some(&Token::Word("as".to_owned())) {
                    at += 2;
                }
            }
            Some(Token::Sign('{')) if depth < prefix.len() || prefix.is_empty() => {
                at += 1;
                while tokens.get(at).is_some_and(|token| *token != Token::Sign('}')) {
                    let next = tree(tokens, at, prefix, paths);
                    at = if next == at { at + 1 } else { next };
                }
                at += 1;
            }
            Some(Token::Sign('*')) => {
                paths.push(prefix.clone());
                at += 1;
            }
            _ => {}
        }
        prefix.truncate(depth);
        return at;
    }
}

fn layer_of(module: &str) -> Option<&'static str> {
    let first = module.split("::").next().unwrap_or_default();
    if GROUND.split(' ').any(|module| module == first) {
        return Some("ground");
    }
    LAYERS.iter().map(|(layer, _)| *layer).find(|layer| *layer == first)
}

fn store_of(module: &str) -> Option<&str> {
    module.strip_prefix("stores::")?.split("::").next()
}

fn violations(files: &[Source]) -> Vec<String> {
    let modules = Modules::of(files);
    let mut found = Vec::new();
    for file in files {
        let mut complain = |words: String| found.push(format!("{}: {words}", file.path));
        match file.path.rsplit_once('.').map(|(_, kind)| kind) {
            Some("lua") => check_script(file, &mut complain),
            Some("sql") => check_query(file, &mut complain),
            _ => check_rust(file, &modules, &mut complain),
        }
    }
    found.extend(modules.circles());
    found
}

type Complain<'a> = dyn FnMut(String) + 'a;

fn check_rust(file: &Source, modules: &Modules, complain: &mut Complain<'_>) {
    let lines = file.text.lines().count();
    if lines > MOST_LINES {
        complain(format!("{lines} lines, the most is {MOST_LINES}"));
    }
    if file.is_test() {
        return;
    }
    let before_tests = file.text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
    let code = before_tests.lines().filter(is_code).count();
    let mut header = file.text.lines().take_while(|line| line.starts_with("//!"));
    if code > LONG && !header.any(|line| line.contains("This file is long because")) {
        complain(format!("{code} lines of code, over {LONG}, and no reason in the header"));
    }
    let module = file.module();
    if module.is_empty() {
        let items = ["fn", "impl", "struct", "enum", "trait", "static", "const", "macro_rules"];
        if file
            .tokens
            .iter()
            .any(|token| matches!(token, Token::Word(word) if items.contains(&word.as_str())))
        {
            complain("the root holds logic; it lists and re-exports".to_owned());
        }
        return;
    }
    let Some(own) = layer_of(&module) else { return complain("belongs to no layer".to_owned()) };
    let mut reported = BTreeSet::new();
    for used in &modules.uses[&module] {
        let Some(other) = layer_of(used) else { continue };
        let may = own == other || LAYERS.iter().any(|(layer, below)| *layer == own && below.contains(&other));
        if !may {
            reported.insert(format!("{own} may not use {other}"));
        }
        if let (Some(store), Some(of)) = (store_of(&module), store_of(used))
            && store != of
        {
            reported.insert(format!("stores/{store} may not use stores/{of}"));
        }
    }
    check_lints(file, &mut reported);
    check_bodies(file, &mut reported);
    for (at, token) in file.tokens.iter().enumerate() {
        match token {
            Token::Word(word) => check_word(file, at, word, &mut reported),
            Token::Text(text) => check_text(file, text, &mut reported),
            Token::Sign(_) => {}
        }
    }
    reported.into_iter().for_each(complain);
}

/// Searches attributes, which the tokens lack, for silenced lints and for conditions on the system.
fn check_lints(file: &Source, reported: &mut BTreeSet<String>) {
    let code = file.text.split("#[cfg(test)]").next().unwrap_or_default();
    // An attribute directly above the tests belongs to them, so it is removed too.
    let code = code.trim_end().strip_suffix("#[cfg(unix)]").unwrap_or(code);
    let code = code.trim_end().strip_suffix("#[cfg(all(unix, not(leasehold_shuttle)))]").unwrap_or(code);
    let lints =
        ["unwrap_used", "expect_used", "panic", "unreachable", "todo", "unimplemented", "disallowed_methods"];
    for line in code.lines().filter(|line| line.trim_start().starts_with('#')) {
        let silences = |lint: &&&str| line.contains(&format!("clippy::{lint}"));
        if let Some(lint) = lints.iter().find(silences) {
            let may = match *lint {
                "disallowed_methods" => file.path == READS_TIME || file.path.starts_with(HAS_CLOCKS),
                _ => file.path == MAY_PANIC,
            };
            if !may {
                reported.insert(format!("silences the lint {lint}"));
            }
        }
        let names_a_system = ["unix", "windows", "target_os"].iter().any(|system| line.contains(system));
        if names_a_system
            && !line.contains("test")
            && !KNOWS_THE_SYSTEM.iter().any(|place| file.path.starts_with(place))
        {
            reported.insert("asks for which system it is compiled; src/system.rs does".to_owned());
        }
    }
}

/// Reports a file that sends EVAL and also puts text together: a script's text must be constant.
fn check_bodies(file: &Source, reported: &mut BTreeSet<String>) {
    let word = |word: &str| Token::Word(word.to_owned());
    let formatted = |tokens: &[Token]| match tokens {
        [one, Token::Sign('('), Token::Sign('&'), two, ..] | [one, Token::Sign('('), two, ..] => {
            *one == word("arg") && *two == word("format")
        }
        _ => false,
    };
    let makes = |at: usize| {
        let tokens = &file.tokens[at..];
        tokens[0] == word("push_str")
            || tokens.starts_with(&[word("write"), Token::Sign('!')])
            || formatted(tokens)
    };
    let evaluates = file.tokens.contains(&Token::Text("\"EVAL\"".to_owned()));
    if evaluates && (0..file.tokens.len()).any(makes) {
        reported.insert("sends EVAL and puts text together".to_owned());
    }
}

fn check_word(file: &Source, at: usize, word: &str, reported: &mut BTreeSet<String>) {
    let (before, after) = (file.tokens[..at].last(), &file.tokens[at + 1..]);
    let is_path = after.starts_with(&[Token::Sign(':'), Token::Sign(':')]);
    let is_first = before != Some(&Token::Sign(':')) && before != Some(&Token::Sign('.'));
    if let Some((_, places)) = DRIVERS.iter().find(|(driver, _)| *driver == word)
        && is_path
        && is_first
        && !places.iter().any(|place| file.path.starts_with(place))
    {
        reported.insert(format!("knows {word}"));
    }
    let reads = ["UNIX_EPOCH", "SystemTime", "clock_gettime"].contains(&word)
        || word == "elapsed" && before == Some(&Token::Sign('.'));
    if reads && file.path != READS_TIME && !file.path.starts_with(HAS_CLOCKS) {
        reported.insert(format!("reads a clock ({word}); {READS_TIME} does"));
    }
    // A script's text must come from a file, because `check_script` reads only files.
    let is_script =
        word == "Script" && is_first && is_path && after.get(2) == Some(&Token::Word("new".to_owned()));
    if is_script && after.get(3) == Some(&Token::Sign('(')) {
        let included = |token: Option<&Token>| matches!(token, Some(Token::Word(word)) if word == "include_str" || word == "concat");
        if !included(after.get(4)) {
            reported.insert("makes a script from text that does not come by include_str!".to_owned());
        }
    }
}

fn check_text(file: &Source, text: &str, reported: &mut BTreeSet<String>) {
    if ["redis.call", "redis.pcall", "KEYS[", "ARGV["].iter().any(|lua| text.contains(lua)) {
        reported.insert(format!("has the text of a script: {text}"));
    }
    let is_name = ["\"redisson_", "\"leasehold_"].iter().any(|begins| text.starts_with(begins));
    if is_name && !DERIVES_NAMES.iter().any(|list| file.path.starts_with(list)) {
        reported.insert(format!("derives a name by itself: {text}"));
    }
}

/// The header of a script must say what the script returns. Another test checks the names of parameters.
fn check_script(file: &Source, complain: &mut Complain<'_>) {
    let is_comment = |line: &&str| line.starts_with("--");
    let header: String = file.text.lines().take_while(is_comment).collect();
    // The common prefix of all scripts has no result, so its header says `Prefix of all` instead.
    if !["Returns", "Defines", "Prefix of all"].iter().any(|word| header.contains(word)) {
        complain("the header does not say what it Returns or Defines".to_owned());
    }
}

/// The header of a statement must name all parameters, and say what the statement returns, changes or
/// removes. A statement that creates something need not say the latter.
fn check_query(file: &Source, complain: &mut Complain<'_>) {
    let header: String = file.text.lines().take_while(|line| line.starts_with("--")).collect();
    let body = file.text.lines().filter_map(|line| line.split("--").next()).collect::<Vec<_>>().join("\n");
    for (at, sign) in body.match_indices(['$', '?', ':']) {
        let name: String = body[at + 1..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let is_cast = sign == ":" && (body[..at].ends_with(':') || body[at..].starts_with("::"));
        let parameter = format!("{sign}{name}");
        if !name.is_empty() && !is_cast && !header.contains(&parameter) {
            complain(format!("the header does not explain {parameter}"));
        }
    }
    let is_told = ["Returns", "Changes", "Removes"].iter().any(|word| header.contains(word));
    if !is_told && !body.starts_with("CREATE ") {
        complain("the header does not say what it Returns, Changes or Removes".to_owned());
    }
}

/// A program can contain only one of several compatible versions of a crate, so no requirement may exclude
/// later ones. The lock file names an older version where the oldest supported Rust needs it.
#[test]
fn no_dependency_has_an_upper_version_bound() {
    for name in ["leasehold", "leasehold-cli"] {
        let package = package(name);
        let dependencies = dependencies(&package);
        assert!(dependencies.len() > 8, "{name}: {dependencies:?}");
        for dependency in dependencies {
            let version = dependency["req"].as_str().unwrap().strip_prefix('^');
            let is_number = |version: &str| version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
            assert!(version.is_some_and(is_number), "{name}: {dependency}");
        }
    }
}
