//! Users' mistakes: some do not compile. For those that compile, the first section of
//! `docs/porting-from-redisson.md` is compared with the messages of the compiler and of clippy.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

const PAGE: &str = "docs/porting-from-redisson.md";

fn section() -> String {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE)).unwrap();
    let from = page.split("## What compiles and is wrong").nth(1).expect("the section is there");
    from.split("\n## ").next().unwrap().to_owned()
}

struct Trap {
    code: String,
    said_by: String,
}

impl Trap {
    /// The lint that finds the mistake; `None` if only the running program shows the mistake.
    fn lint(&self) -> Option<&str> {
        self.said_by.split('`').nth(1).filter(|_| !self.said_by.starts_with("at run time"))
    }

    fn is_on_by_default(&self) -> bool {
        !self.said_by.contains("if asked")
    }
}

fn traps(section: &str) -> Vec<Trap> {
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let trap = |row: &str| {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        Trap { code: cells[0].trim_matches('`').to_owned(), said_by: cells[2].to_owned() }
    };
    rows.map(trap).collect()
}

/// Whether the code compiles with this lint, and what `compiler` printed.
fn compiled(compiler: &str, code: &str, lint: Option<&str>, folder: &TempDir) -> (bool, String) {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let built = fs::read_dir(&deps).unwrap().map(|entry| entry.unwrap().path());
    let is_library = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("libleasehold-") && name.ends_with(".rlib")
    };
    let newest = built.filter(is_library).max_by_key(|path| path.metadata().unwrap().modified().unwrap());
    let source = folder.path().join("trap.rs");
    let text = format!(
        "#![allow(unused_imports, unused_variables, dead_code)]\n\
         use leasehold::{{AcquireOptions, Guard, LockClient, RedisLock, Result}};\n\
         use std::time::Duration;\n\
         fn work() -> Result<()> {{ Ok(()) }}\n\
         fn under_it(_: &Guard) {{}}\n\
         pub fn trap(client: &LockClient, lock: &RedisLock, wait: Duration, lease: Duration) -> Result<()> {{\n\
         let options = AcquireOptions::new();\n\
         {code}\n\
         Ok(())\n\
         }}\n"
    );
    fs::write(&source, text).unwrap();
    let mut command = Command::new(compiler);
    command.args(["--edition", "2024", "--crate-type", "lib", "--emit", "metadata"]);
    command.arg(&source).arg("-o").arg(folder.path().join("trap.rmeta"));
    command.arg("--extern").arg(format!("leasehold={}", newest.expect("the library is built").display()));
    command.arg("-L").arg(format!("dependency={}", deps.display()));
    command.env("CLIPPY_CONF_DIR", folder.path());
    if let Some(lint) = lint {
        command.args(["-W", lint]);
    }
    let output = command.output().unwrap();
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

fn said(compiler: &str, code: &str, lint: Option<&str>, folder: &TempDir) -> String {
    let (good, text) = compiled(compiler, code, lint, folder);
    assert!(good, "{code}\n{text}");
    text
}

#[test]
fn sending_a_guard_to_a_thread_does_not_compile() {
    let folder = tempfile::tempdir().unwrap();
    for code in [
        "let guard = lock.acquire()?; std::thread::spawn(move || drop(guard));",
        "let guard = client.get_multi_lock([lock.clone()]).acquire()?; std::thread::spawn(move || drop(guard));",
    ] {
        let (good, text) = compiled("rustc", code, None, &folder);
        // An editor shows only the first line of an error, so this line must have the advice.
        let first = text.lines().find(|line| line.starts_with("error")).unwrap_or_default();
        assert!(!good && first.contains("cannot be sent between threads"), "{text}");
        assert!(first.contains("use_acquire_owned"), "{text}");
    }
}

#[test]
fn permit_methods_exist_on_permits_only() {
    let folder = tempfile::tempdir().unwrap();
    for method in ["ids", "forget"] {
        let of_a_lock = format!("let guard = lock.acquire_owned()?; guard.{method}();");
        let (good, text) = compiled("rustc", &of_a_lock, None, &folder);
        assert!(!good && text.contains("no method named"), "{method}: {text}");
        said(
            "rustc",
            &of_a_lock.replace("lock.acquire_owned()", "client.get_semaphore(\"a\").acquire(1)"),
            None,
            &folder,
        );
    }
}

#[test]
fn the_compiler_warns_about_an_unused_lock_handle() {
    let folder = tempfile::tempdir().unwrap();
    let factories = "\
        lock(\"a\") fair_lock(\"a\") fenced_lock(\"a\") token_lock(\"a\") spin_lock(\"a\") \
        multi_lock([lock]) read_write_lock(\"a\") read_write_lock(\"a\").write() semaphore(\"a\") \
        expirable_semaphore(\"a\") count_down_latch(\"a\")";
    for factory in factories.split(' ') {
        let text = said("rustc", &format!("client.get_{factory};"), None, &folder);
        assert!(text.contains(" nothing"), "{factory}: {text}");
    }
}

#[test]
fn each_documented_misuse_is_reported_as_the_page_says() {
    let compiler = "clippy-driver";
    if Command::new(compiler).arg("--version").output().is_err() {
        crate::support::missing("no clippy-driver");
        return;
    }
    let section = section();
    let conf = section.rsplit("```toml\n").next().unwrap().split("```").next().unwrap();
    let [plain, asked] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    fs::write(asked.path().join("clippy.toml"), conf).unwrap();
    let traps = traps(&section);
    assert!(traps.len() >= 15, "the table has been read: {}", traps.len());
    for trap in &traps {
        let by_default = said(compiler, &trap.code, None, &plain);
        match trap.lint().filter(|_| trap.is_on_by_default()) {
            Some(lint) => {
                let on = format!("`#[warn({lint})]`");
                assert!(by_default.contains(&on), "{}: not told by {lint}\n{by_default}", trap.code);
            }
            None => assert!(!by_default.contains("warning"), "{}: told\n{by_default}", trap.code),
        }
        if let Some(lint) = trap.lint().filter(|_| !trap.is_on_by_default()) {
            let text = said(compiler, &trap.code, Some(lint), &asked);
            // The compiler prints a lint's name with hyphens if the command line has the lint.
            let hyphened = text.replace('-', "_");
            assert!(hyphened.contains(lint), "{}: not told by {lint}\n{text}", trap.code);
            let is_named = section.contains(&format!("{} = \"warn\"", lint.trim_start_matches("clippy::")));
            assert!(is_named || lint == "clippy::disallowed_methods", "{lint}");
        }
    }
}
