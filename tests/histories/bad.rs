//! Impossible histories, which both checkers must refuse, and barely possible ones, which both must accept.
//! Both checkers must also agree on random histories.

use std::collections::BTreeSet;

use crate::judge::{judge, program};
use crate::support::history::checker::check;
use crate::support::history::operations::{Doing, Model, Operation, write};
use crate::support::random;

const LIMIT: i64 = 3;

/// Histories, one a line: the lock's kind, what is wrong, and steps. A step has a verb, up to two words, and
/// the times of call and return (one time: no answer came, or an `end` is an expiry). The first word is the
/// hold's number, or what `available`, `count` or `count-down` returned; the second: token, units or owner.
const BAD: &str = "
mutex two owners at once: acquire 1 1-2; end 1 9-10; acquire 2 3-4; end 2 5-6
mutex a second owner a moment before the first ends: acquire 1 1-2; end 1 9-10; acquire 2 3-8
mutex one that never ends, and another: acquire 1 1-2; acquire 2 3-4
mutex granted before a lost lease is over: acquire 1 1-2; end 1 30; acquire 2 5-29
mutex granted while a dead holder's lease runs: acquire 1 1-2; end 1 30; acquire 2 25-26; end 2 27-28
mutex three, of whom two at once: acquire 1 1-2; end 1 3-4; acquire 2 5-6; end 2 20-21; acquire 3 7-8
mutex one acquire, two ends: acquire 1 1-2; end 1 3-4; end 1 5-6
mutex an end without a hold: acquire 1 1-2; end 1 3-4; end 2 5-6
mutex ended before it began: end 1 1-2; acquire 1 3-4
mutex seen free while held: acquire 1 1-2; free 3-4; end 1 5-6
mutex seen free between two who leave no gap: acquire 1 1-2; end 1 10-12; free 4-9; acquire 2 9-12
mutex entered again after its end: acquire 1 1-2; end 1 3-4; reenter 1 5-6
mutex entered again under another owner: acquire 1 1-2; end 1 5; acquire 2 6-7; reenter 1 8-9; end 2 20-21
mutex entered again, and another before that: acquire 1 1-2; end 1 5; acquire 2 6-7; end 2 8-9; reenter 1 12-13
mutex the same token twice: token 1 7 1-2; end 1 3-4; token 2 7 5-6
mutex a token that falls: token 1 7 1-2; end 1 3-4; token 2 8 5-6; end 2 7-8; token 3 6 9-10
mutex no token above zero: token 1 0 1-2; end 1 3-4
read-write two writers: write 1 1-2; end 1 9-10; write 2 3-4
read-write a reader under a writer: write 1 1-2; end 1 9-10; read 2 3-4; end 2 5-6
read-write a writer over a reader: read 1 1-2; end 1 9-10; write 2 3-4
read-write a writer over one of two readers: read 1 1-2; read 2 1-2; end 1 3-4; write 3 5-6; end 2 9-10
read-write a reader who goes on when a writer's lease does: write 1 1-2; end 1 30; read 2 10-12
read-write a reader becomes a writer: read 1 me 1-2; write 2 me 3-4; end 2 5-6; end 1 7-8
read-write the writer seen gone: write 1 1-2; free 3-4; end 1 5-6
semaphore a unit too many: take 1 2 1-2; take 2 1 1-2; take 3 1 3-4; end 1 5-6
semaphore more than there are: take 1 4 1-2
semaphore a unit twice: take 1 3 1-2; end 1 20; take 2 1 5-19
semaphore given back twice: take 1 1 1-2; end 1 3-4; end 1 5-6
semaphore seen available while taken: take 1 2 1-2; available 2 3-4; end 1 5-6
latch counted down to the same twice: count-down 2 1-2; count-down 2 3-4
latch counted down by two: count-down 2 1-2; count-down 0 3-4
latch more left than before: count-down 2 1-2; count 3 3-4
latch less left than was counted: count 2 1-2; count-down 2 3-4
latch an answer that was lost counts before it was asked: count 2 1-2; count-down 3
latch more left than it began with: count 4 1-2";

const GOOD: &str = "
mutex one after the other: acquire 1 1-2; end 1 3-4; acquire 2 3-5; end 2 6-7
mutex at the same moment: acquire 1 1-2; end 1 5-9; acquire 2 3-5
mutex after a lease that ran out: acquire 1 1-2; end 1 30; acquire 2 5-31; end 2 40-41
mutex free for a moment: acquire 1 1-2; end 1 5-9; free 3-6; acquire 2 4-9
mutex entered again late: acquire 1 1-2; end 1 5; reenter 1 4-9; acquire 2 6-12
mutex tokens: token 1 7 1-2; end 1 3-4; token 2 9 3-6
read-write readers, then a writer: read 1 1-2; read 2 1-3; end 1 4-5; end 2 6-7; write 3 3-8
read-write a writer reads: write 1 me 1-2; read 2 me 3-4; end 1 5-6; read 3 7-8
semaphore all units: take 1 2 1-2; take 2 1 1-2; end 1 3-4; take 3 2 1-6
semaphore some are left: take 1 2 1-2; available 1 3-4; end 1 5-6; available 3 5-7
latch down: count 3 1-2; count-down 2 1-4; count-down 3; count-down 0 5-6; count 0 6-7
latch without an answer, and not done: count-down 2 1-2; count-down 3; count 2 8-9";

fn operations(line: &str) -> Vec<Operation> {
    let (lock, steps) = line.split_once(": ").unwrap();
    let (model, lock) = lock.split_once(' ').unwrap();
    let model = match model {
        "mutex" => Model::Mutex,
        "read-write" => Model::ReadWrite,
        "semaphore" => Model::Semaphore,
        "latch" => Model::Latch,
        other => panic!("no model: {other}"),
    };
    let mut made = Vec::new();
    for step in steps.split("; ") {
        made.push(operation(lock, model, step, &made));
    }
    made
}

fn operation(lock: &str, model: Model, step: &str, earlier: &[Operation]) -> Operation {
    let words: Vec<&str> = step.split(' ').collect();
    let [verb, .., time] = words[..] else { panic!("{step}") };
    let number = |at: usize| words[at].parse::<u64>().unwrap();
    let signed = |at: usize| words[at].parse::<i64>().unwrap();
    let time = match time.split_once('-') {
        Some((call, ret)) => (call.parse().unwrap(), Some(ret.parse().unwrap())),
        None => (time.parse().unwrap(), None),
    };
    let (f, hold) = match verb {
        "acquire" | "token" | "read" | "write" | "take" => (Doing::Acquire, number(1)),
        "reenter" => (Doing::Reenter, number(1)),
        "end" => (Doing::End, number(1)),
        "free" => (Doing::Free, 0),
        "available" => (Doing::Available, 0),
        "count-down" => (Doing::CountDown, 0),
        "count" => (Doing::Count, 0),
        other => panic!("no verb: {other}"),
    };
    let mut made = Operation::new(lock, model, f, hold, time);
    made.limit = LIMIT;
    match verb {
        "acquire" => made.owner = hold.to_string(),
        "token" => made.fence = Some(number(2)),
        "read" | "write" => {
            made.mode = verb.to_owned();
            made.owner = words[if words.len() > 3 { 2 } else { 1 }].to_owned();
        }
        "take" => made.units = signed(2),
        "end" => {
            if let Some(begun) = earlier.iter().find(|one| one.hold == hold && one.f == Doing::Acquire) {
                (made.mode, made.units) = (begun.mode.clone(), begun.units);
            }
        }
        "available" | "count" | "count-down" if words.len() > 2 => made.value = Some(signed(1)),
        _ => {}
    }
    made
}

fn histories(text: &str) -> impl Iterator<Item = Vec<Operation>> {
    text.trim().lines().map(operations)
}

/// The histories that our checker refuses, and those that Porcupine refuses, if it is built.
fn refused(operations: &[Operation]) -> (BTreeSet<String>, Option<BTreeSet<String>>) {
    let ours = check(operations).into_keys().collect();
    let theirs = program().map(|program| {
        let file = tempfile::NamedTempFile::new().unwrap();
        write(file.path(), operations);
        let verdict = judge(&program, file.path());
        assert_eq!(verdict.operations, operations.len());
        assert!(verdict.undecided.is_empty(), "{verdict:?}");
        verdict.illegal
    });
    (ours, theirs)
}

#[test]
fn both_history_checkers_refuse_exactly_the_bad_histories() {
    let names: BTreeSet<String> = histories(BAD).map(|history| history[0].lock.clone()).collect();
    assert_eq!(names.len(), BAD.trim().lines().count());
    let all: Vec<Operation> = histories(BAD).chain(histories(GOOD)).flatten().collect();
    let (ours, theirs) = refused(&all);
    for refused in [Some(ours), theirs].into_iter().flatten() {
        let wrong: Vec<&String> = refused.symmetric_difference(&names).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}

/// The random times are chosen so that about half of the histories are possible.
#[test]
fn both_history_checkers_judge_random_histories_alike() {
    let mut operations = Vec::new();
    for lock in 0..ROUNDS {
        let model = [Model::Mutex, Model::ReadWrite, Model::Semaphore, Model::Latch][lock % 4];
        let name = format!("{lock}");
        operations.extend(random_history(&name, model));
    }
    let (ours, theirs) = refused(&operations);
    let by = if theirs.is_some() { "both" } else { "ours" };
    let differ: Vec<&String> = ours.symmetric_difference(theirs.as_ref().unwrap_or(&ours)).collect();
    let of_first = |operation: &&Operation| differ.first() == Some(&&operation.lock);
    let first: Vec<Operation> = operations.iter().filter(of_first).cloned().collect();
    let found = check(&first);
    assert!(
        differ.is_empty(),
        "{} differ; of the first our checker finds {found:?} in {first:#?}",
        differ.len()
    );
    assert!((ROUNDS / 5..ROUNDS * 4 / 5).contains(&ours.len()), "{} of {ROUNDS} are refused", ours.len());
    crate::support::shout(&format!(
        "COUNTED {ROUNDS} random histories, {} of them refused by {by}",
        ours.len()
    ));
}

const ROUNDS: usize = 20_000;

fn below(limit: u64) -> u64 {
    random() % limit
}

fn random_history(lock: &str, model: Model) -> Vec<Operation> {
    let mut operations = Vec::new();
    // Each request follows `time`: the last hold's end, a semaphore's last grant, or a latch's last call.
    let mut time = 0;
    for hold in 1..=2 + below(5) {
        let call = time + below(4);
        if model == Model::Latch {
            let (f, value) = (
                if below(3) == 0 { Doing::Count } else { Doing::CountDown },
                LIMIT - i64::try_from(hold).unwrap(),
            );
            let ret = Some(call + below(5)).filter(|_| f == Doing::Count || below(4) > 0);
            let mut made = Operation::new(lock, model, f, hold, (call, ret));
            made.value = ret.map(|_| (value + i64::try_from(below(3)).unwrap() - 1).max(0));
            operations.push(made);
            time = call + below(4);
            continue;
        }
        let acquired = call + below(4);
        let end = acquired + 1 + below(8);
        let mut made = Operation::new(lock, model, Doing::Acquire, hold, (call, Some(acquired)));
        made.owner = hold.to_string();
        match model {
            Model::ReadWrite => made.mode = ["read", "read", "write"][below(3) as usize].to_owned(),
            Model::Semaphore => made.units = 1 + i64::try_from(below(2)).unwrap(),
            Model::Mutex if lock.len().is_multiple_of(2) => made.fence = Some(hold + below(20) / 19),
            Model::Mutex | Model::Latch => {}
        }
        let ended = Some(end + below(4)).filter(|_| below(4) > 0);
        let (f, value) = match model {
            Model::Semaphore => (Doing::Available, Some(i64::try_from(below(3)).unwrap())),
            _ => (Doing::Free, None),
        };
        if below(4) == 0 {
            let from = call + below(12);
            let mut look = Operation::new(lock, model, f, 0, (from, Some(from + below(6))));
            look.value = value;
            operations.push(look);
        }
        if model != Model::Semaphore && below(4) == 0 {
            let from = acquired + below(8);
            let mut again = Operation::new(lock, model, Doing::Reenter, hold, (from, Some(from + below(6))));
            again.mode = made.mode.clone();
            operations.push(again);
        }
        let mut over = Operation::new(lock, model, Doing::End, hold, (end, ended));
        (over.mode, over.units) = (made.mode.clone(), made.units);
        operations.extend([made, over]);
        time = if model == Model::Semaphore { acquired } else { end };
    }
    operations.iter_mut().for_each(|operation| operation.limit = LIMIT);
    operations
}
