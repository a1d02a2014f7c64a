//! Tests of the store over TLS.

use std::path::Path;
use std::process::Command;
use std::process::Stdio;

use super::prelude::*;
use crate::config::TlsOptions;

/// A server with a certificate for `localhost`, which the test's own authority issued.
struct Secured {
    server: Server,
    folder: tempfile::TempDir,
    port: u16,
}

impl Secured {
    fn start() -> Secured {
        let folder = tempfile::tempdir().unwrap();
        authority(folder.path(), "ca");
        let path = |file: &str| folder.path().join(file).display().to_string();
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem";
        openssl(folder.path(), &format!("req {key} -out req.pem -subj /CN=localhost"));
        std::fs::write(folder.path().join("ext"), "subjectAltName=DNS:localhost\n").unwrap();
        let signs = "-CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext";
        openssl(folder.path(), &format!("x509 -req -in req.pem -out cert.pem {signs}"));
        let settings = [
            "--tls-cert-file",
            &path("cert.pem"),
            "--tls-key-file",
            &path("key.pem"),
            "--tls-ca-cert-file",
            &path("ca.pem"),
            "--tls-auth-clients",
            "no",
        ];
        let (server, port) = Server::start_on_port("--tls-port", &settings);
        Secured { server, folder, port }
    }

    fn options(&self, host: &str, ca: Option<&str>) -> ServerOptions {
        let tls = TlsOptions { ca: ca.map(|file| self.folder.path().join(file)), identity: None };
        ServerOptions { url: format!("rediss://{host}:{}", self.port), tls, ..ServerOptions::default() }
    }
}

fn authority(folder: &Path, name: &str) {
    let key = format!("-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout {name}.key");
    openssl(folder, &format!("req -x509 {key} -out {name}.pem -days 2 -subj /CN={name}"));
}

fn openssl(folder: &Path, args: &str) {
    let status =
        Command::new("openssl").args(args.split(' ')).current_dir(folder).stderr(Stdio::null()).status();
    assert!(status.expect("these tests need openssl on the PATH").success());
}

#[test]
fn many_subscriptions_work_over_tls() {
    let secured = Secured::start();
    crate::stores::redis::tests::subscriber::all_of_many_stand(&secured.options("localhost", Some("ca.pem")));
}

#[test]
fn locks_and_wake_ups_work_over_tls() {
    let secured = Secured::start();
    let store = open(&secured.options("localhost", Some("ca.pem")));
    let waker = crate::sync::Waker::default();
    let me = claim(Kind::Mutex, "lk", 30_000);
    let listening = store.listen(&me, &waker).unwrap();
    eventually(|| listening.is_up());
    let before = listening.message_count();
    for _ in 0..20 {
        store.attempt(&me, 1, soon()).granted();
        assert!(store.renew(std::slice::from_ref(&me), soon()).remove(0).done());
        store.release(&me, 0, soon()).freed();
    }
    eventually(|| listening.message_count() == before + 20 && waker.take());
    // These requests need more than one TLS record in each direction.
    let claims: Vec<_> = (0..600).map(|n| claim(Kind::Mutex, &format!("lk{n}"), 30_000)).collect();
    assert!(store.renew(&claims, soon()).into_iter().all(|answer| !answer.done()));
    let channel = "redisson_lock__channel:{lk}";
    assert_eq!(secured.server.number(&["PUBLISH", channel, &"x".repeat(200_000)]), 1);
    eventually(|| listening.message_count() == before + 21);

    let (_never, nothing) = crossbeam_channel::bounded::<()>(0);
    for kill in [false, true] {
        if kill {
            secured.server.run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        }
        assert!(nothing.recv_timeout(std::time::Duration::from_millis(150)).is_err());
        store.attempt(&me, 1, soon()).granted();
    }
}
