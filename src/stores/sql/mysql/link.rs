//! A connection: sends statements, and notes after an error whether the connection can be used again.

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
    /// Whether an answer was late. The driver would read the late answer as the next request's, so the
    /// connection is not used again.
    pub(super) silent: bool,
    deadline: Moment,
    /// The number of requests since the server last failed to prepare a statement.
    requests: u64,
}

const PREPARES_AFTER: u64 = 10;

impl Link for MysqlConnection {
    fn deadline(&mut self) -> &mut Moment {
        &mut self.deadline
    }

    /// Sends a connection's first ten statements as text, since preparing costs a round trip. Prepares later
    /// ones, since the server then parses each only once. If the server cannot prepare a statement
    /// (`max_prepared_stmt_count`) or has lost it, nothing was carried out, and ten are sent as text again.
    fn run(&mut self, statement: &Statement, args: &Args) -> Answer<Vec<Record>> {
        self.requests += 1;
        if self.requests > PREPARES_AFTER {
            let value = |name: &&str| (name.as_bytes().to_vec(), Value::from(args.get(name)));
            let params = match &*statement.names {
                [] => Params::Empty, // the driver refuses an empty list of names
                names => Params::Named(names.iter().map(value).collect()),
            };
            match self.conn.exec_iter(&*statement.text, params).and_then(records) {
                Err(error) if was_not_prepared(&error) => self.requests = 0,
                answered => return self.judge(answered),
            }
        }
        let answered = self.conn.query_iter(as_text(&statement.text, args)).and_then(records);
        self.judge(answered)
    }
}

impl MysqlConnection {
    pub(super) fn new(conn: Conn, deadline: Moment) -> MysqlConnection {
        let used = Clock::System.now();
        MysqlConnection { conn, used, ended: false, silent: false, deadline, requests: 0 }
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

/// The statement without its comments, and with a value in place of each `:name`.
fn as_text(sql: &str, args: &Args) -> String {
    let head: usize = sql.split_inclusive('\n').take_while(|line| line.starts_with("--")).map(str::len).sum();
    let mut parts = sql.get(head..).unwrap_or_default().split(':');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(part.len());
        let (name, rest) = part.split_at(end);
        if name.is_empty() {
            text.push(':');
        } else {
            // `false`: backslashes escape, because `settings` sets a `sql_mode` without NO_BACKSLASH_ESCAPES.
            text.push_str(&Value::from(args.get(name)).as_sql(false));
        }
        text.push_str(rest);
    }
    text
}
