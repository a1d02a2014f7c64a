//! TLS to databases and ZooKeeper, whose impostors clients refuse; servers that require client certificates.

use mysql::prelude::Queryable as _;

use crate::databases::{Database as _, Rows as _};
use crate::support::mysql::MysqlServer;
use crate::support::postgres::PostgresServer;
use crate::support::prelude::*;
use crate::support::relay::{Act, Relay};
use crate::support::server::{Certificates, RedisServer, matrix};
use crate::support::zookeeper::{CALM, ZooKeeper};

struct Secured {
    certificates: Certificates,
    port: u16,
    /// The URL, with `HOST:PORT` in place of the address.
    url: String,
    longest_name: usize,
}

impl Secured {
    fn builder(&self) -> ClientBuilder {
        self.builder_at("localhost", self.port).tls_ca(self.certificates.ca())
    }

    fn builder_at(&self, host: &str, port: u16) -> ClientBuilder {
        let (url, lease) = (self.url.replace("HOST:PORT", &format!("{host}:{port}")), Duration::from_secs(9));
        let builder = LockClient::builder().url(url).create_schema(true).lease(lease);
        // The first handshake of a new Java server takes long, so the connect time-out must be long.
        builder.connect_timeout(LONG * 3)
    }

    fn serves_and_refuses(&self) {
        self.keeps_locks_and_wakes_waiters();
        self.is_believed_only_with_a_proof();
    }

    fn keeps_locks_and_wakes_waiters(&self) {
        let (client, other) = (self.builder().build().unwrap(), self.builder().build().unwrap());
        let guard = client.get_fenced_lock("secured").acquire().unwrap();
        let lock = other.get_fenced_lock("secured");
        assert!(!lock.try_lock().unwrap());
        let waiter =
            Waiter::start(move || lock.acquire_owned().map(|guard| (guard.fencing_token(), guard.unlock())));
        throughout(ms(3_500), || guard.check().map(|()| true).unwrap());
        let fence = guard.fencing_token();
        guard.unlock().unwrap();
        let (next, unlocked) = waiter.returns_within(LONG).0.unwrap();
        unlocked.unwrap();
        assert!(next > fence);
        // In databases this name is longer than one TLS record, so a request needs several.
        let lock = client.get_lock("x".repeat(self.longest_name));
        for _ in 0..20 {
            lock.acquire().unwrap().unlock().unwrap();
        }
    }

    fn is_believed_only_with_a_proof(&self) {
        let elsewhere = relay_at("127.0.0.2", self.port);
        let ca = self.certificates.ca();
        for (what, builder, says) in [
            (
                "an authority that did not sign it",
                self.builder().tls_ca(self.certificates.unknown_ca()),
                "UnknownIssuer",
            ),
            (
                "a name it has no certificate for",
                self.builder_at("127.0.0.2", elsewhere).tls_ca(&ca),
                "not valid for",
            ),
        ] {
            let begun = now();
            let error = builder.build().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Tls, "{what}: {error:?}");
            assert!(error.to_string().contains(says), "{what}: {error}");
            assert!(!error.is_retryable() && !error.outcome_unknown(), "{what}: {error}");
            assert!(!format!("{error} {error:?}").contains("S3CR3T"), "{what}: {error:?}");
            assert!(begun.elapsed() < LONG, "{what}");
        }
        for builder in
            [self.builder().tls_ca("/nowhere/ca.crt"), self.builder().tls_identity("/nowhere", "/nowhere")]
        {
            fails(builder.build(), ErrorKind::InvalidInput);
        }
        let (certificate, _) = self.certificates.client();
        let mixed =
            self.builder().tls_identity(certificate, self.certificates.ca().with_file_name("server.key"));
        fails(mixed.build(), ErrorKind::InvalidInput);
        // Without `tls_ca` the client does not know the authority, which was made for this test.
        let error = self.builder_at("localhost", self.port).build().unwrap_err();
        assert!([ErrorKind::Tls, ErrorKind::InvalidInput].contains(&error.kind()), "{error:?}");
    }
}

/// Opens a port on `host`, another address of this machine, that leads to the port `to` of 127.0.0.1.
fn relay_at(host: &str, to: u16) -> u16 {
    Relay::with(host, to, |_, _| Act::Pass).port()
}

on_databases!(databases_work_over_tls_and_impostors_are_refused, D::start_tls(), |server| {
    server.make_user("secretive", D::WITH_PASSWORD);
    let url = format!("{}?{}", server.url_as("secretive:S3CR3T"), D::VERIFIED);
    let secured = Secured {
        certificates: server.certificates(),
        port: server.port(),
        url: url.replace(&format!("127.0.0.1:{}", server.port()), "HOST:PORT"),
        longest_name: 60_000,
    };
    secured.serves_and_refuses();
    let client = secured.builder().build().unwrap();
    client.get_lock("seen").lock().unwrap();
    let seen = server.ask(D::COUNT_TLS)[0].last().unwrap().parse::<u64>().unwrap();
    assert!(seen > 0, "the server sees TLS");
    let sessions = secured.builder().session_locks().build().unwrap();
    let guard = sessions.get_lock("session").acquire().unwrap();
    guard.unlock().unwrap();
    fails(secured.builder().password("S3CR3T-not").build(), ErrorKind::Authentication);
});

on_databases!(a_client_certificate_replaces_a_password, D::start_tls(), |server| {
    server.make_user("client", D::WITH_CERTIFICATE);
    let (certificates, url) =
        (server.certificates(), server.url_as("client").replace("127.0.0.1", "localhost"));
    let (certificate, key) = certificates.client();
    let plain = || LockClient::builder().url(&url);
    let secured = || plain().tls_ca(certificates.ca());
    let client = secured().tls_identity(certificate, key).build().unwrap();
    client.get_lock("certified").lock().unwrap();
    for refused in [secured(), plain()] {
        fails(refused.build(), ErrorKind::Authentication);
    }
});

test_on!(each_sslmode_behaves_as_in_libpq, PostgresServer::start_tls(), |server| {
    let Some(plain) = PostgresServer::start() else { return };
    let elsewhere = relay_at("127.0.0.2", server.port());
    let certificates = server.certificates();
    let file = |path: std::path::PathBuf| path.display().to_string();
    let (ca, unknown) = (file(certificates.ca()), file(certificates.unknown_ca()));
    let at = |host: &str, port: u16, query: &str| {
        let url = format!("postgres://admin@{host}:{port}/postgres?{query}");
        LockClient::builder().url(&url).create_schema(true)
    };
    let is_encrypted = |name: &str| {
        let text = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = $1";
        server.admin().query_one(text, &[&name]).unwrap().get::<_, Option<bool>>(0)
    };
    for (host, port, query, encrypted) in [
        ("localhost", server.port(), "".to_owned(), false),
        ("localhost", server.port(), "sslmode=disable".to_owned(), false),
        ("localhost", server.port(), "sslmode=prefer".to_owned(), true),
        ("127.0.0.2", elsewhere, "sslmode=require".to_owned(), true),
        ("127.0.0.2", elsewhere, format!("sslmode=require&sslrootcert={ca}"), true),
        ("127.0.0.2", elsewhere, format!("sslmode=verify-ca&sslrootcert={ca}"), true),
        ("localhost", server.port(), format!("sslmode=verify-full&sslrootcert={ca}"), true),
        // Authorities in the URL make the client check certificates even without `sslmode`.
        ("localhost", server.port(), format!("sslrootcert={ca}"), true),
    ] {
        let name = crate::support::fresh("mode");
        let client = at(host, port, &query)
            .client_name(&name)
            .build()
            .unwrap_or_else(|error| panic!("{query}: {error:?}"));
        client.get_lock("mode").acquire().unwrap().unlock().unwrap();
        assert_eq!(is_encrypted(&name), Some(encrypted), "{query}");
    }
    for (host, port, query, kind) in [
        ("localhost", server.port(), format!("sslmode=require&sslrootcert={unknown}"), ErrorKind::Tls),
        ("localhost", server.port(), format!("sslmode=verify-ca&sslrootcert={unknown}"), ErrorKind::Tls),
        ("127.0.0.2", elsewhere, format!("sslrootcert={ca}"), ErrorKind::Tls),
        // `verify-ca` does not check the name, so with public authorities it would accept any impostor.
        ("localhost", server.port(), "sslmode=verify-ca".to_owned(), ErrorKind::InvalidInput),
        (
            "localhost",
            server.port(),
            "sslmode=require&sslrootcert=system".to_owned(),
            ErrorKind::InvalidInput,
        ),
        (
            "localhost",
            server.port(),
            "sslmode=disable&sslrootcert=system".to_owned(),
            ErrorKind::InvalidInput,
        ),
        ("localhost", plain.port(), "sslmode=require".to_owned(), ErrorKind::Unsupported),
        ("localhost", plain.port(), format!("sslrootcert={ca}"), ErrorKind::Unsupported),
    ] {
        let error = at(host, port, &query).build().unwrap_err();
        assert_eq!(error.kind(), kind, "{query}: {error:?}");
        assert!(!error.is_retryable(), "{query}");
    }
    at("localhost", plain.port(), "sslmode=prefer").build().unwrap().get_lock("plain").lock().unwrap();
    server.make_user("client", "");
    let (certificate, key) = certificates.client();
    let query = format!("sslrootcert={ca}&sslcert={}&sslkey={}", file(certificate), file(key));
    LockClient::connect(format!("postgres://client@localhost:{}/postgres?{query}", server.port())).unwrap();
});

test_on!(no_mysql_ssl_mode_protects_less_than_its_name_says, MysqlServer::start_tls(), |server| {
    let Some(plain) = MysqlServer::start_with(&["--skip-ssl"]) else { return };
    let elsewhere = relay_at("127.0.0.2", server.port());
    let certificates = server.certificates();
    let at = |host: &str, port: u16, mode: &str| {
        let url = format!("mysql://admin@{host}:{port}/locks{mode}");
        LockClient::builder().url(&url).create_schema(true)
    };
    let (ca, unknown) = (certificates.ca(), certificates.unknown_ca());
    let handshakes = || {
        let text = "SHOW GLOBAL STATUS LIKE 'Ssl_accepts'";
        server.admin().query_first::<(String, u64), _>(text).unwrap().unwrap().1
    };
    for (builder, encrypted) in [
        (at("localhost", server.port(), ""), false),
        (at("localhost", server.port(), "?ssl-mode=disabled"), false),
        (at("127.0.0.2", elsewhere, "?ssl-mode=required"), true),
        (at("localhost", server.port(), "?ssl-mode=VERIFY_IDENTITY").tls_ca(&ca), true),
        (at("localhost", server.port(), "").tls_ca(&ca), true),
    ] {
        let before = handshakes();
        let client = builder.build().unwrap();
        client.get_lock("mode").acquire().unwrap().unlock().unwrap();
        assert_eq!(handshakes() > before, encrypted);
    }
    for (builder, kind) in [
        (at("localhost", server.port(), "").tls_ca(&unknown), ErrorKind::Tls),
        // In these modes the driver also accepts any public certificate for any name, so they are refused.
        (at("localhost", server.port(), "?ssl-mode=REQUIRED").tls_ca(&ca), ErrorKind::InvalidInput),
        (at("localhost", server.port(), "?ssl-mode=VERIFY_CA").tls_ca(&ca), ErrorKind::InvalidInput),
        (at("localhost", server.port(), "?ssl-mode=VERIFY_CA"), ErrorKind::InvalidInput),
        (at("127.0.0.2", elsewhere, "").tls_ca(&ca), ErrorKind::Tls),
        (at("localhost", plain.port(), "?ssl-mode=REQUIRED"), ErrorKind::Unsupported),
        (at("localhost", plain.port(), "").tls_ca(&ca), ErrorKind::Unsupported),
    ] {
        let error = fails(builder.build(), kind);
        assert!(!error.is_retryable(), "{error:?}");
    }
});

#[test]
fn zookeeper_works_over_tls_and_impostors_are_refused() {
    let Some(mut server) = ZooKeeper::start_tls(CALM, false) else { return };
    let secured = Secured {
        certificates: server.certificates(),
        port: server.secure_port(),
        url: "zks://me:S3CR3T@HOST:PORT/verified".to_owned(),
        longest_name: 200,
    };
    secured.serves_and_refuses();
    let plain = LockClient::connect(format!("zk://me:S3CR3T@127.0.0.1:{}/verified", server.port())).unwrap();
    let client = secured.builder().lease(Duration::from_secs(20)).build().unwrap();
    let guard = client.get_lock("both").acquire().unwrap();
    assert!(!plain.get_lock("both").try_lock().unwrap());
    server.launch_again();
    throughout(ms(500), || guard.check().is_ok());
    guard.unlock().unwrap();
    let at = |scheme: &str, port: u16| LockClient::builder().url(format!("{scheme}://localhost:{port}"));
    let kinds = [ErrorKind::Protocol, ErrorKind::Tls, ErrorKind::Unreachable, ErrorKind::TimedOut];
    for builder in [
        at("zk", server.secure_port()).connect_timeout(ms(2_000)),
        at("zks", server.port()).tls_ca(secured.certificates.ca()).connect_timeout(ms(2_000)),
    ] {
        let error = builder.build().unwrap_err();
        assert!(kinds.contains(&error.kind()), "{error:?}");
    }
    fails(at("zk", server.port()).tls_ca(secured.certificates.ca()).build(), ErrorKind::InvalidInput);
}

test_on!(zookeeper_can_require_a_client_certificate, ZooKeeper::start_tls(CALM, true), |server| {
    let url = format!("zks://localhost:{}", server.secure_port());
    needs_a_certificate(&server.certificates(), &url);
});

#[test]
fn redis_can_require_a_client_certificate() {
    let Some(binary) = matrix().iter().find(|binary| binary.has_tls()) else {
        return crate::support::missing("no server that was built with TLS");
    };
    let server = RedisServer::builder(binary).mutual_tls().start();
    needs_a_certificate(&server.certificates(), &format!("rediss://localhost:{}", server.port()));
}

/// Asserts that a client without a certificate reports the server's refusal each time. In TLS 1.3 the refusal
/// comes after the handshake, perhaps while the client writes, and then the server hangs up.
fn needs_a_certificate(certificates: &Certificates, url: &str) {
    let (certificate, key) = certificates.client();
    let builder = || LockClient::builder().url(url).tls_ca(certificates.ca()).connect_timeout(LONG * 3);
    let client = builder().tls_identity(certificate, key).build().unwrap();
    client.get_lock("certified").acquire().unwrap().unlock().unwrap();
    for _ in 0..10 {
        fails_saying(builder().build(), ErrorKind::Tls, "client certificate");
    }
}
