//! One connection, and what its errors say of it.

use std::time::Duration;

use mysql::prelude::Queryable;
use mysql::{Conn, Params};

use crate::seam::{Answer, Failure};
use crate::stores::sql::mysql::refusal::{ends_the_session, failed, took_too_long, was_not_prepared};
use crate::stores::sql::mysql::role::{is_read_only, read_only_now};
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

    /// Runs a statement; how many rows it found, and its insert id.
    pub(super) fn run(&mut self, sql: &str, params: Params) -> Answer<(u64, u64)> {
        self.rows::<mysql::Row>(sql, params)?;
        Ok((self.conn.affected_rows(), self.conn.last_insert_id()))
    }

    /// Refuses if the server takes no writes.
    pub(super) fn refuse_read_only(&mut self) -> Answer<()> {
        let read_only = self.first::<i64>(concat!("SELECT ", is_read_only!()), Params::Empty);
        match read_only.map_err(Failure::of_reading)? {
            Some(0) => Ok(()),
            _ => Err(Failure::Refused(read_only_now())),
        }
    }

    pub(super) fn first<T: mysql::prelude::FromRow>(
        &mut self,
        sql: &str,
        params: Params,
    ) -> Answer<Option<T>> {
        Ok(self.rows(sql, params)?.into_iter().next())
    }

    /// Runs a statement. Where the server has no room for a prepared one, or has lost it, nothing was run: it gets
    /// the same as text. So no hold is lost because others have used up `max_prepared_stmt_count`.
    pub(super) fn rows<T: mysql::prelude::FromRow>(&mut self, sql: &str, params: Params) -> Answer<Vec<T>> {
        if self.as_text {
            let rows = self.conn.query(as_text(sql, &params));
            return self.judge(rows);
        }
        let rows = match self.conn.exec(sql, params.clone()) {
            Err(error) if was_not_prepared(&error) => self.conn.query(as_text(sql, &params)),
            rows => rows,
        };
        self.judge(rows)
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

    /// Ends a session of an earlier connection that still does what was asked over that. A server that was started
    /// anew gives the same numbers again, but such a session has not been busy for as long.
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
