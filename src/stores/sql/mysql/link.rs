//! One connection, and what its errors say of it.

use std::time::Duration;

use mysql::prelude::{Protocol, Queryable};
use mysql::{Conn, Params, Value};

use crate::seam::{Answer, Failure};
use crate::stores::sql::mysql::refusal::{
    ends_the_session, failed, is_read_only, read_only_now, took_too_long, was_not_prepared,
};
use crate::stores::sql::statement::{Args, Record, Statement, Value as Column};
use crate::time::{Clock, Moment};

/// One connection.
pub(super) struct MysqlConnection {
    pub(super) conn: Conn,
    /// When it was last known to stand.
    pub(super) used: Moment,
    /// The server has ended the session.
    pub(super) ended: bool,
    /// An answer did not come in time. It may come yet, and the driver would take it for that to another
    /// question.
    pub(super) silent: bool,
    /// Statements go as text, which costs one round trip instead of two: for what is asked but once.
    pub(super) as_text: bool,
    /// Of one that is made for requests with little time: for how long it waits for an answer.
    pub(super) answer: Duration,
}

impl MysqlConnection {
    pub(super) fn new(conn: Conn) -> MysqlConnection {
        let used = Clock::System.now();
        MysqlConnection { conn, used, ended: false, silent: false, as_text: false, answer: Duration::ZERO }
    }

    /// As [`Rows::run`](crate::stores::sql::rows::Rows::run). Where the server has no room for a prepared
    /// statement, or has lost it, nothing was run: it gets the same as text. So no hold is lost because
    /// others have used up `max_prepared_stmt_count`.
    pub(super) fn run(&mut self, statement: &Statement, args: &Args) -> Answer<Vec<Record>> {
        let value = |name: &&str| (name.as_bytes().to_vec(), Value::from(args.get(name)));
        let named = statement.names.iter().map(value).collect();
        // The driver refuses names for a statement that has none.
        self.ask(
            &statement.text,
            if statement.names.is_empty() { Params::Empty } else { Params::Named(named) },
        )
    }

    fn ask(&mut self, sql: &str, params: Params) -> Answer<Vec<Record>> {
        let prepared = match self.as_text {
            true => None,
            false => match self.conn.exec_iter(sql, params.clone()).and_then(records) {
                Err(error) if was_not_prepared(&error) => None,
                answered => Some(answered),
            },
        };
        let answered =
            prepared.unwrap_or_else(|| self.conn.query_iter(as_text(sql, &params)).and_then(records));
        self.judge(answered)
    }

    /// Refuses if the server takes no writes.
    pub(super) fn refuse_read_only(&mut self) -> Answer<()> {
        let read_only = concat!("SELECT ", is_read_only!());
        match self.first(read_only, Params::Empty).map_err(Failure::of_reading)? {
            Some(0) => Ok(()),
            _ => Err(Failure::Refused(read_only_now())),
        }
    }

    /// The number that a statement returns.
    pub(super) fn first(&mut self, sql: &str, params: Params) -> Answer<Option<i64>> {
        let records = self.ask(sql, params)?;
        records.first().map_or(Ok(None), |record| record.maybe(0, Record::int))
    }

    /// For how many seconds a statement waits for a row that another transaction has locked.
    pub(super) fn wait_for_rows(&mut self, limit: u64) -> Answer<()> {
        let set = self.conn.query_drop(format!("SET SESSION innodb_lock_wait_timeout = {limit}"));
        self.judge(set)
    }

    pub(super) fn kill(&mut self, session: u64) -> Answer<()> {
        let killed = self.conn.query_drop(format!("KILL {session}"));
        self.judge(killed)
    }

    /// Ends a session of an earlier connection that still does what was asked over that. A server that was
    /// started anew gives the same numbers again, but such a session has not been busy for as long.
    pub(super) fn end_given_up(&mut self, session: u32, since: Moment) -> Answer<()> {
        let busy = format!(
            "SELECT time FROM information_schema.processlist WHERE id = {session} AND command <> 'Sleep'"
        );
        let busy = self.conn.query_first::<i64, _>(busy);
        // Whole seconds of two clocks: one more or less.
        let is_it = |busy: i64| busy.saturating_add(1) >= whole_seconds(Clock::System.now().since(since));
        if self.judge(busy)?.is_some_and(is_it)
            && let Err(Failure::Unknown(error)) = self.kill(u64::from(session))
        {
            return Err(Failure::Unknown(error));
        }
        Ok(())
    }

    pub(super) fn ping(&mut self) -> Answer<()> {
        let asked = self.conn.ping();
        self.judge(asked)
    }

    pub(super) fn judge<T>(&mut self, result: mysql::Result<T>) -> Answer<T> {
        self.used = Clock::System.now();
        result.map_err(|error| {
            if took_too_long(&error) {
                self.silent = true;
            } else {
                self.ended |= ends_the_session(&error);
            }
            failed(error)
        })
    }
}

fn records<P: Protocol>(mut answer: mysql::QueryResult<'_, '_, '_, P>) -> mysql::Result<Vec<Record>> {
    let (changed, id) = (answer.affected_rows(), answer.last_insert_id().unwrap_or(0));
    if answer.columns().as_ref().is_empty() {
        let id = Column::Int(i64::try_from(id).unwrap_or(i64::MAX));
        return Ok(if changed > 0 { vec![Record(vec![id])] } else { Vec::new() });
    }
    answer.by_ref().map(|row| Ok(Record(row?.unwrap().into_iter().map(Column::from).collect()))).collect()
}

impl From<Value> for Column {
    fn from(value: Value) -> Column {
        match value {
            Value::Bytes(bytes) => Column::Bytes(bytes),
            Value::Int(value) => Column::Int(value),
            Value::UInt(value) => Column::Int(i64::try_from(value).unwrap_or(i64::MAX)),
            Value::NULL | Value::Float(_) | Value::Double(_) | Value::Date(..) | Value::Time(..) => {
                Column::Null
            }
        }
    }
}

impl From<&Column> for Value {
    fn from(value: &Column) -> Value {
        match value {
            Column::Null => Value::NULL,
            Column::Bool(value) => Value::from(*value),
            Column::Int(value) => Value::Int(*value),
            Column::Text(text) => Value::from(text),
            Column::Bytes(bytes) => Value::from(bytes),
        }
    }
}

/// The statement with the values in the places of their names.
fn as_text(sql: &str, params: &Params) -> String {
    let Params::Named(values) = params else { return sql.to_owned() };
    let mut parts = sql.split(':');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(part.len());
        let (name, rest) = part.split_at(end);
        match values.get(name.as_bytes()) {
            // Escaped as the session's sql_mode, which `settings` sets, reads it.
            Some(value) => text.push_str(&value.as_sql(false)),
            None => {
                text.push(':');
                text.push_str(name);
            }
        }
        text.push_str(rest);
    }
    text
}

pub(super) fn whole_seconds(span: Duration) -> i64 {
    i64::try_from(span.as_secs()).unwrap_or(i64::MAX)
}
