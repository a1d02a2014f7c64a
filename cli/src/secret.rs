//! The URL and the passwords of the store: from variables, or from files that only their user should read.

use std::path::{Path, PathBuf};

use crate::args::Common;

/// The variables that name the servers, one of them at a time.
const SERVERS: [&str; 3] = ["LEASEHOLD_URL", "LEASEHOLD_REDLOCK", "LEASEHOLD_RING"];
const PASSWORDS: [&str; 2] = ["LEASEHOLD_PASSWORD", "LEASEHOLD_SENTINEL_PASSWORD"];

/// The URL of the store; it may hold a password. Empty, if several servers are named.
pub(crate) fn url(common: &Common) -> String {
    let url = common.url.clone().or_else(|| secret("LEASEHOLD_URL"));
    url.or_else(of_default_file).unwrap_or_default()
}

/// The URLs of Redlock's servers or a ring's, where the environment names such.
pub(crate) fn urls_of_several() -> Vec<String> {
    let Some(servers) = secret("LEASEHOLD_REDLOCK").or_else(|| secret("LEASEHOLD_RING")) else {
        return Vec::new();
    };
    // A ring's may have a label and a weight before it.
    let url = |word: &str| {
        let scheme = word.find("://").unwrap_or(word.len());
        let at = word.get(..scheme).and_then(|before| before.rfind('=')).map_or(0, |at| at + 1);
        word.get(at..).unwrap_or_default().to_owned()
    };
    servers.split_whitespace().map(url).collect()
}

/// A variable that is set, and not empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// A variable that may come from a file, as the library reads it: it has said by now what cannot be used.
pub(crate) fn secret(name: &str) -> Option<String> {
    let file = || std::fs::read_to_string(variable(&file_variable(name))?).ok();
    variable(name).or_else(|| {
        let text = file()?;
        Some(if PASSWORDS.contains(&name) {
            text.trim_end_matches(['\r', '\n']).to_owned()
        } else {
            without_comments(&text)
        })
    })
}

fn file_variable(name: &str) -> String {
    format!("{name}_FILE")
}

/// The lines of a file of URLs that mean something.
fn without_comments(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.collect::<Vec<_>>().join("\n")
}

/// The file that names the store where no variable does: the user's goes before the machine's.
fn default_file() -> Option<PathBuf> {
    let is_named = |name: &&str| variable(name).or_else(|| variable(&file_variable(name))).is_some();
    if SERVERS.iter().any(is_named) {
        return None;
    }
    let of_user = variable("XDG_CONFIG_HOME").map(PathBuf::from).filter(|folder| folder.is_absolute());
    let of_user = of_user.or_else(|| Some(Path::new(&variable("HOME")?).join(".config")));
    let folders = of_user.into_iter().chain([PathBuf::from("/etc")]);
    folders.map(|folder| folder.join("leasehold/url")).find(|file| file.exists())
}

/// The URL in the default file. One that cannot be read is told of by [`warnings`].
pub(crate) fn of_default_file() -> Option<String> {
    std::fs::read_to_string(default_file()?).ok().map(|text| without_comments(&text))
}

/// The faults of the files that hold secrets.
pub(crate) fn warnings(common: &Common) -> Vec<String> {
    let named =
        |name: &str| Some((PathBuf::from(variable(&file_variable(name))?), PASSWORDS.contains(&name)));
    let files: Vec<(PathBuf, bool)> = SERVERS.into_iter().chain(PASSWORDS).filter_map(named).collect();
    let mut warnings: Vec<String> =
        files.iter().filter_map(|(file, is_password)| warning(file, *is_password)).collect();
    if let Some(file) = default_file().filter(|_| common.url.is_none()) {
        let unread = std::fs::read_to_string(&file).err();
        warnings.extend(unread.map(|error| format!("{} cannot be read: {error}", file.display())));
        warnings.extend(warning(&file, false));
    }
    warnings
}

/// Names the file only if it is there: what a variable holds may be a secret that was set by mistake.
fn warning(file: &Path, is_password: bool) -> Option<String> {
    let (text, name) = (std::fs::read_to_string(file).ok()?, file.display());
    let is_secret = is_password || has_password(&text);
    let words = "has a password in it, and every user of this machine can read it: chmod o-rwx";
    (is_secret && is_open_to_all(file)).then(|| format!("{name} {words} {name}"))
}

fn has_password(text: &str) -> bool {
    let user = |url: &str| Some(url.split_once("://")?.1.rsplit_once('@')?.0.contains(':'));
    text.split_whitespace().any(|url| user(url) == Some(true) || url.contains("password="))
}

#[cfg(unix)]
fn is_open_to_all(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(file).is_ok_and(|known| known.permissions().mode() & 0o004 != 0)
}

/// Windows gives a file the rights of its folder, which this does not ask for.
#[cfg(windows)]
fn is_open_to_all(_file: &Path) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_a_url_is_seen() {
        for (url, has) in [
            ("redis://:pw@host", true),
            ("# c\nredis://user:pw@host:6379/0\n", true),
            ("postgres://host/db?password=pw", true),
            ("redis://host:6379", false),
            ("postgres://user@host:5432/db", false),
        ] {
            assert_eq!(has_password(url), has, "{url}");
        }
    }
}
