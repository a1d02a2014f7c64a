//! Questions whose answers may be slow or never come: to the system's resolver, or the program's provider of
//! credentials. Separate threads ask, a few at a time; each caller waits until its own deadline.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use crate::sync::{Condvar, Mutex, thread};
use crate::time::{Clock, Moment};

/// Maximum number of questions at the same time, including those that hang.
const MOST: usize = 4;
/// Time after which an unanswered question is asked again.
const STUCK: Duration = Duration::from_secs(10);
const MOST_KEPT: usize = 256;

pub(crate) type Cause = Arc<dyn StdError + Send + Sync>;
pub(crate) type Told<V> = Result<V, Cause>;
type Ask<V> = Box<dyn Fn(&str) -> Told<V> + Send + Sync>;

/// Asks a slow function about keys, on threads of its own: one question per key until its answer or `STUCK`.
pub(crate) struct Inquiry<V> {
    thread: &'static str,
    ask: Ask<V>,
    state: Mutex<InquiryState<V>>,
    changed: Condvar,
}

struct InquiryState<V> {
    topics: HashMap<Box<str>, Topic<V>>,
    running: usize,
}

struct Topic<V> {
    /// Number and time of the last question.
    asked: (u64, Moment),
    /// Number of the last answered question. Answers to older questions do not count.
    answered: u64,
    last: Option<(Moment, Told<V>)>,
}

impl<V: Clone + Send + 'static> Inquiry<V> {
    pub(crate) fn new(
        thread: &'static str,
        ask: impl Fn(&str) -> Told<V> + Send + Sync + 'static,
    ) -> Arc<Inquiry<V>> {
        let state = Mutex::new(InquiryState { topics: HashMap::new(), running: 0 });
        Arc::new(Inquiry { thread, ask: Box::new(ask), state, changed: Condvar::new() })
    }

    /// The answer about `key`. Reuses an answer younger than `fresh.0`, or a failure younger than `fresh.1`;
    /// otherwise waits for a new answer. If `fresh.0` is zero, its question must begin after this call.
    /// Half-way to `deadline`, returns the last answer unless it is a failure. `None`: none by `deadline`.
    pub(crate) fn answer(
        self: &Arc<Self>,
        key: &str,
        fresh: (Duration, Duration),
        deadline: Moment,
    ) -> Option<Told<V>> {
        let now = Clock::System.now();
        let mut state = self.state.lock();
        if state.topics.len() >= MOST_KEPT && !state.topics.contains_key(key) {
            state.topics.retain(|_, topic| topic.answered < topic.asked.0);
        }
        let topic = state.topic(key);
        let known = if fresh.0.is_zero() { topic.asked.0 } else { topic.answered };
        let before = match &topic.last {
            Some((at, Ok(value))) if now.since(*at) < fresh.0 => return Some(Ok(value.clone())),
            Some((at, Err(cause))) if now.since(*at) < fresh.1 => return Some(Err(Arc::clone(cause))),
            Some((_, Ok(value))) => Some(value.clone()),
            Some((_, Err(_))) | None => None,
        };
        let until = if before.is_some() { now.plus(deadline.since(now) / 2) } else { deadline };
        loop {
            let (now, has_room) = (Clock::System.now(), state.running < MOST);
            let topic = state.topic(key);
            if topic.answered > known
                && let Some((_, told)) = &topic.last
            {
                return Some(told.clone());
            }
            let is_idle = topic.answered == topic.asked.0 || now.since(topic.asked.1) >= STUCK;
            if is_idle && has_room {
                let number = topic.asked.0 + 1;
                topic.asked = (number, now);
                state.running += 1;
                if let Err(error) = self.start(key, number) {
                    state.end(key, number, Err(Arc::new(error)));
                    continue;
                }
            }
            let left = until.since(now);
            if left.is_zero() {
                return before.map(Ok);
            }
            self.changed.wait_for(&mut state, left);
        }
    }

    fn start(self: &Arc<Self>, key: &str, number: u64) -> std::io::Result<()> {
        let (inquiry, key) = (Arc::clone(self), key.to_owned());
        let work = move || {
            let told = (inquiry.ask)(&key);
            inquiry.state.lock().end(&key, number, told);
            inquiry.changed.notify_all();
        };
        thread::Builder::new().name(self.thread.to_owned()).spawn(work).map(drop)
    }
}

impl<V> InquiryState<V> {
    fn topic(&mut self, key: &str) -> &mut Topic<V> {
        let new = || Topic { asked: (0, Moment::from_nanos(0)), answered: 0, last: None };
        self.topics.entry(key.into()).or_insert_with(new)
    }

    fn end(&mut self, key: &str, number: u64, told: Told<V>) {
        self.running -= 1;
        let topic = self.topic(key);
        if number > topic.answered {
            topic.answered = number;
            topic.last = Some((Clock::System.now(), told));
        }
    }
}

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const FRESH: (Duration, Duration) = (Duration::from_secs(3600), Duration::ZERO);
    const ANEW: (Duration, Duration) = (Duration::ZERO, Duration::ZERO);

    fn soon(ms: u64) -> Moment {
        Clock::System.after(Duration::from_millis(ms))
    }

    /// An inquiry whose questions get the test's answers in order, and the number of questions so far.
    fn held() -> (Arc<Inquiry<u32>>, crossbeam_channel::Sender<Told<u32>>, Arc<AtomicUsize>) {
        let (sender, answers) = crossbeam_channel::unbounded::<Told<u32>>();
        let begun = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&begun);
        let inquiry = Inquiry::new("held", move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            answers.recv().unwrap_or_else(|over| Err(Arc::new(over)))
        });
        (inquiry, sender, begun)
    }

    #[test]
    fn hanging_look_ups_are_few_and_delay_no_caller_past_its_deadline() {
        let (inquiry, _never, begun) = held();
        for _ in 0..3 {
            assert!(inquiry.answer("hangs", FRESH, soon(20)).is_none());
        }
        assert!(begun.load(Ordering::SeqCst) <= 1, "several questions were asked at once");
        for number in 0..3 * MOST {
            assert!(inquiry.answer(&number.to_string(), FRESH, soon(1)).is_none());
        }
        assert!(inquiry.state.lock().running <= MOST && begun.load(Ordering::SeqCst) <= MOST);
        // A question that has hung for `STUCK` is asked again. The test sets the first question's time back.
        let (inquiry, answer, begun) = held();
        assert!(inquiry.answer("hangs", FRESH, soon(1)).is_none());
        inquiry.state.lock().topic("hangs").asked.1 = Moment::from_nanos(0);
        assert!(inquiry.answer("hangs", FRESH, soon(1)).is_none());
        answer.send(Ok(1)).unwrap();
        answer.send(Ok(1)).unwrap();
        assert!(matches!(inquiry.answer("hangs", FRESH, soon(20_000)), Some(Ok(1))));
        assert!(begun.load(Ordering::SeqCst) <= 2);
        inquiry.state.lock().running += 1;
        inquiry.state.lock().end("hangs", 0, Ok(9));
        assert!(matches!(inquiry.answer("hangs", FRESH, soon(20_000)), Some(Ok(1))));
    }

    #[test]
    fn an_old_look_up_answer_is_used_until_a_newer_one_arrives() {
        let (inquiry, sender, begun) = held();
        sender.send(Ok(1)).unwrap();
        for _ in 0..3 {
            assert_eq!(inquiry.answer("a", FRESH, soon(20_000)).unwrap().unwrap(), 1);
        }
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        sender.send(Ok(2)).unwrap();
        assert_eq!(inquiry.answer("a", ANEW, soon(20_000)).unwrap().unwrap(), 2);
        assert_eq!(inquiry.answer("a", ANEW, soon(20)).unwrap().unwrap(), 2, "the second question hangs");
        // Two errors: one answers the pending question, the other the next question.
        for _ in 0..2 {
            sender.send(Err(Arc::new(std::io::Error::other("none")))).unwrap();
        }
        assert_eq!(inquiry.answer("a", ANEW, soon(20_000)).unwrap().unwrap_err().to_string(), "none");
        let kept = (Duration::ZERO, Duration::from_secs(3600));
        assert_eq!(inquiry.answer("a", kept, soon(20_000)).unwrap().unwrap_err().to_string(), "none");
        sender.send(Ok(3)).unwrap();
        assert_eq!(
            inquiry.answer("a", FRESH, soon(20_000)).unwrap().unwrap(),
            3,
            "a failed answer was stored"
        );
    }

    #[test]
    fn the_number_of_remembered_look_up_answers_is_bounded() {
        let inquiry = Inquiry::new("at once", |_| Ok(1));
        for number in 0..3 * MOST_KEPT {
            assert!(inquiry.answer(&number.to_string(), FRESH, soon(20_000)).is_some());
        }
        assert!(inquiry.state.lock().topics.len() <= MOST_KEPT);
    }
}
