//! The rendered documentation. `LEASEHOLD_DOC` names the folder in which `./check docs` has rendered it.
//! Without that variable the first test renders it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::docs::{package, read, root};

fn docs() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        if let Some(folder) = std::env::var_os("LEASEHOLD_DOC") {
            return root().join(folder);
        }
        let output = Command::new(env!("CARGO"))
            .args(["doc", "--locked", "--no-deps", "--all-features"])
            .env("RUSTDOC", root().join("scripts/rustdoc.sh"))
            .env("RUSTDOCFLAGS", "--cfg docsrs -D warnings")
            .current_dir(root())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
        root().join(target).join("doc/leasehold")
    })
}

struct Item {
    module: Option<String>,
    lines: Vec<String>,
}

impl Item {
    fn all() -> Vec<Item> {
        let list = read(root().join("docs/api.txt"));
        let blocks = list.split("\n\n").skip(1);
        blocks
            .map(|block| {
                let mut lines: Vec<String> = block.lines().map(str::to_owned).collect();
                let module = lines[0].strip_prefix("in ").map(|name| name.trim_end_matches(':').to_owned());
                if module.is_some() {
                    lines.remove(0);
                }
                Item { module, lines }
            })
            .collect()
    }

    /// The page of a type; `None` for a constant, a function or a re-export.
    fn page(&self) -> Option<PathBuf> {
        let header = self.lines.iter().find_map(|line| line.strip_prefix("pub "))?;
        let (kind, rest) = header.split_once(' ')?;
        let name = rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()?;
        let page = format!("{kind}.{name}.html");
        let folder = docs().join(self.module.as_deref().unwrap_or_default());
        ["struct", "enum", "trait", "type"].contains(&kind).then(|| folder.join(page))
    }
}

/// The text about the item itself, which stands above its fields and methods.
fn own_words(page: &str) -> &str {
    let Some((_, words)) = page.split_once("<details class=\"toggle top-doc\" open>") else { return "" };
    words.split("</details>").next().unwrap()
}

#[test]
fn every_public_type_has_an_example() {
    let pages: Vec<PathBuf> = Item::all().iter().filter_map(Item::page).collect();
    assert!(pages.len() > 45, "only {} types were found", pages.len());
    let bare: Vec<_> = pages
        .iter()
        .filter(|page| !own_words(&read(page)).contains("<pre class=\"rust rust-example-rendered\">"))
        .collect();
    assert!(bare.is_empty(), "without an example: {bare:#?}");
}

#[test]
fn items_that_need_a_feature_show_its_badge() {
    let says = |page: &str, feature: &str| {
        page.contains(&format!("Available on <strong>crate feature <code>{feature}</code></strong> only."))
    };
    for module in ["mysql", "postgres"] {
        let page = read(docs().join(module).join("index.html"));
        assert!(
            says(page.split("top-doc").next().unwrap(), module),
            "the module {module} does not name its feature"
        );
    }
    let mut seen = 0;
    for item in Item::all() {
        for pair in item.lines.windows(2) {
            let feature =
                pair[0].strip_prefix("    #[cfg(feature = \"").and_then(|rest| rest.strip_suffix("\")]"));
            let method = pair[1].strip_prefix("    pub fn ").and_then(|rest| rest.split(['(', '<']).next());
            if let (Some(feature), Some(method), Some(page)) = (feature, method, item.page()) {
                seen += 1;
                let page = read(&page);
                let (_, from) = page.split_once(&format!("id=\"method.{method}\"")).unwrap();
                assert!(
                    says(from.split("</summary>").next().unwrap(), feature),
                    "{method} does not name its feature"
                );
            }
        }
    }
    assert!(seen > 1, "no method needs a feature");
}

#[test]
fn docs_rs_is_configured_to_show_all_features() {
    let settings = &package("leasehold")["metadata"]["docs"]["rs"];
    assert_eq!(settings["all-features"], true, "{settings}");
    assert_eq!(settings["rustdoc-args"], serde_json::json!(["--cfg", "docsrs"]), "{settings}");
}
