//! The looks at holds that are kept until others ask for them.

use super::answers::in_doubt;
use super::*;
use crate::engine::hold::LockEntry;
use crate::engine::renewals::CHUNK;
use crate::park::take_time;

const MS: Duration = Duration::from_millis(1);
const KEPT: Duration = Duration::from_secs(20);
/// Longer than it takes until the first look, and the first again.
const LOOKED: Duration = Duration::from_millis(200);

impl Keeping for Odd {
    fn hear(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        self.listen(claim, waker)
    }

    fn look(&self, claims: &[Claim], _: Moment) -> Vec<Answer<KeptLook>> {
        self.looks.fetch_add(claims.len(), Ordering::SeqCst);
        let scripted =
            |_: &Claim| self.looking.lock().pop_front().map_or(Ok(KeptLook::Stays), |answer| answer());
        claims.iter().map(scripted).collect()
    }
}

/// A client that keeps locks, by a clock that stands still.
struct Keeps {
    store: Arc<Odd>,
    clock: ManualClock,
    engine: Engine,
}

impl Keeps {
    fn begin() -> Keeps {
        let channel = Some(Arc::new(Channel::new("a", true)));
        let (store, clock) = (Arc::new(Odd { keeps: true, channel, ..Odd::default() }), ManualClock::new());
        let engine = engine(&store, &Clock::Manual(clock.clone()));
        Keeps { store, clock, engine }
    }

    fn lock(&self, name: &Arc<LockName>) -> Granted {
        let entry = self.engine.registry.entry(Kind::Mutex, name);
        let call = AcquireCall::new("lock", Kind::Mutex, (name, &entry), FOREVER);
        let terms = Terms { keep: Some(KEPT), ..Terms::default() };
        let granted = self.engine.acquire(&AcquireCall { terms, by_thread: true, ..call });
        granted.unwrap().unwrap()
    }

    fn unlock(&self, granted: &Granted) {
        self.engine.end_level("unlock", &granted.hold, Some(granted.level)).unwrap();
    }

    /// Held by the calling thread, to be kept from its end on.
    fn used(&self, name: &Arc<LockName>) -> Granted {
        let first = self.lock(name);
        self.unlock(&first); // from now on it listens for recalls
        let second = self.lock(name);
        assert!(second.hold.is_until_asked());
        second
    }

    /// As many locks that are kept and not in use. As lock values do, what is returned has to outlast them.
    fn keep_many(&self, many: usize) -> Vec<Arc<LockEntry>> {
        let name = |at| Arc::new(LockName::new(&"many".into(), format!("many {at}")).unwrap());
        let names: Vec<_> = (0..many).map(name).collect();
        let entries = names.iter().map(|name| self.engine.registry.entry(Kind::Mutex, name)).collect();
        // All listen before the first is kept: this store's releases are messages for each.
        for _ in 0..2 {
            names.iter().for_each(|name| self.unlock(&self.lock(name)));
        }
        assert_eq!(self.engine.registry.holds().len(), many);
        entries
    }
}

/// It may come to the store when the thread has the next hold, and renew or count for that.
#[test]
fn the_number_of_a_look_without_an_answer_is_not_that_of_the_next_hold() {
    let client = Keeps::begin();
    let (used, number) = (client.used(&name()), ThreadMark::current().number());
    client.store.looking.lock().push_back(Box::new(in_doubt));
    client.clock.advance(LOOKED);
    assert!(client.store.looks.load(Ordering::SeqCst) > 0);
    assert_eq!(ThreadMark::current().number(), number, "the hold is under it");
    client.unlock(&used);
    assert!(client.store.holder.lock().is_none(), "so it is not kept");
    let next = client.lock(&name());
    assert_ne!(next.hold.owner().number(), number);
    client.unlock(&next);
    // One that was answered leaves the number to the thread.
    let number = ThreadMark::current().number();
    let used = client.used(&name());
    client.clock.advance(LOOKED);
    client.unlock(&used);
    assert_eq!(client.lock(&name()).hold.owner().number(), number);
    client.engine.shutdown().unwrap();
}

#[test]
fn a_look_that_finds_the_lock_gone_ends_the_hold_and_one_that_finds_others_gives_it_back() {
    let client = Keeps::begin();
    let used = client.used(&name());
    *client.store.holder.lock() = None;
    client.store.looking.lock().push_back(Box::new(|| Ok(KeptLook::Lost)));
    client.clock.advance(LOOKED);
    let standing = used.hold.standing(client.clock.now());
    assert_eq!(standing, hold::Standing::Lost(LossReason::Gone));
    let error = client.engine.end_level("unlock", &used.hold, Some(used.level)).unwrap_err();
    assert_eq!(error.not_held(), Some(&NotHeld::Expired));
    // Of two looks each has its answer.
    for wanted in [false, true] {
        let used = client.used(&name());
        client.unlock(&used);
        assert!(client.store.holder.lock().is_some());
        let answer = if wanted { KeptLook::Wanted } else { KeptLook::Stays };
        client.store.looking.lock().push_back(Box::new(move || Ok(answer)));
        client.clock.advance(MS * 60);
        assert_eq!(client.store.holder.lock().is_none(), wanted);
        let again = client.lock(&name());
        client.engine.end_level("force", &again.hold, Some(again.level)).unwrap();
        client.engine.give_back_kept(again.hold.entry());
        comes_about("the release", || client.store.holder.lock().is_none());
    }
    client.engine.shutdown().unwrap();
}

/// The release of each takes as long as the rest may wait for it.
#[test]
fn of_many_holds_that_are_given_back_slowly_none_is_left() {
    const HOLDS: usize = 4;
    let client = Keeps::begin();
    let _values = client.keep_many(HOLDS);
    let slowly = |_| -> Script<Release> {
        let clock = client.engine.clock.clone();
        Box::new(move || {
            take_time(&clock, MS * 100);
            Ok(Release::Freed { others: Others::Nobody })
        })
    };
    client.store.releasing.lock().extend((0..HOLDS).map(slowly));
    client.clock.advance(KEPT + LOOKED * 10);
    assert_eq!(client.store.releasing.lock().len(), 0, "are kept for good");
    assert_eq!(client.engine.registry.holds().len(), 0);
    client.engine.shutdown().unwrap();
}

#[test]
fn more_holds_than_go_into_one_request_are_looked_at_in_each_round() {
    let client = Keeps::begin();
    let _values = client.keep_many(CHUNK + 1);
    client.clock.advance(MS * 60);
    assert_eq!(client.store.looks.load(Ordering::SeqCst), CHUNK + 1);
    assert_eq!(client.engine.registry.holds().len(), CHUNK + 1);
    client.engine.shutdown().unwrap();
}

#[test]
fn a_look_that_finds_the_lock_gone_is_no_recall() {
    let client = Keeps::begin();
    for _ in 0..2 {
        let used = client.used(&name());
        client.unlock(&used);
        *client.store.holder.lock() = None;
        client.store.looking.lock().push_back(Box::new(|| Ok(KeptLook::Lost)));
        client.clock.advance(MS * 60);
    }
    client.unlock(&client.used(&name()));
    client.engine.shutdown().unwrap();
}
