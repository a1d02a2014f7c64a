//! The observer that writes log lines, for the crate `tracing`.

use crate::observe::Observer;
use crate::observe::event::{Event, GaveUpReason};

/// Writes events as log lines, at the levels that `lib.rs` lists. No line has a URL or a password.
pub(crate) struct Logging;

/// Writes a line about a lock: the lock's name and kind, then the event's fields.
macro_rules! about {
    ($level:ident $($called:literal)?, $name:expr, $kind:expr, $($fields:tt)*) => {
        tracing::event!($(name: $called,)? tracing::Level::$level, lock.name = $name, lock.kind = $kind, $($fields)*)
    };
}

impl Observer for Logging {
    fn event(&self, event: &Event<'_>) {
        match *event {
            Event::Waiting { name, kind } => about!(TRACE, name, kind, "a call begins to sleep"),
            Event::Acquired { name, kind, owner, waited, attempts } => {
                about!(TRACE, name, kind, lock.owner = %owner, ?waited, attempts, "acquired");
            }
            Event::HandedOff { name, kind, owner, is_local, took } => {
                about!(TRACE, name, kind, lock.owner = %owner, is_local, ?took, "handed off");
            }
            Event::GaveUp { name, kind, waited, attempts, reason: GaveUpReason::Failed(error) } => {
                about!(DEBUG, name, kind, ?waited, attempts, error.type = ?error.kind(), %error, "a call failed");
            }
            Event::GaveUp { name, kind, waited, attempts, reason } => {
                about!(TRACE, name, kind, lock.outcome = reason.label(), ?waited, attempts, "given up");
            }
            Event::Request { op, took, error: None } => tracing::trace!(op, ?took, "answered"),
            Event::Request { op, took, error: Some(error) } => {
                tracing::debug!(op, ?took, error.type = ?error.kind(), %error, "a request failed");
            }
            Event::Renewed { holds, took, lag } => tracing::trace!(holds, ?took, ?lag, "renewed"),
            Event::RenewalFailed { name, kind, owner, error, remaining } => about!(
                WARN "lock.at_risk", name, kind, lock.owner = %owner, error.type = ?error.kind(), %error, ?remaining,
                "a renewal failed and is being repeated"
            ),
            Event::Released { name, kind, owner, held } => {
                about!(TRACE, name, kind, lock.owner = %owner, ?held, "released");
            }
            Event::ReleaseFailed { name, error } => {
                tracing::warn!(lock.name = name, error.type = ?error.kind(), %error, "a release failed and is being repeated");
            }
            Event::Lost { loss, kind, held, .. } => about!(
                ERROR "lock.lost", loss.name, kind, lock.owner = %loss.owner, reason = ?loss.reason, ?held,
                "a hold was lost"
            ),
            Event::Abandoned { name, kind, owner } => about!(
                WARN, name, kind, lock.owner = %owner,
                "a thread ended without releasing; its hold is no longer renewed"
            ),
            Event::UnknownOutcome { name, kind, error } => about!(
                WARN, name, kind, error.type = ?error.kind(), %error,
                "it is not known whether the lock was granted; the client undoes the request"
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
