//! Impossible histories, which both checkers must refuse, and some at the edge, which both must accept. Then
//! random ones, on which both must agree.

use std::collections::BTreeSet;

use crate::judge::{judge, program};
use crate::support::history::checker::check;
use crate::support::history::operations::{Doing, Model, Operation, write};
use crate::support::random;

struct Made(Vec<Operation>, Model, &'static str);

type Time = (u64, u64);

impl Made {
    fn push(&mut self, f: Doing, hold: u64, time: (u64, Option<u64>)) -> &mut Operation {
        self.0.push(Operation::new(self.2, self.1, f, hold, time));
        self.0.last_mut().unwrap()
    }

    fn acquires(mut self, hold: u64, time: Time) -> Made {
        self.push(Doing::Acquire, hold, (time.0, Some(time.1))).owner = hold.to_string();
        self
    }

    fn with_token(mut self, hold: u64, token: u64, time: Time) -> Made {
        self.push(Doing::Acquire, hold, (time.0, Some(time.1))).fence = Some(token);
        self
    }

    fn reenters(mut self, hold: u64, time: Time) -> Made {
        self.push(Doing::Reenter, hold, (time.0, Some(time.1)));
        self
    }

    fn ends(mut self, hold: u64, time: Time) -> Made {
        let mode = self.mode_of(hold);
        self.push(Doing::End, hold, (time.0, Some(time.1))).mode = mode;
        self
    }

    /// The hold was promised until then, and its holder noted no end.
    fn lapses(mut self, hold: u64, from: u64) -> Made {
        let mode = self.mode_of(hold);
        self.push(Doing::End, hold, (from, None)).mode = mode;
        self
    }

    fn free(mut self, time: Time) -> Made {
        self.push(Doing::Free, 0, (time.0, Some(time.1)));
        self
    }

    fn reads(self, hold: u64, time: Time) -> Made {
        self.in_mode("read", &hold.to_string(), hold, time)
    }

    fn writes(self, hold: u64, time: Time) -> Made {
        self.in_mode("write", &hold.to_string(), hold, time)
    }

    fn in_mode(mut self, mode: &str, owner: &str, hold: u64, time: Time) -> Made {
        let made = self.push(Doing::Acquire, hold, (time.0, Some(time.1)));
        (made.mode, made.owner) = (mode.to_owned(), owner.to_owned());
        self
    }

    fn mode_of(&self, hold: u64) -> String {
        let of = |operation: &&Operation| operation.hold == hold && operation.f == Doing::Acquire;
        self.0.iter().find(of).map(|operation| operation.mode.clone()).unwrap_or_default()
    }

    fn takes(mut self, hold: u64, units: i64, time: Time) -> Made {
        self.push(Doing::Acquire, hold, (time.0, Some(time.1))).units = units;
        self
    }

    fn available(mut self, value: i64, time: Time) -> Made {
        self.push(Doing::Available, 0, (time.0, Some(time.1))).value = Some(value);
        self
    }

    fn counts_down(mut self, value: i64, time: Time) -> Made {
        self.push(Doing::CountDown, 0, (time.0, Some(time.1))).value = Some(value);
        self
    }

    fn may_count_down(mut self, call: u64) -> Made {
        self.push(Doing::CountDown, 0, (call, None));
        self
    }

    fn counts(mut self, value: i64, time: Time) -> Made {
        self.push(Doing::Count, 0, (time.0, Some(time.1))).value = Some(value);
        self
    }

    fn done(mut self) -> Vec<Operation> {
        let of_holds = |operation: &&mut Operation| operation.f == Doing::End;
        let units: Vec<(u64, i64)> =
            self.0.iter().map(|operation| (operation.hold, operation.units)).collect();
        for end in self.0.iter_mut().filter(of_holds) {
            end.units = units.iter().find(|(hold, _)| *hold == end.hold).map_or(0, |(_, units)| *units);
        }
        self.0.iter_mut().for_each(|operation| operation.limit = LIMIT);
        self.0
    }
}

/// The limit of semaphores, and the first count of latches.
const LIMIT: i64 = 3;

fn mutex(name: &'static str) -> Made {
    Made(Vec::new(), Model::Mutex, name)
}

fn read_write(name: &'static str) -> Made {
    Made(Vec::new(), Model::ReadWrite, name)
}

fn semaphore(name: &'static str) -> Made {
    Made(Vec::new(), Model::Semaphore, name)
}

fn latch(name: &'static str) -> Made {
    Made(Vec::new(), Model::Latch, name)
}

fn bad() -> Vec<Made> {
    vec![
        mutex("two owners at once").acquires(1, (1, 2)).ends(1, (9, 10)).acquires(2, (3, 4)).ends(2, (5, 6)),
        mutex("a second owner a moment before the first ends")
            .acquires(1, (1, 2))
            .ends(1, (9, 10))
            .acquires(2, (3, 8)),
        mutex("one that never ends, and another").acquires(1, (1, 2)).acquires(2, (3, 4)),
        mutex("granted before a lost lease is over").acquires(1, (1, 2)).lapses(1, 30).acquires(2, (5, 29)),
        mutex("granted while a dead holder's lease runs")
            .acquires(1, (1, 2))
            .lapses(1, 30)
            .acquires(2, (25, 26))
            .ends(2, (27, 28)),
        mutex("three, of whom two at once")
            .acquires(1, (1, 2))
            .ends(1, (3, 4))
            .acquires(2, (5, 6))
            .ends(2, (20, 21))
            .acquires(3, (7, 8)),
        mutex("one acquire, two ends").acquires(1, (1, 2)).ends(1, (3, 4)).ends(1, (5, 6)),
        mutex("an end without a hold").acquires(1, (1, 2)).ends(1, (3, 4)).ends(2, (5, 6)),
        mutex("ended before it began").ends(1, (1, 2)).acquires(1, (3, 4)),
        mutex("seen free while held").acquires(1, (1, 2)).free((3, 4)).ends(1, (5, 6)),
        mutex("seen free between two who leave no gap")
            .acquires(1, (1, 2))
            .ends(1, (10, 12))
            .free((4, 9))
            .acquires(2, (9, 12)),
        mutex("entered again after its end").acquires(1, (1, 2)).ends(1, (3, 4)).reenters(1, (5, 6)),
        mutex("entered again under another owner")
            .acquires(1, (1, 2))
            .lapses(1, 5)
            .acquires(2, (6, 7))
            .reenters(1, (8, 9))
            .ends(2, (20, 21)),
        mutex("entered again, and another before that")
            .acquires(1, (1, 2))
            .lapses(1, 5)
            .acquires(2, (6, 7))
            .ends(2, (8, 9))
            .reenters(1, (12, 13)),
        mutex("the same token twice").with_token(1, 7, (1, 2)).ends(1, (3, 4)).with_token(2, 7, (5, 6)),
        mutex("a token that falls")
            .with_token(1, 7, (1, 2))
            .ends(1, (3, 4))
            .with_token(2, 8, (5, 6))
            .ends(2, (7, 8))
            .with_token(3, 6, (9, 10)),
        mutex("no token above zero").with_token(1, 0, (1, 2)).ends(1, (3, 4)),
        read_write("two writers").writes(1, (1, 2)).ends(1, (9, 10)).writes(2, (3, 4)),
        read_write("a reader under a writer")
            .writes(1, (1, 2))
            .ends(1, (9, 10))
            .reads(2, (3, 4))
            .ends(2, (5, 6)),
        read_write("a writer over a reader").reads(1, (1, 2)).ends(1, (9, 10)).writes(2, (3, 4)),
        read_write("a writer over one of two readers")
            .reads(1, (1, 2))
            .reads(2, (1, 2))
            .ends(1, (3, 4))
            .writes(3, (5, 6))
            .ends(2, (9, 10)),
        read_write("a reader who goes on when a writer's lease does")
            .writes(1, (1, 2))
            .lapses(1, 30)
            .reads(2, (10, 12)),
        read_write("a reader becomes a writer")
            .in_mode("read", "me", 1, (1, 2))
            .in_mode("write", "me", 2, (3, 4))
            .ends(2, (5, 6))
            .ends(1, (7, 8)),
        read_write("the writer seen gone").writes(1, (1, 2)).free((3, 4)).ends(1, (5, 6)),
        semaphore("a unit too many")
            .takes(1, 2, (1, 2))
            .takes(2, 1, (1, 2))
            .takes(3, 1, (3, 4))
            .ends(1, (5, 6)),
        semaphore("more than there are").takes(1, 4, (1, 2)),
        semaphore("a unit twice").takes(1, 3, (1, 2)).lapses(1, 20).takes(2, 1, (5, 19)),
        semaphore("given back twice").takes(1, 1, (1, 2)).ends(1, (3, 4)).ends(1, (5, 6)),
        semaphore("seen available while taken").takes(1, 2, (1, 2)).available(2, (3, 4)).ends(1, (5, 6)),
        latch("counted down to the same twice").counts_down(2, (1, 2)).counts_down(2, (3, 4)),
        latch("counted down by two").counts_down(2, (1, 2)).counts_down(0, (3, 4)),
        latch("more left than before").counts_down(2, (1, 2)).counts(3, (3, 4)),
        latch("less left than was counted").counts(2, (1, 2)).counts_down(2, (3, 4)),
        latch("an answer that was lost counts before it was asked").counts(2, (1, 2)).may_count_down(3),
        latch("more left than it began with").counts(4, (1, 2)),
    ]
}

fn good() -> Vec<Made> {
    vec![
        mutex("one after the other").acquires(1, (1, 2)).ends(1, (3, 4)).acquires(2, (3, 5)).ends(2, (6, 7)),
        mutex("at the same moment").acquires(1, (1, 2)).ends(1, (5, 9)).acquires(2, (3, 5)),
        mutex("after a lease that ran out")
            .acquires(1, (1, 2))
            .lapses(1, 30)
            .acquires(2, (5, 31))
            .ends(2, (40, 41)),
        mutex("free for a moment").acquires(1, (1, 2)).ends(1, (5, 9)).free((3, 6)).acquires(2, (4, 9)),
        mutex("entered again late").acquires(1, (1, 2)).lapses(1, 5).reenters(1, (4, 9)).acquires(2, (6, 12)),
        mutex("tokens").with_token(1, 7, (1, 2)).ends(1, (3, 4)).with_token(2, 9, (3, 6)),
        read_write("readers, then a writer")
            .reads(1, (1, 2))
            .reads(2, (1, 3))
            .ends(1, (4, 5))
            .ends(2, (6, 7))
            .writes(3, (3, 8)),
        read_write("a writer reads")
            .in_mode("write", "me", 1, (1, 2))
            .in_mode("read", "me", 2, (3, 4))
            .ends(1, (5, 6))
            .reads(3, (7, 8)),
        semaphore("all units").takes(1, 2, (1, 2)).takes(2, 1, (1, 2)).ends(1, (3, 4)).takes(3, 2, (1, 6)),
        semaphore("some are left")
            .takes(1, 2, (1, 2))
            .available(1, (3, 4))
            .ends(1, (5, 6))
            .available(3, (5, 7)),
        latch("down")
            .counts(3, (1, 2))
            .counts_down(2, (1, 4))
            .may_count_down(3)
            .counts_down(0, (5, 6))
            .counts(0, (6, 7)),
        latch("without an answer, and not done").counts_down(2, (1, 2)).may_count_down(3).counts(2, (8, 9)),
    ]
}

/// The histories that Porcupine and our checker refuse.
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
fn both_checkers_judge_histories_alike() {
    let (bad, good) = (bad(), good());
    assert!(bad.len() >= 25);
    let names: BTreeSet<String> = bad.iter().map(|made| made.2.to_owned()).collect();
    assert_eq!(names.len(), bad.len());
    let all: Vec<Operation> = bad.into_iter().chain(good).flat_map(Made::done).collect();
    let (ours, theirs) = refused(&all);
    for refused in [Some(ours), theirs].into_iter().flatten() {
        let wrong: Vec<&String> = refused.symmetric_difference(&names).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}

/// Histories of a lock that owners take and release at random times, so that about half are possible.
#[test]
fn of_random_histories_both_checkers_say_the_same() {
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
    // Later holds mostly begin when earlier ones may have ended.
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
        let end = acquired + 1 + below(8); // a hold lasts
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
