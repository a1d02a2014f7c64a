//! A reentrant lock as many articles have it: a hash, HINCRBY, EXPIRE in whole seconds, and a silent release.
//! Ours shares its key.

use redis::{Connection, Script};

use crate::scene::{alone, calls, monotonic, own_time_between, rust};
use crate::support::prelude::*;

const LEASE: Duration = Duration::from_secs(30);
/// The safety poll comes within 1.2 s; the rest is slack.
const UNTOLD_BUT_FOUND: Duration = Duration::from_millis(1_450);

struct Handwritten {
    redis: Connection,
    owner: &'static str,
    take: Script,
    give: Script,
}

impl Handwritten {
    fn new(redis: Connection) -> Handwritten {
        // KEYS[1] the lock; ARGV[1] who asks; ARGV[2] seconds. Returns 1 if taken, 0 if somebody else has it.
        let take = Script::new(
            "if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
                 return 0
             end
             redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
             redis.call('EXPIRE', KEYS[1], ARGV[2])
             return 1",
        );
        // KEYS[1] the lock; ARGV[1] who gives it back. Returns the holds left, or nil if it had none.
        let give = Script::new(
            "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
                 return false
             end
             local left = redis.call('HINCRBY', KEYS[1], ARGV[1], -1)
             if left == 0 then
                 redis.call('DEL', KEYS[1])
             end
             return left",
        );
        Handwritten { redis, owner: "worker-7", take, give }
    }

    fn take(&mut self, name: &str) -> bool {
        self.take.key(name).arg(self.owner).arg(10).invoke::<u8>(&mut self.redis).unwrap() == 1
    }

    fn give(&mut self, name: &str) -> Option<u32> {
        self.give.key(name).arg(self.owner).invoke(&mut self.redis).unwrap()
    }
}

#[test]
fn polling_finds_a_release_without_a_message() {
    let _alone = alone();
    let Some(server) = RedisServer::start_default() else { return };
    let mut admin = server.admin();
    let mut peer = Handwritten::new(server.admin());
    let client = rust(&server.url(), LEASE);
    for round in 0..4 {
        let name = format!("untold-{round}");
        assert!(peer.take(&name));
        let before = calls(&mut admin, &["eval", "evalsha"]);
        let lock = client.get_lock(&name);
        let waiter = call(move || {
            lock.lock().unwrap();
            let got = monotonic();
            lock.unlock().unwrap();
            got
        });
        // The waiter has made both attempts, before and after subscribing: now only the safety poll can find
        // the lock.
        wait_until("our waiter sleeps", LONG, || calls(&mut admin, &["eval", "evalsha"]) >= before + 2);
        assert!(waiter.is_open());
        let begun = monotonic();
        assert_eq!(peer.give(&name), Some(0));
        let delay = own_time_between(begun, waiter.join());
        assert!(delay <= UNTOLD_BUT_FOUND, "found after {delay:?}");
    }
}
