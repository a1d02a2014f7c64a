//! Passwords and certificate authorities that change while a client runs, read from files or from a provider.

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicU8;

use leasehold::Credentials;

use crate::databases::{Database, Rows as _};
use crate::support::cluster::Cluster;
#[cfg(feature = "etcd")]
use crate::support::etcd::Etcd;
use crate::support::observer::{Seen, texts};
use crate::support::prelude::*;
use crate::support::sentinel::SentinelSet;

/// A client logs in again after `change`, which sets the user's password and ends the user's sessions.
#[track_caller]
fn follows_a_changed_password(url: &str, change: impl Fn(&str)) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    let says = |password: &str| fs::write(&file, format!("{password}\n")).unwrap();
    says("first");
    change("first");
    let client = LockClient::builder().url(url).password_file(&file).retry_timeout(ms(200)).build().unwrap();
    let lock = client.get_lock("a");
    let locks = || lock.try_lock().and_then(|_| lock.unlock());
    locks().unwrap();
    // The test repeats the change, because it may miss a session that the client is just opening.
    let is_refused = || {
        change("second");
        locks().is_err_and(|error| error.kind() == ErrorKind::Authentication)
    };
    assert!(eventually(LONG, is_refused), "the file has the first");
    says("second");
    assert!(eventually(ms(2_000), || locks().is_ok()), "{:?}", locks());
    change("third");
    says("third");
    // Requests may fail because their connections end, but none may be refused for the password.
    assert!(eventually(LONG, || {
        let outcome = locks();
        let is_refused = outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Authentication);
        assert!(!is_refused, "{outcome:?}");
        outcome.is_ok()
    }));
}

test_on!(redis_clients_take_a_changed_password_from_the_file, default_server(), |binary| {
    let server = RedisServer::builder(&binary).user("app on nopass ~* &* +@all").start();
    let run = |words: &str| redis_says(server.admin(), words);
    let url = format!("redis://app@127.0.0.1:{}", server.port());
    follows_a_changed_password(&url, |password| {
        run(&format!("ACL SETUSER app resetpass >{password}"));
        run("CLIENT KILL USER app");
    });
});

/// A URL for the user `secretive`, and a function that changes the password and ends the user's sessions.
fn changing<D: Database>() -> Option<(String, impl Fn(&str))> {
    let server = D::start()?;
    let url = server.url_as("secretive");
    server.make_user("secretive", D::WITH_PASSWORD);
    let change = move |password: &str| {
        // If one request did both, a client could log in again before the new password is committed.
        server.execute(&format!("ALTER USER secretive {}", D::WITH_PASSWORD.replace("S3CR3T", password)));
        server.end_sessions_of("secretive");
    };
    change("S3CR3T-0");
    Some((url, change))
}

on_databases!(database_clients_take_a_changed_password_from_the_file, changing::<D>(), |(url, change)| {
    follows_a_changed_password(&url, change);
});

/// A client connects again after `renew`, which installs the second authority's certificates on the servers.
#[track_caller]
fn follows_renewed_certificates(url: &str, [first, second]: [&Path; 2], renew: impl FnOnce()) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    let trusts = |ca: &Path| assert!(fs::copy(ca, &file).unwrap() > 0);
    trusts(first);
    let client = LockClient::builder().url(url).tls_ca(&file).retry_timeout(ms(200)).build().unwrap();
    let lock = client.get_lock("a");
    let locks = || lock.try_lock().and_then(|_| lock.unlock());
    locks().unwrap();
    renew();
    assert!(eventually(LONG, || locks().is_err_and(|error| error.kind() == ErrorKind::Tls)), "{:?}", locks());
    trusts(second);
    assert!(eventually(ms(2_000), || locks().is_ok()), "{:?}", locks());
}

const CERTIFICATE: [&str; 3] = ["server.crt", "server.key", "ca.crt"];

#[test]
fn a_renewed_certificate_authority_is_read_from_its_file() {
    let Some(binary) = default_server().filter(|binary| binary.has_tls()) else { return };
    let [server, other] = [(); 2].map(|()| RedisServer::builder(&binary).tls().start());
    follows_renewed_certificates(&server.url(), [&server.ca(), &other.ca()], || {
        let [certificate, key, ca] = CERTIFICATE.map(|name| other.folder().join(name).display().to_string());
        let mut admin = server.admin();
        let set = ["SET", "tls-cert-file", &certificate, "tls-key-file", &key, "tls-ca-cert-file", &ca];
        redis::cmd("CONFIG").arg(&set).exec(&mut admin).unwrap();
        redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]).exec(&mut admin).unwrap();
    });
}

#[test]
fn renewed_sentinel_and_master_certificates_are_accepted() {
    let Some(binary) = default_server().filter(|binary| binary.has_tls()) else { return };
    let [mut master, other] = [(); 2].map(|()| RedisServer::builder(&binary).tls().start());
    let sentinel = RedisServer::builder(&binary).sentinel().tls_of(&master).config("tls-replication yes");
    let mut sentinel = sentinel.config(&format!("sentinel monitor m 127.0.0.1 {} 1", master.port())).start();
    let url = format!("rediss-sentinel://127.0.0.1:{}/m", sentinel.port());
    let (first, second) = (master.ca(), other.ca());
    follows_renewed_certificates(&url, [&first, &second], || {
        for server in [&mut master, &mut sentinel] {
            for name in CERTIFICATE {
                fs::copy(other.folder().join(name), server.folder().join(name)).unwrap();
            }
            server.restart();
        }
    });
}

const SECRET: &str = "S3CR3T";

type Password = Arc<Mutex<String>>;

fn provider(password: &Password) -> impl Fn(&str) -> Result<Credentials, std::io::Error> + use<> {
    let password = Arc::clone(password);
    move |_| Ok(Credentials::new(password.lock().as_str()))
}

/// Two clients hold a lock and contend for another, while `rotate(old, new)` changes the password and ends
/// the user's connections. No client waits for a lease, loses a hold, or is refused. `LEASEHOLD_ROTATIONS`
/// sets the number of rotations.
#[track_caller]
fn clients_use_new_passwords(
    options: &dyn Fn(&Password) -> ClientBuilder,
    times: usize,
    rotate: impl Fn(&str, &str),
) {
    let times = std::env::var("LEASEHOLD_ROTATIONS").map_or(times, |times| times.parse().unwrap());
    let (password, seen) = (Arc::new(Mutex::new(format!("{SECRET}-0"))), Seen::default());
    let client = || {
        let options = options(&password).lease(LONG).observer(seen.clone());
        options.credentials(provider(&password)).build().unwrap()
    };
    let clients = [client(), client()];
    let held = clients[0].get_lock("held").acquire().unwrap();
    let (is_over, inside) = (AtomicBool::new(false), AtomicBool::new(false));
    let cycles: [AtomicUsize; 4] = Default::default();
    let (said, longest) = (Mutex::new(String::new()), Mutex::new(Vec::new()));
    let work = |client: &LockClient, cycles: &AtomicUsize| {
        let lock = client.get_lock("hot");
        while !is_over.load(Ordering::SeqCst) {
            let begun = now();
            let outcome = lock.lock().and_then(|()| {
                let waited = begun.elapsed();
                longest.lock().push(waited);
                assert!(!inside.swap(true, Ordering::SeqCst), "two threads hold the lock");
                inside.store(false, Ordering::SeqCst);
                lock.unlock()
            });
            cycles.fetch_add(1, Ordering::SeqCst);
            if let Err(error) = outcome {
                *said.lock() += &format!("{} {error:?}\n", texts(&error));
                assert!(may_pass(&error), "{error:?}");
            }
        }
    };
    thread::scope(|scope| {
        let _over = Raise(&is_over);
        for (at, cycles) in cycles.iter().enumerate() {
            let client = &clients[at % 2];
            scope.spawn(move || work(client, cycles));
        }
        for round in 1..=times {
            // The provider waits for this mutex, so it returns no password that the server does not have yet.
            let mut current = password.lock();
            let new = format!("{SECRET}-{round}");
            rotate(&current, &new);
            *current = new;
            drop(current);
            // Without a cycle between two rotations, the second could come before a client has logged in with
            // the first rotation's password.
            let before = cycles.each_ref().map(|cycles| cycles.load(Ordering::SeqCst));
            let go_on = || cycles.iter().zip(before).all(|(now, then)| now.load(Ordering::SeqCst) > then + 1);
            assert!(eventually(LONG, go_on), "after rotation {round}: {}", said.lock());
        }
    });
    held.check().unwrap();
    assert_eq!(seen.losses(), 0);
    let said = format!("{} {:?} {clients:?}", said.lock(), seen.events());
    assert!(!said.contains(SECRET), "{said}");
    let mut waits = longest.into_inner();
    waits.sort_unstable();
    let (longest, grants) = (waits.last().copied().unwrap_or_default(), waits.len());
    if std::env::var_os("LEASEHOLD_ROTATIONS").is_some() {
        let late = waits.iter().filter(|wait| **wait > ms(50)).count();
        shout(&format!("{times} rotations, {grants} grants, {late} after 50 ms, the longest {longest:?}"));
    }
    assert!(longest < LONG / 2, "a thread waited {longest:?}, as for the end of a lease");
}

fn redis_says(mut server: redis::Connection, words: &str) {
    let words: Vec<&str> = words.split(' ').collect();
    redis::cmd(words[0]).arg(&words[1..]).exec(&mut server).unwrap();
}

const APP: &str = "app on >S3CR3T-0 ~* &* +@all";

fn rotate_on(mut server: redis::Connection, old: &str, new: &str) {
    let mut pipe = redis::pipe();
    pipe.cmd("ACL").arg(&["SETUSER", "app", &format!(">{new}"), &format!("<{old}")]);
    pipe.cmd("CLIENT").arg(&["KILL", "USER", "app"]);
    pipe.exec(&mut server).unwrap();
}

test_on!(clients_use_new_passwords_on_redis, default_server(), |binary| {
    let server = RedisServer::builder(&binary).user(APP).start();
    let options = |_: &Password| LockClient::builder().url(server.url()).username("app");
    clients_use_new_passwords(&options, 50, |old, new| rotate_on(server.admin(), old, new));
});

test_on!(clients_use_new_passwords_through_sentinels, default_server(), |binary| {
    let set =
        SentinelSet::start_with(&binary, |server| server.user(APP), |sentinel| sentinel.user(APP)).patient();
    let options = |password: &Password| {
        let options = LockClient::builder().url(set.url()).username("app").sentinel_username("app");
        options.sentinel_credentials(provider(password))
    };
    clients_use_new_passwords(&options, 10, |old, new| {
        set.servers.iter().chain(&set.sentinels).for_each(|server| rotate_on(server.admin(), old, new));
    });
});

test_on!(clients_use_new_passwords_on_redlock, default_server(), |binary| {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::builder(&binary).user(APP).start()).collect();
    let urls: Vec<_> = servers.iter().map(RedisServer::url).collect();
    let options = |_: &Password| LockClient::builder().redlock(&urls).username("app");
    clients_use_new_passwords(&options, 10, |old, new| {
        servers.iter().for_each(|server| rotate_on(server.admin(), old, new));
    });
});

test_on!(clients_use_new_passwords_in_a_cluster, Cluster::start_with(&[&format!("user {APP}")]), |cluster| {
    let asked = Arc::new(Mutex::new(std::collections::BTreeSet::new()));
    let options = |_: &Password| LockClient::builder().url(cluster.url()).username("app");
    clients_use_new_passwords(&options, 10, |old, new| {
        for index in 0..6 {
            cluster.on(index, &["ACL", "SETUSER", "app", &format!(">{new}"), &format!("<{old}")]);
            cluster.on(index, &["CLIENT", "KILL", "USER", "app"]);
        }
    });
    let heard = Arc::clone(&asked);
    let client = options(&Password::default()).credentials(move |address: &str| {
        heard.lock().insert(address.to_owned());
        Err::<Credentials, _>("none")
    });
    fails(client.build(), ErrorKind::Credentials);
    let seeds = cluster.url().trim_start_matches("redis-cluster://").split(',').count();
    assert_eq!(asked.lock().len(), seeds, "{asked:?}");
});

on_databases!(clients_use_new_passwords_on_each_database, changing::<D>(), |(url, change)| {
    clients_use_new_passwords(&|_| LockClient::builder().url(&url), 10, |_, new| change(new));
});

#[cfg(feature = "etcd")]
test_on!(clients_use_new_passwords_on_etcd, Etcd::start(), |server| {
    server.demand_passwords(&[("app", "S3CR3T-0", "root")]);
    let options = |_: &Password| LockClient::builder().url(server.url()).username("app");
    // In etcd a changed password ends the logins of all clients, so the test need not end them.
    clients_use_new_passwords(&options, 10, |_, new| {
        let body = format!(r#"{{"name":"app","password":"{new}"}}"#);
        server.must_as(&server.token(), "/v3/auth/user/changepw", &body);
    });
});

#[test]
fn a_failing_credentials_provider_loses_no_hold() {
    const WORKS: u8 = 0;
    const HANGS: u8 = 1;
    const FAILS: u8 = 2;
    const PANICS: u8 = 3;
    const EMPTY: u8 = 4;
    let Some(binary) = default_server() else { return };
    let server = RedisServer::builder(&binary).user(APP).start();
    let (password, does) = (Arc::new(Mutex::new("S3CR3T-0".to_owned())), Arc::new(AtomicU8::new(WORKS)));
    let (known, way, seen) = (Arc::clone(&password), Arc::clone(&does), Seen::default());
    let provider = move |_: &str| match way.load(Ordering::SeqCst) {
        WORKS => Ok(Credentials::new(known.lock().as_str())),
        HANGS => {
            assert!(eventually(LONG, || way.load(Ordering::SeqCst) != HANGS));
            Err("it has hung")
        }
        FAILS => Err("it fails"),
        PANICS => panic!("the test wants this panic"),
        _ => Ok(Credentials::new("")),
    };
    let client = LockClient::builder().url(server.url()).username("app").credentials(provider).lease(LONG);
    let client =
        client.connect_timeout(ms(400)).retry_timeout(ms(100)).observer(seen.clone()).build().unwrap();
    let held = client.get_lock("held").acquire().unwrap();
    let lock = client.get_lock("a");
    let locks = || lock.try_lock().and_then(|_| lock.unlock());
    for (round, way) in [HANGS, FAILS, PANICS, EMPTY].into_iter().enumerate() {
        does.store(way, Ordering::SeqCst);
        redis_says(server.admin(), "CLIENT KILL USER app");
        assert!(eventually(LONG, || locks().is_ok()), "the last answer is not accepted: {way} {:?}", locks());
        let new = format!("{SECRET}-{}", round + 1);
        rotate_on(server.admin(), &password.lock(), &new);
        let is_said = || locks().is_err_and(|error| error.kind() == ErrorKind::Credentials);
        assert!(eventually(LONG, is_said), "{way}: {:?}", locks());
        *password.lock() = new;
        does.store(WORKS, Ordering::SeqCst);
        assert!(eventually(LONG, || locks().is_ok()), "{way}: {:?}", locks());
        held.check().unwrap();
    }
    assert_eq!(seen.losses(), 0);
}

test_on!(connections_with_expiring_credentials_are_replaced, default_server(), |binary| {
    let server = RedisServer::builder(&binary).user(APP).start();
    let client = LockClient::builder()
        .url(server.url())
        .username("app")
        .credentials(|_: &str| Ok::<_, std::io::Error>(Credentials::new("S3CR3T-0").valid_for(ms(1_000))));
    let client = client.build().unwrap();
    let lock = client.get_lock("a");
    let ids = || -> Vec<String> {
        let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut server.admin()).unwrap();
        let own = list.lines().filter(|line| line.contains("user=app"));
        own.filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
    };
    let first = ids();
    assert!(!first.is_empty());
    assert!(eventually(LONG, || {
        lock.lock().and_then(|()| lock.unlock()).unwrap();
        ids().iter().all(|id| !first.contains(id))
    }));
});

/// The hosts do not exist, so the client must call the provider before it resolves their names.
#[test]
fn an_etcd_credentials_provider_gets_all_member_addresses_at_once() {
    let (asked, seen) = crossbeam_channel::unbounded();
    let client = LockClient::builder().url("etcd://one.invalid,two.invalid:7000").username("app");
    let client = client.credentials(move |address: &str| {
        asked.send(address.to_owned()).unwrap();
        Ok::<_, std::io::Error>(Credentials::new("S3CR3T"))
    });
    client.build().unwrap_err();
    assert_eq!(seen.recv().unwrap(), "one.invalid:2379,two.invalid:7000");
}
