//! Tables of results. Each is written to a file in `target/figures`; docs/figures/proof.md has a line for it.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

const PAGE: &str = "docs/figures/proof.md";

/// Held while a test reads or writes docs/figures/proof.md, since tests of one program run at the same time.
static PAGE_IS_WRITTEN: Mutex<()> = Mutex::new(());

/// Panics unless docs/figures/proof.md has this table's line: the number of rows, the sum of states, and a
/// checksum of the text. If `LEASEHOLD_BLESS` is set, writes the line instead.
pub fn has(name: &str, columns: &str, rows: &[String]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let rule = "|---".repeat(columns.matches('|').count() - 1) + "|";
    let table = format!("{columns}\n{rule}\n{}\n", rows.join("\n"));
    let file = format!("target/figures/proof-{}.md", name.replace(' ', "-"));
    fs::create_dir_all(root.join("target/figures")).unwrap_or_else(|error| panic!("{file}: {error}"));
    fs::write(root.join(&file), &table).unwrap_or_else(|error| panic!("{file}: {error}"));
    let column = columns.split('|').position(|title| title.trim() == "States");
    let states = column.map_or("–".to_owned(), |column| {
        let numbers = rows.iter().filter_map(|row| row.split('|').nth(column)?.trim().parse::<u64>().ok());
        numbers.sum::<u64>().to_string()
    });
    let line = format!("| {name} | {} | {states} | `{:016x}` |", rows.len(), checksum(&table));

    let _alone = PAGE_IS_WRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
    let page = fs::read_to_string(root.join(PAGE)).unwrap_or_else(|error| panic!("{PAGE}: {error}"));
    let mut lines: Vec<&str> = page.lines().collect();
    if std::env::var_os("LEASEHOLD_BLESS").is_some() {
        match lines.iter_mut().find(|old| old.starts_with(&format!("| {name} |"))) {
            Some(old) => *old = &line,
            None => lines.push(&line),
        }
        fs::write(root.join(PAGE), lines.join("\n") + "\n").unwrap_or_else(|error| panic!("{PAGE}: {error}"));
        return;
    }
    let written = lines.contains(&&*line);
    assert!(
        written,
        "{PAGE} does not say {line} (LEASEHOLD_BLESS=1 ./check proof writes it); {file} has the table"
    );
}

/// The hash FNV-1a of 64 bits.
fn checksum(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
