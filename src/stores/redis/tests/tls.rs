//! The store over TLS.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::config::{ServerOptions, TlsOptions};
use crate::error::{Error, ErrorKind};
use crate::observe::reporter::Reporter;
use crate::seam::{Kind, Release, Store};
use crate::stores::redis::RedisStore;
use crate::stores::redis::tests::harness::{Said, Server, claim, eventually, granted, open, soon};

/// A server with a certificate for `localhost`, issued by the test's own authority.
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
        openssl(
            folder.path(),
            &[
                "req",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
                "-keyout",
                "key.pem",
                "-out",
                "req.pem",
                "-subj",
                "/CN=localhost",
            ],
        );
        std::fs::write(folder.path().join("ext"), "subjectAltName=DNS:localhost\n").unwrap();
        openssl(
            folder.path(),
            &[
                "x509",
                "-req",
                "-in",
                "req.pem",
                "-CA",
                "ca.pem",
                "-CAkey",
                "ca.key",
                "-CAcreateserial",
                "-out",
                "cert.pem",
                "-days",
                "2",
                "-extfile",
                "ext",
            ],
        );
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
    let (key, cert) = (format!("{name}.key"), format!("{name}.pem"));
    openssl(
        folder,
        &[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-keyout",
            &key,
            "-out",
            &cert,
            "-days",
            "2",
            "-subj",
            &format!("/CN={name}"),
        ],
    );
}

fn openssl(folder: &Path, args: &[&str]) {
    let status = Command::new("openssl").args(args).current_dir(folder).stderr(Stdio::null()).status();
    assert!(status.expect("these tests need openssl on the PATH").success());
}

fn refused(options: &ServerOptions) -> Error {
    RedisStore::connect(options, Arc::new(Reporter::new(None))).err().unwrap()
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
        granted(store.attempt(&me, 1, soon()));
        assert!(store.renew(std::slice::from_ref(&me), soon()).remove(0).done());
        assert!(matches!(store.release(&me, 0, soon()).done(), Release::Freed { .. }));
    }
    eventually(|| listening.message_count() == before + 20 && waker.take());
    // More than one TLS record in both directions.
    let claims: Vec<_> = (0..600).map(|n| claim(Kind::Mutex, &format!("lk{n}"), 30_000)).collect();
    assert!(store.renew(&claims, soon()).into_iter().all(|answer| !answer.done()));
    let channel = "redisson_lock__channel:{lk}";
    assert_eq!(secured.server.number(&["PUBLISH", channel, &"x".repeat(200_000)]), 1);
    eventually(|| listening.message_count() == before + 21);

    // An idle connection, which the server closes in the second round.
    let (_never, nothing) = crossbeam_channel::bounded::<()>(0);
    for kill in [false, true] {
        if kill {
            secured.server.run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        }
        assert!(nothing.recv_timeout(std::time::Duration::from_millis(150)).is_err());
        granted(store.attempt(&me, 1, soon()));
    }
    store.close();
}

#[test]
fn a_server_that_cannot_prove_its_name_is_refused() {
    let secured = Secured::start();
    authority(secured.folder.path(), "other");
    for (host, ca, says) in
        [("localhost", Some("other.pem"), "UnknownIssuer"), ("127.0.0.1", Some("ca.pem"), "not valid for")]
    {
        let error = refused(&secured.options(host, ca));
        assert_eq!(error.kind(), ErrorKind::Tls, "{error:?}");
        assert!(error.to_string().contains(says), "{error}");
        assert!(!error.is_retryable());
    }
    let missing = refused(&secured.options("localhost", Some("none.pem")));
    assert_eq!(missing.kind(), ErrorKind::InvalidInput);
    std::fs::write(secured.folder.path().join("empty.pem"), "").unwrap();
    assert_eq!(refused(&secured.options("localhost", Some("empty.pem"))).kind(), ErrorKind::InvalidInput);
    if let Some(error) =
        RedisStore::connect(&secured.options("localhost", None), Arc::new(Reporter::new(None))).err()
    {
        assert!(matches!(error.kind(), ErrorKind::Tls | ErrorKind::InvalidInput), "{error:?}");
    } else {
        panic!("the system trusts an authority made a moment ago");
    }
}

#[test]
fn a_server_without_tls_is_refused() {
    let (server, port) = Server::start_on_port("--port", &[]);
    let folder = tempfile::tempdir().unwrap();
    authority(folder.path(), "ca");
    let options = ServerOptions {
        url: format!("rediss://me:S3CR3T@localhost:{port}"),
        tls: TlsOptions { ca: Some(folder.path().join("ca.pem")), identity: None },
        ..ServerOptions::default()
    };
    let error = refused(&options);
    assert!(matches!(error.kind(), ErrorKind::Tls | ErrorKind::Unreachable), "{error:?}");
    assert!(!format!("{error:?}").contains("S3CR3T"));
    drop(server);
}
