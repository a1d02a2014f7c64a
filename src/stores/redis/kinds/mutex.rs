//! The reentrant lock, plain or fenced. Each operation is one script, and the keys are Redisson's.

use std::borrow::Cow;

use crate::ident::LockName;
use crate::seam::{Answer, Claim, HoldNote, QueueMode};
use crate::stores::redis::keys::{self, Part};
use crate::stores::redis::kinds::kind::{RedisCall, RedisKind, fenced};
use crate::stores::redis::kinds::replies;
use crate::stores::redis::script::{
    ACQUIRE, CHECK_CACHED, Command, FORCE, HAND_OFF, HEAR, LEAVE_WAIT_QUEUE, RELEASE,
};
use crate::time::millis;

pub(crate) struct MutexKind;

impl RedisKind for MutexKind {
    fn channel(&self, claim: &Claim) -> Option<String> {
        Some(keys::channel(claim.name.key()))
    }

    fn turn_channel(&self, claim: &Claim) -> Option<String> {
        Some(keys::turn_channel(claim.name.key(), claim.owner.client()))
    }

    fn leaving_queue(&self, claim: &Claim) -> Option<Command> {
        Some(LEAVE_WAIT_QUEUE.on(&[claim.name.key()]).arg(&*claim.owner.client().to_string()))
    }

    fn acquisition(&self, claim: &Claim, count: u32, link: u32) -> Command {
        let command = fenced(&ACQUIRE, claim)
            .arg(claim.owner)
            .arg(count)
            .arg(millis(claim.lease))
            .arg(&*queue_mode(claim, link));
        match &claim.note {
            // The first grant writes the note, which remains until the hold ends.
            Some(note) if count == 1 => with_note(command, note),
            _ if count == 1 && claim.caches => command.arg("cached"),
            _ => command,
        }
    }

    fn removal(&self, claim: &Claim, left: u32) -> Command {
        removal(claim, left, claim.has_notes())
    }

    /// Ends the hold, and removes notes too, because another attempt of this owner may have written them.
    fn leaving(&self, claim: &Claim) -> Command {
        removal(claim, 0, true)
    }

    fn check_cached(&self, claim: &Claim, own_listeners: i64) -> Option<Command> {
        let lock = claim.name.key();
        let channel = keys::in_parts(Part::LockChannel, lock);
        let script = if claim.hears { &HEAR } else { &CHECK_CACHED };
        Some(script.on(&[lock]).arg(claim.owner).arg(channel).arg(own_listeners))
    }

    fn hand_off(&self, from: &Claim, to: &Claim) -> Option<Command> {
        let command = fenced(&HAND_OFF, to).arg(from.owner).arg(to.owner).arg(millis(to.lease));
        Some(match &to.note {
            Some(note) => with_note(command, note),
            None if from.has_notes() => command.arg("").arg(""),
            None => command,
        })
    }

    fn force(&self, call: &RedisCall<'_>, name: &LockName) -> Answer<bool> {
        let lock = name.key();
        let command = FORCE.on(&[lock]).arg(keys::channel(lock));
        replies::forced(&call.ask(command)?)
    }
}

pub(super) fn queue_mode(claim: &Claim, link: u32) -> Cow<'static, str> {
    let word = match claim.queue_mode {
        QueueMode::Barges if claim.waits => "spin",
        QueueMode::Barges => "barge",
        QueueMode::Yields => "yield",
        QueueMode::Waits if claim.leads => "stand_for",
        QueueMode::Waits => "wait",
        QueueMode::InWaitQueue => "stand",
        QueueMode::IsNext => "next",
    };
    let joins = matches!(claim.queue_mode, QueueMode::Waits | QueueMode::InWaitQueue | QueueMode::IsNext);
    if joins && link > 0 { format!("{word}{link}").into() } else { word.into() }
}

/// Adds the note for people to an attempt: when the hold ends at the latest, and where its owner runs.
pub(super) fn with_note(command: Command, note: &HoldNote) -> Command {
    let place = &note.place;
    command.arg(millis(note.max_hold)).arg(format!("{} {} {}", place.pid, place.host, place.thread))
}

/// The request of a release. `has_notes`: whether the lock's hash may contain notes beside the owner.
fn removal(claim: &Claim, left: u32, has_notes: bool) -> Command {
    let lock = claim.name.key();
    let command = RELEASE.on(&[lock]).arg(claim.owner).arg(left).arg(millis(claim.lease));
    command.arg(u8::from(has_notes)).arg(keys::in_parts(Part::LockChannel, lock))
}
