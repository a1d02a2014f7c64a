//! Tests for SQLite only: other processes, full disks, locked and replaced files, query plans.

use rusqlite::types::Value;
use rusqlite::{Connection, Row};
use tempfile::TempDir;

use crate::databases::Rows;
use crate::statement;
use crate::support::prelude::*;
use crate::support::processes::LEASE;
use crate::support::programs;
use crate::support::stalls::{about_to_end, own_time_since, stalled_since};

pub(crate) struct File(TempDir);

impl File {
    fn new() -> File {
        let file = File(programs::in_memory());
        file.client();
        file
    }

    fn url(&self) -> String {
        programs::sqlite_url(&self.0.path().join("locks.db"))
    }

    fn options(&self) -> ClientBuilder {
        LockClient::builder().url(self.url()).create_schema(true)
    }

    fn client(&self) -> LockClient {
        self.options().build().unwrap()
    }

    fn raw(&self) -> Connection {
        Connection::open(self.0.path().join("locks.db")).unwrap()
    }
}

impl Rows for File {
    const EXPIRED: &'static str = "1000, 1000";

    fn with_one(test: impl FnOnce(&File)) {
        test(&File::new());
    }
    fn builder(&self) -> ClientBuilder {
        self.options()
    }
    fn ask(&self, statement: &str) -> Vec<Vec<String>> {
        let raw = self.raw();
        let mut prepared = raw.prepare(statement).unwrap();
        let count = prepared.column_count();
        let value = |value| match value {
            Value::Integer(number) => number.to_string(),
            Value::Text(text) => text,
            other => panic!("no text: {other:?}"),
        };
        let texts = |row: &Row<'_>| (0..count).map(|at| row.get(at).map(value)).collect();
        prepared.query_map([], texts).unwrap().map(|row| row.unwrap()).collect()
    }
    fn has_name(name: &str) -> String {
        format!("name = CAST('{name}' AS BLOB)")
    }
}

#[test]
fn sqlite_lock_requests_find_their_row_by_primary_key() {
    let file = File::new();
    let raw = file.raw();
    for name in ["take", "retake", "leave", "renew", "expire", "look", "force"] {
        let text = statement("sqlite", name);
        let mut plan = raw.prepare(&format!("EXPLAIN QUERY PLAN {text}")).unwrap();
        let parameters = plan.parameter_count();
        let nothing = rusqlite::params_from_iter((0..parameters).map(|_| 0));
        let steps: Vec<String> =
            plan.query_map(nothing, |row| row.get(3)).unwrap().map(|step| step.unwrap()).collect();
        assert!(!steps.iter().any(|step| step.starts_with("SCAN leasehold_locks")), "{text}\n{steps:?}");
        let inserts = text.contains("ON CONFLICT (name)");
        assert!(inserts || steps.iter().any(|step| step.contains("USING PRIMARY KEY")), "{text}\n{steps:?}");
    }
}

#[test]
fn the_error_for_a_missing_table_gives_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.db");
    let url = format!("sqlite://{}", path.display());
    assert_eq!(LockClient::connect(&url).unwrap_err().kind(), ErrorKind::Unreachable, "no file");
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE other (a)").unwrap();
    fails_saying(LockClient::connect(&url), ErrorKind::Unsupported, "create_schema");
    let own = || LockClient::builder().url(&url).table("own_locks");
    let one = own().create_schema(true).build().unwrap();
    own().build().unwrap();
    let two = LockClient::builder().url(&url).create_schema(true).build().unwrap();
    let _held = one.get_lock("a").acquire().unwrap();
    assert!(two.get_lock("a").try_lock().unwrap());
    for bad in ["", "a b", "1a", "a;b", "a.b.c", "a'"] {
        assert_eq!(own().table(bad).build().unwrap_err().kind(), ErrorKind::InvalidInput, "{bad}");
    }
    let path = folder.path().join("none.db");
    let url = format!("sqlite://{}", path.display());
    std::fs::write(&path, "no database at all, but longer than a header of a hundred bytes is.".repeat(9))
        .unwrap();
    fails(LockClient::connect(&url), ErrorKind::Protocol);
}

/// Some settings are stored in the file, which another program may have made.
#[test]
fn locks_do_not_depend_on_the_settings_of_the_file() {
    let folder = programs::in_memory();
    let path = folder.path().join("locks.db");
    let settings = "PRAGMA page_size = 512; PRAGMA encoding = 'UTF-16be'; PRAGMA auto_vacuum = FULL; \
                    PRAGMA journal_mode = TRUNCATE; PRAGMA user_version = 7; PRAGMA secure_delete = ON; CREATE TABLE other (a)";
    Connection::open(&path).unwrap().execute_batch(settings).unwrap();
    let url = programs::sqlite_url(&path);
    let [client, rival] =
        [(); 2].map(|()| LockClient::builder().url(&url).create_schema(true).lease(RENEWED).build().unwrap());
    let held = client.get_fenced_lock("Kästchen 箱").acquire().unwrap();
    throughout(RENEWED + ms(200), || held.check().is_ok());
    assert!(!rival.get_lock("Kästchen 箱").try_lock().unwrap());
    assert_eq!(rival.inspect("Kästchen 箱").unwrap().holders[0].owner, held.owner().to_string());
    assert_eq!(rival.list("*").map(|one| one.unwrap().name).collect::<Vec<_>>(), ["Kästchen 箱"]);
    held.unlock().unwrap();
    assert!(rival.get_lock("Kästchen 箱").try_lock().unwrap());
    rival.get_lock("Kästchen 箱").unlock().unwrap();
}

/// When the file stays locked, a call fails within the command time-out, and no lock is granted or lost.
#[test]
fn calls_on_a_locked_file_fail_as_busy_in_time() {
    let file = File::new();
    let client = file.options().command_timeout(ms(300)).retry_timeout(ms(400)).build().unwrap();
    let held = client.get_lock("held").acquire().unwrap();
    let raw = file.raw();
    raw.execute_batch("BEGIN IMMEDIATE").unwrap();
    let start = now();
    let error = fails(client.get_lock("a").try_lock(), ErrorKind::Busy);
    assert!(error.is_retryable() && !error.outcome_unknown());
    assert!(start.elapsed() >= ms(250) && own_time_since(start) < ms(3_000), "{:?}", start.elapsed());
    fails(client.get_lock("a").lock(), ErrorKind::Busy);
    held.check().unwrap();
    assert!(client.get_lock("held").is_locked().unwrap(), "reading still works");
    raw.execute_batch("ROLLBACK").unwrap();
    assert!(!client.get_lock("a").is_locked().unwrap());
    assert!(client.get_lock("a").try_lock().unwrap());
    client.get_lock("a").unlock().unwrap();
    held.unlock().unwrap();
}

#[test]
fn a_full_disk_is_reported_and_grants_nothing() {
    const NO_ROOM: &str = "no room: only a tmpfs of its own is really full";
    let Some(disk) = Disk::new() else { return crate::support::missing(NO_ROOM) };
    let url = format!("sqlite://{}/locks.db", disk.path().display());
    let options =
        || LockClient::builder().url(&url).create_schema(true).retry_timeout(ms(300)).lease(ms(2_000));
    let client = options().build().unwrap();
    let other = options().build().unwrap();
    let held = client.get_lock("held").acquire_with(&leased(ms(60_000))).unwrap().unwrap();
    let filler = disk.fill();
    // New names and the log of changes need space, so a try must fail soon.
    let mut failed = None;
    for number in 0..2_000 {
        let name = format!("{number}-{}", "x".repeat(20_000));
        match client.get_lock(&name).try_lock() {
            Ok(true) => client.get_lock(&name).unlock().map_or_else(|error| failed = Some(error), drop),
            Ok(false) => panic!("no other client uses the lock"),
            Err(error) => {
                assert!(!client.get_lock(&name).is_locked().unwrap(), "a failed grant left the lock held");
                failed = Some(error);
            }
        }
        if failed.is_some() {
            break;
        }
    }
    let error = failed.expect("the disk is full in the end");
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error:?}");
    assert!(error.is_retryable());
    assert!(!other.get_lock("held").try_lock().unwrap_or(false), "the earlier hold is gone");
    held.check().unwrap();
    std::fs::remove_file(filler).unwrap();
    held.unlock().unwrap();
    assert!(other.get_lock("held").try_lock_for(ms(5_000)).unwrap());
    other.get_lock("held").unlock().unwrap();
}

struct Mount(std::path::PathBuf);

impl Mount {
    fn new(options: &[&str], place: &std::path::Path) -> Option<Mount> {
        let command = [&["mount"], options, &[place.to_str().unwrap()]].concat();
        crate::support::run(&command, |command| command).0.then(|| Mount(place.to_owned()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let command = ["umount", "-l", self.0.to_str().unwrap()];
        let (good, text) = crate::support::run(&command, |command| command);
        assert!(good, "{text}");
    }
}

struct Disk {
    _mount: Mount,
    folder: TempDir,
}

impl Disk {
    fn new() -> Option<Disk> {
        let folder = tempfile::tempdir().unwrap();
        let mount = Mount::new(&["-t", "tmpfs", "-o", "size=1m", "tmpfs"], folder.path())?;
        Some(Disk { _mount: mount, folder })
    }

    fn path(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Fills the disk almost completely. Removing the returned file frees the space.
    fn fill(&self) -> std::path::PathBuf {
        use std::io::Write as _;
        let path = self.path().join("filler");
        let mut file = std::fs::File::create(&path).unwrap();
        while file.write_all(&[1; 4_096]).is_ok() {}
        path
    }
}

/// When several clients create the file at once, SQLite reports it busy without waiting, so the clients wait.
#[test]
fn many_clients_can_create_the_file_at_once() {
    for _ in 0..20 {
        let folder = programs::in_memory();
        let url = format!("sqlite://{}/locks.db", folder.path().display());
        let start = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    start.wait();
                    let client = LockClient::builder().url(&url).create_schema(true).build().unwrap();
                    client.get_lock("a").try_lock().unwrap();
                });
            }
        });
    }
}

pub(crate) const FILES: [&str; 3] = ["locks.db", "locks.db-wal", "locks.db-shm"];

impl File {
    fn delete(&self) {
        for name in FILES {
            std::fs::remove_file(self.0.path().join(name)).unwrap();
        }
    }

    /// Replaces the file by another, empty database.
    fn replace(&self) {
        let other = File::new();
        let place = self.0.path();
        std::fs::copy(other.0.path().join(FILES[0]), place.join("other")).unwrap();
        std::fs::rename(place.join("other"), place.join(FILES[0])).unwrap();
        for name in &FILES[1..] {
            std::fs::remove_file(place.join(name)).unwrap();
        }
    }
}

/// SQLite keeps the log and its index beside the file to which the link leads.
#[cfg(unix)]
#[test]
fn a_path_can_be_a_symbolic_link_to_the_file() {
    let file = File::new();
    let linked = programs::in_memory();
    let link = linked.path().join("link.db");
    let lead_to = |file: &File| {
        std::fs::remove_file(&link).ok(); // fails the first time, when there is no link yet
        std::os::unix::fs::symlink(file.0.path().join(FILES[0]), &link).unwrap();
    };
    lead_to(&file);
    let url = format!("sqlite://{}", link.display());
    let (by_link, by_path) = (LockClient::builder().url(&url).build().unwrap(), file.client());
    let held = by_link.get_lock("a").acquire().unwrap();
    let lost = held.lost();
    assert!(!by_path.get_lock("a").try_lock().unwrap());
    held.check().unwrap();
    assert_eq!(std::fs::read_dir(linked.path()).unwrap().count(), 1, "files were made beside the link");
    let other = File::new();
    lead_to(&other);
    let loss = lost.recv_timeout(LONG).unwrap();
    assert_eq!(loss.reason, LossReason::Gone);
    assert!(held.unlock().unwrap_err().is_lost());
    assert!(by_link.get_lock("a").try_lock_for(LONG).unwrap());
    assert!(!other.client().get_lock("a").try_lock().unwrap(), "two clients hold the lock");
    by_link.get_lock("a").unlock().unwrap();
}

/// The first write in a container copies the image's file: each container has its own locks under one path.
#[cfg(target_os = "linux")]
#[test]
fn each_container_has_its_own_locks_in_an_image_file() {
    let image = File::new();
    let containers = [(); 2].map(|()| {
        let disk = Disk::new()?;
        let [upper, work, seen] = ["upper", "work", "seen"].map(|name| disk.path().join(name));
        for folder in [&upper, &work, &seen] {
            std::fs::create_dir(folder).unwrap();
        }
        let [lower, upper, work] = [image.0.path(), &upper, &work].map(std::path::Path::display);
        let layers = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        let mount = Mount::new(&["-t", "overlay", "-o", &layers, "overlay"], &seen)?;
        Some((mount, disk, programs::sqlite_url(&seen.join(FILES[0]))))
    });
    let [Some(one), Some(two)] = &containers else {
        return crate::support::missing("no overlay: only root can mount one");
    };
    let [first, beside, other] = [&one.2, &one.2, &two.2].map(|url| LockClient::connect(url).unwrap());
    let held = first.get_lock("a").acquire().unwrap();
    assert!(!beside.get_lock("a").try_lock().unwrap(), "two clients hold the lock");
    assert!(other.get_lock("a").try_lock().unwrap(), "the other container's database");
    other.get_lock("a").unlock().unwrap();
    held.unlock().unwrap();
    drop([first, beside, other]);
}

/// A deleted file counts as replaced too, since the rival creates a new one.
#[test]
fn all_clients_of_a_replaced_file_use_the_new_file() {
    for change in [File::delete, File::replace] {
        let file = File::new();
        let first = file.options().retry_timeout(ms(300)).build().unwrap();
        let held = first.get_lock("a").acquire().unwrap();
        let leased = first.get_lock("leased");
        leased.lock_with_lease(ms(60_000)).unwrap();
        change(&file);
        let rival = file.client();
        let taken = rival.get_lock("a").acquire().unwrap();
        let error = held.unlock().unwrap_err();
        assert!(error.is_lost(), "{error:?}");
        assert!(leased.unlock().unwrap_err().is_lost());
        assert!(!first.get_lock("a").try_lock().unwrap(), "two clients hold the lock");
        taken.unlock().unwrap();
        let held = first.get_lock("a").acquire().unwrap();
        assert!(!rival.get_lock("a").try_lock().unwrap(), "two clients hold the lock");
        held.unlock().unwrap();
    }
}

#[test]
fn a_deleted_or_replaced_file_is_noticed_at_once() {
    for is_replaced in [false, true] {
        let file = File::new();
        // With this lease no renewal is due during the test, so none can notice the change.
        let client = file.options().lease(ms(60_000)).retry_timeout(ms(300)).build().unwrap();
        let held = client.get_lock("a").acquire().unwrap();
        let lost = held.lost();
        file.delete();
        if is_replaced {
            let rival = file.client();
            assert!(elsewhere(|| rival.get_lock("a").try_lock().unwrap()));
        }
        // The limit below excludes the time in which `file.client()` above creates the file.
        let start = now();
        let loss = lost.recv_timeout(ms(20_000)).unwrap();
        assert_eq!(loss.reason, LossReason::Gone, "replaced: {is_replaced}");
        let (took, stalled) = (start.elapsed(), stalled_since(start));
        assert!(took < ms(100 + 250) + stalled, "{took:?}, of which stalled {stalled:?}");
        assert!(held.unlock().unwrap_err().is_lost());
        if !is_replaced {
            let error = client.get_lock("a").try_lock().unwrap_err();
            assert!(error.kind() == ErrorKind::Unreachable && error.is_retryable(), "{error}");
            assert!(!file.0.path().join(FILES[0]).exists());
            drop(file.client());
            assert!(
                eventually(LONG, || client.get_lock("a").try_lock().is_ok_and(|taken| taken)),
                "the lock is not in the new file"
            );
            client.get_lock("a").unlock().unwrap();
        }
    }
}

/// Measures the median time from a release to another client's grant. A waiter polls every 5 to 10 ms.
#[test]
fn a_release_reaches_a_waiter_in_a_few_milliseconds() {
    let file = File::new();
    let clients = [file.client(), file.client()];
    let mut held = Some(clients[0].get_lock("soon").acquire_owned().unwrap());
    let hand_offs = (1..=21).map(|round: usize| {
        let waiting = &clients[round % 2];
        let client = waiting.clone();
        let waiter = start(move || {
            let guard = client.get_lock("soon").acquire_owned().unwrap();
            about_to_end(); // records this thread's stalls, which are unknown after its end
            guard
        });
        assert!(eventually(LONG, || waiting.stats().waiters == 1));
        let_pass(ms(round as u64 * 13 % 50), "another point of the waiter's sleep each time");
        let released = now();
        held.take().unwrap().unlock().unwrap();
        held = Some(waiter.join().unwrap());
        own_time_since(released)
    });
    let took = median(hand_offs.collect());
    assert!(took <= ms(10), "{took:?}");
}

/// The variable that tells another process of this program what to do.
const WORK: &str = "LEASEHOLD_SQLITE_WORK";

/// A test that does nothing by itself. With [`WORK`] in its environment it works as another process, and
/// reports how the work ended.
#[test]
fn helper_process_for_sqlite_tests() {
    let Ok(work) = std::env::var(WORK) else { return };
    let (what, url) = work.split_once(' ').unwrap();
    let options = || LockClient::builder().url(url);
    match what {
        "make" => drop(options().create_schema(true).build().unwrap()),
        "take" | "try" => match options().build() {
            Ok(client) => {
                let wait = if what == "try" { ms(500) } else { LEASE * 20 };
                println!("took {:?}", client.get_lock("a").try_lock_for(wait));
            }
            Err(error) => println!("failed {:?}: {error}", error.kind()),
        },
        "abort" => {
            let client = options().lease(ms(100)).build().unwrap();
            assert!(client.get_lock("a").try_lock().unwrap());
            std::process::abort();
        }
        other => panic!("no such work: {other}"),
    }
}

/// The words before a command that make it run as certain users and groups.
pub(crate) type As<'a> = &'a [&'a str];

pub(crate) fn other_process(user: As<'_>, what: &str, url: &str) -> String {
    let own = test_command("sqlite::helper_process_for_sqlite_tests");
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let work = format!("{what} {url}");
    crate::support::run(&[user, &own].concat(), |command| command.env(WORK, work)).1
}

/// A rival sees no hold if the log was deleted, and acquires the lock; then the holder must learn that it
/// lost the hold. If only the index was deleted, the rival sees the hold.
#[test]
fn a_deleted_write_ahead_log_ends_the_hold_at_once() {
    let (log, index, both) = (&FILES[1..2], &FILES[2..], &FILES[1..]);
    for (deleted, is_elsewhere) in
        [(both, false), (log, false), (index, false), (both, true), (log, true), (index, true)]
    {
        let case = format!("{deleted:?}, another process: {is_elsewhere}");
        let file = File::new();
        // The checkpoint moves the table from the log into the file, so that it survives the log's deletion.
        file.raw().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        let first = file.options().lease(ms(60_000)).build().unwrap();
        let held = first.get_lock("a").acquire().unwrap();
        let lost = held.lost();
        for name in deleted {
            std::fs::remove_file(file.0.path().join(name)).unwrap();
        }
        let wait = if deleted == index { ms(500) } else { LONG };
        let rival = (!is_elsewhere).then(|| file.client());
        let is_taken = match &rival {
            Some(rival) => elsewhere(|| rival.get_lock("a").try_lock_for(wait).unwrap()),
            None => {
                let said = other_process(&[], if deleted == index { "try" } else { "take" }, &file.url());
                assert!(said.contains("took Ok("), "{case}: {said}");
                said.contains("took Ok(true)")
            }
        };
        assert_eq!(is_taken, deleted != index, "{case}");
        if is_taken {
            assert!(receive(&lost, ms(350)).is_ok(), "{case}: two clients hold the lock");
            assert!(held.unlock().unwrap_err().is_lost(), "{case}");
        } else {
            held.check().unwrap();
            held.unlock().unwrap();
        }
        if let Some(rival) = rival.filter(|_| is_taken) {
            assert!(!first.get_lock("a").try_lock().unwrap(), "{case}: two clients hold the lock");
            assert!(rival.get_lock("a").force_unlock().unwrap());
        }
        assert!(first.get_lock("b").try_lock_for(LONG).unwrap(), "{case}");
        first.get_lock("b").unlock().unwrap();
        drop(first);
        let sound: String = file.raw().query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(sound, "ok", "{case}");
    }
}

/// Command prefixes for the file's owner and another user of its group; `None` if this process is not root.
pub(crate) fn users() -> Option<[[&'static str; 7]; 2]> {
    let user = |name, groups| ["setpriv", "--reuid", name, "--regid", name, "--groups", groups];
    let users = [user("daemon", "games"), user("nobody", "games")].map(|mut user| {
        if user[2] == "nobody" {
            user[4] = "nogroup";
        }
        user
    });
    let works = |user: &[&str]| crate::support::run(&[user, &["true"]].concat(), |command| command).0;
    users.iter().all(|user| works(user)).then_some(users)
}

/// A folder in which every user may create files, and the URL of a file in it. The file has this mode, and
/// belongs to `owner` and the group that the users share.
pub(crate) fn shared(mode: &str, owner: As<'_>) -> (TempDir, String) {
    let folder = programs::in_memory();
    let place = folder.path().to_str().unwrap().to_owned();
    let run = |words: &[&str]| {
        let (good, text) = crate::support::run(words, |command| command);
        assert!(good, "{words:?}: {text}");
    };
    run(&["chmod", "777", &place]);
    let url = format!("sqlite://{place}/locks.db");
    let said = other_process(owner, "make", &url);
    assert!(said.contains("1 passed"), "{said}");
    let file = format!("{place}/locks.db");
    run(&["chgrp", "games", &file]);
    run(&["chmod", mode, &file]);
    (folder, url)
}

#[test]
fn files_left_by_a_crash_block_no_other_unix_user() {
    const NO_USERS: &str = "no other users: only root can be them";
    let Some([owner, other]) = users() else { return crate::support::missing(NO_USERS) };
    let (folder, url) = shared("664", &owner);
    let said = other_process(&other, "abort", &url);
    assert!(folder.path().join(FILES[2]).exists(), "the aborted process left no such file: {said}");
    let said = other_process(&owner, "take", &url);
    assert!(said.contains("took Ok(true)"), "{said}");
}

#[test]
fn clients_of_a_read_only_mount_fail_as_read_only() {
    const NO_ROOM: &str = "no mount: only root can make one";
    let Some(disk) = Disk::new() else { return crate::support::missing(NO_ROOM) };
    let url = format!("sqlite://{}/locks.db", disk.path().display());
    let options = |create| LockClient::builder().url(&url).create_schema(create);
    drop(options(true).build().unwrap());
    let place = disk.path().to_str().unwrap();
    let (good, text) = crate::support::run(&["mount", "-o", "remount,ro", place], |command| command);
    assert!(good, "{text}");
    for create in [false, true] {
        fails(options(create).build(), ErrorKind::ReadOnly);
        let none = format!("sqlite://{place}/none.db");
        fails(
            LockClient::builder().url(&none).create_schema(create).build(),
            if create { ErrorKind::ReadOnly } else { ErrorKind::Unreachable },
        );
    }
}

/// SQLite keeps the log beside the path, so clients of two paths to a file would not see each other's locks.
#[cfg(unix)]
#[test]
fn a_hard_linked_file_is_refused() {
    let file = File::new();
    let running = file.client();
    let held = running.get_lock("a").acquire().unwrap();
    let other = file.0.path().join("other.db");
    std::fs::hard_link(file.0.path().join(FILES[0]), &other).unwrap();
    for url in [file.url(), programs::sqlite_url(&other)] {
        for create in [false, true] {
            fails_saying(
                LockClient::builder().url(&url).create_schema(create).build(),
                ErrorKind::Unsupported,
                "hard link",
            );
        }
    }
    assert!(!file.0.path().join("other.db-wal").exists(), "files were made before the refusal");
    held.check().unwrap();
    held.unlock().unwrap();
    std::fs::remove_file(other).unwrap();
    file.options().build().unwrap();
}

#[cfg(unix)]
#[test]
fn a_sqlite_file_mounted_without_its_folder_is_refused() {
    const NO_MOUNT: &str = "no mount: only root can make one";
    let (file, inside) = (File::new(), tempfile::tempdir().unwrap());
    let outer = file.client();
    let _held = outer.get_lock("a").acquire().unwrap();
    // The system's list of mounts escapes the space in this name, so the client must decode it.
    let alone = inside.path().join("a lone.db");
    std::fs::write(&alone, "").unwrap();
    let database = file.0.path().join(FILES[0]);
    let Some(_alone) = Mount::new(&["--bind", database.to_str().unwrap()], &alone) else {
        return crate::support::missing(NO_MOUNT);
    };
    let linked = inside.path().join("link.db");
    std::os::unix::fs::symlink(&alone, &linked).unwrap();
    for path in [&alone, &linked] {
        let url = format!("sqlite://{}", path.to_str().unwrap().replace(' ', "%20"));
        fails_saying(
            LockClient::builder().url(url).create_schema(true).build(),
            ErrorKind::Unsupported,
            "mount the whole folder",
        );
    }
    assert_eq!(std::fs::read_dir(inside.path()).unwrap().count(), 2, "files were made before the refusal");
    let folder = inside.path().join("folder");
    std::fs::create_dir(&folder).unwrap();
    let _folder = Mount::new(&["--bind", file.0.path().to_str().unwrap()], &folder).unwrap();
    let shared = LockClient::connect(programs::sqlite_url(&folder.join(FILES[0]))).unwrap();
    assert!(!shared.get_lock("a").try_lock().unwrap(), "two clients hold the lock");
}

/// The hold's row is in the file itself, not only in the log. Then an older backup is copied over the file.
#[test]
fn a_hold_that_a_restored_backup_lacks_is_lost() {
    let file = File::new();
    let (path, backup) = (file.0.path().join(FILES[0]), file.0.path().join("backup.db"));
    let is_in_the_file = || file.raw().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    is_in_the_file();
    std::fs::copy(&path, &backup).unwrap();
    let held = file.options().lease(RENEWED).build().unwrap().get_lock("a").acquire_owned().unwrap();
    let lost = held.lost();
    is_in_the_file();
    std::fs::copy(&backup, &path).unwrap();
    let rival = file.client();
    assert!(elsewhere(|| rival.get_lock("a").try_lock().unwrap()));
    assert_eq!(lost.recv_timeout(LONG).unwrap().reason, LossReason::Gone);
    assert!(held.unlock().unwrap_err().is_lost());
}

const TEN_DAYS_MS: i64 = 864_000_000;

/// Imitates a clock that was set by this much, by moving the times in the rows the other way.
fn set_clock(file: &File, by_ms: i64) {
    let set = "UPDATE leasehold_locks SET expires_at = expires_at - ?1, since = since - ?1";
    assert!(file.raw().execute(set, [by_ms]).unwrap() > 0);
}

#[test]
fn setting_the_wall_clock_does_not_change_a_sqlite_lease() {
    let file = File::new();
    let (one, other) = (file.client(), file.client());
    let renewed = one.get_lock("renewed").acquire().unwrap();
    one.get_lock("leased").lock_with_lease(ms(60_000)).unwrap();
    for by_ms in [TEN_DAYS_MS, -2 * TEN_DAYS_MS] {
        set_clock(&file, by_ms);
        for name in ["renewed", "leased"] {
            assert!(!other.get_lock(name).try_lock().unwrap(), "{by_ms}");
            let left = other.get_lock(name).remaining_lease().unwrap().unwrap();
            assert!(left <= ms(60_000), "{left:?}");
            assert!(other.inspect(name).unwrap().remaining.is_some_and(|left| left <= ms(60_000)));
            assert!(other.list(name).count() == 1);
        }
        assert_eq!(other.sweep(ms(1)).unwrap(), 0, "{by_ms}");
    }
    renewed.unlock().unwrap();
    one.get_lock("leased").unlock().unwrap();
    one.get_lock("soon").lock_with_lease(ms(300)).unwrap();
    set_clock(&file, -TEN_DAYS_MS);
    let start = now();
    assert!(elsewhere(|| other.get_lock("soon").try_lock_for(LONG).unwrap()), "{:?}", start.elapsed());
}

/// A process reads the clock before the row. A renewal in between would add to the remaining time.
#[test]
fn the_reported_remaining_time_never_exceeds_the_lease() {
    let file = File::new();
    let (one, other) = (file.client(), file.client());
    let lease = ms(60_000);
    one.get_lock("a").lock_with_lease(lease).unwrap();
    file.raw().execute("UPDATE leasehold_locks SET ends_up = ends_up + 5000", []).unwrap();
    assert_eq!(other.get_lock("a").remaining_lease().unwrap(), Some(lease));
    assert_eq!(other.inspect("a").unwrap().remaining, Some(lease));
    assert_eq!(other.list("a").next().unwrap().unwrap().remaining, Some(lease));
}

/// A row with another boot id may be of a dead holder, or of a living one in another time namespace (a
/// container). So its lease still counts, until its end by the wall clock.
#[test]
fn a_lease_from_before_a_machine_restart_still_ends() {
    let file = File::new();
    let (one, other) = (file.client(), file.client());
    for name in ["a", "b"] {
        one.get_lock(name).lock_with_lease(ms(60_000)).unwrap();
    }
    let again = "UPDATE leasehold_locks SET boot = 'an earlier one', ends_up = ends_up + 1000000000000";
    assert_eq!(file.raw().execute(again, []).unwrap(), 2);
    assert!(!other.get_lock("a").try_lock().unwrap());
    let left = other.get_lock("a").remaining_lease().unwrap().unwrap();
    assert!(left <= ms(60_000), "{left:?}");
    set_clock(&file, -TEN_DAYS_MS);
    assert!(!other.get_lock("a").is_locked().unwrap());
    assert_eq!(other.list("*").count(), 0);
    assert!(other.get_lock("a").try_lock().unwrap());
    other.get_lock("a").unlock().unwrap();
    assert!(other.sweep(ms(1)).unwrap() <= 2);
}
