//! One connection: the driver's async client, and a runtime of its own that runs only while a call waits.
//!
//! The `postgres` crate is the same, but its calls have no end when the server has stopped answering.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_postgres::config::Host;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{
    CancelToken, Client, Config, Connection, Row, SimpleQueryMessage, SimpleQueryRow, Socket, Statement,
};

use crate::error::{Error, ErrorKind, Result};
use crate::hosts::Rounds;
use crate::seam::{Answer, Failure};
use crate::secrets::{MOST_TRIES, Renewable};
use crate::stores::sql::postgres::driver::{Driver, within};
use crate::stores::sql::postgres::refusal::{BEGUN, ends_the_session, failed, is_changed, unreachable};
#[cfg(feature = "tls")]
pub(super) use crate::stores::sql::postgres::secure::Secure;
use crate::stores::sql::statement::{Args, Record, Statement as Text, Value};
use crate::stores::sql::timed_out;
use crate::time::{Clock, Moment};

type Reason = Box<dyn StdError + Sync + Send>;

pub(super) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Nothing is secured.
#[cfg(not(feature = "tls"))]
pub(super) type Secure = tokio_postgres::NoTls;

/// How the server is reached.
#[derive(Clone)]
pub(super) struct Dial {
    pub(super) config: Config,
    pub(super) secure: Secure,
    /// The same by what the files of secrets have by now.
    pub(super) renewal: Option<Arc<Renewable<Dial>>>,
}

type Secured = <Secure as MakeTlsConnect<Socket>>::Stream;

impl Dial {
    /// A connection, and what reads and writes for it.
    pub(super) async fn connect(&self, deadline: Moment) -> Result<(Client, Connection<Socket, Secured>)> {
        let Some(renewal) = &self.renewal else { return self.connect_once(deadline).await };
        let (config, mut hosts) = (&self.config, Vec::new());
        for (at, host) in config.get_hosts().iter().enumerate() {
            let port = config.get_ports().get(at).or(config.get_ports().first()).unwrap_or(&5432);
            hosts.push(match host {
                Host::Tcp(name) if !name.is_empty() => format!("{name}:{port}"),
                _local => "a local socket".to_owned(),
            });
        }
        let hosts = hosts.join(",");
        let mut tried = renewal.current(&hosts, deadline)?;
        let mut connected = tried.form.connect_once(deadline).await;
        for _ in 1..MOST_TRIES {
            let Err(error) = &connected else { break };
            let Some(newer) = renewal.after(error, &tried, &hosts, deadline)? else { break };
            tried = newer;
            connected = tried.form.connect_once(deadline).await;
        }
        connected.inspect(|_| renewal.accepted())
    }

    async fn connect_once(&self, deadline: Moment) -> Result<(Client, Connection<Socket, Secured>)> {
        let late = || timed_out("connecting took too long");
        // Of several hosts or addresses the driver tries one after the other, each for this time.
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

/// Whether another address may do, or another try: no server has said anything.
fn is_of_network(error: &tokio_postgres::Error) -> bool {
    error.source().is_some_and(|cause| cause.is::<io::Error>())
}

pub(super) struct PostgresConnection {
    client: Arc<Client>,
    /// The process of the server that carried out the setup.
    pub(super) backend: String,
    statements: HashMap<Box<str>, Statement>,
    /// A statement was prepared since the last look for a transaction that is open.
    is_untried: bool,
    /// The table of the locks, which errors name.
    pub(super) table: Option<Arc<str>>,
    /// The server has ended the session, whatever the socket says yet.
    pub(super) ended: bool,
    /// The last answer did not come in time. The driver passes it over if it comes yet, so that the session
    /// of a hold goes on; the pool does not take such a connection back.
    pub(super) silent: bool,
    /// Dropped last: it runs what reads and writes for the client.
    driver: Driver,
}

impl PostgresConnection {
    /// Connects and has the server carry out `setup`.
    pub(super) fn open(dial: &Dial, setup: &str, deadline: Moment) -> Result<PostgresConnection> {
        PostgresConnection::open_instead(Vec::new(), dial, setup, deadline)
    }

    /// The same, and meanwhile has the server cancel what the sessions of `given_up` still do. They end then:
    /// nobody is at the other end of their connections.
    pub(super) fn open_instead(
        given_up: Vec<CancelToken>,
        dial: &Dial,
        setup: &str,
        deadline: Moment,
    ) -> Result<PostgresConnection> {
        let driver = Driver::new()?;
        let (client, backend) = driver
            .wait(async {
                for session in given_up {
                    let secure = Clone::clone(&dial.secure);
                    drop(tokio::spawn(async move { session.cancel_query(secure).await }));
                }
                let (client, connection) = dial.connect(deadline).await?;
                drop(tokio::spawn(connection)); // ends with the runtime; its end is seen by the client
                let setup = format!("{setup}; {BACKEND}");
                let ready = within(deadline, client.simple_query(&setup)).await;
                let ready = ready.ok_or_else(|| timed_out("connecting took too long"))?;
                Ok::<_, Error>((client, last_word(&ready.map_err(unreachable)?)))
            })?
            .map_err(|error| error.during("connect"))?;
        let (client, statements) = (Arc::new(client), HashMap::new());
        Ok(PostgresConnection {
            client,
            backend,
            statements,
            is_untried: false,
            table: None,
            ended: false,
            silent: false,
            driver,
        })
    }

    /// The columns of the last row of what is asked without a prepared statement; nothing is as an empty
    /// text.
    pub(super) fn words(&mut self, text: &str, deadline: Moment) -> Answer<Vec<String>> {
        let answer = self.ask(within(deadline, self.client.simple_query(text)))?;
        let answer = self.judge(answer)?;
        let row = last_row(&answer);
        let word = |row: &SimpleQueryRow, at| row.get(at).unwrap_or_default().to_owned();
        Ok(row.map_or_else(Vec::new, |row| (0..row.len()).map(|at| word(row, at)).collect()))
    }

    /// By which the server cancels what the session does.
    pub(super) fn cancel_token(&self) -> CancelToken {
        self.client.cancel_token()
    }

    /// Whether the connection still stands. Lets the runtime look at the socket first, which nobody did
    /// meanwhile.
    pub(super) fn is_alive(&self) -> bool {
        if self.ended || self.client.is_closed() {
            return false;
        }
        let looked = self.driver.wait(async {
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
        });
        // A look that could not be had: the request itself will say so.
        looked.is_err() || !self.client.is_closed()
    }

    /// The only row that a statement returns.
    pub(super) fn one(&mut self, sql: &str, params: Params<'_>, deadline: Moment) -> Answer<Row> {
        only(self.rows(sql, params, deadline)?)
    }

    pub(super) fn rows(&mut self, sql: &str, params: Params<'_>, deadline: Moment) -> Answer<Vec<Row>> {
        let statement = self.statement(sql, deadline)?;
        let check = self.check_if_untried();
        let (answer, is_open) = self.ask(async {
            let check = check.map(tokio::spawn);
            let answer = within(deadline, self.client.query(&statement, params)).await;
            (answer, is_open(check, deadline).await)
        })?;
        self.judge_checked(answer, is_open)
    }

    /// As [`Rows::run`](crate::stores::sql::rows::Rows::run).
    pub(super) fn run(&mut self, statement: &Text, args: &Args, deadline: Moment) -> Answer<Vec<Record>> {
        let rows = self.rows(&statement.text, &params(statement, args), deadline)?;
        rows.iter().map(record).collect()
    }

    /// The rows that two statements return, of which the second is sent behind the first without waiting, and
    /// begins when the first is committed. The second answer is waited for no longer than [`BEHIND`] after
    /// the first. An error: that of the first, or the second could not be prepared and neither was sent.
    pub(super) fn one_then(
        &mut self,
        (first, second): (&Text, &Text),
        args: &Args,
        deadline: Moment,
    ) -> Answer<(Vec<Record>, Answer<Vec<Record>>)> {
        let (params, next_params) = (params(first, args), params(second, args));
        let (statement, next) =
            (self.statement(&first.text, deadline)?, self.statement(&second.text, deadline)?);
        let (client, check) = (Arc::clone(&self.client), self.check_if_untried());
        let mut first = std::pin::pin!(client.query(&statement, &params));
        let mut second = std::pin::pin!(client.query(&next, &next_params));
        let answers = self.ask(async {
            let (mut early, check) = (None, check.map(tokio::spawn));
            // Polled in this order: the first is sent first.
            let sent = std::future::poll_fn(|context| {
                let answer = first.as_mut().poll(context);
                if early.is_none() {
                    early = ready(second.as_mut().poll(context));
                }
                answer
            });
            let first = within(deadline, sent).await;
            if early.is_none() && first.is_some() {
                early = within(deadline.min(Clock::System.after(BEHIND)), second).await;
            }
            let is_open = early.is_some() && is_open(check, deadline).await;
            (first, early, is_open)
        })?;
        let first = self.judge_checked(answers.0, answers.2);
        let second = self.judge(answers.1);
        let read = |rows: Vec<Row>| rows.iter().map(record).collect();
        Ok((read(first?)?, second.and_then(read)))
    }

    /// Sends the statement once for each list of parameters without waiting in between; whether each returned
    /// a row.
    pub(super) fn each(
        &mut self,
        text: &Text,
        args: impl Iterator<Item = Args>,
        deadline: Moment,
    ) -> Vec<Answer<bool>> {
        let args: Vec<_> = args.collect();
        let refused = |error: Error| args.iter().map(|_| Err(Failure::Refused(error.copy()))).collect();
        let statement = match self.statement(&text.text, deadline) {
            Ok(statement) => statement,
            Err(failure) => return refused(failure.into_error()),
        };
        let (client, check) = (Arc::clone(&self.client), self.check_if_untried());
        let all_params: Vec<_> = args.iter().map(|args| params(text, args)).collect();
        let asked = self.driver.wait(async {
            // The first poll sends a request; its answer is kept until it is read.
            let mut sent = Vec::with_capacity(all_params.len());
            for params in &all_params {
                let mut request = Box::pin(client.query(&statement, params));
                let answer =
                    std::future::poll_fn(|context| Poll::Ready(ready(request.as_mut().poll(context))));
                sent.push((answer.await, request));
            }
            let check = check.map(tokio::spawn);
            let mut answers = Vec::with_capacity(sent.len());
            for (early, request) in sent {
                answers.push(if early.is_some() { early } else { within(deadline, request).await });
            }
            (answers, is_open(check, deadline).await)
        });
        let (answers, is_open) = match asked {
            Ok(asked) => asked,
            Err(error) => return refused(error),
        };
        let judge = |answer| self.judge_checked(answer, is_open).map(|rows: Vec<Row>| !rows.is_empty());
        answers.into_iter().map(judge).collect()
    }

    /// Prepares a statement once for each connection; until it is, nothing was asked for.
    fn statement(&mut self, sql: &str, deadline: Moment) -> Answer<Statement> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let answer = self.ask(within(deadline, self.client.prepare(sql)))?;
        let statement = self.judge(answer).map_err(Failure::of_reading)?;
        self.statements.insert(sql.into(), statement.clone());
        self.is_untried = true;
        Ok(statement)
    }

    /// The question whether a transaction is open, for the first use of a statement in this session. Sent
    /// behind that use, without a round trip of its own. Nothing here prepares a statement in a transaction.
    fn check_if_untried(&mut self) -> Option<impl Future<Output = Checked> + Send + 'static> {
        let client = std::mem::take(&mut self.is_untried).then(|| Arc::clone(&self.client))?;
        Some(async move { client.simple_query(IS_BEGUN).await })
    }

    /// As [`judge`](Self::judge). What was done in a transaction that is still open is in doubt: nobody here
    /// ends it.
    fn judge_checked<T>(
        &mut self,
        answer: Option<std::result::Result<T, tokio_postgres::Error>>,
        is_open: bool,
    ) -> Answer<T> {
        let answer = self.judge(answer);
        if is_open {
            self.ended = true;
            return Err(Failure::Unknown(Error::new(ErrorKind::Unsupported, "request", BEGUN)));
        }
        answer
    }

    /// Prepares these statements in one round trip. What the server refuses is refused again when it is used.
    pub(super) fn prepare(&mut self, texts: &[&str], deadline: Moment) -> Answer<()> {
        let client = Arc::clone(&self.client);
        let prepare = |text: &&str| {
            let (client, text) = (Arc::clone(&client), (*text).to_owned());
            tokio::spawn(async move { (client.prepare(&text).await, text) })
        };
        let prepared = self.driver.wait(async {
            let sent: Vec<_> = texts.iter().map(prepare).collect();
            let mut answers = Vec::with_capacity(sent.len());
            for request in sent {
                answers.push(within(deadline, request).await.and_then(|joined| joined.ok()));
            }
            answers
        });
        for answer in prepared.map_err(Failure::Refused)? {
            match answer {
                Some((Ok(statement), text)) => {
                    self.statements.insert(text.into(), statement);
                    self.is_untried = true;
                }
                Some((Err(_), _)) => {}
                None => return self.judge(None),
            }
        }
        Ok(())
    }

    /// Begins a transaction, in which nothing looks for one.
    pub(super) fn begin(&mut self, deadline: Moment) -> Answer<()> {
        self.is_untried = false;
        self.execute("BEGIN", deadline)
    }

    /// Several statements that answer nothing.
    pub(super) fn execute(&mut self, sql: &str, deadline: Moment) -> Answer<()> {
        let answer = self.ask(within(deadline, self.client.batch_execute(sql)))?;
        self.judge(answer)
    }

    /// The answer to a request; refused, if it could not be sent.
    fn ask<T: Send>(&self, request: impl Future<Output = T> + Send) -> Answer<T> {
        self.driver.wait(request).map_err(Failure::Refused)
    }

    /// The outcome of a request. The answer to one that was given up may still come; the driver passes it
    /// over.
    fn judge<T>(&mut self, answer: Option<std::result::Result<T, tokio_postgres::Error>>) -> Answer<T> {
        self.silent = answer.is_none();
        let Some(result) = answer else {
            return Err(Failure::Unknown(timed_out("the server did not answer in time")));
        };
        result.map_err(|error| {
            self.ended |= error.as_db_error().is_some_and(|said| ends_the_session(said) || is_changed(said));
            failed(error, self.table.as_deref())
        })
    }
}

type Checked = std::result::Result<Vec<SimpleQueryMessage>, tokio_postgres::Error>;

/// Whether the answer to [`IS_BEGUN`] came, and says that a transaction is open.
async fn is_open(check: Option<JoinHandle<Checked>>, deadline: Moment) -> bool {
    let Some(check) = check else { return false };
    match within(deadline, check).await {
        Some(Ok(Ok(said))) => last_word(&said) == "t",
        Some(Ok(Err(error))) => error.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION),
        Some(Err(_)) | None => false,
    }
}

/// Whether a transaction was open before this. Not prepared: a prepared statement begins its transaction and
/// itself at different times.
const IS_BEGUN: &str = "SELECT now() <> statement_timestamp()";

/// The most time for which a statement waits for what another transaction has locked: the server's refusal is
/// to come while there is time to ask in another way.
pub(super) fn longest_wait(command_timeout: Duration) -> Duration {
    command_timeout / 2
}

/// A statement that is sent behind a change is for others. A table that somebody has locked must not delay
/// the caller.
const BEHIND: Duration = Duration::from_secs(1);

fn params<'a>(statement: &Text, args: &'a Args) -> Vec<&'a (dyn ToSql + Sync)> {
    statement.names.iter().map(|name| args.get(name) as &(dyn ToSql + Sync)).collect()
}

fn record(row: &Row) -> Answer<Record> {
    (0..row.len()).map(|at| column(row, at)).collect::<Answer<_>>().map(Record)
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

fn only(rows: Vec<Row>) -> Answer<Row> {
    let none = || Error::new(ErrorKind::Protocol, "read", "the server returned no row");
    rows.into_iter().next().ok_or_else(|| Failure::Refused(none()))
}

fn ready<T>(poll: Poll<T>) -> Option<T> {
    match poll {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

pub(super) fn column<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, index: usize) -> Answer<T> {
    row.try_get(index).map_err(|error| {
        let words = "the server's row is not the one expected";
        Failure::Refused(Error::new(ErrorKind::Protocol, "read", words).with_source(error))
    })
}

/// The server ends no session for being idle, and no transaction for its time, whatever it does to others of
/// this user. Not every version has all of these.
pub(super) const STAYS: &str = "SELECT set_config(name, '0', false) FROM pg_settings \
    WHERE name IN ('idle_session_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')";

const BACKEND: &str = "SELECT pg_backend_pid()";

/// The first column of the last row of all answers.
pub(super) fn last_word(answers: &[SimpleQueryMessage]) -> String {
    last_row(answers).and_then(|row| row.get(0)).unwrap_or_default().to_owned()
}

fn last_row(answers: &[SimpleQueryMessage]) -> Option<&SimpleQueryRow> {
    answers.iter().rev().find_map(|answer| match answer {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    })
}
