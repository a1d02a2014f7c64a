//! The documentation as a reader has it: rendered, and for the crate page and three types opened in a
//! browser.
//!
//! `./check docs` renders it and names it by `LEASEHOLD_DOC`; else the first test does.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::support::missing;

const BROWSERS: [&str; 5] =
    ["chromium-headless-shell", "chromium", "google-chrome", "google-chrome-stable", "chromium-browser"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

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

    /// The page of a type; nothing of a constant, a function or a re-export.
    fn page(&self) -> Option<PathBuf> {
        let header = self.lines.iter().find_map(|line| line.strip_prefix("pub "))?;
        let (kind, rest) = header.split_once(' ')?;
        let name = rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()?;
        let page = format!("{kind}.{name}.html");
        let folder = docs().join(self.module.as_deref().unwrap_or_default());
        ["struct", "enum", "trait", "type"].contains(&kind).then(|| folder.join(page))
    }
}

/// The text on the item itself, above its fields and methods.
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
    let manifest = read(root().join("Cargo.toml"));
    let (_, section) = manifest.split_once("[package.metadata.docs.rs]\n").unwrap();
    let section = section.split("\n[").next().unwrap();
    assert!(section.contains("all-features = true"), "{section}");
    assert!(section.contains("rustdoc-args = [\"--cfg\", \"docsrs\"]"), "{section}");
}

fn browser() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("LEASEHOLD_BROWSER") {
        return Some(path.into());
    }
    let folders: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH")?).collect();
    let mut programs = BROWSERS.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    let found = programs.find(|path| path.is_file());
    let apple = PathBuf::from("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome");
    found.or(Some(apple).filter(|path| path.is_file()))
}

/// Notes at each example and table how much room it has on the screen, and what it would need to be seen as a
/// whole.
const MEASURE: &str = "<script>addEventListener('load', () => {
    for (const seen of document.querySelectorAll('pre.rust, .docblock table')) {
        seen.dataset.room = `${seen.clientWidth} ${seen.clientHeight} ${seen.scrollWidth}`;
    }
})</script>";

struct Page {
    name: &'static str,
    html: String,
}

impl Page {
    fn open(browser: &Path, name: &'static str) -> Page {
        // Beside the page itself, so that its style sheets and scripts are found.
        let copy = docs().join(format!("measured-{name}"));
        fs::write(&copy, read(docs().join(name)) + MEASURE).unwrap();
        let profile = tempfile::tempdir().unwrap();
        let output = Command::new(browser)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--window-size=1300,2000",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .args(["--virtual-time-budget=5000", "--dump-dom"])
            .arg(format!("file://{}", copy.canonicalize().unwrap().display()))
            .output()
            .unwrap();
        fs::remove_file(copy).unwrap();
        let html = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !html.is_empty(), "{}: {said}", browser.display());
        // Rustdoc's own script adds it.
        assert!(html.contains("id=\"toggle-all-docs\""), "{name}: no script was run");
        Page { name, html }
    }

    fn room(&self, tag: &str) -> Vec<[u32; 3]> {
        let begin = format!("<{tag}");
        let tags = self.html.split(&begin).skip(1).map(|rest| rest.split('>').next().unwrap());
        let rooms = tags.filter_map(|tag| tag.split("data-room=\"").nth(1));
        rooms
            .map(|room| {
                let numbers: Vec<u32> = room
                    .split('"')
                    .next()
                    .unwrap()
                    .split(' ')
                    .map(|number| number.parse().unwrap())
                    .collect();
                numbers.try_into().unwrap()
            })
            .collect()
    }

    #[track_caller]
    fn shows(&self, tag: &str, least: usize) {
        let rooms = self.room(tag);
        let seen = rooms.iter().filter(|[width, height, _]| *width > 200 && *height > 20).count();
        assert!(seen >= least, "{}: {seen} of <{tag}> are seen, not {least}: {rooms:?}", self.name);
    }

    fn links(&self) -> BTreeSet<&str> {
        // Traits of other crates that are there for all types bring their own words along.
        let own = self.html.split("<h2 id=\"blanket-implementations\"").next().unwrap();
        let anchors = own.split("<a ").skip(1).map(|rest| rest.split('>').next().unwrap());
        anchors.filter_map(|tag| tag.split("href=\"").nth(1)?.split('"').next()).collect()
    }

    #[track_caller]
    fn every_link_leads_somewhere(&self, least: usize) {
        let repository = concat!(env!("CARGO_PKG_REPOSITORY"), "/");
        let links = self.links();
        let mut followed = 0;
        for link in &links {
            let place = format!("{}: {link}", self.name);
            let (path, fragment) = link.split_once('#').unwrap_or((link, ""));
            if let Some(file) = path.strip_prefix(repository) {
                let version = concat!("v", env!("CARGO_PKG_VERSION"), "/");
                let file = file
                    .strip_prefix("blob/")
                    .or(file.strip_prefix("tree/"))
                    .and_then(|file| file.strip_prefix(version));
                assert!(
                    file.is_some_and(|file| root().join(file).exists()),
                    "{place} is not of this version"
                );
            } else if path.starts_with("https://") {
                let known = ["https://doc.rust-lang.org/", "https://docs.rs/"];
                assert!(known.iter().any(|site| path.starts_with(site)), "{place}: another site");
                continue;
            } else if !path.starts_with("file://") {
                // `file://` are the search and the page itself, as its scripts name them.
                let target = if path.is_empty() { docs().join(self.name) } else { docs().join(path) };
                assert!(target.is_file(), "{place} is not there");
                let is_there = fragment.is_empty()
                    || path.contains("/src/")
                    || read(&target).contains(&format!("id=\"{fragment}\""));
                assert!(is_there, "{place}: there is no such place");
            }
            followed += 1;
        }
        assert!(followed >= least, "{}: only {followed} links: {links:?}", self.name);
    }
}

#[test]
fn the_crate_page_and_three_types_are_shown_with_their_examples_tables_and_links() {
    let Some(browser) = browser() else {
        return missing("no Chromium: scripts/servers.sh browser installs one");
    };
    let page = Page::open(&browser, "index.html");
    page.shows("pre", 1);
    page.shows("table", 3);
    // The first example is read without moving it sideways.
    let [width, _, needed] = page.room("pre")[0];
    assert!(needed <= width, "the example is {needed} wide, and {width} are shown");
    for heading in ["example", "which-type-for-what", "features", "log-levels", "limits", "more"] {
        assert!(page.html.contains(&format!("id=\"{heading}\"")), "{heading}");
    }
    for link in ["struct.RedisLock.html", "struct.LockClient.html#method.connect", "struct.FencedLock.html"] {
        assert!(page.links().contains(link), "{link}");
    }
    page.every_link_leads_somewhere(60);

    for (name, examples) in
        [("struct.RedisLock.html", 1), ("struct.Error.html", 1), ("trait.Observer.html", 1)]
    {
        let page = Page::open(&browser, name);
        page.shows("pre", examples);
        page.every_link_leads_somewhere(15);
    }
}
