//! Fenced writes: the resource refuses a writer whose token is older than one it has seen.
//!
//! A lease lock cannot keep a holder that was stopped for longer than its lease from writing afterwards. The
//! resource can, by keeping the highest token beside the data and comparing. This module does so for three
//! kinds of resource. All writers of a resource must use it, with tokens of one lock.

mod file;

use std::io;
use std::path::Path;

use crate::error::{Error, ErrorKind, Result};
use crate::ident::FencingToken;

/// A Redis script that sets a key unless a newer token set it: `EVAL script 2 key token-key token value`.
///
/// | | |
/// |---|---|
/// | `KEYS[1]` | the data, a string |
/// | `KEYS[2]` | the highest token seen; in a cluster in the same slot, as `{stock}:fence` beside `{stock}`
/// |
/// | `ARGV[1]` | the writer's token: [`FencingToken::get`] in decimal |
/// | `ARGV[2]` | the value |
///
/// Returns 1 if it wrote, 0 if a newer token wrote before. Writes of other types must likewise compare and
/// write in one script.
pub const REDIS_SET: &str = include_str!("fenced_set.lua");

/// The condition for the `WHERE` of an `UPDATE`, which must also set the column; zero updated rows mean
/// refused.
///
/// `column` keeps the highest token seen (a 64-bit integer; may be null at first), `parameter` stands for
/// the writer's token: `$2`, `?`, `:fence`.
///
/// Neither can inject SQL. A column is an identifier, plain or quoted (`fence`, `stock.fence`, `"Fence"`); a
/// parameter is `?`, or a number or name after `$`, `?`, `:` or `@`, or a decimal token, each with or
/// without a type after `::`. Any other text makes a condition that is never true: nothing is written.
///
/// # Examples
/// ```
/// use leasehold::fencing;
///
/// let statement = format!(
///     "UPDATE stock SET amount = $1, fence = $2 WHERE item = $3 AND {}",
///     fencing::sql_condition("fence", "$2"),
/// );
/// assert!(statement.ends_with("AND (fence IS NULL OR fence <= $2)"));
/// ```
#[must_use]
pub fn sql_condition(column: &str, parameter: &str) -> String {
    if !is_column(column) || !is_parameter(parameter) {
        return "(1 = 0)".to_owned();
    }
    format!("({column} IS NULL OR {column} <= {parameter})")
}

fn is_column(text: &str) -> bool {
    let is_quoted = |part: &str| {
        [('"', '"'), ('`', '`'), ('[', ']')].into_iter().any(|(first, last)| {
            let within = part.strip_prefix(first).and_then(|rest| rest.strip_suffix(last));
            let is_ending = |c: char| c == first || c == last || c == '.' || c == '\\' || c.is_control();
            within.is_some_and(|name| !name.is_empty() && !name.contains(is_ending))
        })
    };
    text.split('.').all(|part| is_identifier(part) || is_quoted(part))
}

fn is_parameter(text: &str) -> bool {
    let (parameter, cast) = text.split_once("::").map_or((text, None), |(text, cast)| (text, Some(cast)));
    let is_word = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || c == '_');
    let is_named = parameter.strip_prefix(['$', '?', ':', '@']).is_some_and(is_word);
    let is_token = !parameter.is_empty() && parameter.bytes().all(|byte| byte.is_ascii_digit());
    (parameter == "?" || is_named || is_token) && cast.is_none_or(is_identifier)
}

fn is_identifier(text: &str) -> bool {
    let starts_well = text.starts_with(|c: char| c.is_alphabetic() || c == '_');
    starts_well && text.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '$')
}

/// Replaces a file's content unless a newer token wrote it; `false`: refused, nothing changed.
///
/// A second file, `<name>.fence`, keeps the highest token seen and is locked during the write. A third, with
/// a random name, takes the content and is renamed, so readers see the old content or the new, never a part.
/// A process killed in between leaves the third, `.leasehold-<32 digits>`, which may be deleted.
///
/// The new file has the mode, owner and group of the old one, as does a new register. If this user may not
/// set them, nothing is written. Not kept: set-user-id and set-group-id bits, access control lists, other
/// attributes, and hard links.
///
/// Other users may write to the folder. A path that ends in a link leads to the link's target, with the
/// register beside that; another user's link is refused, except root's. Links at the names of the register
/// and the third file are never followed. A register must belong to this user, root or the file's owner.
///
/// Windows does not say whose a link or file is: a path that ends in a link is refused, as are a read-only
/// file and a stream of a file. The new file gets the folder's permissions for new files. While another
/// process reads the file without sharing its deletion, it cannot be replaced.
///
/// # Blocking
/// While another process writes the same file; and for the disk: token and content are synced.
///
/// # Errors
/// Of kind [`Resource`](ErrorKind::Resource), with the cause: a file could not be opened, locked, read or
/// written. The content is the old or the new, and no older token will be accepted.
///
/// # Examples
/// ```
/// use leasehold::{LockClient, fencing};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let report = folder.path().join("report.txt");
/// let lock = LockClient::in_memory().get_fenced_lock("report");
/// let old = lock.lock_and_get_token()?;
/// lock.unlock()?;
/// let new = lock.lock_and_get_token()?;
/// assert!(fencing::write_file(&report, new, b"new")?);
/// assert!(!fencing::write_file(&report, old, b"old")?);
/// assert_eq!(std::fs::read(&report).unwrap(), b"new");
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn write_file(path: &Path, fence: FencingToken, content: &[u8]) -> Result<bool> {
    let failed = |error: io::Error| {
        Error::new(ErrorKind::Resource, "write_file", "a fenced file could not be written").with_source(error)
    };
    file::write(path, fence.get(), content).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_takes_only_a_column_and_a_parameter() {
        for column in [
            "fence",
            "stock.fence",
            "shop.stock.fence",
            "_f1",
            "\"Fence no\"",
            "`fence`",
            "s.[fence]",
            "größe",
        ] {
            for parameter in ["?", "?3", "$2", ":fence", "@P1", "$2::bigint", "42"] {
                let condition = sql_condition(column, parameter);
                assert_eq!(condition, format!("({column} IS NULL OR {column} <= {parameter})"));
            }
        }
        let never = "(1 = 0)";
        for column in [
            "",
            ".",
            "fence.",
            "1fence",
            "fence OR 1=1",
            "fence;DROP TABLE stock",
            "fence--",
            "fence/*",
            "\"a\"b\"",
            "\"",
            "\"\"",
            "'fence'",
            "f(x)",
            "fence\n",
            "\"a\" OR \"b\"",
            "[a]]",
            "`a``b`",
            "\"a\\\"",
        ] {
            assert_eq!(sql_condition(column, "?"), never, "{column:?}");
        }
        for parameter in [
            "",
            "$",
            ":",
            "? OR 1=1",
            "$1)",
            "0 OR 1=1",
            "-1",
            "'1'",
            "fence",
            "$1::",
            "$1::int4 OR 1",
            "??",
            "1;--",
        ] {
            assert_eq!(sql_condition("fence", parameter), never, "{parameter:?}");
        }
    }
}
