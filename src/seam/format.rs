//! The number of the format in which this version keeps locks.
//!
//! A client reads the number from the store when it connects. If there is none, the client writes its own; if
//! it has no right to do so, it works without the number. If there is another number, the client refuses to
//! work, because clients of two formats would not exclude each other.

use crate::error::{Error, ErrorKind};
use crate::seam::failure::{Answer, Failure};

/// The number grows with each change after which old and new clients would not exclude each other. The
/// statements that create tables contain the number too.
const FORMAT: u32 = 1;

/// The text before the number. A database keeps both in a table's comment, which may contain other text.
const WORDS: &str = "leasehold format ";

pub(crate) fn format_text() -> String {
    format!("{WORDS}{FORMAT}")
}

/// Refuses another format number; accepts a text without one. `place`: where the text was found.
pub(crate) fn check_format(found: &str, place: &str) -> Answer<()> {
    let number = found.split_once(WORDS).map(|(_, rest)| rest.split(|c: char| !c.is_ascii_digit()).next());
    let Some(number) = number.flatten().filter(|number| !number.is_empty() && *number != FORMAT.to_string())
    else {
        return Ok(());
    };
    let words = format!(
        "the locks in this store have format {number}, and this version of leasehold has format {FORMAT}: \
            clients of the two formats would not exclude each other; use one version, or another store for \
            these locks; when no client of format {number} runs any more, remove {place}, and this version can use the store"
    );
    Failure::refused(Error::new(ErrorKind::IncompatibleFormat, "connect", words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_data_of_another_leasehold_format_is_refused() {
        let ours = format_text();
        for found in ["", "the shop's locks", "leasehold format ", &ours, &format!("Ours. {ours}; ask Ada")] {
            assert!(check_format(found, "it").is_ok(), "{found}");
        }
        for found in ["leasehold format 0", "leasehold format 10", "Ours: leasehold format 2."] {
            let error = check_format(found, "the key k").unwrap_err().into_error();
            assert_eq!(error.kind(), ErrorKind::IncompatibleFormat, "{found}");
            assert!(error.to_string().contains("remove the key k"), "{error}");
        }
    }

    #[test]
    fn the_schema_of_each_database_states_the_format_number() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/stores/sql/query");
        for store in ["postgres", "mysql", "sqlite"] {
            let schema = std::fs::read_to_string(format!("{folder}/{store}/schema.sql")).unwrap();
            assert!(schema.contains(&format_text()), "{store}");
        }
    }
}
