//! Locks that live in the caller's own transaction, as an application uses them: each waiter and each holder
//! needs a connection, and there are few connections.

use std::error::Error as StdError;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use leasehold::{mysql as in_mysql, postgres as in_postgres};
use mysql::TxOpts;
use r2d2::{ManageConnection, Pool};

use super::child::Contender;

/// The maximum number of connections, as many as a typical pooler allows.
pub const MOST: u32 = 100;
/// How long a thread waits for a connection before it counts as failed: the usual time-out of pools.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub enum Transactions {
    Row(Pool<Postgres>),
    Advisory(Pool<Postgres>),
    MysqlRow(Pool<Mysql>),
}

impl Transactions {
    /// Opens a pool; `None`: this store has no locks that live in the caller's own transaction.
    pub fn open(store: &str, url: &str) -> Result<Option<Transactions>> {
        let url = url.to_owned();
        Ok(Some(match store {
            "postgres-row" => {
                let pool = pool(Postgres(url))?;
                in_postgres::NameTable::default().create(&mut *pool.get()?)?;
                Transactions::Row(pool)
            }
            "postgres-advisory" => Transactions::Advisory(pool(Postgres(url))?),
            "mariadb-row" => {
                let pool = pool(Mysql(url))?;
                in_mysql::NameTable::default().create(&mut *pool.get()?)?;
                Transactions::MysqlRow(pool)
            }
            _ => return Ok(None),
        }))
    }

    pub fn contender(&self, name: &str) -> Box<dyn Contender> {
        let name = name.to_owned();
        match self {
            Transactions::Row(pool) => {
                let pool = pool.clone();
                Box::new(InTransaction(move |until, inside: &mut dyn FnMut()| {
                    let mut client = pool.get_timeout(patience(until)).context("no connection")?;
                    let mut transaction = client.transaction()?;
                    let names = in_postgres::NameTable::default();
                    let lock = names.lock(&mut transaction, &name, left(until))?;
                    finish(lock.is_some(), inside, || Ok(transaction.commit()?))
                }))
            }
            Transactions::Advisory(pool) => {
                let pool = pool.clone();
                Box::new(InTransaction(move |until, inside: &mut dyn FnMut()| {
                    let mut client = pool.get_timeout(patience(until)).context("no connection")?;
                    let mut transaction = client.transaction()?;
                    let lock = in_postgres::lock_advisory(&mut transaction, &name, left(until))?;
                    finish(lock.is_some(), inside, || Ok(transaction.commit()?))
                }))
            }
            Transactions::MysqlRow(pool) => {
                let pool = pool.clone();
                Box::new(InTransaction(move |until, inside: &mut dyn FnMut()| {
                    let mut client = pool.get_timeout(patience(until)).context("no connection")?;
                    let mut transaction = client.start_transaction(TxOpts::default())?;
                    let names = in_mysql::NameTable::default();
                    let lock = names.lock(&mut transaction, &name, left(until))?;
                    finish(lock.is_some(), inside, || Ok(transaction.commit()?))
                }))
            }
        }
    }
}

fn finish(has: bool, inside: &mut dyn FnMut(), commit: impl FnOnce() -> Result<()>) -> Result<bool> {
    if has {
        inside();
    }
    commit().map(|()| has)
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

fn patience(until: Instant) -> Duration {
    left(until).min(PATIENCE).max(Duration::from_millis(1))
}

struct InTransaction<F>(F);

impl<F> Contender for InTransaction<F>
where
    F: FnMut(Instant, &mut dyn FnMut()) -> Result<bool> + Send,
{
    fn visit(&mut self, until: Instant, inside: &mut dyn FnMut()) -> Result<bool> {
        (self.0)(until, inside)
    }
}

/// A pool that opens a connection when one is needed, and keeps it.
fn pool<M>(server: M) -> Result<Pool<M>>
where
    M: ManageConnection,
    M::Error: StdError,
{
    let pool = Pool::builder()
        .max_size(MOST)
        .min_idle(Some(1))
        .test_on_check_out(false)
        .max_lifetime(None)
        .idle_timeout(None)
        .build(server)?;
    Ok(pool)
}

pub struct Postgres(String);

impl ManageConnection for Postgres {
    type Connection = postgres::Client;
    type Error = postgres::Error;

    fn connect(&self) -> Result<postgres::Client, postgres::Error> {
        postgres::Client::connect(&self.0, postgres::NoTls)
    }

    fn is_valid(&self, client: &mut postgres::Client) -> Result<(), postgres::Error> {
        client.simple_query("").map(drop)
    }

    fn has_broken(&self, client: &mut postgres::Client) -> bool {
        client.is_closed()
    }
}

pub struct Mysql(String);

impl ManageConnection for Mysql {
    type Connection = mysql::Conn;
    type Error = mysql::Error;

    fn connect(&self) -> Result<mysql::Conn, mysql::Error> {
        let options = mysql::OptsBuilder::from_opts(mysql::Opts::from_url(&self.0)?).prefer_socket(false);
        mysql::Conn::new(options)
    }

    fn is_valid(&self, client: &mut mysql::Conn) -> Result<(), mysql::Error> {
        client.ping()
    }

    fn has_broken(&self, _client: &mut mysql::Conn) -> bool {
        false
    }
}
