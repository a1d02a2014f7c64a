//! A copy of the sources with each mutation beside the text that it replaces.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::hooks::HOOKS;
use crate::list::Mutation;

/// The copy's module `sabotage`. The environment variable `SABOTAGE` has the number of the active mutation.
const SWITCH: &str = r#"
use std::sync::LazyLock;

static ON: LazyLock<usize> = LazyLock::new(|| {
    std::env::var("SABOTAGE").ok().and_then(|number| number.parse().ok()).unwrap_or(0)
});

pub(crate) fn is_on(number: usize) -> bool {
    let is_on = *ON == number;
    if is_on {
        note_reached();
    }
    is_on
}

/// Records that a test reached the mutated place. A test that fails without reaching it failed for another reason.
fn note_reached() {
    static REACHED: std::sync::Once = std::sync::Once::new();
    REACHED.call_once(|| {
        if let Some(file) = std::env::var_os("SABOTAGE_REACHED") {
            drop(std::fs::write(file, ""));
        }
    });
}

"#;

/// More of the module, for the library only: it switches mutations of Lua scripts and SQL statements.
const TEXT_SWITCH: &str = r#"
pub(crate) fn text(original: &str) -> String {
    match TEXTS.iter().find(|(number, file, ..)| *number == *ON && original.contains(file)) {
        Some((_, file, old, new)) => {
            note_reached();
            original.replacen(file, &file.replacen(old, new, 1), 1)
        }
        None => original.to_owned(),
    }
}

#[derive(Debug)]
pub struct Text(pub(crate) &'static str);

impl std::ops::Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        static BROKEN: LazyLock<String> = LazyLock::new(|| text(&crate::locks::fencing::REDIS_SET.0));
        &BROKEN
    }
}
"#;

/// Writes the copy to `folder`. Unchanged files keep their time, so that cargo builds only changes.
pub fn write(root: &Path, folder: &Path, mutations: &[Mutation]) -> Result<PathBuf> {
    let mut broken: BTreeMap<&str, String> = BTreeMap::new();
    let mut texts = String::from("static TEXTS: &[(usize, &str, &str, &str)] = &[\n");
    // Longer mutations go first, since their text would not be found once a shorter one changed a part of it.
    let mut sorted: Vec<&Mutation> = mutations.iter().collect();
    sorted.sort_by_key(|one| std::cmp::Reverse(one.old.len()));
    for one in sorted {
        let read =
            || fs::read_to_string(root.join(&one.file)).map_err(|error| format!("{}: {error}", one.file));
        let original = read()?;
        let times = original.matches(&one.found_by()).count();
        if times != 1 {
            return Err(format!(
                "mutation {} ({}): its text is in {} {times} times",
                one.number, one.what, one.file
            ));
        }
        if one.is_rust() {
            let text = broken.remove(one.file.as_str()).unwrap_or(original);
            if text.matches(&one.found_by()).count() != 1 {
                return Err(format!("mutation {} ({}) overlaps with another", one.number, one.what));
            }
            broken.insert(&one.file, text.replacen(&one.found_by(), &one.replaced_by(&switched(one)), 1));
        } else {
            let (old, new) = (one.found_by(), one.replaced_by(&one.new));
            let path = folder.join(&one.file);
            writeln!(texts, "    ({}, include_str!({path:?}), {old:?}, {new:?}),", one.number)
                .map_err(|error| error.to_string())?;
        }
    }
    texts.push_str("];\n");
    for (file, old, new) in HOOKS {
        let read = || fs::read_to_string(root.join(file)).map_err(|error| format!("{file}: {error}"));
        let text = broken.remove(file).map_or_else(read, Ok)?;
        if text.matches(old).count() != 1 {
            return Err(format!("{file} has no such place for the switch: {old}"));
        }
        broken.insert(file, text.replacen(old, new, 1));
    }
    broken.insert("src/sabotage.rs", [SWITCH, TEXT_SWITCH, &texts].concat());
    broken.insert("cli/src/sabotage.rs", SWITCH.to_owned());
    let build = "//! Says that mutations are here.\n\nfn main() {\n    println!(\"cargo::rustc-check-cfg=cfg(leasehold_sabotage)\");\n    println!(\"cargo::rustc-cfg=leasehold_sabotage\");\n    println!(\"cargo::rerun-if-changed=build.rs\");\n}\n";
    broken.insert("build.rs", build.to_owned());
    let mut written = BTreeSet::new();
    for file in listed(root)? {
        let content = match broken.remove(file.as_str()) {
            Some(text) => text.into_bytes(),
            None => fs::read(root.join(&file)).map_err(|error| format!("{file}: {error}"))?,
        };
        put(folder, &file, &content)?;
        written.insert(folder.join(file));
    }
    for (file, text) in broken {
        put(folder, file, text.as_bytes())?;
        written.insert(folder.join(file));
    }
    for room in ["src", "cli", "tests"] {
        remove_others(&folder.join(room), &written).map_err(|error| format!("{room}: {error}"))?;
    }
    Ok(folder.to_owned())
}

/// Removes files of an earlier copy that are gone from the sources. Otherwise a moved module exists twice.
fn remove_others(folder: &Path, written: &BTreeSet<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(&path, written)?;
        } else if !written.contains(&path) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// The Rust code that chooses between a mutation's two texts when it runs.
fn switched(one: &Mutation) -> String {
    let Mutation { number, old, new, .. } = one;
    let is_statement = old.ends_with([';', '}']);
    let both = format!("if crate::sabotage::is_on({number}) {{ {new} }} else {{ {old} }}");
    if is_statement { both } else { format!("({both})") }
}

/// The repository's files, including uncommitted ones, without this package.
fn listed(root: &Path) -> Result<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("git: {error}"))?;
    let text = String::from_utf8(output.stdout).map_err(|error| error.to_string())?;
    let files = text.split('\0').filter(|file| !file.is_empty() && !file.starts_with("tests/sabotage/"));
    Ok(files.filter(|file| root.join(file).is_file()).map(str::to_owned).collect())
}

fn put(folder: &Path, file: &str, content: &[u8]) -> Result<()> {
    let path = folder.join(file);
    if fs::read(&path).is_ok_and(|there| there == content) {
        return Ok(());
    }
    let written = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, content));
    written.map_err(|error| format!("{}: {error}", path.display()))
}
