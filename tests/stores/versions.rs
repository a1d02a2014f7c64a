//! A client of an earlier commit beside a client of today, on every store: they exclude each other, or one
//! refuses what the other has stored. The old client is the program `leasehold` of that commit, which
//! `./check versions` builds and names in `LEASEHOLD_OLD_PROGRAM`. It cannot take session locks.

use std::process::Child;

use leasehold::{ClientBuilder, ErrorKind, LockClient, Ring, RingNode};
use mysql::prelude::Queryable;

use crate::support::cluster::Cluster;
use crate::support::etcd::Etcd;
use crate::support::mysql::MysqlServer;
use crate::support::postgres::PostgresServer;
use crate::support::sentinel::SentinelSet;
use crate::support::server::{RedisServer, default_server};
use crate::support::zookeeper::{CALM, ZooKeeper};
use crate::support::{LONG, eventually, fresh, ms, programs, run, shout, signal, spawn, test_on};

struct Place {
    variables: Vec<(&'static str, String)>,
    build: Box<dyn Fn() -> leasehold::Result<LockClient>>,
}

fn at(url: String) -> Place {
    let variables = vec![("LEASEHOLD_URL", url.clone()), ("LEASEHOLD_CREATE_SCHEMA", "yes".to_owned())];
    Place { variables, build: Box::new(move || LockClient::builder().url(&url).create_schema(true).build()) }
}

fn of_list(variable: &'static str, urls: &[String], builder: fn(&[String]) -> ClientBuilder) -> Place {
    let (variables, urls) = (vec![(variable, urls.join(" "))], urls.to_vec());
    Place { variables, build: Box::new(move || builder(&urls).build()) }
}

struct Old<'a> {
    program: String,
    variables: &'a [(&'static str, String)],
}

impl Old<'_> {
    fn command<'b>(&'b self, name: &'b str, rest: &[&'b str]) -> Vec<&'b str> {
        [&[&*self.program, "run", "--no-wait", name, "--"], rest].concat()
    }

    fn tries(&self, name: &str) -> (bool, String) {
        let variables = self.variables.iter().map(|(name, value)| (name, value));
        let (_, text) = run(&self.command(name, &["echo", "HELD"]), |command| command.envs(variables));
        (text.contains("HELD"), text)
    }

    /// Starts a process that holds the lock; `None` if the process ends without it, as when the lock is busy.
    fn holds(&self, name: &str) -> Option<Child> {
        let folder = programs::in_memory();
        let sign = folder.path().join("held");
        let script = format!("touch {}; exec sleep 1000", sign.display());
        let variables = self.variables.iter().map(|(name, value)| (name, value));
        let mut child = spawn(&self.command(name, &["sh", "-c", &script]), |command| command.envs(variables));
        let mut has_ended = false;
        assert!(eventually(LONG, || {
            has_ended = child.try_wait().unwrap().is_some();
            has_ended || sign.exists()
        }));
        (!has_ended).then_some(child)
    }
}

/// Tests both orders, each on a new store: the old client locks first, or today's client does.
fn exclude_each_other(what: &str, mut place: impl FnMut() -> Place) {
    let Ok(program) = std::env::var("LEASEHOLD_OLD_PROGRAM") else {
        return shout(&format!("SKIPPED {what}: LEASEHOLD_OLD_PROGRAM is not set"));
    };
    let is_said = |error: &leasehold::Error| {
        assert!(
            matches!(error.kind(), ErrorKind::IncompatibleFormat | ErrorKind::Unsupported),
            "{what}: {error}"
        );
        shout(&format!("{what}: today's client says: {error}"));
    };
    for is_old_first in [true, false] {
        let Place { variables, build } = place();
        let old = Old { program: program.clone(), variables: &variables };
        let name = fresh("versions");
        let first = if is_old_first { None } else { Some(build().unwrap()) };
        if let Some(client) = &first {
            let held = client.get_lock(&name).acquire().unwrap();
            let (has_it, text) = old.tries(&name);
            shout(&format!("{what}: the old one says: {text}"));
            assert!(!has_it, "{what}: two owners, today's first");
            held.unlock().unwrap();
        }
        let Some(mut holder) = old.holds(&name) else {
            assert!(!is_old_first, "{what}: the old version does not work alone");
            continue;
        };
        match first.map_or_else(&build, Ok) {
            Ok(client) => match client.get_lock(&name).try_lock_for(ms(300)) {
                Ok(has_it) => assert!(!has_it, "{what}: two owners, the old one's first: {is_old_first}"),
                Err(error) => is_said(&error),
            },
            Err(error) => is_said(&error),
        }
        signal(holder.id(), "TERM");
        holder.wait().unwrap();
    }
}

test_on!(old_and_new_versions_exclude_each_other_on_redis, default_server(), |binary| {
    let mut servers = Vec::new();
    let mut start = |count| {
        servers.extend((0..count).map(|_| RedisServer::builder(&binary).start()));
        servers[servers.len() - count..].iter().map(RedisServer::url).collect::<Vec<_>>()
    };
    exclude_each_other("Redis", || at(start(1).remove(0)));
    exclude_each_other("Redlock", || {
        of_list("LEASEHOLD_REDLOCK", &start(3), |urls| {
            LockClient::builder().redlock(urls.to_vec()).node_timeout(ms(3_000))
        })
    });
    exclude_each_other("a ring", || {
        of_list("LEASEHOLD_RING", &start(2), |urls| {
            LockClient::builder().ring(Ring::new(urls.iter().map(RingNode::new)))
        })
    });
    let mut sets = Vec::new();
    exclude_each_other("Sentinels", || {
        sets.push(SentinelSet::start(&binary));
        at(sets[sets.len() - 1].url())
    });
    let mut clusters = Vec::new();
    exclude_each_other("a cluster", || {
        clusters.push(Cluster::start().unwrap());
        at(clusters[clusters.len() - 1].url())
    });
});

test_on!(old_and_new_versions_exclude_each_other_on_etcd_and_zookeeper, Etcd::start(), |etcd| {
    exclude_each_other("etcd", || at(format!("{}/{}", etcd.url(), fresh("versions"))));
    let Some(zookeeper) = ZooKeeper::start(CALM) else { return };
    exclude_each_other("ZooKeeper", || at(format!("{}/{}", zookeeper.url(), fresh("versions"))));
});

#[test]
fn old_and_new_versions_exclude_each_other_on_databases() {
    let mut folders = Vec::new();
    exclude_each_other("SQLite", || {
        folders.push(programs::in_memory());
        at(programs::sqlite_url(&folders[folders.len() - 1].path().join("locks.db")))
    });
    let Some(postgres) = PostgresServer::start() else { return };
    let Some(mysql) = MysqlServer::start() else { return };
    let drop_tables = || {
        postgres.admin().batch_execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public").unwrap();
        for table in ["leasehold_locks", "leasehold_locks_clients"] {
            mysql.admin().query_drop(format!("DROP TABLE IF EXISTS {table}")).unwrap();
        }
    };
    for (what, url) in [("PostgreSQL", postgres.url()), ("MySQL or MariaDB", mysql.url())] {
        exclude_each_other(what, || {
            drop_tables();
            at(url.clone())
        });
    }
}
