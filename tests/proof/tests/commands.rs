//! Compares the answers of the model of a Redis server and of a real one to the same random commands.
//!
//! `LEASEHOLD_TEST_SERVER` names the server program. Without it, `redis-server` is found in `PATH`.

mod real;

use std::time::Instant;

use leasehold_proof::server::{Reply, Server};
use real::{Random, reply, start};
use redis::{Connection, Value};

const SEQUENCES: u64 = 2000;
const LENGTH: usize = 60;

/// The maximum number of commands in one script. A script has several, because a server without free memory
/// refuses a command that takes memory, unless the same script has written before.
const IN_ONE: usize = 3;

/// Runs the commands by the server's script engine, as the library does. Returns only an error's first word.
const RUN: &str = "
    local function plain(reply)
        if type(reply) ~= 'table' then return reply end
        if reply.err then return {'an error', (reply.err:gsub('^%-', ''):match('^%S+'))} end
        if reply.ok then return {'a status', reply.ok} end
        return reply
    end
    local time, answers, words = redis.call('time'), {}, {}
    for at = 1, #ARGV + 1 do
        if at > #ARGV or ARGV[at] == '|' then
            answers[#answers + 1] = {plain(redis.pcall(unpack(words)))}
            words = {}
        else
            words[#words + 1] = ARGV[at]
        end
    end
    return {time, answers}";

/// All commands in all forms that the model knows. [`command`] replaces each single capital letter.
const FORMS: &str = "\
    publish C M; del K; del K K; exists K; exists K K; pttl K; pttl K; pexpire K T; pexpire K T; get K; \
    set K V; set K V XX; set K V PX T; set K V px T; set K V px T; incr K; incrby K N; decrby K N; \
    hget K F; hset K F V; hset K F V F V; hincrby K F N; hlen K; hincrby K F N; hlen K; hdel K F; \
    hdel K F F; hexists K F; hkeys K; lindex K N; llen K; lpop K; rpush K F; rpush K F; lrem K 0 F; \
    lpos K F; lrange K N N; zadd K N F; zadd K NX N F; zadd K XX N F; zadd K XX INCR N F; \
    zadd K GT N F; zadd K XX GT N F; zincrby K N F; zrem K F; zrem K F F; zscore K F; zcard K; \
    zrank K F; zcount K N N; zcount K N +inf; zrange K N N; zrange K N N WITHSCORES; \
    zrangebyscore K N N LIMIT N N; zpopmin K; zremrangebyscore K N N";

/// A random command. It has one of few keys, so that several commands often use the same key.
fn command(random: &mut Random) -> Vec<String> {
    let forms: Vec<&str> = FORMS.split("; ").collect();
    let form = random.of(&forms);
    let word = |word| match word {
        "C" => "channel",
        "K" => random.of(&["a", "b", "c"]),
        "F" => random.of(&["one", "two", "three", "four"]),
        "V" | "M" => random.of(&["0", "7", "-3", "text", "", "012", "9007199254740000"]),
        "N" => random.of(&["0", "1", "2", "-1", "-2", "8"]),
        "T" => random.of(&["1", "2", "5", "20", "60000", "0", "-1", "text"]),
        word => word,
    };
    form.split(' ').map(word).map(str::to_owned).collect()
}

/// Sets or removes a memory limit of one byte, which the server always exceeds, so that it counts as full.
fn fill(connection: &mut Connection, is_full: bool) {
    redis::cmd("CONFIG")
        .arg(&["SET", "maxmemory", if is_full { "1" } else { "0" }])
        .exec(connection)
        .expect("a limit of memory");
}

fn first_word(of: Reply) -> Reply {
    match of {
        Reply::Error(text) => Reply::Error(text.split(' ').next().unwrap_or_default().to_owned()),
        other => other,
    }
}

#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "how long a script took at the most is how far its times may be apart"
)]
fn the_server_model_answers_as_redis_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_program, mut connection, _) = start(folder.path());
    let (mut errors, mut out_of_memory, mut most) = (0, 0, 0);
    for seed in 1..=SEQUENCES {
        redis::cmd("FLUSHALL").exec(&mut connection).expect("an empty server");
        let mut is_full = false;
        fill(&mut connection, is_full);
        let (mut random, mut sent) = (Random(seed), Vec::new());
        // The states of the model that explain all answers of the server so far.
        let mut models = vec![Server::default()];
        for _ in 0..LENGTH {
            if random.below(20) == 0 {
                is_full = !is_full;
                fill(&mut connection, is_full);
                sent.push(vec![format!("full: {is_full}")]);
            }
            let commands: Vec<_> = (0..=random.below(IN_ONE)).map(|_| command(&mut random)).collect();
            let asked = Instant::now();
            let answer: Value = redis::cmd("EVAL")
                .arg(RUN)
                .arg(0)
                .arg(commands.join(&"|".to_owned()))
                .query(&mut connection)
                .expect("an answer of the server");
            // On some versions of the server, time passes while a script runs. So the model tries all times
            // that differ from the server's by at most `apart` ms.
            let apart = 1 + asked.elapsed().as_millis() as u64;
            let Reply::Array(parts) = reply(&answer) else { panic!("{answer:?}") };
            let [Reply::Array(time), Reply::Array(answers)] = parts.as_slice() else { panic!("{answer:?}") };
            let [Reply::Text(seconds), Reply::Text(micros)] = time.as_slice() else { panic!("{time:?}") };
            let seconds = seconds.parse::<u64>().expect("seconds");
            let now_us = seconds * 1_000_000 + micros.parse::<u64>().expect("microseconds");
            // In a script's reply a list ends at its first nil, so an empty list stands for nil.
            let of_server: Vec<Reply> = answers
                .iter()
                .map(|answer| match answer {
                    Reply::Array(items) => items.first().cloned().unwrap_or(Reply::Nil),
                    other => panic!("no answer to a command: {other:?}"),
                })
                .collect();
            sent.extend(commands.clone());
            for model in &mut models {
                (model.is_full, model.has_written) = (is_full, false);
            }
            for (words, of_server) in commands.iter().zip(&of_server) {
                let mut answers = Vec::new();
                let mut possible: Vec<Server> = Vec::new();
                for model in &models {
                    for now_us in (now_us - apart * 1000..=now_us + apart * 1000).step_by(1000) {
                        let mut next = Server { now_us, ..model.clone() };
                        let answer = first_word(next.call(words));
                        next.now_us = 0;
                        if answer == *of_server && !possible.contains(&next) {
                            possible.push(next);
                        }
                        answers.push(answer);
                    }
                }
                assert!(
                    !possible.is_empty(),
                    "{of_server:?} is the server's answer to {words:?}, of the last {} of {sent:#?} (seed {seed}), and the model's {answers:?}",
                    commands.len()
                );
                most = most.max(possible.len());
                models = possible;
            }
            errors += of_server.iter().filter(|answer| matches!(answer, Reply::Error(_))).count();
            out_of_memory +=
                of_server.iter().filter(|answer| **answer == Reply::Error("OOM".to_owned())).count();
        }
    }
    println!(
        "{SEQUENCES} sequences of {LENGTH} scripts, {errors} errors, {out_of_memory} of them for want of memory; {most} states at once"
    );
    assert!(
        errors > 1000 && out_of_memory > 1000,
        "{errors}, {out_of_memory}: that errors are alike was not looked at"
    );
}
