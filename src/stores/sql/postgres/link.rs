//! One connection: the driver's async client, with a runtime that runs only while a call waits. The
//! `postgres` crate works like this too, but its calls never end if the server stops answering.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::future::{Future, poll_fn};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::timeout;
use tokio_postgres::config::Host;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{
    CancelToken, Client, Config, Connection, Row, SimpleQueryMessage, SimpleQueryRow, Socket, Statement,
};

use crate::error::{Error, ErrorKind, Result};
use crate::hosts::{Rounds, link};
use crate::seam::{Answer, Failure};
use crate::secrets::Renewable;
use crate::stores::sql::database::Link;
use crate::stores::sql::postgres::refusal::{BEGUN, ends_the_session, failed, is_other_session, unreachable};
#[cfg(feature = "tls")]
pub(super) use crate::stores::sql::postgres::secure::Secure;
use crate::stores::sql::statement::{Args, Record, Statement as Text, Value};
use crate::stores::sql::timed_out;
use crate::sync::{spawn_scoped, thread};
use crate::time::{Clock, Moment};

type Reason = Box<dyn StdError + Sync + Send>;

type Driven<T> = std::result::Result<T, tokio_postgres::Error>;

#[cfg(not(feature = "tls"))]
pub(super) type Secure = tokio_postgres::NoTls;

#[derive(Clone)]
pub(super) struct Dial {
    pub(super) config: Config,
    pub(super) address: String,
    pub(super) secure: Secure,
    /// Reads the URL and the files of secrets again for each connection, and makes a new `Dial` of them.
    pub(super) credentials: Option<Arc<Renewable<Dial>>>,
}

/// The caller must poll the connection, which reads and writes for the client.
pub(super) type Connected = (Client, Connection<Socket, <Secure as MakeTlsConnect<Socket>>::Stream>);

impl Dial {
    pub(super) fn connect(&self, driver: &Driver, deadline: Moment) -> Result<Connected> {
        let connect = |dial: &Dial| driver.wait(dial.connect_once(deadline))?;
        match &self.credentials {
            Some(credentials) => credentials.with(&self.address, deadline, |dial, _ends| connect(dial)),
            None => connect(self),
        }
    }

    async fn connect_once(&self, deadline: Moment) -> Result<Connected> {
        let late = || timed_out("connecting took too long");
        let mut rounds = Rounds::until(deadline);
        let mut failure = None;
        while let Some(limit) = rounds.next_limit() {
            let mut config = self.config.clone();
            if !self.is_one_address() {
                config.connect_timeout(limit);
            }
            let connected = within(deadline, config.connect(Clone::clone(&self.secure))).await;
            match connected.ok_or_else(late)? {
                Err(error) if is_of_network(&error) => failure = Some(error),
                connected => return connected.map_err(unreachable),
            }
        }
        Err(failure.map_or_else(late, unreachable))
    }

    fn is_one_address(&self) -> bool {
        match (self.config.get_hosts(), self.config.get_hostaddrs()) {
            ([Host::Tcp(name)], []) => name.parse::<IpAddr>().is_ok(),
            (hosts, addresses) => hosts.len().max(addresses.len()) <= 1,
        }
    }
}

/// Whether no server has answered, so that another address or another try may succeed.
fn is_of_network(error: &tokio_postgres::Error) -> bool {
    error.source().is_some_and(|cause| cause.is::<io::Error>())
}

pub(super) async fn within<T>(deadline: Moment, work: impl Future<Output = T>) -> Option<T> {
    timeout(deadline.since(Clock::System.now()), work).await.ok()
}

/// A runtime that any thread may use and drop, even a task of the caller's runtime.
pub(super) struct Driver {
    runtime: Option<Runtime>,
}

impl Driver {
    pub(super) fn new() -> Result<Driver> {
        if Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed()) {
            return Err(ending());
        }
        let runtime = Builder::new_current_thread().enable_io().enable_time().build().map_err(|error| {
            Error::new(ErrorKind::Resource, "connect", "the system could not create an event queue")
                .with_source(error)
        })?;
        Ok(Driver { runtime: Some(runtime) })
    }

    pub(super) fn wait<T: Send>(&self, work: impl Future<Output = T> + Send) -> Result<T> {
        let runtime = self.runtime.as_ref().ok_or_else(ending)?;
        match Handle::try_current() {
            Ok(_) => beside(|| runtime.block_on(work)),
            Err(error) if error.is_thread_local_destroyed() => Err(ending()),
            Err(_) => Ok(runtime.block_on(work)),
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Does not wait for the runtime: waiting would panic in a task, and a look-up of a host may hang.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn beside<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    thread::scope(|scope| {
        let waiting = spawn_scoped(scope, work).map_err(|error| {
            Error::new(ErrorKind::Resource, "use", "the system could not start a thread").with_source(error)
        })?;
        waiting.join().or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Waiting needs thread-locals, so a thread that is ending cannot release. The watchdog does that later.
fn ending() -> Error {
    Error::new(ErrorKind::Resource, "use", "the thread is ending")
}

pub(super) struct PostgresConnection {
    pub(super) client: Arc<Client>,
    pub(super) backend: String,
    statements: HashMap<Box<str>, Statement>,
    /// Whether a prepared statement has not been used yet. After its first use, `send` calls `is_begun`.
    is_untried: bool,
    pub(super) table: Option<Arc<str>>,
    /// Whether the session has ended, even if the socket is still open, or must not be used again.
    pub(super) ended: bool,
    /// Whether the last answer was late. The driver skips a late answer, so the session remains usable.
    pub(super) silent: bool,
    deadline: Moment,
    round_trip: Duration,
    /// Dropped last, because it runs the tasks that read and write for the client.
    driver: Driver,
}

impl Link for PostgresConnection {
    fn deadline(&mut self) -> &mut Moment {
        &mut self.deadline
    }

    fn run(&mut self, statement: &Text, args: &Args) -> Answer<Vec<Record>> {
        self.send(&[(statement, args)], None)?.pop().unwrap_or_else(|| Ok(Vec::new()))
    }
}

impl PostgresConnection {
    /// Connects and runs `setup`. At the same time, cancels the requests of closed connections in `given_up`.
    pub(super) fn open(
        given_up: Vec<CancelToken>,
        dial: &Dial,
        setup: &str,
        deadline: Moment,
    ) -> Result<PostgresConnection> {
        let driver = Driver::new()?;
        driver.wait(async {
            for session in given_up {
                let secure = Clone::clone(&dial.secure);
                drop(tokio::spawn(async move { session.cancel_query(secure).await }));
            }
        })?;
        let connected = dial.connect(&driver, deadline).map_err(|error| error.during("connect"));
        let (client, connection) = connected?;
        let (backend, round_trip) = driver
            .wait(async {
                drop(tokio::spawn(connection)); // ends with the runtime
                let setup = format!("{setup}; SELECT pg_backend_pid()");
                let asked = Clock::System.now();
                let ready = within(deadline, client.simple_query(&setup)).await;
                let ready = ready.ok_or_else(|| timed_out("connecting took too long"))?;
                let backend = last_word(&ready.map_err(unreachable)?);
                Ok::<_, Error>((backend, Clock::System.now().since(asked)))
            })?
            .map_err(|error| error.during("connect"))?;
        Ok(PostgresConnection {
            client: Arc::new(client),
            backend,
            statements: HashMap::new(),
            is_untried: false,
            table: None,
            ended: false,
            silent: false,
            deadline,
            round_trip,
            driver,
        })
    }

    /// The columns of the last row that unprepared statements return. NULL becomes an empty text.
    pub(super) fn words(&mut self, text: &str) -> Answer<Vec<String>> {
        let answer = self.ask(within(self.deadline, self.client.simple_query(text)))?;
        let answer = self.judge(answer)?;
        let row = last_row(&answer);
        let word = |row: &SimpleQueryRow, at| row.get(at).unwrap_or_default().to_owned();
        Ok(row.map_or_else(Vec::new, |row| (0..row.len()).map(|at| word(row, at)).collect()))
    }

    /// Whether the connection seems open. The runtime first polls the socket, which shows if it was closed.
    pub(super) fn is_alive(&self) -> bool {
        if self.ended || self.client.is_closed() {
            return false;
        }
        let looked = self.driver.wait(async {
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
        });
        // If the runtime fails, the next request will show the connection's state.
        looked.is_err() || !self.client.is_closed()
    }

    /// For how many milliseconds a freed lock is reserved for this client: longer on a slow network.
    pub(super) fn reserved_ms(&self) -> i64 {
        10 << link(self.round_trip)
    }

    /// Runs two statements, and returns their rows. The second begins after the first has committed. Fails if
    /// the first fails. If either cannot be prepared, fails without sending any.
    pub(super) fn one_then(
        &mut self,
        (first, second): (&Text, &Text),
        args: &Args,
    ) -> Answer<(Vec<Record>, Answer<Vec<Record>>)> {
        let mut answers = self.send(&[(first, args), (second, args)], Some(BEHIND))?;
        let second = answers.pop().unwrap_or_else(|| Ok(Vec::new()));
        Ok((answers.pop().unwrap_or_else(|| Ok(Vec::new()))?, second))
    }

    pub(super) fn each(&mut self, statement: &Text, args: &[Args]) -> Vec<Answer<bool>> {
        let requests: Vec<_> = args.iter().map(|args| (statement, args)).collect();
        match self.send(&requests, None) {
            Ok(answers) => answers.into_iter().map(|answer| Ok(!answer?.is_empty())).collect(),
            Err(failure) => failure.each(args.len()),
        }
    }

    /// Sends all statements without waiting for answers in between, and then reads their rows. Each answer
    /// after the first must come within `behind` of the one before. If this call fails, it has sent none.
    fn send(
        &mut self,
        requests: &[(&Text, &Args)],
        behind: Option<Duration>,
    ) -> Answer<Vec<Answer<Vec<Record>>>> {
        self.prepare(requests.iter().map(|(text, _)| &*text.text))?;
        let mut sendable = Vec::with_capacity(requests.len());
        for (text, args) in requests {
            let param = |name: &&'static str| args.get(name) as &(dyn ToSql + Sync);
            let statement = self.statements.get(&*text.text).cloned();
            let statement = statement.ok_or_else(|| Failure::Refused(timed_out("it was not prepared")))?;
            sendable.push((statement, text.names.iter().map(param).collect::<Vec<_>>()));
        }
        let (client, deadline) = (Arc::clone(&self.client), self.deadline);
        let answers = self.ask(async {
            let mut sent = Vec::with_capacity(sendable.len());
            for (statement, params) in &sendable {
                let mut request = Box::pin(client.query(statement, params));
                // The first poll sends a request. An answer that is already there is kept.
                let early = poll_fn(|context| {
                    Poll::Ready(match request.as_mut().poll(context) {
                        Poll::Ready(answer) => Some(answer),
                        Poll::Pending => None,
                    })
                });
                sent.push((early.await, request));
            }
            let (mut answers, mut until) = (Vec::with_capacity(sent.len()), deadline);
            for (early, request) in sent {
                answers.push(if early.is_some() { early } else { within(until, request).await });
                until = behind.map_or(deadline, |behind| deadline.min(Clock::System.after(behind)));
            }
            answers
        })?;
        // This crate prepares no statement in a transaction. So if one is open after a statement's first use,
        // a pooler began it, as pgpool-II does.
        let is_untried = std::mem::take(&mut self.is_untried) && matches!(answers.last(), Some(Some(_)));
        let is_open = is_untried && self.is_begun();
        self.ended |= is_open;
        let mut read = Vec::with_capacity(answers.len());
        for answer in answers {
            let rows = self.judge(answer);
            read.push(if is_open {
                // A pooler or the server may roll this transaction back: outcome unknown.
                Err(Failure::Unknown(Error::new(ErrorKind::Unsupported, "request", BEGUN)))
            } else {
                rows.and_then(|rows| rows.iter().map(record).collect())
            });
        }
        Ok(read)
    }

    /// Prepares the statements that this session lacks, in one round trip. After a failure, nothing was sent.
    pub(super) fn prepare<'a>(&mut self, texts: impl Iterator<Item = &'a str>) -> Answer<()> {
        let mut missing: Vec<_> = texts.filter(|text| !self.statements.contains_key(*text)).collect();
        missing.dedup();
        if missing.is_empty() {
            return Ok(());
        }
        let asked = Clock::System.now();
        let prepare = |text: &&str| {
            let (client, text) = (Arc::clone(&self.client), (*text).to_owned());
            async move { client.prepare(&text).await }
        };
        let requests: Vec<_> = missing.iter().map(prepare).collect();
        let prepared = self.ask(within(self.deadline, async {
            let sent: Vec<_> = requests.into_iter().map(tokio::spawn).collect();
            let mut answers = Vec::with_capacity(sent.len());
            for request in sent {
                answers.push(request.await.ok());
            }
            answers
        }))?;
        self.round_trip = self.round_trip.min(Clock::System.now().since(asked));
        let mut answers = prepared.into_iter().flatten();
        for text in missing {
            let statement = self.judge(answers.next().flatten()).map_err(Failure::of_reading)?;
            self.statements.insert(text.into(), statement);
            self.is_untried = true;
        }
        Ok(())
    }

    pub(super) fn begin(&mut self) -> Answer<()> {
        self.is_untried = false;
        self.execute("BEGIN")
    }

    pub(super) fn execute(&mut self, sql: &str) -> Answer<()> {
        let answer = self.ask(within(self.deadline, self.client.batch_execute(sql)))?;
        self.judge(answer)
    }

    /// Whether a transaction is open: then `now()`, its start, lies before this statement's start. `false` if
    /// no answer comes in time. Sent as text, because a prepared statement begins after `now()` in any
    /// case.
    fn is_begun(&self) -> bool {
        let text = "SELECT now() <> statement_timestamp()";
        match self.ask(within(self.deadline, self.client.simple_query(text))) {
            Ok(Some(Ok(said))) => last_word(&said) == "t",
            Ok(Some(Err(error))) => error.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION),
            Ok(None) | Err(_) => false,
        }
    }

    fn ask<T: Send>(&self, request: impl Future<Output = T> + Send) -> Answer<T> {
        self.driver.wait(request).map_err(Failure::Refused)
    }

    fn judge<T>(&mut self, answer: Option<Driven<T>>) -> Answer<T> {
        self.silent = answer.is_none();
        let Some(result) = answer else {
            return Err(Failure::Unknown(timed_out("the server did not answer in time")));
        };
        result.map_err(|error| {
            self.ended |=
                error.as_db_error().is_some_and(|said| ends_the_session(said) || is_other_session(said));
            failed(error, self.table.as_deref())
        })
    }
}

/// Limit for the second statement of `one_then`, so that a locked table does not delay the caller.
const BEHIND: Duration = Duration::from_secs(1);

fn record(row: &Row) -> Answer<Record> {
    let columns = (0..row.len()).map(|at| row.try_get(at)).collect::<Driven<_>>();
    columns.map(Record).map_err(|error| {
        let words = "the server's row is not the one expected";
        Failure::Refused(Error::new(ErrorKind::Protocol, "read", words).with_source(error))
    })
}

impl ToSql for Value {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> std::result::Result<IsNull, Reason> {
        match self {
            Value::Null => Ok(IsNull::Yes),
            Value::Bool(value) => value.to_sql(ty, out),
            Value::Int(value) if *ty == Type::INT4 => {
                i32::try_from(*value).unwrap_or(i32::MAX).to_sql(ty, out)
            }
            Value::Int(value) => value.to_sql(ty, out),
            Value::Text(value) => value.to_sql(ty, out),
            Value::Bytes(value) => value.to_sql(ty, out),
        }
    }

    fn accepts(_ty: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Value {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> std::result::Result<Value, Reason> {
        Ok(match *ty {
            Type::BOOL => Value::Bool(bool::from_sql(ty, raw)?),
            Type::INT4 => Value::Int(i32::from_sql(ty, raw)?.into()),
            Type::INT8 => Value::Int(i64::from_sql(ty, raw)?),
            Type::BYTEA => Value::from(raw),
            _ => Value::from(<&str>::from_sql(ty, raw)?),
        })
    }

    fn from_sql_null(_ty: &Type) -> std::result::Result<Value, Reason> {
        Ok(Value::Null)
    }

    fn accepts(_ty: &Type) -> bool {
        true
    }
}

/// Keeps the server from ending idle sessions and long transactions, whatever the user's settings. Sets only
/// parameters that the server's version has.
pub(super) const STAYS: &str = "SELECT set_config(name, '0', false) FROM pg_settings \
    WHERE name IN ('idle_session_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')";

pub(super) fn last_word(answers: &[SimpleQueryMessage]) -> String {
    last_row(answers).and_then(|row| row.get(0)).unwrap_or_default().to_owned()
}

fn last_row(answers: &[SimpleQueryMessage]) -> Option<&SimpleQueryRow> {
    answers.iter().rev().find_map(|answer| match answer {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    })
}
