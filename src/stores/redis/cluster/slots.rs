//! The slot of a key, and each slot's member.

use std::collections::HashMap;

use redis::Value;

use crate::error::{Error, ErrorKind, Result};
use crate::hosts::Host;
use crate::stores::redis::conn::connection::Endpoint;

const SLOTS: u16 = 16_384;
pub(super) const MOST_MEMBERS: usize = 4096;

/// The slot of a key: CRC16 (XMODEM) of the text between the first opening brace and the next closing one, or
/// of the whole key if there is no such text.
pub(crate) fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    let crc = hashed.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % SLOTS
}

/// Whether all keys and channels of a lock are in its name's slot. They contain the name: as `{name}` if it
/// has no `{`, else unchanged. So the name must contain no braces, or some text in its first pair.
pub(crate) fn keeps_its_slot(name: &str) -> bool {
    match name.split_once('{') {
        None => !name.contains('}'),
        Some((_, rest)) => rest.split_once('}').is_some_and(|(tag, _)| !tag.is_empty()),
    }
}

#[derive(Debug, Clone)]
pub(super) struct SlotMap {
    pub(super) members: Vec<Endpoint>,
    /// For each slot, the index of its primary in `members`.
    primaries: Vec<Option<u16>>,
}

impl SlotMap {
    pub(super) fn new() -> SlotMap {
        SlotMap { members: Vec::new(), primaries: vec![None; usize::from(SLOTS)] }
    }

    #[cfg(test)]
    pub(super) fn of(slot: u16, member: &Endpoint) -> SlotMap {
        let mut map = SlotMap { members: vec![member.clone()], ..SlotMap::new() };
        map.primaries[usize::from(slot)] = Some(0);
        map
    }

    /// Reads the reply to CLUSTER SLOTS of the host `asked`. Slots that are missing keep their member.
    pub(super) fn updated(&self, reply: &Value, asked: &Host) -> Result<SlotMap> {
        let mut map = SlotMap::new();
        let mut places = HashMap::new();
        let Value::Array(ranges) = reply else { return Err(unreadable()) };
        for range in ranges {
            let Value::Array(range) = range else { return Err(unreadable()) };
            let [Value::Int(first), Value::Int(last), primary, replicas @ ..] = range.as_slice() else {
                return Err(unreadable());
            };
            let Some(primary) = member(primary, asked)? else { continue };
            let primary = map.place(&mut places, primary)?;
            for slot in *first..=*last {
                let place = usize::try_from(slot).ok().and_then(|slot| map.primaries.get_mut(slot));
                *place.ok_or_else(unreadable)? = Some(primary);
            }
            for replica in replicas {
                if let Some(replica) = member(replica, asked)? {
                    map.place(&mut places, replica)?;
                }
            }
        }
        let words = "the server knows no member of the cluster that has slots";
        Error::when(map.members.is_empty(), ErrorKind::Busy, "connect", || words)?;
        for slot in 0..SLOTS {
            if map.primary(slot).is_none()
                && let Some(before) = self.primary(slot)
            {
                let before = map.place(&mut places, before.clone())?;
                map.primaries.get_mut(usize::from(slot)).into_iter().for_each(|place| *place = Some(before));
            }
        }
        Ok(map)
    }

    fn place(&mut self, places: &mut HashMap<(Box<str>, u16), u16>, endpoint: Endpoint) -> Result<u16> {
        let key = (endpoint.host.name().into(), endpoint.port);
        if let Some(place) = places.get(&key) {
            return Ok(*place);
        }
        Error::when(self.members.len() >= MOST_MEMBERS, ErrorKind::Protocol, "connect", || {
            format!("the answer to CLUSTER SLOTS names more than {MOST_MEMBERS} members")
        })?;
        let place = u16::try_from(self.members.len()).unwrap_or(u16::MAX);
        self.members.push(endpoint);
        places.insert(key, place);
        Ok(place)
    }

    pub(super) fn primary(&self, slot: u16) -> Option<&Endpoint> {
        let index = (*self.primaries.get(usize::from(slot))?)?;
        self.members.get(usize::from(index))
    }

    pub(super) fn is_same(&self, other: &SlotMap) -> bool {
        (0..SLOTS).all(|slot| self.primary(slot) == other.primary(slot))
    }

    pub(super) fn is_primary(&self, endpoint: &Endpoint) -> bool {
        let Some(index) = self.members.iter().position(|member| member == endpoint) else { return false };
        self.primaries.iter().flatten().any(|primary| usize::from(*primary) == index)
    }
}

/// Reads a member. An empty host means the host `asked`; `?` means that the member does not know its host.
fn member(value: &Value, asked: &Host) -> Result<Option<Endpoint>> {
    let Value::Array(parts) = value else { return Err(unreadable()) };
    let (host, port) = match parts.as_slice() {
        [Value::Nil, Value::Int(port), ..] => (asked.clone(), port),
        [Value::BulkString(host), Value::Int(port), ..] => match &*String::from_utf8_lossy(host) {
            "?" => return Ok(None),
            "" => (asked.clone(), port),
            host => (Host::named(host), port),
        },
        _ => return Err(unreadable()),
    };
    let port = u16::try_from(*port).map_err(|_too_large| unreadable())?;
    Ok(Some(Endpoint { host, port }))
}

fn unreadable() -> Error {
    Error::new(ErrorKind::Protocol, "connect", "the answer to CLUSTER SLOTS cannot be read")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::redis::keys;

    #[test]
    fn key_slots_match_the_cluster_specification() {
        // 0x31c3 is the check value of CRC16/XMODEM. The other numbers are answers of CLUSTER KEYSLOT.
        for (key, expected) in [
            ("123456789", 0x31c3 % SLOTS),
            ("", 0),
            ("foo", 12_182),
            ("{user1000}.following", slot("user1000")),
            ("{user1000}.followers", slot("user1000")),
            ("foo{}{bar}", 8_363),
            ("foo{{bar}}zap", slot("{bar")),
            ("foo{bar}{zap}", slot("bar")),
            ("a}b", 7_866),
        ] {
            assert_eq!(slot(key), expected, "{key}");
        }
    }

    #[test]
    fn names_with_derived_keys_in_another_slot_are_recognized() {
        let derived = |name: &str| {
            let lock = slot(name);
            slot(&keys::channel(name)) == lock && slot(&keys::fence_counter(name)) == lock
        };
        for name in [
            "lk", "a{b}c", "{a}", "a{b}}c", "a{{b}c", "x{y}{}", "ü{é}", "x{y", "a}b", "}", "{", "{}",
            "x{}y{t}", "}{a}", "a}{",
        ] {
            assert_eq!(keeps_its_slot(name), derived(name), "{name}");
        }
        assert!(keeps_its_slot("a{b}c") && !keeps_its_slot("a}b") && !keeps_its_slot("x{}y{t}"));
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn range(first: i64, last: i64, members: &[(&str, i64)]) -> Value {
        let mut range = vec![Value::Int(first), Value::Int(last)];
        range.extend(members.iter().map(|(host, port)| {
            let host = if *host == "nil" { Value::Nil } else { text(host) };
            Value::Array(vec![host, Value::Int(*port), text("id")])
        }));
        Value::Array(range)
    }

    #[test]
    fn slots_missing_from_a_new_map_keep_their_member() {
        let reply = Value::Array(vec![
            range(0, 99, &[("10.0.0.1", 7000), ("10.0.0.2", 7001)]),
            range(100, 199, &[("", 7002)]),
            range(200, 299, &[("nil", 7003)]),
            range(300, 399, &[("?", 7004)]),
        ]);
        let before = SlotMap::of(350, &Endpoint { host: Host::named("old"), port: 1 });
        let map = before.updated(&reply, &Host::named("asked")).unwrap();
        let at = |slot| map.primary(slot).map(ToString::to_string);
        assert_eq!(at(0).as_deref(), Some("10.0.0.1:7000"));
        assert_eq!(at(199).as_deref(), Some("asked:7002"));
        assert_eq!(at(200).as_deref(), Some("asked:7003"));
        assert_eq!(at(350).as_deref(), Some("old:1"));
        assert_eq!(at(400), None);
        assert_eq!(map.members.len(), 5);
        assert!(map.is_same(&map.clone()) && !map.is_same(&before));
        let member = |index: usize| map.is_primary(&map.members[index]);
        assert!(member(0) && !member(1) && member(2));
    }

    #[test]
    fn an_implausible_number_of_members_is_refused() {
        let answer = |count: usize| {
            let hosts: Vec<String> = (0..count).map(|number| format!("host-{number}")).collect();
            let members: Vec<_> = hosts.iter().map(|host| (host.as_str(), 1)).collect();
            let ranges = members.iter().enumerate().map(|(at, member)| {
                let slot = i64::try_from(at % 16_384).unwrap();
                range(slot, slot, std::slice::from_ref(member))
            });
            [Value::Array(vec![range(0, 16_383, &members)]), Value::Array(ranges.collect())]
        };
        for reply in answer(MOST_MEMBERS) {
            let map = SlotMap::new().updated(&reply, &Host::named("asked")).unwrap();
            assert_eq!(map.members.len(), MOST_MEMBERS);
        }
        for reply in answer(46_000) {
            let error = SlotMap::new().updated(&reply, &Host::named("asked")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Protocol);
        }
    }

    #[test]
    fn malformed_slot_maps_are_refused() {
        for reply in [
            Value::Nil,
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(0, 20_000, &[("a", 1)])]),
            Value::Array(vec![range(-1, 5, &[("a", 1)])]),
            Value::Array(vec![range(0, 5, &[("a", 70_000)])]),
            Value::Array(vec![range(0, 5, &[])]),
        ] {
            assert!(SlotMap::new().updated(&reply, &Host::named("asked")).is_err(), "{reply:?}");
        }
    }
}

#[cfg(all(test, unix, leasehold_fuzz))]
mod fuzz {
    use std::hint::black_box;

    use super::*;
    use crate::fuzz::each;
    use crate::stores::redis::tests::made_up::{replies, weight};

    #[test]
    fn any_reply_to_cluster_slots_is_parsed_or_refused() {
        each(replies(&["10.0.0.1", "a.example", "", "?", "::1"]), weight, |reply| {
            let ranges = Value::Array(vec![
                Value::Array(vec![Value::Int(0), Value::Int(16_383), reply.clone(), reply.clone()]),
                reply.clone(),
            ]);
            for answer in [reply.clone(), ranges] {
                let _map = black_box(SlotMap::new().updated(&answer, &Host::named("asked")));
            }
        });
    }

    #[test]
    fn every_name_has_a_cluster_slot() {
        each(crate::fuzz::nearly_text(&[b"{a}b", b"}{", b"{}", b"a{b}{c}"]), String::len, |name| {
            assert!(slot(name) < SLOTS);
            black_box(keeps_its_slot(name));
        });
    }
}
