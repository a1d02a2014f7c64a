//! Enough of JSON for the entries of the directory. What is read may be anybody's, so nothing in it is taken for granted.

/// A value. Of a number only the whole part of one that is not negative is kept.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    Number(u64),
    Text(String),
    List(Vec<Json>),
    /// In the order in which they came.
    Object(Vec<(String, Json)>),
}

/// Values are read to this depth.
const DEEPEST: u32 = 8;

impl Json {
    pub(super) fn read(text: &str) -> Option<Json> {
        let mut reader = Reader { rest: text };
        let value = reader.value(0)?;
        reader.skip_space();
        reader.rest.is_empty().then_some(value)
    }

    pub(super) fn get(&self, key: &str) -> Option<&Json> {
        match self {
            Json::Object(fields) => fields.iter().find(|(name, _)| name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    pub(super) fn number(&self) -> Option<u64> {
        if let Json::Number(number) = self { Some(*number) } else { None }
    }

    pub(super) fn text(&self) -> Option<&str> {
        if let Json::Text(text) = self { Some(text) } else { None }
    }

    pub(super) fn list(&self) -> &[Json] {
        if let Json::List(items) = self { items } else { &[] }
    }
}

/// Appends `text` as a JSON string.
pub(super) fn quote(text: &str, to: &mut String) {
    to.push('"');
    for character in text.chars() {
        match character {
            '"' => to.push_str("\\\""),
            '\\' => to.push_str("\\\\"),
            control if control.is_control() => to.push_str(&format!("\\u{:04x}", u32::from(control))),
            other => to.push(other),
        }
    }
    to.push('"');
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
    }

    fn take(&mut self, what: &str) -> Option<()> {
        self.skip_space();
        self.rest = self.rest.strip_prefix(what)?;
        Some(())
    }

    fn next(&mut self) -> Option<char> {
        let mut characters = self.rest.chars();
        let next = characters.next();
        self.rest = characters.as_str();
        next
    }

    fn value(&mut self, depth: u32) -> Option<Json> {
        if depth > DEEPEST {
            return None;
        }
        self.skip_space();
        match self.rest.chars().next()? {
            '"' => self.string().map(Json::Text),
            '[' => self.list(depth),
            '{' => self.object(depth),
            't' => self.take("true").map(|()| Json::Bool(true)),
            'f' => self.take("false").map(|()| Json::Bool(false)),
            'n' => self.take("null").map(|()| Json::Null),
            _ => self.number(),
        }
    }

    fn list(&mut self, depth: u32) -> Option<Json> {
        self.take("[")?;
        let mut items = Vec::new();
        if self.take("]").is_some() {
            return Some(Json::List(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            if self.take(",").is_none() {
                self.take("]")?;
                return Some(Json::List(items));
            }
        }
    }

    fn object(&mut self, depth: u32) -> Option<Json> {
        self.take("{")?;
        let mut fields = Vec::new();
        if self.take("}").is_some() {
            return Some(Json::Object(fields));
        }
        loop {
            self.skip_space();
            let name = self.string()?;
            self.take(":")?;
            fields.push((name, self.value(depth + 1)?));
            if self.take(",").is_none() {
                self.take("}")?;
                return Some(Json::Object(fields));
            }
        }
    }

    fn number(&mut self) -> Option<Json> {
        let is_part = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
        let end = self.rest.find(|c: char| !is_part(c)).unwrap_or(self.rest.len());
        let (number, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest;
        let whole = number.split('.').next().unwrap_or_default();
        whole.parse().ok().map(Json::Number)
    }

    fn string(&mut self) -> Option<String> {
        self.take("\"")?;
        let mut text = String::new();
        loop {
            match self.next()? {
                '"' => return Some(text),
                '\\' => match self.next()? {
                    'n' => text.push('\n'),
                    'r' => text.push('\r'),
                    't' => text.push('\t'),
                    'b' => text.push('\u{8}'),
                    'f' => text.push('\u{c}'),
                    'u' => text.push(self.escaped()?),
                    other @ ('"' | '\\' | '/') => text.push(other),
                    _ => return None,
                },
                other => text.push(other),
            }
        }
    }

    /// Four digits; a pair of them for a character beyond the first 65,536.
    fn escaped(&mut self) -> Option<char> {
        let first = self.four()?;
        if !(0xd800..0xdc00).contains(&first) {
            return char::from_u32(first);
        }
        self.rest = self.rest.strip_prefix("\\u")?;
        let second = self.four()?.checked_sub(0xdc00).filter(|low| *low < 0x400)?;
        char::from_u32(0x1_0000 + ((first - 0xd800) << 10) + second)
    }

    fn four(&mut self) -> Option<u32> {
        let (digits, rest) = self.rest.split_at_checked(4)?;
        self.rest = rest;
        u32::from_str_radix(digits, 16).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_quoted_is_read_again() {
        for text in ["", "plain", "\"\\/", "\n\r\t\0\u{1b}[31m", "ä漢🔒", "\u{7f}\u{9b}"] {
            let mut quoted = String::new();
            quote(text, &mut quoted);
            assert!(!quoted.chars().any(char::is_control), "{quoted:?}");
            assert_eq!(Json::read(&quoted), Some(Json::Text(text.to_owned())), "{quoted}");
        }
    }

    #[test]
    fn json_of_others_is_read() {
        let value =
            Json::read(r#" {"a":[1, 2.9, true,false , null],"b":{"c":"\ud83d\udd12 \u00e4"}} "#).unwrap();
        assert_eq!(value.get("a").unwrap().list().len(), 5);
        assert_eq!(value.get("a").unwrap().list()[1].number(), Some(2));
        assert_eq!(value.get("b").unwrap().get("c").unwrap().text(), Some("🔒 ä"));
    }

    #[test]
    fn what_is_no_json_is_nothing() {
        let deep = "[".repeat(100_000);
        for text in
            ["", "{", "[1,", "\"", "\"\\u12", "\"\\ud800\"", "{a:1}", "1 2", "-1", "nul", "\"\\x\"", &deep]
        {
            assert_eq!(Json::read(text), None, "{text}");
        }
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
        br#"{"host":"h","pid":7,"lease_ms":30000,"age_ms":1,"uses":[{"lock":"a","owner":3,"thread":"t","since_ms":1000,"waits":false}],"unlisted":2}"#,
        br#"{"host":"h\u001b[31m","boot":"b","program":"p","label":"l","version":"0","pid":4294967295,"start":18446744073709551615,"lease_ms":0,"uses":[]}"#,
        br#"[[[[[[[[[[1.5e300,null,true,-7,"\ud83d\ude00"]]]]]]]]]]"#,
    ];

    #[test]
    fn any_entry_of_anybody_is_read_or_left_out() {
        let id = ClientId::random();
        each(nearly_text(SEEDS), String::len, |text| {
            drop(Json::read(text));
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
    fn any_text_is_quoted_so_that_it_is_read_back() {
        each(
            nearly_text(&[b"a\"b\\c\n", b"\x7f\x1b[31m", b"\xc3\xbc\xf0\x9f\x94\x92"]),
            String::len,
            |text| {
                let mut quoted = String::new();
                quote(text, &mut quoted);
                assert_eq!(Json::read(&quoted), Some(Json::Text(text.clone())));
            },
        );
    }
}
