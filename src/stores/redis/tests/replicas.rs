//! Grants that wait for replicas, on a server that gives scripted answers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Replicas, ServerOptions};
use crate::error::ErrorKind;
use crate::seam::{Failure, Kind, Store};
use crate::stores::redis::RedisStore;
use crate::stores::redis::tests::fake::{Act, Fake};
use crate::stores::redis::tests::harness::{Said, claim, granted, open, soon};
use crate::sync::Mutex;

const GRANTED: &str = "*1\r\n$7\r\ngranted\r\n";
const FREED: &str = "*1\r\n$5\r\nfreed\r\n";

/// The first words of the commands that are still to come, with their answers.
type Script = Arc<Mutex<VecDeque<(&'static str, &'static str)>>>;

/// Hangs up at any other command.
fn scripted(answers: &[(&'static str, &'static str)]) -> (Fake, RedisStore, Script) {
    let script: Script = Arc::new(Mutex::new(answers.iter().copied().collect()));
    let to_come = Arc::clone(&script);
    let fake = Fake::start(move |command| {
        let next = to_come.lock().pop_front();
        match next {
            Some((word, answer)) if command.split(' ').next() == Some(word) => Act::Say(answer),
            _ => Act::HangUp,
        }
    });
    let replicas = Some(Replicas { count: 1, within: Duration::from_millis(20) });
    let store = open(&ServerOptions { replicas, ..fake.options() });
    (fake, store, script)
}

#[test]
fn a_grant_on_too_few_replicas_is_in_doubt() {
    let granted_alone = [("eval", GRANTED), ("wait", ":0\r\n")];
    let undoing: [&[_]; 3] = [
        &[("evalsha", "-LOADING Redis is loading the dataset in memory\r\n")],
        // Somebody else has undone it, or the answer is about another hold.
        &[("evalsha", "*1\r\n$8\r\nnot_held\r\n")],
        &[],
    ];
    for undoing in undoing {
        let (_fake, store, script) = scripted(&[&granted_alone, undoing].concat());
        let answer = store.attempt(&claim(Kind::Mutex, "lk", 30_000), 1, soon());
        let Err(Failure::Unknown(error)) = answer else { panic!("{undoing:?}: not in doubt but {answer:?}") };
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
        assert!(script.lock().is_empty());
        store.close();
    }
}

/// The first wait was over before the script ran: nothing had been written that a replica could lack.
#[test]
fn a_script_that_was_sent_again_is_waited_for_again() {
    let (_fake, store, script) = scripted(&[
        ("eval", GRANTED),
        ("wait", ":1\r\n"),
        ("evalsha", "-NOSCRIPT No matching script. Please use EVAL.\r\n"),
        ("wait", ":1\r\n"),
        ("eval", GRANTED),
        ("wait", ":0\r\n"),
        ("evalsha", FREED),
    ]);
    granted(store.attempt(&claim(Kind::Mutex, "known", 30_000), 1, soon()));
    let error = store.attempt(&claim(Kind::Mutex, "forgotten", 30_000), 1, soon()).refused();
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    assert!(script.lock().is_empty());
    store.close();
}
