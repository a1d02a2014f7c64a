//! For programs that refuse to run as root.

use super::run;
use std::fs;
use std::path::Path;
use std::time::UNIX_EPOCH;

/// The words before a command that run it as the first existing one of these users; empty unless this is
/// root.
pub fn prefix(users: &[&str]) -> Vec<String> {
    let Some(user) = other(users) else { return Vec::new() };
    let group = run(&["id", "-g", user], |command| command).1.trim().to_owned();
    ["setpriv", "--reuid", user, "--regid", &group, "--clear-groups", "--"].map(str::to_owned).into()
}

/// Creates `folder/data` as a server's installer does. The first test of a build runs the installer, which
/// takes seconds; the others copy its result.
pub fn install(program: &Path, folder: &Path, installer: &[String]) {
    let built = fs::metadata(program).and_then(|file| file.modified()).unwrap();
    let name = program.to_str().unwrap().replace('/', "-");
    let name = format!("data{name}-{}", built.duration_since(UNIX_EPOCH).unwrap().as_secs());
    let (kept, data) = (Path::new(env!("CARGO_TARGET_TMPDIR")).join(name), folder.join("data"));
    let copy = |from: &Path, to: &Path| {
        let (good, text) =
            run(&["cp", "-a", from.to_str().unwrap(), to.to_str().unwrap()], |command| command);
        assert!(good, "cp: {text}");
    };
    if kept.exists() {
        return copy(&kept, &data);
    }
    let (good, text) = run(installer, |command| command.current_dir(folder));
    assert!(good, "{installer:?}: {text}");
    let new = tempfile::tempdir_in(kept.parent().unwrap()).unwrap();
    copy(&data, &new.path().join("data"));
    // Another test may have been first.
    fs::rename(new.path().join("data"), kept).ok();
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
