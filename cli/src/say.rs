//! Messages on standard error, for people or as a JSON object a line.

use std::io::Write;

use serde_json::{Map, Value, json};

use crate::args::{Common, Format};

/// How much is said, and in what form.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Say {
    format: Format,
    level: Level,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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

    /// As with `-q`: while a terminal is drawn on, nothing else is to be written to it.
    pub(crate) fn silent(self) -> Say {
        Say { level: Level::Quiet, ..self }
    }

    pub(crate) fn is_quiet(self) -> bool {
        self.level == Level::Quiet
    }

    /// What happens, for those who asked to hear it.
    pub(crate) fn detail(self, event: &str, words: &str, fields: &Value) {
        self.write(Level::Verbose, event, words, fields);
    }

    /// What the caller should know.
    pub(crate) fn notice(self, event: &str, words: &str, fields: &Value) {
        self.write(Level::Normal, event, words, fields);
    }

    /// Why the program does not do what it was asked. Also said with `-q`: no exit code says it all.
    pub(crate) fn error(self, words: &str) {
        self.write(Level::Quiet, "error", words, &json!({}));
    }

    fn write(self, least: Level, event: &str, words: &str, fields: &Value) {
        if self.level < least {
            return;
        }
        let line = match self.format {
            Format::Text => format!("leasehold: {words}\n"),
            Format::Json => {
                let mut object = Map::new();
                object.insert("event".to_owned(), json!(event));
                object.insert("message".to_owned(), json!(words));
                object.extend(fields.as_object().cloned().unwrap_or_default());
                format!("{}\n", Value::Object(object))
            }
        };
        // One write: lines of several processes are not mixed. Nobody may be reading.
        drop(std::io::stderr().write_all(line.as_bytes()));
    }
}

/// What others wrote, such as a lock's name, without what a terminal would act on.
pub(crate) fn plain(text: &str) -> String {
    text.chars()
        .flat_map(|char| {
            if char.is_control() && char != '\n' { char.escape_default().collect() } else { vec![char] }
        })
        .collect()
}
