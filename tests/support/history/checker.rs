//! Checks a history by the intervals of its holds. (The other checker, Porcupine, searches for an order of
//! all operations that explains the history.)
//!
//! A hold certainly exists from the return of its acquire, or of a re-entry, to the call of its end. If no
//! such intervals conflict, the history is possible: each acquire took effect when it returned, and each end
//! when it was called.

use std::collections::BTreeMap;

use super::operations::{Doing, Model, Operation, by_lock};

/// The interval in which a hold certainly exists; `from` and `to` themselves do not belong to it.
#[derive(Clone, Debug)]
struct CertainHold<'a> {
    by: &'a Operation,
    from: u64,
    to: u64,
    /// The call of the acquire, and the latest possible end: the hold can exist only between these times.
    within: (u64, u64),
}

impl CertainHold<'_> {
    fn meets(&self, other: &CertainHold<'_>) -> bool {
        self.from.max(other.from) < self.to.min(other.to)
    }

    fn is_at(&self, time: u64) -> bool {
        self.from < time && time < self.to
    }
}

pub fn check(operations: &[Operation]) -> BTreeMap<String, Vec<String>> {
    let mut bad = BTreeMap::new();
    for (lock, operations) in by_lock(operations) {
        let found = match operations[0].model {
            Model::Latch => check_latch(&operations),
            Model::Mutex | Model::ReadWrite | Model::Semaphore => check_holds(&operations),
        };
        if !found.is_empty() {
            bad.insert(lock.to_owned(), found);
        }
    }
    bad
}

fn check_holds(operations: &[&Operation]) -> Vec<String> {
    let mut found = Vec::new();
    let mut holds: BTreeMap<u64, CertainHold<'_>> = BTreeMap::new();
    for by in operations.iter().filter(|operation| operation.f == Doing::Acquire) {
        let stands = CertainHold { by, from: by.done(), to: u64::MAX, within: (by.call, u64::MAX) };
        if holds.insert(by.hold, stands).is_some() {
            found.push(format!("hold {} was acquired twice", by.hold));
        }
    }
    for end in operations.iter().filter(|operation| operation.f == Doing::End) {
        match holds.get_mut(&end.hold) {
            Some(hold) if hold.to == u64::MAX && hold.from <= end.call => {
                (hold.to, hold.within.1) = (end.call, end.done());
            }
            _ => found.push(format!("hold {} ends that did not stand", end.hold)),
        }
    }
    for again in operations.iter().filter(|operation| operation.f == Doing::Reenter) {
        match holds.get_mut(&again.hold) {
            Some(hold) if hold.within.0 <= again.done() && again.call <= hold.within.1 => {
                hold.from = hold.from.min(again.done());
                hold.to = hold.to.max(again.call);
            }
            _ => found.push(format!("hold {} was entered again that did not stand", again.hold)),
        }
    }
    let mut holds: Vec<CertainHold<'_>> = holds.into_values().collect();
    holds.sort_by_key(|hold| (hold.from, hold.to));
    found.extend(overlaps(&holds));
    found.extend(
        holds.iter().filter(|hold| hold.by.fence == Some(0)).map(|_| "a token that is none".to_owned()),
    );
    found.extend(holds.windows(2).filter(|pair| pair[0].by.fence.is_some()).filter_map(|pair| {
        let (first, then) = (pair[0].by.fence, pair[1].by.fence);
        (first >= then).then(|| format!("token {then:?} after {first:?}"))
    }));
    found.extend(operations.iter().filter_map(|look| {
        let at =
            [look.call, look.done()].into_iter().chain(holds.iter().flat_map(|hold| [hold.from, hold.to]));
        let mut at = at.filter(|time| (look.call..=look.done()).contains(time));
        let possible = match look.f {
            Doing::Free => {
                at.any(|time| !holds.iter().any(|hold| hold.by.mode != "read" && hold.is_at(time)))
            }
            Doing::Available => at.any(|time| {
                let used = holds.iter().filter(|hold| hold.is_at(time)).map(|hold| hold.by.units);
                used.sum::<i64>() + look.value.unwrap_or(i64::MAX / 2) <= look.limit
            }),
            _ => true,
        };
        (!possible).then(|| format!("{look:?} while it was not so"))
    }));
    found
}

/// Texts about holds that exclude each other but certainly existed at once.
fn overlaps(holds: &[CertainHold<'_>]) -> Vec<String> {
    let mut found = Vec::new();
    let mut open: Vec<&CertainHold<'_>> = Vec::new();
    for hold in holds {
        open.retain(|other| other.to > hold.from);
        let met: Vec<_> = open.iter().filter(|other| other.meets(hold)).collect();
        let by = hold.by;
        match by.model {
            Model::Semaphore => {
                // A hold with an empty interval uses no units at any moment.
                let used = met.iter().map(|other| other.by.units).sum::<i64>() + by.units;
                if hold.from < hold.to && used > by.limit {
                    found.push(format!("{used} units of {} at once, with hold {}", by.limit, by.hold));
                }
            }
            Model::Mutex | Model::ReadWrite | Model::Latch => found.extend(
                met.iter()
                    .filter(|other| {
                        let both_read = other.by.mode == "read" && by.mode == "read";
                        let writer_reads =
                            other.by.mode == "write" && by.mode == "read" && other.by.owner == by.owner;
                        !both_read && !writer_reads
                    })
                    .map(|other| format!("holds {} and {} at once", other.by.hold, by.hold)),
            ),
        }
        open.push(hold);
    }
    found
}

fn check_latch(operations: &[&Operation]) -> Vec<String> {
    let mut found = Vec::new();
    // The count only falls. So an operation that saw a higher count must begin before an operation that saw a
    // lower count ends.
    let mut told: Vec<&&Operation> =
        operations.iter().filter(|operation| operation.value.is_some()).collect();
    told.sort_by_key(|operation| {
        (std::cmp::Reverse(operation.value), operation.f == Doing::Count, operation.call)
    });
    let mut last_call = 0;
    for operation in &told {
        if operation.done() < last_call {
            found.push(format!("{operation:?} after fewer were left"));
        }
        last_call = last_call.max(operation.call);
    }
    let limit = operations[0].limit;
    let mut lost: Vec<&&Operation> =
        operations.iter().filter(|operation| operation.value.is_none()).collect();
    lost.sort_by_key(|operation| operation.call);
    let least = told.last().and_then(|operation| operation.value).unwrap_or(limit);
    for value in (least..limit).rev() {
        let here: Vec<_> = told.iter().filter(|operation| operation.value == Some(value)).collect();
        let downs: Vec<_> = here.iter().filter(|operation| operation.f == Doing::CountDown).collect();
        match downs.len() {
            // No answered count-down led to this count, so an unanswered one must have done so.
            0 => {
                let latest = told
                    .iter()
                    .filter(|operation| operation.value <= Some(value))
                    .map(|operation| operation.done())
                    .min()
                    .unwrap_or(u64::MAX);
                match lost.iter().position(|operation| operation.call <= latest) {
                    Some(at) => drop(lost.remove(at)),
                    None => found.push(format!("nobody counted down to {value}")),
                }
            }
            1 => {}
            _ => found.push(format!("{value} were left after two count-downs")),
        }
    }
    for operation in told {
        let most = if operation.f == Doing::CountDown { limit - 1 } else { limit };
        if !(0..=most).contains(&operation.value.unwrap_or(-1)) {
            found.push(format!("{operation:?} of {limit}"));
        }
    }
    found
}
