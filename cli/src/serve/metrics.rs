//! The numbers of the store in the text format of Prometheus.

use std::fmt::{Display, Write as _};

use crate::serve::fresh::Seen;
use crate::serve::listing::{Group, Listing};

pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// While the store is in trouble there are no locks to count: then only how it stands with it, and nothing out of date.
pub(crate) fn as_text(seen: &Seen<Listing>) -> String {
    let mut text = Text(String::new());
    text.metric("up", "gauge", "Whether the store could be asked: 1, else 0.");
    text.sample("up", None, u8::from(seen.trouble.is_none()));
    text.metric("lists_total", "counter", "Lists of all locks that this program asked the store for.");
    for (result, number) in [("ok", seen.made_total), ("error", seen.failed_total)] {
        text.sample("lists_total", Some(("result", result)), number);
    }
    let Some((listing, age)) = seen.last.as_ref().filter(|_| seen.trouble.is_none()) else { return text.0 };
    for (name, help, number) in [
        ("list_age_seconds", "Age of the list that these numbers are of.", age.as_secs_f64()),
        ("list_duration_seconds", "How long it took to list the locks.", listing.took.as_secs_f64()),
    ] {
        text.metric(name, "gauge", help);
        text.sample(name, None, number);
    }
    for (name, help, number) in [
        ("list_requests", "Requests that the list cost.", listing.requests),
        ("list_keys", "Keys or rows that the store looked at for the list, locks or not.", listing.keys),
    ] {
        text.metric(name, "gauge", help);
        text.sample(name, None, number);
    }
    let groups = &listing.groups;
    text.by_group("locks_held", "Locks that somebody holds.", groups, |group| Some(group.held));
    text.by_group("waiters", "Clients or owners that wait, as far as the store shows it.", groups, |group| {
        Some(group.waiting)
    });
    let help = "Locks that last until somebody releases them, whatever becomes of their holder.";
    text.by_group("locks_without_end", help, groups, |group| Some(group.without_end));
    let help = "For how long the longest hold has lasted, of those whose holders say so.";
    text.by_group("oldest_hold_seconds", help, groups, |group| group.oldest.map(|span| span.as_secs_f64()));
    text.0
}

struct Text(String);

impl Text {
    fn metric(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP leasehold_store_{name} {help}"));
        self.line(format_args!("# TYPE leasehold_store_{name} {kind}"));
    }

    fn sample(&mut self, name: &str, label: Option<(&str, &str)>, number: impl Display) {
        match label {
            None => self.line(format_args!("leasehold_store_{name} {number}")),
            Some((label, value)) => {
                let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                self.line(format_args!("leasehold_store_{name}{{{label}=\"{value}\"}} {number}"));
            }
        }
    }

    fn by_group<'a, N: Display>(
        &mut self,
        name: &str,
        help: &str,
        groups: impl IntoIterator<Item = (&'a String, &'a Group)>,
        number: impl Fn(&Group) -> Option<N>,
    ) {
        let known = groups.into_iter().filter_map(|(group, counted)| Some((group, number(counted)?)));
        for (at, (group, number)) in known.enumerate() {
            if at == 0 {
                self.metric(name, "gauge", help);
            }
            self.sample(name, Some(("group", group)), number);
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").ok(); // a text takes all that is written to it
    }
}
