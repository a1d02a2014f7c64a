//! The trait of a store that can list locks, and has a directory of clients: an *entry* for each, which is a
//! text about its process, holds and waits.

use std::sync::Arc;
use std::time::Duration;

use crate::ident::{ClientId, LockName};
use crate::inspect::Inspection;
use crate::seam::failure::Answer;
use crate::time::Moment;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Posted {
    pub(crate) text: String,
    pub(crate) remaining: Duration,
}

/// A client's entry, to be written. What a read finds is a [`Posted`].
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) client: ClientId,
    pub(crate) text: &'a str,
    pub(crate) lease: Duration,
    /// Whether to wait for the answer. Otherwise a failure may be returned by the next write. Few writes are
    /// awaited, because the thread that renews holds sends them.
    pub(crate) is_awaited: bool,
}

/// The directory of clients, and the list of locks. No lock depends on them, so here an unknown outcome is a
/// failure like any other.
pub(crate) trait Directory: Send + Sync {
    fn write(&self, entry: Entry<'_>, deadline: Moment) -> Answer<()>;

    /// Whether entries expire in this store.
    fn ends_entries(&self) -> bool {
        true
    }

    fn remove(&self, client: ClientId, deadline: Moment) -> Answer<()>;

    /// Reads the entries of `clients`, in this order; `None` for a client without an entry.
    fn read(&self, clients: &[ClientId], deadline: Moment) -> Answer<Page<Option<Posted>>>;

    fn clients(&self, from: &Place, deadline: Moment) -> Answer<Page<(ClientId, Posted)>>;

    fn locks(&self, wanted: &Wanted, from: &Place, deadline: Moment) -> Answer<Page<Inspection>>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The prefix that the client adds to the names of its locks.
    pub(crate) prefix: String,
    /// A pattern in Redis's syntax for the rest of the key.
    pub(crate) pattern: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// The servers still to be listed, the current one first; `None`: the list has not begun.
    pub(crate) servers: Option<Vec<String>>,
    /// The server's cursor, from which its list continues; empty: at the beginning.
    pub(crate) cursor: String,
}

#[derive(Debug)]
pub(crate) struct Page<T> {
    pub(crate) found: Vec<T>,
    pub(crate) next: Option<Place>,
    pub(crate) requests: u64,
    /// How many keys or rows the store looked at.
    pub(crate) examined: u64,
}

impl<T> Page<T> {
    /// `cursor`: where the next page begins; `None`: this is the last page.
    pub(crate) fn of(found: Vec<T>, cursor: Option<String>, (requests, examined): (usize, usize)) -> Page<T> {
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let next = cursor.map(|cursor| Place { servers: None, cursor });
        Page { found, next, requests: number(requests), examined: number(examined) }
    }
}

/// Reads one page of a list that covers several servers, one server after the other. `all` returns the
/// servers; `ask` reads a page from one server, at the given place in that server's list.
pub(crate) fn page_by_server<T>(
    from: &Place,
    all: impl FnOnce() -> Vec<String>,
    ask: impl FnOnce(&str, &Place) -> Answer<Page<T>>,
) -> Answer<Page<T>> {
    let servers = from.servers.clone().unwrap_or_else(all);
    let here = Place { servers: None, cursor: from.cursor.clone() };
    let mut page = ask(servers.first().map_or("", String::as_str), &here)?;
    let cursor = page.next.take().map_or_else(String::new, |next| next.cursor);
    let servers: Vec<String> = servers.into_iter().skip(usize::from(cursor.is_empty())).collect();
    page.next = (!servers.is_empty()).then_some(Place { servers: Some(servers), cursor });
    Ok(page)
}

pub(crate) fn read_each(
    clients: &[ClientId],
    read: impl Fn(ClientId) -> Answer<Page<Option<Posted>>>,
) -> Answer<Page<Option<Posted>>> {
    let mut page = Page { found: Vec::new(), next: None, requests: 0, examined: 0 };
    for client in clients {
        page.requests += 1;
        match read(*client) {
            Ok(one) => page.found.extend(one.found),
            // A failed read hides only this client's entry: another client's may be on another server.
            Err(_) => page.found.push(None),
        }
    }
    Ok(page)
}

impl Wanted {
    /// The pattern for whole keys. Special characters of the prefix are escaped.
    pub(crate) fn whole(&self) -> String {
        let mut whole = String::with_capacity(self.prefix.len() + self.pattern.len());
        for character in self.prefix.chars() {
            if matches!(character, '*' | '?' | '[' | ']' | '\\' | '^') {
                whole.push('\\');
            }
            whole.push(character);
        }
        whole + &self.pattern
    }

    /// The lock with this key, if its name matches. For stores that cannot match patterns themselves.
    pub(crate) fn lock(&self, key: String) -> Option<LockName> {
        let name = key.strip_prefix(&*self.prefix)?;
        let name = matches(self.pattern.as_bytes(), name.as_bytes()).then(|| Arc::from(name))?;
        LockName::new(&name, key).ok()
    }
}

/// Whether `text` matches `pattern`, by Redis's rules. Only the last star is retried, so that the time is at
/// most proportional to the product of both lengths.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut place) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    loop {
        let rest = pattern.get(at..).unwrap_or_default();
        if rest.first() == Some(&b'*') {
            at += 1;
            star = Some((at, place));
            continue;
        }
        let Some(byte) = text.get(place) else {
            return rest.is_empty();
        };
        match element_length(rest, *byte) {
            Some(length) => {
                at += length;
                place += 1;
            }
            None => {
                let Some((after, from)) = star else { return false };
                (at, place) = (after, from + 1);
                star = Some((after, from + 1));
            }
        }
    }
}

/// The length of the pattern's first element if it matches `byte`.
fn element_length(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [b'[', set @ ..] => {
            let is_not = set.first() == Some(&b'^');
            let mut at = usize::from(is_not);
            let mut is_in = false;
            loop {
                match set.get(at..).unwrap_or_default() {
                    // As in Redis, a set without `]` extends to the end of the pattern.
                    [] => break,
                    [b']', ..] => {
                        at += 1;
                        break;
                    }
                    [b'\\', escaped, ..] => {
                        is_in |= *escaped == byte;
                        at += 2;
                    }
                    [first, b'-', last, ..] => {
                        is_in |= (*first.min(last)..=*first.max(last)).contains(&byte);
                        at += 3;
                    }
                    [single, ..] => {
                        is_in |= *single == byte;
                        at += 1;
                    }
                }
            }
            (is_in != is_not).then_some(1 + at)
        }
        [plain, ..] => (*plain == byte).then_some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_redis() {
        let is_match = |pattern: &str, text: &str| matches(pattern.as_bytes(), text.as_bytes());
        for (pattern, text) in [
            ("*", ""),
            ("*", "anything"),
            ("stock:*", "stock:"),
            ("stock:*:eu", "stock:1:us:eu"),
            ("h?llo", "hello"),
            ("h[ae]llo", "hallo"),
            ("h[^e]llo", "hallo"),
            ("h[a-c]llo", "hbllo"),
            ("h\\*llo", "h*llo"),
            ("a[\\]]b", "a]b"),
            ("**a**", "bab"),
        ] {
            assert!(is_match(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("", "a"),
            ("stock", "stocks"),
            ("h?llo", "hllo"),
            ("h[ae]llo", "hillo"),
            ("h[^e]llo", "hello"),
            ("h\\*llo", "hello"),
            ("*a", "ab"),
        ] {
            assert!(!is_match(pattern, text), "{pattern} {text}");
        }
        // This would take for ever if each star were retried.
        assert!(!is_match(&("a*".repeat(50) + "b"), &"a".repeat(10_000)));
    }

    #[test]
    fn pattern_characters_in_a_prefix_are_literal() {
        let wanted = Wanted { prefix: "a*[b]\\:".to_owned(), pattern: "x*".to_owned() };
        assert_eq!(wanted.whole(), "a\\*\\[b\\]\\\\:x*");
        let given = |key: &str| wanted.lock(key.to_owned()).map(|name| name.given().to_owned());
        assert_eq!((given("a*[b]\\:xy").as_deref(), given("axb:xy")), (Some("xy"), None));
        assert!(matches(wanted.whole().as_bytes(), b"a*[b]\\:xyz"));
    }
}

#[cfg(all(test, leasehold_fuzz))]
mod fuzz {
    use super::*;
    use crate::fuzz::{each, nearly_text};

    #[test]
    fn matching_any_pattern_terminates() {
        let patterns = nearly_text(&[b"stock:*:[a-z]?", b"a*a*a*a*a*a*b", b"[^", b"\\", b"[\\]]*"]);
        each(
            (patterns, nearly_text(&[b"stock:1:eu", b"aaaaaaaaaaaaaaaaaaaaaaaa"])),
            weight,
            |(pattern, text)| {
                let wanted = Wanted { prefix: "p*[".to_owned(), pattern: pattern.clone() };
                assert!(matches(b"*", text.as_bytes()));
                drop((wanted.lock(text.clone()), wanted.whole()));
            },
        );
    }

    fn weight(both: &(String, String)) -> usize {
        both.0.len() + both.1.len()
    }
}
