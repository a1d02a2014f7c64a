//! The metrics in Prometheus's text format.

use crate::serve::fresh::{Seen, Trouble};
use crate::serve::listing::{Group, Job, Listing};

pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The metrics as text. While the store is in trouble, all numbers of the last list are left out as outdated.
pub(crate) fn as_text(seen: &Seen<Listing>, trouble: Option<Trouble>) -> String {
    let mut text = Text(String::new());
    let is_up = f64::from(u8::from(trouble.is_none()));
    text.one("up", "Whether the store answers a request: 1, else 0.", is_up);
    let lists = [("ok", seen.made_total), ("error", seen.failed_total)];
    let lists = lists.map(|(result, number)| (vec![("result", result)], number as f64));
    text.metric("lists_total", "counter", "Lists of all locks that this program asked the store for.", lists);
    let trouble = trouble.or(seen.failure);
    let Some((listing, age)) = seen.last.as_ref().filter(|_| trouble.is_none()) else { return text.0 };
    text.one("list_age_seconds", "Age of the list that these numbers are of.", age.as_secs_f64());
    text.one("list_duration_seconds", "How long it took to list the locks.", listing.took.as_secs_f64());
    text.one("list_requests", "Requests that the list cost.", listing.requests as f64);
    let help = "Keys or rows that the store looked at for the list, locks or not.";
    text.one("list_keys", help, listing.keys as f64);
    let groups = |number: fn(&Group) -> Option<f64>| {
        listing.groups.iter().filter_map(move |((group, used), counted)| {
            Some((vec![("group", group.as_str()), ("kind", used.label())], number(counted)?))
        })
    };
    let help = "Locks that somebody holds.";
    text.metric("locks_held", "gauge", help, groups(|group| Some(group.held as f64)));
    let help = "Clients or owners that wait, as far as the store shows it.";
    text.metric("waiters", "gauge", help, groups(|group| Some(group.waiting as f64)));
    let help = "Locks that last until somebody releases them, whatever becomes of their holder.";
    text.metric("locks_without_end", "gauge", help, groups(|group| Some(group.without_end as f64)));
    let help = "For how long the longest hold has lasted, of those whose holders say so.";
    text.metric("oldest_hold_seconds", "gauge", help, groups(|group| Some(group.oldest?.as_secs_f64())));
    let help =
        "Cycles of threads or commands that wait for each other: certain deadlocks, and possible ones.";
    let cycles = ["true", "false"].into_iter().zip(listing.deadlocks);
    text.metric(
        "deadlocks",
        "gauge",
        help,
        cycles.map(|(certain, number)| (vec![("certain", certain)], number as f64)),
    );
    // The label cannot be `job`, which Prometheus itself uses.
    let jobs = |number: fn(&Job) -> Option<f64>| {
        let jobs = listing.jobs.iter();
        jobs.filter_map(move |job| Some((vec![("name", job.name.as_str())], number(job)?)))
    };
    let help = "Whether the job runs now: 1, else 0.";
    text.metric("job_runs", "gauge", help, jobs(|job| Some(f64::from(u8::from(job.runs())))));
    let help = "When the last run of the job ended, in seconds since 1970; 0: none in the last 40 days.";
    text.metric("job_last_run_timestamp_seconds", "gauge", help, jobs(|job| Some(job.ended as f64)));
    let help = "When the last run of the job ended that was a success, in seconds since 1970; 0: none in the last 40 days.";
    text.metric("job_last_success_timestamp_seconds", "gauge", help, jobs(|job| Some(job.succeeded as f64)));
    let help = "The exit code of the last run of the job.";
    text.metric(
        "job_last_exit_code",
        "gauge",
        help,
        jobs(|job| Some(f64::from(job.last.as_ref()?.exit_code))),
    );
    let help = "How long the last run of the job took.";
    let took = jobs(|job| Some(job.last.as_ref()?.took.as_secs_f64()));
    text.metric("job_last_duration_seconds", "gauge", help, took);
    text.0
}

struct Text(String);

impl Text {
    fn one(&mut self, name: &str, help: &str, number: f64) {
        self.metric(name, "gauge", help, [(Vec::new(), number)]);
    }

    fn metric<'a>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Vec<(&'a str, &'a str)>, f64)>,
    ) {
        let name = format!("leasehold_store_{name}");
        for (at, (labels, number)) in samples.into_iter().enumerate() {
            if at == 0 {
                self.0 += &format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
            }
            let written = labels.iter().map(|(label, value)| {
                let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                format!("{label}=\"{value}\"")
            });
            let labels = written.collect::<Vec<_>>().join(",");
            let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
            self.0 += &format!("{name}{labels} {number}\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use leasehold::ErrorKind;

    use super::*;
    use crate::serve::listing::Use;

    #[test]
    fn metrics_report_the_store_as_up_during_a_slow_listing() {
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
