//! Messages on standard error, for people or as JSON lines, and exit codes.

use std::io::Write;
use std::process::ExitCode;

use leasehold::crossbeam_channel::{Receiver, bounded};
use leasehold::program::HOST_NAME;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::args::{Common, Format};
use crate::clock::{stamp, wall};

pub(crate) const SIGINT: i32 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Success,
    /// `doctor` found a fault, or with `--strict` a warning; or `show -q` found a lock that nobody holds.
    Found,
    Command(u8),
    Signal(i32),
    Busy(u8),
    Lost(u8),
    Survivor,
    MaxHold,
    ReleaseUnknown,
    Unavailable,
    NoPermission,
    Usage,
    NotALock,
    Internal,
    CannotRun,
    NotFound,
}

impl Exit {
    pub(crate) fn code(self) -> u8 {
        match self {
            Exit::Success => 0,
            Exit::Found => 1,
            Exit::Command(code) | Exit::Busy(code) | Exit::Lost(code) => code,
            Exit::Signal(signal) => u8::try_from(128 + signal).unwrap_or(255),
            Exit::MaxHold => 124,
            Exit::ReleaseUnknown => 80,
            Exit::Survivor => 81,
            Exit::Unavailable => 69,
            Exit::NoPermission => 77,
            Exit::Usage => 64,
            Exit::NotALock => 65,
            Exit::Internal => 70,
            Exit::CannotRun => 126,
            Exit::NotFound => 127,
        }
    }
}

/// How a subcommand ended. `Err`: it ended early, and the reason was printed already.
pub(crate) type Ended = Result<Exit, Exit>;

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Say {
    format: Format,
    level: Level,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Level {
    Quiet,
    Normal,
    Verbose,
}

impl Say {
    pub(crate) fn new(common: &Common) -> Say {
        let level = match (common.quiet, common.verbose) {
            (true, _) => Level::Quiet,
            (_, true) => Level::Verbose,
            _ => Level::Normal,
        };
        Say { format: common.format, level }
    }

    pub(crate) fn json() -> Say {
        Say { format: Format::Json, level: Level::Normal }
    }

    pub(crate) fn plain() -> Say {
        Say { format: Format::Text, level: Level::Normal }
    }

    /// A copy that prints as little as with `-q`. `top` uses it, since messages would spoil its screen.
    pub(crate) fn silent(self) -> Say {
        Say { level: Level::Quiet, ..self }
    }

    pub(crate) fn is_quiet(self) -> bool {
        self.level == Level::Quiet
    }

    pub(crate) fn is_verbose(self) -> bool {
        self.level == Level::Verbose
    }

    pub(crate) fn detail(self, event: &str, words: &str, fields: &Value) {
        self.write(Level::Verbose, event, words, fields);
    }

    pub(crate) fn notice(self, event: &str, words: &str, fields: &Value) {
        self.write(Level::Normal, event, words, fields);
    }

    /// Prints an error, even with `-q`, since an exit code does not tell everything. Returns `exit`.
    pub(crate) fn error(self, words: &str, exit: Exit) -> Exit {
        self.failure(words, exit, &format!("{exit:?}"))
    }

    pub(crate) fn failure(self, words: &str, exit: Exit, kind: &str) -> Exit {
        let fields = json!({"error_kind": snake(kind), "exit_code": exit.code()});
        self.write(Level::Quiet, "error", words, &fields);
        exit
    }

    pub(crate) fn on_thread<T: Send + 'static>(
        self,
        name: &str,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Receiver<T>, Exit> {
        let (done, is_done) = bounded(1);
        let thread = std::thread::Builder::new().name(name.to_owned());
        thread.spawn(move || drop(done.send(act()))).map_err(|error| self.no_thread(&error))?;
        Ok(is_done)
    }

    pub(crate) fn no_thread(self, error: &std::io::Error) -> Exit {
        self.internal("a thread cannot be started", error)
    }

    pub(crate) fn internal(self, what: &str, error: &std::io::Error) -> Exit {
        self.error(&format!("{what}: {error}"), Exit::Internal)
    }

    fn write(self, least: Level, event: &str, words: &str, fields: &Value) {
        if self.level < least {
            return;
        }
        let words = &without_numbers(words);
        let line = match self.format {
            Format::Text => format!("leasehold: {}\n", plain(words)),
            Format::Json => {
                let mut object = line(event, words, fields);
                for (field, own) in [("pid", json!(std::process::id())), ("host", json!(HOST_NAME()))] {
                    object.entry(field).and_modify(|value| {
                        if value.is_null() {
                            *value = own.clone()
                        }
                    });
                }
                format!("{}\n", json_text(&Value::Object(object)))
            }
        };
        // One write, so that lines of several processes do not mix. If it fails, nothing can report that.
        drop(std::io::stderr().write_all(line.as_bytes()));
    }
}

const FIELDS: [&str; 7] = ["name", "kind", "owner", "pid", "host", "exit_code", "error_kind"];

pub(crate) fn line(event: &str, words: &str, fields: &Value) -> Map<String, Value> {
    let mut object = Map::new();
    object.extend(FIELDS.map(|field| (field.to_owned(), Value::Null)));
    object.insert("time".to_owned(), json!(stamp(wall())));
    object.insert("event".to_owned(), json!(event));
    object.insert("message".to_owned(), json!(words));
    object.extend(fields.as_object().cloned().unwrap_or_default());
    object
}

pub(crate) fn without_numbers(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let mut words = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        words += part.split_once(')').map_or(part, |(_number, behind)| behind);
    }
    words
}

fn snake(variant: &str) -> String {
    let mut name = String::new();
    for char in variant.split('(').next().unwrap_or_default().chars() {
        if char.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.extend(char.to_lowercase());
    }
    name
}

pub(crate) fn print_line(line: &str) {
    drop(writeln!(std::io::stdout(), "{}", line.trim_end()));
}

/// Makes other programs' text, such as a lock's name, printable: one line, without control characters.
pub(crate) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for char in text.chars() {
        if is_acted_upon(char) {
            plain.extend(char.escape_default());
        } else {
            plain.push(char);
        }
    }
    plain
}

/// A JSON value as printable text. Control characters occur only in strings, where they can be escaped.
pub(crate) fn json_text(value: &Value) -> String {
    let mut text = String::new();
    for char in value.to_string().chars() {
        if is_acted_upon(char) {
            text += &format!("\\u{:04x}", u32::from(char));
        } else {
            text.push(char);
        }
    }
    text
}

fn is_acted_upon(char: char) -> bool {
    char.is_control()
        || matches!(char,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

pub(crate) fn folded(text: &str, width: u16) -> Vec<String> {
    let width = usize::from(width.max(1));
    let mut lines = Vec::new();
    for mut rest in text.lines() {
        while let Some((end, _)) = rest.char_indices().nth(width) {
            let end = rest[..end].rfind(' ').map_or(end, |space| space + 1);
            let (line, behind) = rest.split_at(end);
            lines.push(line.to_owned());
            rest = behind;
        }
        lines.push(rest.to_owned());
    }
    lines
}

const NARROW: u16 = 80;

pub(crate) fn fitted(text: &str) -> String {
    narrow_terminal().map_or_else(|| text.to_owned(), |width| fitted_to(text, width))
}

pub(crate) fn narrow_terminal() -> Option<u16> {
    crate::system::terminal_width().filter(|width| (1..NARROW).contains(width))
}

fn fitted_to(text: &str, width: u16) -> String {
    let mut fitted = String::with_capacity(text.len() * 2);
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len() + 2;
        let lines =
            folded(line.trim_start(), width.saturating_sub(u16::try_from(indent).unwrap_or(0)).max(8));
        for (at, part) in lines.iter().enumerate() {
            let indent = if at == 0 { indent - 2 } else { indent };
            fitted += &format!("{:indent$}{}\n", "", part.trim_end());
        }
    }
    fitted
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\n\r\t\u{1b}[2J\u{7f}\u{9b}1m\u{202e}b\u{2028}\u{2066}é漢";

    #[test]
    fn control_characters_in_text_of_other_programs_are_escaped() {
        let text = plain(HOSTILE);
        assert!(!text.chars().any(is_acted_upon), "{text:?}");
        assert!(text.starts_with("a\\n\\r\\t\\u{1b}[2J") && text.ends_with("é漢"), "{text}");
    }

    #[test]
    fn json_text_escapes_control_characters_without_changing_values() {
        let value = json!({HOSTILE: [HOSTILE, 1, null]});
        let text = json_text(&value);
        assert!(!text.chars().any(is_acted_upon), "{text:?}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }

    #[test]
    fn long_text_is_wrapped_at_spaces_or_within_long_words() {
        assert_eq!(folded("held by\n one, in äöü\n", 7), ["held by", " one, ", "in äöü"]);
        assert_eq!(folded("abcdefg", 3), ["abc", "def", "g"]);
        assert_eq!(folded("ab", 0), ["a", "b"]);
    }

    #[test]
    fn a_narrow_terminal_breaks_lines_between_words() {
        let text = "import: a lock, held, lease of 24.1 s\n  held by me, on db-3 in process 4711, program leasehold\n";
        let fitted = fitted_to(text, 24);
        assert!(fitted.lines().all(|line| line.chars().count() <= 24), "{fitted}");
        assert_eq!(
            fitted,
            "import: a lock, held,\n  lease of 24.1 s\n  held by me, on db-3\n    in process 4711,\n    program leasehold\n"
        );
    }
}
