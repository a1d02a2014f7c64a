//! An order that must be placed only once. The program shows which of a unique key, a form's token, a lock
//! and a fence prevents the second order, alone and together.
//!
//! `cargo run --example orders --features postgres,mysql,sqlite` uses a SQLite file; with `--
//! postgres://app@localhost/shop mysql://app@localhost/shop` it uses those databases. The names of its tables
//! begin with `orders_`.
//!
//! One purchase meets three accidents:
//!
//! - *race*: a queue delivers its message twice, to two workers at once;
//! - *pause*: a worker is stopped between its read and its write, for longer than its lease, and then continues;
//! - *resend*: the answer is lost and the buyer clicks again, which makes a new request with a new order
//!   number.
//!
//! The purpose of each guard: the *unique key* on the order number prevents two rows for one request; the
//! *token*, which is made with the form, prevents two requests for one purchase; the *lock* prevents that two
//! workers both pay; the *fence* stops a worker whose lock has ended meanwhile.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::panic,
    reason = "an example talks, takes its time, and ends when something is not as it should be"
)]

use std::sync::Barrier;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, SystemTime};

use leasehold::{AcquireOptions, Guard, LockClient};
use mysql::prelude::Queryable;

const TABLES: [&str; 5] = [
    "CREATE TABLE orders_plain (number VARCHAR(20) NOT NULL)",
    "CREATE TABLE orders_unique (number VARCHAR(20) PRIMARY KEY)",
    "CREATE TABLE orders_payments (number VARCHAR(20) NOT NULL)",
    "CREATE TABLE orders_tokens (token VARCHAR(20) PRIMARY KEY, used INT NOT NULL, made BIGINT NOT NULL)",
    "CREATE TABLE orders_fences (purchase VARCHAR(20) PRIMARY KEY, fence BIGINT NOT NULL)",
];

/// The token that was made with the form of the purchase.
const TOKEN: &str = "form-7f3a";
/// The worker's lease, which is not renewed.
const LEASE: Duration = Duration::from_secs(20);
/// A lease that ends while a worker is stopped between its read and its write.
const SHORT_LEASE: Duration = Duration::from_millis(500);
/// How long a worker waits for the other worker, which the lock may keep out.
const MEETING: Duration = Duration::from_millis(1_500);

enum Database {
    Postgres(Box<postgres::Client>),
    Mysql(Box<mysql::Conn>),
    Sqlite(rusqlite::Connection),
}

impl Database {
    fn open(url: &str) -> Database {
        match url.split_once("://").unwrap().0 {
            "postgres" => {
                Database::Postgres(Box::new(postgres::Client::connect(url, postgres::NoTls).unwrap()))
            }
            "mysql" => {
                let opts = mysql::OptsBuilder::from_opts(mysql::Opts::from_url(url).unwrap());
                Database::Mysql(Box::new(mysql::Conn::new(opts.prefer_socket(false)).unwrap()))
            }
            "sqlite" => {
                let file = rusqlite::Connection::open(url.trim_start_matches("sqlite://")).unwrap();
                file.busy_timeout(Duration::from_secs(10)).unwrap();
                Database::Sqlite(file)
            }
            scheme => panic!("{scheme}://?"),
        }
    }

    /// Runs a statement; returns the number of rows that it changed, or the database's error.
    fn run(&mut self, sql: &str) -> Result<u64, String> {
        match self {
            Database::Postgres(client) => client.execute(sql, &[]).map_err(|error| error.to_string()),
            Database::Mysql(client) => {
                client.query_drop(sql).map_err(|error| error.to_string())?;
                Ok(client.affected_rows())
            }
            Database::Sqlite(file) => {
                file.execute(sql, []).map(|rows| rows as u64).map_err(|error| error.to_string())
            }
        }
    }

    fn count(&mut self, rows: &str) -> i64 {
        let sql = format!("SELECT COUNT(*) FROM {rows}");
        match self {
            Database::Postgres(client) => client.query_one(&sql, &[]).unwrap().get(0),
            Database::Mysql(client) => client.query_first(&sql).unwrap().unwrap(),
            Database::Sqlite(file) => file.query_row(&sql, [], |row| row.get(0)).unwrap(),
        }
    }

    /// Creates the tables; inserts the tokens of two forms, made now and two days ago, and the first fence.
    fn set_up(&mut self) {
        for table in TABLES {
            let name = table.split(' ').nth(2).unwrap();
            self.run(&format!("DROP TABLE IF EXISTS {name}")).unwrap();
            self.run(table).unwrap();
        }
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
        let two_days_ago = now - 2 * 24 * 3_600;
        for (token, made) in [(TOKEN, now), ("form-old", two_days_ago)] {
            self.run(&format!("INSERT INTO orders_tokens VALUES ('{token}', 0, {made})")).unwrap();
        }
        self.run("INSERT INTO orders_fences VALUES ('42', 0)").unwrap();
    }

    /// Deletes the tokens of old forms. If such a form is sent after all, it is refused like a used form.
    fn sweep_tokens(&mut self, age: Duration) -> u64 {
        let oldest = SystemTime::UNIX_EPOCH.elapsed().unwrap() - age;
        self.run(&format!("DELETE FROM orders_tokens WHERE made < {}", oldest.as_secs())).unwrap()
    }
}

/// Which protections against a second order the shop uses.
#[derive(Clone, Copy)]
struct Guards {
    label: &'static str,
    lock: bool,
    fence: bool,
    key: bool,
    token: bool,
}

const GUARDS: [Guards; 6] = [
    Guards { label: "nothing", lock: false, fence: false, key: false, token: false },
    Guards { label: "lock", lock: true, fence: false, key: false, token: false },
    Guards { label: "lock + fence", lock: true, fence: true, key: false, token: false },
    Guards { label: "unique key", lock: false, fence: false, key: true, token: false },
    Guards { label: "token", lock: false, fence: false, key: false, token: true },
    Guards { label: "all together", lock: true, fence: true, key: true, token: true },
];

impl Guards {
    fn orders(self) -> &'static str {
        if self.key { "orders_unique" } else { "orders_plain" }
    }

    /// One worker handles one request; `pause` runs between its read and its write.
    fn place(self, url: &str, locks: &LockClient, number: &str, lease: Duration, pause: impl FnOnce()) {
        let mut shop = Database::open(url);
        let options = AcquireOptions::new().lease(lease);
        let lock = self.lock.then(|| locks.get_fenced_lock("purchase:42"));
        let guard = lock.and_then(|lock| lock.acquire_with(&options).unwrap());
        if !self.is_placed(&mut shop, number) {
            shop.run(&format!("INSERT INTO orders_payments VALUES ('{number}')")).unwrap();
            // A real worker would check its guard here, but could be stopped just after the check.
            pause();
            // The example takes every error for the database's refusal of a second order.
            if self.write(&mut shop, number, guard.as_ref()).is_err() {
                drop(shop.run("ROLLBACK"));
            }
        }
        if let Some(guard) = guard {
            drop(guard.unlock()); // fails if the lease has ended
        }
    }

    fn is_placed(self, shop: &mut Database, number: &str) -> bool {
        let is_used =
            self.token && shop.count(&format!("orders_tokens WHERE token = '{TOKEN}' AND used = 0")) == 0;
        is_used || shop.count(&format!("{} WHERE number = '{number}'", self.orders())) > 0
    }

    /// Writes the order, and token and fence if these are used, in one transaction: all or nothing.
    fn write(self, shop: &mut Database, number: &str, guard: Option<&Guard>) -> Result<(), String> {
        let one_row = |rows| if rows == 1 { Ok(()) } else { Err("no".to_owned()) };
        shop.run("BEGIN")?;
        if self.token {
            one_row(
                shop.run(&format!("UPDATE orders_tokens SET used = 1 WHERE token = '{TOKEN}' AND used = 0"))?,
            )?;
        }
        if self.fence {
            let fence = guard.and_then(Guard::fencing_token).unwrap().get();
            let sql =
                format!("UPDATE orders_fences SET fence = {fence} WHERE purchase = '42' AND fence < {fence}");
            one_row(shop.run(&sql)?)?;
        }
        shop.run(&format!("INSERT INTO {} VALUES ('{number}')", self.orders()))?;
        shop.run("COMMIT").map(drop)
    }
}

/// The outcome of one purchase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Became {
    pub(crate) orders: i64,
    pub(crate) payments: i64,
}

fn race(guards: Guards, url: &str, locks: &[LockClient; 2]) {
    let ((tell_b, a_came), (tell_a, b_came)) = (channel(), channel());
    let meet = |tell: Sender<()>, other: Receiver<()>| {
        move || {
            tell.send(()).ok();
            other.recv_timeout(MEETING).ok(); // times out if the lock keeps the other worker out
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| guards.place(url, &locks[0], "1001", LEASE, meet(tell_b, b_came)));
        scope.spawn(|| guards.place(url, &locks[1], "1001", LEASE, meet(tell_a, a_came)));
    });
}

fn pause(guards: Guards, url: &str, locks: &[LockClient; 2]) {
    thread::scope(|scope| {
        guards.place(url, &locks[0], "1001", SHORT_LEASE, || {
            // The message is delivered again, and another worker handles it completely during the pause.
            scope.spawn(|| guards.place(url, &locks[1], "1001", LEASE, || {})).join().unwrap();
        });
    });
}

fn resend(guards: Guards, url: &str, locks: &[LockClient; 2]) {
    guards.place(url, &locks[0], "1001", LEASE, || {});
    guards.place(url, &locks[1], "1002", LEASE, || {});
}

/// The result of two workers that insert the same order, each after a `SELECT … FOR UPDATE` or without one.
#[derive(Debug, Default)]
pub(crate) struct Tutorial {
    pub(crate) orders: i64,
    /// The database's error for one of the two workers.
    pub(crate) error: Option<String>,
}

/// Lets two workers insert one order at the isolation `level`. With `look` they look for it first, as
/// tutorials show. Without `look` they insert into a table whose order numbers are unique.
fn tutorial(url: &str, level: &str, look: bool) -> Tutorial {
    let table = if look { "orders_tutorial" } else { "orders_unique" };
    let mut shop = Database::open(url);
    shop.run("DROP TABLE IF EXISTS orders_tutorial").unwrap();
    shop.run("CREATE TABLE orders_tutorial (number VARCHAR(20) NOT NULL, KEY (number)) ENGINE = InnoDB")
        .unwrap();
    shop.run("DELETE FROM orders_unique").unwrap();
    let both_looked = Barrier::new(2);
    let worker = || {
        let mut shop = Database::open(url);
        shop.run(&format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}")).unwrap();
        shop.run("BEGIN").unwrap();
        if look {
            shop.run(&format!("SELECT * FROM {table} WHERE number = '1001' FOR UPDATE")).unwrap();
        }
        both_looked.wait();
        let inserted = shop.run(&format!("INSERT INTO {table} VALUES ('1001')"));
        shop.run("COMMIT").unwrap();
        inserted.err()
    };
    let errors = thread::scope(|scope| {
        let workers = [scope.spawn(worker), scope.spawn(worker)];
        workers.map(|worker| worker.join().unwrap())
    });
    Tutorial { orders: shop.count(table), error: errors.into_iter().flatten().next() }
}

/// The outcome on one database.
pub(crate) struct Report {
    /// For each combination of guards: the result of a race, of a pause, and of a resend.
    pub(crate) rows: Vec<(&'static str, [Became; 3])>,
    pub(crate) swept: u64,
    /// On MySQL: with `look` at REPEATABLE READ and READ COMMITTED, then without `look` at the same levels.
    pub(crate) tutorials: Option<[Tutorial; 4]>,
}

pub(crate) fn run(url: &str) -> Report {
    let mut shop = Database::open(url);
    // Two clients are two owners, as two processes would be.
    let client = || LockClient::builder().url(url).table("orders_locks").create_schema(true).build().unwrap();
    let locks = [client(), client()];
    let accidents: [fn(Guards, &str, &[LockClient; 2]); 3] = [race, pause, resend];
    let rows = GUARDS.map(|guards| {
        let became = accidents.map(|accident| {
            shop.set_up();
            accident(guards, url, &locks);
            Became { orders: shop.count(guards.orders()), payments: shop.count("orders_payments") }
        });
        (guards.label, became)
    });
    shop.set_up();
    let swept = shop.sweep_tokens(Duration::from_secs(24 * 3_600));
    let tutorials = url.starts_with("mysql").then(|| {
        [
            ("REPEATABLE READ", true),
            ("READ COMMITTED", true),
            ("REPEATABLE READ", false),
            ("READ COMMITTED", false),
        ]
        .map(|(level, look)| tutorial(url, level, look))
    });
    Report { rows: rows.into(), swept, tutorials }
}

#[allow(dead_code, reason = "a test runs the above without it")]
fn main() {
    let mut urls: Vec<String> = std::env::args().skip(1).collect();
    let folder = tempfile::tempdir().unwrap();
    if urls.is_empty() {
        urls.push(format!("sqlite://{}/shop.db", folder.path().display()));
    }
    for url in urls {
        println!("\n{}: orders placed (and paid) for one purchase", url.split_once("://").unwrap().0);
        let report = run(&url);
        if let Some([looked_rr, looked_rc, key_rr, key_rc]) = report.tutorials {
            let said = |tutorial: &Tutorial| tutorial.error.clone().unwrap_or_else(|| "no error".to_owned());
            println!("  SELECT … FOR UPDATE of an absent number, then INSERT:");
            println!("    REPEATABLE READ  {} order(s); {}", looked_rr.orders, said(&looked_rr));
            println!("    READ COMMITTED   {} order(s); {}", looked_rc.orders, said(&looked_rc));
            println!("  INSERT with a unique key:");
            println!("    REPEATABLE READ  {} order(s); {}", key_rr.orders, said(&key_rr));
            println!("    READ COMMITTED   {} order(s); {}", key_rc.orders, said(&key_rc));
        }
        println!("  {:<14} {:>8} {:>8} {:>8}", "", "race", "pause", "resend");
        for (label, became) in report.rows {
            let [race, pause, resend] =
                became.map(|became| format!("{} ({})", became.orders, became.payments));
            println!("  {label:<14} {race:>8} {pause:>8} {resend:>8}");
        }
        println!("  {} old token(s) swept", report.swept);
    }
}
