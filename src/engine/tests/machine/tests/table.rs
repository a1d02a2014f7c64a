//! The table of the machine: what each event does in each slot, and which events never came there.

use std::cell::RefCell;

use super::world::NOW;
use super::*;
use crate::time::Moment;

/// The slots, as the table tells them apart.
const SLOTS: [&str; 9] = [
    "Free",
    "Held",
    "Held, over",
    "Cached for a time slice",
    "Cached until a recall",
    "HandingOff",
    "HandingOff, sent",
    "Returning, waited for",
    "Returning",
];

/// Of each slot the events that came.
type Seen = [Vec<&'static str>; 9];

thread_local! {
    static SEEN: RefCell<Seen> = RefCell::default();
}

pub(super) fn note_seen(machine: &Machine, event: &Event) {
    let event = kind(machine, event);
    SEEN.with_borrow_mut(|seen| {
        let seen = &mut seen[slot(machine)];
        if !seen.contains(&event) {
            seen.push(event);
        }
    });
}

/// Whether the event came in the slot, in the explorations of this thread.
pub(super) fn came(slot: usize, kind: &str) -> bool {
    SEEN.with_borrow(|seen| seen[slot].contains(&kind))
}

fn slot(machine: &Machine) -> usize {
    match machine.slot {
        Slot::Free => 0,
        Slot::Held(hold) if NOW < hold.until => 1,
        Slot::Held(_) => 2,
        Slot::Cached { why: CachedFor::TimeSlice, .. } => 3,
        Slot::Cached { .. } => 4,
        Slot::HandingOff { sent, .. } => 5 + usize::from(sent),
        Slot::Returning { waits, .. } => 8 - usize::from(waits),
    }
}

fn hold_of(machine: &Machine) -> Option<Hold> {
    match machine.slot {
        Slot::Free => None,
        Slot::Held(hold) | Slot::Cached { hold, .. } | Slot::Returning { hold, .. } => Some(hold),
        Slot::HandingOff { from, .. } => Some(from),
    }
}

/// The event, as the table tells them apart.
fn kind(machine: &Machine, event: &Event) -> &'static str {
    let hold = hold_of(machine);
    let is_held = |number: Number| {
        let is_stable = matches!(machine.slot, Slot::Held(_) | Slot::Cached { .. });
        is_stable && hold.is_some_and(|hold| hold.number == number)
    };
    let is_late = |sent: Moment| NOW >= sent.plus(RULES.lease);
    match *event {
        Event::Want { thread, .. } if hold.is_some_and(|hold| hold.thread == thread) => {
            "Want by the same thread"
        }
        Event::Want { once: false, .. } => "Want",
        Event::Want { once: true, .. } => "Want once",
        Event::Look { .. } => "Look",
        Event::Answer { answer, sent, .. } => match answer {
            Attempt::Granted { .. } if is_late(sent) => "Answer: granted, late",
            Attempt::Granted { .. } => "Answer: granted",
            Attempt::Busy => "Answer: busy",
            Attempt::Refused => "Answer: refused",
            Attempt::Unknown => "Answer: unknown",
        },
        Event::Counted { answer, .. } => {
            said(answer, ["Counted: granted", "Counted: not held", "", "Counted: unknown"])
        }
        Event::End { number, .. } if !is_held(number) => "End of a lost hold",
        Event::End { .. } if hold.is_some_and(|hold| hold.levels > 1) => "End of an inner level",
        Event::End { dropped: true, .. } => "End by a guard",
        Event::End { dropped: false, .. } => "End by unlock",
        Event::GiveUp { .. } => "GiveUp",
        Event::Sent { .. } => "Sent",
        Event::NotSent { .. } => "NotSent",
        Event::WaitQueueLeft { .. } => "LineLeft",
        Event::HandoffAnswer { answer: Said::Yes, sent, .. } if is_late(sent) => {
            "HandoffAnswer: granted, late"
        }
        Event::HandoffAnswer { answer, .. } => said(
            answer,
            [
                "HandoffAnswer: granted",
                "HandoffAnswer: not held",
                "HandoffAnswer: refused",
                "HandoffAnswer: unknown",
            ],
        ),
        Event::ReleaseAnswer { answer, .. } => {
            said(answer, ["ReleaseAnswer: freed", "ReleaseAnswer: not held", "", "ReleaseAnswer: unknown"])
        }
        Event::RenewAnswer { number, .. } if !is_held(number) => "RenewAnswer of an ended hold",
        Event::RenewAnswer { answer, .. } => {
            said(answer, ["RenewAnswer: held", "RenewAnswer: not held", "", "RenewAnswer: unknown"])
        }
        Event::CheckAnswer { number, .. } if machine.check == Check::Stale || !is_held(number) => {
            "CheckAnswer of an ended hold"
        }
        Event::CheckAnswer { answer, .. } => match answer {
            Checked::Unwanted => "CheckAnswer: unwanted",
            Checked::Wanted => "CheckAnswer: wanted",
            Checked::NotHeld => "CheckAnswer: not held",
            Checked::Unknown => "CheckAnswer: unknown",
        },
        Event::Message => "Message",
        Event::Time => "Time",
    }
}

/// The name of what the store says; no kind of request but hand-offs tells a refusal apart.
fn said(answer: Said, [yes, no, refused, unknown]: [&'static str; 4]) -> &'static str {
    match answer {
        Said::Yes => yes,
        Said::No => no,
        Said::Refused => refused,
        Said::Unknown => unknown,
    }
}

const OWNER: Number = 16;
const WAITER: TicketId = 2;

/// An event of each kind.
fn events() -> Vec<Event> {
    let (ticket, number, sent) = (WAITER, OWNER, NOW);
    let want = |thread, once| Event::Want { ticket: 3, thread, caches: false, once };
    let late = NOW.minus(RULES.lease);
    let asked = |sent, answer| Event::Answer { ticket, number: 32, sent, answer };
    let handed = |sent, answer| Event::HandoffAnswer { ticket, sent, answer };
    let granted = Attempt::Granted { queued: 0 };
    let mut events = vec![want(1, false), want(3, false), want(3, true), Event::Look { ticket }];
    events.extend([asked(sent, granted), asked(late, granted), asked(sent, Attempt::Busy)]);
    events.extend([Attempt::Refused, Attempt::Unknown].map(|answer| asked(sent, answer)));
    let counted = [Said::Yes, Said::No, Said::Unknown];
    events.extend(counted.map(|answer| Event::Counted { number, sent, answer }));
    // The sample of a hold has one level, and two for the first of these.
    events.extend([false, false, true].map(|dropped| Event::End { number, dropped }));
    events.extend([Event::End { number: 17, dropped: false }, Event::GiveUp { ticket }]);
    events.extend([Event::Sent { number }, Event::NotSent { number }, Event::WaitQueueLeft { ticket }]);
    events.extend([handed(sent, Said::Yes), handed(late, Said::Yes)]);
    events.extend([Said::No, Said::Refused, Said::Unknown].map(|answer| handed(sent, answer)));
    let released = [Said::Yes, Said::No, Said::Unknown];
    events.extend(released.map(|answer| Event::ReleaseAnswer { number, answer }));
    let renewed = [Said::Yes, Said::No, Said::Unknown];
    events.extend(renewed.map(|answer| Event::RenewAnswer { number, sent, answer }));
    events.push(Event::RenewAnswer { number: 17, sent, answer: Said::Yes });
    let checked = [Checked::Unwanted, Checked::Wanted, Checked::NotHeld, Checked::Unknown];
    events.extend(checked.map(|answer| Event::CheckAnswer { number, answer }));
    events.push(Event::CheckAnswer { number: 17, answer: Checked::NotHeld });
    events.extend([Event::Message, Event::Time]);
    events
}

/// A machine with this slot, in which a second thread waits.
fn sample(slot: usize, at: usize, event: &Event) -> Machine {
    let is_inner = matches!(event, Event::End { .. }) && !matches!(events()[at - 1], Event::End { .. });
    let hold = Hold {
        thread: 1,
        number: OWNER,
        levels: 1 + u32::from(is_inner),
        until: if slot == 2 { NOW } else { NOW.plus(RULES.lease) },
        renew_at: NOW,
        is_renewing: matches!(event, Event::RenewAnswer { .. }),
        is_in_doubt: false,
        caches: false,
        unrecalled: Some(0),
        check_at: NOW,
    };
    let waits_to_leave = matches!(event, Event::WaitQueueLeft { .. });
    let asks = matches!(event, Event::Answer { .. }).then_some(32);
    let waiter = Ticket {
        id: WAITER,
        thread: 2,
        number: 32,
        caches: false,
        once: false,
        leaving: waits_to_leave,
        asks,
        recalls: None,
        is_asleep: asks.is_none() && !waits_to_leave,
        word: matches!(event, Event::Look { .. }).then_some(Word::Here),
        poll_at: Moment::NEVER,
    };
    let (to, number, since) = (WAITER, 32, NOW);
    let slice = Some(Slice { began: NOW, ends: NOW.plus(ticks(2)) });
    Machine {
        slot: match slot {
            0 => Slot::Free,
            1 | 2 => Slot::Held(hold),
            3 => Slot::Cached { hold, why: CachedFor::TimeSlice, since },
            4 => Slot::Cached { hold, why: CachedFor::UntilRecall, since },
            5 | 6 => Slot::HandingOff { from: hold, to, number, waits: true, sent: slot == 6 },
            _ => Slot::Returning { hold, waits: slot == 7 },
        },
        queue: if matches!(event, Event::Want { .. }) { Vec::new() } else { vec![waiter] },
        handed_off: 0,
        slice: slice.filter(|_| slot == 3),
        check: if matches!(event, Event::CheckAnswer { .. }) { Check::Sent } else { Check::None },
        settling: if matches!(slot, 1 | 7 | 8) { Vec::new() } else { vec![(OWNER, None)] },
        retired: Vec::new(),
    }
}

/// The table; `comes` says of an event whether it comes in a slot.
pub(super) fn table(comes: impl Fn(usize, &str) -> bool) -> String {
    let mut table = String::from("slot | event | slot after | effects, in their order\n");
    for (before, name) in SLOTS.iter().enumerate() {
        let (mut never, mut listed) = (Vec::new(), Vec::new());
        for (at, event) in events().iter().enumerate() {
            let mut machine = sample(before, at, event);
            let kind = kind(&machine, event);
            if listed.contains(&kind) {
                continue;
            }
            listed.push(kind);
            if !comes(before, kind) {
                never.push(kind);
                continue;
            }
            let inputs = Inputs { rules: &RULES, now: NOW, number: 32, recalls: Some(0), reacquires: true };
            let effects: Vec<_> = machine.on(*event, inputs).iter().map(effect).collect();
            table += &format!("{name} | {kind} | {} | {}\n", SLOTS[slot(&machine)], effects.join(", "));
        }
        table += &format!("{name} | never came: {}\n", never.join("; "));
    }
    table
}

/// Whether a table has a row for the event.
pub(super) fn has_row(table: &str, slot: usize, kind: &str) -> bool {
    table.lines().any(|line| line.starts_with(&format!("{} | {kind} |", SLOTS[slot])))
}

/// The name of an effect; of a reply, that of the reply.
fn effect(effect: &Effect) -> String {
    let text = match effect {
        Effect::Reply(reply) => format!("{reply:?}"),
        effect => format!("{effect:?}"),
    };
    text.split([' ', '(']).next().unwrap_or_default().to_owned()
}
