//! One connection, and the meaning of its errors for it.

use std::time::Duration;

use mysql::prelude::{Protocol, Queryable};
use mysql::{Conn, Params, Value};

use crate::seam::Answer;
use crate::stores::sql::database::Link;
use crate::stores::sql::mysql::refusal::{ends_the_session, failed, took_too_long, was_not_prepared};
use crate::stores::sql::statement::{Args, Record, Statement, Value as Column};
use crate::time::{Clock, Moment};

pub(super) struct MysqlConnection {
    pub(super) conn: Conn,
    pub(super) used: Moment,
    pub(super) ended: bool,
    /// Whether an answer was late. It may still arrive, and the driver would take it for the next request's.
    pub(super) silent: bool,
    /// Send statements as text: one round trip instead of two, for a statement used once.
    pub(super) as_text: bool,
    /// Time-out for an answer, on a connection made for requests with little time.
    pub(super) answer: Duration,
    deadline: Moment,
}

impl Link for MysqlConnection {
    fn deadline(&mut self) -> &mut Moment {
        &mut self.deadline
    }

    /// Sends the text where the server has no room for a prepared statement, so that other users of
    /// `max_prepared_stmt_count` cost no hold.
    fn run(&mut self, statement: &Statement, args: &Args) -> Answer<Vec<Record>> {
        let value = |name: &&str| (name.as_bytes().to_vec(), Value::from(args.get(name)));
        let params = match &*statement.names {
            [] => Params::Empty, // the driver refuses names without parameters
            names => Params::Named(names.iter().map(value).collect()),
        };
        let prepared = match self.as_text {
            true => None,
            false => match self.conn.exec_iter(&statement.text, params.clone()).and_then(records) {
                Err(error) if was_not_prepared(&error) => None,
                answered => Some(answered),
            },
        };
        let answered = prepared
            .unwrap_or_else(|| self.conn.query_iter(as_text(&statement.text, &params)).and_then(records));
        self.judge(answered)
    }
}

impl MysqlConnection {
    pub(super) fn new(conn: Conn, answer: Duration, deadline: Moment) -> MysqlConnection {
        let used = Clock::System.now();
        MysqlConnection { conn, used, ended: false, silent: false, as_text: false, answer, deadline }
    }

    pub(super) fn number(&mut self, statement: &Statement, args: &Args) -> Answer<Option<i64>> {
        self.run(statement, args)?.first().map_or(Ok(None), |record| record.maybe(0, Record::int))
    }

    pub(super) fn command(&mut self, text: impl AsRef<str>) -> Answer<()> {
        let done = self.conn.query_drop(text);
        self.judge(done)
    }

    pub(super) fn ping(&mut self) -> Answer<()> {
        let asked = self.conn.ping();
        self.judge(asked)
    }

    fn judge<T>(&mut self, result: mysql::Result<T>) -> Answer<T> {
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

fn as_text(sql: &str, params: &Params) -> String {
    let Params::Named(values) = params else { return sql.to_owned() };
    let mut parts = sql.split(':');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(part.len());
        let (name, rest) = part.split_at(end);
        match values.get(name.as_bytes()) {
            // Escaped for the sql_mode that `settings` sets.
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
