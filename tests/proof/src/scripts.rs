//! The library's scripts, joined as `src/stores/redis/script.rs` lists them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src/stores/redis")
}

/// The texts by name, such as `ACQUIRE`. `change` may alter a file, by its name and text, to make a mutant.
///
/// # Panics
///
/// If the list has another form.
#[must_use]
pub fn load(change: &dyn Fn(&str, String) -> String) -> BTreeMap<String, String> {
    let list = fs::read_to_string(folder().join("script.rs")).expect("the list of scripts");
    let (_, rest) = list.split_once("scripts! {\n").expect("a list of scripts");
    let (lines, _) = rest.split_once("\n}\n").expect("the end of the list");
    let mut scripts = BTreeMap::new();
    for line in lines.lines() {
        let (name, files) = line.trim().trim_end_matches(';').split_once(" = ").expect("name = \"file\", …;");
        let text: String = files
            .split(", ")
            .map(|file| {
                let file = file.trim_matches('"');
                let text = fs::read_to_string(folder().join("lua").join(file)).expect(file);
                change(file, text)
            })
            .collect();
        scripts.insert(name.to_owned(), text);
    }
    assert!(scripts.len() > 20, "the list of scripts is not written as it was");
    scripts
}
