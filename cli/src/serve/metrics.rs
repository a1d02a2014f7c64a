//! The numbers of the store in the text format of Prometheus.

use std::fmt::{Display, Write as _};

use crate::serve::fresh::{Seen, Trouble};
use crate::serve::listing::{Group, Job, Listing, Use};

pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// While the store is in trouble there are no locks to count: then only how it stands with it, and nothing
/// out of date.
pub(crate) fn as_text(seen: &Seen<Listing>, trouble: Option<Trouble>) -> String {
    let mut text = Text(String::new());
    text.metric("up", "gauge", "Whether the store answers a request: 1, else 0.");
    text.sample("up", &[], u8::from(trouble.is_none()));
    text.metric("lists_total", "counter", "Lists of all locks that this program asked the store for.");
    for (result, number) in [("ok", seen.made_total), ("error", seen.failed_total)] {
        text.sample("lists_total", &[("result", result)], number);
    }
    let trouble = trouble.or(seen.failure);
    let Some((listing, age)) = seen.last.as_ref().filter(|_| trouble.is_none()) else { return text.0 };
    for (name, help, number) in [
        ("list_age_seconds", "Age of the list that these numbers are of.", age.as_secs_f64()),
        ("list_duration_seconds", "How long it took to list the locks.", listing.took.as_secs_f64()),
    ] {
        text.metric(name, "gauge", help);
        text.sample(name, &[], number);
    }
    for (name, help, number) in [
        ("list_requests", "Requests that the list cost.", listing.requests),
        ("list_keys", "Keys or rows that the store looked at for the list, locks or not.", listing.keys),
    ] {
        text.metric(name, "gauge", help);
        text.sample(name, &[], number);
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
    text.metric(
        "deadlocks",
        "gauge",
        "Rings of threads or commands that wait for each other, and rings that may be some.",
    );
    for (certain, number) in ["true", "false"].into_iter().zip(listing.deadlocks) {
        text.sample("deadlocks", &[("certain", certain)], number);
    }
    jobs(&mut text, &listing.jobs);
    text.0
}

/// The jobs that were asked for. The label is not `job`, which is Prometheus's own.
fn jobs(text: &mut Text, jobs: &[Job]) {
    let help = "Whether the job runs now: 1, else 0.";
    text.by_job("job_runs", help, jobs, |job| Some(f64::from(u8::from(job.runs()))));
    let help = "When the last run of the job ended, in seconds since 1970; 0: none in the last 40 days.";
    text.by_job("job_last_run_timestamp_seconds", help, jobs, |job| Some(job.ended));
    let help = "When the last run of the job ended that was a success, in seconds since 1970; 0: none in the last 40 days.";
    text.by_job("job_last_success_timestamp_seconds", help, jobs, |job| Some(job.succeeded));
    let help = "The exit code of the last run of the job.";
    text.by_job("job_last_exit_code", help, jobs, |job| Some(f64::from(job.last.as_ref()?.code)));
    let help = "How long the last run of the job took.";
    text.by_job("job_last_duration_seconds", help, jobs, |job| Some(job.last.as_ref()?.took.as_secs_f64()));
}

struct Text(String);

impl Text {
    fn metric(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP leasehold_store_{name} {help}"));
        self.line(format_args!("# TYPE leasehold_store_{name} {kind}"));
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], number: impl Display) {
        let written = labels.iter().map(|(label, value)| {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            format!("{label}=\"{value}\"")
        });
        let labels = written.collect::<Vec<_>>().join(",");
        let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
        self.line(format_args!("leasehold_store_{name}{labels} {number}"));
    }

    fn by_group<'a, N: Display>(
        &mut self,
        name: &str,
        help: &str,
        groups: impl IntoIterator<Item = (&'a (String, Use), &'a Group)>,
        number: impl Fn(&Group) -> Option<N>,
    ) {
        let known = groups.into_iter().filter_map(|(group, counted)| Some((group, number(counted)?)));
        for (at, ((group, used), number)) in known.enumerate() {
            if at == 0 {
                self.metric(name, "gauge", help);
            }
            self.sample(name, &[("group", group), ("kind", used.label())], number);
        }
    }

    fn by_job<N: Display>(
        &mut self,
        name: &str,
        help: &str,
        jobs: &[Job],
        number: impl Fn(&Job) -> Option<N>,
    ) {
        let known = jobs.iter().filter_map(|job| Some((job, number(job)?)));
        for (at, (job, number)) in known.enumerate() {
            if at == 0 {
                self.metric(name, "gauge", help);
            }
            self.sample(name, &[("name", &job.name)], number);
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").ok(); // a text takes all that is written to it
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use leasehold::ErrorKind;

    use super::*;

    #[test]
    fn a_slow_list_leaves_the_store_up_and_its_last_numbers_shown() {
        let listing = Listing {
            fields: String::new(),
            groups: [(("orders".to_owned(), Use::Lock), Group { held: 3, ..Group::default() })].into(),
            jobs: Vec::new(),
            deadlocks: [1, 2],
            requests: 1,
            keys: 500_000,
            took: Duration::from_secs(20),
        };
        let seen = Seen {
            last: Some((Arc::new(listing), Duration::from_secs(40))),
            failure: None,
            running: Some((Duration::from_secs(15), 400_000)),
            made_total: 1,
            failed_total: 0,
        };
        let text = as_text(&seen, None);
        for line in [
            "leasehold_store_up 1",
            "leasehold_store_locks_held{group=\"orders\",kind=\"lock\"} 3",
            "leasehold_store_deadlocks{certain=\"false\"} 2",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}: {text}");
        }
        assert!(text.contains("leasehold_store_list_age_seconds 40\n"), "{text}");
        let away = Trouble { kind: ErrorKind::TimedOut, lasting: Duration::from_secs(3) };
        let text = as_text(&seen, Some(away));
        assert!(text.contains("leasehold_store_up 0\n") && !text.contains("locks_held"), "{text}");
    }
}
