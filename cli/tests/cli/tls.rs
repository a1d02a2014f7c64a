//! Stores that demand client certificates are reached by options and by variables, and each failure of TLS is
//! reported.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::secured::{Certificates, Secured};
use crate::world::{Run, ends, eventually, leasehold, leasehold_in_time, now, outcome};

const STRANGERS: usize = 10;
const TRUE: [&str; 4] = ["run", "job", "--", "true"];

#[track_caller]
fn works(command: &mut Command) -> String {
    ends(command, 0, "")
}

fn with_options<'a>(options: &'a [String], words: &[&'a str], is_behind: bool) -> Vec<&'a str> {
    let options = options.iter().map(String::as_str);
    let (first, rest) = words.split_first().unwrap();
    match is_behind {
        true => [*first].into_iter().chain(options).chain(rest.iter().copied()).collect(),
        false => options.chain(words.iter().copied()).collect(),
    }
}

fn is_reached(certificates: &Certificates, url: &str, without: (i32, &str)) {
    let options = certificates.options();
    for is_behind in [false, true] {
        let mut command = leasehold(&with_options(&options, &TRUE, is_behind));
        command.env("LEASEHOLD_CONNECT_TIMEOUT", "50s"); // a busy machine may need that long
        works(command.env("LEASEHOLD_URL", url).env("LEASEHOLD_CREATE_SCHEMA", "yes"));
    }
    for words in [&["doctor"][..], &["show", "job"], &["ls"], &TRUE] {
        let said = works(&mut certificates.program(url, words));
        assert!(!said.contains("fault "), "{said}");
    }
    let wrong = certificates.file("unknown-ca.crt");
    let mut command = certificates.program(url, &with_options(&options, &TRUE, false));
    works(
        command
            .env("LEASEHOLD_TLS_CA", &wrong)
            .env("LEASEHOLD_TLS_CERT", "/no")
            .env("LEASEHOLD_TLS_KEY", "/no"),
    );
    let mut command = certificates.program(url, &["--ca", &wrong, "show", "job"]);
    ends(&mut command, 69, "TLS failed: no trusted authority");
    let mut command = certificates.program(url, &["show", "job"]);
    command.env_remove("LEASEHOLD_TLS_CERT").env_remove("LEASEHOLD_TLS_KEY");
    ends(&mut command, without.0, without.1);
    // A client could miss the reason when the server closes the connection, so the test tries ten times.
    let (certificate, key) = (certificates.file("stranger.crt"), certificates.file("stranger.key"));
    for _ in 0..STRANGERS {
        let mut command = certificates.program(url, &["--cert", &certificate, "--key", &key, "show", "job"]);
        ends(&mut command, 69, "TLS failed: the server does not accept the client certificate");
    }
}

#[test]
fn postgresql_with_client_certificates_is_reached_by_options_and_variables() {
    let certificates = Certificates::make();
    let Some(server) = Secured::postgres(&certificates) else { return };
    let url = server.url("postgres", "/postgres");
    let program = |words: &[&str]| {
        let mut command = certificates.program(&url, words);
        command.env("LEASEHOLD_USERNAME", "client");
        command
    };
    let table = |words: &[&str]| {
        let mut command = program(words);
        command.env("LEASEHOLD_TABLE", "public.own_locks");
        command
    };
    ends(&mut table(&TRUE), 64, "there is no table");
    works(table(&TRUE).env("LEASEHOLD_CREATE_SCHEMA", "on"));
    let said = works(&mut table(&["doctor"]));
    assert!(said.contains("public.own_locks"), "{said}");
    ends(&mut program(&TRUE), 64, "there is no table");
    ends(program(&TRUE).env("LEASEHOLD_SESSION_LOCKS", "yes"), 64, "session");
    let url = url.replace("localhost", "client@localhost");
    is_reached(&certificates, &url, (77, "client certificate"));
}

#[test]
fn redis_with_client_certificates_is_reached_by_options_and_variables() {
    let certificates = Certificates::make();
    let Some(server) = Secured::redis(&certificates, &[]) else { return };
    is_reached(
        &certificates,
        &server.url("rediss", ""),
        (69, "TLS failed: the server demands a client certificate"),
    );
}

#[test]
fn settings_come_from_variables_on_redis_with_client_certificates() {
    let certificates = Certificates::make();
    let Some(server) = Secured::redis(&certificates, &[]) else { return };
    server.ask(&["ACL", "SETUSER", "locks", "on", ">S3CR3T", "~*", "&*", "+@all"]);
    server.ask(&["ACL", "SETUSER", "default", "off"]);
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name)
    };
    let program = |words: &[&str]| {
        let mut command = certificates.program("", words);
        command.env("LEASEHOLD_URL_FILE", file("url", &format!("{}\n", server.url("rediss", ""))));
        command
            .env("LEASEHOLD_USERNAME", "locks")
            .env("LEASEHOLD_PASSWORD_FILE", file("password", "S3CR3T\r\n"));
        command
    };
    let full = |words: &[&str]| {
        let mut command = program(words);
        for (name, value) in [
            ("DATABASE", "3"),
            ("KEY_PREFIX", "shop:"),
            ("CLIENT_NAME", "named"),
            ("LABEL", "labelled"),
            ("POOL_SIZE", "2"),
            ("LEASE", "20s"),
            ("COMMAND_TIMEOUT", "5s"),
            ("CONNECT_TIMEOUT", "20s"),
            ("RETRY_TIMEOUT", "20s"),
            ("UNSUBSCRIBE_DELAY", "1s"),
            ("ALLOWED_HOSTS", "localhost"),
            ("DIRECTORY", "no"),
            ("CLUSTER_PUB_SUB", "plain"),
            ("SCRIPTS", "yes"),
        ] {
            command.env(format!("LEASEHOLD_{name}"), value);
        }
        command
    };
    let mut run = Run::start(&mut full(&["run", "job", "--", "sleep", "60"]));
    // The default user is off, so the test uses the program's user.
    let asked = |words: &[&str]| server.ask_as("locks", "S3CR3T", words);
    eventually("the lock is held", || outcome(&mut full(&["ls"])).1.contains("HELD BY"));
    let clients = asked(&["CLIENT", "LIST"]);
    assert!(clients.contains("name=named") && clients.contains("db=3"), "{clients}");
    ends(&mut full(&["clients"]), 0, "0 clients among");
    ends(&mut full(&["run", "-n", "job", "--", "true"]), 75, "busy");
    works(&mut program(&["run", "-n", "job", "--", "true"]));
    let said = works(&mut full(&["doctor"]));
    assert!(said.contains("named shop:leasehold-doctor") && !said.contains("fault "), "{said}");
    run.terminate();
    let mut command = program(&["run", "-n", "job", "--", "true"]);
    command.env("LEASEHOLD_REPLICAS", "1 50ms").env("LEASEHOLD_RETRY_TIMEOUT", "100ms");
    ends(&mut command, 69, "replica");
    ends(program(&TRUE).env("LEASEHOLD_PASSWORD", "S3CR3T"), 64, "LEASEHOLD_PASSWORD is set too");
    let said =
        ends(program(&TRUE).env("LEASEHOLD_PASSWORD_FILE", "/no/S3CR3T"), 64, "LEASEHOLD_PASSWORD_FILE");
    assert!(!said.contains("S3CR3T"), "{said}");
    ends(program(&TRUE).env("LEASEHOLD_URL", "redis://S3CR3T@h"), 64, "LEASEHOLD_URL is set too");
    let wrong = file("wrong", "wrong");
    ends(program(&TRUE).env("LEASEHOLD_PASSWORD_FILE", wrong), 77, "LEASEHOLD_PASSWORD");
}

#[test]
fn sentinels_with_users_and_client_certificates_lead_to_their_master() {
    let certificates = Certificates::make();
    let Some(master) = Secured::redis(&certificates, &["tls-replication yes"]) else { return };
    master.ask(&["ACL", "SETUSER", "locks", "on", ">data", "~*", "&*", "+@all"]);
    let settings = [
        &format!("sentinel monitor shop 127.0.0.1 {} 1", master.port),
        "tls-replication yes",
        "user watch on >S3CR3T allchannels +@all",
        "user default off",
    ];
    let Some(sentinel) = Secured::redis(&certificates, &settings) else { return };
    let program = |words: &[&str]| {
        let mut command = certificates.program(&sentinel.url("rediss-sentinel", "/shop"), words);
        command.env("LEASEHOLD_USERNAME", "locks").env("LEASEHOLD_PASSWORD", "data");
        command.env("LEASEHOLD_SENTINEL_USERNAME", "watch").env("LEASEHOLD_SENTINEL_PASSWORD", "S3CR3T");
        command
    };
    works(&mut program(&TRUE));
    let said = works(&mut program(&["doctor"]));
    assert!(said.contains("rights") && !said.contains("could not be found"), "{said}");
    let file = certificates.file("sentinel-password");
    fs::write(&file, "S3CR3T\n").unwrap();
    works(
        program(&TRUE)
            .env_remove("LEASEHOLD_SENTINEL_PASSWORD")
            .env("LEASEHOLD_SENTINEL_PASSWORD_FILE", file),
    );
    ends(
        program(&TRUE).env_remove("LEASEHOLD_SENTINEL_PASSWORD").env_remove("LEASEHOLD_SENTINEL_USERNAME"),
        77,
        "Sentinel",
    );
    ends(program(&TRUE).env("LEASEHOLD_TLS_CA", certificates.file("unknown-ca.crt")), 69, "TLS failed");
}

#[test]
fn variables_can_name_a_redlock_a_ring_or_a_cluster() {
    let certificates = Certificates::make();
    let servers: Option<Vec<Secured>> = (0..3).map(|_| Secured::redis(&certificates, &[])).collect();
    let Some(servers) = servers else { return };
    let urls: Vec<String> = servers.iter().map(|server| server.url("rediss", "")).collect();
    let program = |name: &str, value: &str, words: &[&str]| {
        let mut command = certificates.program("", words);
        command.env(name, value);
        command
    };
    let redlock = |words: &[&str]| {
        let mut command = program("LEASEHOLD_REDLOCK", &urls.join(" "), words);
        command.env("LEASEHOLD_NODE_TIMEOUT", "2s");
        command
    };
    let count =
        |key: &str| servers.iter().filter(|server| server.ask(&["EXISTS", key]).contains(":1")).count();
    let mut run = Run::start(&mut redlock(&["run", "voted", "--", "sleep", "60"]));
    eventually("all have it", || count("voted") == 3);
    ends(&mut redlock(&["run", "-n", "voted", "--", "true"]), 75, "busy");
    let said = works(&mut redlock(&["doctor"]));
    assert_eq!(said.matches("a primary").count(), 3, "{said}");
    run.0.kill().unwrap();
    run.wait();
    let file = certificates.file("servers");
    fs::write(&file, urls.join("\n")).unwrap();
    works(program("LEASEHOLD_REDLOCK_FILE", &file, &["ls"]).env("LEASEHOLD_NODE_TIMEOUT", "2s"));
    ends(redlock(&TRUE).env("LEASEHOLD_TLS_CA", certificates.file("unknown-ca.crt")), 69, "TLS failed");
    ends(redlock(&TRUE).env("LEASEHOLD_URL", &urls[0]), 64, "LEASEHOLD_URL is set too");
    let (one, two, three) = (&urls[0], &urls[1], &urls[2]);
    let ring = |words: &[&str]| program("LEASEHOLD_RING", &format!("one={one} two*3={two}"), words);
    works(&mut ring(&["run", "ringed", "--", "true"]));
    let mark = servers[1].ask(&["GET", "leasehold_ring_epoch"]);
    assert!(mark.contains("1 ") && mark.ends_with("two\r\n"), "{mark}");
    let moving = format!("one={one} two*3={two} three={three}");
    let moved = |words: &[&str]| {
        let mut command = program("LEASEHOLD_RING", &moving, words);
        command.env("LEASEHOLD_RING_EPOCH", "2").env("LEASEHOLD_RING_FROM", format!("one={one} two*3={two}"));
        command
    };
    works(&mut moved(&["run", "ringed", "--", "true"]));
    ends(&mut ring(&["run", "ringed", "--", "true"]), 69, "epoch");
    works(&mut moved(&["doctor"]));
    ends(
        program("LEASEHOLD_RING_EPOCH", "2", &TRUE).env("LEASEHOLD_URL", one),
        64,
        "LEASEHOLD_RING is not set",
    );
    let Some(member) = Secured::redis(&certificates, &["cluster-enabled yes", "tls-cluster yes"]) else {
        return;
    };
    let slots: Vec<String> = (0..16384).map(|slot| slot.to_string()).collect();
    member.ask(&[vec!["CLUSTER", "ADDSLOTS"], slots.iter().map(String::as_str).collect()].concat());
    eventually("the cluster is up", || member.ask(&["CLUSTER", "INFO"]).contains("cluster_state:ok"));
    let cluster = |words: &[&str]| certificates.program(&member.url("rediss-cluster", ""), words);
    works(cluster(&TRUE).env("LEASEHOLD_CLUSTER_PUB_SUB", "both"));
    let said = works(&mut cluster(&["doctor"]));
    assert!(said.contains("rights") && !said.contains("fault "), "{said}");
    ends(cluster(&TRUE).env_remove("LEASEHOLD_TLS_CERT").env_remove("LEASEHOLD_TLS_KEY"), 69, "TLS failed");
}

#[test]
fn failures_of_tls_exit_with_69_without_retries() {
    let certificates = Certificates::make();
    let Some(server) = Secured::redis(&certificates, &[]) else { return };
    let Some(expired) = Secured::redis_as(&certificates, "expired-server", &[]) else { return };
    let plain = crate::world::Server::start();
    let file = |name: &str| certificates.file(name);
    let url = server.url("rediss", "");
    let elsewhere = url.replace("localhost", "127.0.0.2");
    let untrusted = || {
        let mut command = certificates.program(&url, &["show", "job"]);
        command.env_remove("LEASEHOLD_TLS_CA");
        command
    };
    let with = |url: &str, certificate: &str| {
        let (certificate, key) = (file(&format!("{certificate}.crt")), file(&format!("{certificate}.key")));
        certificates.program(url, &["--cert", &certificate, "--key", &key, "show", "job"])
    };
    for (mut command, words) in [
        (untrusted(), "no trusted authority has signed the server's certificate"),
        (with(&elsewhere, "client"), "not one for this host"),
        (with(&expired.url("rediss", ""), "client"), "has expired"),
        (with(&url, "expired-client"), "does not accept the client certificate"),
        (with(&url, "stranger"), "does not accept the client certificate"),
    ] {
        let begun = now();
        command.env("LEASEHOLD_RETRY_TIMEOUT", "10m").env("LEASEHOLD_CONNECT_TIMEOUT", "5m");
        let said = ends(&mut command, 69, words);
        assert!(!said.contains("rights") && now() - begun < 120_000_000_000, "{said}");
    }
    // A server without TLS does not answer a handshake, so only the connect time-out ends the attempt.
    let mut command = with(&plain.url().replace("redis://127.0.0.1", "rediss://localhost"), "client");
    ends(command.env("LEASEHOLD_CONNECT_TIMEOUT", "1s"), 69, "does not speak TLS, and the URL does");
    let mut clear = certificates.program(&url.replace("rediss", "redis"), &["show", "job"]);
    for name in ["LEASEHOLD_TLS_CA", "LEASEHOLD_TLS_CERT", "LEASEHOLD_TLS_KEY"] {
        clear.env_remove(name);
    }
    clear.env("LEASEHOLD_CONNECT_TIMEOUT", "1s").env("LEASEHOLD_RETRY_TIMEOUT", "100ms");
    let said = ends(&mut clear, 69, "speaks TLS, and the URL does not: it has to begin with rediss://");
    assert!(said.lines().next().is_some_and(|first| first.contains("speaks TLS")), "{said}");
    for words in [
        &TRUE[..],
        &["once", "job", "--at-least", "1s", "--at-most", "9s", "--", "true"],
        &["elect", "job", "--", "true"],
        &["show", "job"],
        &["ls"],
        &["clients"],
        &["permits", "job"],
        &["force", "job", "--yes"],
        &["watch", "job", "--for", "1s"],
        &["serve", "--listen", "127.0.0.1:0"],
        &["doctor"],
    ] {
        for format in ["text", "json"] {
            let mut command =
                leasehold_in_time(&[&["--ca", &file("ca.crt"), "--format", format], words].concat());
            let said = ends(
                command.env("LEASEHOLD_URL", &url),
                69,
                "TLS failed: the server demands a client certificate",
            );
            assert!(said.contains("--cert") && !said.contains("rights"), "{said}");
        }
    }
}

#[test]
fn unusable_certificate_files_are_refused_before_any_request() {
    let certificates = Certificates::make();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let [ca, certificate, key] = certificates.right();
    let [empty, other_key, encrypted] =
        ["empty", "server.key", "encrypted.key"].map(|name| certificates.file(name));
    fs::write(&empty, "").unwrap();
    let sealed = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAAwAA==\n-----END ENCRYPTED PRIVATE KEY-----\n";
    fs::write(&encrypted, sealed).unwrap();
    for url in [
        "rediss://H",
        "rediss-sentinel://H/m",
        "rediss-cluster://H",
        "etcds://H",
        "zks://H",
        "postgres://u@H/d",
        "mysql://u@H/d",
    ] {
        let url = url.replace('H', &format!("localhost:{port}"));
        for (ca, certificate, key) in [
            ("/no/such/file", &*certificate, &*key),
            (&empty, &certificate, &key),
            (&ca, "/no/such/file", &key),
            (&ca, &certificate, "/no/such/file"),
            (&ca, &empty, &key),
            (&ca, &certificate, &empty),
            (&ca, &certificate, &other_key),
            (&ca, &certificate, &encrypted),
        ] {
            let mut command = leasehold(&["--ca", ca, "--cert", certificate, "--key", key, "ls"]);
            ends(command.env("LEASEHOLD_URL", &url), 64, "cannot be used");
        }
        // A URL without TLS refuses --ca. URLs of databases have no scheme for TLS, so they are left out.
        if let Some((scheme, rest)) = url.split_once("s://").filter(|(scheme, _)| *scheme != "postgre") {
            ends(
                leasehold(&["--ca", &ca, "ls"]).env("LEASEHOLD_URL", format!("{scheme}://{rest}")),
                64,
                "--ca was given",
            );
        }
    }
    let url = format!("rediss://localhost:{port}");
    for (words, says) in [(["--cert", &certificate, "ls"], "--key"), (["--key", &key, "ls"], "--cert")] {
        ends(leasehold(&words).env("LEASEHOLD_URL", &url), 64, says);
    }
    let variable = |name: &str, value: &str| {
        let mut command = leasehold(&["ls"]);
        command.env("LEASEHOLD_URL", &url).env(name, value);
        command
    };
    ends(&mut variable("LEASEHOLD_TLS_CERT", &certificate), 64, "LEASEHOLD_TLS_KEY is not set");
    ends(&mut variable("LEASEHOLD_TLS_KEY", &key), 64, "LEASEHOLD_TLS_CERT is not set");
    assert!(listener.accept().is_err(), "the program connected");
    ends(&mut variable("LEASEHOLD_TLS_CA", "/"), 64, "cannot be used");
    fs::set_permissions(&ca, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::read(&ca).is_err() {
        ends(&mut variable("LEASEHOLD_TLS_CA", &ca), 64, "ermission denied");
    }
}
