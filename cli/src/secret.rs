//! The default file of the URL, and the faults of files that hold secrets. Variables are the library's to read.

use std::path::{Path, PathBuf};

use leasehold::program::Settings;

use crate::args::Common;
use crate::store;

pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

pub(crate) fn default_file(common: &Common, given: &Settings) -> Option<PathBuf> {
    if common.url.is_some() || !given.url.is_empty() || !given.urls.is_empty() {
        return None;
    }
    let of_user = variable("XDG_CONFIG_HOME").map(PathBuf::from).filter(|folder| folder.is_absolute());
    let of_user = of_user.or_else(|| Some(Path::new(&variable("HOME")?).join(".config")));
    let folders = of_user.into_iter().chain([PathBuf::from("/etc")]);
    folders.map(|folder| folder.join("leasehold/url")).find(|file| file.exists())
}

pub(crate) fn warnings(common: &Common) -> Vec<String> {
    let is_file = |name: &str| name.starts_with("LEASEHOLD_") && name.ends_with("_FILE");
    let named = std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_file));
    let mut warnings: Vec<String> = named.filter_map(|(_, file)| warning(Path::new(&file))).collect();
    if let Some(file) = default_file(common, store::environment()) {
        let unread = std::fs::read_to_string(&file).err();
        warnings.extend(unread.map(|error| format!("{} cannot be read: {error}", file.display())));
        warnings.extend(warning(&file));
    }
    warnings
}

/// Names the file only if it is there: what a variable holds may be a secret that was set by mistake.
fn warning(file: &Path) -> Option<String> {
    let (text, name) = (std::fs::read_to_string(file).ok()?, file.display());
    let words = "has a password in it, and every user of this machine can read it: chmod o-rwx";
    (has_password(&text) && is_open_to_all(file)).then(|| format!("{name} {words} {name}"))
}

fn has_password(text: &str) -> bool {
    let user = |url: &str| Some(url.split_once("://")?.1.rsplit_once('@')?.0.contains(':'));
    !text.contains("://")
        || text.split_whitespace().any(|url| user(url) == Some(true) || url.contains("password="))
}

#[cfg(unix)]
fn is_open_to_all(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(file).is_ok_and(|known| known.permissions().mode() & 0o004 != 0)
}

#[cfg(windows)]
fn is_open_to_all(_file: &Path) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_seen_alone_and_in_a_url() {
        for (text, has) in [
            ("pw\n", true),
            ("redis://:pw@host", true),
            ("# c\nredis://user:pw@host:6379/0\n", true),
            ("postgres://host/db?password=pw", true),
            ("redis://host:6379", false),
            ("postgres://user@host:5432/db", false),
        ] {
            assert_eq!(has_password(text), has, "{text}");
        }
    }
}
