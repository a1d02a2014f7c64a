//! Explores worlds in which Redisson shares locks with this crate. Redisson's scripts are recorded from a
//! real Redisson while this test runs. `LEASEHOLD_BLESS=1 ./check proof` writes the numbers of states to
//! docs/figures/proof.md.

mod changed;
mod overhear;
mod page;
mod real;

use std::collections::BTreeSet;

use changed::{Change, kind_named};
use leasehold_proof::foreign::{Filling, Foreign, Part};
use leasehold_proof::kinds::Kind;
use leasehold_proof::lua::{self, Scripts};
use leasehold_proof::server::{Entry, Reply, Server, Value};
use leasehold_proof::worlds::{MIXED_KINDS, MIXED_WORLDS, explored, explored_beside, mixed_worlds, worlds};
use real::{Random, reply, start};
use redis::Connection;

const SEQUENCES: u64 = 250;
const LENGTH: usize = 40;

/// Changes (see [`changed`]). A head has the file, the kind of lock, and words of the expected fault.
const MUTANTS: &str = r#"
acquire_rest.lua | Plain | two hold it
-   local wait_ms, why = ttl_ms ~= -2 and ttl_ms, 'foreign'
+   local wait_ms, why = holders and holders[1]:sub(15, 15) == '8' and ttl_ms, 'foreign'

acquire_rest.lua | Plain | nobody wakes
-     if holder and holder:find('^%x+%-%x+%-8%x%x%x%-%x+%-%x+:%d+$') and holder:sub(15, 15) == '8' then
+     if holder then

release_rest.lua | Plain | nobody wakes
-   local listeners = redis.pcall('publish', channel, '0')
+   local listeners = is_notified and 0 or redis.pcall('publish', channel, '0')

fair_acquire.lua | Fair | nobody wakes
-   first_until = score(heartbeats, first) or score(timeouts, first) or 0
+   first_until = score(heartbeats, first) or 0

fair_acquire.lua | Fair | nobody wakes
-     elseif not at or own_until == 0 then
+     elseif not at or own_until == 0 then
+       their_ms = 0

fair_release.lua | Fair | nobody wakes
-     redis.pcall('publish', channels .. first, '0')
+     redis.pcall('publish', channels .. first, 'next')

rw_release.lua | ReadWrite | nobody wakes
-     redis.pcall('publish', channel, '1')
-   end
-   redis.pcall('publish', channel, '0')
+     redis.pcall('publish', channel, '1')
+   end
+   redis.pcall('publish', channel, 'free')
"#;

/// In this many of the smallest worlds without Redisson no mutant may be found, as each must need Redisson.
const WORLDS_ALONE: usize = 4;

fn both(foreign: &Foreign, change: &dyn Fn(&str, String) -> String) -> Scripts {
    let mut texts = lua::load(change);
    texts.extend(foreign.scripts.clone());
    Scripts::new(&texts, true)
}

#[test]
fn all_invariants_hold_beside_redisson() {
    let Some(foreign) = overhear::redisson() else { return };
    let of_kind = |kind: Kind| {
        let scripts = both(foreign, &|_, text| text);
        let mut rows = Vec::new();
        for (half, world, limits) in mixed_worlds(kind) {
            let found = explored_beside(&scripts, foreign, kind, limits);
            assert!(found.wrong.is_none(), "{kind:?}{half}, {}: {:#?}", world.name, found.wrong);
            assert!(!found.is_cut, "{kind:?}{half}, {}: more than {} states", world.name, found.states);
            let (states, steps, deepest) = (found.states, found.steps, found.deepest);
            let row = format!("| {kind:?}{half} | {} | {states} | {steps} | {deepest} |", world.name);
            println!("{row}");
            rows.push(row);
        }
        rows
    };
    let rows: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            MIXED_KINDS.into_iter().map(|kind| scope.spawn(move || of_kind(kind))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("what must hold does not")).collect()
    });
    page::has("mixed states", "| Kind | World | States | Steps | Deepest |", &rows);
    let words: Vec<String> =
        MIXED_WORLDS.iter().map(|world| format!("| {} | {} |", world.name, world.words)).collect();
    page::has("mixed worlds", "| World | What is in it |", &words);
}

#[test]
fn each_mutated_script_fails_only_in_worlds_with_redisson() {
    let Some(foreign) = overhear::redisson() else { return };
    let find = |change: Change| {
        let [file, kind, words] = change.head();
        let (scripts, kind) = (both(foreign, &|name, text| change.made(file, name, text)), kind_named(kind));
        let to = &change.to;
        let line = |text: &str| text.trim().lines().last().unwrap_or_default().trim().replace('|', "/");
        for world in worlds(kind).take(WORLDS_ALONE) {
            let alone = explored(&scripts, kind, world.limits);
            assert!(alone.wrong.is_none(), "{file}: {}: {}: {:#?}", line(to), world.name, alone.wrong);
        }
        let found = mixed_worlds(kind).find_map(|(half, world, limits)| {
            let found = explored_beside(&scripts, foreign, kind, limits);
            found.wrong.map(|(wrong, way)| (half, world.name, wrong, way))
        });
        match found {
            Some((half, world, wrong, way)) if wrong.contains(words) => {
                println!("{file}: {}: {wrong}: {way:#?}", line(to));
                let steps = way.len();
                Ok(format!("| `{file}` | `{}` | {kind:?}{half}, {world} | {words} | {steps} |", line(to)))
            }
            other => Err(format!("{file}: {}: {words:?} was to be found, not {other:#?}", line(to))),
        }
    };
    let (found, lost): (Vec<_>, Vec<_>) = Change::all(MUTANTS).map(find).partition(Result::is_ok);
    assert!(lost.is_empty(), "{lost:#?}");
    let columns = "| File | The line, changed | Found for the kind, in the world | What was wrong | Steps |";
    page::has("mixed mutants", columns, &found.into_iter().flatten().collect::<Vec<_>>());
}

/// A script that reads all keys in alphabetical order, with their values and remaining times.
const DUMP: &str = "
    local read = {
        string = function(key) return redis.call('get', key) end,
        hash = function(key) return redis.call('hgetall', key) end,
        list = function(key) return redis.call('lrange', key, 0, -1) end,
        zset = function(key) return redis.call('zrange', key, 0, -1, 'WITHSCORES') end,
    }
    local dump, keys = {}, redis.call('keys', '*')
    table.sort(keys)
    for _, key in ipairs(keys) do
        dump[#dump + 1] = {key, redis.call('pttl', key), read[redis.call('type', key).ok](key)}
    end
    return dump";

fn dump(model: &Server) -> Reply {
    let text = |text: &str| Reply::Text(text.to_owned());
    let worth = |entry: &Entry| match &entry.value {
        Value::Text(worth) => text(worth),
        Value::Hash(fields) => {
            Reply::Array(fields.iter().flat_map(|(field, worth)| [text(field), text(worth)]).collect())
        }
        Value::List(items) => Reply::Array(items.iter().map(|item| text(item)).collect()),
        Value::Sorted(members) => Reply::Array(
            members.iter().flat_map(|(by, member)| [text(member), text(&by.to_string())]).collect(),
        ),
    };
    let left = |entry: &Entry| entry.ends_ms.map_or(-1, |ends| (ends - model.now_ms()) as i64);
    let shown = |(key, entry): (&String, &Entry)| {
        Reply::Array(vec![text(key), Reply::Number(left(entry)), worth(entry)])
    };
    Reply::Array(model.keys.iter().map(shown).collect())
}

fn now_us(connection: &mut Connection) -> u64 {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(connection).expect("the server's time");
    seconds * 1_000_000 + micros
}

fn evaluated(connection: &mut Connection, text: &str, keys: &[String], arguments: &[String]) -> Reply {
    let answer = redis::cmd("EVAL").arg(text).arg(keys.len()).arg(keys).arg(arguments).query(connection);
    reply(&answer.expect("an answer of the server"))
}

/// Whether two replies are equal, except that times (numbers from 1000 on) may differ by up to `apart` ms.
fn are_alike(one: &Reply, other: &Reply, apart: u64) -> bool {
    let time = |reply: &Reply| match reply {
        Reply::Number(number) => Some(*number),
        Reply::Text(text) => text.parse().ok(),
        _ => None,
    };
    match (one, other) {
        (Reply::Array(ones), Reply::Array(others)) => {
            let mut pairs = ones.iter().zip(others);
            ones.len() == others.len() && pairs.all(|(one, other)| are_alike(one, other, apart))
        }
        _ => match time(one).zip(time(other)) {
            Some((one, other)) if one.abs() >= 1000 => one.abs_diff(other) <= apart,
            _ => one == other,
        },
    }
}

/// Three owners of Redisson send the same random requests to a server and to the model. Between requests,
/// keys are deleted as if they had expired.
#[test]
fn the_server_model_answers_redisson_as_redis_does() {
    let Some(foreign) = overhear::redisson() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (_program, mut connection, _) = start(folder.path());
    let scripts = Scripts::new(&foreign.scripts, true);
    let parts: [&[Part]; 4] = [&[Part::Plain], &[Part::Fenced], &[Part::Fair], &[Part::Read, Part::Write]];
    let mut answers = BTreeSet::new();
    for seed in 1..=SEQUENCES {
        redis::cmd("FLUSHALL").exec(&mut connection).expect("an empty server");
        let (mut random, mut sent, mut apart) = (Random(seed), Vec::new(), 0);
        let parts = parts[seed as usize % parts.len()];
        let requests: Vec<_> = foreign.requests.keys().filter(|(part, _)| parts.contains(part)).collect();
        let mut model = Server::default();
        let begun_ms = now_us(&mut connection) / 1000;
        for _ in 0..LENGTH {
            let (part, verb) = *requests[random.below(requests.len())];
            // Leases differ by so much that a few milliseconds do not change an answer.
            let filling = Filling {
                owner: random.of(&["one:1", "one:2", "two:1"]),
                lease_ms: [45_000, 65_000][random.below(2)],
                wait_ms: [20_000, 80_000][random.below(2)],
                now_ms: begun_ms + 20_000 * random.below(8) as u64,
                unlock: random.below(3) as u8,
            };
            let mut call = foreign.request(part, verb, &filling);
            let key = model.keys.keys().nth(random.below(6));
            if let Some(key) = key.filter(|_| random.below(4) == 0) {
                call.script = "command".to_owned();
                (call.keys, call.arguments) = (Vec::new(), vec!["DEL".to_owned(), key.clone()]);
            }
            sent.push(format!("{part:?} {verb:?} {:?} {:?}", call.keys, call.arguments));
            model.now_us = now_us(&mut connection);
            let text = &foreign.scripts[&call.script];
            let of_server = evaluated(&mut connection, text, &call.keys, &call.arguments);
            let dumped = evaluated(&mut connection, DUMP, &[], &[]);
            apart += now_us(&mut connection) / 1000 - model.now_us / 1000 + 1;
            if apart > 4000 {
                // The machine was too slow, so passed time may have changed an answer.
                break;
            }
            let of_model = scripts.run(&mut model, &call.script, &call.keys, &call.arguments);
            let modelled = dump(&model);
            assert!(
                are_alike(&of_server, &of_model, apart) && are_alike(&dumped, &modelled, apart),
                "{of_server:?}, and then has {dumped:?}, is the server's answer to the last of {sent:#?} (seed {seed}), and the model's {of_model:?}, and then {modelled:?}"
            );
            answers.insert(format!("{part:?} {verb:?}: {:?}", std::mem::discriminant(&of_server)));
        }
    }
    println!("{SEQUENCES} sequences of {LENGTH} requests, {} sorts of answers", answers.len());
    // Some requests must have had several sorts of answer, such as granted and busy.
    assert!(answers.len() >= foreign.requests.len() + 6, "{answers:#?}");
}
