//! The default file with the URL, the password command, and warnings about files with secrets. The library
//! reads the environment variables.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use leasehold::Credentials;
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

/// A warning if the file contains a password and all users can read it. Names the file only if it exists,
/// since LEASEHOLD_PASSWORD_FILE, for example, may contain the password by mistake instead of a path.
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

const PRINTED_WITHIN: Duration = Duration::from_secs(10);
const LONGEST: u64 = 64 * 1024;

/// Runs `command`, whose first line of output is the password for the server at `address`. `Err`: why there
/// is no password, without the output, which may contain it.
pub(crate) fn printed_by(command: &str, address: &str) -> Result<Credentials, String> {
    let (shell, option) = if cfg!(windows) { ("cmd", "/C") } else { ("sh", "-c") };
    let mut process = Command::new(shell);
    process.args([option, command]).env("LEASEHOLD_SERVER", address);
    process.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = process.spawn().map_err(|error| format!("--password-command cannot be run: {error}"))?;
    let (tell, told) = leasehold::crossbeam_channel::bounded(1);
    let stdout = child.stdout.take();
    let read = move || {
        let mut text = String::new();
        let read = stdout.map_or(Ok(0), |stdout| stdout.take(LONGEST).read_to_string(&mut text));
        drop(tell.send(read.map(|_| text)));
    };
    let started = std::thread::Builder::new().name("password".to_owned()).spawn(read);
    let printed = started.ok().and_then(|_| told.recv_timeout(PRINTED_WITHIN).ok());
    if printed.is_none() {
        child.kill().ok();
    }
    // Another thread may have reaped this child as an orphan. Then `wait` fails, and the output still counts.
    let status = child.wait();
    let text = printed.ok_or("--password-command took longer than 10 s")?;
    let text = text.map_err(|_not_text| "--password-command printed bytes that are not text")?;
    match status {
        Ok(status) if !status.success() => Err(format!("--password-command failed: {status}")),
        _ => Ok(Credentials::new(text.lines().next().unwrap_or_default())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn the_password_is_the_first_line_that_the_command_prints() {
        let said = |command: &str| printed_by(command, "host:1");
        let shown = format!("{:?}", said("printf '%s\\nmore\\n' S3CR3T").unwrap());
        assert!(!shown.contains("S3CR3T"), "{shown}");
        assert!(said("test \"$LEASEHOLD_SERVER\" = host:1 && echo x").is_ok());
        for (command, word) in [("echo S3CR3T; echo S3CR3T >&2; exit 3", "3"), ("/no/such/S3CR3T", "127")] {
            let error = said(command).unwrap_err();
            assert!(error.contains(word) && !error.contains("S3CR3T"), "{error}");
        }
    }

    #[test]
    fn has_password_finds_plain_passwords_and_those_within_urls() {
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
