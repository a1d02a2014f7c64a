//! The files of docs/figures that say what was measured.

use std::fs;
use std::path::Path;

/// The file of this table has these rows; `LEASEHOLD_BLESS` writes it.
pub fn has(name: &str, columns: &str, rows: &[String]) {
    let file = format!("docs/figures/proof-{}.md", name.replace(' ', "-"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(&file);
    let rule = "|---".repeat(columns.matches('|').count() - 1) + "|";
    let found = format!(
        "# The proof: {name}\n\nWritten by `LEASEHOLD_BLESS=1 ./check proof`. The page on [what was checked](../proof.md) says \
         what it shows.\n\n{columns}\n{rule}\n{}\n",
        rows.join("\n")
    );
    if std::env::var_os("LEASEHOLD_BLESS").is_some() {
        fs::write(&path, found).unwrap_or_else(|error| panic!("{file}: {error}"));
        return;
    }
    let written = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
    let lines: Vec<&str> = written.lines().collect();
    let missing: Vec<&str> = found.lines().filter(|line| !lines.contains(line)).collect();
    assert!(
        written == found,
        "{file} does not say so (LEASEHOLD_BLESS=1 ./check proof writes it); it lacks {missing:#?}"
    );
}
