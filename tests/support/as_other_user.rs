//! For programs that refuse to run as root.

use super::run;
use std::path::Path;

/// The words before a command that run it as the first of these users that there is; none if this is not
/// root.
pub fn prefix(users: &[&str]) -> Vec<String> {
    let Some(user) = other(users) else { return Vec::new() };
    let group = run(&["id", "-g", user], |command| command).1.trim().to_owned();
    ["setpriv", "--reuid", user, "--regid", &group, "--clear-groups", "--"].map(str::to_owned).into()
}

pub fn own(folder: &Path, users: &[&str]) {
    if let Some(user) = other(users) {
        let (good, text) = run(&["chown", "-R", user, folder.to_str().unwrap()], |command| command);
        assert!(good, "chown: {text}");
    }
}

fn other<'a>(users: &[&'a str]) -> Option<&'a str> {
    let is_root = run(&["id", "-u"], |command| command).1.trim() == "0";
    let exists = |user: &str| run(&["id", user], |command| command).0;
    if is_root { users.iter().copied().find(|user| exists(user)) } else { None }
}
