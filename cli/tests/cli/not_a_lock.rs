//! Data of other programs under a lock's name, such as a shopping cart or a session, is neither shown nor
//! deleted.

use crate::world::{Server, eventually};

const SECRET: &str = "Bearer-S3CR3T";

#[test]
fn no_command_shows_or_deletes_keys_that_are_no_locks() {
    let server = Server::start();
    server.ask(&["HSET", "cart:7", "item:S3CR3T", "2", "item:2", "1"]);
    server.ask(&["SET", "session:42", SECRET]);
    for name in ["cart:7", "session:42"] {
        for arguments in [
            &["show", name][..],
            &["--format", "json", "show", name],
            &["show", "free", name],
            &["force", name],
            &["force", name, "--yes"],
        ] {
            let said = server.ends(arguments, 65, "");
            assert!(!said.contains("held by") && !said.contains("S3CR3T"), "{arguments:?}: {said}");
        }
        let (_, said) = server.outcome(&["force", name, "--yes"]);
        assert!(said.contains(&format!("{name} is not a lock, but a ")), "{said}");
        for arguments in [
            &["run", "-n", name, "--", "true"][..],
            &["run", "-nx", name, "--", "true"],
            &["watch", name, "--for", "0"],
            &["ls"],
            &["clients"],
        ] {
            let (_, said) = server.outcome(arguments);
            assert!(!said.contains("held by") && !said.contains("S3CR3T"), "{arguments:?}: {said}");
        }
    }
    assert_eq!(server.outcome(&["run", "-n", "session:42", "--", "true"]).0, 64);
    assert_eq!(server.ask(&["HLEN", "cart:7"]).trim(), ":2");
    assert!(server.ask(&["GET", "session:42"]).contains(SECRET));
}

#[test]
fn force_ends_redisson_locks_and_token_locks_of_other_programs() {
    let server = Server::start();
    server.ask(&["HSET", "java", "8a3f0e0e-0000-4000-8000-000000000001:71", "1"]);
    server.ends(&["force", "java", "--yes"], 0, "java was released by force");
    server.ask(&["SET", "article", "7d9f", "PX", "60000"]);
    let shown = server.json(&["show", "article", "--token"]);
    assert_eq!((&shown["held"], &shown["holders"][0]["owner"]), (&true.into(), &"7d9f".into()));
    assert_eq!(server.outcome(&["force", "article", "--token"]).0, 64);
    assert_eq!(server.outcome(&["force", "article", "--token", "--yes"]).0, 0);
    assert_eq!(server.keys(), Vec::<String>::new());
}

#[test]
fn force_refuses_a_semaphore() {
    let server = Server::start();
    let permit = ["run", "-q", "--lease", "5s", "--permits", "2", "slots", "--", "sleep", "60"];
    let mut holder = server.begin(&permit);
    eventually("a permit is out", || server.outcome(&["permits", "slots"]).1.contains("1 of them out"));
    let said = server.ends(&["force", "slots", "--yes"], 64, "");
    assert!(!said.contains("by nobody") && said.contains("permits slots --remove"), "{said}");
    assert!(holder.0.try_wait().unwrap().is_none());
    server.ends(&["force", "nothing", "--yes"], 0, "nothing is held by nobody");
}
