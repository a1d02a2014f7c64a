//! SQL statements with named parameters, and the rows that they return, for all databases.

use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::ident::LockName;
use crate::seam::{Answer, Claim, Failure};
use crate::stores::sql::query;

#[derive(Clone)]
pub(super) struct Statement {
    pub(super) text: String,
    pub(super) names: Vec<&'static str>,
}

impl Statement {
    pub(super) fn new(text: &'static str, parts: &str, table: &str) -> Statement {
        Statement { text: query(&filled(text, parts), table), names: names(text) }
    }
}

/// Replaces each `{name}` by that part of the database's `parts.sql`. A part may name later parts.
fn filled(text: &str, parts: &str) -> String {
    let mut filled = text.to_owned();
    for (name, part) in parts.split("\n-- {").skip(1).filter_map(|part| part.split_once("}\n")) {
        let lines: Vec<_> = part.trim_end().lines().filter(|line| !line.starts_with("--")).collect();
        filled = filled.replace(&format!("{{{name}}}"), &lines.join("\n"));
    }
    filled
}

macro_rules! statement {
    (@file $folder:literal, $name:expr) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/stores/sql/query/", $folder, "/", $name, ".sql"))
    };
    ($folder:literal, $table:expr, $name:ident) => {
        $crate::stores::sql::statement::Statement::new(
            statement!(@file $folder, stringify!($name)),
            statement!(@file $folder, "parts"),
            $table,
        )
    };
}

macro_rules! statements {
    ($($name:ident),+ $(,)?) => {
        pub(super) struct Statements {
            $(pub(super) $name: Statement,)+
        }
    };
}

statements!(take, retake, leave, renew, expire, look, show, list, force, post, unpost, tidy, entry, entries);

macro_rules! queries {
    ($folder:literal: $($own:ident),* $(,)?) => {
        queries!(@ $folder: take, retake, leave, renew, expire, look, show, list, force, post, unpost, tidy, entry, entries; $($own),*);
    };
    (@ $folder:literal: $($name:ident),+; $($own:ident),*) => {
        struct Queries {
            all: $crate::stores::sql::statement::Statements,
            $($own: $crate::stores::sql::statement::Statement,)*
        }

        impl Queries {
            fn new(table: &str) -> Queries {
                Queries {
                    all: $crate::stores::sql::statement::Statements { $($name: statement!($folder, table, $name),)+ },
                    $($own: statement!($folder, table, $own),)*
                }
            }
        }
    };
}

/// The parameters that the head of a statement names: `$1 name`, `?1 name` or `:name`.
fn names(text: &'static str) -> Vec<&'static str> {
    let is_number =
        |word: &str| word.strip_prefix(['$', '?']).is_some_and(|number| number.parse::<u8>().is_ok());
    let mut words = text.lines().take_while(|line| line.starts_with("--")).flat_map(str::split_whitespace);
    let mut names = Vec::new();
    while let Some(word) = words.next() {
        let name = if is_number(word) { words.next() } else { word.strip_prefix(':') };
        names.extend(name.map(|name| name.trim_end_matches([',', ':'])));
    }
    names
}

#[derive(Debug, Clone)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Text(String),
    Bytes(Vec<u8>),
}

macro_rules! value_from {
    ($($from:ty => $value:expr),+ $(,)?) => {
        $(impl From<$from> for Value {
            fn from(value: $from) -> Value {
                let make: fn($from) -> Value = $value;
                make(value)
            }
        })+
    };
}

value_from!(
    bool => Value::Bool,
    i64 => Value::Int,
    u32 => |value| Value::Int(value.into()),
    Duration => |value| Value::Int(i64::try_from(value.as_millis()).unwrap_or(i64::MAX)),
    String => Value::Text,
    &str => |value| Value::Text(value.to_owned()),
    &[u8] => |value| Value::Bytes(value.to_owned()),
    &LockName => |value| Value::Bytes(value.key().as_bytes().to_owned()),
    Option<String> => |value| value.map_or(Value::Null, Value::Text),
);

/// Parameters by name. Times are in milliseconds.
pub(super) struct Args(Vec<(&'static str, Value)>);

impl Args {
    pub(super) fn none() -> Args {
        Args(Vec::new())
    }

    pub(super) fn one(name: &'static str, value: impl Into<Value>) -> Args {
        Args::none().and(name, value)
    }

    pub(super) fn of(claim: &Claim) -> Args {
        Args::one("name", &*claim.name)
            .and("token", claim.kind.is_token())
            .and("owner", claim.owner.to_string())
            .and("lease_ms", claim.lease)
    }

    pub(super) fn and(mut self, name: &'static str, value: impl Into<Value>) -> Args {
        self.set(name, value);
        self
    }

    pub(super) fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        self.0.push((name, value.into()));
    }

    /// The last value given for the name. A caller must give each parameter in the statement's head: a
    /// missing one is NULL, with which no condition is true.
    pub(super) fn get(&self, name: &str) -> &Value {
        let found = self.0.iter().rev().find(|(known, _)| *known == name);
        debug_assert!(found.is_some(), "no argument {name}");
        found.map_or(&Value::Null, |(_, value)| value)
    }
}

#[derive(Debug)]
pub(super) struct Record(pub(super) Vec<Value>);

impl Record {
    pub(super) fn value(&self, at: usize) -> &Value {
        self.0.get(at).unwrap_or(&Value::Null)
    }

    pub(super) fn is_null(&self, at: usize) -> bool {
        matches!(self.value(at), Value::Null)
    }

    pub(super) fn maybe<T>(&self, at: usize, read: fn(&Record, usize) -> Answer<T>) -> Answer<Option<T>> {
        if self.is_null(at) { Ok(None) } else { read(self, at).map(Some) }
    }

    pub(super) fn int(&self, at: usize) -> Answer<i64> {
        match self.value(at) {
            Value::Int(value) => Some(*value),
            Value::Bool(value) => Some((*value).into()),
            // MySQL returns numbers as text if the statement was sent as text.
            Value::Bytes(digits) => std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()),
            Value::Null | Value::Text(_) => None,
        }
        .ok_or_else(unexpected)
    }

    pub(super) fn flag(&self, at: usize) -> Answer<bool> {
        self.int(at).map(|value| value != 0)
    }

    pub(super) fn text(&self, at: usize) -> Answer<String> {
        match self.value(at) {
            Value::Text(text) => Ok(text.clone()),
            Value::Bytes(bytes) => String::from_utf8(bytes.clone()).map_err(|_other_bytes| unexpected()),
            Value::Null | Value::Bool(_) | Value::Int(_) => Err(unexpected()),
        }
    }

    pub(super) fn bytes(&self, at: usize) -> Answer<Vec<u8>> {
        if let Value::Bytes(bytes) = self.value(at) { Ok(bytes.clone()) } else { Err(unexpected()) }
    }
}

#[cfg(feature = "postgres")]
pub(super) fn first(records: Vec<Record>) -> Answer<Record> {
    records.into_iter().next().ok_or_else(unexpected)
}

fn unexpected() -> Failure {
    Failure::Refused(Error::new(ErrorKind::Protocol, "read", "the row is not the one expected"))
}
