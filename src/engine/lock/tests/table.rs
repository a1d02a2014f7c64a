//! A table of the lock's stages: which events come in each stage during the explorations, what each event
//! does there, and which events never come.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::event::{Effect, Event, Request, Said};
use super::world::{At, Client, NOW, NUMBERS, World};
use super::*;
use crate::time::Lease;

/// The table's names for the stage of a lock: the stage of its hold that is not lost, else `Lost`; `Free`
/// without a hold.
const STAGES: [&str; 9] = [
    "Free",
    "Held",
    "Held, over",
    "Cached for a time slice",
    "Cached until a recall",
    "HandingOff",
    "HandingOff, sent",
    "Returning",
    "Lost",
];

type Seen = [Vec<Name>; 9];

/// The name of an event: what came, and what an answer said (empty for other events).
type Name = [&'static str; 2];

thread_local! {
    static SEEN: RefCell<Seen> = RefCell::default();
    /// Pairs of the stages before and after an event.
    static MOVES: RefCell<BTreeSet<(usize, usize)>> = RefCell::default();
}

pub(super) fn note_moved(before: usize, lock: &Lock) {
    MOVES.with_borrow_mut(|moves| moves.insert((before, stage(lock))));
}

/// The moves (stage before and after an event) that this thread's explorations saw, and those in the table.
pub(super) fn moves(written: &str) -> BTreeSet<(usize, usize)> {
    let place = |name: &str| STAGES.iter().position(|stage| *stage == name);
    let of_line = |line: &str| {
        let (from, to) = line.split_once(" | leads to: ")?;
        let from = place(from)?;
        Some(to.split("; ").filter_map(|to| Some((from, place(to)?))).collect::<Vec<_>>())
    };
    let written = written.lines().filter_map(of_line).flatten();
    MOVES.with_borrow(|moves| moves.iter().copied().chain(written).filter(|(from, to)| from != to).collect())
}

pub(super) fn note_seen(client: &Client, event: &Event) {
    let event = kind(client, event);
    SEEN.with_borrow_mut(|seen| {
        let seen = &mut seen[stage(&client.lock)];
        if !seen.contains(&event) {
            seen.push(event);
        }
    });
}

pub(super) fn came(stage: usize, kind: &Name) -> bool {
    SEEN.with_borrow(|seen| seen[stage].contains(kind))
}

pub(super) fn stage(lock: &Lock) -> usize {
    let Some(own) = lock.holds.iter().find(|own| own.stage != Stage::Lost) else {
        return if lock.holds.is_empty() { 0 } else { 8 };
    };
    match own.stage {
        Stage::Held => 1 + usize::from(own.is_over(NOW)),
        Stage::Cached(CachedFor::TimeSlice) => 3,
        Stage::Cached(CachedFor::UntilRecall(_)) => 4,
        Stage::HandingOff { sent, .. } => 5 + usize::from(sent),
        Stage::Returning => 7,
        Stage::Lost => 8,
    }
}

fn kind(client: &Client, event: &Event) -> Name {
    let lock = &client.lock;
    let here = |id: Id| lock.holds.iter().find(|own| own.hold.0 == id);
    let is_live = |id: Id| here(id).is_some_and(HoldState::is_live);
    let is_late = |sent: Moment| NOW >= sent.plus(RULES.lease);
    let name = match *event {
        Event::Want { thread, .. } if lock.holds.iter().any(|own| own.is_of(thread as u64)) => {
            "Want by the same thread"
        }
        Event::Want { once: false, .. } => "Want",
        Event::Want { once: true, .. } => "Want once",
        Event::GoOn(thread) => match client.users[thread] {
            ref user if user.settles.is_some() => "Received",
            ref user if user.at == At::Going && user.once => "Tries",
            ref user if user.at == At::Going => "Joins",
            ref user if user.at == At::Leaving => "Leaves",
            ref user if user.at == At::EndingLast => "Learns the outcome",
            _ => "Falls asleep",
        },
        Event::Look(_) => "Look",
        Event::GiveUp(_) => "GiveUp",
        Event::End { id, .. } if !is_live(id) => "End of a lost hold",
        Event::End { id, .. } if here(id).is_some_and(|own| own.levels.open.len() > 1) => {
            "End of an inner level"
        }
        Event::End { dropped: true, .. } => "End by a guard",
        Event::End { dropped: false, .. } => "End by unlock",
        Event::Sent(Effect::HandOff { .. }) => "Sent: hand-off",
        Event::Sent(_) => "Sent: release",
        Event::NotSent(Effect::HandOff { .. }) => "NotSent: hand-off",
        Event::NotSent(_) => "NotSent: release",
        Event::Answer(Request { effect, sent }, answer) => {
            let (what, yes, no) = match effect {
                Effect::Ask { .. } => ("Answer", ": granted", ": busy"),
                Effect::AskCount { .. } => ("Counted", ": granted", ": not held"),
                Effect::HandOff { .. } => ("HandoffAnswer", ": granted", ": not held"),
                Effect::Release { .. } => ("ReleaseAnswer", ": freed", ": not held"),
                Effect::Renew { .. } => ("RenewAnswer", ": held", ": not held"),
                Effect::Check { .. } => ("CheckAnswer", ": unwanted", ": not held"),
                Effect::CleanUp { .. } | Effect::LeaveWaitQueue { .. } | Effect::Lost { .. } => ("", "", ""),
            };
            let said = match (effect, answer) {
                (Effect::Renew { id } | Effect::Check { id }, _) if !is_live(id) => " of an ended hold",
                (Effect::Ask { .. } | Effect::HandOff { .. }, (Said::Yes, _)) if is_late(sent) => {
                    ": granted, late"
                }
                (Effect::Check { .. }, (Said::Yes, 1..)) => ": wanted",
                (_, (Said::Yes, _)) => yes,
                (_, (Said::No, _)) => no,
                (_, (Said::Refused, _)) => ": refused",
                (_, (Said::Unknown, _)) => ": unknown",
            };
            return [what, said];
        }
        Event::Message => "Message",
        Event::Time => "Time",
    };
    [name, ""]
}

/// The hold that [`sample`] makes, and a hold that has ended.
const HOLD: Id = Id { serial: 1, number: NUMBERS };
const ENDED: Id = Id { serial: 9, number: NUMBERS };
const WAITER: usize = 1;

/// An event of each kind, and the state of its thread.
fn events() -> Vec<(Event, At)> {
    let (thread, number, sent) = (WAITER, 2 * NUMBERS, NOW);
    let want = |thread, once| (Event::Want { thread, caches: false, once }, At::Idle);
    let late = NOW.minus(RULES.lease);
    let answer = |effect, sent, said| Event::Answer(Request { effect, sent }, (said, 0));
    let asked = |sent, said| {
        (answer(Effect::Ask { thread, number, caches: false, waits: true }, sent, said), At::Asking)
    };
    let hand_off = Effect::HandOff { from: HOLD, to: WAITER, number: 2 * NUMBERS, waits: true };
    let handed = |sent, said| (answer(hand_off, sent, said), At::Receiving);
    let by_background = |event| (event, At::Sleeping);
    let go_on = |at| (Event::GoOn(thread), at);
    let mut events = vec![want(0, false), want(2, false), want(2, true)];
    events.extend([go_on(At::Going), go_on(At::FallingAsleep { for_head: false }), go_on(At::Leaving)]);
    events.push(go_on(At::Receiving));
    events.push((Event::GoOn(0), At::EndingLast));
    events.extend([(Event::Look(thread), At::Sleeping), (Event::GiveUp(thread), At::Sleeping)]);
    events.extend([asked(sent, Said::Yes), asked(late, Said::Yes)]);
    events.extend([Said::No, Said::Refused, Said::Unknown].map(|said| asked(sent, said)));
    let all = [Said::Yes, Said::No, Said::Unknown];
    let re_entry = Effect::AskCount { id: HOLD, count: 2 };
    events.extend(all.map(|said| (answer(re_entry, sent, said), At::Counting)));
    // The sample hold has two levels for the first event, and one for the others.
    events.extend([false, false, true].map(|dropped| (Event::End { id: HOLD, dropped }, At::Working)));
    events.push((Event::End { id: ENDED, dropped: false }, At::Working));
    for effect in [hand_off, Effect::Release { id: HOLD, left: 0, waits: false }] {
        events.extend([Event::Sent(effect), Event::NotSent(effect)].map(by_background));
    }
    events.extend([handed(sent, Said::Yes), handed(late, Said::Yes)]);
    events.extend([Said::No, Said::Refused, Said::Unknown].map(|said| handed(sent, said)));
    let release = Effect::Release { id: HOLD, left: 0, waits: true };
    events.extend(all.map(|said| (answer(release, sent, said), At::EndingLast)));
    events.extend(all.map(|said| by_background(answer(Effect::Renew { id: HOLD }, sent, said))));
    events.push(by_background(answer(Effect::Renew { id: ENDED }, sent, Said::Yes)));
    let check = Effect::Check { id: HOLD };
    let wanted = Event::Answer(Request { effect: check, sent }, (Said::Yes, 1));
    events.extend([answer(check, sent, Said::Yes), wanted].map(by_background));
    events.extend([Said::No, Said::Unknown].map(|said| by_background(answer(check, sent, said))));
    events.push(by_background(answer(Effect::Check { id: ENDED }, sent, Said::No)));
    events.extend([Event::Message, Event::Time].map(by_background));
    events
}

/// A client whose lock is in this stage. Its second thread waits for the lock, unless it joins by `event`.
fn sample(stage: usize, (event, thread_at): (&Event, At), is_inner: bool) -> Client {
    let setup = Setup { threads: &[3], cycles: 9, rules: sliced(RULES, ticks(2)), ..BASE };
    let mut client = World::new(&setup).clients.remove(0);
    let at = client.at(&setup.rules);
    let until = if stage == 2 { NOW } else { NOW.plus(RULES.lease) };
    let mut own = HoldState::new(TestHold(HOLD), Some(0), HOLD.number, NOW, until);
    let has_levels = matches!(stage, 1 | 2 | 8);
    let levels = usize::from(has_levels) + usize::from(is_inner && has_levels);
    for _ in 0..levels {
        own.levels.add(Lease::Renewed);
    }
    own.is_under_way = matches!(event, Event::Answer(Request { effect: Effect::Renew { .. }, .. }, _));
    own.stage = match stage {
        3 => Stage::Cached(CachedFor::TimeSlice),
        4 => Stage::Cached(CachedFor::UntilRecall(NOW)),
        5 | 6 => Stage::HandingOff { to: TicketId(WAITER as u64), sent: stage == 6 },
        7 => Stage::Returning,
        8 => Stage::Lost,
        _ => Stage::Held,
    };
    if stage == 4 {
        own.until_recall(0, false, NOW, at.rules.first_check);
    }
    let joins = matches!(event, Event::Want { .. }) || thread_at == At::Going;
    if !joins {
        client.lock.queue.join(TicketId(WAITER as u64), TestWaiter::default(), false);
        let is_asleep = matches!(thread_at, At::Sleeping | At::Working);
        let waiter = client.lock.queue.get_mut(TicketId(WAITER as u64));
        waiter.into_iter().for_each(|ticket| ticket.is_asleep = is_asleep);
    }
    if stage > 0 {
        let _entered = client.lock.enter(own);
    }
    if stage == 3 {
        client.lock.caching.begin(1, at);
    }
    client.renewals.push((HOLD.serial, NOW));
    client.grants = 1;
    for thread in [0, WAITER] {
        client.users[thread].at = thread_at;
        client.users[thread].number = (thread as u64 + 1) * NUMBERS;
    }
    (client.users[0].held, client.users[0].levels) = (Some(HOLD), levels as u8);
    if thread_at == At::EndingLast {
        client.users[0].outcome = Some(Said::Yes);
    }
    client.users[WAITER].settles =
        (thread_at == At::Receiving && matches!(event, Event::GoOn(_))).then_some(false);
    client
}

/// The text of the table. If `comes` denies an event in a stage, the event is listed as "never came".
pub(super) fn table(comes: impl Fn(usize, &Name) -> bool, moves: &BTreeSet<(usize, usize)>) -> String {
    let mut table =
        String::from("stage | event | stage after | what is to be done, and where the thread is then\n");
    for (before, name) in STAGES.iter().enumerate() {
        let (mut never, mut listed) = (Vec::new(), Vec::new());
        let mut has_inner = false;
        for (event, thread_at) in events() {
            let is_end = matches!(event, Event::End { id: HOLD, .. });
            let is_inner = is_end && !has_inner;
            has_inner |= is_end;
            let mut client = sample(before, (&event, thread_at), is_inner);
            let kind = kind(&client, &event);
            if listed.contains(&kind) {
                continue;
            }
            listed.push(kind);
            if !comes(before, &kind) {
                never.push(kind.concat());
                continue;
            }
            let users: Vec<At> = client.users.iter().map(|user| user.at).collect();
            let rules = sliced(RULES, ticks(2));
            let mut done: Vec<_> = client.on(&rules, event).iter().map(first_word).collect();
            done.extend(client.lock.retired.last.iter().map(|_| "Retire".to_owned()));
            let woken = client.lock.queue.tickets.iter().filter(|ticket| ticket.waiter.is_woken);
            done.extend(woken.map(|_| "Wake".to_owned()));
            let moved = client.users.iter().zip(users).filter(|(user, before)| user.at != *before);
            done.extend(moved.map(|(user, _)| first_word(&user.at)));
            table += &format!(
                "{name} | {} | {} | {}\n",
                kind.concat(),
                STAGES[stage(&client.lock)],
                done.join(", ")
            );
        }
        table += &format!("{name} | never came: {}\n", never.join("; "));
        let after = moves.iter().filter(|(from, _)| *from == before).map(|(_, to)| STAGES[*to]);
        table += &format!("{name} | leads to: {}\n", after.collect::<Vec<_>>().join("; "));
    }
    table
}

pub(super) fn has_row(table: &str, stage: usize, kind: &Name) -> bool {
    let row = format!("{} | {} |", STAGES[stage], kind.concat());
    table.lines().any(|line| line.starts_with(&row))
}

fn first_word(what: &impl std::fmt::Debug) -> String {
    format!("{what:?}").split([' ', '(']).next().unwrap_or_default().to_owned()
}

#[test]
fn the_architecture_page_shows_all_transitions_between_stages() {
    let word = |name: &str| {
        name.trim_start_matches('`').split([' ', ',', '`']).next().unwrap_or_default().to_owned()
    };
    let pairs: BTreeSet<_> = moves(include_str!("table.txt"))
        .into_iter()
        .map(|(from, to)| (word(STAGES[from]), word(STAGES[to])))
        .filter(|(from, to)| from != to)
        .collect();
    let page = std::fs::read_to_string("docs/architecture.md").unwrap();
    let shown = page.lines().skip_while(|line| !line.starts_with("| Stage | Next |")).skip(2);
    let shown = shown.take_while(|line| line.starts_with('|')).flat_map(|line| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let to = cells[2].split(", ").map(word).collect::<Vec<_>>();
        to.into_iter().map(move |to| (word(cells[1]), to))
    });
    assert_eq!(shown.collect::<BTreeSet<_>>(), pairs);
}
