//! The findings of `doctor`; each is printed at once, as a line.

use serde_json::{Map, Value, json};

use crate::args::{Common, Format};
use crate::say::{Say, json_text, plain, print_line};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Fine,
    /// Locks work, but something is wrong.
    Warning,
    /// Locks do not work, or may be granted twice.
    Fault,
    NotChecked,
}

impl Verdict {
    fn text(self) -> &'static str {
        match self {
            Verdict::Fine => "ok",
            Verdict::Warning => "warning",
            Verdict::Fault => "fault",
            Verdict::NotChecked => "not checked",
        }
    }
}

/// The outcome of one check. The words must contain neither a URL nor a password.
pub(super) struct Finding {
    check: &'static str,
    pub(super) verdict: Verdict,
    words: String,
    advice: &'static str,
    figures: Map<String, Value>,
}

impl Finding {
    fn new(check: &'static str, verdict: Verdict, words: impl Into<String>, advice: &'static str) -> Finding {
        Finding { check, verdict, words: words.into(), advice, figures: Map::new() }
    }

    pub(super) fn fine(check: &'static str, words: impl Into<String>) -> Finding {
        Finding::new(check, Verdict::Fine, words, "")
    }

    pub(super) fn warning(check: &'static str, words: impl Into<String>, advice: &'static str) -> Finding {
        Finding::new(check, Verdict::Warning, words, advice)
    }

    pub(super) fn fault(check: &'static str, words: impl Into<String>, advice: &'static str) -> Finding {
        Finding::new(check, Verdict::Fault, words, advice)
    }

    pub(super) fn not_checked(check: &'static str, why: impl Into<String>) -> Finding {
        Finding::new(check, Verdict::NotChecked, why, "")
    }

    pub(super) fn with(mut self, name: &str, value: impl Into<Value>) -> Finding {
        self.figures.insert(name.to_owned(), value.into());
        self
    }
}

pub(super) struct Report {
    format: Format,
    say: Say,
    pub(super) server: Option<String>,
    pub(super) faults: u64,
    pub(super) warnings: u64,
}

impl Report {
    pub(super) fn new(common: &Common, say: Say) -> Report {
        Report { format: common.format, say, server: None, faults: 0, warnings: 0 }
    }

    pub(super) fn add(&mut self, finding: Finding) {
        match finding.verdict {
            Verdict::Fault => self.faults += 1,
            Verdict::Warning => self.warnings += 1,
            Verdict::Fine | Verdict::NotChecked => {}
        }
        let line = match self.format {
            Format::Text => self.line(&finding),
            Format::Json => json_text(&self.object(finding)),
        };
        print_line(&line);
    }

    fn line(&self, finding: &Finding) -> String {
        let server = self.server.as_ref().map(|server| format!("{server}: ")).unwrap_or_default();
        let mut line =
            format!("{:<11}  {:<11}  {server}{}", finding.verdict.text(), finding.check, finding.words);
        if !finding.advice.is_empty() {
            line = format!("{line}. {}", sentence(finding.advice));
        }
        // A name that another program chose may contain line breaks, but each finding must stay on one line.
        plain(&line)
    }

    fn object(&self, finding: Finding) -> Value {
        let mut object = Map::new();
        object.insert("check".to_owned(), json!(finding.check));
        object.insert("result".to_owned(), json!(finding.verdict.text()));
        object.insert("message".to_owned(), json!(finding.words));
        object.insert("advice".to_owned(), json!((!finding.advice.is_empty()).then_some(finding.advice)));
        object.insert("server".to_owned(), json!(self.server));
        object.extend(finding.figures);
        Value::Object(object)
    }

    pub(super) fn close(&self) {
        let (faults, warnings) = (self.faults, self.warnings);
        let count =
            |number: u64, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
        let words = format!("{}, {}", count(faults, "fault"), count(warnings, "warning"));
        self.say.notice("checked", &words, &json!({"faults": faults, "warnings": warnings}));
    }
}

fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    match chars.next() {
        Some(first) if !text.starts_with("docs/") => first.to_uppercase().chain(chars).collect(),
        _ => text.to_owned(),
    }
}
