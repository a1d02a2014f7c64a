//! The page, and what a browser is told that it may do with it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

pub(crate) const HTML: &str = include_str!("page.html");

/// The script and the style of the page and no others, nothing from elsewhere, and in no frame.
pub(crate) fn policy() -> String {
    let (script, style) = (hash("<script>", "</script>"), hash("<style>", "</style>"));
    format!(
        "default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}

fn hash(begin: &str, end: &str) -> String {
    let text = HTML.split_once(begin).and_then(|(_, rest)| rest.split_once(end)).map_or("", |(text, _)| text);
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_takes_nothing_from_elsewhere() {
        for tag in ["<script", "</script>", "<style", "</style>"] {
            assert_eq!(HTML.matches(tag).count(), 1, "{tag}");
        }
        // Words that others wrote are text: nothing in the page makes elements or code of a text.
        const NONE: &str = "http:|https:|//cdn|src=|@import|url(|innerHTML|outerHTML|insertAdjacentHTML|document.write|eval(|Function(|\
                            style=| on";
        for no in NONE.split('|') {
            let lines: Vec<&str> = HTML.lines().filter(|line| line.contains(no)).collect();
            let is_attribute = |line: &&&str| {
                no != " on" || line.contains("=\"") && line.contains(" on") && line.contains('<')
            };
            assert_eq!(lines.iter().filter(is_attribute).count(), 0, "{no}: {lines:?}");
        }
    }
}
