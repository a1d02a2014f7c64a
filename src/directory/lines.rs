//! The lines of an entry, `name=value` each. Any program may have written an entry, so none is trusted.

use std::fmt::Display;

/// A character as a backslash, its number in hexadecimal, and a semicolon.
fn escaped(character: char) -> String {
    format!("\\{:x};", u32::from(character))
}

pub(super) struct Lines(String);

impl Lines {
    pub(super) fn new() -> Lines {
        Lines(String::with_capacity(512))
    }

    /// Adds a line. In the value, escapes backslashes, control characters, and characters beyond ASCII: a
    /// database may be unable to store these.
    pub(super) fn text(&mut self, name: &str, value: &str) {
        self.0.push_str(name);
        self.0.push('=');
        for character in value.chars() {
            if character.is_ascii() && !character.is_control() && character != '\\' {
                self.0.push(character);
            } else {
                self.0.push_str(&escaped(character));
            }
        }
        self.0.push('\n');
    }

    /// Adds a line without escapes: the value has no control characters.
    pub(super) fn add(&mut self, name: &str, value: impl Display) {
        self.0.push_str(&format!("{name}={value}\n"));
    }

    pub(super) fn known(&mut self, name: &str, value: Option<impl Display>) {
        value.into_iter().for_each(|value| self.add(name, value));
    }

    pub(super) fn mark(&mut self, name: &str, is_so: bool) {
        self.known(name, is_so.then_some(true));
    }

    pub(super) fn into_text(self) -> String {
        self.0
    }
}

/// The lines of an entry, for reading. If several have the same name, the first counts.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(&'a str);

impl<'a> Fields<'a> {
    pub(super) fn of(entry: &'a str) -> Fields<'a> {
        Fields(entry)
    }

    /// Splits the text before each line called `name`; returns the text before the first of these lines, and
    /// the parts that begin with them.
    pub(super) fn parted(text: &'a str, name: &'a str) -> (Fields<'a>, impl Iterator<Item = Fields<'a>>) {
        let begins = move |at: &usize| {
            text.get(*at..).and_then(|rest| rest.strip_prefix(name)).is_some_and(|rest| rest.starts_with('='))
        };
        let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1));
        let mut starts = lines.filter(begins).peekable();
        let head = text.get(..starts.peek().copied().unwrap_or(text.len())).unwrap_or_default();
        let parts = std::iter::from_fn(move || {
            let start = starts.next()?;
            text.get(start..starts.peek().copied().unwrap_or(text.len())).map(Fields)
        });
        (Fields(head), parts)
    }

    fn raw(self, name: &str) -> Option<&'a str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    }

    /// The unescaped value of the line called `name`. `None` if there is no such line, or an escape is
    /// malformed.
    pub(super) fn text(self, name: &str) -> Option<String> {
        let mut parts = self.raw(name)?.split('\\');
        let mut text = parts.next()?.to_owned();
        for part in parts {
            let (digits, rest) = part.split_once(';')?;
            text.push(char::from_u32(u32::from_str_radix(digits, 16).ok()?)?);
            text.push_str(rest);
        }
        Some(text)
    }

    pub(super) fn number(self, name: &str) -> Option<u64> {
        self.raw(name)?.parse().ok()
    }

    pub(super) fn is(self, name: &str) -> bool {
        self.raw(name) == Some("true")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_in_a_directory_entry_is_read_back_unchanged() {
        for text in ["", "plain", "a=b", "\"\\/", "\n\r\t\0\u{1b}[31m", "ä漢🔒", "\u{7f}\u{9b}", "\\a;"] {
            let mut lines = Lines::new();
            lines.text("a", text);
            lines.add("b", 7);
            let written = lines.into_text();
            assert_eq!(written.chars().filter(|character| character.is_control()).count(), 2, "{written:?}");
            assert_eq!(Fields::of(&written).text("a").as_deref(), Some(text), "{written}");
            assert_eq!(Fields::of(&written).number("b"), Some(7));
            let all: String = text.chars().map(escaped).collect();
            assert_eq!(Fields::of(&format!("a={all}")).text("a").as_deref(), Some(text), "{all}");
        }
    }

    #[test]
    fn unknown_and_malformed_lines_of_a_directory_entry_are_ignored() {
        let entry = Fields::of("new=1\n\nab=2\na=1\na=2\nb=\\a\nc=-1\nd=\\d800;\nno line");
        assert_eq!((entry.number("a"), entry.number("no line")), (Some(1), None));
        assert_eq!((entry.text("b"), entry.number("c"), entry.text("d")), (None, None, None));
    }

    #[test]
    fn directory_entry_splits_into_a_head_and_one_part_per_lock() {
        let (head, parts) = Fields::parted("host=h\nlocks=3\nlock=a\nowner=1\nlock=b\n", "lock");
        assert_eq!((head.text("host"), head.number("owner")), (Some("h".to_owned()), None));
        let parts: Vec<_> = parts.map(|part| (part.text("lock").unwrap(), part.number("owner"))).collect();
        assert_eq!(parts, [("a".to_owned(), Some(1)), ("b".to_owned(), None)]);
    }
}

#[cfg(all(test, leasehold_fuzz))]
mod fuzz {
    use std::time::Duration;

    use super::*;
    use crate::directory::ClientInfo;
    use crate::fuzz::{each, nearly_text};
    use crate::ident::ClientId;

    const SEEDS: &[&[u8]] = &[
        b"host=h\npid=7\nlease_ms=30000\nage_ms=1\nunlisted=2\nlock=a\nowner=3\nthread=t\nsince_ms=1000\nwaits=false\n",
        b"host=h\\1b;[31m\nboot=b\nprogram=p\nlabel=l\nversion=0\npid=4294967295\nstart=18446744073709551615\nlease_ms=0\n",
        b"lock=a\nlock=\nlock\nhost=\\\n\n=\n",
    ];

    #[test]
    fn any_directory_entry_text_is_parsed_or_ignored() {
        let id = ClientId::random();
        each(nearly_text(SEEDS), String::len, |text| {
            for left in [Duration::ZERO, Duration::from_secs(20), Duration::MAX] {
                if let Some(info) = ClientInfo::read(id, text, left) {
                    let again =
                        ClientInfo::read(id, &info.written(Duration::from_secs(30)), Duration::from_secs(30));
                    assert_eq!(again.map(|again| (again.host, again.pid)), Some((info.host, info.pid)));
                }
            }
        });
    }

    #[test]
    fn any_text_is_read_back_from_a_directory_entry() {
        each(
            nearly_text(&[b"a\"b\\c\n", b"\x7f\x1b[31m", b"\xc3\xbc\xf0\x9f\x94\x92"]),
            String::len,
            |text| {
                let mut lines = Lines::new();
                lines.text("a", text);
                assert_eq!(Fields::of(&lines.into_text()).text("a"), Some(text.clone()));
            },
        );
    }
}
