//! The commands on hashes, lists and sorted sets.

use std::collections::VecDeque;

use super::{NO_INTEGER, Reply, Server, Value, WRONG_TYPE, error, integer, range, score};

impl Server {
    pub(super) fn hash(&mut self, command: &str, words: &[&str]) -> Reply {
        let (key, rest) = words.split_first().expect("a key");
        let mut fields = match self.get(key) {
            None => Vec::new(),
            Some(Value::Hash(fields)) => fields.clone(),
            Some(_) => return error(WRONG_TYPE),
        };
        let at = |fields: &[(String, String)], name: &str| fields.iter().position(|(field, _)| field == name);
        match (command, rest) {
            ("hget", [field]) => {
                at(&fields, field).map_or(Reply::Nil, |at| Reply::Text(fields[at].1.clone()))
            }
            ("hexists", [field]) => Reply::Number(i64::from(at(&fields, field).is_some())),
            ("hkeys", []) => {
                Reply::Array(fields.iter().map(|(field, _)| Reply::Text(field.clone())).collect())
            }
            ("hset", pairs) => {
                let mut added = 0;
                for pair in pairs.chunks(2) {
                    let [field, value] = pair else {
                        return error("ERR wrong number of arguments for 'hset' command");
                    };
                    match at(&fields, field) {
                        Some(at) => fields[at].1 = (*value).to_owned(),
                        None => {
                            fields.push(((*field).to_owned(), (*value).to_owned()));
                            added += 1;
                        }
                    }
                }
                self.write(key, Value::Hash(fields));
                Reply::Number(added)
            }
            ("hlen", []) => Reply::Number(fields.len() as i64),
            ("hincrby", [field, by]) => {
                let Some(by) = integer(by) else { return error(NO_INTEGER) };
                let at = at(&fields, field);
                let Some(now) = at.map_or(Some(0), |at| integer(&fields[at].1)) else {
                    return error("ERR hash value is not an integer");
                };
                let sum = now + by;
                match at {
                    Some(at) => fields[at].1 = sum.to_string(),
                    None => fields.push(((*field).to_owned(), sum.to_string())),
                }
                self.write(key, Value::Hash(fields));
                Reply::Number(sum)
            }
            ("hdel", [_, ..]) => {
                let before = fields.len();
                fields.retain(|(field, _)| !rest.contains(&&**field));
                let removed = before - fields.len();
                if removed > 0 {
                    self.write(key, Value::Hash(fields));
                    self.tidy(key);
                }
                Reply::Number(removed as i64)
            }
            _ => panic!("not modelled: {command} {rest:?}"),
        }
    }

    pub(super) fn list(&mut self, command: &str, words: &[&str]) -> Reply {
        let (key, rest) = words.split_first().expect("a key");
        let mut items = match self.get(key) {
            None => VecDeque::new(),
            Some(Value::List(items)) => items.clone(),
            Some(_) => return error(WRONG_TYPE),
        };
        match (command, rest) {
            ("llen", []) => Reply::Number(items.len() as i64),
            ("lindex", [index]) => {
                let Some(index) = integer(index) else { return error(NO_INTEGER) };
                let index = if index < 0 { items.len() as i64 + index } else { index };
                let item = usize::try_from(index).ok().and_then(|index| items.get(index));
                item.map_or(Reply::Nil, |item| Reply::Text(item.clone()))
            }
            ("lpos", [item]) => {
                items.iter().position(|one| one == item).map_or(Reply::Nil, |at| Reply::Number(at as i64))
            }
            ("lrange", [first, last]) => {
                let (Some(first), Some(last)) = (integer(first), integer(last)) else {
                    return error(NO_INTEGER);
                };
                let (from, length) = range(first, last, items.len());
                Reply::Array(items.iter().skip(from).take(length).cloned().map(Reply::Text).collect())
            }
            ("lpop", []) => {
                let Some(first) = items.pop_front() else { return Reply::Nil };
                self.write(key, Value::List(items));
                self.tidy(key);
                Reply::Text(first)
            }
            ("rpush", [item]) => {
                items.push_back((*item).to_owned());
                let length = items.len() as i64;
                self.write(key, Value::List(items));
                Reply::Number(length)
            }
            ("lrem", ["0", item]) => {
                let before = items.len();
                items.retain(|one| one != item);
                let removed = before - items.len();
                if removed > 0 {
                    self.write(key, Value::List(items));
                    self.tidy(key);
                }
                Reply::Number(removed as i64)
            }
            _ => panic!("not modelled: {command} {rest:?}"),
        }
    }

    pub(super) fn sorted(&mut self, command: &str, words: &[&str]) -> Reply {
        let (key, rest) = words.split_first().expect("a key");
        let mut members = match self.get(key) {
            None => Vec::new(),
            Some(Value::Sorted(members)) => members.clone(),
            Some(_) => return error(WRONG_TYPE),
        };
        let at =
            |members: &[(i64, String)], name: &str| members.iter().position(|(_, member)| member == name);
        match (command, rest) {
            ("zcard", []) => Reply::Number(members.len() as i64),
            ("zrank", [member]) => at(&members, member).map_or(Reply::Nil, |at| Reply::Number(at as i64)),
            ("zcount", [least, most]) => {
                let most = if *most == "+inf" { Some(i64::MAX) } else { score(most) };
                let (Some(least), Some(most)) = (score(least), most) else {
                    return error("ERR min or max is not a float");
                };
                Reply::Number(members.iter().filter(|(by, _)| (least..=most).contains(by)).count() as i64)
            }
            ("zscore", [member]) => {
                at(&members, member).map_or(Reply::Nil, |at| Reply::Text(members[at].0.to_string()))
            }
            ("zadd", [options @ .., by, member]) => {
                let Some(by) = score(by) else { return error("ERR value is not a valid float") };
                let (only_new, only_there, only_later) = match options {
                    [] => (false, false, false),
                    ["NX"] => (true, false, false),
                    ["XX"] | ["XX", "INCR"] => (false, true, false),
                    ["GT"] => (false, false, true),
                    ["XX", "GT"] => (false, true, true),
                    _ => panic!("not modelled: zadd {options:?}"),
                };
                if options.contains(&"INCR") {
                    let Some(at) = at(&members, member) else { return Reply::Nil };
                    members[at].0 += by;
                    let sum = members[at].0;
                    members.sort();
                    self.write(key, Value::Sorted(members));
                    return Reply::Text(sum.to_string());
                }
                let added = match at(&members, member) {
                    Some(_) if only_new => 0,
                    Some(at) if only_later && members[at].0 >= by => 0,
                    None if only_there => return Reply::Number(0),
                    Some(at) => {
                        members[at].0 = by;
                        0
                    }
                    None => {
                        members.push((by, (*member).to_owned()));
                        1
                    }
                };
                members.sort();
                self.write(key, Value::Sorted(members));
                Reply::Number(added)
            }
            ("zincrby", [by, member]) => {
                let Some(by) = score(by) else { return error("ERR value is not a valid float") };
                let sum = match at(&members, member) {
                    Some(at) => {
                        members[at].0 += by;
                        members[at].0
                    }
                    None => {
                        members.push((by, (*member).to_owned()));
                        by
                    }
                };
                members.sort();
                self.write(key, Value::Sorted(members));
                Reply::Text(sum.to_string())
            }
            ("zrem", gone @ [_, ..]) => {
                let before = members.len();
                members.retain(|(_, member)| !gone.contains(&member.as_str()));
                let removed = before - members.len();
                if removed > 0 {
                    self.write(key, Value::Sorted(members));
                    self.tidy(key);
                }
                Reply::Number(removed as i64)
            }
            ("zpopmin", []) => {
                if members.is_empty() {
                    return Reply::Array(Vec::new());
                }
                let (by, member) = members.remove(0);
                self.write(key, Value::Sorted(members));
                self.tidy(key);
                Reply::Array(vec![Reply::Text(member), Reply::Text(by.to_string())])
            }
            ("zremrangebyscore", [least, most]) => {
                let (Some(least), Some(most)) = (score(least), score(most)) else {
                    return error("ERR min or max is not a float");
                };
                let before = members.len();
                members.retain(|(by, _)| *by < least || *by > most);
                let removed = before - members.len();
                if removed > 0 {
                    self.write(key, Value::Sorted(members));
                    self.tidy(key);
                }
                Reply::Number(removed as i64)
            }
            ("zrangebyscore", [least, most, "LIMIT", first, count]) => {
                let (Some(least), Some(most)) = (score(least), score(most)) else {
                    return error("ERR min or max is not a float");
                };
                let (Some(first), Some(count)) = (integer(first), integer(count)) else {
                    return error(NO_INTEGER);
                };
                let within = members.into_iter().filter(|(by, _)| (least..=most).contains(by));
                let (first, count) = match usize::try_from(first) {
                    Ok(first) => (first, usize::try_from(count).unwrap_or(usize::MAX)),
                    Err(_) => (0, 0), // Redis finds nothing at a negative offset
                };
                Reply::Array(within.skip(first).take(count).map(|(_, member)| Reply::Text(member)).collect())
            }
            ("zrange", [first, last, options @ ..]) => {
                let (Some(first), Some(last)) = (integer(first), integer(last)) else {
                    return error(NO_INTEGER);
                };
                let (from, length) = range(first, last, members.len());
                let with_scores = match options {
                    [] => false,
                    ["WITHSCORES"] => true,
                    _ => panic!("not modelled: zrange {options:?}"),
                };
                let mut found = Vec::new();
                for (by, member) in members.iter().skip(from).take(length) {
                    found.push(Reply::Text(member.clone()));
                    if with_scores {
                        found.push(Reply::Text(by.to_string()));
                    }
                }
                Reply::Array(found)
            }
            _ => panic!("not modelled: {command} {rest:?}"),
        }
    }
}
