//! The public API is what `docs/api.txt` lists, so a change shows in the diff.
//!
//! `LEASEHOLD_BLESS=1 cargo test --test meta api_list` rewrites the list of the crate root's re-exports. The
//! test reads the source as text, and relies on `cargo fmt` to begin items at the left margin.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::docs::{files, is_listed, read, root};

/// For each public item, its definition, methods and traits.
type List = BTreeMap<String, Vec<String>>;

fn sources() -> impl Iterator<Item = PathBuf> {
    let is_hidden = |part: &std::ffi::OsStr| part == "tests" || part == "tests.rs" || part == "model.rs";
    files("src", "rs")
        .into_iter()
        .filter(move |file| !file.iter().any(is_hidden) && !file.ends_with("src/lib.rs"))
}

/// What the crate's root re-exports: items, and modules with their files.
struct Exports {
    items: BTreeSet<String>,
    modules: BTreeMap<PathBuf, String>,
}

fn exports() -> Exports {
    let text = read("src/lib.rs");
    // The hidden module comes last in the file, so only the text before it is public.
    let text = text.split("#[doc(hidden)]").next().unwrap();
    let mut exports = Exports { items: BTreeSet::new(), modules: BTreeMap::new() };
    for line in text.split(';').filter_map(|part| part.split("pub use ").nth(1)) {
        let path = line.split_whitespace().collect::<Vec<_>>().join(" ");
        let (path, alias) = path.split_once(" as ").unwrap_or((&path, ""));
        let folder = Path::new("src").join(path.replace("::", "/"));
        let files = [folder.join("mod.rs"), folder.with_extension("rs")];
        if let Some(file) = files.into_iter().find(|file| root().join(file).exists()) {
            let name = if alias.is_empty() { path.rsplit("::").next().unwrap() } else { alias };
            exports.modules.insert(file, name.to_owned());
            continue;
        }
        let names = path.rsplit_once("::").map_or(path, |(_, names)| names);
        let names = path.split_once('{').map_or(names, |(_, names)| names.trim_end_matches('}'));
        exports
            .items
            .extend(names.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()));
    }
    exports
}

/// The file's text, in which macros that write an `impl` are expanded.
fn expanded(text: &str) -> String {
    let mut out = String::new();
    let mut macros: BTreeMap<&str, (Vec<String>, Vec<&str>)> = BTreeMap::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix("macro_rules! ").and_then(|rest| rest.strip_suffix(" {")) {
            let body: Vec<_> = lines.by_ref().take_while(|line| *line != "}").collect();
            let variables = body[0].split('$').filter_map(|part| part.split_once(":ident"));
            macros.insert(name, (variables.map(|(variable, _)| format!("${variable}")).collect(), body));
            continue;
        }
        if let Some((name, _)) = line.strip_prefix("debug_fields!(").and_then(|rest| rest.split_once(',')) {
            out.push_str(&format!("impl fmt::Debug for {name} {{\n}}\n"));
            continue;
        }
        let call = line.split_once('!').filter(|(name, _)| macros.contains_key(name));
        let Some((name, arguments)) = call else {
            out.push_str(line);
            out.push('\n');
            continue;
        };
        if !arguments.ends_with([';', '}']) {
            // The other lines of the call contain only words for the documentation, so they are skipped.
            lines.by_ref().find(|line| line.starts_with(['}', ')']));
        }
        let (variables, body) = &macros[name];
        let arguments = arguments.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        let arguments: Vec<(&String, &str)> = variables.iter().zip(arguments).collect();
        for line in body {
            let line = line.strip_prefix("        ").unwrap_or("").to_owned();
            let line = arguments.iter().fold(line, |line, (variable, word)| line.replace(*variable, word));
            match line.strip_prefix("debug_fields!(").and_then(|rest| rest.split_once(',')) {
                Some((name, _)) => out.push_str(&format!("impl fmt::Debug for {name} {{\n}}\n")),
                None => out.push_str(&format!("{line}\n")),
            }
        }
    }
    out
}

fn signature(lines: &[&str], at: usize) -> String {
    let mut whole = String::new();
    for line in &lines[at..] {
        let line = line.trim();
        if !whole.is_empty() && !whole.ends_with(['(', '<']) && !line.starts_with(')') {
            whole.push(' ');
        }
        whole.push_str(line);
        if line.ends_with('{') || line.ends_with(';') || line.ends_with('}') {
            break;
        }
    }
    // Leaves out a constant's value, but keeps a bound such as `Item = T` and an alias's target.
    let is_value = |head: &str| {
        let closed = head.matches('>').count() - head.matches("->").count();
        !head.starts_with("pub type ") && head.matches('<').count() == closed
    };
    let mut ends = whole.match_indices(" = ").map(|(at, _)| at);
    let end = ends.find(|at| is_value(&whole[..*at])).unwrap_or(whole.len());
    let whole = whole[..end].replace(",)", ")").replace(",>", ">").replace(", where", " where");
    whole.trim_end_matches(['{', ';']).trim_end_matches("{}").trim().trim_end_matches(',').to_owned()
}

fn name_of(header: &str) -> &str {
    let name = header.split_whitespace().find(|word| {
        !["pub", "struct", "enum", "trait", "type", "const", "fn", "static", "unsafe"].contains(word)
    });
    name.unwrap_or_default().split(['<', '(', '{', ';', ':']).next().unwrap()
}

fn list(file: &Path, text: &str, exports: &Exports, list: &mut List) {
    let module = exports.modules.get(file);
    let qualified = |name: &str| module.map_or(name.to_owned(), |module| format!("{module}::{name}"));
    let is_public = |name: &str| module.is_some() || exports.items.contains(name);
    let text = expanded(text);
    let lines: Vec<&str> = text.lines().collect();
    let mut own: BTreeSet<&str> = BTreeSet::new();
    for line in lines.iter().filter(|line| line.starts_with("pub ")) {
        own.insert(name_of(line));
    }
    let mut attributes = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        if line.starts_with("#[") {
            attributes.push(line);
        }
        let is_of_an_attribute = line.starts_with('#') || line == ")]";
        if line.starts_with("//") || is_of_an_attribute || line.starts_with(' ') || line.is_empty() {
            at += 1;
            continue;
        }
        let closes =
            |line: &&str| line.starts_with(['}', ']']) || line.starts_with(')') && line.ends_with(';');
        let is_whole = line.ends_with(';') || line.ends_with('}');
        let end = if is_whole { 0 } else { lines[at..].iter().position(closes).unwrap_or(0) };
        let end = at + end;
        let body = &lines[at..=end];
        let header = signature(&lines, at);
        let told = attributes.drain(..).filter(|attribute: &&str| {
            ["#[derive", "#[non_exhaustive", "#[cfg(feature"].iter().any(|what| attribute.starts_with(what))
        });
        let told: Vec<&str> = told.collect();
        if line.starts_with("pub ") && is_public(name_of(line)) {
            let entry = list.entry(qualified(name_of(line))).or_default();
            entry.extend(told.into_iter().map(str::to_owned));
            entry.push(header.clone());
            entry.extend(inside(body, &header));
        } else if let Some(of) = line.strip_prefix("impl") {
            let of = signature(&[of], 0);
            let (what, target) = match of.split_once(" for ") {
                Some((what, target)) => (Some(what), target),
                None => (None, of.as_str()),
            };
            let target = target.rsplit("> ").next().unwrap().trim();
            let name = target.split('<').next().unwrap();
            if is_public(name) && (module.is_none() || own.contains(name)) && !of.contains('$') {
                let entry = list.entry(qualified(name)).or_default();
                match what {
                    Some(what) => entry.push(format!("impl {} for {target}", what.trim())),
                    None => entry.extend(inside(body, "impl")),
                }
            }
        }
        at = end + 1;
    }
}

/// The public parts of an item: its methods, variants and fields.
fn inside(body: &[&str], header: &str) -> Vec<String> {
    let mut found = Vec::new();
    let is_enum = header.starts_with("pub enum");
    let (mut variant, mut end) = (String::new(), "");
    for (at, line) in body.iter().enumerate().skip(1) {
        let Some(text) = line.strip_prefix("    ") else { continue };
        if text.starts_with("#[cfg(feature") {
            found.push(format!("    {text}"));
        }
        if header.starts_with("pub struct") {
            if text.starts_with("pub ") {
                found.push(format!("    {}", text.trim_end_matches(',')));
            }
            continue;
        }
        let shown = text.starts_with("pub ") || header.starts_with("pub trait") && text.starts_with("fn ");
        if shown {
            found.push(format!("    {}", signature(body, at)));
        } else if is_enum && text.starts_with(|c: char| c.is_ascii_uppercase()) {
            variant = text.trim_end_matches(',').to_owned();
            end = if body[at - 1].trim() == "#[non_exhaustive]" { ", .." } else { "" };
            if !variant.ends_with('{') {
                found.push(format!("    {variant}"));
            }
        } else if is_enum && text.starts_with("    ") && !text.trim().starts_with("//") {
            variant.push_str(&format!(" {}", text.trim()));
        } else if is_enum && text.starts_with('}') {
            found.push(format!("    {}{end} }}", variant.trim_end_matches(',')));
        }
    }
    found
}

fn public_api() -> String {
    let exports = exports();
    let mut api = List::new();
    for file in sources() {
        list(&file, &read(&file), &exports, &mut api);
    }
    let unknown: Vec<_> = exports.items.iter().filter(|item| !api.contains_key(*item)).collect();
    let foreign = ["crossbeam_channel"];
    assert!(unknown.iter().all(|item| foreign.contains(&item.as_str())), "defined nowhere: {unknown:?}");
    let mut text = String::from(
        "The public API, by item. Written by LEASEHOLD_BLESS=1 cargo test --test meta api_list\n",
    );
    for item in foreign {
        text.push_str(&format!("\npub use {item}\n"));
    }
    for (name, lines) in &api {
        text.push('\n');
        if let Some((module, _)) = name.rsplit_once("::") {
            text.push_str(&format!("in {module}:\n"));
        }
        lines.iter().for_each(|line| text.push_str(&format!("{line}\n")));
    }
    text
}

#[test]
fn the_list_of_the_public_api_is_up_to_date() {
    is_listed("docs/api.txt", &public_api());
}

/// Known items of each shape must be in the list, so this test fails if the parser overlooks a shape.
#[test]
fn the_public_api_list_contains_items_of_every_form() {
    let text = public_api();
    for line in [
        "pub struct LockClient",
        "    pub fn connect(url: impl AsRef<str>) -> Result<LockClient>",
        "    pub fn inspect(&self, name: impl AsRef<str>) -> Result<Inspection>",
        "    pub fn run_once<R>(&self, name: impl AsRef<str>, at_least: Duration, at_most: Duration, job: impl FnOnce(&OwnedGuard) -> R) -> Result<Option<R>>",
        "    pub fn check(&self) -> Result<()>",
        "    pub fn available_permits(&self) -> Result<i64>",
        "pub enum ErrorKind",
        "    WouldDeadlock",
        "    Elected { term: FencingToken }",
        "    DeadlockOver { deadlock: &'a Deadlock, lasted: Duration, .. }",
        "    pub held_for: Option<Duration>",
        "pub trait Lock",
        "pub struct RedisLock",
        "pub struct Permit",
        "pub const MAX_NAME_LEN: usize",
        "impl fmt::Display for Inspection",
        "impl Deref for FencedLock",
        "#[non_exhaustive]",
        "#[cfg(feature = \"tls\")]",
    ] {
        assert!(text.lines().any(|listed| listed.trim() == line.trim()), "{line} is not listed in\n{text}");
    }
    for hidden in ["pub(crate)", "Engine", "fn new(engine"] {
        assert!(!text.contains(hidden), "{hidden}");
    }
    let source: String = sources().map(|file| expanded(&read(file))).collect();
    let written = source.lines().filter(|line| line.trim_start().starts_with("pub fn ")).count();
    let listed = text.lines().filter(|line| line.trim_start().starts_with("pub fn ")).count();
    assert_eq!(listed, written, "public functions that are not listed");
}

const MOST_WAYS_TO_ACQUIRE: usize = 14;

#[test]
fn locks_and_multi_locks_have_the_same_acquire_methods() {
    let text = public_api();
    let of = |item: &str| {
        let entry =
            text.split("\n\n").find(|entry| entry.lines().any(|line| line == format!("pub struct {item}")));
        let names = entry.unwrap().lines().filter_map(|line| line.trim().strip_prefix("pub fn "));
        let names = names.filter_map(|rest| rest.split(['<', '(']).next()).map(str::to_owned);
        let acquires =
            |name: &String| ["lock", "try_", "acquire", "with_"].iter().any(|word| name.starts_with(word));
        names.filter(acquires).collect::<BTreeSet<_>>()
    };
    let (lock, group) = (of("RedisLock"), of("MultiLock"));
    assert!(lock.contains("try_acquire_owned_for") && lock.contains("acquire_with"), "{lock:?}");
    assert!(lock.len() <= MOST_WAYS_TO_ACQUIRE, "{} methods acquire: {lock:?}", lock.len());
    assert_eq!(lock, group);
}
