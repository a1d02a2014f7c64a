//! Mutants: each changes one script, and a model must then reach the wrong state that the change allows.

mod changed;
mod page;

use changed::{Change, kind_named};
use leasehold_proof::lua::{self, Scripts};
use leasehold_proof::worlds::{explored, worlds};

/// Changes (see [`changed`]). A head has the file, the kind of lock to explore, and words of the expected
/// fault.
const MUTANTS: &str = r#"
acquire_rest.lua | Plain | two hold it
-   local wait_ms, why = ttl_ms ~= -2 and ttl_ms, 'foreign'
+   local wait_ms, why = false, 'foreign'

acquire.lua | Plain | has no end
-   local expiring = redis.pcall('pexpire', lock, lease_ms)
+   local expiring = 1

acquire_rest.lua | Plain | an answer that means nothing
-     return {'queued', wait_ms, why}
+     return {'queued', wait_ms}

acquire_rest.lua | Plain | has no end
-  and redis.pcall('pexpire', queue, 60000) ~= 1 then
+  and false then

acquire_rest.lua | Plain | the server has
-   redis.call('hset', lock, owner, count)
- else
+ else

acquire_rest.lua | Plain | the server has
-   redis.call('pexpire', lock, math.max(ttl_ms, tonumber(lease_ms)))

acquire_rest.lua | Plain | is left when all have done
-     redis.pcall('pexpire', 'leasehold_lock_next:' .. tag, 0)

fence.lua | Fenced | comes after
-   if number >= now_us then
+   if true then

fence.lua | Fenced | comes after
-   local number = redis.call('incr', counter)
+   local number = tonumber(redis.call('get', counter) or 0)

release.lua | Plain | two hold it
- redis.call('hdel', lock, owner) == 1
+ redis.call('del', lock) == 1

release_rest.lua | Plain | nobody wakes
-   local is_notified, is_unnotified = notify_next(lock, true, first)
+   local is_notified, is_unnotified = false, false

release_rest.lua | Plain | the server has
-   redis.call('hset', lock, owner, left)
+   redis.call('hset', lock, owner, left + 1)

release.lua | Plain
- redis.call('hdel', lock, owner) == 1
+ redis.call('hexists', lock, owner) == 1

release_rest.lua | Plain | a full server refuses
-   redis.call('pexpire', lock, math.max(ttl_ms, 1))

wait_queue.lua | Plain | has no end
-       redis.pcall('set', 'leasehold_lock_next:' .. tag, client, 'PX', 10 * 2 ^ link)
+       redis.pcall('set', 'leasehold_lock_next:' .. tag, client)

wait_queue.lua | Plain | nobody wakes
-     local receivers = redis.pcall('publish', wake .. client, 'next')
+     local receivers = 1

hand_off.lua | Plain | the server has
-   redis.call('pexpire', lock, lease_ms)
- else
+ else

hand_off.lua | Fenced | the server has
-   redis.call('pexpire', lock, math.max(ttl_ms, tonumber(lease_ms)))

hand_off.lua | Plain | is left when all have done
- redis.call('hdel', lock, from)
- if max_ms
+ if max_ms

hand_off.lua | Plain
-   redis.call('hdel', lock, from)
-   return {'lost'}
+   redis.call('hset', lock, to, 1)
+   return {'granted'}

hand_off.lua | Fenced | comes after
-   fence = next_fence(counter)
+   fence = redis.call('get', counter)

prolong.lua | Plain | the server has
- if redis.call('pttl', lock) < lease_ms then
+ if false then

prolong.lua | Plain | two hold it
- if redis.call('hexists', lock, owner) == 0 then
+ if false then

fair_acquire.lua | Fair
- if ttl_ms == -2 and (not first or first == owner or comes_back) then
+ if not first or first == owner or comes_back then

fair_acquire.lua | Fair | nobody wakes
-     redis.call('rpush', queue, owner)
-   end
-   if comes_back
+   end
+   if comes_back

fair_acquire.lua | Fair | has no end
-   redis.call('pexpire', heartbeats, alive_ms * 2)

fair_release.lua | Fair | nobody wakes
-     redis.pcall('publish', channels .. first, '0')

fair_release.lua | Fair | the server has
- if is_held or way == 'force' then
+ if true then

rw_acquire.lua | ReadWrite | two hold it
-     if not is_free or reserved then
+     if false then

rw_acquire.lua | ReadWrite | two hold it
-   local may_join = half == 'read' and (mode == 'read' or writes)
+   local may_join = half == 'read'

rw_acquire.lua | ReadWrite | the server has
-   redis.call('pexpire', lock, math.max(ttl_ms, lease_ms))

rw_acquire.lua | ReadWrite | the server has
-   redis.call('set', marker, '1', 'PX', math.max(redis.call('pttl', marker), lease_ms))

rw_acquire.lua | ReadWrite | has no end
-   redis.call('set', marker, '1', 'PX', math.max(redis.call('pttl', marker), lease_ms))
+   redis.call('set', marker, '1')

rw_release.lua | ReadWrite | nobody wakes
-   redis.pcall('publish', channel, '1')
-   redis.pcall('publish', channel, '0')

rw_release.lua | ReadWrite | is left when all have done
-     redis.call('del', marker(owner, level))

rw_release.lua | ReadWrite | the server has
- if longest_ms > 0 then
+ if false then

rw_renew.lua | ReadWrite | the server has
-   redis.call('set', marker, '1', 'PX', math.max(redis.call('pttl', marker), lease_ms))

semaphore_acquire.lua | Semaphore(1) | permits
-   return was == 'granted' and {'granted'} or {'busy', -1}
+   redis.call('del', request)

semaphore_acquire.lua | Semaphore(1) | two hold it
- if number < units or not may_take(tag, client, queue_mode, number - units) then
+ if false then

semaphore_acquire.lua | Semaphore(1) | has no end
- redis.call('set', request, 'granted', 'PX', lasts_ms)
+ redis.call('set', request, 'granted')

semaphore_release.lua | Semaphore(1)
- if was == 'released' then
-   return {'freed', 0}
- end

semaphore_release.lua | Semaphore(1)
- redis.call('set', request, 'released', 'PX', lasts_ms)

semaphore_release.lua | Semaphore(1)
- if was == 'void' or way == 'undo' and was ~= 'granted' then
+ if was == 'void' then

semaphore_release.lua | Semaphore(1) | nobody wakes
- local is_notified = notify_for_permits(permits:find('{', 1, true) and permits or '{' .. permits .. '}', count)
+ local is_notified = false

semaphore_release.lua | Semaphore(1) | a full server refuses
- redis.call('pexpire', request, lasts_ms)
"#;

/// Code whose removal no model notices, because other code soon repairs the state: the file, the removed
/// code, and what repairs the state.
const ARGUED: &[(&str, &str, &str)] = &[
    (
        "acquire_rest.lua",
        "`zrem` of a client that stood",
        "the next release takes the entry out, and finds that nobody there waits",
    ),
    ("wait_queue.lua", "`if receivers > 0`", "the second in the queue was notified, and asks within 26 ms"),
    (
        "leave_wait_queue.lua",
        "`notify_next` for a notified client",
        "the second in the queue was notified, and asks within 26 ms",
    ),
    (
        "leave_wait_queue.lua",
        "`zrem`",
        "the next release takes the entry out, and finds that nobody there waits",
    ),
    (
        "rw_release.lua",
        "both calls of `notify_next`",
        "the first in the queue listens to all releases, from 25 ms after it joined",
    ),
    (
        "fair_acquire.lua",
        "`lpop` of the first that is dead",
        "the next request finds it again, and takes the same way",
    ),
    (
        "fair_release.lua",
        "`lrem` of one that leaves",
        "it has no time any more, and so counts as dead when it is the first",
    ),
];

#[test]
fn each_mutated_script_is_found_by_a_model() {
    let originals = lua::load(&|_, text| text);
    let find = &|change: &Change| {
        let [file, kind, words] = change.head();
        let texts = lua::load(&|name, text| change.made(file, name, text));
        assert_ne!(texts, originals);
        let (scripts, kind) = (Scripts::new(&texts, true), kind_named(kind));
        let found = worlds(kind).find_map(|world| {
            let explored = explored(&scripts, kind, world.limits);
            explored.wrong.map(|(wrong, way)| (world.name, wrong, way.len()))
        });
        let line: String = change.from.trim().lines().next().unwrap_or_default().replace('|', "/");
        match found {
            Some((world, wrong, steps)) if wrong.contains(words) => {
                Ok(format!("| `{file}` | `{line}` | {kind:?}, {world} | {words} | {steps} |"))
            }
            other => {
                Err(format!("{file}: {line}: {kind:?}: {words:?} was to be found, and was not: {other:?}"))
            }
        }
    };
    let changes: Vec<Change> = Change::all(MUTANTS).collect();
    let (one, other) = changes.split_at(changes.len() / 2);
    let found: Vec<Result<String, String>> = std::thread::scope(|scope| {
        let halves = [one, other].map(|half| scope.spawn(move || half.iter().map(find).collect::<Vec<_>>()));
        halves.into_iter().flat_map(|half| half.join().expect("a model")).collect()
    });
    let lost: Vec<&String> = found.iter().filter_map(|one| one.as_ref().err()).collect();
    assert!(lost.is_empty(), "{lost:#?}");
    let columns = "| File | Line | Found for the kind, in the world | What was wrong | Steps |";
    page::has("mutants", columns, &found.into_iter().flatten().collect::<Vec<_>>());
    let argued: Vec<String> =
        ARGUED.iter().map(|(file, what, why)| format!("| `{file}` | {what} | {why} |")).collect();
    page::has("argued", "| File | What is taken out | By what it is made good |", &argued);
}
