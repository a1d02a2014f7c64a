//! What docs/proof.md says of what was measured.

use std::fs;
use std::path::Path;
use std::sync::Mutex;

static WRITES: Mutex<()> = Mutex::new(());

/// The page has this table between its marks of that name; `LEASEHOLD_BLESS` writes it.
pub fn has(mark: &str, columns: &str, rows: &[String]) {
    let _one = WRITES.lock().expect("no test has failed here");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/proof.md");
    let page = fs::read_to_string(&path).expect("docs/proof.md");
    let (begin, end) = (format!("<!-- {mark} -->\n"), format!("\n<!-- end of {mark} -->"));
    let (before, rest) = page.split_once(&begin).expect("the mark before the rows");
    let (written, behind) = rest.split_once(&end).expect("the mark behind the rows");
    let rule = "|---".repeat(columns.matches('|').count() - 1) + "|";
    let found = format!("{columns}\n{rule}\n{}", rows.join("\n"));
    if std::env::var_os("LEASEHOLD_BLESS").is_some() {
        fs::write(&path, [before, &begin, &found, &end, behind].concat())
            .expect("docs/proof.md can be written");
        return;
    }
    let lines: Vec<&str> = written.lines().collect();
    let missing: Vec<&str> = found.lines().filter(|line| !lines.contains(line)).collect();
    assert!(
        written == found,
        "docs/proof.md does not say so (LEASEHOLD_BLESS=1 ./check proof writes it); it lacks {missing:#?}"
    );
}
