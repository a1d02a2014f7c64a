//! The observer that writes log lines, for the crate `tracing`.

use crate::observe::Observer;
use crate::observe::event::{Event, GaveUpReason};

/// Levels: `error` for a lost hold, `warn` for a risk, `info` for a recovery, `debug` for a call that failed
/// (its caller knows), `trace` for every wait, grant and release. Lines have lock names and owner ids, never
/// URLs or passwords.
pub(crate) struct Logging;

impl Observer for Logging {
    fn event(&self, event: &Event<'_>) {
        match *event {
            Event::Waiting { name, kind } => {
                tracing::trace!(lock.name = name, lock.kind = kind, "a call begins to sleep");
            }
            Event::Acquired { name, kind, owner, waited, attempts } => {
                tracing::trace!(lock.name = name, lock.kind = kind, lock.owner = %owner, ?waited, attempts, "acquired");
            }
            Event::HandedOff { name, kind, owner, is_local, took } => {
                tracing::trace!(lock.name = name, lock.kind = kind, lock.owner = %owner, is_local, ?took, "handed off");
            }
            Event::GaveUp { name, kind, waited, attempts, reason: GaveUpReason::Failed(error) } => {
                tracing::debug!(lock.name = name, lock.kind = kind, ?waited, attempts, error.type = ?error.kind(), %error, "a call failed");
            }
            Event::GaveUp { name, kind, waited, attempts, reason } => {
                let outcome = reason.label();
                tracing::trace!(
                    lock.name = name,
                    lock.kind = kind,
                    lock.outcome = outcome,
                    ?waited,
                    attempts,
                    "given up"
                );
            }
            Event::Request { op, took, error: None } => tracing::trace!(op, ?took, "answered"),
            Event::Request { op, took, error: Some(error) } => {
                tracing::debug!(op, ?took, error.type = ?error.kind(), %error, "a request failed");
            }
            Event::Renewed { holds, took, lag } => tracing::trace!(holds, ?took, ?lag, "renewed"),
            Event::RenewalFailed { name, kind, owner, error, remaining } => tracing::event!(
                name: "lock.at_risk",
                tracing::Level::WARN,
                lock.name = name,
                lock.kind = kind,
                lock.owner = %owner,
                error.type = ?error.kind(),
                %error,
                ?remaining,
                "a renewal failed and is being repeated"
            ),
            Event::Released { name, kind, owner, held } => {
                tracing::trace!(lock.name = name, lock.kind = kind, lock.owner = %owner, ?held, "released");
            }
            Event::ReleaseFailed { name, error } => {
                tracing::warn!(lock.name = name, error.type = ?error.kind(), %error, "a release failed and is being repeated");
            }
            Event::Lost { loss, kind, held, .. } => tracing::event!(
                name: "lock.lost",
                tracing::Level::ERROR,
                lock.name = loss.name,
                lock.kind = kind,
                lock.owner = %loss.owner,
                reason = ?loss.reason,
                ?held,
                "a hold was lost"
            ),
            Event::Abandoned { name, kind, owner } => tracing::warn!(
                lock.name = name,
                lock.kind = kind,
                lock.owner = %owner,
                "a thread ended without releasing; its hold is no longer renewed"
            ),
            Event::UnknownOutcome { name, kind, error } => tracing::warn!(
                lock.name = name,
                lock.kind = kind,
                error.type = ?error.kind(),
                %error,
                "it is not known whether the lock was granted; what may be is undone"
            ),
            Event::Deadlock { deadlock } => tracing::event!(
                name: "lock.deadlock",
                tracing::Level::WARN,
                threads = deadlock.steps.len(),
                "deadlock: {deadlock}"
            ),
            Event::DeadlockOver { deadlock, lasted } => {
                tracing::info!(threads = deadlock.steps.len(), ?lasted, "a deadlock is over");
            }
            Event::WakeupsDown { error } => {
                tracing::warn!(error.type = ?error.kind(), %error, "no wake-ups: waiters only poll")
            }
            Event::WakeupsUp => tracing::info!("wake-ups are back"),
            Event::NoReplica { server } => {
                tracing::warn!(server, "no replica is connected: a failover may forget grants");
            }
            Event::ReplicaBack { server } => tracing::info!(server, "a replica is connected again"),
            Event::CallbacksDelayed => {
                tracing::warn!("callbacks take too long: reports that repeat are left out");
            }
            Event::CallbacksCaughtUp { dropped } => tracing::info!(dropped, "callbacks keep up again"),
            Event::Warning { text } => tracing::warn!("{text}"),
        }
    }
}
